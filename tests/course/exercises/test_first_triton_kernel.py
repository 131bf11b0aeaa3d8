"""first_triton_kernel: right kernels pass however they are written."""

import pytest

from flashlab.course.check import check
from flashlab.course.registry import find
from flashlab.grading.verdict import first_failure
from flashlab.kernels import INTERPRETED, tl, triton
from tests.course.exercises import right


@triton.jit
def stub(x, y, z, N, Bc: tl.constexpr):
    raise NotImplementedError


@triton.jit
def add_with_pointers(x, y, z, N, Bc: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)
    a, b = tl.load(x + at, at < N, 0.0), tl.load(y + (N - 1 - at), at < N, 0.0)
    tl.store(z + at, a + b, at < N)


@triton.jit
def add_backwards(x, y, z, N, Bc: tl.constexpr):
    of_y = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)
    of_x = N - 1 - of_y
    tl.store(z + of_x, tl.load(y + of_y, mask=of_x >= 0) + tl.load(x + of_x, mask=of_x >= 0), mask=of_x >= 0)


@triton.jit
def add_one_by_one(x, y, z, N, Bc: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * Bc
    for at in range(start, tl.minimum(start + Bc, N)):
        tl.store(z + at, tl.load(x + at) + tl.load(y + N - 1 - at))


@triton.jit
def softmax_in_base_2(x, y, x_stride, y_stride, N, Bc: tl.constexpr):
    i, at = tl.program_id(0).to(tl.int64), tl.arange(0, Bc)
    S = tl.load(x + i * x_stride + at, mask=at < N, other=-float("inf"))
    m = tl.maximum(tl.max(S, 0), -3.4e38)
    P = tl.exp2((S - m) * 1.4426950408889634)
    tl.store(y + i * y_stride + at, P / tl.maximum(tl.sum(P, 0), 1e-30), mask=at < N)


@triton.jit
def softmax_with_a_number_that_changes_nothing(x, y, x_stride, y_stride, N, Bc: tl.constexpr):
    i, at = tl.program_id(0).to(tl.int64), tl.arange(0, Bc)
    S = tl.load(x + i * x_stride + at, mask=at < N, other=-float("inf"))
    m = tl.max(S, 0)
    P = tl.exp(S - tl.where(m == -float("inf"), 0.0, m))
    tl.store(y + i * y_stride + at, P / (tl.sum(P, 0) + 1e-20), mask=at < N)


@triton.jit
def softmax_by_lse(x, y, x_stride, y_stride, N, Bc: tl.constexpr):
    i, at = tl.program_id(0).to(tl.int64), tl.arange(0, Bc)
    S = tl.load(x + i * x_stride + at, mask=at < N, other=-float("inf"))
    m = tl.max(S, 0)
    if m == -float("inf"):
        tl.store(y + i * y_stride + at, tl.zeros([Bc], tl.float32), mask=at < N)
    else:
        tl.store(y + i * y_stride + at, tl.exp(S - m - tl.log(tl.sum(tl.exp(S - m), 0))), mask=at < N)


@triton.jit
def softmax_element_by_element(x, y, x_stride, y_stride, N, Bc: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    m = -float("inf")
    l = 0.0
    for at in range(N):
        m = tl.maximum(m, tl.load(x + i * x_stride + at))
    if m == -float("inf"):
        m = 0.0
    for at in range(N):
        l += tl.exp(tl.load(x + i * x_stride + at) - m)
    for at in range(N):
        tl.store(y + i * y_stride + at, tl.exp(tl.load(x + i * x_stride + at) - m) / tl.where(l == 0, 1.0, l))


@triton.jit
def online_in_two_passes(x, y, x_stride, y_stride, R, N, Br: tl.constexpr, Bc: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * Br + tl.arange(0, Br)
    m = tl.full([Br], -float("inf"), tl.float32)
    l = tl.zeros([Br], tl.float32)
    for start in range(0, N, Bc):
        at = start + tl.arange(0, Bc)
        ok = (rows[:, None] < R) & (at[None, :] < N)
        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float("inf"))
        m_new = tl.maximum(m, tl.max(S, 1))
        safe = tl.where(m_new == -float("inf"), 0.0, m_new)
        l = l * tl.exp(m - safe) + tl.sum(tl.exp(S - safe[:, None]), 1)
        m = m_new
    safe = tl.where(m == -float("inf"), 0.0, m)
    total = tl.where(l == 0, 1.0, l)
    for start in range(0, N, Bc):
        at = start + tl.arange(0, Bc)
        ok = (rows[:, None] < R) & (at[None, :] < N)
        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float("inf"))
        P = tl.exp(S - safe[:, None]) / total[:, None]
        tl.store(y + rows[:, None] * y_stride + at[None, :], P, mask=ok)


RIGHT = {
    "first_triton_kernel.add": [add_with_pointers, add_backwards, add_one_by_one],
    "first_triton_kernel.softmax_row": [softmax_in_base_2, softmax_by_lse, softmax_with_a_number_that_changes_nothing],
    "first_triton_kernel.online": [online_in_two_passes],
}

test_right_answers_pass = pytest.mark.exhaustive(right.all_pass(RIGHT))


@pytest.mark.exhaustive
@pytest.mark.skipif(not INTERPRETED, reason="a GPU counts nothing")
def test_a_kernel_that_reads_a_row_three_times_gets_a_sentence(capsys):
    check("first_triton_kernel.softmax_row", softmax_element_by_element)
    assert "a row was read more than once: it fits into its block" in capsys.readouterr().out


@triton.jit
def add_every_other(x, y, z, N, Bc: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)
    tl.store(z + at, tl.load(x + at, at < N, 0.0) + tl.load(y + (N - 1 - at), at < N, 0.0), (at < N) & (at % 2 == 0))


def test_elements_that_were_not_stored_are_named():
    fault = first_failure(find("first_triton_kernel.add"), add_every_other)
    assert fault.message.endswith(
        "2 elements, first 1, of your result hold what was there before: was anything stored there?"
    )


def test_a_function_that_is_no_kernel_gets_a_sentence(capsys):
    check("first_triton_kernel.add", lambda *args: None)
    assert "put @triton.jit above the def" in capsys.readouterr().out
