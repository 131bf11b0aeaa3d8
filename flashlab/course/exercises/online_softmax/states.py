"""States (m, l, O) to begin with, in cases and laws."""

import numpy as np

from flashlab.reference import online_softmax

inf = np.inf

RISES = np.array([0.3, 0.03, 0.009, 9e-4, 9e-5, 9e-6], np.float32)  # of the maximum, by little
NEIGHBOURS = (1e4, 1e6, -1e4, -1e6)  # maxima which the next number of float32 follows: a relative tolerance ignores it


def state_of(m, l, O):
    """Return a state, with its parts in float32."""
    return online_softmax.State(*(np.array(part, np.float32) for part in (m, l, O)))


def of_one_key(scores):
    """Return the state of rows that have met one key each, with these scores and the value 2."""
    return state_of(scores, np.ones(len(scores)), np.full((len(scores), 1), 2))


def nearly_equal():
    """Yield maxima that differ so little that they may pass for equal, all rows alike: (in words, lower, higher)."""
    for rise in RISES:
        yield f"all by {rise:.0e}", np.zeros(2, np.float32), np.full(2, rise)
    for m in map(np.float32, NEIGHBOURS):
        low, high = np.full(2, m), np.full(2, np.nextafter(m, np.float32(inf)))
        yield f"from {m:,.0f} to the next number of float32", low, high


def taken_in(draw, S, V):
    """Return the state of rows with the scores S [Br, Bc] and the values V [Bc, dv]."""
    return online_softmax.update(online_softmax.identity(len(S), V.shape[1], draw.dtype), S, V)


def past_and_zero(x):
    """Return two states of rows of one key each: with the scores x and the value 1, and with score 0 and value 0."""
    return state_of(x, np.ones(len(x)), np.ones((len(x), 1))), state_of(0 * x, np.ones(len(x)), np.zeros((len(x), 1)))


def two_states(size_of_l, size_of_O):
    """Return two states of two rows with different maxima, for laws: their sums are multiplied by these sizes."""
    l, O = size_of_l * np.array([3.0, 1.5]), size_of_O * np.array([[6.0, -0.3], [-2.0, 0.7]])
    return state_of([0.0, 2.0], l, O), state_of([1.0, 0.5], l[::-1], O[::-1])
