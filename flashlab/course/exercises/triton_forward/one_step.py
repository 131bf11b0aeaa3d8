"""One step of the loop, in base 2: ``update``."""

import numpy as np
import torch

from flashlab.course.exercises.triton_forward.one_head import TILE
from flashlab.grading.exercise import Case, Exercise
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import PRODUCTS, sweep
from flashlab.grading.kernel_laws import attempted, factors_are_wide
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


def _update_cases():
    def case(name, m, l, O, S, V, scale):
        state = State(*(np.array(x, np.float32) for x in (m, l, O)))
        return Case(name, (state, np.array(S, np.float32), np.array(V, np.float16), scale))

    return [
        case("the first key of one row", [-inf], [0], [[0]], [[2]], [[3]], 1.0),
        case("a scale", [-inf], [0], [[0]], [[4, 2]], [[1], [3]], 0.5),
        case("negative scores", [-inf], [0], [[0]], [[-4, -2]], [[1], [3]], 0.5),
        case("a tile that raises the maximum", [0], [1], [[4]], [[2]], [[3]], 1.0),
        case("a tile that does not raise the maximum", [4], [2], [[5]], [[2]], [[3]], 1.0),
        case("a row that has met no key, and meets none", [-inf], [0], [[0]], [[-inf, -inf]], [[1], [3]], 1.0),
        case("scores of some hundreds", [30], [2], [[5]], [[700, 600]], [[3], [2]], 1.0),
        case("a score below any number that one would take for −∞", [-inf], [0], [[0]], [[-1.2e9]], [[3]], 1.0),
        case(
            "products of the largest numbers of float16",
            [-inf] * 2,
            [0] * 2,
            [[0]] * 2,
            [[-4e11, -5e11], [4e11, 5e11]],
            [[3], [4]],
            1.0,
        ),
        case("a scale above 1", [-inf, 2], [0, 1], [[0], [1]], [[-4, 2], [1, -0.5]], [[1], [3]], 4.0),
        *(
            case(f"a key {far} below, of a large value", [0], [1], [[0]], [[-far]], [[65504]], 1.0)
            for far in (12, 16, 30)
        ),
        *(
            case(f"a past {far} below, of many keys", [-far], [many], [[many]], [[0]], [[1]], 1.0)
            for far, many in ((17, 1e5), (40, 1e12), (100, 1e30))
        ),
        case("maxima that rise by little", [0] * 4, [1] * 4, [[4]] * 4, [[0.2], [0.02], [0.006], [6e-4]], [[3]], 1.0),
        *(
            case(f"a maximum that rises by {rise}", [0], [1], [[4]], [[rise]], [[3]], 1.0)
            for rise in (6e-5, 1e-5, 1e-6, 1e-7)
        ),
        case(
            "the largest score in another place in each row",
            [0] * 5,
            [1] * 5,
            [[4]] * 5,
            100 * np.eye(5),
            np.arange(5)[:, None],
            1.0,
        ),
        *sweep(_update_args, regimes=PRODUCTS, usual={"Br": 9, "Bc": 13, "dv": 5}),
        *(
            case(f"maxima that all rise, {what}", low, [1] * TILE, [[4]] * TILE, [[high]] * TILE, [[3]], 1.0)
            for what, low, high in (
                *((f"by {rise}", [0] * TILE, rise) for rise in (0.01, 6e-4, 6e-5, 6e-6)),
                ("from 10,000 to 10,000.1", [1e4 * LOG2_E] * TILE, 10_000.1),
            )
        ),
        case(
            "keys whose weights are the least of float16, of large values",
            [0],
            [1],
            [[0]],
            [[-24 / LOG2_E] * TILE],
            [[6e4]] * TILE,
            1.0,
        ),
    ]


def _update_args(draw, Br, Bc, dv):
    scale = 0.25
    S, V = draw.scores(Br, 2 * Bc) / np.float32(scale), draw.normal(2 * Bc, dv).astype(np.float16)
    nothing = State(np.full(Br, -inf), np.zeros(Br), np.zeros((Br, dv)))
    state = _in_base_2(nothing, *(np.float64(x) for x in (S[:, :Bc], V[:Bc])), scale)  # a tile has come before
    return State(*(np.float32(part) for part in state)), S[:, Bc:], V[Bc:], scale


def _narrowed(function, state, S_ij, V_j, scale):
    """Law: tl.dot multiplies in the dtype of V."""
    if factors_are_wide(_launch_update, function, state, S_ij, V_j, scale):
        return (
            "the numbers are right, but P_ij was multiplied in float32, which takes a GPU several times as long: "
            "narrow P_ij to V_j.dtype for the product."
        )


update = Exercise(
    reference=update_base_2,
    launch=_launch_update,
    exact=_in_base_2,
    cases=_update_cases,
    laws=(_narrowed,),
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
        Mistake("the scores were not scaled: S_ij * scale_log2.", "S_ij * scale_log2 -", "S_ij -"),
        Mistake("the maximum was not scaled: it must be in the same units as the scores it is taken from.",
                "tl.max(S_ij, 1) * scale_log2", "tl.max(S_ij, 1)"),
        Mistake("m_new is in units of the unscaled scores: it must be in units of log2, as m_i is.",
                "return m_new,", "return m_new / scale_log2,"),
        Mistake("m_i is in units of log2 already, and was scaled again.",
                "m_i - m_safe", "(m_i - m_safe) * scale_log2"),
        Mistake("e^x where 2^x is due: log2(e) is in scale_log2 already.", "tl.exp2(S_ij", "tl.exp(S_ij"),
        Mistake("alpha is 2^(m_i − m_safe): the maxima are in units of log2.", "tl.exp2(m_i", "tl.exp(m_i"),
        Mistake("alpha is upside down: 2^(old − new) is at most 1.", "m_i - m_safe", "m_safe - m_i"),
        Mistake("the old sum was not rescaled.", "alpha * l_i", "l_i"),
        Mistake("the old output was not rescaled.", "alpha[:, None] * O_i", "O_i"),
        Mistake("the old sum was dropped: add to alpha * l_i.", "alpha * l_i + ", ""),
        Mistake("the old output was dropped: add to alpha[:, None] * O_i.", ", alpha[:, None] * O_i)", ")"),
        Mistake("alpha stands for queries, which are the rows of O_i: alpha[:, None].",
                "alpha[:, None]", "alpha[None, :]"),
        Mistake("m_safe stands for queries, which are the rows of the tile: m_safe[:, None].",
                "m_safe[:, None]", "m_safe[None, :]"),
        Mistake("the sum was taken over the rows: each row has its own, along axis 1.",
                "tl.sum(P_ij, 1)", "tl.sum(P_ij, 0)"),
        Mistake("the maximum of this tile alone was used.",
                "tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2)", "tl.max(S_ij, 1) * scale_log2"),
        Mistake("−∞ − (−∞) is NaN: where m_new is −∞, subtract 0.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        Mistake("the sum was taken of the narrowed P_ij: sum in float32, then narrow.",
                "tl.sum(P_ij, 1)", "tl.sum(P_ij.to(V_j.dtype), 1)"),
        Mistake("P_ij is float32, V_j float16: narrow P_ij to V_j.dtype for the product.",
                "P_ij.to(V_j.dtype), V_j", "P_ij, V_j"),
        Mistake(
            "the maximum was frozen at the first tile: a later one may hold a larger score.",
            "tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2)",
            "tl.where(m_i == -float(\"inf\"), tl.max(S_ij, 1) * scale_log2, m_i)",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
            "tl.where(m_new == -float(\"inf\"), 0, m_new)",
            "tl.maximum(m_new, 0.0)",
        ),
        Mistake(
            "the guarded maximum was returned: a row that has met no key has m = −∞, not 0.",
            "return m_new,",
            "return m_safe,",
        ),
        Mistake('the old maximum was returned, but the sums are relative to m_new.', 'return m_new,', 'return m_i,'),
        Mistake(
            "O was divided by l: it stays a plain sum until all keys have come.",
            "return m_new, l_i, O_i",
            "return m_new, l_i, O_i / l_i[:, None]",
        ),
        Mistake(
            "the maximum was taken over the rows: each row has its own, along axis 1.",
            "tl.max(S_ij, 1)",
            "tl.max(S_ij, 0)",
        ),
        Mistake(
            "e^x where 2^x is meant: log2(e) is in scale_log2 already.",
            "    l_i = ",
            "    alpha, P_ij = tl.exp(m_i - m_safe), tl.exp(S_ij * scale_log2 - m_safe[:, None])\n    l_i = ",
        ),
        Mistake(
            "the weights were rounded to half precision: narrow them for the product alone.",
            "    l_i = ",
            "    P_ij = tl.exp2((S_ij * scale_log2 - m_safe[:, "
            "None]).to(tl.float16).to(tl.float32)).to(tl.float16).to(tl.float32)\n    l_i = ",
        ),
        Mistake(
            "the output was rounded to half precision: keep O_i in float32.",
            "return m_new, l_i, O_i",
            "return m_new, l_i, O_i.to(tl.float16).to(tl.float32)",
        ),
        Mistake("the old output was rounded to half precision: keep O_i in float32.",
                "alpha[:, None] * O_i)", "(alpha[:, None] * O_i).to(tl.float16).to(tl.float32))"),
        Mistake("a finite number guards −∞, but scores may lie below it, and such a row underflows: guard −∞ alone.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "tl.maximum(m_new, -1e4)"),
        Mistake("0 was subtracted wherever the tile is masked, but the past may hold keys: guard m_new.",
                'tl.where(m_new == -float("inf"), 0, m_new)',
                'tl.where(tl.max(S_ij, 1) == -float("inf"), 0, m_new)'),
        Mistake("0 was subtracted in the first tile: guard m_new, and not the old maximum.",
                'tl.where(m_new == -float("inf"), 0, m_new)', 'tl.where(m_i == -float("inf"), 0, m_new)'),
        Mistake("the past was rescaled only where the maximum rises much: a rise of any size changes it.",
                "tl.exp2(m_i - m_safe)", "tl.where(m_safe - m_i > 0.01, tl.exp2(m_i - m_safe), 1.0)"),
        Mistake("the maximum was raised only where it rises much: that works in another kernel; m_new is the maximum.",
                "    m_safe = ", "    m_new = tl.where(m_new - m_i > 8, m_new, m_i)\n    m_safe = "),
        Mistake("tl.dot multiplies tiles: @ is for numpy and torch.",
                "tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i)", "P_ij.to(V_j.dtype) @ V_j"),
        Mistake("the past was rescaled only where the maximum rises much: a rise of any size changes it.",
                "tl.exp2(m_i - m_safe)", "tl.where(m_safe - m_i > 0.001, tl.exp2(m_i - m_safe), 1.0)"),
    ),
)  # fmt: skip
