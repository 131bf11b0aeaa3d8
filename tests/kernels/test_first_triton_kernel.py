"""The first kernels equal torch's at any length, and read and write each element as often as their docstrings say."""

import pytest
import torch

from flashlab.kernels import DEVICE, INTERPRETED
from flashlab.kernels.first_triton_kernel import LONGEST_BLOCK, add, softmax, softmax_online
from flashlab.kernels.interpreter import count
from tests.kernels.inputs import randn
from tests.tools.bounds import assert_as_exact_as_plain

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SOFTMAXES = {"one block": softmax, "online": lambda x: softmax_online(x, rows=2, block=16)}


@pytest.fixture(params=SOFTMAXES)
def softmax_of_rows(request):
    return SOFTMAXES[request.param]


def assert_is_softmax(softmax_of_rows, x):
    assert_as_exact_as_plain(softmax_of_rows(x), x.softmax(-1), x.double().softmax(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N", [0, 1, 15, 16, 17, 100])
def test_add_equals_torchs_sum(N, dtype):
    x, y = randn(N, dtype=dtype), randn(N, dtype=dtype, seed=1)
    assert torch.equal(add(x, y, block=16), x + y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, N", [(1, 1), (3, 16), (40, 37), (40, 100)])
def test_softmax_equals_torchs(softmax_of_rows, rows, N, dtype):
    assert_is_softmax(softmax_of_rows, 3 * randn(rows, N, dtype=dtype))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_softmax_of_nothing_is_empty(softmax_of_rows, shape):
    assert softmax_of_rows(randn(*shape)).shape == shape


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_softmax_of_large_scores_does_not_overflow(softmax_of_rows, size):
    assert_is_softmax(softmax_of_rows, size * randn(3, 50).abs())


def test_softmax_of_a_growing_maximum_rescales_the_denominator(softmax_of_rows):
    assert_is_softmax(softmax_of_rows, torch.arange(100.0, device=DEVICE).expand(3, 100) / 10)


def test_softmax_ignores_masked_scores(softmax_of_rows):
    x = randn(3, 50)
    x[0, :20], x[1, 20:], x[2, ::2] = 3 * [-float("inf")]  # the first block, the last ones, every other score
    assert_is_softmax(softmax_of_rows, x)


def test_softmax_of_a_fully_masked_row_is_zero(softmax_of_rows):
    x = randn(3, 50)
    x[1] = -float("inf")
    y = softmax_of_rows(x)
    assert (y[1] == 0).all()
    assert_as_exact_as_plain(y[::2], x[::2].softmax(-1), x[::2].double().softmax(-1))


def test_softmax_shows_nan(softmax_of_rows):
    x = randn(3, 50)
    x[1, 30] = float("nan")
    y = softmax_of_rows(x)
    assert y[1].isnan().all() and not y[::2].isnan().any()


def test_softmax_of_rows_that_lie_apart(softmax_of_rows):
    x = randn(6, 80)[::2, 10:60]
    assert not x.is_contiguous()
    assert_is_softmax(softmax_of_rows, x)


@pytest.mark.skipif(not INTERPRETED, reason="bytes are counted in the interpreter")
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_softmax_reads_and_writes_as_often_as_it_says(dtype):
    x = randn(5, 37, dtype=dtype)
    once = 5 * 37 * x.element_size()
    with count() as one_block:
        softmax(x)
    with count() as online:
        softmax_online(x, rows=2, block=16)
    assert one_block.bytes == {("load", "x"): once, ("store", "y"): once}
    assert online.bytes == {("load", "x"): 2 * once, ("store", "y"): once}


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: add(x, x), ValueError, "must be vectors of one length and dtype, got \\[2, 8\\]"),
        (lambda x: add(x[0], x[0, :7]), ValueError, "got \\[8\\] torch.float32 and \\[7\\]"),
        (lambda x: add(x[:, 0], x[:, 1]), ValueError, "must be contiguous"),
        (lambda x: add(x[0], x[0], block=24), ValueError, "must be a power of two, got 24"),
        (lambda x: add(x[0].long(), x[0]), TypeError, "x must be float16, bfloat16 or float32, got torch.int64"),
        (lambda x: softmax(x[0]), ValueError, "must have two dimensions \\[rows, N\\], got \\[8\\]"),
        (lambda x: softmax(x.T), ValueError, "unit stride"),
        (lambda x: softmax(x.double()), TypeError, "got torch.float64"),
        (lambda x: softmax(x.expand(2, 8).new_zeros(1, LONGEST_BLOCK + 1)), ValueError, "take softmax_online"),
        (lambda x: softmax(x.to("meta")), ValueError, "one such device, got x on meta"),
        (lambda x: softmax(x.to_sparse()), TypeError, "x must be a dense tensor, got torch.sparse_coo"),
        (lambda x: softmax(x.requires_grad_()), NotImplementedError, "no backward pass, and x requires a gradient"),
        (lambda x: softmax_online(x, rows=3), ValueError, "must be a power of two, got 3"),
        (lambda x: softmax_online(x, block=2 * LONGEST_BLOCK), ValueError, "must be at most"),
    ],
)
def test_bad_input_gets_a_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call(randn(2, 8))
