"""Calls drawn at random, in the interpreter: 100 in ``make test``, 2,000 with ``make test-all``.

The interpreter takes the same tiles for every call, and a GPU many: they are drawn, too. A failure names its number;
``-k "[17]"`` runs a call of the quick ones.
"""

import traceback

import pytest

from flashlab.kernels import INTERPRETED, configurations
from flashlab.kernels.decode import operator, tiles
from tests.kernels.drawn_cases import draw, hold

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="on a GPU nearly each of them would be compiled anew")
# A window on rows that see no key, forward and backward; NaN in keys that no query sees; a window of a group's tokens
# that are several tiles of rows.
FOUND = 152, 164, 166, 222, 1287
QUICK = [*range(100 - len(FOUND)), *FOUND]


@pytest.fixture
def run(choose_anew, monkeypatch):
    """Return a function that draws the call of a number, and compares its results with plain attention."""

    def run(number):
        case = draw(number)
        Br, Bc = case.tile
        monkeypatch.setattr(configurations, "INTERPRETED", configurations.INTERPRETED._replace(Br=Br, Bc=Bc))
        monkeypatch.setattr(operator, "launch_for", lambda *_: tiles.Launch(16, min(Bc, 64), 4, 1, 1))
        choose_anew()
        hold(case)

    return run


@pytest.mark.parametrize("number", QUICK)
def test_a_drawn_call_is_as_exact_as_plain_attention(number, run):
    run(number)


@pytest.mark.exhaustive
@pytest.mark.parametrize("hundred", range(20))
def test_a_hundred_drawn_calls_are_as_exact_as_plain_attention(hundred, run):
    wrong = {}
    for number in sorted({*range(100 * hundred, 100 * hundred + 100)} - {*QUICK}):
        try:
            run(number)
        except Exception as error:
            wrong[number] = "".join(traceback.format_exception_only(error))  # with the name of the case
    assert wrong == {}
