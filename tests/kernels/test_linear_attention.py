"""Linear attention in Triton equals its definition, goes on from a state, and compiles for GPUs."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from flashlab.kernels import DEVICE
from flashlab.kernels.interpreter import count
from flashlab.kernels.linear_attention import linear_attention
from flashlab.reference import linear_attention as reference
from tests.kernels import written_out
from tests.kernels.compiled import compiled
from tests.kernels.inputs import qkv
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long

pytestmark = pytest.mark.usefixtures("interpreter_that_loops")


CASES = [
    (1, 1, 1, 16, 16, 16), (2, 3, 40, 16, 16, 16), (1, 2, 64, 32, 48, 32), (1, 2, 37, 20, 5, 16), (2, 1, 65, 8, 70, 64),
]  # fmt: skip


@pytest.mark.parametrize("B, H, N, d, dv, chunk", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, long(torch.float16)], ids=str)
def test_chunks_equal_the_definition(B, H, N, d, dv, chunk, dtype):
    q, k, v = qkv(B, H, H, N, N, d, dv, dtype)
    decay = torch.tensor([0.9, 1.0, 0.01][:H], device=DEVICE)
    exact, plain = (written_out.linear(q, k, v, decay, wide) for wide in (torch.float64, dtype))
    assert_as_exact_as_plain(linear_attention(q, k, v, decay=decay, chunk=chunk), plain, exact, roundings=2)


def test_it_goes_on_where_it_stopped():
    q, k, v = qkv(1, 2, 2, 50, 50, 16, 24)
    decay = torch.tensor([0.7, 1.0], device=DEVICE)
    whole, state = linear_attention(q, k, v, decay=decay, return_state=True, chunk=16)
    first, middle = linear_attention(*(x[:, :, :21] for x in (q, k, v)), decay=decay, return_state=True, chunk=16)
    copy = middle.clone()
    rest, last = linear_attention(*(x[:, :, 21:] for x in (q, k, v)), decay=decay, start=middle, return_state=True)
    torch.testing.assert_close(torch.cat([first, rest], 2), whole)
    torch.testing.assert_close(last, state)
    assert torch.equal(middle, copy), "the call has changed its initial state"
    for h, factor in enumerate(decay.tolist()):
        expected = reference.state(k[0, h].cpu().numpy(), v[0, h].cpu().numpy(), decay=factor).KV
        torch.testing.assert_close(state[0, h].cpu(), torch.from_numpy(expected))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="traffic is counted in the interpreter")
def test_keys_are_read_once_per_block_of_columns():
    q, k, v = qkv(1, 2, 2, 64, 64, 16, 64)
    with count() as memory:
        linear_attention(q, k, v, chunk=16)
    assert memory.bytes["load", "K"] == 2 * k.nbytes and memory.bytes["load", "V"] == v.nbytes
    assert memory.bytes["store", "O"] == v.nbytes and memory.bytes["store", "state"] == 2 * 16 * 64 * 4


def test_zero_tokens_do_not_change_the_state():
    q, k, v = qkv(1, 1, 1, 0, 0, 16, 16)
    start = torch.ones(1, 1, 16, 16, device=DEVICE)
    O, state = linear_attention(q, k, v, start=start, return_state=True)
    assert O.shape == (1, 1, 0, 16) and torch.equal(state, start)


@pytest.mark.parametrize("options, error, says", [
    ({"decay": torch.tensor([0.5, 1.5])}, ValueError, "above 0 and at most 1"),
    ({"decay": torch.tensor([0.5, torch.nan])}, ValueError, "above 0 and at most 1"),
    ({"decay": torch.ones(3)}, ValueError, r"decay must be float32 \[2\]"),
    ({"decay": 0.5}, TypeError, "decay must be a torch tensor"),
    ({"start": torch.zeros(1, 2, 8, 8)}, ValueError, "start must be float32"),
    ({"chunk": 24}, ValueError, "power of two"), ({"chunk": 8}, ValueError, "16 to 1024"),
])  # fmt: skip
def test_bad_options_are_refused(options, error, says):
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with pytest.raises(error, match=says):
        linear_attention(*qkv(1, 2, 2, 20, 20, 16, 16), **options)


def test_bad_tensors_are_refused():
    q, k, v = qkv(1, 2, 2, 20, 20, 16, 16)
    with pytest.raises(ValueError, match="expected q"):
        linear_attention(q, k[:, :, :5], v)
    with pytest.raises(TypeError, match="one dtype"):
        linear_attention(q, k.double(), v)
    with pytest.raises(TypeError, match="torch tensor"):
        linear_attention(q.tolist(), k, v)
    with pytest.raises(ValueError, match="1 to 256"):
        linear_attention(*qkv(1, 1, 1, 4, 4, 300, 16))


@pytest.mark.parametrize("name", ["q", "k", "v", "decay", "start"])
def test_no_gradient_is_dropped_or_invented(name):
    q, k, v = qkv(1, 2, 2, 20, 20, 16, 16)
    options = {"decay": torch.full((2,), 0.5, device=DEVICE), "start": torch.ones(1, 2, 16, 16, device=DEVICE)}
    inputs = {"q": q, "k": k, "v": v} | options
    expected = linear_attention(**inputs, return_state=True)
    inputs[name].requires_grad_()
    with pytest.raises(NotImplementedError, match=f"linear_attention has no backward pass, and {name} requires"):
        linear_attention(**inputs)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            for x, y in zip(linear_attention(**inputs, return_state=True), expected, strict=True):
                assert torch.equal(x, y) and not x.requires_grad
    inputs[name].requires_grad_(False)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
        linear_attention(**inputs | {name: forward_ad.make_dual(inputs[name], torch.ones_like(inputs[name]))})


@pytest.mark.parametrize("convert, kind", [
    (torch.Tensor.to_sparse, "torch.sparse_coo"), (torch.Tensor.to_mkldnn, "torch._mkldnn"),
    (lambda x: torch.nested.nested_tensor(list(x)), "a nested one"),
])  # fmt: skip
def test_tensors_that_are_not_dense_are_refused(convert, kind):
    q, k, v = qkv(1, 2, 2, 20, 20, 16, 16)
    if kind == "torch._mkldnn" and DEVICE.type != "cpu":
        pytest.skip("mkldnn's layout is for CPUs")
    with pytest.raises(TypeError, match=f"v must be a dense tensor, got {kind}"):
        linear_attention(q, k, convert(v))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_the_default_dtype_changes_nothing(default, default_dtype):
    inputs = qkv(1, 2, 2, 40, 40, 16, 16)
    expected = linear_attention(*inputs, return_state=True)
    default_dtype(default)
    for x, y in zip(linear_attention(*inputs, return_state=True), expected, strict=True):
        assert x.dtype == torch.float32 and torch.equal(x, y)


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_it_compiles_for_a_gpu_and_no_register_spills(capability):
    kernels = compiled("compile_linear", capability)
    assert {(k["d"], k["dtype"]) for k in kernels} >= {(64, "torch.bfloat16"), (128, "torch.bfloat16")}
    for k in kernels:
        assert k["shared"] <= k["available"] and k["stack"] == 0, k
        assert (k["products"] > 0) == (k["dtype"] != "torch.float32"), f"tensor cores: {k}"


def test_a_chunk_may_be_a_whole_number_of_numpy():
    x = torch.randn(1, 1, 70, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert torch.equal(*(linear_attention(x, x, x, chunk=chunk) for chunk in (32, np.int64(32))))
