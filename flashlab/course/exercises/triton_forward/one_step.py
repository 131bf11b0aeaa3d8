"""One step of the loop, in base 2: ``update``."""

import numpy as np
import torch

from flashlab.course.exercises.online_softmax.states import draw_maxima_near, draw_state, state_of, times
from flashlab.course.exercises.triton_forward.one_head import TILE, narrow_factors
from flashlab.grading.draws import scores, whole
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.kernel_laws import attempted
from flashlab.kernels import DEVICE, tl, triton
from flashlab.reference.online_softmax import State

inf = np.inf
LOG2_E = np.log2(np.e)


@triton.jit
def update_base_2(m_i, l_i, O_i, S_ij, V_j, scale_log2):
    m_new = tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2)  # [Br]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]
    alpha = tl.exp2(m_i - m_safe)  # [Br]
    P_ij = tl.exp2(S_ij * scale_log2 - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
    O_i = tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i)  # [Br, d]
    return m_new, l_i, O_i


@triton.jit
def _take_in(m, l, O, S, V, scale_log2, step: tl.constexpr, T: tl.constexpr):
    """Take one step on tiles of T x T, in place."""
    rows = tl.arange(0, T)  # [T]
    square = rows[:, None] * T + rows[None, :]  # [T, T]
    S_ij, V_j = tl.load(S + square), tl.load(V + square)  # [T, T] each
    m_i, l_i, O_i = step(tl.load(m + rows), tl.load(l + rows), tl.load(O + square), S_ij, V_j, scale_log2)
    tl.store(m + rows, m_i)
    tl.store(l + rows, l_i)
    tl.store(O + square, O_i)


def _launch_update(function, state, S_ij, V_j, scale):
    rows, dv = state.O.shape
    tensors = [_filled(x, absent) for x, absent in zip((*state, S_ij, V_j), (-inf, 0, 0, -inf, 0), strict=True)]
    _take_in[(1,)](*tensors, scale * LOG2_E, attempted(function), TILE)
    m, l, O = (x.cpu().numpy() for x in tensors[:3])
    return State(m[:rows], l[:rows], O[:rows, :dv])


def _filled(x, absent):
    """Return x as a tensor of the size of a tile, filled up with ``absent``, which changes no result."""
    return torch.from_numpy(np.pad(x, [(0, TILE - n) for n in x.shape], constant_values=absent)).to(DEVICE)


def _in_base_2(state, S_ij, V_j, scale):
    m = np.maximum(state.m, S_ij.max(-1) * (scale * LOG2_E))
    m_safe = np.where(m == -inf, 0, m)
    alpha, P = np.exp2(state.m - m_safe), np.exp2(S_ij * (scale * LOG2_E) - m_safe[:, None])
    return State(m, alpha * state.l + P.sum(-1), alpha[:, None] * state.O + P @ V_j)


def _step(property, m, l, O, S, V, scale=1.0):
    return Case(property, (state_of(m, l, O), np.array(S, np.float32), np.array(V, np.float16), scale))


def _draw(rng, size):
    """Draw a state of rows, with maxima in units of log2, and the products of a tile near its maxima."""
    Br, Bc, dv = np.minimum(rng.integers((4, 1, 1), 2 * size + 3), TILE)  # 4 rows show the effect of rounded inputs
    scale = float(rng.choice([0.125, 0.25, 1, 0.7, 4]))
    S = scores(rng, Br, Bc, largest=1e12)  # [Br, Bc]
    m = draw_maxima_near(rng, S.max(1))  # [Br]
    m = np.where(m < -1e12, -inf, np.minimum(m, 1e12))  # in the range of the products
    V = np.clip(rng.choice([1, 1, 3e4]) * rng.normal(size=(Bc, dv)), -65504, 65504).astype(np.float16)  # [Bc, dv]
    past = draw_state(rng, np.float32(m * LOG2_E), dv, large=False)
    many = rng.choice([1, whole(rng, size, 2**24)])  # how often each key of the past counts
    return times(past, np.full(Br, many)), S / np.float32(scale), V, scale


RISES = np.geomspace(6e-4, 6e-6, TILE)[:, None]  # [TILE, 1]

update = Exercise(
    reference=update_base_2,
    launch=_launch_update,
    exact=_in_base_2,
    edges=(
        _step("a tile that raises the maximum", [0], [1], [[4]], [[2]], [[3]]),
        _step("a tile that leaves the maximum as it was", [4], [2], [[5]], [[2]], [[3]]),
        _step("a first tile, and a scale", [-inf], [0], [[0]], [[4, 2]], [[1], [3]], 0.5),
        _step("rows that have met no key: one meets none, one a score below −1e9, which is often used for −∞",
              [-inf, -inf], [0, 0], [[0], [0]], [[-inf, -inf], [-4e11, -5e11]], [[3], [4]]),
        _step("maxima of a whole tile that rise from 10 by little",
              [10 * LOG2_E] * TILE, [1] * TILE, [[4]] * TILE, 10 + RISES, [[3]]),
    ),
    draw=_draw,
    draws=40,
    once=(narrow_factors(_launch_update, *_step("", [0], [1], [[0]], [[0]], [[0]]).args),),
    sways=True,
    level=2,
    minutes=15,
    hints=(
        "The six lines of online_softmax.update. Where does scale_log2 go, so that m_i is in units of log2?",
        "m_new = tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2); every exp becomes tl.exp2; and tl.dot wants both "
        "factors in one dtype.",
        "alpha = tl.exp2(m_i - m_safe); P_ij = tl.exp2(S_ij * scale_log2 - m_safe[:, None]); "
        "O_i = tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i).",
    ),
    mistakes=(
        Mistake("forgot the old maximum.", "m_new is the larger one of m_i and the tile's maximum.",
                "tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2)", "tl.max(S_ij, 1) * scale_log2"),
        Mistake("inverted alpha.", "It is 2^(m_old − m_new), which is at most 1.", "m_i - m_safe", "m_safe - m_i"),
        Mistake("did not scale the tile's maximum.", "Multiply it by scale_log2: m_i is in units of log2.",
                "tl.max(S_ij, 1) * scale_log2", "tl.max(S_ij, 1)"),
        Mistake("took e^x.", "log2(e) is in scale_log2 already: use tl.exp2, for alpha, too.", "    l_i = ",
                "    alpha, P_ij = tl.exp(m_i - m_safe), tl.exp(S_ij * scale_log2 - m_safe[:, None])\n    l_i = "),
        Mistake("did not rescale the old output.", "Multiply it by alpha, as l_i.", "alpha[:, None] * O_i", "O_i"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where m_new is −∞, subtract 0.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
    ),
)  # fmt: skip
