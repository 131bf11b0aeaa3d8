"""Heads of queries that share heads of keys: ``heads``."""

import numpy as np
import torch

from flashlab.course.exercises.triton_forward.one_head import TILE, attention_one_head
from flashlab.grading.exercise import Broken, Case, Exercise
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.kernel_laws import attempted
from flashlab.kernels import DEVICE, tl, triton
from flashlab.reference.attention import attention


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
    """Run the kernel of one head for all: program (i, h, b). ``find`` says where the head's queries and keys begin."""
    h, b = tl.program_id(1), tl.program_id(2)
    q, k = find(h, b, H, Hk, Nq, Nk, d)
    attention_one_head(Q + q, K + k, V + k, O + q, lse + (b * H + h) * Nq, Nq, Nk, scale, d, Br, Bc, False)


def _launch_heads(function, Q, K, V):
    (B, H, Nq, d), (Hk, Nk) = Q.shape, K.shape[1:3]
    width = max(TILE, triton.next_power_of_2(d))
    q, k, v = (torch.from_numpy(np.pad(x, [(0, 0)] * 3 + [(0, width - d)])).to(DEVICE) for x in (Q, K, V))
    O, lse = (torch.full(shape, np.nan, dtype=torch.float32, device=DEVICE) for shape in (q.shape, (B, H, Nq)))
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
        Mistake("heads were taken for the outermost axis: in [B, H, N, d] texts are, so b * H + h.",
                "(b * H + h)", "(h * 2 + b)"),
        Mistake("heads were taken for the outermost axis: in [B, Hk, N, d] texts are, so b * Hk + hk.",
                "(b * Hk + hk)", "(hk * 2 + b)"),
        Mistake("[B, N, H, d] was taken for the order: in [B, H, N, d] the rows of a head lie together.",
                "    first_query = (b * H + h).to(tl.int64) * Nq * d\n"
                "    first_key = (b * Hk + hk).to(tl.int64) * Nk * d",
                "    first_query = b.to(tl.int64) * Nq * H * d + h * d\n"
                "    first_key = b.to(tl.int64) * Nk * Hk * d + hk * d"),
        Mistake("the offsets were returned in the wrong order: first_query, then first_key.",
                "return first_query, first_key", "return first_key, first_query"),
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
