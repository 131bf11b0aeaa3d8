"""The longer of two times decides, and the bytes of attention are those that the counting memory counts."""

import numpy as np
import pytest

from flashlab.machine import hardware
from flashlab.machine.memory import Memory
from flashlab.reference import roofline, standard_attention
from flashlab.reference.tiling import fa2_forward

A100 = hardware.CARDS["A100 40 GB"]


def test_the_later_clock_decides():
    assert roofline.seconds(8, 2, 1, 2) == 8 and roofline.seconds(1, 8, 1, 2) == 4


@pytest.mark.parametrize("N, d, dtype", [(64, 16, "float16"), (48, 8, "float32"), (100, 16, "float16")])
def test_bytes_are_those_that_the_memory_counts(N, d, dtype):
    Q, K, V = np.random.default_rng(1).normal(size=(3, N, d)).astype(dtype)
    works = roofline.attention(N, d, dtype, Br=16)
    memory = Memory()
    standard_attention.forward(Q, K, V, memory=memory)
    assert works["standard"].nbytes == memory.moved
    assert works["standard"].nbytes == sum(works[part].nbytes for part in ("QKᵀ", "softmax", "PV"))
    memory = Memory()
    fa2_forward(Q, K, V, 16, 16, memory=memory)
    assert works["fused"].nbytes == memory.moved
    memory = Memory()
    fa2_forward(Q, K, V, N, N, memory=memory)
    assert works["fused, read once"].nbytes == memory.moved


@pytest.mark.parametrize("d, printed", [(64, 56.9), (128, 102.4)])
def test_a_product_alone_is_left_of_the_ridge(d, printed):
    intensity = roofline.intensity(roofline.attention(1024, d)["QKᵀ"])
    assert intensity == pytest.approx(printed, rel=1e-3) and intensity == pytest.approx(d / (1 + 2 * d / 1024))
    assert intensity < hardware.ridge(A100)


def test_intensity_of_standard_attention_tends_to_half_of_d():
    for N in (8192, 65536):
        assert roofline.intensity(roofline.attention(N, 64)["standard"]) == pytest.approx(32, rel=0.01)


def test_reach_is_the_peak_right_of_the_ridge_and_intensity_times_bandwidth_left_of_it():
    left, right = roofline.Work(10, 1), roofline.Work(1000, 1)
    assert roofline.reachable(left, A100.float16, A100.dram_rate) == pytest.approx(10 * A100.dram_rate)
    assert roofline.reachable(right, A100.float16, A100.dram_rate) == pytest.approx(A100.float16)


def test_every_dtype_has_its_number_of_bytes():
    names = ("float8", "float16", "bfloat16", "float32")
    byte, *others = [roofline.attention(256, 64, dtype)["standard"].nbytes for dtype in names]
    assert others == [2 * byte, 2 * byte, 4 * byte] and byte == (4 * 256 + 4 * 64) * 256


@pytest.mark.parametrize("dtype", ["int8", "float64", np.float32, None])
def test_another_dtype_is_refused_by_name(dtype):
    with pytest.raises(ValueError, match=f"expected one of float8, float16, bfloat16, float32, got {dtype}"):
        roofline.attention(256, 64, dtype)
