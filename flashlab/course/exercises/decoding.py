"""The exercises on decoding: parts of the past, how many of them, and their merge, in numpy and as a kernel."""

import math
from typing import NamedTuple

import numpy as np
import torch

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.kernel_laws import inside_margins, launched
from flashlab.kernels import DEVICE, tl, triton

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
            "136 / 132, but four programs cannot be spread over 132 SMs: they run alone, and as long as the others.",
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
    """What attention leaves of one row."""

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


def _parts(seed, lse_s, dv=3):
    lse_s = np.array(lse_s, np.float32)
    O_s = np.random.default_rng(seed).normal(size=(len(lse_s), dv)).astype(np.float32)  # [S, dv]
    return np.where(lse_s[:, None] == -inf, np.float32(0), O_s), lse_s


def _merge_cases():
    lists = {
        "two parts of equal weight": [1, 1],
        "one part: it is the whole": [2.5],
        "a part that weighs e² times as much as the other": [3, 1],
        "an lse that cannot be exponentiated": [200, 199, 198],
        "an lse far below 0: its exponential is 0 in float32": [-200, -201],
        "a part that saw no key": [0.5, -inf, 1.5],
        "no part saw a key": [-inf, -inf],
        "sixteen parts": np.linspace(-4, 9, 16),
        "an lse of exactly 0, as of one key with the score 0": [0, -1, 0],
        "parts that lie 300 apart": [-150, 150],
        "an lse below any number that one would take for −∞": [-2e9, -inf],
    }
    return [Case(name, _parts(seed, lse_s)) for seed, (name, lse_s) in enumerate(lists.items())]


merge = Exercise(
    reference=merged,
    cases=_merge_cases,
    minutes=10,
    level=2,
    hints=(
        "A part's weight is its share of the whole row's denominator. Which number of the part is its logarithm?",
        "The weights are the softmax of lse_s, safely: subtract the maximum first. The new lse is its log-sum-exp.",
        "m = lse_s.max(); weights = np.exp(lse_s - m); O = weights @ O_s / weights.sum(); "
        "lse = m + np.log(weights.sum()). If m is -inf, O is 0 and lse -inf.",
    ),
    mistakes=(
        Mistake(
            "the parts were averaged: each counts by its share of the denominator, e to the power of its lse.",
            "weights @ O_s / l",
            "O_s.mean(0)",
        ),
        Mistake("the outputs are not divided by the sum of the weights.", "weights @ O_s / l", "weights @ O_s"),
        Mistake("no maximum is subtracted: e²⁰⁰ overflows, and e⁻²⁰⁰ is 0.", "lse_s - m_safe", "lse_s"),
        Mistake("−∞ − (−∞) is NaN: where no part saw a key, subtract 0.", "0 if m == -np.inf else m", "m"),
        Mistake("the lse of the whole counts all parts: add log(l).", "m_safe + np.log(l)", "m_safe"),
        Mistake("lse is a natural logarithm: np.log, not np.log2.", "m_safe + np.log(l)", "m_safe + np.log2(l)"),
        Mistake(
            "the lse was taken for a logarithm of base 2: it is natural, on both sides.",
            "np.exp(lse_s - m_safe)",
            "np.exp2(lse_s - m_safe)",
        ),
        Mistake(
            "the weights are the exponentials of the lse, not the lse themselves.",
            "np.exp(lse_s - m_safe)",
            "np.where(lse_s == -np.inf, 0, lse_s)",
        ),
    ),
    sways=True,
)


def fewest(programs, tiles, slots):
    """Return the fewest parts, of 1 to ``tiles``, whose share of the card's time is at least 0.95 of the best share."""
    shares = []
    for S in range(1, tiles + 1):
        waves = programs * S / slots
        shares.append(waves / math.ceil(waves))
    return next(S for S, share in enumerate(shares, 1) if share >= 0.95 * max(shares))


parts = Exercise(
    reference=fewest,
    cases=lambda: [
        Case("eight programs, 132 places: many parts", (8, 128, 132)),
        Case("one part too many begins a second wave", (8, 17, 132)),
        Case("enough programs without a split", (512, 128, 132)),
        Case("exactly one wave", (132, 100, 132)),
        Case("one key tile: nothing to split", (1, 1, 132)),
        Case("few tiles: the best share is small, and still the best", (1, 5, 132)),
        Case("all parts that there may be are hardly better than one less", (4, 32, 132)),
        Case("a little more than one wave", (140, 64, 132)),
        Case("nearly full: not worth a merge", (126, 64, 132)),
        Case("places for two programs per SM", (8, 128, 264)),
        Case("a share of exactly 0.95 of the best", (19, 20, 20)),
    ],
    minutes=10,
    level=2,
    hints=(
        "With S parts there are w = programs * S / slots waves of work, and the last wave takes as long as a full one.",
        "The share of the time that is used is w / ceil(w). Compute it for every S, and take the first good enough.",
        "shares = [w / math.ceil(w) for S in 1 ... tiles]; the first S with share >= 0.95 * max(shares).",
    ),
    mistakes=(
        Mistake("the fewest parts that are good enough, not the best: every part must be merged.",
                ">= 0.95 * max(shares)", "== max(shares)"),
        Mistake("good enough is relative to the best share that can be had, not to 1.",
                ">= 0.95 * max(shares)", ">= min(0.95, max(shares))"),
        Mistake("a wave that has begun takes as long as a full one: round up.",
                "math.ceil(waves)", "max(1, round(waves))"),
        Mistake("S counts from 1: one part is no split.", "enumerate(shares, 1)", "enumerate(shares)"),
        Mistake("there may be as many parts as tiles, the last included.",
                "range(1, tiles + 1)", "range(1, max(tiles, 2))"),
    ),
)  # fmt: skip


def group_rows(Q, Hk):
    """Return the queries [H, n, d] as tiles [Hk, n g, d]: a row is a token and a head of the group, token first."""
    H, n, d = Q.shape
    g = H // Hk
    return Q.reshape(Hk, g, n, d).transpose(0, 2, 1, 3).reshape(Hk, n * g, d)


def _queries(H, n, d):
    return (np.arange(H * n * d, dtype=np.float32) / 3).reshape(H, n, d)  # which 16 bits would round


packed = Exercise(
    reference=group_rows,
    cases=lambda: [
        Case("one token, two heads per key", (_queries(4, 1, 2), 2)),
        Case("two tokens, two heads per key", (_queries(4, 2, 3), 2)),
        Case("every head has its own key", (_queries(3, 2, 2), 3)),
        Case("all heads share one key", (_queries(6, 3, 2), 1)),
        Case("three tokens, four heads per key", (_queries(8, 3, 4), 2)),
    ],
    minutes=8,
    level=1,
    hints=(
        "Query head h uses key head h // g: heads of one group are neighbours. First split H into (Hk, g).",
        "Q.reshape(Hk, g, n, d) has an axis for each. Rows are to run over tokens, and within a token over heads.",
        "Q.reshape(Hk, g, n, d).transpose(0, 2, 1, 3).reshape(Hk, n * g, d)",
    ),
    mistakes=(
        Mistake("a row is a token and then a head: exchange the two axes before they become one.",
                ".transpose(0, 2, 1, 3).reshape", ".reshape"),
        Mistake("heads of one group are neighbours: key head h // g, not h % Hk.",
                "Q.reshape(Hk, g, n, d).transpose(0, 2, 1, 3)", "Q.reshape(g, Hk, n, d).transpose(1, 2, 0, 3)"),
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


def _launch_combine(kernel, O_s, lse_s):
    S, rows, dv = O_s.shape
    (O, outputs), (lse, sums) = inside_margins(rows, dv, "O"), inside_margins(1, rows, "lse")
    O_dense = torch.full((rows, dv), np.nan, dtype=torch.float32, device=DEVICE)  # as the kernel stores rows
    tensors = (torch.tensor(x, device=DEVICE) for x in (O_s, lse_s))
    launched(
        kernel, (rows,), *tensors, O_dense, lse, rows, S, dv, triton.next_power_of_2(S), triton.next_power_of_2(dv)
    )
    O.copy_(O_dense)
    return Outputs(outputs(), sums()[0])


class Outputs(NamedTuple):
    """What attention leaves of some rows."""

    O: np.ndarray  # [rows, dv]
    lse: np.ndarray  # [rows]


def _combined(O_s, lse_s):
    results = [merged(O_s[:, i], lse_s[:, i]) for i in range(O_s.shape[1])]
    return Outputs(np.array([x.O for x in results]), np.array([x.lse for x in results]))


def _rows_of_parts(seed, S, rows, dv, shift=0.0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(S, rows, dv)).astype(np.float32), (shift + 3 * rng.normal(size=(S, rows))).astype(
        np.float32
    )


def _some_empty(seed, S, rows, dv):
    O_s, lse_s = _rows_of_parts(seed, S, rows, dv)
    lse_s[1:, 0], lse_s[:, -1] = -inf, -inf  # one part of the first row saw keys, and none of the last
    return np.where(lse_s[..., None] == -inf, np.float32(0), O_s), lse_s


combine_kernel = Exercise(
    reference=combine,
    cases=lambda: [
        Case("two parts of one row", _rows_of_parts(0, 2, 1, 4)),
        Case("one part: it is the whole", _rows_of_parts(1, 1, 2, 4)),
        Case("three parts of two rows: neither is a power of two", _rows_of_parts(2, 3, 2, 5)),
        Case("an lse that cannot be exponentiated", _rows_of_parts(3, 2, 2, 4, shift=200.0)),
        Case("an lse far below 0", _rows_of_parts(4, 3, 2, 4, shift=-200.0)),
        Case("parts that saw no key, and a row of which none did", _some_empty(5, 3, 3, 4)),
        Case("nine parts of four rows, a wide head", _rows_of_parts(6, 9, 4, 40)),
        Case("parts that lie 300 apart", (_rows_of_parts(7, 2, 2, 4)[0], np.float32([[-150, 150], [150, -150]]))),
        Case("an lse below any number that one would take for −∞", _rows_of_parts(8, 2, 2, 4, shift=-2e9)),
    ],
    launch=_launch_combine,
    exact=_combined,
    minutes=25,
    level=3,
    sways=True,
    hints=(
        "One program, one row: load its lse of all parts [Bs] and its outputs [Bs, width]. Mask what is past S and dv.",
        "Part s of row i is element s * rows + i of lse_s. A part that is not there must weigh nothing: other=-inf.",
        "weights = tl.exp(lse_i - m_safe); l = tl.sum(weights, 0); O is tl.sum(weights[:, None] * O_i, 0) / l_safe.",
    ),
    mistakes=(
        Mistake("parts past the last must weigh nothing: load their lse with other=-inf.",
                'mask=s < S, other=-float("inf")', "mask=s < S, other=0.0"),
        Mistake("no maximum is subtracted: exponentials overflow, or all are 0.", "lse_i - m_safe", "lse_i"),
        Mistake("−∞ − (−∞) is NaN: where no part saw a key, subtract 0.",
                'm_safe = tl.where(m == -float("inf"), 0.0, m)', "m_safe = m"),
        Mistake("0 / 0: a row that saw no key has the output 0.", "l_safe = tl.where(l == 0, 1.0, l)", "l_safe = l"),
        Mistake("lse is a natural logarithm.", "m_safe + tl.log(l_safe)", "m_safe + tl.log2(l_safe)"),
        Mistake("the parts are [S, rows]: part s of row i is at s * rows + i.",
                "lse_s + s * rows + i", "lse_s + i * S + s"),
        Mistake("the outputs are not divided by the sum of the weights.",
                "tl.sum(weights[:, None] * O_i, 0) / l_safe", "tl.sum(weights[:, None] * O_i, 0)"),
    ),
)  # fmt: skip
