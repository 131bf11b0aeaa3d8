"""From the state to the output: ``finish``."""

import numpy as np

from flashlab.course.exercises.online_softmax.states import state_of, taken_in, two_states
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.generators import LARGER, sweep
from flashlab.grading.laws import LARGE, no_nan_replaced, nothing_added, proportional
from flashlab.reference import online_softmax


def _finish_cases():
    return [
        Case("one row", (state_of([2.0], [3.0], [[6.0]]),)),
        Case("a large maximum", (state_of([1000.0], [2.0], [[4.0]]),)),
        Case("a maximum near 0", (state_of([5e-4], [1.0], [[4.0]]),)),
        Case("a row that has met no key", (online_softmax.identity(1, 1),)),
        Case("a row whose values are 0", (state_of([0.0], [2.5], [[0.0]]),)),
        Case("a row that has met very many keys", (state_of([0.0], [1e30], [[2e30]]),)),
        *sweep(_finish_args, sizes=LARGER),
    ]


def _finish_args(draw, Br, Bc, dv):
    return (taken_in(draw, draw.scores(Br, Bc), draw.normal(Bc, dv)),)


def _mean_of_ones(finish, state):
    """The mean of values that are all 1; 1 where no key was met."""
    wide = [np.float64(part) for part in state]
    O, _ = finish(online_softmax.State(*wide[:2], wide[1][:, None]))
    return np.where(state.l == 0, 1, np.asarray(O)[:, 0])


def _mean_of_values(finish, size):
    return finish(two_states(1, size)[0])[0]


def _mean_of_many(finish, size):
    """The mean where both sums are so many times larger; it stays, so it is multiplied here."""
    return size * finish(two_states(size, size)[0])[0]


finish = Exercise(
    reference=online_softmax.finish,
    cases=_finish_cases,
    laws=(no_nan_replaced, nothing_added(_mean_of_ones)),
    once=(proportional(_mean_of_values, "O"), proportional(_mean_of_many, "l and O", LARGE)),
    level=1,
    minutes=5,
    hints=(
        "O is a sum of values weighted with exponentials. What turns such a sum into a weighted mean?",
        "Divide O by l. The log-sum-exp is m + log(l): the exponentials in l were taken relative to m.",
        "Guard the row that met no key: where l is 0, divide by 1 and let lse be -inf.",
    ),
    mistakes=(
        Mistake(
            "the maximum is missing from lse: the exponentials in l were relative to m.", "state.m + np.log", "np.log"
        ),
        Mistake("lse is in units of log₂: use the natural logarithm.", "np.log(l_safe)", "np.log2(l_safe)"),
        Mistake("the output was not divided by l.", "state.O / l_safe[:, None]", "state.O"),
        Mistake("0 / 0 is NaN: where l is 0, divide by 1.", "np.where(state.l == 0, 1, state.l)", "state.l"),
        Mistake("m was returned in the place of lse = m + log l.", "state.m + np.log(l_safe)", "state.m"),
        Mistake("the logarithm was subtracted: lse = m + log l.", "state.m + np.log", "state.m - np.log"),
        Mistake(
            "e^m overflows: log(e^m · l) is m + log l.", "state.m + np.log(l_safe)", "np.log(np.exp(state.m) * l_safe)"
        ),
        Mistake("a row that met no key has lse −∞, not 0.", "state.l == 0, -np.inf,", "state.l == 0, 0,"),
        Mistake("l was returned instead of lse = m + log l.", "state.m + np.log(l_safe)", "l_safe"),
        Mistake("m and log l were multiplied: lse = m + log l.", "state.m + np.log", "state.m * np.log"),
        Mistake("O was multiplied by l: divide by it.", "state.O / l_safe", "state.O * l_safe"),
        Mistake(
            "one row decided for the whole tile: each row has its own maximum, and its own keys.",
            "    return ",
            "    if (state.l == 0).any():\n        return 0 * state.O, np.full_like(state.m, -np.inf)\n    return ",
        ),
        *(
            Mistake(
                "a row without keys has l = 0: maxima may lie below any number.",
                "    l_safe = ",
                f"    state = state._replace(l=np.where(state.m < {bound}, 0, state.l))\n    l_safe = ",
            )
            for bound in (-1e4, -1e6)
        ),
    ),
)
