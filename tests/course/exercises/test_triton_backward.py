"""triton_backward: right attempts pass however they are written, and the loop of the exercise is exact."""

import numpy as np
import pytest

from flashlab.course import data
from flashlab.course.exercises import triton_backward
from flashlab.course.exercises.triton_backward.queries import query_gradients_one_head
from flashlab.course.registry import find
from flashlab.grading.exercise import edited
from flashlab.grading.verdict import first_failure
from flashlab.kernels import INTERPRETED, tl, triton
from flashlab.reference import masks, recomputation
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.rules import Rules
from tests.course.exercises import right
from tests.tools.bounds import assert_as_exact_as_plain


@triton.jit
def delta_row_by_row(O, dO, delta, N, dv, Br: tl.constexpr, width: tl.constexpr):
    start, columns = tl.program_id(0) * Br, tl.arange(0, width)
    for row in range(start, tl.minimum(start + Br, N)):
        at = row * dv + columns
        x = tl.load(O + at, columns < dv, 0).to(tl.float32) * tl.load(dO + at, columns < dv, 0)
        tl.store(delta + row, tl.sum(x, 0))


@triton.jit
def delta_column_by_column(O, dO, delta, N, dv, Br: tl.constexpr, width: tl.constexpr):
    rows = tl.program_id(0) * Br + tl.arange(0, Br)
    total = tl.zeros([Br], tl.float32)
    for column in range(dv):
        at = rows * dv + column
        total += tl.load(O + at, rows < N, 0) * tl.load(dO + at, rows < N, 0).to(tl.float32)
    tl.store(delta + rows, total, rows < N)


@triton.jit
def delta_masked_afterwards(O, dO, delta, N, dv, Br: tl.constexpr, width: tl.constexpr):
    rows = (tl.program_id(0) * Br + tl.arange(0, Br))[:, None]
    columns = tl.arange(0, width)[None, :]
    last = N * dv - 1
    at = tl.minimum(rows * dv + columns, last)
    x = tl.where((rows < N) & (columns < dv), tl.load(O + at).cast(tl.float32) * tl.load(dO + at), 0)
    tl.store(delta + rows, tl.sum(x, 1, keep_dims=True), rows < N)


@triton.jit
def add_transposed(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale):
    St = tl.dot(K_j, Q_i.T) * scale
    Pt = tl.where(seen.T, tl.exp(St - lse_i[None, :]), 0)
    dSt = Pt * (tl.dot(V_j, dO_i.T) - delta_i[None, :]) * scale
    return tl.dot(dSt, Q_i, dK_j), tl.dot(Pt, dO_i, dV_j)


@triton.jit
def add_in_base_2(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale):
    log2_e = 1.4426950408889634
    lse_log2 = tl.where(lse_i == -float("inf"), 0, lse_i * log2_e)
    S = tl.where(seen, tl.dot(Q_i * scale, tl.trans(K_j)) * log2_e, -float("inf"))
    P = tl.exp2(S - lse_log2[:, None])
    dP = tl.dot(dO_i, tl.trans(V_j))
    return dK_j + tl.dot(tl.trans(P * dP - P * delta_i[:, None]), Q_i * scale), dV_j + tl.dot(tl.trans(P), dO_i)


@triton.jit
def add_by_sums(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale):
    S = tl.sum(Q_i[:, None, :] * K_j[None, :, :], 2) * scale
    P = tl.exp(tl.where(seen, S - tl.where(seen, lse_i[:, None], 0), -float("inf")))
    dS = P * (tl.sum(dO_i[:, None, :] * V_j[None, :, :], 2) - delta_i[:, None])
    dK_j += tl.sum(dS[:, :, None] * Q_i[:, None, :], 0) * scale
    dV_j += tl.sum(P[:, :, None] * dO_i[:, None, :], 0)
    return dK_j, dV_j


dQ_of_scaled_keys = edited(
    edited(query_gradients_one_head, "scale * dQ_i", "dQ_i"),
    "S_ij = scale * tl.dot(Q_i, K_j.T)",
    "K_j = scale * K_j\n        S_ij = tl.dot(Q_i, K_j.T)",
)
dQ_of_scaled_queries = edited(query_gradients_one_head, "scale * tl.dot(Q_i, K_j.T)", "tl.dot(scale * Q_i, K_j.T)")

RIGHT = {
    "triton_backward.delta": [delta_row_by_row, delta_column_by_column, delta_masked_afterwards],
    "triton_backward.add_rows": [add_transposed, add_in_base_2, add_by_sums],
    "triton_backward.dQ": [dQ_of_scaled_keys, dQ_of_scaled_queries],
}

test_right_answers_pass = pytest.mark.exhaustive(right.all_pass(RIGHT))


@triton.jit
def delta_by_program_0(O, dO, delta, N, dv, Br: tl.constexpr, width: tl.constexpr):
    columns = tl.arange(0, width)
    for row in range(0, tl.where(tl.program_id(0) == 0, N, 0)):
        at = row * dv + columns
        x = tl.load(O + at, columns < dv, 0).to(tl.float32) * tl.load(dO + at, columns < dv, 0)
        tl.store(delta + row, tl.sum(x, 0))


@pytest.mark.skipif(not INTERPRETED, reason="a GPU counts nothing")
def test_programs_that_do_not_share_the_work_are_found():
    assert "do not share the work" in str(first_failure(find("triton_backward.delta"), delta_by_program_0))


@pytest.mark.skipif(not INTERPRETED, reason="a GPU multiplies float32 in TF32")
@pytest.mark.parametrize("causal", [False, True])
def test_the_loop_of_the_exercise_is_as_exact_as_recomputation(causal):
    Q, K, V = (x[:100] for x in data.captured("alice").head())
    dO = np.random.default_rng(0).normal(size=V.shape).astype(np.float32)
    ours = triton_backward.key_value_gradients(triton_backward.add_tile, Q, K, V, dO, causal, block=32)
    mask = masks.causal() if causal else None
    O, lse = attention(Q, K, V, mask=mask, return_lse=True)
    plain = recomputation.backward(Q, K, V, O, lse, dO, 32, 32, Rules(mask=mask))[1:]
    exact = attention_backward(*(x.astype(np.float64) for x in (Q, K, V, dO)), mask=mask)[1:]
    for three in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(*three)
