"""The exercises on triton_forward: the bounds of the two loops, one step of the loop, and a whole kernel."""

import inspect
import linecache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from flashlab.course import data
from flashlab.course.exercise import Broken, Case, Exercise, Mistake, Question, edited
from flashlab.course.kernel_laws import factors_are_wide, loads_at_most, no_small_number_added
from flashlab.course.launches import attempted, inside_margins, launched
from flashlab.course.laws import DROPPED
from flashlab.course.regimes import FINITE, PRODUCTS, sweep
from flashlab.kernels import DEVICE, tl, triton
from flashlab.kernels.count import count
from flashlab.machine.timing import gpu_timer
from flashlab.reference import masks, tiling
from flashlab.reference.attention import attention
from flashlab.reference.online_softmax import State

inf = np.inf
TILE = 16  # rows, columns and width of the tiles in the cases: the smallest that the GPU's matrix unit takes
LOG2_E = np.log2(np.e)


class Output(NamedTuple):
    """What attention leaves of some rows."""

    O: np.ndarray  # [Nq, d]
    lse: np.ndarray  # [Nq]


class Loops(NamedTuple):
    """Return what the two loops of all programs do."""

    visits: np.ndarray  # [Tr, Tc] 1 for a tile met in loop 1, 2 in loop 2, 0 for none
    seen: np.ndarray  # [Tr] keys that a tile's last row sees


# The bounds of the two loops


@triton.jit
def causal_bounds(i, Nq, Nk, Br: tl.constexpr, Bc: tl.constexpr):
    unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc  # the first row sees least
    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk)  # the last row sees most
    return unmasked, seen


@triton.jit
def _visit(kinds, ends, Nq, Nk, Tc, bounds: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr):
    """Both loops without their work: 1 for a tile met unmasked, 2 for a masked one; beside them, all others."""
    i = tl.program_id(0)
    unmasked, seen = bounds(i, Nq, Nk, Br, Bc)
    tl.store(ends + i, seen)
    for start in range(0, unmasked, Bc):
        at = kinds + i * (Tc + 2) + tl.where(start < 0, 0, tl.where(start < Nk, 1 + start // Bc, 1 + Tc))
        tl.store(at, tl.load(at) + 1)
    for start in range(unmasked, seen, Bc):
        at = kinds + i * (Tc + 2) + tl.where(start < 0, 0, tl.where(start < Nk, 1 + start // Bc, 1 + Tc))
        tl.store(at, tl.load(at) + 2)


def _launch_bounds(function, Nq, Nk, Br, Bc):
    Tr, Tc = triton.cdiv(Nq, Br), triton.cdiv(Nk, Bc)
    kinds = torch.zeros(Tr, Tc + 2, dtype=torch.int32, device=DEVICE)  # [Tr, Tc + 2]
    ends = torch.zeros(Tr, dtype=torch.int32, device=DEVICE)  # [Tr]
    _visit[(Tr,)](kinds, ends, Nq, Nk, Tc, attempted(function), Br, Bc)
    for column, place in ((0, "before the first key"), (-1, "past the last key")):
        if kinds[:, column].any():
            raise IndexError(f"a loop visited a tile {place}")
    return Loops(kinds[:, 1:-1].cpu().numpy(), ends.clamp(min=0).cpu().numpy())  # a loop to less than 0 is empty


def both_loops(Nq, Nk, Br, Bc):
    """Return what the two loops should do."""
    last = np.minimum(np.arange(Br, Nq + Br, Br), Nq)  # [Tr] one past each tile's last row
    return Loops(kinds_of_tiles(Nq, Nk, Br, Bc), np.maximum(last + Nk - Nq, 0))


def kinds_of_tiles(Nq, Nk, Br, Bc):
    """0 for a tile that no query sees, 1 for one that all of its rows see in full, 2 for the others [Tr, Tc]."""
    i, j = np.ogrid[: -(-Nq // Br) * Br, : -(-Nk // Bc) * Bc]
    sees = (j <= i + Nk - Nq) & (j < Nk)  # [Tr * Br, Tc * Bc]
    cut = sees.reshape(len(i) // Br, Br, -1, Bc)
    real = (sees & (i < Nq)).reshape(cut.shape)
    return np.where(cut.all((1, 3)), 1, np.where(real.any((1, 3)), 2, 0))


def _bounds_cases():
    cases = [
        ("four queries and keys, tiles of 2 × 2", (4, 4, 2, 2)),
        ("tiles taller than wide", (8, 8, 4, 2)),
        ("tiles wider than tall", (8, 8, 2, 4)),
        ("more keys than queries: the last query sees the last key", (4, 9, 2, 2)),
        ("lengths that no tile divides", (5, 5, 4, 2)),
        ("fewer keys than queries: whole tiles of queries see nothing", (9, 3, 4, 2)),
        ("one query: the newest word", (1, 9, 2, 4)),
        *_lengths_and_tiles(),
    ]
    return [Case(name, sizes) for name, sizes in cases]


def _lengths_and_tiles():
    some = [(1, 1), (8, 8), (7, 9), (9, 7), (8, 9), (6, 8), (3, 13), (13, 3)]
    for Nq, Nk in some + [(Nq, Nk) for Nq in (3, 8) for Nk in range(1, 12)]:  # every remainder of both
        for Br, Bc in ((2, 4), (4, 2), (1, 2), (8, 2), (2, 8), (4, 4)):
            yield f"Nq = {Nq}, Nk = {Nk}, tiles of {Br} × {Bc}", (Nq, Nk, Br, Bc)
    for Nq, Nk, Br, Bc in ((100, 30, 16, 8), (30, 100, 8, 16), (128, 128, 64, 32)):
        yield f"Nq = {Nq}, Nk = {Nk}, tiles of {Br} × {Bc}", (Nq, Nk, Br, Bc)
    yield "Nq = 3, Nk = 70001, tiles of 2 × 1024", (3, 70_001, 2, 1024)
    yield "Nq = 70001, Nk = 3, tiles of 1024 × 512", (70_001, 3, 1024, 512)


bounds = Exercise(
    reference=causal_bounds,
    launch=_launch_bounds,
    exact=both_loops,
    cases=_bounds_cases,
    level=2,
    minutes=15,
    hints=(
        "Query r sees the keys j <= r + Nk - Nq. Which row of the tile sees least, and which sees most?",
        "Row i * Br sees i * Br + Nk - Nq + 1 keys: all whole tiles among them need no mask. The last row, "
        "(i + 1) * Br - 1, sees (i + 1) * Br + Nk - Nq, unless there are fewer.",
        "unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc; "
        "seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk).",
    ),
    mistakes=(
        Mistake("off by one: row i * Br sees key i * Br + Nk − Nq too, so it sees one key more.",
                "i * Br + Nk - Nq + 1", "i * Br + Nk - Nq"),
        Mistake("one key too many: row i * Br sees i * Br + Nk − Nq + 1 keys.",
                "i * Br + Nk - Nq + 1", "i * Br + Nk - Nq + 2"),
        Mistake("the difference is inverted: query i sees the keys j ≤ i + Nk − Nq.",
                "unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc  # the first row sees least\n"
                "    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk)",
                "unmasked, seen = tl.maximum(i * Br + Nq - Nk + 1, 0) // Bc * Bc, "
                "tl.minimum((i + 1) * Br + Nq - Nk, Nk)"),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "unmasked = tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc  # the first row sees least\n"
                "    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk)",
                "shift = tl.maximum(Nk - Nq, 0)\n"
                "    unmasked, seen = (i * Br + shift + 1) // Bc * Bc, tl.minimum((i + 1) * Br + shift, Nk)"),
        Mistake("the last row of the tile decides what is unmasked; it must be the first one.",
                "i * Br + Nk - Nq + 1", "(i + 1) * Br + Nk - Nq"),
        Mistake("the first row decides where to stop; it must be the last one, which sees most.",
                "(i + 1) * Br + Nk - Nq, Nk", "i * Br + Nk - Nq + 1, Nk"),
        Mistake("off by one: the last row is (i + 1) * Br − 1 and sees (i + 1) * Br + Nk − Nq keys.",
                "(i + 1) * Br + Nk - Nq, Nk", "(i + 1) * Br + Nk - Nq + 1, Nk"),
        Mistake("aligned at the upper left: with Nq ≠ Nk add Nk − Nq.",
                "(i + 1) * Br + Nk - Nq, Nk", "(i + 1) * Br, Nk"),
        Mistake("the first loop ended within a tile: round down to whole tiles.", " // Bc * Bc", ""),
        Mistake("a negative bound: where no row sees anything, both loops are empty.",
                "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc", "(i * Br + Nk - Nq + 1) // Bc * Bc"),
        Mistake("the last row may see up to Nk keys and no more: there are no others.",
                "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + Nk - Nq"),
        Mistake("nothing is skipped: tiles that no row sees need not be visited.",
                "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "Nk"),
        Mistake(
            "the bounds were returned in the wrong order: unmasked first, then seen.",
            "return unmasked, seen",
            "return seen, unmasked",
        ),
        Mistake(
            "the last key was dropped: seen is one more than the last key that the tile sees.",
            "(i + 1) * Br + Nk - Nq, Nk",
            "(i + 1) * Br + Nk - Nq - 1, Nk",
        ),
        Mistake(
            "aligned at the upper left, in both bounds: with Nq ≠ Nk add Nk − Nq.",
            "unmasked = tl.maximum(",
            "Nq = Nk + 0 * Nq\n    unmasked = tl.maximum(",
        ),
        Mistake(
            "rounded up: the tile that the first row sees in part needs the mask.",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc",
            "(tl.maximum(i * Br + Nk - Nq + 1, 0) + Bc - 1) // Bc * Bc",
        ),
        Mistake(
            "tiles were counted: the bounds are keys, so multiply by Bc.",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc",
        ),
        Mistake("Br stands where Bc belongs: tiles of keys have Bc.", "// Bc * Bc", "// Br * Br"),
        Mistake("seen was rounded up to whole tiles: the last row need not see all keys of the last tile.",
                "    return unmasked, seen", "    return unmasked, (seen + Bc - 1) // Bc * Bc"),
        Mistake(
            "every tile was masked: those that the first row sees in full need no mask.",
            "tl.maximum(i * Br + Nk - Nq + 1, 0) // Bc * Bc",
            "0 * i",
        ),
    ),
)  # fmt: skip


# One step of the loop


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
    """One step on tiles of T x T, in place."""
    rows = tl.arange(0, T)
    square = rows[:, None] * T + rows[None, :]  # [T, T]
    S_ij, V_j = tl.load(S + square), tl.load(V + square)
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
    """x as a tensor of the size of a tile, filled up with what stands for nothing."""
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


# The whole kernel


@triton.jit
def attention_one_head(
    Q, K, V, O, lse, Nq, Nk, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr, causal: tl.constexpr
):
    i, columns = tl.program_id(0), tl.arange(0, d)
    rows = i * Br + tl.arange(0, Br)  # [Br]
    Q_i = tl.load(Q + rows[:, None] * d + columns, mask=rows[:, None] < Nq, other=0.0)  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, d], tl.float32)  # [Br, d]
    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk) if causal else Nk
    for start in range(0, seen, Bc):
        keys = start + tl.arange(0, Bc)  # [Bc]
        inside = keys < Nk  # [Bc]
        K_j = tl.load(K + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)  # [Bc, d]
        V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)  # [Bc, d]
        S_ij = tl.dot(Q_i, K_j.T) * scale  # [Br, Bc]
        S_ij = tl.where(inside[None, :], S_ij, -float("inf"))
        if causal:
            S_ij = tl.where(keys[None, :] <= rows[:, None] + Nk - Nq, S_ij, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(S_ij, 1))  # [Br]
        m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]
        alpha = tl.exp(m_i - m_safe)  # [Br]
        P_ij = tl.exp(S_ij - m_safe[:, None])  # [Br, Bc]
        l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
        O_i = tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i)  # [Br, d]
        m_i = m_new
    l_safe = tl.where(l_i == 0, 1, l_i)  # [Br]
    tl.store(O + rows[:, None] * d + columns, O_i / l_safe[:, None], mask=rows[:, None] < Nq)
    lse_i = tl.where(l_i == 0, -float("inf"), m_i + tl.log(l_safe))  # [Br]
    tl.store(lse + rows, lse_i, mask=rows < Nq)


def attend(kernel, Q, K, V, causal=False, Br=TILE, Bc=TILE):
    """Launch a kernel of one head, of the capstone's parameters, on numpy arrays Q [Nq, d], K and V [Nk, d] of float16.

    O and lse come back in float32. Columns are filled up with zeros to a tile's width, which changes no score; past
    the inputs' last rows there is NaN, and around the outputs what must not be touched.
    """
    (Nq, d), width = Q.shape, max(16, triton.next_power_of_2(Q.shape[1]))
    q, k, v = (_followed_by_nan(x, width) for x in (Q, K, V))
    O, output = inside_margins(1, Nq * width, "O")  # rows side by side
    lse, lse_output = inside_margins(1, Nq, "lse")
    grid = (triton.cdiv(Nq, Br),)
    launched(kernel, grid, q, k, v, O, lse, Nq, len(K), d**-0.5, width, Br, Bc, causal)
    return Output(output().reshape(Nq, width)[:, :d], lse_output()[0])


def _followed_by_nan(x, width):
    """x [N, d] as a tensor [N, width] after whose end there is memory, which no kernel may read."""
    whole = np.full((len(x) + 64, width), np.nan, x.dtype)
    whole[: len(x)] = np.pad(x, ((0, 0), (0, width - x.shape[1])))
    return torch.from_numpy(whole).to(DEVICE)[: len(x)]


def _enough(Q, K, V, causal, Br=TILE, Bc=TILE):
    """The bytes that the kernel need load: Q once, and K and V once for each program that sees them."""
    width, mask = max(16, triton.next_power_of_2(Q.shape[1])), masks.causal() if causal else None
    bill = tiling.fa2_traffic(len(Q), len(K), width, Br, Bc, mask=mask, dtype=np.float16)
    return sum(size for (kind, _), size in bill.items() if kind == "load")


def _outputs(Q, *others):
    """The bytes of O, of a tile's width, and of lse."""
    return 4 * len(Q) * (max(16, triton.next_power_of_2(Q.shape[1])) + 1)


def _dense(Q, K, V, causal, Br=TILE, Bc=TILE):
    return Output(*attention(Q, K, V, mask=masks.causal() if causal else None, return_lse=True))


def _forward_cases():
    def case(name, Q, K, V, causal=False, *tile):
        return Case(name, (*(np.array(x, np.float16) for x in (Q, K, V)), causal, *tile))

    def draw(Nq, Nk, d, factor=1.0):
        rng = np.random.default_rng(Nq + Nk)
        return factor * rng.normal(size=(Nq, d)), factor * rng.normal(size=(Nk, d)), rng.normal(size=(Nk, d))

    values = np.arange(17.0)[:, None] @ np.ones((1, 1))
    rising, falling = np.linspace(0, 3, 17)[:, None], np.zeros((17, 1))
    falling[0] = 200
    many, ones = draw(3, 500, 2, 0.1), np.ones((500, 2))
    late = np.ones((2, 1)), 100 * np.eye(320)[:, -1:], np.arange(320)[:, None] % 7
    return [
        case("one query, one key", [[2, 0, 0, 0]], [[1, 0, 0, 0]], [[3, 0, 0, 0]]),
        case("one query, two keys", [[2.0]], [[1.0], [0.0]], [[10.0], [20.0]]),
        case("two queries of two dimensions", [[1, 0], [0, 2]], [[3, 1], [-1, 2]], [[1, 2], [3, 4]]),
        case("negative scores: a key that is not there must not win", [[2.0]], [[-1.0], [-2.0]], [[10.0], [20.0]]),
        case("scores too large to be exponentiated", [[100.0]], [[10.0], [9.99]], [[1.0], [2.0]]),
        case("scores far below 0", [[100.0]], [[-10.0], [-9.99]], [[1.0], [2.0]]),
        case("scores below any number that one would take for −∞", [[5e4]], [[-4e4], [-5e4]], [[1.0], [2.0]]),
        case("a second tile of keys that raises the maximum", [[1.0]], rising, values),
        case("a second tile of keys far below the first: its maximum is not the row's", [[1.0]], falling, values),
        case("causal: a query sees itself and what was before", [[1.0]] * 3, [[1], [2], [3]], [[10], [20], [30]], True),
        case("causal, more keys than queries: the last query sees the last key", *draw(2, 5, 1), True),
        case("causal over several tiles, more keys than queries", *draw(21, 40, 4), True),
        case("causal, fewer keys than queries: queries that see nothing", *draw(19, 2, 1), True),
        case("causal, the first row sees all keys of a tile but one", *draw(16, 30, 4), True),
        case("whole tiles, two programs", *draw(32, 32, 4)),
        case("lengths that no tile divides", *draw(21, 37, 4)),
        case("no keys at all", np.ones((3, 2)), np.zeros((0, 2)), np.zeros((0, 2))),
        case("no keys at all, causal", np.ones((3, 2)), np.zeros((0, 2)), np.zeros((0, 2)), True),
        *(  # equal scores, whose weights are exact in any order
            case(f"Nq = {Nq}, Nk = {Nk}, causal", np.zeros((Nq, 1)), np.ones((Nk, 1)), values[:Nk] + 1, True)
            for Nq, Nk in ((1, 1), (1, 17), (3, 1))
        ),
        *(
            case(f"a key {far} below, of a large value", [[1.0]], [[0.0], [-far]], [[0.0], [65504]])
            for far in (12, 16, 30)
        ),
        case(
            "a tile of keys far below, of large values",
            [[1.0]],
            [[0.0]] * 16 + [[-12.0]] * 16,
            [[0.0]] * 16 + [[6e4]] * 16,
        ),
        *(  # the weights of these are numbers of float16, nearly: they are right in any order
            case(f"a maximum that rises by 2^{power}", [[1.0]], [[first]] * 16 + [[first + 2.0**power]], values)
            for power, first in ((-10, 1.0), (-11, 0.5))
        ),
        case("a maximum that rises by very little", [[1.0]], [[0.25]] * 16 + [[0.25 + 2**-12]], [[0.0]] * 16 + [[1.0]]),
        case(
            "maxima near 10,000 that rise by little", [[100, 1]], [[141.4, 0]] * 16 + [[141.4, 0.14]], values @ [[1, 1]]
        ),
        *(
            case(
                f"a key, and {what} it 16,384 whose weights are small", [[1.0]], K[::step], V[::step], False, TILE, 4096
            )
            for K, V in [([[1.0]] + [[-19.5]] * 16_384, [[1.0]] + [[0.0]] * 16_384)]
            for what, step in (("after", 1), ("before", -1))
        ),
        case("values whose sum is beyond float16", [[1.0]], [[2.0]] * 3, [[65504]] * 3),
        case("a wide head", *draw(17, 33, 100)),
        case("a very wide head", *draw(3, 18, 200)),
        case(
            "products of the largest numbers of float16",
            [[6e4] * 128],
            [[-5e4] * 128, [-6e4] * 128],
            values[:2] * [[1] * 128],
        ),
        case(
            "products of the largest numbers of float16, all positive",
            [[6e4] * 128],
            [[5e4] * 128, [6e4] * 128],
            values[:2] * [[1] * 128],
        ),
        case("many keys of the same sign: sums need float32", many[0], many[1], ones + 0.1 * many[2]),
        *(case(name, *draw(Nq, Nk, d), causal, Br, Bc) for name, Nq, Nk, d, causal, Br, Bc in _sizes()),
        *(case(f"Nq = {Nq}, Nk = {Nk}, causal", *draw(Nq, Nk, 4), True) for Nq, Nk in remainders(TILE)),
        *(case(f"Nq = 3, Nk = {Nk}", *draw(3, Nk, 4)) for Nk in range(TILE + 1, 2 * TILE + 1)),
        case("two hundred queries, three keys", *draw(200, 3, 2)),
        case("a maximum that rises in the last of twenty tiles", *late),
        case("a thousand queries and keys, tiles of 512 × 512, causal", *draw(1000, 1000, 2), True, 512, 512),
        case("two thousand equal scores, tiles of 16 × 1024", *(0 * x + 1 for x in draw(2, 2000, 1)), False, 16, 1024),
        *sweep(_forward_args, regimes=FINITE, sizes={}, usual={"Nq": 3, "Nk": 35, "d": 3}),
    ]


def remainders(tile):
    """Lengths (Nq, Nk) in which Nk, Nq and their difference take every remainder of a tile."""
    return [(tile + 4, tile + 4 + more) for more in range(tile)] + [(tile + more, tile + 1) for more in range(tile)]


def _sizes():
    """Lengths and tiles in which no two of Br, Bc and the width are equal: (name, Nq, Nk, d, causal, Br, Bc)."""
    lengths = [(64, 64, False), (64, 64, True), (33, 65, True), (65, 33, True), (40, 41, True), (64, 48, False)]
    for Nq, Nk, causal in lengths:
        for Br, Bc, d in ((64, 16, 32), (16, 32, 64), (32, 64, 12)):
            yield f"Nq = {Nq}, Nk = {Nk}, tiles of {Br} × {Bc}{', causal' * causal}", Nq, Nk, d, causal, Br, Bc


def _forward_args(draw, Nq, Nk, d):
    Q, K = draw.queries_and_keys(Nq, Nk, d)
    return (*(x.astype(np.float16) for x in (Q, K, draw.normal(Nk, d))), False)


_with_lse_unguarded = edited(  # as right: where l_i is 0, m_i is −∞
    attention_one_head, 'tl.where(l_i == 0, -float("inf"), m_i + tl.log(l_safe))', "m_i + tl.log(l_safe)"
)
_SEEING = "mask=((rows < Nq) & (l_i > 0))"  # of rows that see a key
_with_blind_rows_not_stored = edited(
    attention_one_head, "None], mask=rows[:, None] < Nq)", f"None], {_SEEING}[:, None])"
)


def _with_future_at(bound):
    """The kernel with a finite score for keys that a query must not see."""
    return edited(attention_one_head, 'Nk - Nq, S_ij, -float("inf"))', f"Nk - Nq, S_ij, {bound})")


_with_end_clamped = edited(attention_one_head, "(i + 1) * Br + Nk - Nq", "(i + 1) * Br + tl.maximum(Nk - Nq, 0)")
_ZEROS = (np.zeros((1, 16), np.float16), *np.zeros((2, 3, 16), np.float16))  # Q, K, V


def _multiplied_narrow(kernel):
    """Law of its own inputs: tl.dot multiplies in float16, as the inputs are."""
    if factors_are_wide(attend, kernel, *_ZEROS):
        return Broken(
            "one query and three keys, all zeros",
            "the numbers are right, but a product was computed in float32, which takes a GPU several times as long: "
            "narrow P_ij to V_j.dtype, and leave Q_i, K_j and V_j as they come.",
            if_right=True,
        )


def _past_is_kept(kernel):
    """Law of its own inputs: large values count that lie far below. What float16 makes of such weights is allowed."""
    V = np.float16(65504 * (np.arange(32) < 16))[:, None]  # [32, 1]
    for rise in (12, 16):
        K = np.float16(rise * (np.arange(32) >= 16))[:, None]  # [32, 1]
        if attend(kernel, np.ones((1, 1), np.float16), K, V).O[0, 0] < 0.4 * 65504 * np.exp(-rise):
            return Broken(f"16 values of 65,504, and 16 of 0 whose scores are larger by {rise}", DROPPED)
    return None


forward = Exercise(
    reference=attention_one_head,
    launch=attend,
    exact=_dense,
    cases=_forward_cases,
    laws=(loads_at_most(attend, _enough, "Q_i is", _outputs),),
    once=(no_small_number_added(attend, *_ZEROS), _multiplied_narrow, _past_is_kept),
    sways=True,
    level=3,
    minutes=60,
    hints=(
        "One program, one tile of O: load Q_i once; loop over the tiles of keys with m_i, l_i, O_i in registers; "
        "divide and store after the loop. Get one query and one key right first.",
        "rows = tl.program_id(0) * Br + tl.arange(0, Br), keys = start + tl.arange(0, Bc), addresses "
        "K + keys[:, None] * d + tl.arange(0, d). A score whose key is past the end or in the future becomes −∞ "
        "before the maximum is taken.",
        "S_ij = tl.dot(Q_i, K_j.T) * scale; mask; then the six lines; O_i = tl.dot(P_ij.to(V_j.dtype), V_j, "
        "alpha[:, None] * O_i). At the end O_i / l_safe[:, None] and m_i + tl.log(l_safe), or 0 and −∞ where l_i is 0.",
    ),
    mistakes=(
        Mistake("the scale was forgotten: scores are multiplied by scale.", "K_j.T) * scale", "K_j.T)"),
        Mistake("the scale was applied twice.", "K_j.T) * scale", "K_j.T) * scale * scale"),
        Mistake("K was not transposed: S_ij = Q_i K_jᵀ.", "K_j.T)", "K_j)"),
        Mistake("keys past the end were read as 0 and count: their scores must be −∞.",
                "tl.where(inside[None, :], S_ij, -float(\"inf\"))", "S_ij"),
        Mistake("the maximum was not subtracted.", "tl.exp(S_ij - m_safe[:, None])", "tl.exp(S_ij)"),
        Mistake("the maximum of the last tile was used, not of all so far.",
                "tl.maximum(m_i, tl.max(S_ij, 1))", "tl.max(S_ij, 1)"),
        Mistake("m_i stayed at −∞: at the end of each turn m_new becomes m_i.", "m_i = m_new", "m_i = m_i"),
        Mistake("the maximum began at 0, which is a score like any other: begin at −∞.",
                'tl.full([Br], -float("inf"), tl.float32)', "tl.zeros([Br], tl.float32)"),
        Mistake("the old sum was not rescaled: multiply l_i by alpha.", "alpha * l_i", "l_i"),
        Mistake("the old output was not rescaled: multiply O_i by alpha.", "alpha[:, None] * O_i", "O_i"),
        Mistake("alpha is upside down: e^(old − new) is at most 1.", "tl.exp(m_i - m_safe)", "tl.exp(m_safe - m_i)"),
        Mistake("the last tile of keys, which is not full, was dropped.",
                "range(0, seen, Bc)", "range(0, seen // Bc * Bc, Bc)"),
        Mistake("every turn of the loop took the first tile of keys.", "start + tl.arange(0, Bc)", "tl.arange(0, Bc)"),
        Mistake("every program took the first tile of queries.", "i * Br + tl.arange", "tl.arange"),
        Mistake("the output was not divided by l.", "O_i / l_safe[:, None]", "O_i"),
        Mistake("lse is in units of log2: it is natural at every boundary.",
                "m_i + tl.log(l_safe)", "(m_i + tl.log(l_safe)) * 1.4426950408889634"),
        Mistake("lse was scaled: the scores of which it is the logarithm are scaled already.",
                "m_i + tl.log(l_safe)", "(m_i + tl.log(l_safe)) * scale"),
        Mistake("lse lacks the maximum: m + log(l).", "m_i + tl.log(l_safe)", "tl.log(l_safe)"),
        Mistake("the mask is off by one: a query sees its own key too.", "None] + Nk - Nq", "None] + Nk - Nq - 1"),
        Mistake("the mask is off by one: a query saw one key of the future.", "None] + Nk - Nq", "None] + Nk - Nq + 1"),
        Mistake("aligned at the upper left: query i sees keys j ≤ i + Nk − Nq.",
                "rows[:, None] + Nk - Nq", "rows[:, None]"),
        Mistake("the loop ended too early: aligned at the lower right, tile i sees up to (i + 1) * Br + Nk − Nq keys.",
                "(i + 1) * Br + Nk - Nq", "(i + 1) * Br"),
        Mistake("−∞ − (−∞) is NaN: where m_new is −∞, subtract 0.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        Mistake("0 / 0 is NaN: a row that sees no key has l = 0; divide by 1 there.",
                "tl.where(l_i == 0, 1, l_i)", "l_i"),
        Mistake("rows that see no key were not stored: their O is 0, and only tl.store writes it.",
                "l_safe[:, None], mask=rows[:, None] < Nq)", f"l_safe[:, None], {_SEEING}[:, None])"),
        Mistake("rows that see no key were not stored: their lse is −∞, and only tl.store writes it.",
                "lse_i, mask=rows < Nq", f"lse_i, {_SEEING}"),
        Mistake("rows that see no key were not stored: their O is 0, their lse −∞, and only tl.store writes that.",
                "mask=rows < Nq", _SEEING, of=_with_blind_rows_not_stored),
        Mistake("a large negative number is not −∞: a row that sees no key would average its values.",
                'Nk - Nq, S_ij, -float("inf"))', "Nk - Nq, S_ij, -1e9)"),
        Mistake("the output was accumulated in half precision: keep O_i in float32.",
                "alpha[:, None] * O_i)", "alpha[:, None] * O_i).to(tl.float16).to(tl.float32)"),
        Mistake("O was rounded to half precision before it was stored: O is float32.",
                "O_i / l_safe[:, None]", "(O_i / l_safe[:, None]).to(tl.float16).to(tl.float32)"),
        Mistake("l_i was rounded to half precision: keep it in float32.",
                "alpha * l_i + tl.sum(P_ij, 1)", "(alpha * l_i + tl.sum(P_ij, 1)).to(tl.float16).to(tl.float32)"),
        Mistake("the scores were rounded to half precision: keep S_ij in float32.",
                "tl.dot(Q_i, K_j.T)", "tl.dot(Q_i, K_j.T).to(tl.float16).to(tl.float32)"),
        Mistake("the sum was taken of the narrowed P_ij: sum in float32, then narrow.",
                "tl.sum(P_ij, 1)", "tl.sum(P_ij.to(V_j.dtype), 1)"),
        Mistake("P_ij is float32, V_j float16: narrow P_ij to V_j.dtype for the product.",
                "P_ij.to(V_j.dtype), V_j", "P_ij, V_j"),
        Mistake("it read or stored past the end: mask loads and stores.",
                "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)",
                "V_j = tl.load(V + keys[:, None] * d + columns)"),
        Mistake("it read or stored past the end: mask loads and stores.", "lse_i, mask=rows < Nq", "lse_i"),
        Mistake(
            "the maximum was frozen at the first tile: a later one may hold a larger score.",
            "tl.maximum(m_i, tl.max(S_ij, 1))",
            "tl.where(m_i == -float(\"inf\"), tl.max(S_ij, 1), m_i)",
        ),
        Mistake(
            "the loop ended a key too early: the last row of tile i sees (i + 1) * Br + Nk − Nq keys.",
            "(i + 1) * Br + Nk - Nq",
            "(i + 1) * Br + Nk - Nq - 1",
        ),
        Mistake('the loop went on by Br: tiles of keys are Bc wide.', 'range(0, seen, Bc)', 'range(0, seen, Br)'),
        Mistake(
            "Bc stands where Br belongs: tile i of the queries has Br rows.",
            "(i + 1) * Br + Nk",
            "(i + 1) * Bc + Nk",
        ),
        Mistake(
            "Bc stands where Br belongs: tile i of the queries begins at row i * Br.",
            "rows = i * Br",
            "rows = i * Bc",
        ),
        Mistake('rows of K lie d elements apart, not Bc.', 'K + keys[:, None] * d', 'K + keys[:, None] * Bc'),
        Mistake('rows of O lie d elements apart, not Br.', 'O + rows[:, None] * d', 'O + rows[:, None] * Br'),
        Mistake('rows of Q lie d elements apart, not Bc.', 'Q + rows[:, None] * d', 'Q + rows[:, None] * Bc'),
        Mistake('rows of V lie d elements apart, not Nk.', 'V + keys[:, None] * d', 'V + keys[:, None] * Nk'),
        Mistake('a row has d columns, not Bc.', 'tl.arange(0, d)', 'tl.arange(0, Bc)'),
        Mistake('O_i is [Br, d], not [Br, Bc].', 'tl.zeros([Br, d]', 'tl.zeros([Br, Bc]'),
        Mistake(
            "a masked load without other= reads anything at all, on a GPU: say what stands there.",
            "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)",
            "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None])",
        ),
        Mistake(
            "a finite number was put in the place of −∞, at first or in the guard, and scores may lie below it.",
            "tl.full([Br], -float(\"inf\"), tl.float32)",
            "tl.full([Br], -1e4, tl.float32)",
        ),
        Mistake(
            "2^x where e^x is meant: tl.exp, or tl.exp2 with log2(e) in the scale.",
            "        l_i = alpha",
            "        alpha, P_ij = tl.exp2(m_i - m_safe), tl.exp2(S_ij - m_safe[:, None])\n        l_i = alpha",
        ),
        Mistake(
            "O was divided by l inside the loop: it stays a plain sum until all keys have come.",
            "        m_i = m_new\n",
            "        m_i = m_new\n        O_i = O_i / tl.where(l_i == 0, 1, l_i)[:, None]\n",
        ),
        Mistake(
            "it read or stored past the end: mask loads and stores.",
            "O_i / l_safe[:, None], mask=rows[:, None] < Nq",
            "O_i / l_safe[:, None]",
        ),
        Mistake('scores were divided by scale: it is 1/√d already, multiply.', 'K_j.T) * scale', 'K_j.T) / scale'),
        Mistake(
            "neither old sum was rescaled: multiply l_i and O_i by alpha.",
            "tl.exp(m_i - m_safe)",
            "tl.zeros([Br], tl.float32) + 1",
        ),
        Mistake(
            "the causal mask was forgotten: a query saw keys of its future.",
            "if causal:\n            S_ij",
            "if False:\n            S_ij",
        ),
        Mistake(
            "the mask was always causal: only where causal is set.",
            "if causal:\n            S_ij",
            "if True:\n            S_ij",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
            "tl.where(m_new == -float(\"inf\"), 0, m_new)",
            "tl.maximum(m_new, 0)",
        ),
        Mistake(
            "a finite number was put in the place of −∞, at first or in the guard, and scores may lie below it.",
            "tl.where(m_new == -float(\"inf\"), 0, m_new)",
            "tl.maximum(m_new, -1e4)",
        ),
        Mistake('the logarithm of l is in units of log2: tl.log.', 'm_i + tl.log(l_safe)', 'm_i + tl.log2(l_safe)'),
        Mistake('m was stored instead of lse = m + log l.', 'm_i + tl.log(l_safe)', 'm_i'),
        Mistake(
            "a row that sees no key has lse −∞, not 0.",
            "tl.where(l_i == 0, -float(\"inf\"), m_i",
            "tl.where(l_i == 0, 0.0, m_i",
        ),
        Mistake('V_j was loaded from K.', 'tl.load(V + keys', 'tl.load(K + keys'),
        Mistake(
            "O was not stored: only tl.store writes where it points.",
            "tl.store(O + rows[:, None] * d + columns, O_i / l_safe[:, None], mask=rows[:, None] < Nq)",
            "O_i / l_safe[:, None]",
        ),
        Mistake(
            "lse was not stored: only tl.store writes where it points.",
            "tl.store(lse + rows, lse_i, mask=rows < Nq)",
            "lse_i",
        ),
        Mistake('Nq and Nk are exchanged: there are Nk keys.', 'inside = keys < Nk', 'inside = keys < Nq'),
        Mistake(
            "the difference is inverted: query i sees the keys j ≤ i + Nk − Nq.",
            "rows[:, None] + Nk - Nq",
            "rows[:, None] + Nq - Nk",
        ),
        Mistake(
            "the maximum was taken over the rows: each row has its own, along axis 1.",
            "tl.max(S_ij, 1)",
            "tl.max(S_ij, 0)",
        ),
        Mistake(
            "the first row decides where to stop; it must be the last one, which sees most.",
            "(i + 1) * Br + Nk - Nq",
            "i * Br + Nk - Nq",
        ),
        Mistake("off by one: the keys are 0 to Nk − 1.", "tl.where(inside[None, :]", "tl.where((keys <= Nk)[None, :]"),
        *(
            Mistake("a large negative number is not −∞: a key that is not there would win over scores below it.",
                    'where(inside[None, :], S_ij, -float("inf"))', f"where(inside[None, :], S_ij, {bound})", of=of)
            for bound in (-1e4, -1e6, -1e9)
            for of in (None, _with_future_at(bound))
        ),
        Mistake("a finite number was put in the place of −∞, at first or in the guard, and scores may lie below it.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "tl.maximum(m_new, -1e4)", of=_with_lse_unguarded),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)"),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)", of=_with_end_clamped),
        Mistake("tl.dot multiplies tiles: @ is for numpy and torch.", "tl.dot(Q_i, K_j.T)", "(Q_i @ K_j.T)"),
        Mistake("tl.dot multiplies tiles: @ is for numpy and torch.",
                "tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i)", "P_ij.to(V_j.dtype) @ V_j"),
        Mistake("the mask was left out where a tile is not whole: its first row must see the tile's last key.",
                "if causal:\n            S_ij", "if causal and start + Bc > i * Br + Nk - Nq + 2:\n            S_ij"),
        Mistake("Q_i or K_j was rounded again after the scale: multiply S_ij by it, which is float32.",
                "tl.dot(Q_i, K_j.T) * scale", "tl.dot((Q_i * scale).to(tl.float16), K_j.T)"),
        Mistake("the scores were rounded to half precision: keep S_ij in float32.",
                "tl.dot(Q_i, K_j.T) * scale", "(tl.dot(Q_i, K_j.T) * scale).to(tl.float16).to(tl.float32)"),
        Mistake(
            "1/√d was computed from d, which may be filled up with columns of zeros: take the argument scale.",
            "K_j.T) * scale",
            "K_j.T) / tl.sqrt(1.0 * d)",
        ),
        Mistake("a score of 0 was taken for that of a key that is not there: ask keys < Nk.",
                "tl.where(inside[None, :], S_ij", "tl.where(inside[None, :] & (S_ij != 0), S_ij"),
        Mistake("0 was subtracted wherever the tile is masked, but the past may hold keys: guard m_new.",
                'tl.where(m_new == -float("inf"), 0, m_new)',
                'tl.where(tl.max(S_ij, 1) == -float("inf"), 0, m_new)'),
    ),
)  # fmt: skip


def _from_source(source, name, *args):
    """``attend`` for a kernel given by its source: so it can travel to an interpreter in another process."""
    filename = f"<{name} as it was written>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {"tl": tl, "triton": triton}
    exec(compile(source, filename, "exec"), namespace)
    return attend(namespace[name], *args)


def _source(kernel):
    """The source of a kernel, with the numbers and the kernels before it that it uses."""
    used = {name: kernel.fn.__globals__.get(name) for name in kernel.fn.__code__.co_names}
    numbers = {
        name: getattr(it, "value", it) for name, it in used.items() if isinstance(it, int | float | tl.constexpr)
    }
    kernels = [_source(it) for it in used.values() if isinstance(it, type(kernel))]
    return "\n".join([*(f"{name} = {it!r}" for name, it in numbers.items()), *kernels, inspect.getsource(kernel.fn)])


def measure(kernel, tile=64):
    """Print what a capstone's kernel moves, tiling's closed form, and a verdict; on a GPU also its time and torch's."""
    try:
        attempted(kernel)
    except NotImplementedError:
        print("○ nothing to measure yet")
        return
    head = [x.astype(np.float16) for x in data.captured("alice").head()]
    N, d = head[0].shape
    for causal in (False, True):
        memory = count(_from_source, _source(kernel), kernel.fn.__name__, *head, causal, tile, tile)
        due = tiling.fa2_traffic(N, N, d, tile, tile, mask=masks.causal() if causal else None, dtype=np.float16)
        due["store", "O"] *= 2  # in float32
        print(f"{'causal' if causal else 'full'}: {memory.moved:,} B moved; tiling's closed form: {due.total():,} B")
        print(f"  {_verdict(memory.bytes, due)}")
    if DEVICE.type == "cuda":
        _race(kernel)
    else:
        print("no GPU here, so no time: the interpreter's would say nothing")


def _verdict(moved, due):
    """Say which tensor crosses more often than the closed form says, if one does: bytes by (direction, tensor)."""
    more = {key: nbytes / due[key] if due[key] else np.inf for key, nbytes in moved.items() if nbytes > due[key]}
    if not more:
        return "✓ not a byte too many"
    (direction, name), times = max(more.items(), key=lambda it: it[1])
    did = {"load": "loaded", "store": "stored"}[direction]
    return f"✗ {name} is {did} {times:.1f} times as often as needed: twice, or in tiles that no query sees?"


def _race(kernel, N=16384, d=64, tile=64):
    q, k, v = torch.randn(3, N, d, device=DEVICE, dtype=torch.float16)
    O, lse = torch.empty(N, d, device=DEVICE), torch.empty(N, device=DEVICE)
    grid, numbers = (triton.cdiv(N, tile),), (N, N, d**-0.5, d, tile, tile, False)
    yours = gpu_timer(lambda: kernel[grid](q, k, v, O, lse, *numbers))
    torchs = gpu_timer(lambda: F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None]))
    print(f"one head of {N:,} tokens, d = {d}: yours {yours:.2f} ms, torch's {torchs:.2f} ms")


masked_tiles = Question(
    answer=16,
    because="8 programs, and the diagonal crosses two tiles of each: 128 rows are two tiles of 64 keys.",
    hints=(
        "The diagonal leaves a tile of 128 rows after how many keys?",
        "Each program's rows begin and end at multiples of 128, which are multiples of 64.",
        "1024 / 128 programs, 128 / 64 tiles each.",
    ),
    wrong=(
        (8, "That is one a program; but a program's 128 rows are two tiles of 64 keys wide."),
        (72, "Those are all that are visited. Those below the diagonal need no mask."),
        (56, "Those are the whole ones: 0 + 2 + 4 + … + 14. What does the diagonal cross?"),
        (128, "That is all of them. Tiles above the diagonal are never loaded."),
    ),
    rel=0,
)

grouped_keys = Question(
    answer=1,
    because="Each of the 8 heads has programs of its own, and each program asks for all keys, whoever else does. "
    "What is saved is room: 2 heads of K and V to keep instead of 8, and neighbours find them in the cache.",
    hints=(
        "A program handles one tile of one query head. Whose keys does it load?",
        "It loads all of its key/value head, however many other query heads load the same.",
        "How many programs are there with Hk = 8, and with Hk = 2? Each loads N × d numbers of K.",
    ),
    wrong=(
        (0.25, "That is how much smaller K is. But who loads it, and how often?"),
        (4, "Fewer key/value heads do not make a program load more."),
    ),
    rel=0,
)  # fmt: skip


# Grouped heads


@triton.jit
def first_elements(h, b, H, Hk, Nq, Nk, d):
    hk = h // (H // Hk)
    first_query = (b * H + h).to(tl.int64) * Nq * d
    first_key = (b * Hk + hk).to(tl.int64) * Nk * d
    return first_query, first_key


@triton.jit
def _every_head(
    Q, K, V, O, lse, H, Hk, Nq, Nk, scale, find: tl.constexpr, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr
):
    """The kernel of one head for all heads: program (i, h, b). ``find`` says where the head's queries and keys are."""
    h, b = tl.program_id(1), tl.program_id(2)
    q, k = find(h, b, H, Hk, Nq, Nk, d)
    attention_one_head(Q + q, K + k, V + k, O + q, lse + (b * H + h) * Nq, Nq, Nk, scale, d, Br, Bc, False)


def _launch_heads(function, Q, K, V):
    (B, H, Nq, d), (Hk, Nk) = Q.shape, K.shape[1:3]
    width = max(TILE, triton.next_power_of_2(d))
    q, k, v = (torch.from_numpy(np.pad(x, [(0, 0)] * 3 + [(0, width - d)])).to(DEVICE) for x in (Q, K, V))
    O, lse = torch.full(q.shape, np.nan, device=DEVICE), torch.full((B, H, Nq), np.nan, device=DEVICE)
    grid, sizes = (triton.cdiv(Nq, TILE), H, B), (H, Hk, Nq, Nk, d**-0.5)
    _every_head[grid](q, k, v, O, lse, *sizes, attempted(function), width, TILE, TILE)
    return O.cpu().numpy()[..., :d]


def _grouped(Q, K, V):
    K, V = (x.repeat(Q.shape[1] // K.shape[1], 1) for x in (K, V))  # [B, H, Nk, d]
    heads = [[attention(*head) for head in zip(*text, strict=True)] for text in zip(Q, K, V, strict=True)]
    return np.array(heads)


def _heads_cases():
    def case(name, B, H, Hk, Nq, Nk, d=1):
        rng = np.random.default_rng(Nq + Nk)
        shapes = (B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, d)
        return Case(name, tuple(rng.normal(size=shape).astype(np.float16) for shape in shapes))

    return [
        case("one head", 1, 1, 1, 2, 1),
        case("two heads, each with keys of its own", 1, 2, 2, 1, 3),
        case("two query heads share one head of keys", 1, 2, 1, 1, 3),
        case("four query heads, two heads of keys: neighbours share", 1, 4, 2, 1, 3),
        case("six query heads, two heads of keys", 1, 6, 2, 1, 3),
        case("ten query heads, one head of keys", 1, 10, 1, 1, 2),
        case("two texts", 2, 2, 2, 1, 3),
        case("two texts of four query heads and two heads of keys", 2, 4, 2, 3, 5),
        case("more queries than keys", 2, 4, 2, 20, 3),
        case("five texts, eight query heads on four heads of keys", 5, 8, 4, 1, 2),
        case("three texts, six query heads on three heads of keys, d = 32", 3, 6, 3, 2, 4, 32),
    ]


@triton.jit
def _find_once(found, h, b, H, Hk, Nq, Nk, d, find: tl.constexpr):
    q, k = find(h, b, H, Hk, Nq, Nk, d)
    tl.store(found, q)
    tl.store(found + 1, k)


_WIDE = (  # h, b, H, Hk, N, d
    (5, 40_000, 16, 4, 4097, 64),
    (47, 0, 48, 48, 2**20 + 1, 64),
    (47, 2, 48, 48, 2**20 + 1, 64),
    (47, 40_000, 48, 3, 4097, 80),
    (0, 150_000, 4, 4, 4096, 16),  # the rows of K alone are more than 2³¹
    (11, 1, 22, 2, 3, 1),  # h // 11, which products of half precision round to 0
    (41, 0, 82, 2, 3, 1),  # the same in float32
)


def _wide_enough(function):
    """Law of its own inputs: the offsets are right where they are large. Nothing is loaded from there."""
    for h, b, H, Hk, N, d in _WIDE:
        found = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        with np.errstate(over="ignore"):
            _find_once[(1,)](found, h, b, H, Hk, N, N, d, attempted(function))
        due = [(b * H + h) * N * d, (b * Hk + h // (H // Hk)) * N * d]
        on = f"h = {h}, b = {b:,}, H = {H}, Hk = {Hk}, Nq = Nk = {N:,}, d = {d}"
        if any(it != right and (it - right) % 2**32 == 0 for it, right in zip(found.tolist(), due, strict=True)):
            many = "40,000 texts have" if b > 2 else "a single text may have"
            return Broken(
                on,
                f"the offsets wrap around: {many} more than 2³¹ elements, which 32 bits cannot count. Widen a factor "
                "with .to(tl.int64) before every product.",
            )
        if found.tolist() != due:
            found, due = (" and ".join(f"{it:,}" for it in offsets) for offsets in (found.tolist(), due))
            return Broken(
                on,
                f"right for small tensors and few heads, but here {due} elements come before, not {found}.",
                if_right=True,
            )


heads = Exercise(
    reference=first_elements,
    launch=_launch_heads,
    exact=_grouped,
    cases=_heads_cases,
    once=(_wide_enough,),
    level=2,
    minutes=10,
    hints=(
        "How many numbers does one head of queries hold, and how many such heads come before head h of text b? Then "
        "the same for keys, of which a text has Hk heads.",
        "Query heads 0 to H // Hk − 1 share key head 0, the next ones key head 1: h // (H // Hk).",
        "first_query = (b * H + h).to(tl.int64) * Nq * d; first_key = (b * Hk + h // (H // Hk)).to(tl.int64) * Nk * d.",
    ),
    mistakes=(
        Mistake("neighbours share keys: query head h uses key head h // (H // Hk), not h % Hk.",
                "h // (H // Hk)", "h % Hk"),
        Mistake("H // Hk query heads share a head of keys: divide h by that number, not by Hk.",
                "h // (H // Hk)", "h // Hk"),
        Mistake("there are only Hk heads of keys, and h counts the heads of queries.", "h // (H // Hk)", "h"),
        Mistake("rounded up: the first H // Hk query heads share key head 0, so h // (H // Hk) is rounded down.",
                "h // (H // Hk)", "(h + H // Hk - 1) // (H // Hk)"),
        Mistake("a text has Hk heads of keys, not H.", "b * Hk + hk", "b * H + hk"),
        Mistake("heads were taken for the outer axis: of [B, H, N, d] a text is the outermost, so b * H + h.",
                "(b * H + h)", "(h * 2 + b)"),
        Mistake("heads were taken for the outer axis: of [B, Hk, N, d] a text is the outermost, so b * Hk + hk.",
                "(b * Hk + hk)", "(hk * 2 + b)"),
        Mistake("the batch was forgotten for the keys: b * Hk heads of keys come before this text.",
                "(b * Hk + hk)", "hk"),
        Mistake("the batch was forgotten for the queries: b * H heads come before this text.", "(b * H + h)", "h"),
        Mistake("a head of keys has Nk rows, not Nq.", "Nk * d", "Nq * d"),
        Mistake("rows were counted, not numbers: each row has d of them.",
                "Nq * d\n    first_key = (b * Hk + hk).to(tl.int64) * Nk * d",
                "Nq\n    first_key = (b * Hk + hk).to(tl.int64) * Nk"),
        Mistake("rows were counted, not numbers: each row has d of them.",
                "(b * Hk + hk).to(tl.int64) * Nk * d", "(b * Hk + hk).to(tl.int64) * Nk"),
        Mistake("rows were counted, not numbers: each row has d of them.",
                "(b * H + h).to(tl.int64) * Nq * d", "(b * H + h).to(tl.int64) * Nq"),
        Mistake("neighbours share keys: query head h uses key head h // (H // Hk), not a remainder.",
                "h // (H // Hk)", "h % (H // Hk)"),
        Mistake("a head of queries has Nq rows, not Nk.", ".to(tl.int64) * Nq", ".to(tl.int64) * Nk"),
        Mistake("32 bits are too few: widen with .to(tl.int64), and before the product.",
                "(b * H + h).to(tl.int64) * Nq * d", "((b * H + h) * Nq * d).to(tl.int64)"),
    ),
)  # fmt: skip
