"""triton_forward: right kernels pass however they are written; ``measure`` of the capstone counts the right bytes."""

import numpy as np
import pytest

from flashlab.course.check import check, edited
from flashlab.course.exercises import triton_forward
from flashlab.course.exercises.triton_forward.loop_bounds import kinds_of_tiles
from flashlab.kernels import INTERPRETED, tl, triton
from tests.course.exercises import right

# bounds


@triton.jit
def bounds_by_rows(i, Nq, Nk, Br: tl.constexpr, Bc: tl.constexpr):
    first = i * Br
    last = tl.minimum(first + Br, Nq) - 1
    sees_least, sees_most = first + Nk - Nq + 1, last + Nk - Nq + 1
    if sees_least < Bc:
        unmasked = 0
    else:
        unmasked = sees_least - sees_least % Bc
    return unmasked, sees_most


@triton.jit
def bounds_in_tiles(i, Nq, Nk, Br: tl.constexpr, Bc: tl.constexpr):
    shift = Nk - Nq
    whole = tl.maximum(i * Br + shift + 1, 0) // Bc
    return whole * Bc, tl.maximum(tl.minimum((i + 1) * Br + shift, Nk), 0)


@triton.jit
def bounds_from_the_end(i, Nq, Nk, Br: tl.constexpr, Bc: tl.constexpr):
    future = Nq - i * Br  # queries from the tile's first one on
    unmasked = tl.maximum(Nk - future + 1, 0)
    return unmasked // Bc * Bc, Nk - tl.maximum(future - Br, 0)


# update


@triton.jit
def update_in_natural_units(m_i, l_i, O_i, S_ij, V_j, scale_log2):
    LN2: tl.constexpr = 0.6931471805599453
    S = S_ij * (scale_log2 * LN2)
    m = tl.maximum(m_i * LN2, tl.max(S, 1))
    shift = tl.maximum(m, -1e30)
    alpha, P = tl.exp(m_i * LN2 - shift), tl.exp(S - shift[:, None])
    return m / LN2, alpha * l_i + tl.sum(P, 1), alpha[:, None] * O_i + tl.dot(P.to(V_j.dtype), V_j)


@triton.jit
def update_scaled_first(m_i, l_i, O_i, S_ij, V_j, scale_log2):
    S_ij = S_ij * scale_log2
    m_new = tl.maximum(tl.max(S_ij, 1), m_i)
    m_safe = tl.where(m_new > -float("inf"), m_new, 0.0)
    P_ij = tl.exp2(S_ij - m_safe[:, None])
    alpha = tl.exp2(m_i - m_safe)
    O_i *= alpha[:, None]
    O_i += tl.dot(P_ij.to(tl.float16), V_j)
    return m_new, l_i * alpha + tl.sum(P_ij, axis=1), O_i


@triton.jit
def update_values_transposed(m_i, l_i, O_i, S_ij, V_j, scale_log2):
    S = (S_ij * scale_log2).T  # [Bc, Br]
    m = tl.maximum(tl.max(S, 0), m_i)
    m_safe = tl.where(m == -float("inf"), 0.0, m)
    P = tl.exp2(S - m_safe[None, :])
    alpha = tl.exp2(m_i - m_safe)
    O = tl.dot(V_j.T, P.to(V_j.dtype), O_i.T * alpha[None, :])
    return m, l_i * alpha + tl.sum(P, 0), O.T


# forward

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def forward_in_base_2(Q, K, V, O, lse, Nq, Nk, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr,
                      causal: tl.constexpr):  # fmt: skip
    i = tl.program_id(0)
    r, c, k = i * Br + tl.arange(0, Br), tl.arange(0, d), tl.arange(0, Bc)
    at = r[:, None] * d + c[None, :]
    q = tl.load(Q + at, mask=r[:, None] < Nq, other=0.0)
    last = r + Nk - Nq if causal else r * 0 + Nk - 1
    m, l, acc = tl.full([Br], -float("inf"), tl.float32), tl.zeros([Br], tl.float32), tl.zeros([Br, d], tl.float32)
    scale *= LOG2_E
    seen_by_last = tl.minimum((i + 1) * Br + Nk - Nq, Nk) if causal else Nk
    for j in range(tl.cdiv(tl.maximum(seen_by_last, 0), Bc)):
        keys = j * Bc + k
        there = (keys < Nk)[:, None]
        s = tl.dot(q, tl.trans(tl.load(K + keys[:, None] * d + c[None, :], mask=there, other=0.0)))
        s = tl.where((keys[None, :] <= last[:, None]) & (keys < Nk)[None, :], s * scale, -float("inf"))
        m, before = tl.maximum(m, tl.max(s, 1)), m
        shift = tl.where(m == -float("inf"), 0.0, m)
        p, alpha = tl.exp2(s - shift[:, None]), tl.exp2(before - shift)
        l = l * alpha + tl.sum(p, 1)
        v = tl.load(V + keys[:, None] * d + c[None, :], mask=there, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(tl.float16), v)
    seen = l > 0
    tl.store(O + at, tl.where(seen[:, None], acc / l[:, None], 0.0), mask=r[:, None] < Nq)
    tl.store(lse + r, tl.where(seen, (m + tl.log2(l)) * 0.6931471805599453, -float("inf")), mask=r < Nq)


@triton.jit
def forward_in_two_loops(Q, K, V, O, lse, Nq, Nk, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr,
                         causal: tl.constexpr):  # fmt: skip
    """Calls other kernels, and keeps the maximum finite instead of guarding it."""
    start = tl.program_id(0) * Br
    rows = start + tl.arange(0, Br)
    Q_i = load_rows(Q, rows, Nq, d)
    m_i, l_i, O_i = tl.full([Br], -1e30, tl.float32), tl.zeros([Br], tl.float32), tl.zeros([Br, d], tl.float32)
    if causal:
        unmasked, seen = bounds_by_rows(tl.program_id(0), Nq, Nk, Br, Bc)
    else:
        unmasked, seen = Nk // Bc * Bc, Nk
    for j in range(0, unmasked, Bc):
        keys = j + tl.arange(0, Bc)
        S_ij = tl.dot(Q_i, load_rows(K, keys, Nk, d).T) * scale
        m_i, l_i, O_i = take_in(m_i, l_i, O_i, S_ij, load_rows(V, keys, Nk, d))
    for j in range(unmasked, seen, Bc):
        keys = j + tl.arange(0, Bc)
        S_ij = tl.dot(Q_i, load_rows(K, keys, Nk, d).T) * scale
        sees = keys[None, :] < Nk
        if causal:
            sees = sees & (keys[None, :] - rows[:, None] <= Nk - Nq)
        S_ij = tl.where(sees, S_ij, -float("inf"))
        m_i, l_i, O_i = take_in(m_i, l_i, O_i, S_ij, load_rows(V, keys, Nk, d))
    empty = l_i == 0
    O_i = O_i / tl.where(empty, 1.0, l_i)[:, None]
    tl.store(O + rows[:, None] * d + tl.arange(0, d)[None, :], O_i, mask=(rows < Nq)[:, None])
    tl.store(lse + rows, tl.where(empty, -float("inf"), m_i + tl.log(l_i)), mask=rows < Nq)


@triton.jit
def load_rows(X, rows, N, d: tl.constexpr):
    return tl.load(X + rows[:, None] * d + tl.arange(0, d)[None, :], mask=(rows < N)[:, None], other=0.0)


@triton.jit
def take_in(m_i, l_i, O_i, S_ij, V_j):
    m = tl.maximum(m_i, tl.max(S_ij, 1))
    alpha, P = tl.exp(m_i - m), tl.exp(S_ij - m[:, None])
    return m, alpha * l_i + tl.sum(P, 1), alpha[:, None] * O_i + tl.dot(P.to(V_j.dtype), V_j)


@triton.jit
def forward_reading_k_twice(Q, K, V, O, lse, Nq, Nk, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr,
                            causal: tl.constexpr):  # fmt: skip
    """First the maximum and the sum of each row, then the output: right, if not cheap. Keys are visited backwards."""
    rows = tl.program_id(0) * Br + tl.arange(0, Br)
    last = rows + Nk - Nq if causal else tl.full([Br], Nk - 1, tl.int32)
    Q_i = load_rows(Q, rows, Nq, d)
    m, l, O_i = tl.full([Br], -float("inf"), tl.float32), tl.zeros([Br], tl.float32), tl.zeros([Br, d], tl.float32)
    for j in range(tl.cdiv(Nk, Bc)):
        keys = j * Bc + tl.arange(0, Bc)
        S = tl.dot(Q_i, load_rows(K, keys, Nk, d).T) * scale
        S = tl.where((keys[None, :] <= last[:, None]) & (keys[None, :] < Nk), S, -float("inf"))
        m = tl.maximum(m, tl.max(S, 1))
    m_safe = tl.where(m == -float("inf"), 0.0, m)
    for back in range(tl.cdiv(Nk, Bc)):
        keys = (tl.cdiv(Nk, Bc) - 1 - back) * Bc + tl.arange(0, Bc)
        S = tl.dot(Q_i, load_rows(K, keys, Nk, d).T) * scale
        P = tl.where((keys[None, :] <= last[:, None]) & (keys[None, :] < Nk), tl.exp(S - m_safe[:, None]), 0.0)
        l += tl.sum(P, 1)
        O_i += tl.dot(P.to(tl.float16), load_rows(V, keys, Nk, d))
    O_i /= tl.where(l == 0, 1.0, l)[:, None]
    tl.store(O + rows[:, None] * d + tl.arange(0, d)[None, :], O_i, mask=(rows < Nq)[:, None])
    tl.store(lse + rows, tl.where(l == 0, -float("inf"), m_safe + tl.log(l)), mask=rows < Nq)


# heads


@triton.jit
def heads_by_division(h, b, H, Hk, Nq, Nk, d):
    shared, b = H // Hk, b.to(tl.int64)
    return (b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)


RIGHT = {
    "triton_forward.bounds": [bounds_by_rows, bounds_in_tiles, bounds_from_the_end],
    "triton_forward.update": [update_in_natural_units, update_scaled_first, update_values_transposed],
    "triton_forward.forward": [forward_in_base_2, forward_in_two_loops],
    "triton_forward.heads": [heads_by_division],
}

test_right_answers_pass = pytest.mark.exhaustive(right.all_pass(RIGHT))


@triton.jit
def stub(*args):
    raise NotImplementedError


def test_kinds_of_tiles_by_hand():
    kinds = kinds_of_tiles(4, 6, 2, 2)  # query i sees keys up to i + 2
    assert np.array_equal(kinds, [[1, 2, 0], [1, 1, 2]])


@pytest.mark.skipif(not INTERPRETED, reason="a GPU counts nothing")
@pytest.mark.exhaustive
def test_for_a_kernel_that_reads_keys_twice_the_check_names_the_bytes(capsys):
    check("triton_forward.forward", forward_reading_k_twice)
    assert "it loaded 3,008 bytes where 2,016 will do. Q_i is loaded once" in capsys.readouterr().out


def test_measure_counts_what_the_closed_form_says(capsys):
    triton_forward.measure(forward_in_two_loops)
    full, verdict, causal, *_ = capsys.readouterr().out.splitlines()
    assert full == "full: 624,640 B moved; tiling's closed form: 624,640 B" and verdict == "  ✓ not a byte too many"
    assert causal == "causal: 395,264 B moved; tiling's closed form: 395,264 B"


def test_measure_knows_the_numbers_that_a_kernel_uses(capsys):
    triton_forward.measure(forward_in_base_2)
    assert capsys.readouterr().out.startswith("full: 624,640 B moved; tiling's closed form: 624,640 B")


def test_measure_shows_what_was_read_twice(capsys):
    triton_forward.measure(forward_reading_k_twice)
    full, verdict, _, causal, *_ = capsys.readouterr().out.splitlines()
    assert full == "full: 886,784 B moved; tiling's closed form: 624,640 B"
    assert verdict.startswith("  ✗ K is loaded 2.0 times as often as needed") and causal.startswith("  ✗")


def test_measure_shows_tiles_that_no_query_sees(capsys):
    bound = "tl.minimum((i + 1) * Br + Nk - Nq, Nk) if causal else Nk"
    triton_forward.measure(edited(triton_forward.attention_one_head, bound, "Nk"))
    _, full, _, causal, *_ = capsys.readouterr().out.splitlines()
    assert full == "  ✓ not a byte too many" and causal.startswith("  ✗ K is loaded 1.8 times as often as needed")


def test_measure_has_nothing_to_say_of_a_stub(capsys):
    triton_forward.measure(stub)
    assert capsys.readouterr().out == "○ nothing to measure yet\n"
