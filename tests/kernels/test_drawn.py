"""Random calls in the interpreter: 115 in ``make test``, 2,000 in ``make test-all``.

Tiles are random, too: the interpreter would take the same ones for every call, and a GPU takes many. A failure names
the number of its call; ``-k "[17]"`` runs one of the quick ones. ``python -m tests.kernels.test_drawn 2000 3000`` runs
a thousand others, in about 5 minutes.
"""

import sys
import traceback

import numpy as np
import pytest

from flashlab.kernels import INTERPRETED
from tests.kernels.drawn_cases import causal, draw, hold_in_tiles, padding, pattern, window
from tests.tools.long import long

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="on a GPU nearly every call would compile kernels")
# Calls that have found mistakes: a window on rows that see no key, forward and backward; NaN in keys that no query
# sees; a window in decoding where the tokens of a group are several tiles of rows.
REVEALING = 152, 164, 166, 222, 1287
# Calls with what the first 80 lack: rules, biases of one text and learned sinks of packed texts, with gradients; masks
# of decoding, codes of 8 bits in pairs, and prefixes in pages; several texts or heads with slopes of their own.
DENSE, PACKED = (186, 228, 346, 576, 1344), (233, 597, 905, 989, 1177, 1273, 1549)
OTHERS = *DENSE, *PACKED, 123, 207, 347, 375, 447, 551, 843, 1179, 1383, 1563
QUICK = [*range(80), *REVEALING, *OTHERS]
ALL = {"B": 2, "steps": 3, "sinks": True, "dropout": True, "learned": "QKV", "learn": True, "kernel": "portable"}
LARGE = {"form": "dense", "B": 2, "heads": (2, 1), "Nq": 70, "Nk": 133, "tile": (32, 32), "d": 16, "steps": 0}
LARGE |= {"learned": "QKV", "kernel": "portable", "dropout": False}
CHOSEN = [
    *((number, ALL | {"form": "dense"}) for number in (9, 12)),
    *((number, ALL | {"form": "packed"}) for number in (1, 61)),
    (3, {"form": "decode", "n": 70, "Nk": 150, "page": 16}),  # a prompt
    # Rules and windows with tiles that they cut, and others that are whole.
    (5, LARGE | {"form": "packed", "Nq": [70, 35], "Nk": [75, 40], "mask": window(30, 3), "tile": (16, 16)}),
    (10, LARGE | {"mask": padding(np.array([100, 40])) & causal()}),
    (16, LARGE | {"mask": pattern(np.random.default_rng(0).random((2, 5, 3)) < 0.6, 16, 48, (2, 2, 5, 3))}),
]


def run(number, **fixed):
    """Draw the call with this number and these choices, and compare its results with plain attention."""
    hold_in_tiles(draw(number, rare=number not in REVEALING, **fixed))


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


@pytest.mark.parametrize("number, choices", CHOSEN, ids=[number for number, _ in CHOSEN])
def test_a_call_with_chosen_options_is_as_exact_as_plain_attention(number, choices):
    run(number, **choices)


@pytest.mark.parametrize("hundred", [long(n) for n in range(20)])
def test_a_hundred_random_calls_are_as_exact_as_plain_attention(hundred):
    assert wrong(sorted({*range(100 * hundred, 100 * hundred + 100)} - {*QUICK})) == {}


if __name__ == "__main__":
    errors = wrong(range(*map(int, sys.argv[1:])))
    print("\n".join(errors.values()), f"{len(errors)} are wrong: {[*errors]}", sep="\n")
