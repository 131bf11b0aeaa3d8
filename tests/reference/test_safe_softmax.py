import numpy as np
import pytest
import torch

from flashlab.machine.memory import Memory
from flashlab.reference import safe_softmax
from flashlab.reference.attention import weights
from tests.tools.bounds import assert_as_exact_as_plain

ROWS = {
    "normal": np.random.default_rng(0).normal(0, 3, 100),
    "rising": np.linspace(-50, 50, 33),
    "huge": np.array([1e4, -1e4, 9999.0]),
    "one": np.array([5.0]),
    "masked first block": np.r_[np.full(8, -np.inf), np.arange(5.0)],
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("streamed", [safe_softmax.safe_streamed, safe_softmax.online_streamed])
def test_streamed_softmax_equals_safe_softmax(streamed, name):
    if name == "masked first block" and streamed is safe_softmax.safe_streamed:
        pytest.skip("its maximum is that of the whole row, so a masked first block is no special case")
    x = ROWS[name].astype(np.float32)
    assert_as_exact_as_plain(streamed(x, 8, Memory()), safe_softmax.safe(x), safe_softmax.safe(x.astype(float)))


def test_subtracting_a_constant_changes_nothing():
    x = ROWS["normal"]
    np.testing.assert_allclose(safe_softmax.safe(x + 1000), safe_softmax.safe(x), 1e-10)
    np.testing.assert_allclose(safe_softmax.safe(x), safe_softmax.naive(x), 1e-12)


def test_naive_softmax_overflows_where_safe_softmax_does_not():
    x = np.array([100.0, 90.0, 80.0], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(safe_softmax.naive(x), [np.nan, np.nan, 0])
    np.testing.assert_allclose(safe_softmax.safe(x), [0.9999546, 4.5397872e-05, 2.0610601e-09], 1e-5)


def test_a_row_without_keys_has_zero_weights():
    np.testing.assert_array_equal(safe_softmax.safe(np.full((2, 3), -np.inf)), np.zeros((2, 3)))


@pytest.mark.parametrize(
    "streamed, loads",
    [(safe_softmax.naive_streamed, 2), (safe_softmax.safe_streamed, 3), (safe_softmax.online_streamed, 2)],
)
@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_accesses_per_element_are_those_of_milakov_and_gimelshein(streamed, loads, block):
    x, memory = ROWS["normal"], Memory()
    streamed(x, block, memory)
    assert (memory.loaded, memory.stored) == (loads * x.nbytes, x.nbytes)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", ROWS)
def test_log_sum_exp_equals_the_oracles(name, dtype):
    x = ROWS[name].astype(dtype)[None]
    Q, K = np.ones((1, 1), dtype), x.T  # their scores are x
    exact = weights(Q.astype(float), K.astype(float), scale=1)[1]
    assert_as_exact_as_plain(safe_softmax.lse(x), weights(Q, K, scale=1)[1], exact)


def test_log_sum_exp_of_many_rows_is_that_of_each():
    x = np.stack([ROWS["rising"], ROWS["rising"] - 2000, np.full(33, -np.inf)])
    np.testing.assert_array_equal(safe_softmax.lse(x), [safe_softmax.lse(row) for row in x])
    np.testing.assert_allclose(safe_softmax.lse(x)[1] - safe_softmax.lse(x)[0], -2000, rtol=1e-14)
    assert safe_softmax.lse(x)[2] == -np.inf


@pytest.mark.parametrize("c", [-1.5, 0.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_softmax_relative_to_any_number_is_the_softmax(dtype, c):
    x = torch.tensor([1.0, 2.0, -0.5, 3.0], dtype=dtype)
    e, l, P = safe_softmax.shifted(x, c)
    exact = safe_softmax.safe(x.double().numpy())
    assert e.dtype == l.dtype == P.dtype == dtype
    assert (np.abs(P.double().numpy() - exact) <= 2 * torch.finfo(dtype).eps).all()
    assert float(l) == pytest.approx(float(e.double().sum()), rel=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_exp_becomes_0_and_inf_at_the_edges_of_a_dtypes_window(dtype):
    zero, normal, inf = safe_softmax.window(torch.finfo(dtype))
    step = 4 * torch.finfo(dtype).eps  # relative: the edge itself may be between two numbers of the dtype
    inside, outside = torch.tensor([[zero, inf], [zero, inf]], dtype=dtype) * torch.tensor([[1 - step], [1 + step]])
    assert 0 < inside[0].to(dtype).exp() and inside[1].to(dtype).exp() < torch.inf
    assert outside[0].to(dtype).exp() == 0 and outside[1].to(dtype).exp() == torch.inf
    assert torch.tensor(normal, dtype=torch.float64).exp() == pytest.approx(torch.finfo(dtype).tiny)


def test_windows_are_the_same_for_numpy_and_torch():
    assert safe_softmax.window(np.finfo(np.float16)) == safe_softmax.window(torch.finfo(torch.float16))
    assert [round(edge, 2) for edge in safe_softmax.window(np.finfo(np.float32))] == [-103.97, -87.34, 88.72]
