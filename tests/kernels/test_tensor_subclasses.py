"""Distributed tensors are refused by every function, fake tensors by each function that is no operator of torch."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

from flashlab.kernels import DEVICE, decode, flash_attention, flash_attention_packed, float8, masks, scores
from flashlab.kernels.decode.paged import PagedCache
from flashlab.kernels.linear_attention import linear_attention

q, lengths, slopes = torch.randn(1, 2, 16, 16), torch.tensor([9], dtype=torch.int32), torch.ones(2)


def appended(q):
    cache = PagedCache(4, 16, 2, 16, dtype=torch.float32)
    cache.append([cache.add()], q, q)


CALLS = {  # with one tensor [1, 2, 16, 16]
    "window": lambda x: flash_attention(x, x, x, causal=True),
    "score": lambda x: flash_attention(x, x, x, score=scores.softcap(3.0)),
    "decode": lambda x: decode.decode(x, (x, x)),
    "packed": lambda x: flash_attention_packed(x[0], x[0], x[0], offsets_q=torch.tensor([0, 2], device=DEVICE)),
    "quantise": float8.quantise,
    "linear attention": lambda x: linear_attention(x, x, x),
    "append": appended,
}
OPTIONS = {  # the tensor of an option, and an ordinary call with this option
    "padding": (lengths, lambda x: flash_attention(q, q, q, mask=masks.padding(x))),
    "offsets": (torch.tensor([0, 16]), lambda x: flash_attention(q, q, q, mask=masks.documents(offsets=x))),
    "slopes": (slopes, lambda x: flash_attention(q, q, q, score=scores.alibi(x))),
    "sinks": (slopes, lambda x: flash_attention(q, q, q, sinks=x)),
    "lengths": (lengths, lambda x: decode.decode(q, (q, q), lengths=x)),
    "decode's mask": (lengths, lambda x: decode.decode(q, (q, q), mask=masks.padding(x))),
}
ALL = {name: (q, call) for name, call in CALLS.items()} | OPTIONS
every_call = pytest.mark.parametrize("x, call", ALL.values(), ids=ALL)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """One process as a mesh."""
    file = tmp_path_factory.mktemp("mesh") / "ranks"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@every_call
@pytest.mark.skipif(DEVICE.type == "cuda", reason="the mesh is of the CPU")
def test_distributed_tensors_get_a_sentence(x, call, mesh):
    distributed = DTensor.from_local(x, mesh, [Replicate()])
    with pytest.raises((TypeError, ValueError, NotImplementedError), match="got a DTensor|is a DTensor"):
        call(distributed)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"window", "append"}))
def test_fake_tensors_get_a_sentence_where_there_is_no_operator(name):
    here = q.to(DEVICE)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(here)
        with pytest.raises((ValueError, NotImplementedError), match="FakeTensor|windows at most"):
            CALLS[name](fake)


@pytest.mark.parametrize("options", [{}, {"score": scores.softcap(3.0)}], ids=["plain", "score"])
def test_vectorised_gradients_get_a_sentence(options):
    x = q.to(DEVICE)
    with pytest.raises(NotImplementedError, match="no vectorised gradients"):
        torch.autograd.functional.jacobian(lambda q: flash_attention(q, x, x, **options), x, vectorize=True)


def test_more_heads_in_a_group_than_a_grid_holds_are_refused():
    x = torch.ones(1, 1, 1, 16, device=DEVICE)
    with pytest.raises(ValueError, match="at most 65535 query heads share a key/value head, got 70000"):
        flash_attention(x.expand(1, 70000, 1, 16), x, x)
