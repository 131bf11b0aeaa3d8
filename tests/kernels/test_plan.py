"""A call with a cached plan gives what a first call gives; so do CUDA graphs and torch.compile."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flashlab.kernels import DEVICE, flash_attention, masks, plan, scores
from flashlab.kernels.decode import decode
from tests.kernels.implementations import HOPPER, assert_same_bits
from tests.kernels.inputs import laid_out

REPEATS = 2 if DEVICE.type == "cpu" else 5
gpu_only = pytest.mark.skipif(DEVICE.type != "cuda", reason="kernels are compiled on a GPU only")
if HOPPER:
    from flashlab.kernels.hopper import schedule
KERNELS = ["portable", pytest.param("hopper", marks=pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"))]


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def drawn(layout, *shape, dtype=torch.bfloat16):
    """Return random numbers in this layout in memory."""
    return laid_out(randn(*shape, dtype=dtype), layout)


def results(q, k, v, **options):
    """Return O, dQ, dK and dV."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    O = flash_attention(q, k, v, **options)
    return O, *torch.autograd.grad(O.float().square().sum(), (q, k, v))


@pytest.mark.parametrize("kernel", KERNELS)
def test_calls_that_differ_in_one_thing_are_not_confused(kernel, monkeypatch):
    """Each case comes again after other cases, when its plan is cached."""
    usual = {"size": (1, 2, 40, 64), "layout": "plain", "dtype": torch.bfloat16, "mask": None, "scale": None}
    usual |= {"score": None, "sinks": None}
    ids = torch.arange(50, device=DEVICE) // 20
    others = {
        "size": [(1, 2, 50, 64), (2, 2, 40, 64), (1, 4, 40, 64), (1, 2, 40, 40), (1, 2, 0, 64)],
        "layout": ["transposed", "rows", "sliced", "offset"],
        "dtype": [torch.float16, *([torch.float32] if kernel == "portable" else [])],
        "mask": [masks.causal(), masks.window(9), masks.window(10), masks.window(10, 3)],
        "scale": [0.5, -0.5],
        "score": [scores.softcap(2.0), scores.softcap(3.0), scores.alibi(torch.ones(2, device=DEVICE))],
        "sinks": [torch.nn.Parameter(torch.full((2,), 1.0 + n, device=DEVICE)) for n in range(2)],
    }
    cases = [usual, *(usual | {name: value} for name, values in others.items() for value in values)]
    for size in ((1, 2, 40, 64), (1, 2, 20, 64)):
        cases += [usual | {"size": size, "mask": masks.documents(ids[: size[2]])}]
    for case in cases + cases[::-1] + (cases if DEVICE.type == "cuda" else []):
        tensors = [drawn(case["layout"], *case["size"], dtype=case["dtype"]) for _ in range(3)]
        options = {name: case[name] for name in ("mask", "scale", "score", "sinks")} | {"kernel": kernel}
        ours = results(*tensors, **options)
        with monkeypatch.context() as without_plans:
            without_plans.setattr(plan, "find", lambda *_: None)
            assert_same_bits(ours, results(*tensors, **options), kernel)


@pytest.mark.parametrize("kernel", [*KERNELS, "decode"])
def test_a_plan_for_keys_that_are_the_values_serves_no_other_call(kernel):
    """After a call with one tensor as K and V, a call with two tensors must not read one of them twice."""
    with torch.no_grad():
        q, k, v = randn(2, 4, 16, 64), randn(2, 1, 140, 64), randn(2, 1, 140, 64)
        expected = flash_attention(q, k, v, kernel="portable").float()
        for _ in range(2):
            flash_attention(q, k, k, kernel=kernel)
        O = flash_attention(q, k, v, kernel=kernel).float()
    torch.testing.assert_close(O, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kernel", KERNELS)
def test_layouts_of_gradients_are_not_confused(kernel, monkeypatch):
    """The dO of one kind of call has heads inside, is contiguous, or is not aligned; lse has a gradient or none."""
    inputs = [drawn("transposed", 1, 2, 50, 64).requires_grad_() for _ in range(3)]
    for layout in ["transposed", "plain", "offset", "plain"] * REPEATS:
        dO = drawn(layout, 1, 2, 50, 64)
        for dlse in (None, randn(1, 2, 50, dtype=torch.float32)):

            def gradients(dO=dO, dlse=dlse):
                O, lse = flash_attention(*inputs, kernel=kernel, return_lse=True)
                outputs, incoming = ((O,), (dO,)) if dlse is None else ((O, lse), (dO, dlse))
                return O, *torch.autograd.grad(outputs, inputs, incoming)

            ours = gradients()
            with monkeypatch.context() as without_plans:
                without_plans.setattr(plan, "find", lambda *_: None)
                assert_same_bits(ours, gradients(), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_saved_tensors_may_come_back_in_another_layout(kernel):
    """Tensors that were saved on the CPU come back contiguous."""
    inputs = [drawn("transposed", 1, 2, 50, 64).requires_grad_() for _ in range(3)]
    dO = randn(1, 2, 50, 64)

    def gradients():
        O = flash_attention(*inputs, kernel=kernel)
        return O, *torch.autograd.grad(O, inputs, dO)

    expected = gradients()
    for _ in range(REPEATS):
        assert_same_bits(gradients(), expected, kernel)
        with torch.autograd.graph.save_on_cpu():
            assert_same_bits(gradients(), expected, kernel)


@pytest.mark.parametrize(
    "wrong", [{"causal": 1}, {"scale": True}, {"scale": "1"}, {"kernel": "new"}, {"return_lse": 1}]
)
def test_a_bad_option_gets_a_sentence_although_it_equals_a_good_one(wrong):
    q = randn(1, 1, 16, 16)
    flash_attention(q, q, q, causal=True, scale=1.0)
    with pytest.raises((TypeError, ValueError)):
        flash_attention(q, q, q, **({"causal": True, "scale": 1.0} | wrong))


def test_a_good_step_hides_no_bad_one():
    """On the CPU, lengths and tables are checked by their values."""
    q, K = randn(2, 2, 1, 16), randn(2, 1, 40, 16)
    lengths = torch.tensor([40, 7], dtype=torch.int32, device=DEVICE)
    decode(q, (K, K), lengths=lengths)
    with pytest.raises(NotImplementedError, match="requires a gradient"):
        decode(q.clone().requires_grad_(), (K, K), lengths=lengths)
    with pytest.raises((TypeError, ValueError)):
        decode(q, (K, K), lengths=lengths.long())
    if DEVICE.type == "cpu":
        with pytest.raises(ValueError, match="from 0 to 40"):
            decode(q, (K, K), lengths=lengths + 1)


def test_steps_that_differ_in_one_thing_are_not_confused(monkeypatch):
    """V may be the first columns of K, read once for both, or other numbers in the same layout."""
    q, K, other = randn(2, 2, 1, 32), randn(2, 1, 140, 32), randn(2, 1, 140, 32)
    lengths = torch.tensor([140, 70], dtype=torch.int32, device=DEVICE)
    cases = [
        ((K, K[..., :16]), {}),
        ((K, other[..., :16]), {}),
        ((K, K), {}),
        ((K, other), {}),
        ((K, other), {"lengths": lengths}),
        ((K, other), {"fixed_split": 128}),
        ((K, other), {"mask": masks.window(100)}),
        ((K[:, :, :130], other[:, :, :130]), {}),
        ((K[:, :, :130].contiguous(), other[:, :, :130].contiguous()), {}),
    ]
    for cache, options in cases * 3:
        ours = decode(q, cache, **options, return_lse=True)
        with monkeypatch.context() as without_plans:
            without_plans.setattr(plan, "find", lambda *_: None)
            for x, y in zip(ours, decode(q, cache, **options, return_lse=True), strict=True):
                assert torch.equal(x, y)


def test_sixteen_threads_at_once_get_their_own_results(monkeypatch):
    plan.forget()
    inputs = [[randn(1, 2, 20 + n % 3, 16) for _ in range(3)] for n in range(16)]
    expected = [flash_attention(*tensors, kernel="portable") for tensors in inputs]
    plan.forget()
    with ThreadPoolExecutor(16) as threads:
        for ours in [list(threads.map(lambda tensors: flash_attention(*tensors), inputs)) for _ in range(2)]:
            assert all(map(torch.equal, ours, expected))


def test_a_plan_keeps_no_mask_alive():
    q, mask = randn(1, 1, 16, 16), masks.documents(torch.arange(16, device=DEVICE) // 5)
    for _ in range(2):
        flash_attention(q, q, q, mask=mask)
    reference = weakref.ref(mask)
    gc.disable()
    try:
        del mask
        assert reference() is None
    finally:
        gc.enable()


def test_the_number_of_cached_plans_is_bounded(monkeypatch):
    plan.forget()
    monkeypatch.setattr(plan, "MOST", 4)
    q = randn(1, 1, 16, 16)
    for N in range(1, 11):
        flash_attention(q, q[:, :, :N], q[:, :, :N])
        assert 1 <= len(plan._cached) <= 4


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
def test_gradients_are_deterministic_as_soon_as_torch_asks_for_it():
    tensors = [randn(4, 8, 1024, 128) for _ in range(3)]
    ordered = results(*tensors)
    torch.use_deterministic_algorithms(True)
    try:
        expected = results(*tensors)
        torch.use_deterministic_algorithms(False)
        for _ in range(5):
            assert_same_bits(results(*tensors), ordered, "hopper")
        torch.use_deterministic_algorithms(True)
        for _ in range(5):
            assert_same_bits(results(*tensors), expected, "portable")
    finally:
        torch.use_deterministic_algorithms(False)


def test_lse_in_float32_and_for_training_are_not_confused():
    """For gradients, the kernel also writes the rest of lse, which float32 does not hold."""
    q, k, v = (randn(1, 2, 100, 64, dtype=torch.float32) for _ in range(3))
    expected = flash_attention(q, k, v, return_lse=True)
    for _ in range(5):
        ours = flash_attention(q, k, v, return_lse=True)
        for_training = flash_attention(q, k, v.clone().requires_grad_(), return_lse=True)
        for x, y, z in zip(ours, for_training, expected, strict=True):
            assert torch.equal(x, z)
            torch.testing.assert_close(y, z)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_later_call_sees_documents_that_changed(kernel):
    q, k, v = (randn(1, 2, 150, 64) for _ in range(3))
    ids = torch.zeros(150, dtype=torch.int32, device=DEVICE)
    mask = masks.documents(ids) & masks.causal()
    for length in (60, 40):
        ids.copy_(torch.arange(150) // length)
        fresh = flash_attention(q, k, v, mask=masks.documents(ids.clone()) & masks.causal(), kernel=kernel)
        for _ in range(REPEATS):
            assert torch.equal(flash_attention(q, k, v, mask=mask, kernel=kernel), fresh)


@gpu_only
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cuda_graph_replays_with_other_inputs(kernel, causal):
    shape = 1, 2, 300, 64
    q, k, v = (randn(*shape).requires_grad_() for _ in range(3))
    dO = randn(*shape)

    def step():
        O = flash_attention(q, k, v, causal=causal, kernel=kernel)
        return O, *torch.autograd.grad(O, (q, k, v), dO)

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # compile, and make tables, before the capture
        step()
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        with torch.no_grad():
            for x in (q, k, v, dO):
                x.copy_(randn(*shape))
        for x in captured:
            x.detach().fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        ours = [x.clone() for x in captured]
        assert_same_bits(ours, step(), kernel)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("causal", [False, True])
def test_a_cuda_graph_outlives_cached_tables_and_launches(causal):
    """The tables of tiles that the graph reads must last after the caches are cleared and new tensors are allocated."""
    q, k, v = (randn(1, 2, 2500, 64) for _ in range(3))
    expected = flash_attention(q, k, v, causal=causal, kernel="hopper")
    torch.testing.assert_close(flash_attention(q, k, v, causal=causal, kernel="hopper"), expected, rtol=0, atol=0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flash_attention(q, k, v, causal=causal, kernel="hopper")
    plan.forget()
    schedule._longest_first.cache_clear()
    schedule._in_turn.cache_clear()
    gc.collect()
    others = [torch.full((n,), -1, dtype=torch.int32, device=DEVICE) for n in range(1, 400) for _ in range(9)]
    captured.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)
    assert all((x == -1).all() for x in others[::50])


@gpu_only
def test_a_cuda_graph_of_decoding_replays_with_a_longer_text():
    q, K, V = randn(2, 8, 1, 64), randn(2, 2, 2048, 64), randn(2, 2, 2048, 64)
    lengths = torch.tensor([700, 9], dtype=torch.int32, device=DEVICE)

    def step():
        return decode(q, (K, V), lengths=lengths)

    step()
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(3):
        lengths += 1
        q.copy_(randn(*q.shape))
        captured.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured.clone(), step())


@gpu_only
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_torch_compile_gives_what_eager_gives(kernel, mode):
    """With the default mode, and with the mode that makes CUDA graphs."""

    def model(q, k, v):
        return flash_attention(q, k, v, causal=True, kernel=kernel)

    # Each mode has a size of its own, so that compiled code makes what a call caches, such as the Hopper kernel's table
    # of tiles. CUDA graphs refuse cached tensors in their memory: "tensor(s) in the cudagraph pool not tracked as
    # outputs".
    shape = 1, 2, 310 if mode is None else 320, 64
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for _ in range(4):
        q, k, v = (randn(*shape).requires_grad_() for _ in range(3))
        dO = randn(*shape)
        torch.compiler.cudagraph_mark_step_begin()
        O = compiled(q, k, v)
        ours = [x.clone() for x in (O, *torch.autograd.grad(O, (q, k, v), dO))]
        O = model(q, k, v)
        assert_same_bits(ours, [O, *torch.autograd.grad(O, (q, k, v), dO)], kernel)
