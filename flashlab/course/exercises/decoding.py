"""The exercises on decoding: parts of the past, how many of them, and their merge, in numpy and as a kernel."""

import math
from typing import NamedTuple

import numpy as np
import torch

from flashlab.grading.draws import finished, whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.grading.kernel_laws import inside_margins, launched, wrong_stores
from flashlab.grading.laws import no_nan_replaced, nothing_clipped
from flashlab.kernels import DEVICE, tl, triton

__all__ = ["intensity", "merge", "waves", "parts", "packed", "combine_kernel", "same_bits"]  # in the lesson's order

inf = np.inf

intensity = Question(
    answer=8,
    because="A key of 128 numbers has 256 bytes and takes part in 8 dot products of 256 FLOPs; a value likewise.",
    hints=(
        "Take one key: how many bytes does it have, and what is computed with it?",
        "It has 2 d bytes. Each of the 8 queries multiplies d numbers with it, and adds d products.",
        "8 * 2 * d / (2 * d)",
    ),
    wrong=(
        (1, "That is one query. Eight of them use the key while it is there."),
        (16, "A number of bfloat16 has 2 bytes."),
        (4, "A product and a sum are two FLOPs."),
    ),
    minutes=3,
)

waves = Question(
    answer=2,
    because="136 programs, 132 at once: four run alone in a second wave, and a wave takes as long as a program.",
    hints=(
        "How many programs are 17 parts of 8 heads? How many run at once?",
        "136, and 132 at once. What do the other four do?",
        "They wait until an SM is free, and then take as long as any other.",
    ),
    wrong=(
        (
            1.03,
            "136 / 132, but four programs cannot be spread over 132 SMs: they run alone, each as long as the others.",
        ),
        (1, "136 programs do not fit on 132 SMs at once."),
        (17, "That is what splitting gains at best. How many programs does the busiest SM run?"),
    ),
    minutes=2,
)

same_bits = Question(
    answer="no",
    because="The batch changes the number of parts, and so the order in which the same numbers are added.",
    hints=(
        "What does the rule look at when it chooses the number of parts?",
        "At the number of programs, and so at the batch.",
        "Other parts, other sums: is addition of floats associative?",
    ),
    wrong=(("yes", "The numbers are the same, but not the order in which they are added."),),
    minutes=2,
)


class Output(NamedTuple):
    """The output of attention for one row."""

    O: np.ndarray  # [dv]
    lse: float


def merged(O_s, lse_s):
    """Return O [dv] and lse of one row from its parts O_s [S, dv] and lse_s [S]."""
    m = lse_s.max()
    m_safe = 0 if m == -np.inf else m
    weights = np.exp(lse_s - m_safe)  # [S]
    l = weights.sum()
    if l == 0:
        return Output(np.zeros_like(O_s[0]), -np.inf)
    return Output(weights @ O_s / l, m_safe + np.log(l))


def _two_parts(lse_s, O_s=(1, 3)):
    return np.float32(O_s)[:, None], np.float32(lse_s)


def _draw_merge(rng, size):
    S, dv = rng.integers(1, size + 1, 2)
    O_s, lse_s = finished(rng, S, 1, dv)
    return O_s[:, 0], lse_s[:, 0]


def _one_hot(lse_s):
    """Return outputs [S, S] of S parts whose merged output [S] is the parts' shares, and lse_s [S]."""
    return np.eye(len(lse_s), dtype=np.float32), lse_s


merge = Exercise(
    reference=merged,
    edges=(
        Case("two parts of equal weight", _two_parts([1, 1])),
        Case("a part that weighs e² times as much as the other", _two_parts([3, 1])),
        Case("an lse whose exponential overflows", _two_parts([200, 199])),
        Case("an lse below −1e9, which is often used for −∞", _two_parts([-3e38, -inf], [1, 0])),
        Case("two parts of which neither saw a key", _two_parts([-inf, -inf], [0, 0])),
    ),
    draw=_draw_merge,
    once=(nothing_clipped(lambda merge, x: merge(*_one_hot(x))[0]),),
    laws=(no_nan_replaced,),
    sways=True,
    mistakes=(
        Mistake("averaged the parts.", "Each counts by its share of the denominator, e to the power of its lse.",
                "weights @ O_s / l", "O_s.mean(0)"),
        Mistake("did not divide the outputs by the sum of the weights.", "The shares of all parts sum to 1.",
                "weights @ O_s / l", "weights @ O_s"),
        Mistake("did not subtract the maximum that lse adds.", "Subtract it first: otherwise e²⁰⁰ overflows, too.",
                "lse_s - m_safe", "lse_s"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where no part saw a key, subtract 0.",
                "0 if m == -np.inf else m", "m"),
        Mistake("returned the maximum as lse.", "The lse of the whole counts all parts: add log(l).",
                "m_safe + np.log(l)", "m_safe"),
        Mistake("took powers of 2.", "lse is a natural logarithm: np.exp inverts it.",
                "np.exp(lse_s - m_safe)", "np.exp2(lse_s - m_safe)"),
    ),
    level=2,
    minutes=10,
    hints=(
        "A part's weight is its share of the whole row's denominator. Which number of the part is its logarithm?",
        "The weights are the softmax of lse_s, safely: subtract the maximum first. The new lse is its log-sum-exp.",
        "m = lse_s.max(); weights = np.exp(lse_s - m); O = weights @ O_s / weights.sum(); "
        "lse = m + np.log(weights.sum()). If m is -inf, O is 0 and lse -inf.",
    ),
)  # fmt: skip


def fewest(programs, tiles, slots):
    """Return the fewest parts, of 1 to ``tiles``, whose share of the card's time is at least 0.95 of the best share."""
    shares = []
    for S in range(1, tiles + 1):
        waves = programs * S / slots
        shares.append(waves / math.ceil(waves))
    return next(S for S, share in enumerate(shares, 1) if share >= 0.95 * max(shares))


def _draw_parts(rng, size):
    """Draw programs, tiles and slots with one right answer, in whatever order w is computed. It may be hundreds."""
    most = int(rng.choice([3, 600]))
    while True:
        programs, tiles, slots = whole(rng, size, most), whole(rng, size, 8192), whole(rng, size, 600)
        S = np.arange(1, tiles + 1)  # [tiles]
        waves = -(-programs * S // slots)  # [tiles]
        shares = programs * S / slots / waves  # [tiles]
        tie = np.isclose(shares, 0.95 * shares.max(), 1e-9, 0).any()
        if not tie and np.array_equal(np.ceil(programs / slots * S), waves):
            return programs, tiles, slots


parts = Exercise(
    reference=fewest,
    edges=(
        Case("one tile of keys: nothing to split", (1, 1, 132)),
        Case("few tiles: the best share is small, and still the best", (1, 5, 132)),
        Case("one part too many begins a second wave", (8, 17, 132)),
        Case("a card that is nearly full: not worth a merge", (126, 64, 132)),
        Case("a share of exactly 0.95 of the best", (19, 20, 20)),
    ),
    draw=_draw_parts,
    mistakes=(
        Mistake("took the parts with the best share.", "Take the fewest that are good enough: each must be merged.",
                ">= 0.95 * max(shares)", "== max(shares)"),
        Mistake("required a share of 0.95.", "Good enough is relative to the best share that any S has.",
                ">= 0.95 * max(shares)", ">= min(0.95, max(shares))"),
        Mistake("rounded the waves.", "A wave that has begun takes as long as a full one: round up.",
                "math.ceil(waves)", "max(1, round(waves))"),
        Mistake("counted S from 0.", "One part is no split: S begins at 1.",
                "enumerate(shares, 1)", "enumerate(shares)"),
        Mistake("left out the last S.", "There may be as many parts as tiles.",
                "range(1, tiles + 1)", "range(1, max(tiles, 2))"),
        Mistake("required more than 0.95 of the best share.", "0.95 of it suffices: >=.",
                ">= 0.95 * max(shares)", "> 0.95 * max(shares)"),
    ),
    level=2,
    minutes=10,
    hints=(
        "With S parts there are w = programs * S / slots waves of work, and the last wave takes as long as a full one.",
        "The share of the time that is used is w / ceil(w). Compute it for every S, and take the first good enough.",
        "shares = [w / math.ceil(w) for S in 1 ... tiles]; the first S with share >= 0.95 * max(shares).",
    ),
)  # fmt: skip


def group_rows(Q, Hk):
    """Return the queries [H, n, d] as tiles [Hk, n g, d]: a row is a token and a head of the group, token first."""
    H, n, d = Q.shape
    g = H // Hk
    return Q.reshape(Hk, g, n, d).transpose(0, 2, 1, 3).reshape(Hk, n * g, d)


def _queries(H, n, d):
    return np.arange(H * n * d, dtype=np.float32).reshape(H, n, d)


def _draw_packed(rng, size):
    Hk, g = (int(n) for n in rng.integers(1, min(size, 8) + 1, 2))
    n, d = rng.integers(1, size + 1, 2)
    return rng.normal(size=(Hk * g, n, d)).astype(np.float32), Hk


packed = Exercise(
    reference=group_rows,
    edges=(
        Case("one token, two heads per key", (_queries(4, 1, 2), 2)),
        Case("two tokens, two heads per key", (_queries(4, 2, 1), 2)),
        Case("every head has its own key", (_queries(3, 2, 1), 3)),
        Case("all heads share one key", (_queries(3, 2, 1), 1)),
    ),
    draw=_draw_packed,
    mistakes=(
        Mistake("let rows run over heads first.", "A row is a token and then a head: exchange the two axes before they "
                "become one.", ".transpose(0, 2, 1, 3).reshape", ".reshape"),
        Mistake("took every Hk-th head for a group.", "Heads of a group are neighbours: key head h // g, not h % Hk.",
                "Q.reshape(Hk, g, n, d).transpose(0, 2, 1, 3)", "Q.reshape(g, Hk, n, d).transpose(1, 2, 0, 3)"),
    ),
    level=1,
    minutes=8,
    hints=(
        "Query head h uses key head h // g: heads of one group are neighbours. First split H into (Hk, g).",
        "Q.reshape(Hk, g, n, d) has an axis for each. Rows are to run over tokens, and within a token over heads.",
        "Q.reshape(Hk, g, n, d).transpose(0, 2, 1, 3).reshape(Hk, n * g, d)",
    ),
)  # fmt: skip


@triton.jit
def combine(O_s, lse_s, O, lse, rows, S, dv, Bs: tl.constexpr, width: tl.constexpr):
    i = tl.program_id(0)
    s = tl.arange(0, Bs)  # [Bs]
    cols = tl.arange(0, width)  # [width]
    lse_i = tl.load(lse_s + s * rows + i, mask=s < S, other=-float("inf"))  # [Bs]
    there = (s < S)[:, None] & (cols < dv)[None, :]  # [Bs, width]
    O_i = tl.load(O_s + (s * rows + i)[:, None] * dv + cols[None, :], mask=there, other=0.0)  # [Bs, width]
    m = tl.max(lse_i, 0)
    m_safe = tl.where(m == -float("inf"), 0.0, m)
    weights = tl.exp(lse_i - m_safe)  # [Bs]
    l = tl.sum(weights, 0)
    l_safe = tl.where(l == 0, 1.0, l)
    tl.store(O + i * dv + cols, tl.sum(weights[:, None] * O_i, 0) / l_safe, mask=cols < dv)
    tl.store(lse + i, tl.where(l == 0, -float("inf"), m_safe + tl.log(l_safe)))


def _launch_combine(kernel, O_s, lse_s, Bs=None, width=None):
    S, rows, dv = O_s.shape
    (O, outputs), (lse, sums) = inside_margins(rows, dv, "O"), inside_margins(1, rows, "lse")
    O_dense = torch.full((rows, dv), np.nan, dtype=torch.float32, device=DEVICE)  # rows without gaps
    tensors = (torch.tensor(x, device=DEVICE) for x in (O_s, lse_s))
    blocks = Bs or triton.next_power_of_2(S), width or triton.next_power_of_2(dv)
    launched(kernel, (rows,), *tensors, O_dense, lse, rows, S, dv, *blocks)
    O.copy_(O_dense)
    return Outputs(outputs(), sums()[0])


class Outputs(NamedTuple):
    """The output of attention for some rows."""

    O: np.ndarray  # [rows, dv]
    lse: np.ndarray  # [rows]


def _combined(O_s, lse_s, Bs=None, width=None):
    results = [merged(O_s[:, i], lse_s[:, i]) for i in range(O_s.shape[1])]
    return Outputs(np.array([x.O for x in results]), np.array([x.lse for x in results]))


def _own_row(programs, O_s, lse_s, *blocks):
    """Law: program i stores row i."""
    _, rows, dv = O_s.shape
    return wrong_stores(programs, 4 * rows * (dv + 1), in_order=True)


def _parts_of_rows(*lse_s):
    """Return O_s [S, rows, 1] and lse_s [S, rows] from the parts' lse; outputs are 1, 2, 3 ..., or 0 for −∞."""
    lse_s = np.float32(lse_s)
    return np.where(lse_s == -inf, np.float32(0), np.cumsum(np.ones_like(lse_s)).reshape(lse_s.shape))[..., None], lse_s


def _draw_combine(rng, size):
    S, rows, dv = rng.integers(1, (2 * size + 1, min(size, 3) + 1, 4 * size + 1))
    blocks = (int(rng.choice([1, 1, 4])) * triton.next_power_of_2(int(n)) for n in (S, dv))
    return *finished(rng, S, rows, dv), *blocks


combine_kernel = Exercise(
    reference=combine,
    launch=_launch_combine,
    exact=_combined,
    edges=(
        Case("two parts of one row", _parts_of_rows([1], [0])),
        Case("three parts of two rows, lse far below 0", _parts_of_rows([-200, -201], [-202, -200], [-200, -203])),
        Case("an lse whose exponential overflows", _parts_of_rows([200], [199])),
        Case("an lse below −1e9, which is often used for −∞", _parts_of_rows([-3e38], [-inf])),
        Case("a row of which no part saw a key", _parts_of_rows([-inf], [-inf])),
    ),
    draw=_draw_combine,
    draws=40,
    moves=(_own_row,),
    once=(nothing_clipped(lambda kernel, x: _launch_combine(kernel, *(part[:, None] for part in _one_hot(x))).O[0]),),
    sways=True,
    mistakes=(
        Mistake("gave weights to parts past the last.", "Load their lse with other=-float('inf').",
                'mask=s < S, other=-float("inf")', "mask=s < S, other=0.0"),
        Mistake("did not subtract the maximum that lse adds.", "Subtract it first: otherwise e²⁰⁰ overflows, too.",
                "lse_i - m_safe", "lse_i"),
        Mistake("subtracted −∞ from −∞, which gives NaN.", "Where no part saw a key, subtract 0.",
                'm_safe = tl.where(m == -float("inf"), 0.0, m)', "m_safe = m"),
        Mistake("divided 0 by 0.", "A row that saw no key has the output 0: divide by 1 there.",
                "l_safe = tl.where(l == 0, 1.0, l)", "l_safe = l"),
        Mistake("took the parts of a row for neighbours.", "lse_s is [S, rows]: part s of row i is at s * rows + i.",
                "lse_s + s * rows + i", "lse_s + i * S + s"),
        Mistake("did not divide the outputs by the sum of the weights.", "The shares of all parts sum to 1.",
                "tl.sum(weights[:, None] * O_i, 0) / l_safe", "tl.sum(weights[:, None] * O_i, 0)"),
    ),
    level=3,
    minutes=25,
    hints=(
        "One program, one row: load its lse of all parts [Bs] and its outputs [Bs, width]. Mask what is past S and dv.",
        "Part s of row i is element s * rows + i of lse_s. A part that is not there must weigh nothing: other=-inf.",
        "weights = tl.exp(lse_i - m_safe); l = tl.sum(weights, 0); O is tl.sum(weights[:, None] * O_i, 0) / l_safe.",
    ),
)  # fmt: skip
