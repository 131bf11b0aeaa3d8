"""Random calls in the interpreter: 85 in ``make test``, 2,000 in ``make test-all``.

Tiles are random, too: the interpreter would take the same ones for every call, and a GPU takes many. A failure names
the number of its call; ``-k "[17]"`` runs one of the quick ones. ``python -m tests.kernels.test_drawn 2000 3000`` runs
a thousand others, in about 5 minutes.
"""

import sys
import traceback
from unittest import mock

import pytest

from flashlab.kernels import INTERPRETED, configurations
from flashlab.kernels.decode import operator, tiles
from tests.kernels.drawn_cases import draw, hold
from tests.kernels.implementations import choose_anew
from tests.tools.long import long

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="on a GPU nearly every call would compile kernels")
# Calls that have found mistakes: a window on rows that see no key, forward and backward; NaN in keys that no query
# sees; a window in decoding where the tokens of a group are several tiles of rows.
REVEALING = 152, 164, 166, 222, 1287
QUICK = [*range(85 - len(REVEALING)), *REVEALING]


def run(number):
    """Draw the call with this number, and compare its results with plain attention."""
    case = draw(number, rare=number not in REVEALING)
    Br, Bc = case.tile
    choice = configurations.INTERPRETED._replace(Br=Br, Bc=Bc)
    launch = tiles.Launch(16, min(Bc, 64), 4, 1, 1)
    of_decode = mock.patch.object(operator, "launch_for", lambda *_: launch)
    choose_anew()
    try:
        with mock.patch.object(configurations, "INTERPRETED", choice), of_decode:
            hold(case)
    finally:
        choose_anew()


def wrong(numbers):
    """Return the errors of the calls that are wrong, by number."""
    errors = {}
    for number in numbers:
        try:
            run(number)
        except Exception as error:
            errors[number] = "".join(traceback.format_exception_only(error))  # with the name of the case
    return errors


@pytest.mark.parametrize("number", QUICK)
def test_a_random_call_is_as_exact_as_plain_attention(number):
    run(number)


@pytest.mark.parametrize("hundred", [long(n) for n in range(20)])
def test_a_hundred_random_calls_are_as_exact_as_plain_attention(hundred):
    assert wrong(sorted({*range(100 * hundred, 100 * hundred + 100)} - {*QUICK})) == {}


if __name__ == "__main__":
    errors = wrong(range(*map(int, sys.argv[1:])))
    print("\n".join(errors.values()), f"{len(errors)} are wrong: {[*errors]}", sep="\n")
