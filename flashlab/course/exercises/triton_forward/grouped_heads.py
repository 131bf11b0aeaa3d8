"""Heads of queries that share heads of keys: ``heads``."""

from typing import NamedTuple

import numpy as np
import torch

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake
from flashlab.grading.kernel_laws import attempted
from flashlab.kernels import DEVICE, tl, triton


@triton.jit
def first_elements(h, b, H, Hk, Nq, Nk, d):
    hk = h // (H // Hk)
    first_query = (b * H + h).to(tl.int64) * Nq * d
    first_key = (b * Hk + hk).to(tl.int64) * Nk * d
    return first_query, first_key


class Begins(NamedTuple):
    """Where the first query and the first key of a program begin in memory."""

    first_query: np.ndarray  # [] elements before the head's first query
    first_key: np.ndarray  # [] elements before its first key


@triton.jit(do_not_specialize=["h", "b"])  # Triton would make a constant of 1, which has no dtype
def _find_once(found, h, b, H, Hk, Nq, Nk, d, find: tl.constexpr):
    q, k = find(h, b, H, Hk, Nq, Nk, d)
    tl.store(found, q)
    tl.store(found + 1, k)


def _launch_heads(function, *sizes):
    found = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    with np.errstate(over="ignore"):
        _find_once[(1,)](found, *sizes, attempted(function))
    return Begins(*found.cpu().numpy())


def _begins(h, b, H, Hk, Nq, Nk, d):
    return Begins((b * H + h) * Nq * d, (b * Hk + h * Hk // H) * Nk * d)


def _draw(rng, size):
    """Draw a program and the sizes of its tensors, of any order of magnitude. A head has less than 2³¹ elements."""
    Hk, group, texts, Nq, Nk, d = (whole(rng, size, most) for most in (32, 32, 2**16, 2**23, 2**23, 2**8))
    return int(rng.integers(Hk * group)), texts - 1, Hk * group, Hk, Nq, Nk, d


heads = Exercise(
    reference=first_elements,
    launch=_launch_heads,
    exact=_begins,
    edges=(
        Case("the second of two heads, each with keys of its own", (1, 0, 2, 2, 3, 5, 4)),
        Case("four query heads, two heads of keys: neighbours share", (1, 0, 4, 2, 3, 5, 4)),
        Case("the second text", (2, 1, 4, 2, 3, 5, 4)),
        Case("many texts, with more elements than 32 bits count", (5, 40_000, 16, 4, 4097, 4097, 64)),
        Case("one text of more than 2³¹ elements", (47, 2, 48, 48, 2**20 + 1, 2**20 + 1, 64)),
    ),
    draw=_draw,
    draws=100,
    level=2,
    minutes=10,
    hints=(
        "How many numbers does one head of queries hold, and how many such heads come before head h of text b? Then "
        "the same for keys, of which a text has Hk heads.",
        "Query heads 0 to H // Hk − 1 share key head 0, the next ones key head 1: h // (H // Hk).",
        "first_query = (b * H + h).to(tl.int64) * Nq * d; first_key = (b * Hk + h // (H // Hk)).to(tl.int64) * Nk * d.",
    ),
    mistakes=(
        Mistake("let every Hk-th query head share its keys.",
                "Neighbours share: query head h uses key head h // (H // Hk).", "h // (H // Hk)", "h % Hk"),
        Mistake("took h for the number of the key head.", "There are Hk of those: it is h // (H // Hk).",
                "h // (H // Hk)", "h"),
        Mistake("divided h by Hk.", "H // Hk query heads share a head of keys: divide by that number.",
                "h // (H // Hk)", "h // Hk"),
        Mistake("counted H heads of keys per text.", "A text has Hk of them.", "b * Hk + hk", "b * H + hk"),
        Mistake("counted rows.", "Each row has d elements: multiply by d.",
                "Nq * d\n    first_key = (b * Hk + hk).to(tl.int64) * Nk * d",
                "Nq\n    first_key = (b * Hk + hk).to(tl.int64) * Nk"),
        Mistake("multiplied in 32 bits, whose largest integer is 2³¹ − 1.",
                "Widen a factor with .to(tl.int64) before the first product that may be as large.",
                "(b * H + h).to(tl.int64) * Nq * d\n    first_key = (b * Hk + hk).to(tl.int64) * Nk * d",
                "(b * H + h) * Nq * d\n    first_key = (b * Hk + hk) * Nk * d"),
    ),
)  # fmt: skip
