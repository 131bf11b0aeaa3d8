"""The interpreter: bfloat16 as torch has it, no access outside a tensor, and a bill equal to the counting memory's."""

import inspect
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from flashlab.kernels import INTERPRETED, flash_attention, plan
from flashlab.kernels.configurations import Choice, Configuration
from flashlab.kernels.interpreter import Builder, count, masked_loads_read_nan, tensor_core
from flashlab.machine.memory import Memory
from flashlab.reference import eight_bits, masks
from flashlab.reference.rules import Rules
from flashlab.reference.tiling import fa2_forward, fa2_traffic
from tests.kernels.inputs import randn

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="tests of the interpreter; here kernels are compiled")

BF16 = torch.bfloat16
N = 64


# bfloat16


@triton.jit
def cast(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_cast_to_bfloat16_rounds_to_nearest_even(dtype):
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 257.0, 259.0])  # half way between two bfloat16 numbers
    edges = torch.tensor([0.0, -0.0, 65504.0, 2**-24, 1.0, -1.0])
    x = torch.cat([ties, edges, 1000 * randn(512 - 11)]).to(dtype)
    y = torch.empty(512, dtype=BF16)
    cast[(1,)](x, y, 512)
    assert torch.equal(y.view(torch.int16), x.to(BF16).view(torch.int16))


def test_cast_to_bfloat16_keeps_infinities_nan_and_overflow():
    x = torch.tensor([float("inf"), -float("inf"), 3.4e38, -3.4e38, 1e-40, float("nan"), 1.0, 2.0])
    y = torch.empty(8, dtype=BF16)
    cast[(1,)](x, y, 8)
    assert torch.equal(y[:5], x.to(BF16)[:5]) and y[5].isnan()


def test_cast_from_bfloat16_is_exact():
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(BF16)  # all bfloat16 numbers
    x = x[~x.isnan()][: 2**15]
    y = torch.empty(2**15)
    cast[(1,)](x, y, 2**15)
    assert torch.equal(y, x.float())


EIGHT = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("narrow", EIGHT)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, BF16])
def test_every_code_of_float8_is_widened_exactly(narrow, wide):
    x = torch.arange(256, dtype=torch.uint8).view(narrow)
    y = torch.empty(256, dtype=wide)
    cast[(1,)](x, y, 256)
    assert torch.equal(y.isnan(), x.float().isnan()) and x.float().isnan().any()
    assert torch.equal(y.nan_to_num(0.5), x.to(wide).nan_to_num(0.5))


@pytest.mark.parametrize("narrow", EIGHT)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16, BF16])
def test_float8_is_rounded_to_nearest_even_and_saturates(narrow, wide):
    codes = torch.arange(128, dtype=torch.uint8).view(narrow).float()
    codes = codes[codes.isfinite()]
    ties = (codes[1:] + codes[:-1]) / 2  # half way between two neighbours
    x = torch.cat([codes, ties, 100 * randn(512 - len(codes) - len(ties) - 2), torch.tensor([6e4, -6e4])]).to(wide)
    y = torch.empty(512, dtype=torch.uint8).view(narrow)
    cast[(1,)](x, y, 512)
    largest = torch.finfo(narrow).max
    assert torch.equal(y.float(), x.float().clamp(-largest, largest).to(narrow).float())


@pytest.mark.parametrize("narrow", EIGHT)
def test_rounding_to_float8_is_torchs_for_every_exponent_of_float32(narrow):
    fields = 8 if narrow == torch.float8_e4m3fn else 4  # mantissas per exponent; then ties, and the numbers beside them
    ties = torch.arange(2 * fields) * (2**22 // fields)
    mantissas = torch.cat([ties, ties[1:] - 1, ties + 1, torch.tensor([2**23 - 1])])
    bits = (torch.arange(255)[:, None] << 23 | mantissas).flatten().to(torch.int32)
    x = torch.cat([bits.view(torch.float32), -bits.view(torch.float32)])
    x = torch.cat([x, torch.zeros(triton.next_power_of_2(len(x)) - len(x))])
    y = torch.empty(len(x), dtype=torch.uint8).view(narrow)
    cast[(1,)](x, y, len(x))
    largest = torch.finfo(narrow).max
    assert torch.equal(y.view(torch.uint8), x.clamp(-largest, largest).to(narrow).view(torch.uint8))


@triton.jit
def elementwise(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a * b + a - 1.5)
    tl.store(out + N + i, tl.where(a > b, -a, tl.abs(b)))
    tl.store(out + 2 * N + i, tl.maximum(a, b) + tl.full([N], 0.3, tl.bfloat16))
    tl.store(out + 3 * N + i, a / b)


def test_bfloat16_arithmetic_equals_torchs_bit_for_bit():
    x, y = randn(N, dtype=BF16), randn(N, seed=1, dtype=BF16)
    out = torch.empty(4, N, dtype=BF16)
    elementwise[(1,)](x, y, out, N)
    tenths = torch.tensor(0.3, dtype=BF16)
    expected = [x * y + x - 1.5, torch.where(x > y, -x, y.abs()), torch.maximum(x, y) + tenths, x / y]
    assert torch.equal(out, torch.stack(expected))


@triton.jit
def reductions(x, out, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, N)) * 1.0
    tl.store(out, tl.sum(a, 0))
    tl.store(out + 1, tl.max(a, 0))
    tl.store(out + 2, tl.min(a, 0))
    tl.store(out + 3, tl.argmax(a, 0))


def test_bfloat16_reductions_are_of_numbers_not_of_bits():
    x = randn(N, dtype=BF16)
    out = torch.empty(4)
    reductions[(1,)](x, out, N)
    assert torch.equal(out[1:], torch.tensor([x.max(), x.min(), x.argmax()]))
    assert abs(out[0] - x.double().sum()) <= torch.finfo(BF16).eps * x.double().sum().abs()


@triton.jit
def dot(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]  # [N, N]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at)))


def test_bfloat16_dot_multiplies_numbers_and_sums_in_float32():
    x, y = randn(N, N, dtype=BF16), randn(N, N, seed=1, dtype=BF16)
    out = torch.empty(N, N)
    dot[(1,)](x, y, out, N)
    exact = x.double() @ y.double()
    plain = (x.float() @ y.float() - exact).abs().max()
    assert (out - exact).abs().max() <= 2 * plain + torch.finfo(torch.float32).eps * exact.abs().max()


@triton.jit
def product(x, y, out, N: tl.constexpr, K: tl.constexpr, flush: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    at = n[:, None] * N + n[None, :]  # [N, N]
    X, Y = tl.load(x + n[:, None] * K + k[None, :]), tl.load(y + k[:, None] * N + n[None, :])  # [N, K], [K, N]
    tl.store(out + at, tl.dot(X, Y, tl.load(out + at), max_num_imprecise_acc=flush))


def float8_product(flush, K=256, narrow=torch.float8_e4m3fn):
    x, y = randn(16, K).abs().to(narrow), randn(K, 16, seed=1).abs().to(narrow)
    out = randn(16, 16, seed=2)
    before = out.double().numpy()
    product[(1,)](x, y, out, 16, K, flush)
    return out.double().numpy(), (before, x.double().numpy(), y.double().numpy())


@pytest.mark.parametrize("narrow", EIGHT)
def test_float8_dot_is_exact_and_keeps_nan(narrow):
    ours, (C, A, B) = float8_product(None, narrow=narrow)
    np.testing.assert_allclose(ours, C + A @ B, rtol=1e-6)
    x = torch.full((16, 32), 0x7F, dtype=torch.uint8).view(narrow)  # NaN in both
    out = torch.zeros(16, 16)
    product[(1,)](x, torch.zeros(32, 16).to(narrow), out, 16, 32, None)
    assert out.isnan().all()


@pytest.mark.parametrize("flush", [None, 32, 128, 256])
def test_inside_tensor_core_products_of_float8_are_those_of_the_model(flush):
    with tensor_core():
        ours, inputs = float8_product(flush)
    np.testing.assert_allclose(ours, eight_bits.TensorCore(flush=flush)(*inputs), rtol=2e-7)
    error = np.abs(ours - eight_bits.exactly(*inputs)).max()
    assert error > 2.0**-15 * np.abs(ours).max()
    assert np.abs(float8_product(flush)[0] - ours).max() == pytest.approx(error, rel=1e-2)  # outside: exact again


def test_a_flush_after_0_products_means_half_precision_and_all_bits():
    with tensor_core():
        ours, inputs = float8_product(0)
    np.testing.assert_allclose(ours, eight_bits.exactly(*inputs), rtol=1e-6)


@triton.jit
def atomic_sum(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(out + i // 2, tl.load(x + i), mask=i < N - 2)


def test_bfloat16_atomics_are_refused():
    with pytest.raises(Exception, match="no atomic operations on bfloat16: accumulate in float32"):
        atomic_sum[(1,)](torch.ones(8, dtype=BF16), torch.zeros(8, dtype=BF16), 8)


# addresses


@triton.jit
def shifted(x, y, N, load_shift, store_shift, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i + store_shift, passed_on(x + load_shift, i, N), mask=i < N)


@triton.jit
def passed_on(x, i, N):
    return tl.load(x + i, mask=i < N)


def two_vectors():
    """Return two vectors of 40 numbers in one buffer, and the buffer: reads around the vectors do not crash."""
    buffer = torch.zeros(1000)
    return buffer[100:140].copy_(torch.arange(40.0)), buffer[500:540], buffer


def test_access_inside_is_let_through():
    x, y, _ = two_vectors()
    shifted[(3,)](x, y, 40, 0, 0, 16)
    assert torch.equal(x, y)


@pytest.mark.parametrize(
    "shift, elements, program", [(1, 1, 2), (4, 4, 2), (-1, 1, 0), (10**9, 16, 0), (-(10**9), 16, 0)]
)
@pytest.mark.parametrize("kind", ["load", "store"])
def test_access_outside_a_tensor_raises_and_names_kernel_tensor_and_program(kind, shift, elements, program):
    x, y, buffer = two_vectors()
    name = "x" if kind == "load" else "y"
    message = rf"^shifted goes outside {name}: {kind} of {elements} element\(s\), in program \({program}, 0, 0\)$"
    with pytest.raises(IndexError, match=message):
        shifted[(3,)](x, y, 40, *((shift, 0) if kind == "load" else (0, shift)), 16)
    assert not buffer[:100].any() and not buffer[140:499].any() and not buffer[541:].any()  # nothing was written


@pytest.mark.parametrize("gap", [0, 1, 3, 40])
@pytest.mark.parametrize("kind", ["load", "store"])
def test_another_tensor_is_outside_wherever_it_is_in_memory(kind, gap):
    """Neither the error nor its message depends on what is in memory after a tensor's last element."""
    buffer = torch.zeros(200)
    near, far = buffer[:40], buffer[40 + gap : 80 + gap]
    x, y = (near, far) if kind == "load" else (far, near)
    with pytest.raises(IndexError, match=rf"goes outside [xy]: {kind} of 4 element\(s\), in program \(2, 0, 0\)$"):
        shifted[(3,)](x, y, 40, *((4, 0) if kind == "load" else (0, 4)), 16)
    assert not buffer[40:].any()


def test_a_tensor_may_be_passed_twice_or_in_part():
    x, y, buffer = two_vectors()
    shifted[(3,)](x, x, 40, 0, 0, 16)
    shifted[(1,)](x, buffer[100:120], 20, 0, 0, 32)
    assert torch.equal(x, torch.arange(40.0))
    with pytest.raises(IndexError, match="goes outside y: store of 1 element"):
        shifted[(1,)](x, buffer[100:120], 21, 0, 0, 32)


@triton.jit
def moved_tile(x, y, load_at, store_at):
    X = tl.make_tensor_descriptor(x, [32, 16], [16, 1], [16, 16])
    Y = tl.make_tensor_descriptor(y, [32, 16], [16, 1], [16, 16])
    Y.store([store_at, 0], X.load([load_at, 0]))


@pytest.mark.parametrize("load_at, store_at, access", [(-1, 0, "x: load"), (0, -16, "y: store")])
def test_a_tile_that_begins_before_its_tensor_is_outside_and_one_that_ends_after_it_is_not(load_at, store_at, access):
    x, y = randn(32, 16), torch.zeros(32, 16)
    moved_tile[(1,)](x, y, 20, 24)
    assert torch.equal(y[24:], x[20:28])
    at = min(load_at, store_at)
    with pytest.raises(
        IndexError, match=rf"outside {access} of a tile that begins at \[{at}, 0\], in program \(0, 0, 0\)$"
    ):
        moved_tile[(1,)](x, y, load_at, store_at)


def test_forgotten_mask_is_caught():
    x, y, _ = two_vectors()
    with pytest.raises(IndexError, match="load of 8 element"):
        shifted[(3,)](x, y, 48, 0, 0, 16)


def test_empty_tensor_holds_no_element():
    with pytest.raises(IndexError, match="store of 1 element"):
        shifted[(1,)](torch.ones(1), torch.empty(0), 1, 0, 0, 1)


def test_other_errors_keep_their_cause():
    with pytest.raises(Exception, match="bfloat16") as raised:
        atomic_sum[(1,)](torch.ones(8, dtype=BF16), torch.zeros(8, dtype=BF16), 8)
    assert isinstance(raised.value.__cause__, NotImplementedError)


# truth values


@triton.jit
def takes_both(i, N):
    return (i >= 0) and (i < N)


@triton.jit
def takes_either(i, N):
    return (i < 0) or (i < N)


@triton.jit
def takes_the_opposite(i, N):
    return not (i >= N)


@triton.jit
def takes_a_chain(i, N):
    return 0 <= i < N


@triton.jit
def takes_the_larger(i, N):
    return max(i, N) > i


@triton.jit
def takes_one_of_two(i, N):
    return i < N if i < 3 else i >= 0


@triton.jit
def branches(i, N):
    seen = i < N
    if seen:
        seen = i < 1
    return seen


@triton.jit
def loops(i, N):
    while i < N:
        i += 1
    return i < N


@triton.jit
def filled(x, N, B: tl.constexpr, inside: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, 1.0, mask=inside(i, N))


OF_BLOCKS = [
    takes_both, takes_either, takes_the_opposite, takes_a_chain, takes_the_larger, takes_one_of_two, branches, loops,
]  # fmt: skip


@pytest.mark.parametrize("inside", OF_BLOCKS, ids=lambda inside: inside.fn.__name__)
def test_a_block_has_no_truth_value(inside):
    lines, first = inspect.getsourcelines(inside.fn)
    with pytest.raises(TypeError) as raised:
        filled[(1,)](torch.zeros(8), 5, 8, inside)
    sentence = str(raised.value)
    assert all(word in sentence for word in ("[8]", "no truth value", "&", "|", "~", "tl.where")), sentence
    (name, line) = re.match(r"(\w+), line (\d+)", sentence).groups()
    assert name == inside.fn.__name__ and first < int(line) < first + len(lines)


@pytest.mark.parametrize("inside", OF_BLOCKS[:-1], ids=lambda inside: inside.fn.__name__)
def test_a_block_of_one_element_has_a_truth_value_as_for_the_compiler(inside):
    for N in (0, 1):
        x = torch.zeros(1)
        filled[(1,)](x, N, 1, inside)
        assert x.item() == N


@triton.jit
def decides(x, flag, B: tl.constexpr):
    i = tl.arange(0, B)
    loaded = tl.load(x + i, mask=i < 4, other=tl.full([B], 7.0, tl.float32))  # Triton's own code takes its truth value
    if (flag > 0) and not (flag == 2):
        tl.store(x + i, loaded)


def test_a_number_has_a_truth_value():
    for flag, expected in ((0, 1.0), (1, 7.0), (2, 1.0)):
        x = torch.ones(8)
        decides[(1,)](x, flag, 8)
        assert x[:4].eq(1).all() and x[4:].eq(expected).all()


def test_launch_leaves_no_names_in_the_kernels_module():
    x, y, _ = two_vectors()
    before = {*globals(), "interpreter_semantic"}
    shifted[(3,)](x, y, 40, 0, 0, 16)
    assert set(globals()) <= before


# masks


@triton.jit
def masked_by_a_scalar_too(x, y, N, most, B: tl.constexpr):
    i = tl.arange(0, B)
    inside = (i < N) & (tl.program_id(0) < most)
    tl.store(y + i, tl.load(x + i, mask=inside, other=7.0), mask=i < 5)


def test_a_scalar_in_a_mask_holds_for_every_element():
    for most, expected, nbytes in ((0, [7.0] * 5, 0), (1, [1.0, 2.0, 3.0, 7.0, 7.0], 12)):
        y = torch.zeros(5)
        with count() as bill:
            masked_by_a_scalar_too[(1,)](torch.arange(1.0, 6.0), y, 3, most, 16)
        assert y.tolist() == expected and bill.loaded == nbytes
    with pytest.raises(IndexError, match="load of 3 element"):
        masked_by_a_scalar_too[(1,)](torch.zeros(5), torch.zeros(5), 8, 1, 16)


@triton.jit
def none_of_one(x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < 0, other=0.0))


def test_other_may_be_a_block_of_the_one_element_0():
    x = torch.ones(1)
    with masked_loads_read_nan():
        none_of_one[(1,)](x, 1)
    assert x.item() == 0


# bytes


def test_masked_elements_are_not_counted():
    x, y, _ = two_vectors()
    with count() as bill:
        shifted[(3,)](x, y, 37, 0, 0, 16)
    assert bill.bytes == {("load", "x"): 37 * 4, ("store", "y"): 37 * 4}
    assert (bill.loaded, bill.stored, bill.moved) == (148, 148, 296)


def test_events_name_program_tensor_and_region_in_order():
    x, y, _ = two_vectors()
    with count() as bill:
        shifted[(3,)](x, y, 40, 0, 0, 16)
    second = [("kernel", "shifted", (1, 0, 0), 0)] + [
        (k, n, (slice(16, 32),), 64) for k, n in (("load", "x"), ("store", "y"))
    ]
    assert bill.events[3:6] == second
    assert bill.events[-1] == ("store", "y", (slice(32, 40),), 32)


def test_callers_names_come_before_the_kernels():
    x, y, _ = two_vectors()
    with count(source=x, first_half=y[:20], second_half=y[20:]) as bill:
        shifted[(1,)](x, y, 40, 0, 0, 64)
    assert bill.bytes == {("load", "source"): 160, ("store", "first_half"): 80, ("store", "second_half"): 80}


def test_counts_nest_and_end():
    x, y, _ = two_vectors()
    with count() as outer:
        shifted[(3,)](x, y, 40, 0, 0, 16)
        with count() as inner:
            shifted[(3,)](x, y, 40, 0, 0, 16)
    shifted[(3,)](x, y, 40, 0, 0, 16)
    assert inner.moved == 320 and outer.moved == 640


def test_atomic_is_a_load_and_a_store():
    out = torch.zeros(8)
    with count() as bill:
        atomic_sum[(1,)](torch.ones(8), out, 8)
    assert torch.equal(out, torch.tensor([2.0, 2, 2, 0, 0, 0, 0, 0]))
    assert bill.bytes == {("load", "x"): 32, ("load", "out"): 24, ("store", "out"): 24}


@triton.jit
def transposed(x, y, x_rows, x_columns, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(y + i * N + j, tl.load(x + (4 + i) * x_rows + (2 + j) * x_columns))


def test_region_follows_the_tensors_strides():
    x, y = randn(8, 16).T, torch.empty(8, 4)
    with count() as bill:
        transposed[(1,)](x, y, *x.stride(), 8, 4)
    assert torch.equal(y, x[4:12, 2:6])
    assert bill.events[1] == ("load", "x", (slice(4, 12), slice(2, 6)), 128)


def test_counting_needs_the_interpreter(monkeypatch):
    monkeypatch.delattr(Builder, "flashlab")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"), count():
        pass


# NaN


@triton.jit
def extremes(x, out):
    a, b = tl.load(x), tl.load(x + 1)
    tl.store(out, tl.maximum(a, b))
    tl.store(out + 1, tl.minimum(b, a))
    tl.store(out + 2, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_maximum_drops_nan_as_on_a_gpu_unless_it_is_propagated(dtype):
    out = torch.zeros(3, dtype=dtype)
    extremes[(1,)](torch.tensor([float("nan"), 2.0], dtype=dtype), out)
    assert out[:2].tolist() == [2, 2] and out[2].isnan()


# integers


@triton.jit
def quotients(out, a, b, B: tl.constexpr):
    x = a - b
    tl.store(out, x // B)
    tl.store(out + 1, x % B)
    for j in range(x, x + 1):
        tl.store(out + 2, j // B)
        tl.store(out + 3, j % B)
    for j in tl.range(x, x + 1):
        tl.store(out + 4, j // B)
        tl.store(out + 5, j % B)
    for j in tl.static_range(-97, -96):  # a constant of the compiler, which divides as Python does
        tl.store(out + 6, j // B)


def test_quotients_are_truncated_as_on_a_gpu_also_those_of_a_loops_variable():
    out = torch.zeros(7, dtype=torch.int32)
    quotients[(1,)](out, 3, 100, 64)
    assert out.tolist() == [-1, -33, -1, -33, -1, -33, -2]


# the real kernel's bill

SHAPES = [(64, 64), (100, 100), (70, 133), (133, 70), (1, 77), (77, 1)]


@pytest.fixture(params=[(64, 32), (32, 64)], ids=str)
def tile_sizes(request, monkeypatch):
    """Return Br and Bc of the tiles that every call gets."""
    Br, Bc = request.param
    tiles = {"forward": Configuration(Br, Bc, warps=4, stages=1)}
    monkeypatch.setattr(plan, "choose", lambda *_: Choice("portable", tiles, ""))
    return Br, Bc


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Nq, Nk", SHAPES)
def test_forward_moves_what_the_closed_form_says(Nq, Nk, causal, tile_sizes):
    H, d, dv = 2, 32, 16
    q, k, v = (randn(1, H, n, width, dtype=torch.float16) for n, width in ((Nq, d), (Nk, d), (Nk, dv)))
    with count() as bill:
        flash_attention(q, k, v, causal=causal)
    expected = fa2_traffic(Nq, Nk, d, *tile_sizes, dv=dv, mask=masks.causal() if causal else None, dtype=np.float16)
    assert bill.bytes == {key: H * nbytes for key, nbytes in expected.items()}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Nq, Nk", SHAPES)
def test_forward_moves_the_tiles_that_the_counting_memory_moves_in_their_order(Nq, Nk, causal, tile_sizes):
    q, k, v = (randn(1, 1, n, 16) for n in (Nq, Nk, Nk))
    memory, mask = Memory(), masks.causal() if causal else None
    fa2_forward(*(x[0, 0].numpy() for x in (q, k, v)), *tile_sizes, Rules(mask=mask), memory=memory)
    with count() as bill:
        flash_attention(q, k, v, causal=causal)
    assert bill.bytes == memory.bytes
    assert sorted(programs(bill, dim=2), key=first_row) == programs(memory, dim=0)


def programs(memory, dim):
    """Return for each program its moves in order: (load or store, tensor, first, last)."""
    moves = []
    for kind, name, region, _ in memory.events:
        if kind == "kernel":
            moves.append([])
        elif kind in ("load", "store"):
            moves[-1].append((kind, name, region[dim].start, region[dim].stop))
    return moves


def first_row(program):
    return program[0][2]


def test_grouped_heads_read_their_shared_keys_once_each(tile_sizes):
    q, k, v = randn(2, 4, 100, 16), randn(2, 2, 100, 16), randn(2, 2, 100, 16)
    with count() as bill:
        flash_attention(q, k, v)
    assert bill.bytes == {key: 2 * 4 * n for key, n in fa2_traffic(100, 100, 16, *tile_sizes).items()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_computes_while_a_thread_of_the_first_does():
    """The lock that the thread holds must not be held in the child, where the thread does not exist."""
    q = torch.randn(1, 1, 40, 16)
    expected, stop = flash_attention(q, q, q, causal=True), threading.Event()

    def compute():
        while not stop.is_set():
            flash_attention(q, q, q, causal=True)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if torch.equal(flash_attention(q, q, q, causal=True), expected) else 1)
            assert ends_with_0(child), "the child hangs, or computes something else"
    finally:
        stop.set()
        thread.join()


def ends_with_0(process, seconds=600):
    """Wait for a child process and return whether it ends with status 0; kill it when the time is up."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False
