"""The memory that autograd saves is counted once per storage, and the closed forms equal the count to the byte."""

import pytest
import torch

from flashlab.models import saved as saving
from flashlab.models.plain import dense

kernels = pytest.importorskip("flashlab.kernels", reason="the kernels need triton, which is for Linux")

SHAPES = [(64, 16, 1, torch.float32), (70, 16, 2, torch.float32), (33, 64, 3, torch.float16), (1, 8, 2, torch.bfloat16)]


def qkv(N, d, heads, dtype):
    return [torch.randn(1, heads, N, d, dtype=dtype, device=kernels.DEVICE, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("N, d, heads, dtype", SHAPES)
def test_closed_forms_equal_the_count(N, d, heads, dtype):
    sizes = {"d": d, "heads": heads, "itemsize": dtype.itemsize}
    saved = saving.saved(dense, *qkv(N, d, heads, dtype), causal=True)
    assert saved.total() == saving.dense_bytes(N, **sizes)
    saved = saving.saved(kernels.flash_attention, *qkv(N, d, heads, dtype), causal=True)
    assert saved.total() == saving.flash_bytes(N, **sizes)


def test_flash_saves_nothing_of_size_N_by_N():
    saved = saving.saved(kernels.flash_attention, *qkv(100, 16, 1, torch.float32), causal=True)
    assert all(shape.count(100) < 2 for shape in saved)


def test_one_storage_counts_once_and_two_are_added():
    x, y = (torch.ones(10, requires_grad=True) for _ in range(2))
    assert saving.saved(lambda: x * x).total() == 40
    assert saving.saved(lambda: x * x[:5].repeat(2)).total() == 80
    assert saving.saved(lambda: x * y).total() == 80
    assert saving.saved(lambda: x + y).total() == 0


def test_memory_that_is_freed_and_allocated_again_is_counted_each_time():
    x = torch.ones(1000, requires_grad=True)

    def five_one_after_the_other():
        for _ in range(5):
            torch.exp(x)

    assert saving.saved(five_one_after_the_other).total() == 5 * 4000


@pytest.mark.parametrize("nbytes", [saving.dense_bytes, saving.flash_bytes])
def test_the_longest_text_fits_and_a_longer_one_does_not(nbytes):
    sizes = {"d": 64, "heads": 16, "itemsize": 2}
    for room in (10**6, 40 * 10**9):
        N = saving.longest(room, nbytes, **sizes)
        assert nbytes(N, **sizes) <= room < nbytes(N + 1, **sizes)
    assert saving.longest(0, nbytes, **sizes) == 0


@pytest.mark.parametrize("room", [float("inf"), float("nan"), -1])
def test_a_room_that_is_negative_or_not_finite_is_refused(room):
    with pytest.raises(ValueError, match=f"room must be a finite number at least 0, got {room}"):
        saving.longest(room, saving.flash_bytes, d=64, heads=1, itemsize=2)
