"""The interpreter of Gluon runs the Hopper kernels right, in each order of their roles, and rejects wrong kernels."""

import functools
import inspect
import math
from unittest import mock

import numpy as np
import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlab import kernels
from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import Configuration
from flashlab.kernels.decode import operator
from flashlab.kernels.decode.cache import Cache
from flashlab.kernels.decode.tiles import Launch
from flashlab.kernels.float8 import Scales
from flashlab.kernels.gluon_interpreter import noted, seeded
from flashlab.kernels.gluon_interpreter.memory import Descriptor, Memory, places
from flashlab.kernels.gluon_interpreter.scheduler import READ
from flashlab.kernels.gluon_interpreter.values import Value, value
from flashlab.kernels.hopper import forward, forward_float8, latent, toy
from flashlab.kernels.hopper.arguments import layout
from flashlab.kernels.launch import launch
from flashlab.kernels.problem import Problem
from flashlab.machine.sm import Deadlock, Race
from flashlab.reference import masks as reference_masks
from tests.kernels import test_decode as of_decoding
from tests.kernels import test_hopper as cases
from tests.kernels import test_hopper_backward as of_backward
from tests.kernels import written_out, wrong_gluon
from tests.kernels.in_eight_bits import error, in_eight_bits, in_exact_arithmetic
from tests.kernels.inputs import in_bfloat16, randn
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long, long_except
from tests.tools.taken_in import in_window

loops = pytest.mark.usefixtures("interpreter_that_loops")  # for tests that also run kernels in Triton's own interpreter
REPORTED = Race, Deadlock, IndexError, TypeError, AssertionError  # what a wrong kernel may end with
pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="here the kernels run compiled")


# numbers and shared memory


def test_whole_numbers_are_those_of_c():
    for a, b in ((-7, 2), (7, -2), (-7, -2), (7, 2), (-8, 2)):
        x = value(a)
        assert int(x // b) == int(a / b) and int(x % b) == a - int(a / b) * b
    assert int(value(2**31 - 1) + 1) == -(2**31) and (value(3) + 2**40).dtype == gl.int64
    assert int((value(1) - 2).to(gl.uint32)) == 2**32 - 1 and bool((value(1) - 2).to(gl.uint32) > 5)


@pytest.mark.parametrize("dtype, of_torch", [(gl.bfloat16, torch.bfloat16), (gl.float8e4nv, torch.float8_e4m3fn)])
def test_numbers_are_rounded_as_torch_does(dtype, of_torch):
    x = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 9, torch.tensor([math.nan, 0.0])])
    ours = torch.from_numpy(np.array(Value(x.numpy(), gl.float32).to(dtype).data))
    assert torch.equal(ours.nan_to_num(77), x.to(of_torch).float().nan_to_num(77))


def test_operands_of_two_types_give_the_type_of_triton():
    half, brain, single = (Value(np.ones(2), gl.float32).to(t) for t in (gl.float16, gl.bfloat16, gl.float32))
    assert (half + brain).dtype == (half + single).dtype == (value(3) / 2).dtype == gl.float32
    assert (brain * 2.5).dtype == gl.bfloat16 and (value(3) * 0.5).dtype == gl.float32
    assert (1 / value(3.0)).data.dtype == np.float32


def test_wide_tiles_have_panels_of_128_bytes():
    """So the bytes of a tile of 128 columns are also those of two tiles of 64."""
    where = places((1, 8, 128), 2, layout((8, 128), torch.bfloat16))
    halves = places((2, 8, 64), 2, layout((8, 64), torch.bfloat16))
    assert (where[0, :, :64] == halves[0]).all() and (where[0, :, 64:] == halves[1]).all()


def test_a_copy_of_odd_rows_is_watched_in_all_its_cells(monkeypatch):
    """Three rows, eight numbers apart, of five numbers of 16 bits: the cells of 4 bytes 0 to 2, 4 to 6 and 8 to 10."""
    memory, watched = Memory(torch.zeros(3, 8, dtype=torch.bfloat16), "X", {}), set()
    monkeypatch.setattr(memory, "access", lambda offsets, *_: watched.update(memory.cells(offsets).tolist()))
    Descriptor(memory, (3, 5), (8, 1), (4, 8), None).tile((0, 0)).access(READ, "reads")
    assert watched == {0, 1, 2, 4, 5, 6, 8, 9, 10}


@gluon.jit
def strays(X, n: gl.constexpr):
    gl.load(X + gl.arange(0, n))


@gluon.jit
def unknown(X):
    gl.histogram(gl.load(X), 2)


@gluon.jit
def assembles(X):
    gl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=f,f", [gl.load(X)], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def takes_both(X):
    i = gl.arange(0, 32, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(X + i, 1.0, mask=(i >= 0) and (i < 6))


def test_a_block_has_no_truth_value_and_a_number_has_one():
    with pytest.raises(TypeError, match=r"takes_both, line \d+: .*\[32\] has no truth value.* & \| ~ .*where"):
        launch(takes_both, (1, 1, 1), (torch.zeros(6),), (), warps=4)
    assert value(3) and not value(0) and not Value(np.zeros((1, 1)), gl.float32)


def test_what_cannot_be_interpreted_gets_a_sentence():
    x = torch.zeros(6)
    with pytest.raises(IndexError, match=r"strays goes outside X: load of 2 element\(s\), in program \(0, 0, 0\)"):
        launch(strays, (1, 1, 1), (x,), (8,), warps=4)
    with pytest.raises(NotImplementedError, match="no language.histogram"):
        launch(unknown, (1, 1, 1), (x,), (), warps=4)
    with pytest.raises(NotImplementedError, match="what this PTX computes: 'add.f32"):
        launch(assembles, (1, 1, 1), (x,), (), warps=4)


# the first kernels


def integers(N):
    """Return X [N, 64] of small whole numbers, whose sums of products are exact."""
    return torch.randint(-4, 5, (N, toy.WIDTH), generator=torch.Generator().manual_seed(N)).bfloat16()


def gram_is_exact():
    for N, stages, seed in ((1, 1, 0), (1000, 2, 1), (1000, 3, 2)):
        x = integers(N)
        with seeded(seed):
            assert torch.equal(toy.gram(x, stages=stages), x.float().T @ x.float())


def test_gram_is_exact():
    gram_is_exact()


def test_one_block_is_exact():
    x, product = integers(128), torch.empty(64, 64)
    X = TensorDescriptor.from_tensor(x, [128, 64], layout((128, 64), x.dtype))
    launch(toy.one_block, (1, 1, 1), (X, product), (), warps=4)
    assert torch.equal(product, x.float().T @ x.float())


# the forward kernel


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", long_except(["64", "192"], cases.CONFIGURATIONS))
def test_forward_equals_dense(name, causal):
    """300 queries and 333 keys, with 6 heads in all, so that a program computes several tiles."""
    width = cases.CONFIGURATIONS[name][0]
    cases.assert_equals_dense(cases.forward_run(name), *in_bfloat16(2, 3, 1, 300, 333, width), causal)


def test_heads_of_fewer_columns_than_their_tiles_equal_dense():
    for d, dv, keys in ((72, 96, 64), (40, 128, 128)):
        run = functools.partial(cases.forward.run, c=Configuration(128, keys, 12, 2))
        cases.assert_equals_dense(run, *in_bfloat16(1, 3, 1, 200, 333, d, dv), True)
    run = functools.partial(cases.forward.run, c=Configuration(128, 128, 12, 2))
    cases.assert_equals_dense(run, *in_bfloat16(1, 3, 1, 200, 333, 192, 128), True)


def forward_is_right():
    run = cases.forward_run("64")
    cases.assert_equals_dense(run, *in_bfloat16(2, 4, 2, 300, 400, 64), True)
    cases.assert_equals_dense(run, *in_bfloat16(1, 4, 2, 700, 100, 64), False)  # tiles of one block of keys


def test_every_order_gives_the_same_bits():
    run = cases.forward_run("64")
    q, k, v = in_bfloat16(1, 4, 2, 300, 333, 64)
    results = []
    for seed in range(4):
        *_, o, lse = cases.poisoned(q, 64)
        with seeded(seed):
            run(o, lse, q, k, v, Problem.of(q, k, v, masks.causal(), 0.1))
        results.append((o, lse))
    for o, lse in results[1:]:
        assert torch.equal(o, results[0][0]) and torch.equal(lse, results[0][1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["64", "64 three consumers", "128", "192", "256"])
def test_forward_is_right_for_all_kinds_of_cases(name):
    """Of the ``small`` cases of ``test_hopper``, every ninth, or every 40th of windows."""
    run, width = cases.forward_run(name), cases.CONFIGURATIONS[name][0]
    of_kinds = [case for kind in cases.KINDS for case in kind(width)]
    for n, (_, (q, k, v)) in enumerate(small(of_kinds)[::9]):
        cases.assert_equals_dense(run, q, k, v, n % 2 == 1)
    for kind in cases.MASKED:
        cases.check_masked(run, small(kind(width))[:: 40 if kind is cases.windows else 9])


def small(some):
    """Return the cases with at most 300 queries and 500 keys."""
    return [case for case in some if case[1][0].shape[2] <= 300 and case[1][1].shape[2] <= 500]


# the backward kernel


def backward_is_right(seed=0):
    """Heads of 64 to 128 columns, sums of dQ narrowed by turns or at the end, turns of one step, several calls."""
    with seeded(seed):
        gradients(1, 64, (2, 4, 2, 256, 256), math.inf, 0)  # the second warpgroup begins late
        gradients(1, 64, (2, 3, 3, 300, 300), math.inf, math.inf)
        gradients(None, 64, (2, 4, 4, 40, 300), math.inf, math.inf)
        gradients(None, 128, (1, 4, 2, 200, 130), 90, 9)
        gradients(None, 96, (1, 2, 1, 200, 130, 80), 90, 9)
        in_two_calls()


def two_passes_are_right(seed=0):
    """Two stages and three, one piece and several, tiles that the first consumer skips, several heads of a group."""
    with seeded(seed):
        gradients(None, 256, (1, 2, 1, 130, 200), math.inf, 0)
        gradients(None, 192, (1, 2, 2, 200, 300), 90, 9)
        gradients(None, 128, (1, 2, 1, 200, 200), math.inf, 0, launches=of_backward.in_two_passes(3))


def in_two_calls():
    """Each call adds to the same sums of dQ, with the same counter of turns."""
    shapes = (1, 2, 130, 64), (1, 2, 256, 64), (1, 2, 256, 64), (1, 2, 130, 64)
    q, k, v, do = (randn(*shape, dtype=torch.bfloat16, seed=seed) for seed, shape in enumerate(shapes))
    seen, nothing = torch.ones(130, 256, dtype=torch.bool), torch.zeros(1, 2, 130)
    o, lse = written_out.attention(q.double(), k.double(), v.double(), seen)
    sums = of_backward.backward.Sums(do, None, o.to(q.dtype), lse.float(), 64, 1, of_backward.LAUNCHES["row_constants"])
    dq, *of_keys = (torch.full_like(x, math.nan) for x in (q, k, v))
    for half in (slice(0, 128), slice(128, 256)):
        of_half = [torch.full((1, 2, 128, 64), math.nan, dtype=q.dtype) for _ in of_keys]
        problem = Problem.of(q, k[:, :, half], v[:, :, half], masks.full(), 0.125)
        sums.add((q, do), (k[:, :, half], v[:, :, half]), of_half, problem, of_backward.LAUNCHES["backward"])
        for whole, part in zip(of_keys, of_half, strict=True):
            whole[:, :, half] = part
    sums.narrow(dq, 0.125)
    exact = of_backward.dense(*(x.double() for x in (q, k, v, do)), nothing, seen)
    plain = of_backward.dense(q, k, v, do, nothing, seen)
    for ours, theirs, truth in zip((dq, *of_keys), plain, exact, strict=True):
        assert_as_exact_as_plain(ours, theirs, truth)


def gradients(lag, d, sizes, left, right, **options):
    mask = masks.window(left, right)
    seen = in_window(mask, *sizes[3:5])
    with mock.patch.object(of_backward.backward, "lag_of", lambda *_: lag):
        of_backward.assert_gradients("here", (*sizes[:5], d, *sizes[5:]), mask, seen, programs=2, **options)


@loops
def test_gradients_equal_dense_ones():
    gradients(1, 64, (2, 2, 2, 128, 128), math.inf, 0)
    gradients(None, 80, (1, 4, 2, 70, 133, 40), 90, 9)
    *_, (_, score, plain_score) = of_backward.functions(2, 70, 133)  # several in turn
    gradients(None, 64, (1, 2, 1, 70, 133), math.inf, math.inf, score=score, plain_score=plain_score)


@loops
@pytest.mark.parametrize("seed", [0, long(1), long(2)])
def test_gradients_of_two_passes_are_right_in_every_order(seed):
    two_passes_are_right(seed)


@loops
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_right_in_every_order(seed):
    backward_is_right(seed)


@loops
@pytest.mark.exhaustive
@pytest.mark.parametrize("d", [64, 128, 192, 256])
def test_gradients_are_right_with_scores_documents_and_sinks(d):
    seen = in_window(masks.causal(), 200, 133)
    for name, score, plain in of_backward.functions(4, 200, 133):
        of_backward.assert_gradients(name, (1, 4, 2, 200, 133, d), masks.causal(), seen, score, plain)
    ids = torch.arange(200) // 60
    seen = of_backward.in_document(ids, 200, 200)
    sinks = torch.tensor([0.3, -2.0, 4.0, -math.inf])
    of_backward.assert_gradients("documents", (1, 4, 2, 200, 200, d), masks.documents(ids), seen, sinks=sinks)


# other kernels


@loops
@pytest.mark.parametrize("width, consumers", [long(64, 3), (128, 3), (256, 2)])
def test_float8_is_as_good_as_exact_arithmetic(width, consumers):
    """The bound for O is that of ``test_hopper``. lse is nearly exact, since scores are added up in float32."""
    q, k, v = in_bfloat16(1, 4, 2, 200, 333, width)
    eight = in_eight_bits(q, k, v)
    (q8, k8, v8), scales = zip(*eight, strict=True)
    scales = Scales(*(x.expand(1, x.shape[1], n) for x, n in zip(scales, (2, 3, 1), strict=True)))
    problem = Problem.of(q8, k8, v8, masks.causal(), width**-0.5, scales=scales)
    o = torch.full((1, 4, 200, width), math.nan, dtype=torch.float32 if width < 256 else torch.bfloat16)
    lse = torch.full((1, 4, 200), math.nan)
    configuration = Configuration(64 * consumers, 128, 4 * (consumers + 1), 3 if width == 64 else 2)
    forward_float8.run(o, lse, q8, k8, tiles.ready(v8.view(torch.uint8).mT).view(v8.dtype).mT, problem, configuration)
    ours, ours_lse = in_exact_arithmetic(eight, reference_masks.causal())
    seen = in_window(masks.causal(), 200, 333)
    exact, _ = written_out.attention(q.double(), k.double(), v.double(), seen)
    assert error(o, exact) <= 1.1 * error(ours.to(o.dtype), exact)
    torch.testing.assert_close(lse.double(), ours_lse, rtol=1e-5, atol=1e-5)


def latent_parts(lengths, page=None):
    """Run the kernel for latents on texts of these lengths, in two parts, and compare with the portable kernel."""
    q, K, _, lengths = of_decoding.inputs(lengths, H=16, Hk=1, d=576, dv=1, N=192, dtype=torch.bfloat16)
    cache = Cache(K, K[..., :512], lengths=lengths)
    if page:
        cache = of_decoding.paged(K, K, lengths, page)
        cache = cache._replace(V=cache.K[..., :512])
    problem = operator.problem_of(q, cache, masks.causal(), 0.07)
    O_s, lse_s = torch.full((2, len(q), 16, 512), math.nan), torch.full((2, len(q), 16), math.nan)
    latent.run(q, cache, O_s, lse_s, (2, 0), problem.scale_log2)
    O, lse = operator.run(q, cache, operator.Step.of(q, cache, problem, choice=Launch(16, 32, 4, 3, 2)))
    ours = (lse_s.softmax(0).nan_to_num(0)[..., None] * O_s).sum(0)
    torch.testing.assert_close(ours.bfloat16(), O[:, :, 0], rtol=0.02, atol=0.002)
    torch.testing.assert_close(lse_s.logsumexp(0), lse[:, :, 0], rtol=1e-5, atol=1e-5)


@loops
@pytest.mark.exhaustive
def test_latents_equal_those_of_the_portable_kernel():
    latent_parts([128, 0, 64])


@loops
def test_the_one_race_of_latents_does_no_harm():
    """In a last block that is not full, a warpgroup clears values, which the other one reads as keys: ``clear``."""
    with noted() as races:
        latent_parts([130, 1], page=64)
    lines, first = inspect.getsourcelines(latent.clear.fn)
    store = first + next(n for n, line in enumerate(lines) if "some.store" in line)
    assert races and all(f"(latent.py:{store}" in race and "the tensor cores read" in race for race in races)


# wrong kernels


def wrong_kernels(mistakes):
    """Return test parameters: the first mistake in each module is quick, the others are exhaustive."""
    modules, parameters = set(), []
    for mistake in mistakes:
        module, function, old, _ = mistake
        marks = [pytest.mark.exhaustive] if module in modules else []
        parameters.append(pytest.param(mistake, marks=marks, id=f"{function}: {old.strip():.50}"))
        modules.add(module)
    return parameters


@pytest.mark.parametrize("mistake", wrong_kernels(wrong_gluon.FORWARD))
def test_a_wrong_forward_kernel_is_rejected(mistake):
    right = gram_is_exact if mistake[0] is toy else forward_is_right
    with wrong_gluon.wrong(*mistake), pytest.raises(REPORTED):
        right()


@loops
@pytest.mark.parametrize("mistake", wrong_kernels(wrong_gluon.BACKWARD))
def test_a_wrong_backward_kernel_is_rejected(mistake):
    with wrong_gluon.wrong(*mistake), pytest.raises(REPORTED):
        backward_is_right()


@loops
@pytest.mark.parametrize("mistake", wrong_kernels(wrong_gluon.TWO_PASSES))
def test_two_wrong_passes_are_rejected(mistake):
    with wrong_gluon.wrong(*mistake), pytest.raises(REPORTED):
        two_passes_are_right()


@loops
@pytest.mark.exhaustive
@pytest.mark.parametrize("change", wrong_gluon.HARMLESS, ids=lambda change: f"{change[1]}: {change[2].strip():.50}")
def test_a_harmless_change_is_accepted(change):
    with wrong_gluon.wrong(*change):
        backward_is_right()


def complaint(mistake):
    with wrong_gluon.wrong(*mistake), pytest.raises((Race, Deadlock)) as raised:
        toy.gram(integers(1000))
    return str(raised.value)


def test_a_message_names_roles_buffers_and_lines():
    message = complaint((toy, "consume", "wait_full(full, g)", "pass"))
    assert "consume has the tensor cores read ring[0]" in message and "no barrier keeps the two apart" in message
    assert "produce has the copy engine write it (toy.py:" in message
    message = complaint((toy, "gram_kernel", "    fence_async_shared()\n", ""))
    assert "produce has the copy engine arrive at full[0]" in message and "there is no fence between the two" in message
    message = complaint((toy, "consume", "release(empty, g)", "pass"))
    assert "produce waits for phase 0 of empty[0], which lacks 1 of 1 arrivals" in message
    message = complaint((toy, "produce", "X.block_type.nbytes", "X.block_type.nbytes // 2"))
    assert "full[0] gets 8,192 bytes more than it expects" in message


def test_the_same_seed_gives_the_same_message():
    mistake = (forward, "complete", "    release(shared.empty, g)\n", "")
    messages = set()
    for _ in range(2):
        with wrong_gluon.wrong(*mistake), seeded(7), pytest.raises((Race, Deadlock)) as raised:
            forward_is_right()
        messages.add(str(raised.value))
    assert len(messages) == 1
