"""Calls drawn at random, in the interpreter: 100 in ``make test``, 2,000 with ``make test-all``.

The interpreter takes the same tiles for every call, and a GPU many: they are drawn, too. ``-k "[17]"`` runs one call.
"""

import pytest

from flashlab.kernels import INTERPRETED, configurations
from flashlab.kernels.decode import operator, tiles
from tests.kernels.drawn_cases import draw, hold

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="on a GPU nearly each of them would be compiled anew")
FOUND = 152, 164, 166, 222  # a window on rows that see no key, forward and backward; NaN in keys that no query sees
QUICK = {*range(100 - len(FOUND)), *FOUND}
NUMBERS = [n if n in QUICK else pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2000)]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_drawn_call_is_as_exact_as_plain_attention(number, choose_anew, monkeypatch):
    case = draw(number)
    Br, Bc = case.tile
    monkeypatch.setattr(configurations, "INTERPRETED", configurations.INTERPRETED._replace(Br=Br, Bc=Bc))
    monkeypatch.setattr(operator, "launch_for", lambda *_: tiles.Launch(16, min(Bc, 64), 4, 1, 1))
    choose_anew()
    hold(case)
