"""A launch that is repeated does to other tensors what Triton's own way of launching does."""

import gc
import math
from types import SimpleNamespace

import pytest
import torch

from flashlab.kernels import DEVICE, attention, flash_attention, launch, masks, triton
from flashlab.kernels.attention import Plan
from flashlab.kernels.configurations import Configuration
from flashlab.kernels.decode import operator
from flashlab.kernels.portable import backward, forward
from flashlab.kernels.problem import Problem

HOPPER = DEVICE.type == "cuda" and torch.cuda.get_device_capability() == (9, 0)
gpu_only = pytest.mark.skipif(DEVICE.type != "cuda", reason="only on a GPU are launches repeated")
MODULES = [forward, backward, operator]  # that launch
if HOPPER:
    from flashlab.kernels.hopper import backward as hopper_backward
    from flashlab.kernels.hopper import forward as hopper_forward
    from flashlab.kernels.hopper import schedule

    MODULES += [hopper_forward, hopper_backward]
KERNELS = ["portable", pytest.param("hopper", marks=pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"))]


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def laid_out(how, B, H, N, d, dtype):
    """Return random numbers [B, H, N, d], in memory as ``how`` says."""
    if how == "heads inside":
        return randn(B, N, H, d, dtype=dtype).transpose(1, 2)
    if how == "every other row":
        return randn(B, H, 2 * N, d, dtype=dtype)[:, :, ::2]
    if how == "not aligned":
        return randn(B, H, N, d + 1, dtype=dtype)[..., 1:]
    return randn(B, H, N, d, dtype=dtype)


def results(q, k, v, **options):
    """Return O, dQ, dK and dV."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    O = flash_attention(q, k, v, **options)
    return O, *torch.autograd.grad(O.float().square().sum(), (q, k, v))


def assert_equal(ours, others, kernel, dQ=1):
    """Assert equal bits; for the Hopper kernels' dQ, which they add up in any order, equality up to two roundings."""
    for place, (x, y) in enumerate(zip(ours, others, strict=True)):
        if kernel != "portable" and place == dQ:
            eps = torch.finfo(x.dtype).eps
            torch.testing.assert_close(x, y, rtol=2 * eps, atol=2 * eps * y.abs().max().item())
        else:
            assert torch.equal(x, y)


@gpu_only
@pytest.mark.parametrize("kernel", KERNELS)
def test_calls_that_differ_in_one_thing_are_not_confused(kernel, monkeypatch):
    """Each case comes three times, with all others between, so that its launches are known, but not the addresses."""
    usual = {"size": (1, 2, 64, 64), "how": "plain", "dtype": torch.bfloat16, "causal": False, "scale": None}
    others = {
        "size": [(1, 2, 100, 64), (2, 2, 64, 64), (1, 4, 64, 64), (1, 2, 64, 40)],
        "how": ["heads inside", "every other row", "not aligned"],
        "dtype": [torch.float16, *([torch.float32] if kernel == "portable" else [])],
        "causal": [True],
        "scale": [0.5],
    }
    cases = [usual, *(usual | {name: value} for name, values in others.items() for value in values)]
    for case in cases + cases[::-1] + cases:
        tensors = [laid_out(case["how"], *case["size"], case["dtype"]) for _ in range(3)]
        options = {"causal": case["causal"], "scale": case["scale"], "kernel": kernel}
        ours = results(*tensors, **options)
        with monkeypatch.context() as changed:
            changed.setattr(launch, "KNOWN", False)
            assert_equal(ours, results(*tensors, **options), kernel)


@gpu_only
@pytest.mark.parametrize("kernel", [*KERNELS, "decode"])
def test_keys_that_are_the_values_do_not_become_other_calls(kernel):
    """Where two tensors are one, a later call of two tensors must not read that one twice."""
    with torch.no_grad():
        q, k, v = randn(2, 8, 16, 64), randn(2, 2, 640, 64), randn(2, 2, 640, 64)
        expected = flash_attention(q, k, v, kernel="portable").float()
        for _ in range(2):
            flash_attention(q, k, k, kernel=kernel)
        O = flash_attention(q, k, v, kernel=kernel).float()
    torch.testing.assert_close(O, expected, rtol=0.02, atol=0.02)


@gpu_only
@pytest.mark.parametrize("kernel", [*KERNELS, "decode"])
def test_a_repeated_call_asks_triton_nothing(kernel, monkeypatch):
    tensors = randn(1, 2, 16, 64), randn(1, 2, 640, 64), randn(1, 2, 640, 64)
    results(*tensors, kernel=kernel)
    first = results(*tensors, kernel=kernel)
    for module in MODULES:
        monkeypatch.setattr(module, "launch", lambda *_, **__: pytest.fail("the launch was not known"))
    assert_equal(first, results(*tensors, kernel=kernel), kernel)


@gpu_only
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_that_are_laid_out_otherwise_are_not_confused(kernel, monkeypatch):
    """Of one call, dO comes with its heads inside, contiguous, and not aligned; lse has a gradient or none."""
    inputs = [laid_out("heads inside", 1, 2, 100, 64, torch.bfloat16).requires_grad_() for _ in range(3)]
    for how in ["heads inside", "plain", "not aligned", "plain"] * 5:
        dO = laid_out(how, 1, 2, 100, 64, torch.bfloat16)
        for dlse in (None, randn(1, 2, 100, dtype=torch.float32)):

            def gradients(dO=dO, dlse=dlse):
                O, lse = flash_attention(*inputs, kernel=kernel, return_lse=True)
                outputs, incoming = ((O,), (dO,)) if dlse is None else ((O, lse), (dO, dlse))
                return O, *torch.autograd.grad(outputs, inputs, incoming)

            ours = gradients()
            with monkeypatch.context() as changed:
                changed.setattr(launch, "KNOWN", False)
                assert_equal(ours, gradients(), kernel)


@gpu_only
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_was_saved_may_come_back_laid_out_otherwise(kernel):
    """Tensors that were kept on the CPU meanwhile come back contiguous."""
    inputs = [laid_out("heads inside", 1, 2, 100, 64, torch.bfloat16).requires_grad_() for _ in range(3)]
    dO = randn(1, 2, 100, 64)

    def gradients():
        O = flash_attention(*inputs, kernel=kernel)
        return O, *torch.autograd.grad(O, inputs, dO)

    expected = gradients()
    for _ in range(5):
        assert_equal(gradients(), expected, kernel)
        with torch.autograd.graph.save_on_cpu():
            assert_equal(gradients(), expected, kernel)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
def test_gradients_are_those_of_the_portable_kernels_as_soon_as_torch_wants_them_deterministic():
    tensors = [randn(4, 8, 1024, 128) for _ in range(3)]
    ordered = results(*tensors)
    torch.use_deterministic_algorithms(True)
    try:
        expected = results(*tensors)
        torch.use_deterministic_algorithms(False)
        for _ in range(5):
            assert_equal(results(*tensors), ordered, "hopper")
        torch.use_deterministic_algorithms(True)
        for _ in range(5):
            assert_equal(results(*tensors), expected, "portable")
    finally:
        torch.use_deterministic_algorithms(False)


@gpu_only
def test_lse_in_float32_and_for_training_are_not_confused():
    """Where gradients will need more of it than float32 holds, the kernel writes lse in float64."""
    q, k, v = (randn(1, 2, 100, 64, dtype=torch.float32) for _ in range(3))
    expected = flash_attention(q, k, v, return_lse=True)
    for _ in range(5):
        ours = flash_attention(q, k, v, return_lse=True)
        for_training = flash_attention(q, k, v.clone().requires_grad_(), return_lse=True)
        for x, y, z in zip(ours, for_training, expected, strict=True):
            assert torch.equal(x, z)
            torch.testing.assert_close(y, z)


@gpu_only
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_known_launch_sees_documents_that_changed(kernel):
    q, k, v = (randn(2, 2, 600, 64) for _ in range(3))
    ids = torch.zeros(600, dtype=torch.int32, device=DEVICE)
    mask = masks.documents(ids) & masks.causal()
    for length in (100, 70):
        ids.copy_(torch.arange(600) // length)
        fresh = flash_attention(q, k, v, mask=masks.documents(ids.clone()) & masks.causal(), kernel=kernel)
        for _ in range(4):
            assert torch.equal(flash_attention(q, k, v, mask=mask, kernel=kernel), fresh)


@gpu_only
def test_a_profiler_hears_of_each_launch():
    q, k, v = (randn(1, 2, 64, 64) for _ in range(3))
    heard = []
    hooks = triton.knobs.runtime.launch_enter_hook
    hook = lambda metadata: heard.append(metadata.get()["name"])  # noqa: E731
    with torch.no_grad():
        for _ in range(2):
            flash_attention(q, k, v, kernel="portable")
        hooks.add(hook)
        try:
            flash_attention(q, k, v, kernel="portable")
            flash_attention(q, k, v, kernel="portable")
        finally:
            hooks.remove(hook)
        flash_attention(q, k, v, kernel="portable")
    assert heard == ["attention_forward"] * 2


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
    with torch.cuda.stream(aside):  # compiled, and the tables are made, before the capture
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
        assert_equal(ours, step(), kernel)


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("causal", [False, True])
def test_a_cuda_graph_outlives_what_is_remembered(causal):
    """The tables of tiles that it reads must last, though others are asked for and the launches are forgotten."""
    q, k, v = (randn(1, 2, 2500, 64) for _ in range(3))
    expected = flash_attention(q, k, v, causal=causal, kernel="hopper")
    torch.testing.assert_close(flash_attention(q, k, v, causal=causal, kernel="hopper"), expected, rtol=0, atol=0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flash_attention(q, k, v, causal=causal, kernel="hopper")
    launch._repeats.clear()
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
        return operator.decode(q, (K, V), lengths=lengths)

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
    """With the default backend, and with the CUDA graphs that it makes."""

    def model(q, k, v):
        return flash_attention(q, k, v, causal=True, kernel=kernel)

    # A size of its own: what a call keeps, such as the Hopper kernel's table of tiles, is made by compiled code. The
    # CUDA graphs would refuse a tensor in their memory: "tensor(s) in the cudagraph pool not tracked as outputs".
    shape = 1, 2, 310 if mode is None else 320, 64
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for _ in range(4):
        q, k, v = (randn(*shape).requires_grad_() for _ in range(3))
        dO = randn(*shape)
        torch.compiler.cudagraph_mark_step_begin()
        O = compiled(q, k, v)
        ours = [x.clone() for x in (O, *torch.autograd.grad(O, (q, k, v), dO))]
        O = model(q, k, v)
        assert_equal(ours, [O, *torch.autograd.grad(O, (q, k, v), dO)], kernel)


# without a GPU: what is repeated, and with which addresses


def plan_of(
    size=(1, 2, 64, 64), how="plain", dtype=torch.float16, left=None, scale=0.5, kernel=None, precision="highest"
):
    torch.set_float32_matmul_precision(precision)
    try:
        tensors = [laid_out(how, *size, dtype) for _ in range(3)]
        return Plan.of(*tensors, masks.Window(left, None), scale, kernel), tensors
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "other",
    [
        {"size": (1, 2, 65, 64)}, {"size": (1, 4, 32, 64)}, {"how": "heads inside"}, {"how": "not aligned"},
        {"dtype": torch.bfloat16}, {"left": 9}, {"scale": 0.25}, {"kernel": "portable"},
        {"dtype": torch.float32, "precision": "high"},
    ],
    ids=str,
)  # fmt: skip
def test_calls_that_differ_have_plans_of_their_own(other):
    usual = {"dtype": torch.float32} if "precision" in other else {}
    plan, _ = plan_of(**usual)
    assert plan_of(**usual)[0] is plan
    assert plan_of(**usual | other)[0] is not plan


def test_a_plan_learns_launches_that_took_the_tensors_themselves():
    plan, (q, k, v) = plan_of()
    at = launch.addresses((q, k, v))
    plan._learn(False, launch.Known(None, (at[0] + 16, *at[1:]), []), (q, k, v))
    plan._learn(False, None, (q, k, v))
    assert not plan.launches
    known = launch.Known(None, (*at, 4096), [16])  # the last tensor was made by the pass
    plan._learn(True, known, (q, k, v))
    assert plan.launches == {True: known}


@pytest.fixture
def backward_of(monkeypatch):
    """Return a plan's backward pass with stand-ins for what it repeats and starts: which of them ran, on what."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    plan, tensors = plan_of()
    ran = []

    def gradients_of(do, dlse, *saved_and_others):
        saved = saved_and_others[:5]
        made = [x.clone(memory_format=torch.contiguous_format) for x in saved[:3]]
        at = *launch.addresses((*saved, do, dlse, *made)), 4096  # the last tensor was made by the pass
        ran.append(("started", saved))
        repeat = lambda at, device: ran.append(("repeated", at))  # noqa: E731
        return *made, None, launch.Known(repeat, at, [8, 8, 8, 16])

    monkeypatch.setattr(attention, "gradients_of", gradients_of)
    plan.launches = {}

    def run(do, q, k, v, o, lse, dlse=None):
        ran.clear()
        return *plan.gradients(do, dlse, q, k, v, o, lse), *ran

    return run, tensors


def test_a_repeated_backward_pass_has_the_addresses_of_this_time(backward_of):
    """In the order of ``Known``: what was saved, dO, dlse, the gradients, new memory of the known size."""
    run, _ = backward_of
    for outcome in ("started", "repeated", "repeated"):
        q, k, v, o, do = (randn(1, 2, 64, 64, dtype=torch.float16) for _ in range(5))
        lse = randn(1, 2, 64, dtype=torch.float32)
        *gradients, (how, at) = run(do, q, k, v, o, lse)
        assert how == outcome
        if how == "repeated":
            assert at[:-1] == launch.addresses((q, k, v, o, lse, do, None, *gradients))
            assert at[-1] not in at[:-1]
            assert [(x.shape, x.is_contiguous()) for x in gradients] == [(q.shape, True)] * 3


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("how", ["heads inside", "not aligned"])
def test_gradients_of_another_layout_are_started(backward_of, place, how):
    """Tensors: dO, and those that were saved, which hooks may change. What is not aligned is never repeated."""
    run, (q, k, v) = backward_of
    tensors = [torch.empty_like(q), q, k, v, torch.empty_like(q), q.new_empty(1, 2, 64, dtype=torch.float32)]
    assert run(*tensors)[-1][0] == "started" and run(*tensors)[-1][0] == "repeated"
    x = tensors[place]
    other = laid_out(how, 1, 2, 64, 64, x.dtype)
    others = [*tensors[:place], other[..., 0] if place == 5 else other, *tensors[place + 1 :]]
    assert run(*others)[-1][0] == "started"
    again = "started" if how == "not aligned" else "repeated"
    assert run(*others)[-1][0] == again
    assert run(*tensors)[-1][0] == "repeated"


def test_gradients_that_lse_takes_part_in_are_started(backward_of):
    run, (q, k, v) = backward_of
    tensors = [torch.empty_like(q), q, k, v, torch.empty_like(q), q.new_empty(1, 2, 64, dtype=torch.float32)]
    run(*tensors)
    for _ in range(2):
        assert run(*tensors, dlse=torch.empty_like(tensors[-1]))[-1][0] == "started"
    torch.use_deterministic_algorithms(True)
    try:
        assert run(*tensors)[-1][0] == "started"
    finally:
        torch.use_deterministic_algorithms(False)
    assert run(*tensors)[-1][0] == "repeated"


class Somewhere:
    """A tensor on a GPU, as far as ``again`` looks at it."""

    device = torch.device("cuda", 0)
    is_cuda = True

    def __init__(self, place, shape=(2, 8), strides=(8, 1), dtype=torch.float16):
        self.place, self.shape, self.strides, self.dtype = place, shape, strides, dtype

    def data_ptr(self):
        return self.place

    def stride(self):
        return self.strides

    def detach(self):
        return Somewhere(self.place, self.shape, self.strides, self.dtype)

    @property
    def nbytes(self):
        return math.prod(self.shape) * self.dtype.itemsize


TABLE = Somewhere(4096)  # of the launch itself


def kernel_of(*kinds, scratch=0):
    """Return a stand-in for a compiled kernel that takes these kinds of arguments, and memory that Triton allocates."""
    metadata = SimpleNamespace(tensordesc_meta=None, global_scratch_size=scratch, profile_scratch_size=0)
    return SimpleNamespace(metadata=metadata, src=SimpleNamespace(signature=dict(enumerate(kinds))))


@pytest.fixture
def run(monkeypatch):
    """Return a function that launches with a stand-in for Triton: what was repeated, or None if it had to start.

    The first launch is made twice, since only then it is known.
    """
    repeated = []

    def start(x, y, *options):
        kinds = "*fp16", "constexpr" if y is None else "*fp16", "*i32", *("i32" for _ in options)
        return kernel_of(*kinds), (1, 1, 1), (x, y, TABLE), options

    def run_one(x, y, z, stream, known, taken):
        assert known == "known"
        repeated.append(((x, y, z), stream, taken))

    def run(x, y, *options, when=True):
        repeated.clear()
        launch.again(start, (x, y), (), *options, when=when)
        if repeated:
            ((grid, stream, taken),) = repeated
            assert (grid, stream) == ((1, 1, 1), run.stream)
            return taken
        launch.again(start, (x, y), (), *options, when=when)
        assert not repeated
        return None

    monkeypatch.setattr(launch, "_repeats", {})
    monkeypatch.setattr(launch, "_launcher", lambda kernel: (run_one, lambda taken: ("known", taken)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: run.recorded)
    monkeypatch.setattr(triton.runtime.driver, "_active", SimpleNamespace(get_current_stream=lambda index: run.stream))
    run.repeated, run.stream, run.recorded = repeated, 7, False  # by a CUDA graph
    return run


def test_what_is_repeated_has_the_addresses_of_this_time(run):
    assert run(Somewhere(16), None, 5) is None
    assert run(Somewhere(32), None, 5) == [32, 4096, 5]
    assert run(Somewhere(16), Somewhere(48), 5) is None
    assert run(Somewhere(64), Somewhere(64), 5) == [64, 64, 4096, 5]
    assert run(Somewhere(64), Somewhere(80), 5) == [64, 80, 4096, 5]


def test_the_same_addresses_come_again_on_another_stream(run):
    assert run(Somewhere(16), Somewhere(48), 5) is None
    for stream in (7, 8, 8, 7):
        run.stream = stream  # compared by ``run``
        assert run(Somewhere(64), Somewhere(80), 5) == [64, 80, 4096, 5]
        assert run(Somewhere(80), Somewhere(64), 5) == [80, 64, 4096, 5]
    assert run(Somewhere(64), Somewhere(80), 6) is None  # another option
    assert run(Somewhere(64), Somewhere(80), 6) == [64, 80, 4096, 6]


def test_the_same_addresses_come_again_on_another_device(run, monkeypatch):
    """Launched while that device is the current one."""
    entered = []

    class Current:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(self.device)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(torch.cuda, "device", Current)
    assert run(Somewhere(16), Somewhere(48)) is None
    run(Somewhere(16), Somewhere(48))
    assert entered == []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert run(Somewhere(16), Somewhere(48)) == [16, 48, 4096]
    assert entered == [Somewhere.device]


def test_addresses_are_forgotten_if_there_are_many(run, monkeypatch):
    monkeypatch.setattr(launch, "PLACES", 3)
    run(Somewhere(16), Somewhere(16))
    for n in range(1, 9):
        assert run(Somewhere(16 * n), Somewhere(16)) == [16 * n, 16, 4096]
        (known,) = (x for x in launch._repeats.values() if x is not None)
        assert len(known.ready) <= 3


@pytest.mark.parametrize(
    "other",
    [{"shape": (3, 8)}, {"strides": (16, 1)}, {"dtype": torch.bfloat16}, {"place": 24}],
    ids=["shape", "strides", "dtype", "not aligned"],
)
def test_tensors_that_are_laid_out_otherwise_are_started(run, other):
    given = {"place": 16}
    assert run(Somewhere(16), Somewhere(16), 5) is None
    assert run(Somewhere(16), Somewhere(**(given | other)), 5) is None
    assert run(Somewhere(**(given | other)), Somewhere(16), 5) is None
    assert run(Somewhere(16), Somewhere(16), 6) is None  # another option
    assert run(Somewhere(16), Somewhere(16), 5) == [16, 16, 4096, 5]


def test_what_depends_on_more_is_never_repeated(run, monkeypatch):
    for _ in range(2):
        assert run(Somewhere(16), Somewhere(16), [], when=False) is None
    assert run(Somewhere(16), Somewhere(16)) is None and run(Somewhere(16), Somewhere(16)) is not None
    monkeypatch.setattr(launch, "KNOWN", False)  # a version of Triton with other launchers
    assert run(Somewhere(16), Somewhere(16)) is None


def test_what_a_cuda_graph_records_is_started(run):
    assert run(Somewhere(16), Somewhere(16)) is None and run(Somewhere(16), Somewhere(16)) is not None
    run.recorded = True
    assert run(Somewhere(16), Somewhere(16)) is None
    run.recorded = False
    assert run(Somewhere(32), Somewhere(16)) == [32, 16, 4096]


def test_a_pass_of_several_launches_takes_parts_of_what_was_made_for_it(run):
    """Each launch has its own tensors, in its own order, and parts of one that was made follow it."""

    def start(x, y, whole, option):
        part = Somewhere(whole.place + 32)
        first = kernel_of("*fp16", "*fp32", "i32"), (1, 1, 1), (y, part), (option,)
        return [first, (kernel_of("*i32", "*fp32", "*fp16", "*fp16"), (2, 1, 1), (TABLE, whole, x, y), ())]

    def again(x, y, whole):
        run.repeated.clear()
        launch.again(start, (Somewhere(x), Somewhere(y)), (Somewhere(whole, (64,), (1,)),), 5)
        return [taken for _, _, taken in run.repeated]

    assert again(16, 48, 256) == [] and again(16, 48, 256) == []
    assert again(80, 96, 512) == [[96, 544, 5], [4096, 512, 80, 96]]
    assert again(80, 80, 1024) == [[80, 1056, 5], [4096, 1024, 80, 80]]


def test_parts_of_groups_are_repeated_with_the_rest(run, monkeypatch):
    """Two query heads per key, each a part: the last launch adds up their shares, which are in new memory."""

    def launched(kernel, grid, tensors, numbers, **_):
        kinds = ["constexpr" if x is None else "*fp16" for x in tensors]
        return kernel_of(*kinds, *("constexpr" for _ in numbers)), grid, tensors, numbers

    monkeypatch.setattr(backward, "launch", launched)
    monkeypatch.setattr(backward.tiles, "has_copy_engine", lambda device: False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    whole = Configuration(64, 64, 4, 1)
    launches = {"row_constants": whole, "key_value_gradients": whole._replace(parts=2), "query_gradients": whole}
    outcomes = []
    for _ in range(4):
        q, o, do = (randn(1, 4, 70, 64) for _ in range(3))
        k, v = (randn(1, 2, 50, 64) for _ in range(2))
        lse = randn(1, 4, 70, dtype=torch.float32)
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        monkeypatch.setattr(torch.cuda, "current_device", lambda: q.device.index)  # noqa: B023
        run.repeated.clear()
        problem = Problem.of(q, k, v, masks.full(), 0.125)
        _, known = backward.run(gradients, (do, None), (q, k, v, o, lse), problem, launches)
        outcomes.append(bool(run.repeated))
    assert outcomes == [False, False, True, True]
    constants, of_keys, of_queries, sums = (taken for _, _, taken in run.repeated)
    given = q, k, v, o, lse, do, None, *gradients
    assert known.at[:-1] == launch.addresses(given)
    q, k, v, o, lse, do, _, dq, dk, dv, scratch = known.at
    lse_log2, delta, share_of_dk = scratch, scratch + 4 * 4 * 128, scratch + 8 * 4 * 128
    share_of_dv = share_of_dk + 2 * 2 * 2 * 50 * 64
    assert known.sizes[-1] == share_of_dv + 2 * 2 * 2 * 50 * 64 - scratch
    assert constants == [o, do, lse, lse_log2, delta]
    assert of_keys == [q, k, v, do, share_of_dk, share_of_dv, lse_log2, delta]
    assert of_queries == [q, k, v, do, dq, lse_log2, delta]
    assert sums == [dk, dv, share_of_dk, share_of_dv]


def test_what_the_compiler_knows_is_not_handed_over_again(run):
    """Numbers may be in tuples of tuples; the kernel takes those that the compiler has not put into its code."""

    def start(x, y):
        kinds = "*fp16", "*fp16", ("i32", ("constexpr", "fp32")), "constexpr", "i64"
        return kernel_of(*kinds), (1, 1, 1), (x, y), ((3, ("causal", 0.5)), 128, 9)

    for _ in range(3):
        launch.again(start, (Somewhere(16), Somewhere(48)), ())
    ((_, _, taken),) = run.repeated
    assert taken == [16, 48, 3, 0.5, 9]


def test_a_copy_of_a_tensor_is_not_taken_for_it(run):
    """A launch that does not take a given tensor, but perhaps a copy that ``start`` has made, cannot be repeated."""

    def start(x, y):
        return kernel_of("*fp16", "*fp16"), (1, 1, 1), (x, Somewhere(y.place)), ()

    for _ in range(4):
        launch.again(start, (Somewhere(16), Somewhere(48)), ())
    assert run.repeated == []


def test_a_kernel_for_which_triton_allocates_memory_is_started(run):
    def start(x, y):
        return kernel_of("*fp16", "*fp16", scratch=128), (1, 1, 1), (x, y), ()

    for _ in range(4):
        launch.again(start, (Somewhere(16), Somewhere(48)), ())
    assert run.repeated == []


def test_launches_of_many_shapes_are_forgotten(run, monkeypatch):
    monkeypatch.setattr(launch, "FORGET_AFTER", 3)
    for option in range(7):
        run(Somewhere(16), Somewhere(16), option)
        assert len(launch._repeats) <= 3
    assert run(Somewhere(16), Somewhere(16), 6) is not None
