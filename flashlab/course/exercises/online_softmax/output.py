"""From the state to the output: ``finish``."""

import numpy as np

from flashlab.course.exercises.online_softmax.states import draw_maxima, draw_state, state_of
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.laws import no_nan_replaced, nothing_added
from flashlab.reference import online_softmax


def _draw(rng, size):
    return (draw_state(rng, draw_maxima(rng, rng.integers(1, size + 1)), int(rng.integers(0, size + 1))),)


def _mean_of_ones(finish, state):
    """Return the mean of values that are all 1; 1 for a row that has met no key."""
    wide = [np.float64(part) for part in state]
    O, _ = finish(online_softmax.State(*wide[:2], wide[1][:, None]))
    return np.where(state.l == 0, 1, np.asarray(O)[:, 0])


finish = Exercise(
    reference=online_softmax.finish,
    edges=(
        Case("one row", (state_of([2], [3], [[6]]),)),
        Case("a large maximum", (state_of([1000], [2], [[4]]),)),
        Case("a row that has met no key", (online_softmax.identity(1, 1),)),
        Case("a row whose values are 0", (state_of([0], [2.5], [[0]]),)),
        Case("two rows, one of which has met no key", (state_of([1, -np.inf], [2, 0], [[4], [0]]),)),
    ),
    draw=_draw,
    laws=(no_nan_replaced, nothing_added(_mean_of_ones)),
    sways=True,
    mistakes=(
        Mistake("left the maximum out of lse.", "The exponentials in l are relative to m: lse is m + log l.",
                "state.m + np.log", "np.log"),
        Mistake("took the logarithm to base 2.", "lse is a natural logarithm.", "np.log(l_safe)", "np.log2(l_safe)"),
        Mistake("did not divide the output by l.", "O is a plain sum: O / l is the weighted mean.",
                "state.O / l_safe[:, None]", "state.O"),
        Mistake("divided 0 by 0, which gives NaN.", "Where l is 0, divide by 1.",
                "np.where(state.l == 0, 1, state.l)", "state.l"),
        Mistake("took the logarithm of e^m · l, which overflows.", "log(e^m · l) is m + log l.",
                "state.m + np.log(l_safe)", "np.log(np.exp(state.m) * l_safe)"),
        Mistake("gave a row without keys lse = 0.", "The log-sum-exp of no score is −∞.",
                "state.l == 0, -np.inf,", "state.l == 0, 0,"),
    ),
    level=1,
    minutes=5,
    hints=(
        "O is a sum of values weighted with exponentials. What turns such a sum into a weighted mean?",
        "Divide O by l. The log-sum-exp is m + log(l): the exponentials in l were taken relative to m.",
        "Guard the row that met no key: where l is 0, divide by 1 and let lse be -inf.",
    ),
)  # fmt: skip
