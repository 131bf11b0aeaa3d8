"""Functions that torch's compiler leaves as they are. Only compiled code that calls them imports the compiler."""

import subprocess
import sys

import pytest
import torch

from flashlab.kernels import DEVICE, flash_attention, flash_attention_packed, masks, scores
from flashlab.kernels.decode import decode
from flashlab.kernels.device import stepped_around
from flashlab.kernels.linear_attention import linear_attention
from flashlab.kernels.shared_prefix import Prefix, decode_shared


@stepped_around("in_numpy")
def in_numpy(x, *, times=1):
    """Return x times a number, and note whether it is being compiled."""
    in_numpy.compiled.append(torch.compiler.is_compiling())
    return torch.from_numpy(x.numpy() * times)


@pytest.mark.exhaustive
def test_compiled_code_calls_the_function_uncompiled():
    in_numpy.compiled = []

    @torch.compile(backend="eager")
    def compiled(x, times):
        return in_numpy(x + 1, times=times) * 2

    for size in range(1, 5):  # each new shape or argument is compiled anew
        for times in (2, 3.0):
            x = torch.arange(float(size))
            assert torch.equal(compiled(x, times), (x + 1) * times * 2)
    assert in_numpy.compiled == [False] * 8


def test_one_graph_is_refused_with_the_reason():
    """Also in the first call, when ``stepped_around`` has not disabled the function yet."""
    torch._dynamo.reset()

    @stepped_around("a call of this kind")
    def fresh(x):
        return x + 1

    with pytest.raises(RuntimeError, match="a call of this kind cannot be part of a graph: compile without fullgraph"):
        torch.compile(lambda x: fresh(x), backend="eager", fullgraph=True)(torch.ones(2))


@pytest.mark.exhaustive
def test_calls_that_are_not_compiled_do_not_import_the_compiler():
    program = (
        "import sys; from flashlab.kernels import flash_attention, device; import torch;"
        "q = torch.ones(1, 1, 3, 16, device=device.DEVICE);"
        "flash_attention(q, q, q, dropout=0.5, seed=1); assert 'torch._dynamo' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.exhaustive
def test_compiled_code_decodes():
    """Also linear attention: like decoding, it is no operator of torch."""
    torch._dynamo.reset()
    q, k, v = torch.randn(3, 1, 2, 20, 16, device=DEVICE)
    calls = {
        "decode": lambda q: decode(q * 2, (k, v)) + 1,
        "decode_shared": lambda q: decode_shared(q * 2, [Prefix((k[:1], v[:1]))], (k, v)) + 1,
        "linear_attention": lambda q: linear_attention(q * 2, k, v) + 1,
    }
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match=f"{name} cannot be part of a graph"):
            torch.compile(call, backend="eager", fullgraph=True)(q)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(call, backend="eager")(q), call(q)), name


@pytest.mark.parametrize(
    "options",
    [{"mask": masks.sinks(3)}, {"dropout": 0.5, "seed": 1}, {"score": scores.softcap(2.0)}, {"batch_invariant": True}],
)
def test_flash_attention_says_which_calls_do_not_compile_in_one_graph(options):
    torch._dynamo.reset()
    q, k, v = torch.randn(3, 1, 2, 20, 16, device=DEVICE)
    whole = torch.compile(lambda q: flash_attention(q, k, v, **options), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="sinks, dropout, .* cannot be part"):
        whole(q)


def attends_to(**options):
    """Return a function (q, x) that makes a mask or a score function of x, and computes attention with it."""
    return lambda q, x: flash_attention(q, q, q, **{name: make(x) for name, make in options.items()})


MADE_IN_COMPILED_CODE = {
    "padding": (attends_to(mask=lambda n: masks.padding(n) & masks.causal()), torch.tensor([3, 20])),
    "documents": (attends_to(mask=lambda n: masks.documents(offsets=n) | masks.sinks(2)), torch.tensor([0, 3, 20])),
    "blocks": (attends_to(mask=lambda x: masks.blocks(x, 5, 5) & masks.window(3)), torch.ones(4, 4, dtype=torch.bool)),
    "dense": (attends_to(mask=lambda x: masks.prefix(2) | masks.dense(x)), torch.ones(20, 20, dtype=torch.bool)),
    "bias": (attends_to(score=lambda x: (scores.bias(x), scores.softcap(3.0))), torch.ones(2, 1, 1)),
    "slopes": (attends_to(score=scores.alibi), torch.ones(2)),
}


def assert_compiles(call, x):
    torch._dynamo.reset()
    q, x = torch.randn(2, 2, 20, 16, device=DEVICE), x.to(DEVICE)
    assert torch.equal(torch.compile(call, backend="eager", dynamic=True)(q, x), call(q, x))


def test_compiled_code_makes_masks():
    assert_compiles(*MADE_IN_COMPILED_CODE["padding"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("call, x", MADE_IN_COMPILED_CODE.values(), ids=MADE_IN_COMPILED_CODE)
def test_compiled_code_makes_masks_and_score_functions(call, x):
    assert_compiles(call, x)


def test_windows_combine_inside_a_graph():
    torch._dynamo.reset()
    q = torch.randn(2, 2, 20, 16, device=DEVICE)

    def call(q, left):
        return flash_attention(q, q, q, mask=masks.window(left, 5) & masks.causal())

    assert torch.equal(torch.compile(call, backend="eager", fullgraph=True, dynamic=True)(q, 3), call(q, 3))


def test_packed_texts_are_outside_of_graphs():
    torch._dynamo.reset()
    q, offsets = torch.randn(20, 2, 16, device=DEVICE), torch.tensor([0, 3, 20], device=DEVICE)
    whole = torch.compile(lambda q: flash_attention_packed(q, q, q, offsets_q=offsets), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="flash_attention_packed cannot be part of a graph"):
        whole(q)
