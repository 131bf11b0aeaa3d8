import numpy as np
import pytest

from flashlab import online, softmax
from flashlab.memory import Memory
from tests.bounds import assert_as_exact_as_plain

ROWS = {
    "normal": np.random.default_rng(0).normal(0, 3, 100),
    "rising": np.linspace(-50, 50, 33),
    "huge": np.array([1e4, -1e4, 9999.0]),
    "one": np.array([5.0]),
    "masked first block": np.r_[np.full(8, -np.inf), np.arange(5.0)],
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("streamed", [softmax.safe_streamed, online.softmax_streamed])
def test_streamed_softmax_equals_safe_softmax(streamed, name):
    if name == "masked first block" and streamed is softmax.safe_streamed:
        pytest.skip("knows its maximum from the whole row")
    x = ROWS[name].astype(np.float32)
    assert_as_exact_as_plain(streamed(x, 8, Memory()), softmax.safe(x), softmax.safe(x.astype(float)))


def test_subtracting_a_constant_changes_nothing():
    x = ROWS["normal"]
    np.testing.assert_allclose(softmax.safe(x + 1000), softmax.safe(x), 1e-10)
    np.testing.assert_allclose(softmax.safe(x), softmax.naive(x), 1e-12)


def test_naive_softmax_overflows_where_safe_softmax_does_not():
    x = np.array([100.0, 90.0, 80.0], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(softmax.naive(x), [np.nan, np.nan, 0])
    np.testing.assert_allclose(softmax.safe(x), [0.9999546, 4.5397872e-05, 2.0610601e-09], 1e-5)


def test_a_row_without_keys_has_zero_weights():
    np.testing.assert_array_equal(softmax.safe(np.full((2, 3), -np.inf)), np.zeros((2, 3)))


@pytest.mark.parametrize(
    "streamed, loads",
    [(softmax.naive_streamed, 2), (softmax.safe_streamed, 3), (online.softmax_streamed, 2)],
)
@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_accesses_an_element_are_those_of_milakov_and_gimelshein(streamed, loads, block):
    x, memory = ROWS["normal"], Memory()
    streamed(x, block, memory)
    assert (memory.loaded, memory.stored) == (loads * x.nbytes, x.nbytes)
