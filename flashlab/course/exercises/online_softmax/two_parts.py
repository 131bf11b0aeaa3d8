"""Two parts of the keys, computed apart: ``sums`` merges their denominators, ``merge`` their states."""

import numpy as np

from flashlab.course.exercises.online_softmax.states import draw_two_states, state_of
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import online_softmax

inf = np.inf

LOW, HIGH, EMPTY = state_of([0], [1], [[2]]), state_of([1], [2], [[3]]), online_softmax.identity(1, 1)
FAR_BELOW = state_of([-3e38], [1], [[2]])  # below −1e9, which is often used for −∞
ONE_EACH = (
    state_of([-inf, 1, -inf], [0, 2, 0], [[0], [3], [0]]),
    state_of([2, -inf, -inf], [1, 0, 0], [[4], [0], [0]]),
)
EDGES = (
    Case("two parts of equal maximum", (LOW, state_of([0], [3], [[5]]))),
    Case("a second part with the larger maximum", (LOW, HIGH)),
    Case("a first part with the larger maximum", (HIGH, LOW)),
    Case("a maximum below −1e9, which is often used for −∞", (FAR_BELOW, EMPTY)),
    Case("rows of which each has met keys in one part only, or in none", ONE_EACH),
)


def merge_sums(m_a, l_a, m_b, l_b):
    """Return the maximum m [Br] of two parts of Br rows together, and their denominator l [Br] relative to it."""
    m = np.maximum(m_a, m_b)  # [Br]
    m_safe = np.where(m == -np.inf, 0, m)  # [Br]      a row that has met no key in either part
    return m, np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b


def _sums_of(two_states):
    return tuple(part for state in two_states for part in state[:2])


def _draw_sums(rng, size):
    return _sums_of(draw_two_states(rng, size, 1))


BOTH = "np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b"
GUARD = "np.where(m == -np.inf, 0, m)"

sums = Exercise(
    reference=merge_sums,
    edges=tuple(Case(case.property, _sums_of(case.args)) for case in EDGES),
    draw=_draw_sums,
    laws=(no_nan_replaced,),
    sways=True,
    mistakes=(
        Mistake("added the sums as they are, relative to two maxima.",
                "Bring both to the common maximum first: e^(m_a − m) · l_a and e^(m_b − m) · l_b.", BOTH, "l_a + l_b"),
        Mistake("rescaled the second sum only.", "b may hold the larger maximum: rescale both.",
                "np.exp(m_a - m_safe) * l_a", "l_a"),
        Mistake("rescaled the first sum only.", "a may hold the larger maximum: rescale both.",
                "np.exp(m_b - m_safe) * l_b", "l_b"),
        Mistake("rescaled by the inverse.", "The factors are e^(m_a − m) and e^(m_b − m), never above 1.",
                BOTH, "np.exp(m_safe - m_a) * l_a + np.exp(m_safe - m_b) * l_b"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where m is −∞, subtract 0 instead.", GUARD, "m"),
        Mistake("returned the guarded maximum.", "A row without keys has m = −∞, not 0.",
                "return m,", "return m_safe,"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Both sums must be taken relative to the same maximum before they can be added. Which one is safe for both?",
        "With m = max(m_a, m_b), the first sum is multiplied by exp(m_a - m) and the second by exp(m_b - m).",
        "m_safe is m, but 0 where m is -inf, as in the safe softmax. Then return m, and "
        "np.exp(m_a - m_safe) * l_a + np.exp(m_b - m_safe) * l_b.",
    ),
)  # fmt: skip


def _draw_merge(rng, size):
    return draw_two_states(rng, size, int(rng.integers(0, size + 1)))


FACTORS = "np.exp(a.m - m_safe), np.exp(b.m - m_safe)"
OUTPUTS = "alpha[:, None] * a.O + beta[:, None] * b.O"

merge = Exercise(
    reference=online_softmax.merge,
    edges=EDGES,
    draw=_draw_merge,
    laws=(no_nan_replaced,),
    sways=True,
    mistakes=(
        Mistake("rescaled neither side: right only where both maxima are equal.",
                "Multiply side a by e^(a.m − m) and side b by e^(b.m − m).",
                FACTORS, "np.ones_like(m), np.ones_like(m)"),
        Mistake("rescaled the sums and left the outputs as they were.", "O needs the same factors as l.",
                OUTPUTS, "a.O + b.O"),
        Mistake("multiplied O [Br, dv] by alpha [Br] along the wrong axis.", "alpha[:, None] makes a column of it.",
                OUTPUTS, "alpha * a.O + beta * b.O"),
        Mistake("divided O by l.", "It stays a plain sum until all keys have come.",
                OUTPUTS, f"({OUTPUTS}) / (alpha * a.l + beta * b.l)[:, None]"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where m is −∞, subtract 0 instead.", GUARD, "m"),
        Mistake("subtracted 0 wherever the maximum is negative: the sums are then relative to 0, not to m.",
                "Subtract 0 only where m is −∞. Elsewhere it makes the sums wrong, and far below 0 they underflow.",
                GUARD, "np.maximum(m, 0)"),
    ),
    level=1,
    minutes=5,
    hints=(
        "Both sides must be brought to the same reference before they can be added. Which one is safe for both?",
        "With m = max(a.m, b.m), side a is multiplied by exp(a.m - m) and side b by exp(b.m - m): l and O alike.",
        "In exp(a.m - m) put 0 for m where m is -inf, as in the safe softmax. Then State(m, alpha * a.l + beta * b.l, "
        "alpha[:, None] * a.O + beta[:, None] * b.O).",
    ),
)  # fmt: skip
