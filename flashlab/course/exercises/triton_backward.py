"""The exercises on triton_backward. An attempt is a kernel, or a function that a kernel calls for each tile."""

from typing import NamedTuple

import numpy as np
import torch

from flashlab.course.exercise import Broken, Case, Exercise, Mistake, Question, edited
from flashlab.course.exercises.triton_forward import remainders
from flashlab.course.kernel_laws import loads_at_most, moved_by_program, stored_too_often
from flashlab.course.launches import attempted, inside_margins, launched
from flashlab.course.laws import nothing_clipped, proportional
from flashlab.course.regimes import GENTLE, LARGER, REGIMES, Regime, sweep
from flashlab.kernels import DEVICE, INTERPRETED, tl, triton
from flashlab.reference import attention, masks, recomputation, tiling

BLOCK = 16  # rows of a tile, and the width of a head: the least that tl.dot multiplies


class KeyValueGradients(NamedTuple):
    dK: np.ndarray  # [Nk, d]
    dV: np.ndarray  # [Nk, d]


@triton.jit
def delta_of_rows(O, dO, delta, N, dv, Br: tl.constexpr, width: tl.constexpr):
    rows = tl.program_id(0) * Br + tl.arange(0, Br)  # [Br]
    columns = tl.arange(0, width)  # [width]
    inside = (rows < N)[:, None] & (columns < dv)[None, :]  # [Br, width]
    at = rows[:, None] * dv + columns[None, :]  # [Br, width]
    O_i = tl.load(O + at, mask=inside, other=0).to(tl.float32)  # [Br, width]
    dO_i = tl.load(dO + at, mask=inside, other=0).to(tl.float32)  # [Br, width]
    tl.store(delta + rows, tl.sum(dO_i * O_i, 1), mask=rows < N)


@triton.jit
def add_tile(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale):
    S_ij = scale * tl.dot(Q_i, K_j.T)  # [Br, Bc]
    P_ij = tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)  # [Br, Bc]
    dV_j += tl.dot(P_ij.T, dO_i)  # [Bc, d]
    dP_ij = tl.dot(dO_i, V_j.T)  # [Br, Bc]
    dS_ij = P_ij * (dP_ij - delta_i[:, None])  # [Br, Bc]
    dK_j += scale * tl.dot(dS_ij.T, Q_i)  # [Bc, d]
    return dK_j, dV_j


@triton.jit
def loop_over_queries(
    add: tl.constexpr, Q, K, V, dO, lse, delta, dK, dV, Nq, Nk, scale,
    Br: tl.constexpr, Bc: tl.constexpr, d: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    """Compute rows j * Bc .. (j + 1) * Bc of dK and dV of one head: program j. ``add`` does it for one tile."""
    columns = tl.arange(0, d)[None, :]  # [1, d]
    keys = tl.program_id(0) * Bc + tl.arange(0, Bc)  # [Bc]
    at_keys, are_keys = keys[:, None] * d + columns, (keys < Nk)[:, None]  # [Bc, d], [Bc, 1]
    K_j, V_j = tl.load(K + at_keys, are_keys, 0), tl.load(V + at_keys, are_keys, 0)  # [Bc, d] each
    dK_j, dV_j = tl.zeros([Bc, d], tl.float32), tl.zeros([Bc, d], tl.float32)  # [Bc, d] each
    for start in range(0, Nq, Br):
        rows = start + tl.arange(0, Br)  # [Br]
        at_rows, are_rows = rows[:, None] * d + columns, (rows < Nq)[:, None]  # [Br, d], [Br, 1]
        Q_i, dO_i = tl.load(Q + at_rows, are_rows, 0), tl.load(dO + at_rows, are_rows, 0)  # [Br, d] each
        lse_i, delta_i = tl.load(lse + rows, rows < Nq, 0), tl.load(delta + rows, rows < Nq, 0)  # [Br] each
        seen = are_rows & (keys < Nk)[None, :]  # [Br, Bc]
        if causal:
            seen = seen & (keys[None, :] <= rows[:, None] + Nk - Nq)
        dK_j, dV_j = add(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale)
    tl.store(dK + at_keys, dK_j, are_keys)
    tl.store(dV + at_keys, dV_j, are_keys)


WINDOW = 4  # keys that a query sees where it looks back so far only
_loop_over_near_queries = edited(
    loop_over_queries, "+ Nk - Nq)", f"+ Nk - Nq) & (keys[None, :] > rows[:, None] + Nk - Nq - {WINDOW})"
)
_MASKS = {False: None, True: masks.causal(), "window": masks.window(WINDOW - 1)}


def key_value_gradients(add, Q, K, V, dO, causal=False, block=BLOCK, scale=None, Bc=None):
    """Return dK and dV [Nk, d] of one head, from a function ``add`` for one tile of ``block`` x ``Bc or block``.

    Q, dO [Nq, d]; K, V [Nk, d]: float32 arrays, d a power of two; causal: "window" where a query sees the last WINDOW
    keys only; scale: 1/√d if None.
    """
    Bc = Bc or block
    mask, scale = _MASKS[causal], scale or Q.shape[1] ** -0.5
    O, lse = attention.attention(Q, K, V, mask=mask, scale=scale, return_lse=True)  # [Nq, d], [Nq]
    on_device = [torch.tensor(x, device=DEVICE) for x in (Q, K, V, dO, lse, recomputation.delta(dO, O))]
    dK, dV = (torch.full(x.shape, torch.nan, device=DEVICE) for x in (K, V))  # [Nk, d] each
    Nk, d = K.shape
    grid = (triton.cdiv(Nk, Bc),)
    loop = _loop_over_near_queries if causal == "window" else loop_over_queries
    loop[grid](attempted(add), *on_device, dK, dV, len(Q), Nk, scale, block, Bc, d, bool(causal))
    return KeyValueGradients(dK.cpu().numpy(), dV.cpu().numpy())


def steps_that_run():
    """Return functions ``add`` for ``key_value_gradients``, by name: the right one, and four wrong ones that run."""
    return {
        "as it should be": add_tile,
        "delta forgotten": edited(add_tile, "(dP_ij - delta_i[:, None])", "dP_ij"),
        "delta per tile": edited(add_tile, "delta_i[:, None]", "tl.sum(P_ij * dP_ij, 1)[:, None]"),
        "dK not scaled": edited(add_tile, "scale * tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, Q_i)"),
        "P, not its transpose": edited(add_tile, "tl.dot(P_ij.T, dO_i)", "tl.dot(P_ij, dO_i)"),
    }


def _launch_delta(kernel, O, dO, Br=4, width=None):
    delta, result = inside_margins(1, len(O))
    O, dO = (torch.tensor(x, device=DEVICE) for x in (O, dO))
    N, dv = O.shape
    launched(kernel, (triton.cdiv(N, Br),), O, dO, delta, N, dv, Br, width or triton.next_power_of_2(dv))
    return result()[0]


def _exact_delta(O, dO, Br=4, width=None):
    return recomputation.delta(dO, O)


def _exact_gradients(Q, K, V, dO, causal, block=BLOCK, scale=None, Bc=None):
    return KeyValueGradients(*attention.attention_backward(Q, K, V, dO, mask=_MASKS[causal], scale=scale)[1:])


def _delta_cases():
    rng = np.random.default_rng(12)
    square, ragged, long = ((rng.normal(size=(2, *shape)).astype(np.float32)) for shape in ((4, 4), (6, 3), (9, 5)))
    return [
        Case("one row of two", (np.float32([[3, 4]]), np.float32([[2, 5]]))),
        Case("four rows of four: one program", tuple(square)),
        Case("six rows of three: the last tile hangs over two edges", tuple(ragged)),
        Case("nine rows of five, in three programs", tuple(long)),
        Case("sixteen rows of three, in four full programs", tuple(rng.normal(size=(2, 16, 3)).astype(np.float32))),
        Case("a taller tile", (*long, 8)),
        Case("a tile of two rows", (*ragged, 2)),
        Case("inputs in float16: the sum needs float32", tuple(np.float16(100 * long))),
        Case("O in float16, dO in float32", (np.float16(long[0]), 1e5 * long[1])),
        Case(
            "rows that cancel, and rows of zeros",
            tuple(np.float32([[[1, 1], [0, 0], [2, 3]], [[1, -1], [3, 4], [0, 0]]])),
        ),
        Case("three rows of one, in a wider tile", (*rng.normal(size=(2, 3, 1)).astype(np.float32), 4, 8)),
        Case("three hundred rows, tiles of 128", (*rng.normal(size=(2, 300, 3)).astype(np.float32), 128)),
        *sweep(_delta_args, regimes=REGIMES[:1], sizes=LARGER, usual={"Nq": 5, "dv": 6}),
    ]


def _stored_once(kernel, O, dO, *tile):
    """Law: each delta is stored once."""
    return stored_too_often(moved_by_program(_launch_delta, kernel, O, dO, *tile), 4 * len(O))


BELOW = Regime("scores around −2,000", lambda n: np.full(n, -2e3))
ABOVE = Regime("scores around 20,000", lambda n: np.full(n, 2e4))


def _delta_args(draw, Nq, dv):
    return draw.normal(Nq, dv), draw.normal(Nq, dv)


def _add_args(draw, Nq, Nk, d):
    Q, K = draw.queries_and_keys(Nq, Nk, d)
    return Q, K, draw.normal(Nk, d), draw.normal(Nq, d), False


def _cancelled():
    """Q, K, V and dO of a query whose two keys weigh the same and have opposite values: O = 0, and so delta = 0."""
    rng = np.random.default_rng(15)
    K, V, dO = (rng.normal(size=(N, BLOCK)).astype(np.float32) for N in (2, 1, 1))
    K[:, 0] = 1
    return np.eye(1, BLOCK, dtype=np.float32), K, np.concatenate([V, -V]), dO


def _future():
    """Q, K, V and dO of two queries, causal: the first does not see the second key, whose score is 200 above lse."""
    rng = np.random.default_rng(16)
    Q, K, V, dO = (rng.normal(size=(2, BLOCK)).astype(np.float32) for _ in range(4))
    Q[:, 0], K[:, 0] = 1, (0, 200)
    return Q, K, V, dO


# Laws of their own inputs, which give lse and delta: rows of a longer text, of which these are the last keys.

AWAY = tuple(sign * 2.0**power for power in (7, 14, 31, 123) for sign in (1, -1))  # exact in any dtype of a product
SCALE = BLOCK**-0.5  # as it is by default
MOVED = (
    "right for scores near 0, and wrong where scores and lse lie far from it: only their difference counts. Clip "
    "neither, and let no finite number stand for −∞."
)


def _unmoved(weights, due):
    """Build a law: sums of weights are ``due`` wherever all scores and lse lie. ``weights(attempt, *tensors)``.

    Two queries, causal, whose scores are all ``height``, as is lse; values and dO are 1, delta is 0. Scores as far
    below lse as it lies from 0 have the weight 0; where both were clipped they would have 1.
    """

    def found(attempt, height, lse):
        one = torch.zeros(2, BLOCK, device=DEVICE)  # [2, BLOCK]
        one[:, 0] = 1
        lse, delta = (torch.full((2,), float(x), device=DEVICE) for x in (lse, 0))
        return weights(attempt, height / SCALE * one, one, one, one, lse, delta)

    def law(attempt):
        def right(height):
            return np.allclose(found(attempt, height, height), due, 0.01)

        def gone(height):
            return np.abs(found(attempt, min(height, 2 * height), max(height, 2 * height))).max() < 0.01

        if INTERPRETED and right(0) and right(1):
            for height in AWAY:
                if not (right(height) and gone(height)):
                    on = f"two queries and two keys, causal, whose scores are all {height:,.4g}"
                    return Broken(on, MOVED, if_right=True)
        return None

    return law


def _weights_of_keys(add, *tensors):
    """The weights that two queries give to each of two keys: dV."""
    dK, dV = torch.zeros(2, 2, BLOCK, device=DEVICE)
    loop_over_queries[(1,)](attempted(add), *tensors, dK, dV, 2, 2, SCALE, BLOCK, BLOCK, BLOCK, True)
    return dV[:, 0].cpu().numpy()


def _weights_of_queries(kernel, *tensors):
    """The weights that each of two queries gives to two keys: dQ, where dP − delta and K are 1."""
    dQ = torch.zeros(2, BLOCK, device=DEVICE)
    launched(kernel, (1,), *tensors, dQ, 2, 2, SCALE, BLOCK, BLOCK, BLOCK, True)
    return dQ[:, 0].cpu().numpy() / SCALE


def _two_queries(x):
    """Q, K, V and dO of two queries to whom keys have the scores x; only the second has a gradient.

    Key j has a 1 in column j + 1. The first key has no value.
    """
    Q, K, V, dO = (np.zeros((N, BLOCK), np.float32) for N in (2, len(x), len(x), 2))
    Q[:, 0] = dO[1, 0] = V[1:, 0] = 1
    K[:, 0], K[:, 1 : len(x) + 1] = x, np.eye(len(x))
    return Q, K, V, dO


def _weights_in_dV(add, x):
    return key_value_gradients(add, *_two_queries(x), scale=1.0).dV[:, 0]


def _weights_in_dQ(kernel, x):
    dQ = query_gradients(kernel, *_two_queries(x), scale=1.0)[1]
    return np.append(np.exp(x[:1]), dQ[2 : len(x) + 1])  # the first key has no value, and no gradient


# Results that are multiples of dO, for laws.


def _delta_of(kernel, size):
    O, dO = np.float32([[1, 2], [-3, 0.7]]), np.float32([[3, -0.4], [0.2, 5]])
    return _launch_delta(kernel, O, np.float32(size) * dO)


def _head_of(size):
    Q, K, V, dO = np.random.default_rng(17).normal(size=(4, 3, BLOCK)).astype(np.float32)
    return Q, K, V, np.float32(size) * dO


def _dK_and_dV_of(add, size):
    return np.concatenate(key_value_gradients(add, *_head_of(size)))


def _dQ_of(kernel, size):
    return query_gradients(kernel, *_head_of(size))


def _no_weight():
    """Q, K, V and dO of 20 queries and keys, of which the last 4 queries give the last 4 keys all their weight."""
    Q, K, V, dO = np.random.default_rng(18).normal(size=(4, 20, BLOCK)).astype(np.float32)
    Q[:, 0], K[:, 0] = np.repeat((0, 1000), (16, 4)), np.repeat((0, 1), (16, 4))
    return Q, K, V, dO


def _in_whole_numbers(Q, K, V, dO, *others):
    """The same in whole numbers, whose products and sums are exact in any order: then 0 is 0."""
    return *(np.round(2 * x) for x in (Q, K, V, dO)), *others


def _add_cases():
    rng = np.random.default_rng(13)

    def head(Nq, Nk, causal=False, d=BLOCK):
        lengths = Nq, Nk, Nk, Nq
        return *(rng.normal(size=(N, d)).astype(np.float32) for N in lengths), causal

    Q, K, V, dO, _ = head(1, 1)
    return [
        Case("a query of zeros, one key: dV = dO and dK = 0", (0 * Q, K, V, dO, False)),
        Case("one query, two keys", head(1, 2)),
        Case("a full tile, 16 × 16", head(16, 16)),
        Case("20 queries: a second tile must be added to the first", head(20, 3)),
        Case("20 keys: a tile that does not hold the whole row", head(3, 20)),
        Case("causal: keys that some queries do not see", head(6, 6, causal=True)),
        Case("causal, with queries that see no key: lse = −∞", head(20, 4, causal=True)),
        Case("a scale that is not 1/√d", (*head(5, 7), BLOCK, 0.7)),
        Case("a scale above 1", (*head(5, 7), BLOCK, 1.7)),
        Case("a wide head", head(3, 5, d=256)),
        Case("tiles of 32 × 32", (*head(40, 33, causal=True), 32)),
        Case("tiles of 16 × 64", (*head(40, 70, causal=True), 16, 0.5, 64)),
        Case("tiles of 64 × 16", (*head(70, 40, causal=True, d=32), 64, None, 16)),
        Case("causal: one query, one key", _in_whole_numbers(*head(1, 1, causal=True))),
        Case("three hundred queries, tiles of 128 × 128", (*head(300, 200, causal=True), 128)),
        Case(
            "a second tile of queries that gives the first tile of keys no weight", (*_no_weight(), False, BLOCK, 1.0)
        ),
        Case("two keys whose values cancel: delta = 0", (*_cancelled(), False)),
        Case("causal: a key with a much larger score that is not seen", (*_future(), True, BLOCK, 1.0)),
        *(
            Case(f"a window of {WINDOW} keys, Nq = {Nq}, Nk = {Nk}: first keys are not seen", head(Nq, Nk, "window"))
            for Nq, Nk in ((16, 16), (20, 37), (37, 20))
        ),
        Case("causal: two queries, of which one sees the one key", _in_whole_numbers(*head(2, 1, causal=True))),
        *sweep(
            _add_args, regimes=(*GENTLE[:4], *GENTLE[-2:], BELOW, ABOVE), sizes={}, usual={"Nq": 18, "Nk": 19, "d": 32}
        ),
    ]


products = Question(
    answer=7,
    because="dK/dV: S, dP, dV, dK. dQ: S, dP, dQ. Each kernel rebuilds P and needs dP for itself: 4 + 3.",
    hints=(
        "The one loop in numpy did five for a pair of tiles: S, dV, dP, dQ, dK. Which kernel needs which?",
        "dK needs dS, and dQ needs dS. What does dS need?",
        "dS needs P, so S, and dP. Both kernels do these two.",
    ),
    wrong=(
        (5, "That is one kernel that does it all. Neither of two kernels can read the other's registers."),
        (6, "S is done twice, yes. And dP, which dS needs too?"),
        (8, "dV needs P alone, and only the kernel with the keys outside computes it."),
        (10, "Each kernel leaves out what the other one owns."),
    ),
    rel=0,
    minutes=3,
)

passes = Question(
    answer=25,
    because="K and V 1 + 4 each: 10. Q 4 + 1. dO 4 + 1, and 1 more for delta, with O's 1. dQ, dK, dV written once: 3.",
    hints=(
        "Each kernel reads once what it holds, and 4 times what passes by it.",
        "Keys outside: K, V once, Q, dO 4 times. Queries outside: Q, dO once, K, V 4 times. And the small kernel?",
        "10 and 10 for the two large kernels; O and dO for delta; and each gradient is written once.",
    ),
    wrong=(
        (20, "That was the one loop in numpy, whose dQ travelled. Here two kernels read."),
        (23, "Add the small kernel: delta needs O and dO."),
        (22, "And the gradients have to be written: three, once each."),
        (24, "delta needs two tensors, O and dO."),
    ),
    rel=0,
    minutes=4,
)

unharmed = Question(
    answer="dV",
    because="dV = Pᵀ dO has no dS in it. dQ and dK are dS times something.",
    hints=(
        "Where does delta enter?",
        "delta enters dS only: dS = P ∘ (dP − delta).",
        "dQ = scale · dS K, dK = scale · dSᵀ Q, dV = Pᵀ dO.",
    ),
    wrong=(
        ("dQ", "dQ is dS times K, and delta is in dS."),
        ("dK", "dK is dSᵀ times Q, and delta is in dS."),
    ),
    minutes=1,
)

delta = Exercise(
    reference=delta_of_rows,
    launch=_launch_delta,
    exact=_exact_delta,
    cases=_delta_cases,
    laws=(_stored_once,),
    once=(proportional(_delta_of, "dO"),),
    level=2,
    minutes=10,
    hints=(
        "The first kernel's pattern in two dimensions: which rows are yours, which of them and of the columns exist?",
        "The element in row r and column c is r * dv + c elements after the first: rows[:, None] * dv + "
        "columns[None, :].",
        "Load O and dO there with other=0 and mask (rows < N)[:, None] & (columns < dv)[None, :], take them "
        ".to(tl.float32); store tl.sum(dO_i * O_i, 1) to delta + rows where rows < N.",
    ),
    mistakes=(
        Mistake("summed over the queries: sum over the head dimension, axis 1.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum(dO_i * O_i, 0)"),
        Mistake("every program took the first rows: add program_id * Br.", "tl.program_id(0) * Br + ", ""),
        Mistake("columns past the row's end were counted, the next row's: mask columns < dv.",
                " & (columns < dv)[None, :]", ""),
        Mistake("rows lie dv elements apart, not width.", "rows[:, None] * dv", "rows[:, None] * width"),
        Mistake("the store is not masked: the last program writes past the end.", ", mask=rows < N)", ")"),
        Mistake("the last row was masked out: rows < N are inside.", "mask=rows < N)", "mask=rows < N - 1)"),
        Mistake("the last column was masked out: columns < dv are inside.", "columns < dv", "columns < dv - 1"),
        Mistake("nothing was stored: only tl.store writes where delta points.",
                "tl.store(delta + rows, tl.sum(dO_i * O_i, 1), mask=rows < N)", "tl.sum(dO_i * O_i, 1)"),
        Mistake("O was multiplied with itself: delta is rowsum(dO ∘ O).", "dO_i * O_i", "O_i * O_i"),
        Mistake(
            "a masked load without other= reads anything at all, on a GPU: say what stands there.",
            "O_i = tl.load(O + at, mask=inside, other=0).to",
            "O_i = tl.load(O + at, mask=inside).to",
        ),
        Mistake(
            "the product was rounded to float16: take both .to(tl.float32) first.",
            "dO_i * O_i",
            "dO_i.to(O.dtype.element_ty) * O_i.to(O.dtype.element_ty)",
        ),
        Mistake('that is the sum of dO alone: multiply with O first.', 'dO_i * O_i', 'dO_i'),
        Mistake('that is the mean: delta is the sum.', 'tl.sum(dO_i * O_i, 1)', 'tl.sum(dO_i * O_i, 1) / dv'),
        Mistake("columns from 64 on were left out: a head may be wider.",
                "(columns < dv)[None, :]", "(columns < tl.minimum(dv, 64))[None, :]"),
        Mistake("the sum was taken in float16: it needs float32.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum((dO_i * O_i).to(tl.float16), 1).to(tl.float32)"),
        Mistake("the product was rounded to float16: take both .to(tl.float32) first.",
                "tl.sum(dO_i * O_i, 1)", "tl.sum((dO_i.to(O.dtype.element_ty) * O_i.to(O.dtype.element_ty))"
                ".to(tl.float32), 1)"),
    ),
)  # fmt: skip

add_rows = Exercise(
    reference=add_tile,
    launch=key_value_gradients,
    exact=_exact_gradients,
    cases=_add_cases,
    once=(
        nothing_clipped(_weights_in_dV),
        _unmoved(_weights_of_keys, (2, 1)),
        proportional(_dK_and_dV_of, "dO and delta"),
    ),
    sways=True,
    level=3,
    minutes=25,
    hints=(
        "The lines of recomputation.gradients for one tile, without dQ: rebuild P_ij, then dV_j, dP_ij, dS_ij, dK_j. "
        "The products are tl.dot, and X.T is the transpose.",
        "S_ij = scale * tl.dot(Q_i, K_j.T); P_ij is exp(S_ij - lse_i[:, None]), and 0 where not seen: "
        "tl.where(seen, ..., 0).",
        "Add tl.dot(P_ij.T, dO_i) to dV_j and scale * tl.dot(dS_ij.T, Q_i) to dK_j, with "
        "dS_ij = P_ij * (tl.dot(dO_i, V_j.T) - delta_i[:, None]). Return dK_j, dV_j.",
    ),
    mistakes=(
        Mistake("delta is missing: raising one weight of a row lowers the others.",
                "(dP_ij - delta_i[:, None])", "dP_ij"),
        Mistake("the row sum was taken over this tile only: delta stands for the whole row.",
                "delta_i[:, None]", "tl.sum(P_ij * dP_ij, 1)[:, None]"),
        Mistake("lse_i stands for queries, which are the rows of the tile: lse_i[:, None].",
                "lse_i[:, None]", "lse_i[None, :]"),
        Mistake("delta_i stands for queries, which are the rows of the tile: delta_i[:, None].",
                "delta_i[:, None]", "delta_i[None, :]"),
        Mistake("delta was added: subtract it.", "dP_ij - delta_i", "dP_ij + delta_i"),
        Mistake("dS must be multiplied with P: softmax's gradient is P ∘ (dP − delta).",
                "P_ij * (dP_ij - delta_i[:, None])", "dP_ij - delta_i[:, None]"),
        Mistake("2^x where e^x is due: lse_i is in natural logarithms here.", "tl.exp(", "tl.exp2("),
        Mistake("dK is not scaled: S = scale · Q Kᵀ, so every gradient through S takes the scale again.",
                "scale * tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, Q_i)"),
        Mistake("the scores were not scaled: lse belongs to scale · Q Kᵀ.",
                "scale * tl.dot(Q_i, K_j.T)", "tl.dot(Q_i, K_j.T)"),
        Mistake("dV was scaled: the scale belongs to the scores, V never met it.",
                "tl.dot(P_ij.T, dO_i)", "scale * tl.dot(P_ij.T, dO_i)"),
        Mistake("dK and dV were swapped.", "return dK_j, dV_j", "return dV_j, dK_j"),
        Mistake("dK is dSᵀ times Q, not dO.", "tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, dO_i)"),
        Mistake("dK is dSᵀ times Q, not K.", "tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij.T, K_j)"),
        Mistake("dV is Pᵀ times dO, not Q.", "tl.dot(P_ij.T, dO_i)", "tl.dot(P_ij.T, Q_i)"),
        Mistake("dP is dO times Vᵀ, not Q.", "tl.dot(dO_i, V_j.T)", "tl.dot(Q_i, V_j.T)"),
        Mistake("dP is dO times Vᵀ, not Kᵀ.", "tl.dot(dO_i, V_j.T)", "tl.dot(dO_i, K_j.T)"),
        Mistake("the tile's own maximum was subtracted: P_ij = exp(S_ij − lse_i) needs no maximum, and no division.",
                "lse_i[:, None]", "tl.max(S_ij, 1)[:, None]"),
        Mistake("dV took P instead of Pᵀ: it has a row for each key.",
                "tl.dot(P_ij.T, dO_i)", "tl.dot(P_ij, dO_i)"),
        Mistake("dK took dS instead of dSᵀ: it has a row for each key.",
                "tl.dot(dS_ij.T, Q_i)", "tl.dot(dS_ij, Q_i)"),
        Mistake("this tile was normalised by itself: the row goes on in other tiles, and only lse knows all of it.",
                "tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)",
                "tl.softmax(tl.where(seen, S_ij, -1e30), 1)"),
        Mistake("the mask was forgotten: what was not seen on the way forward has no weight on the way back.",
                "tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)", "tl.exp(S_ij - lse_i[:, None])"),
        Mistake("a row that sees no key has lse = −∞, and ∞ · 0 and −∞ + ∞ are NaN: mask last, P itself, by tl.where.",
                "tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)", "seen * tl.exp(S_ij - lse_i[:, None])"),
        Mistake("dV keeps only the last tile of queries: add to what came in.", "dV_j += ", "dV_j = "),
        Mistake("dK keeps only the last tile of queries: add to what came in.", "dK_j += ", "dK_j = "),
        Mistake("dK and dV keep only the last tile of queries: add to what came in.",
                "dK_j += ", "dK_j = ", of=edited(add_tile, "dV_j += ", "dV_j = ")),
        Mistake(
            "the scale was applied twice: dK takes it once.",
            "P_ij * (dP_ij - delta_i[:, None])",
            "scale * P_ij * (dP_ij - delta_i[:, None])",
        ),
        Mistake("the sum so far was scaled again: scale what is added.",
                "dK_j += scale * tl.dot(dS_ij.T, Q_i)", "dK_j = scale * (dK_j + tl.dot(dS_ij.T, Q_i))"),
        Mistake('V_j was not transposed: dP_ij = dO_i V_jᵀ.', 'V_j.T', 'V_j'),
        Mistake("1/√d was used for the scale: take the argument scale.",
                "    S_ij = scale * ", "    scale = 1 / tl.sqrt(1.0 * Q_i.shape[1])\n    S_ij = scale * "),
        Mistake("tl.dot multiplies tiles: @ is for numpy and torch.", "tl.dot(Q_i, K_j.T)", "(Q_i @ K_j.T)"),
        Mistake(
            "dV was taken from dS: V was multiplied with P.",
            "    dP_ij = tl.dot(dO_i, V_j.T)",
            "    dV_j += tl.dot((P_ij * (tl.dot(dO_i, V_j.T) - delta_i[:, None])).T, dO_i) - tl.dot(P_ij.T, "
            "dO_i)\n    dP_ij = tl.dot(dO_i, V_j.T)",
        ),
        Mistake(
            "P (1 − P) is a weight's slope by its own score: raising a score lowers all others. dS = P ∘ (dP − "
            "delta).",
            "P_ij * (dP_ij - delta_i[:, None])",
            "P_ij * (1 - P_ij) * dP_ij",
        ),
        Mistake(
            "delta is subtracted from dP before P is multiplied with it: dS = P ∘ (dP − delta).",
            "P_ij * (dP_ij - delta_i[:, None])",
            "P_ij * dP_ij - delta_i[:, None]",
        ),
    ),
)  # fmt: skip


# The kernel that owns dQ


@triton.jit
def query_gradients_one_head(
    Q, K, V, dO, lse, delta, dQ, Nq, Nk, scale,
    d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    i, columns = tl.program_id(0), tl.arange(0, d)
    rows = i * Br + tl.arange(0, Br)  # [Br]
    at, exist = rows[:, None] * d + columns, (rows < Nq)[:, None]  # [Br, d], [Br, 1]
    Q_i = tl.load(Q + at, mask=exist, other=0)  # [Br, d]
    dO_i = tl.load(dO + at, mask=exist, other=0)  # [Br, d]
    lse_i = tl.load(lse + rows, mask=rows < Nq, other=0)  # [Br]
    delta_i = tl.load(delta + rows, mask=rows < Nq, other=0)  # [Br]
    dQ_i = tl.zeros([Br, d], tl.float32)  # [Br, d]
    end = tl.minimum((i + 1) * Br + Nk - Nq, Nk) if causal else Nk
    for start in range(0, end, Bc):
        keys = start + tl.arange(0, Bc)  # [Bc]
        K_j = tl.load(K + keys[:, None] * d + columns, mask=(keys < Nk)[:, None], other=0)  # [Bc, d]
        V_j = tl.load(V + keys[:, None] * d + columns, mask=(keys < Nk)[:, None], other=0)  # [Bc, d]
        seen = (keys < Nk)[None, :]  # [1, Bc]
        if causal:
            seen = seen & (keys[None, :] <= rows[:, None] + Nk - Nq)  # [Br, Bc]
        S_ij = scale * tl.dot(Q_i, K_j.T)  # [Br, Bc]
        P_ij = tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)  # [Br, Bc]
        dP_ij = tl.dot(dO_i, V_j.T)  # [Br, Bc]
        dS_ij = P_ij * (dP_ij - delta_i[:, None])  # [Br, Bc]
        dQ_i += tl.dot(dS_ij, K_j)  # [Br, d]
    tl.store(dQ + at, scale * dQ_i, mask=exist)


def query_gradients(kernel, Q, K, V, dO, causal=False, Br=BLOCK, Bc=BLOCK, scale=None):
    """Return dQ [Nq, d] of one head, from a kernel of the capstone's parameters.

    Q, dO [Nq, d]; K, V [Nk, d]: float32 arrays, d a power of two; scale: 1/√d if None.
    """
    mask, scale = masks.causal() if causal else None, scale or Q.shape[1] ** -0.5
    O, lse = attention.attention(Q, K, V, mask=mask, scale=scale, return_lse=True)  # [Nq, d], [Nq]
    on_device = [torch.tensor(x, device=DEVICE) for x in (Q, K, V, dO, lse, recomputation.delta(dO, O))]
    Nq, d = Q.shape
    dQ, result = inside_margins(1, Nq * d)  # rows side by side
    launched(kernel, (triton.cdiv(Nq, Br),), *on_device, dQ, Nq, len(K), scale, d, Br, Bc, causal)
    return result().reshape(Nq, d)


def _exact_dQ(Q, K, V, dO, causal, Br=BLOCK, Bc=BLOCK, scale=None):
    return attention.attention_backward(Q, K, V, dO, mask=masks.causal() if causal else None, scale=scale)[0]


def _enough(Q, K, V, dO, causal, Br=BLOCK, Bc=BLOCK, scale=None):
    """The bytes that the kernel need load: what belongs to the queries once, K and V once for each program."""
    (Nq, d), mask = Q.shape, masks.causal() if causal else None
    bill = tiling.fa2_traffic(Nq, len(K), d, Br, Bc, mask=mask)
    of_rows = dO.nbytes + 2 * Nq * dO.itemsize  # dO; lse and delta
    return of_rows + sum(size for (kind, _), size in bill.items() if kind == "load")


def _query_cases():
    rng = np.random.default_rng(14)

    def head(Nq, Nk, causal=False, *tile, d=BLOCK):
        lengths = Nq, Nk, Nk, Nq
        return *(rng.normal(size=(N, d)).astype(np.float32) for N in lengths), causal, *tile

    return [
        Case("one query, two keys", head(1, 2)),
        Case("a full tile, 16 × 16", head(16, 16)),
        Case("20 keys: a second tile must be added to the first", head(3, 20)),
        Case("20 queries: two programs", head(20, 3)),
        Case("causal: keys that some queries do not see", head(6, 6, True)),
        Case("causal, more keys than queries: the last query sees the last key", head(5, 20, True)),
        Case("causal, with queries that see no key: lse = −∞", head(20, 12, True)),
        Case("causal, with a tile of queries that see no key", head(40, 12, True)),
        Case("tiles taller than wide, d = 64", head(40, 50, True, 32, 16, d=64)),
        Case("tiles wider than tall, d = 64", head(50, 40, False, 16, 32, d=64)),
        Case("causal, tiles wider than tall", head(33, 65, True, 16, 64, d=32)),
        Case("a scale that is not 1/√d", (*head(5, 7), BLOCK, BLOCK, 0.7)),
        Case("a scale above 1", (*head(5, 7), BLOCK, BLOCK, 1.7)),
        Case("a wide head", head(3, 17, d=256)),
        Case("many tiles of keys", head(3, 200)),
        Case("causal: two queries, of which one sees the one key", _in_whole_numbers(*head(2, 1, True))),
        Case("many tiles of queries", head(200, 3)),
        Case("three hundred queries and keys, tiles of 128 × 128, causal", head(300, 310, True, 128, 128)),
        Case("one key: dQ = 0", _in_whole_numbers(*head(2, 1))),
        Case("causal: one query, one key", _in_whole_numbers(*head(1, 1, True))),
        Case("no keys at all: dQ = 0", head(3, 0)),
        Case(
            "a second tile of keys without any weight",
            (*(x[::step] for x, step in zip(_no_weight(), (1, -1, -1, 1), strict=True)), False, BLOCK, BLOCK, 1.0),
        ),
        Case("two keys whose values cancel: delta = 0", (*_cancelled(), False)),
        Case("causal: a key with a much larger score that is not seen", (*_future(), True, BLOCK, BLOCK, 1.0)),
        *(Case(f"Nq = {Nq}, Nk = {Nk}, causal", head(Nq, Nk, True)) for Nq, Nk in remainders(BLOCK)),
        *sweep(_add_args, regimes=GENTLE, sizes={}, usual={"Nq": 3, "Nk": 19, "d": 16}),
    ]


_with_end_clamped = edited(query_gradients_one_head, "(i + 1) * Br + Nk - Nq", "(i + 1) * Br + tl.maximum(Nk - Nq, 0)")

dQ = Exercise(
    reference=query_gradients_one_head,
    launch=query_gradients,
    exact=_exact_dQ,
    cases=_query_cases,
    laws=(loads_at_most(query_gradients, _enough, "What belongs to the queries is", lambda Q, *others: Q.nbytes),),
    once=(
        nothing_clipped(_weights_in_dQ),
        _unmoved(_weights_of_queries, (1, 2)),
        proportional(_dQ_of, "dO and delta"),
    ),
    sways=True,
    level=3,
    minutes=45,
    hints=(
        "It is the forward capstone's loop: one program per tile of queries, a loop over the tiles of keys. What is "
        "loaded before the loop, what in it, and which sum stays in registers?",
        "Before the loop: Q_i, dO_i [Br, d], lse_i, delta_i [Br]. In it: K_j, V_j, then S_ij, P_ij from lse_i, dP_ij "
        "from dO_i and V_j, and dS_ij from both. Causal: the loop ends at min(Nk, (i + 1) * Br + Nk - Nq).",
        "P_ij = tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0); dP_ij = tl.dot(dO_i, V_j.T); "
        "dS_ij = P_ij * (dP_ij - delta_i[:, None]); dQ_i += tl.dot(dS_ij, K_j). Store scale * dQ_i after the loop.",
    ),
    mistakes=(
        Mistake("delta is missing: raising one weight of a row lowers the others.",
                "(dP_ij - delta_i[:, None])", "dP_ij"),
        Mistake("delta was added: subtract it.", "dP_ij - delta_i", "dP_ij + delta_i"),
        Mistake("the row sum was taken over this tile only: delta stands for the whole row.",
                "delta_i[:, None]", "tl.sum(P_ij * dP_ij, 1)[:, None]"),
        Mistake("dS must be multiplied with P: softmax's gradient is P ∘ (dP − delta).",
                "P_ij * (dP_ij - delta_i[:, None])", "dP_ij - delta_i[:, None]"),
        Mistake("dQ is not scaled: S = scale · Q Kᵀ, so dQ = scale · dS K.", "scale * dQ_i", "dQ_i"),
        Mistake("the scores were not scaled: lse belongs to scale · Q Kᵀ.",
                "scale * tl.dot(Q_i, K_j.T)", "tl.dot(Q_i, K_j.T)"),
        Mistake("2^x instead of e^x: lse_i is in natural logarithms here.", "tl.exp(", "tl.exp2("),
        Mistake("dQ is dS times K, not V.", "tl.dot(dS_ij, K_j)", "tl.dot(dS_ij, V_j)"),
        Mistake("dP is dO times Vᵀ, not Q.", "tl.dot(dO_i, V_j.T)", "tl.dot(Q_i, V_j.T)"),
        Mistake("dP is dO times Vᵀ, not Kᵀ.", "tl.dot(dO_i, V_j.T)", "tl.dot(dO_i, K_j.T)"),
        Mistake("the tile's own maximum was subtracted: P_ij = exp(S_ij − lse_i) needs no maximum, and no division.",
                "lse_i[:, None]", "tl.max(S_ij, 1)[:, None]"),
        Mistake("rows that see no key were not stored: their dQ is 0, and only tl.store writes it.",
                "scale * dQ_i, mask=exist)", 'scale * dQ_i, mask=exist & (lse_i > -float("inf"))[:, None])'),
        Mistake("only the last tile of keys was kept: add to dQ_i.", "dQ_i += ", "dQ_i = "),
        Mistake("every turn of the loop took the first tile of keys.",
                "start + tl.arange(0, Bc)", "tl.arange(0, Bc)"),
        Mistake("every program took the first tile of queries.", "i * Br + tl.arange", "tl.arange"),
        Mistake("the last tile of keys, which is not full, was dropped.",
                "range(0, end, Bc)", "range(0, end // Bc * Bc, Bc)"),
        Mistake("the loop's step is Br: the tiles of keys have Bc rows.", "range(0, end, Bc)", "range(0, end, Br)"),
        Mistake("the mask was forgotten: what was not seen on the way forward has no weight on the way back.",
                "tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)", "tl.exp(S_ij - lse_i[:, None])"),
        Mistake("a row that sees no key has lse = −∞, and ∞ · 0 is NaN: mask last, P itself, by tl.where.",
                "tl.where(seen, tl.exp(S_ij - lse_i[:, None]), 0)", "seen * tl.exp(S_ij - lse_i[:, None])"),
        Mistake("aligned at the upper left: query i sees the keys j ≤ i + Nk − Nq.",
                "rows[:, None] + Nk - Nq", "rows[:, None]"),
        Mistake("the mask is off by one: a query sees its own key too.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + Nk - Nq - 1"),
        Mistake("the loop ended too early: tile i sees up to (i + 1) * Br + Nk − Nq keys.",
                "(i + 1) * Br + Nk - Nq", "(i + 1) * Br"),
        Mistake("the store is not masked: the last program writes past the end.",
                "scale * dQ_i, mask=exist)", "scale * dQ_i)"),
        Mistake("a load is not masked: the last program reads past the end.",
                "lse_i = tl.load(lse + rows, mask=rows < Nq, other=0)", "lse_i = tl.load(lse + rows)"),
        Mistake("keys past the end were not masked: where lse is far below 0, e^(0 − lse) overflows, and ∞ · 0 is NaN.",
                "seen = (keys < Nk)[None, :]", "seen = (keys >= 0)[None, :]"),
        Mistake("Bc stands where Br belongs: tile i of the queries has Br rows.",
                "(i + 1) * Br + Nk", "(i + 1) * Bc + Nk"),
        Mistake("Bc stands where Br belongs: tile i of the queries begins at row i * Br.",
                "rows = i * Br", "rows = i * Bc"),
        Mistake("1/√d was used for the scale: take the argument scale.",
                "    i, columns = ", "    scale = 1 / tl.sqrt(1.0 * d)\n    i, columns = "),
        Mistake("tl.dot multiplies tiles: @ is for numpy and torch.", "tl.dot(Q_i, K_j.T)", "(Q_i @ K_j.T)"),
        Mistake("the sum so far was scaled again in each tile: scale it once, after the loop.",
                "dQ_i += tl.dot(dS_ij, K_j)  # [Br, d]\n    tl.store(dQ + at, scale * dQ_i",
                "dQ_i = scale * (dQ_i + tl.dot(dS_ij, K_j))\n    tl.store(dQ + at, dQ_i"),
        Mistake("the scale was applied twice: dQ takes it once.", "dS_ij = P_ij * ", "dS_ij = scale * P_ij * "),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)"),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)", of=_with_end_clamped),
        *(
            Mistake("a masked load without other= reads anything at all, on a GPU: say what stands there.",
                    f"{X}_j = tl.load({X} + keys[:, None] * d + columns, mask=(keys < Nk)[:, None], other=0)",
                    f"{X}_j = tl.load({X} + keys[:, None] * d + columns, mask=(keys < Nk)[:, None])")
            for X in "KV"
        ),
        Mistake("dS was rounded to half precision: all is float32 here.",
                "tl.dot(dS_ij, K_j)", "tl.dot(dS_ij.to(tl.float16), K_j.to(tl.float16)).to(tl.float32)"),
    ),
)  # fmt: skip
