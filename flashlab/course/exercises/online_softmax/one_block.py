"""One more block of scores and values: ``update``."""

import numpy as np

from flashlab.course.exercises.online_softmax.states import MADE_UP, draw_maxima_near, draw_state, state_of
from flashlab.grading.draws import scores
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake
from flashlab.grading.laws import no_nan_replaced, nothing_clipped
from flashlab.reference import online_softmax

inf = np.inf


def draw_block(rng, size):
    """Draw a state of rows, and a block of keys near its maxima. Some keys far below the maximum have large values."""
    Br, Bc, dv = (int(n) for n in rng.integers((1, 1, 0), size + 1))
    S = scores(rng, Br, Bc)  # [Br, Bc]
    m = draw_maxima_near(rng, S.max(1))  # [Br]
    V = rng.normal(size=(Bc, dv))  # [Bc, dv]
    past = draw_state(rng, m, dv, large=rng.random() < 0.3)
    if rng.random() < 0.3:
        return past, S, V.astype(np.float16)
    with np.errstate(invalid="ignore"):  # -inf - (-inf)
        below = np.nan_to_num(max(m[0], S[0].max()) - np.float64(S[0]), posinf=0)  # [Bc]
    sizes = 1e-18 if rng.random() < 0.3 else np.exp(np.minimum(below, rng.choice([0, MADE_UP])))[:, None]
    return past, S, (sizes * V).astype(np.float32)


def _state_stays_wide(update):
    """Law with inputs of its own: where values come in float16, neither the weights nor the past are rounded to it."""
    one, on = np.float16([[1]]), "one key whose value is in float16"
    for what, past, score in (
        ("weights or sums were", state_of([0], [1], [[0]]), -1),
        ("past was", state_of([0], [3], [[7.001]]), 0.3),
    ):
        _, *found = update(past, np.float32([[score]]), one)
        _, *exact = online_softmax.update(online_softmax.State(*map(np.float64, past)), np.float64([[score]]), one)
        if found[1].dtype == np.float16:
            return Broken(on, "O was returned in the values' float16: the state is float32.")
        if 1e-5 < max(abs(float(x.item() / y.item()) - 1) for x, y in zip(found, exact, strict=True)) < 1e-3:
            return Broken(on, f"the {what} rounded to float16: everything but the values is float32.")


def _all_keys_count(update):
    """Law with inputs of its own: a block may be wider than those of the cases."""
    S_ij, V_j = np.zeros((1, 5000), np.float32), np.ones((5000, 1), np.float32)
    _, l, O = update(online_softmax.identity(1, 1), S_ij, V_j)
    if not np.allclose([l[0], O[0, 0]], 5000, 1e-3):
        return Broken("a block of 5,000 equal keys", "not all keys of the block were taken in.", if_right=True)


def _weights_of_the_past(update, x):
    """Return the weights of the past in rows whose maxima are x, beside a key whose score and value are 0."""
    ones, zeros = np.ones_like(x), np.zeros_like(x)[:, None]
    return update(online_softmax.State(x, ones, ones[:, None]), zeros, zeros[:1])[2][:, 0]


SEEN, NOTHING, THREE = state_of([0], [1], [[2]]), online_softmax.identity(1, 1), np.float32([[3]])

update = Exercise(
    reference=online_softmax.update,
    edges=(
        Case("a first block", (NOTHING, np.float32([[0, 1]]), np.float32([[1], [2]]))),
        Case("a block that raises the maximum", (SEEN, np.float32([[1]]), THREE)),
        Case("a block that leaves the maximum as it was", (SEEN, np.float32([[-1]]), THREE)),
        Case("a block that is masked out altogether", (SEEN, np.float32([[-inf]]), THREE)),
        Case("a first block that is masked out altogether", (NOTHING, np.float32([[-inf]]), THREE)),
    ),
    draw=draw_block,
    laws=(no_nan_replaced,),
    sways=True,
    once=(_state_stays_wide, _all_keys_count, nothing_clipped(_weights_of_the_past)),
    mistakes=(
        Mistake("did not rescale the old output.", "Multiply it by e^(m_old − m_new), like l.",
                "alpha[:, None] * O_i +", "O_i +"),
        Mistake("did not rescale the old sum.", "Multiply it by e^(m_old − m_new), like O.", "alpha * l_i +", "l_i +"),
        Mistake("multiplied O_i [Br, dv] by alpha [Br] along the wrong axis.", "alpha[:, None] makes a column of it.",
                "alpha[:, None] * O_i", "alpha * O_i"),
        Mistake("subtracted the block's own maximum from its scores.", "Past and block share one reference, m_new.",
                "S_ij - m_safe[:, None]", "S_ij - S_ij.max(-1, keepdims=True)"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where m_new is −∞, subtract 0 instead.",
                "np.where(m_new == -np.inf, 0, m_new)", "m_new"),
        Mistake("took one maximum for all rows.", "Each row has its own: S_ij.max(-1).",
                "S_ij.max(-1, initial", "S_ij.max(initial"),
    ),
    level=2,
    minutes=10,
    hints=(
        "The old sums were taken relative to m_i, the new ones are relative to m_new: which factor changes the one "
        "into the other?",
        "alpha = exp(m_i - m_new), and both l_i and O_i are multiplied by it before the block's own sums are added.",
        "m_new = max(m_i, max of S_ij); m_safe = m_new, but 0 where it is -inf; alpha = exp(m_i - m_safe); "
        "P_ij = exp(S_ij - m_safe[:, None]); then l_i and O_i, each alpha times the old plus the block's part.",
    ),
)  # fmt: skip
