"""Every kind of input that ``flash_attention`` promises to take: results and gradients; and errors for other input."""

import functools
import math
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from flashlab.kernels import DEVICE, INTERPRETED, flash_attention, interpreter, masks, scores
from tests.kernels import written_out
from tests.kernels.implementations import HOPPER, assert_same_bits, choose_halves
from tests.kernels.inputs import laid_out, qkv, randn
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long
from tests.tools.taken_in import in_window

compiled_only = pytest.mark.skipif(
    INTERPRETED, reason="the interpreter would take minutes, or more memory than is here"
)

pytestmark = pytest.mark.usefixtures("kernel")


inputs = functools.partial(qkv, dtype=torch.float16)


def dense(q, k, v, *, causal=False, scale=None, mask=None):
    """Write out attention with a window of ``flashlab.kernels.masks``."""
    seen = in_window(masks.either(causal, mask), q.shape[2], k.shape[2])
    return written_out.attention(q, k, v, seen, scale=scale)[0]


def results(function, tensors, **options):
    """Return O, dQ, dK, dV for an incoming gradient that depends on the shape alone."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    O = function(*tensors, **options)
    return [O, *torch.autograd.grad(O, tensors, randn(*O.shape, dtype=O.dtype, seed=9))]


def assert_equals_dense(tensors, **options):
    """Compare O and the gradients with those of attention written out."""
    ours, plain = results(flash_attention, tensors, **options), results(dense, tensors, **options)
    exact = results(dense, [tensor.double() for tensor in tensors], **options)
    for three in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(*three)


# shapes


@pytest.mark.parametrize("d", [1, long(3), 40, long(96), 136, long(192), long(256)])
def test_any_head_dimension(d):
    assert_equals_dense(inputs(1, 1, 1, 70, 70, d), causal=True)


@pytest.mark.parametrize("d, dv", [(16, 40), long(40, 16), long(192, 128), long(1, 256), long(256, 1)])
def test_values_of_their_own_width(d, dv):
    assert_equals_dense(inputs(1, 1, 1, 40, 70, d, dv))


@pytest.mark.parametrize("dtype", [torch.float16, long(torch.bfloat16), torch.float32])
@pytest.mark.parametrize("Nq, Nk", [(70, 133), (133, 70)])
def test_lengths_that_differ_align_at_the_lower_right(Nq, Nk, dtype):
    assert_equals_dense(inputs(1, 1, 1, Nq, Nk, 32, dtype=dtype), causal=True)


@pytest.mark.parametrize("Nq, Nk", [(70, 133), long(300, 40)])
def test_a_window_larger_than_the_text_hides_nothing(Nq, Nk):
    tensors, mask = inputs(1, 2, 1, Nq, Nk, 32), masks.window(10**9, 10**9)
    assert_equals_dense(tensors, mask=mask)
    assert flash_attention(*tensors, mask=mask, return_lse=True)[1].isfinite().all()


def test_a_window_of_the_own_key_alone_copies_its_value():
    q, k, v = inputs(1, 1, 1, 70, 133, 16)
    assert torch.equal(flash_attention(q, k, v, mask=masks.window(0)), v[:, :, 63:])


def test_masks_that_mean_the_same_give_the_same_bits():
    tensors = inputs(1, 2, 2, 70, 70, 16)
    for one, other in (
        ({"causal": True}, masks.causal()),
        ({"causal": True}, masks.window(math.inf)),
        ({}, masks.full()),
    ):
        same = zip(results(flash_attention, tensors, **one), results(flash_attention, tensors, mask=other), strict=True)
        assert all(torch.equal(x, y) for x, y in same)


@pytest.mark.parametrize("unseen", ["K", "V"])
def test_keys_that_no_query_sees_are_never_read(unseen):
    """NaN where no tile of the window reaches, far from the few queries at the end."""
    q, k, v = inputs(1, 1, 1, 10, 300, 16)
    expected = results(flash_attention, [q, k, v], mask=masks.window(5))
    k, v = k.clone(), v.clone()
    {"K": k, "V": v}[unseen][:, :, :200] = math.nan
    O, dQ, dK, dV = results(flash_attention, [q, k, v], mask=masks.window(5))
    assert torch.equal(O, expected[0]) and torch.equal(dQ, expected[1])


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_add_up_their_key_and_value_gradients(causal):
    assert_equals_dense(inputs(2, 6, 2, 33, 20, 16), causal=causal)


@pytest.mark.parametrize("Nq, Nk", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_no_queries_or_no_keys(Nq, Nk, causal):
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 1, Nq, Nk, 16, 24))
    O, lse = flash_attention(q, k, v, causal=causal, return_lse=True)
    assert O.shape == (1, 2, Nq, 24) and lse.shape == (1, 2, Nq)
    assert (O == 0).all() and (lse == -math.inf).all()
    for x, gradient in zip((q, k, v), torch.autograd.grad(O.sum(), (q, k, v)), strict=True):
        assert gradient.shape == x.shape and (gradient == 0).all()


@pytest.mark.parametrize("B, H", [(0, 2), (2, 0)])
def test_no_batch_or_no_heads(B, H):
    q, k, v = (x.requires_grad_() for x in inputs(B, H, H, 5, 5, 16))
    O = flash_attention(q, k, v)
    assert O.shape == (B, H, 5, 16)
    assert all(g.shape == q.shape for g in torch.autograd.grad(O.sum(), (q, k, v)))


@pytest.mark.parametrize("causal", [False, True])
def test_one_query_and_one_key(causal):
    q, k, v = inputs(1, 1, 1, 1, 1, 16)
    O, dQ, dK, dV = results(flash_attention, [q, k, v], causal=causal)
    lse = flash_attention(q, k, v, causal=causal, return_lse=True)[1]
    assert torch.equal(O, v)  # the weight is 1, and nothing moves it
    assert torch.equal(dV, randn(*O.shape, dtype=O.dtype, seed=9))
    score = (q.double() * k.double()).sum(-1) / 4
    assert ((lse - score).abs() <= 4 * torch.finfo(torch.float32).eps * score.abs()).all()
    assert dQ.abs().max() <= 1e-5 and dK.abs().max() <= 1e-5


def test_one_query_against_many_keys_sees_them_all():
    q, k, v = inputs(1, 2, 1, 1, 133, 32)
    assert torch.equal(flash_attention(q, k, v, causal=True), flash_attention(q, k, v))
    assert_equals_dense([q, k, v], causal=True)


# layouts


LAYOUTS = ["transposed", "sliced", "rows", "offset", "columns"]


@pytest.mark.parametrize("first", range(len(LAYOUTS)))
def test_layout_in_memory_changes_no_bit(first, kernel):
    tensors = inputs(2, 2, 2, 40, 70, 32)
    others = [laid_out(x, LAYOUTS[(first + i) % len(LAYOUTS)]) for i, x in enumerate(tensors)]  # no two alike
    assert_same_bits(results(flash_attention, others), results(flash_attention, tensors), kernel)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_the_incoming_gradient_changes_no_bit(layout, kernel):
    tensors = [x.requires_grad_() for x in inputs(2, 2, 2, 40, 20, 32)]
    O = flash_attention(*tensors)
    dO = randn(*O.shape, dtype=O.dtype, seed=9)
    expected = torch.autograd.grad(O, tensors, dO, retain_graph=True)
    assert_same_bits(torch.autograd.grad(O, tensors, laid_out(dO, layout)), expected, kernel, dQ=0)


def test_expanded_inputs_and_gradient(kernel):
    q, k, v = inputs(1, 1, 1, 40, 40, 32)
    wide = [x.expand(2, 3, 40, 32) for x in (q, k, v)]
    narrow = flash_attention(q, k, v)
    assert torch.equal(flash_attention(*wide), narrow.expand(2, 3, 40, 32))
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    summed = torch.autograd.grad(flash_attention(*tensors).sum(), tensors)  # the gradient of O is one number, expanded
    O = flash_attention(*tensors)
    assert_same_bits(summed, torch.autograd.grad(O, tensors, torch.ones_like(O)), kernel, dQ=0)


@compiled_only
def test_more_than_65535_heads_in_all(kernel):
    def run(tensors):
        tensors = [x.clone().requires_grad_() for x in tensors]
        O = flash_attention(*tensors, causal=True)
        return [O, *torch.autograd.grad((O**2).sum(), tensors)]

    tensors = inputs(65537, 1, 1, 3, 3, 16)
    ours = run(tensors)
    assert_same_bits([x[-2:] for x in ours], run([x[-2:] for x in tensors]), kernel)
    assert not any(x.isnan().any() for x in ours)


@compiled_only
def test_offsets_past_two_to_the_31(kernel):
    """Two heads, the second of which begins 2^31 elements past the first, in each of the inputs."""
    if torch.cuda.get_device_properties(0).total_memory < 20 * 2**30:
        pytest.skip("needs 20 GiB of GPU memory")
    q, k, v = inputs(1, 2, 2, 70, 70, 64)
    buffer = torch.empty(2**31 + 3 * 70 * 64, dtype=q.dtype, device=DEVICE)  # first heads side by side, then the others
    apart = [
        buffer.as_strided(x.shape, (2**32, 2**31, 64, 1), place * 70 * 64).copy_(x) for place, x in enumerate((q, k, v))
    ]
    together = results(flash_attention, [q, k, v], causal=True)
    assert_same_bits(results(flash_attention, apart, causal=True), together, kernel)
    del buffer, apart
    torch.cuda.empty_cache()  # 4 GiB, which other workers need


# rows that see nothing


@pytest.mark.parametrize("Nq, Nk", [(100, 30), long(40, 1), long(130, 64)])
def test_rows_that_see_no_key_have_no_output_and_no_gradient(Nq, Nk, kernel):
    blind = Nq - Nk
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 1, Nq, Nk, 16))
    O, lse = flash_attention(q, k, v, causal=True, return_lse=True)
    assert (O[:, :, :blind] == 0).all() and (lse[:, :, :blind] == -math.inf).all()
    assert lse[:, :, blind:].isfinite().all()
    seeing_rows = torch.autograd.grad((O[:, :, blind:] ** 2).sum(), (q, k, v), retain_graph=True)
    all_rows = torch.autograd.grad((O**2).sum() + 1000 * O[:, :, :blind].sum(), (q, k, v))
    assert_same_bits(all_rows, seeing_rows, kernel, dQ=0)
    assert not any(x.isnan().any() for x in all_rows)
    assert (all_rows[0][:, :, :blind] == 0).all()


@pytest.mark.parametrize("size", [1e4, 6e4])
def test_scores_too_large_for_an_exponential(size):
    """The rounding of a score S changes its weight by |S| roundings: so many are allowed for O and the gradients.

    Where a weight is 1, its gradient is 0. Torch's attention subtracts the rounded delta, as the kernels do, so it has
    an error there, too.
    """
    q, k, v = inputs(1, 1, 1, 70, 70, 16, dtype=torch.float32)
    largest = (q.double() * size @ k.double().mT / 4).abs().max().item()
    assert largest > 100
    ours = results(flash_attention, [q * size, k, v], causal=True)
    torchs = functools.partial(F.scaled_dot_product_attention, is_causal=True)
    plain, exact = (results(torchs, [x.to(t) for x in (q * size, k, v)]) for t in (torch.float32, torch.float64))
    for three in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(*three, largest)


@pytest.fixture
def sums_in_one_order(monkeypatch):
    """Round each product of float32 tiles once in the interpreter.

    A GPU adds up K Q^T in the same order as Q K^T, so both passes have the same bits of the scores. In numpy they do
    not.
    """
    if INTERPRETED:
        builder, add_up = interpreter.Builder, interpreter.Builder.create_dot

        def rounded_once(self, a, b, d, *options):
            if a.data.dtype != np.float32:
                return add_up(self, a, b, d, *options)
            exact = a.data.astype(np.float64) @ b.data.astype(np.float64) + d.data
            return interpreter.TensorHandle(exact.astype(np.float32), d.dtype.scalar)

        monkeypatch.setattr(builder, "create_dot", rounded_once)


@pytest.mark.parametrize("Nq, size", [(1, 4), (70, 4), long(1, 1), long(20, 8)])
def test_gradients_in_float32_are_not_off_by_the_rounding_of_lse(Nq, size, sums_in_one_order):
    """P = e^(S - lse) is off by as much as lse is: with scores of 100, by 100 roundings."""
    tensors = [x * size for x in inputs(2, 4, 2, Nq, 147, 32, dtype=torch.float32)]
    every = torch.ones(1, 1, dtype=torch.bool, device=DEVICE)

    def written(q, k, v):
        return written_out.attention(q, k, v, every)[0]

    ours, plain = results(flash_attention, tensors), results(written, tensors)
    exact = results(written, [x.double() for x in tensors])
    for mine, theirs, true in zip(ours, plain, exact, strict=True):
        assert_as_exact_as_plain(mine, theirs, true)


def test_maximum_that_grows_with_every_key():
    q, k, v = inputs(1, 1, 1, 70, 200, 16)
    k = torch.linspace(-4, 4, 200, device=DEVICE, dtype=k.dtype)[:, None].expand(1, 1, 200, 16).contiguous()
    assert_equals_dense([q.abs(), k, v])


# options


@pytest.mark.parametrize("scale", [0.7, 0.0, -0.5, 1])
def test_any_finite_scale(scale):
    assert_equals_dense(inputs(1, 2, 1, 40, 70, 16), causal=True, scale=scale)


# in torch's machinery


@pytest.mark.parametrize("options", [{"causal": True}, long({"dropout": 0.3, "seed": 1, "score": scores.softcap(2.0)})])
def test_one_kernel_for_dK_and_one_for_dV_change_no_bit(options, kernel, monkeypatch):
    tensors = inputs(1, 4, 2, 70, 90, 24, 40)
    both = results(flash_attention, tensors, **options)
    choose_halves(monkeypatch)
    assert_same_bits(results(flash_attention, tensors, **options), both, kernel)


@pytest.mark.skipif(not HOPPER, reason="elsewhere the same inputs give the same bits anyway")
@pytest.mark.parametrize("d", [64, 128, 256])
def test_deterministic_gradients_are_the_same_every_time(d, monkeypatch):
    tensors = inputs(1, 2, 1, 700, 700, d)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    first, *others = (results(flash_attention, tensors, causal=True) for _ in range(20))
    assert all(torch.equal(x, y) for other in others for x, y in zip(first, other, strict=True))


@pytest.mark.filterwarnings("ignore:Input #:UserWarning")  # about float32, which is on purpose
def test_gradients_are_derivatives():
    """Central differences in random directions, in float32: the only test here that trusts no other derivative."""
    tensors = [x.requires_grad_() for x in inputs(1, 2, 1, 3, 5, 8, 4, dtype=torch.float32)]
    for causal in (False, True):

        def both(q, k, v, causal=causal):
            return flash_attention(q, k, v, causal=causal, return_lse=True)

        assert torch.autograd.gradcheck(both, tensors, eps=1e-2, atol=2e-3, rtol=1e-2, fast_mode=True)


def test_only_what_is_asked_for_is_differentiated():
    q, k, v = inputs(1, 1, 1, 40, 40, 16)
    expected = results(flash_attention, [q, k, v])[2]
    k = k.requires_grad_()
    O = flash_attention(q, k, v)
    assert torch.equal(torch.autograd.grad(O, k, randn(*O.shape, dtype=O.dtype, seed=9))[0], expected)
    assert not flash_attention(q, k.detach(), v).requires_grad


def test_nothing_of_size_N_by_N_is_saved():
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 1, 128, 128, 16))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        flash_attention(q, k, v, causal=True)
    assert sum(saved) <= 3 * q.numel() + 2 * k.numel() + 2 * 128  # Q, O, a spare; K, V; lse
    assert max(saved) < 128 * 128


def test_autocast_narrows_and_gradients_come_back_wide():
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 2, 40, 40, 16, dtype=torch.float32))
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        O = flash_attention(q, k, v, causal=True)
    assert torch.equal(O, flash_attention(*(x.bfloat16() for x in (q, k, v)), causal=True))
    assert all(g.dtype == torch.float32 and g.any() for g in torch.autograd.grad(O.sum(), (q, k, v)))


def test_autocast_takes_dtypes_that_differ_but_not_float64():
    q, k, v = inputs(1, 1, 1, 9, 9, 16, dtype=torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        O = flash_attention(q.bfloat16(), k, v.half())
        with pytest.raises(TypeError, match="float64"):
            flash_attention(q.double(), k.double(), v.double())
    assert torch.equal(O, flash_attention(q.bfloat16(), k.bfloat16(), v.half().bfloat16()))


@pytest.mark.exhaustive
def test_torch_compile_takes_it_whole_and_changes_no_bit(kernel):
    tensors = inputs(1, 2, 1, 40, 70, 16, 24)

    def model(q, k, v):
        return flash_attention(q * 2, k, v, causal=True) + 1

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same_bits(results(compiled, tensors), results(model, tensors), kernel)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scale", [None, 0.3])
def test_torch_compile_takes_shapes_scales_and_masks_that_change(scale, kernel):
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def compiled(q, k, v, scale, mask):
        return flash_attention(q, k, v, mask=mask, scale=scale)

    for N, d, factor, mask in (
        (40, 16, 1.0, masks.causal()),
        (33, 24, 0.5, masks.causal()),
        (33, 24, 2.0, masks.window(9)),
    ):
        q, k, v = inputs(1, 2, 1, N, N, d)
        scaled = None if scale is None else scale * factor
        assert torch.equal(compiled(q, k, v, scaled, mask), flash_attention(q, k, v, mask=mask, scale=scaled))


@pytest.mark.exhaustive
def test_torch_func_differentiates_and_says_what_it_cannot():
    q, k, v = inputs(1, 1, 1, 9, 12, 16, dtype=torch.float32)
    dQ = torch.func.grad(lambda q: (flash_attention(q, k, v, causal=True) ** 2).sum())(q)
    q.requires_grad_()
    assert torch.equal(dQ, torch.autograd.grad((flash_attention(q, k, v, causal=True) ** 2).sum(), q)[0])
    with pytest.raises(NotImplementedError, match="no rule for torch.func.vmap"):
        torch.func.vmap(lambda q: flash_attention(q, k, v))(q.detach()[None])
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: flash_attention(q, k, v), (q.detach(),), (q.detach(),))


@pytest.mark.parametrize("enabled", [False, True])
def test_a_tangent_is_not_dropped(enabled):
    """Neither in a first call, nor by the plan of an earlier call; with gradients enabled or not."""
    q, k, v = inputs(1, 1, 1, 9, 12, 16)
    with torch.set_grad_enabled(enabled), forward_ad.dual_level():
        for _ in range(2):
            with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
                flash_attention(forward_ad.make_dual(q, q), k, v)
            flash_attention(q, k, v)


def test_threads_at_once_get_the_output_of_one():
    q, k, v = inputs(1, 1, 1, 40, 40, 16)
    expected = flash_attention(q, k, v, causal=True)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: flash_attention(q, k, v, causal=True), range(12)))
    assert all(torch.equal(O, expected) for O in outputs)


@pytest.mark.exhaustive
def test_the_operator_keeps_torchs_contract():
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 1, 9, 12, 16, dtype=torch.float32))
    torch.library.opcheck(torch.ops.flashlab.attention, (q, k, v, None, 0, 0.25, None))


@pytest.mark.parametrize(
    "message, change, options",
    [
        ("scale must be a number from 2^-126 to 2^126, got -0.3", lambda x: x, (None, None, -0.3, None)),
        ("scale must be a finite number", lambda x: x, (None, None, math.nan, None)),
        ("a window's ends are whole numbers", lambda x: x, (-3, 0, 0.3, None)),
        ("got d = 3 and dv = 3", lambda x: x[..., :3], (None, None, 0.3, None)),
        ("must have dimensions", lambda x: x[0], (None, None, 0.3, None)),
        ('kernel must be "portable"', lambda x: x, (None, None, 0.3, "fast")),
    ],
)
def test_bad_input_to_the_operator_itself_gets_a_sentence(message, change, options):
    q, k, v = (change(x) for x in inputs(1, 2, 1, 9, 12, 16, dtype=torch.float32))
    with pytest.raises(ValueError, match=re.escape(message)):
        torch.ops.flashlab.attention(q, k, v, *options)
    o, lse = torch.zeros_like(q), torch.zeros(q.shape[:-1], device=DEVICE)
    with pytest.raises(ValueError, match=re.escape(message)):
        torch.ops.flashlab.attention_backward(o, None, q, k, v, o, lse, lse[:0], *options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_torch_jit_trace_records_the_operator():
    q, k, v = inputs(1, 2, 1, 9, 12, 13)
    traced = torch.jit.trace(lambda *x: flash_attention(*x, causal=True), (q, k, v))
    assert torch.equal(traced(q * 2, k, v), flash_attention(q * 2, k, v, causal=True))
    with pytest.raises(NotImplementedError, match="support windows at most"):
        torch.jit.trace(lambda *x: flash_attention(*x, dropout=0.5), (q, k, v))


def test_fake_tensors_have_the_shape_of_the_result():
    with FakeTensorMode():
        q, k, v = (torch.empty(1, heads, 9, 13, device=DEVICE) for heads in (4, 2, 2))
        O, lse = flash_attention(q, k, v, causal=True, return_lse=True)
        assert (O.shape, O.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, q.shape[:3], torch.float32)
        with pytest.raises(NotImplementedError, match="support windows at most"):
            flash_attention(q, k, v, mask=masks.sinks(3))


# sentences


def bad(change):
    q, k, v = inputs(2, 4, 2, 9, 12, 16)
    return change(q, k, v)


@pytest.mark.parametrize(
    "error, message, change",
    [
        (TypeError, "q .*float16, k .*float32", lambda q, k, v: (q, k.float(), v)),
        (TypeError, "float64", lambda q, k, v: (q.double(), k.double(), v.double())),
        (TypeError, "int32", lambda q, k, v: (q.int(), k.int(), v.int())),
        (TypeError, "k must be a torch tensor, got list", lambda q, k, v: (q, k.tolist(), v)),
        (TypeError, "q must be a torch tensor, got NoneType", lambda q, k, v: (None, k, v)),
        (TypeError, "k must be a dense tensor, got torch.sparse_coo", lambda q, k, v: (q, k.to_sparse(), v)),
        (
            TypeError,
            "v must be a dense tensor, got a nested one",
            lambda q, k, v: (q, k, torch.nested.nested_tensor([v[0], v[1]])),
        ),
        (ValueError, "k on meta", lambda q, k, v: (q, k.to("meta"), v)),
        (ValueError, "must have dimensions", lambda q, k, v: (q[0], k, v)),
        (ValueError, "4 query heads .* 3", lambda q, k, v: (q, *inputs(2, 1, 3, 1, 12, 16)[1:])),
        (ValueError, "2 query heads .* 4", lambda q, k, v: (q[:, :2], k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))),
        (ValueError, r"\[2, 2, 12, 16\] and \[2, 2, 11, 16\]", lambda q, k, v: (q, k, v[:, :, 1:])),
        (ValueError, r"\[2, 2, 12, 15\]", lambda q, k, v: (q, k[..., 1:], v)),
        (ValueError, r"\[1, 2, 12, 16\]", lambda q, k, v: (q, k[:1], v[:1])),
        (ValueError, "between 1 and 256, got d = 257", lambda q, k, v: inputs(1, 1, 1, 3, 3, 257)),
        (ValueError, "between 1 and 256, got d = 0", lambda q, k, v: (q[..., :0], k[..., :0], v)),
    ],
)
def test_bad_input_gets_a_sentence(error, message, change):
    with pytest.raises(error, match=message):
        flash_attention(*bad(change))


@pytest.mark.parametrize(
    "error, message, options",
    [
        (ValueError, "scale must be a finite number", {"scale": math.nan}),
        (ValueError, "scale must be a finite number", {"scale": math.inf}),
        (ValueError, "2^-126 to 2^126", {"scale": 1e-46}),
        (ValueError, "2^-126 to 2^126", {"scale": -3e38}),
        (TypeError, "scale must be a number", {"scale": "0.5"}),
        (TypeError, "scale must be a number or None, got True", {"scale": True}),
        (TypeError, "scale must be a number", {"scale": torch.tensor([0.1, 0.2])}),
        (TypeError, "scale must be a number", {"scale": torch.tensor(True)}),
        (TypeError, "scale must be a number", {"scale": torch.tensor(1j)}),
        (TypeError, "scale must be a number", {"scale": torch.tensor(0.5, device="meta")}),
        (ValueError, "scale must be a finite number", {"scale": 10**400}),
        (ValueError, "gets no gradient", {"scale": torch.tensor(0.5, requires_grad=True)}),
        (TypeError, "causal must be True or False, got 'False'", {"causal": "False"}),
        (TypeError, "causal must be True or False, got 1", {"causal": 1}),
        (
            TypeError,
            "dense(seen) for a boolean tensor, got Tensor torch.bool [3, 3]",
            {"mask": torch.ones(3, 3, dtype=torch.bool)},
        ),
        (ValueError, "give one of the two", {"causal": True, "mask": masks.window(3)}),
        (ValueError, 'kernel must be "portable"', {"kernel": "fast"}),
        (ValueError, 'kernel must be "portable"', {"kernel": []}),
    ],
)
def test_bad_options_get_a_sentence(error, message, options):
    q, k, v = inputs(1, 1, 1, 3, 3, 16)
    with pytest.raises(error, match=re.escape(message)):
        flash_attention(q, k, v, **options)


@pytest.mark.parametrize(
    "ends",
    [(-1,), (3, -2), (1.5,), (True,), ("3",), (None,), (math.nan,), (torch.tensor(2.7),), (torch.tensor([1, 2]),)],
)
def test_invalid_ends_of_a_window_get_a_sentence(ends):
    with pytest.raises(ValueError, match="must be a whole number from 0 on, or math.inf, got"):
        masks.window(*ends)


@pytest.mark.parametrize("scale", [2.0**-126, 1e-30, 2.0**126])
def test_scales_at_the_ends_of_what_float32_holds(scale):
    q, k, v = inputs(1, 1, 1, 70, 133, 16, dtype=torch.float32)
    small = min(1, 1 / scale)  # products of order 1
    O, lse = flash_attention(q * small, k, v, causal=True, scale=scale, return_lse=True)
    assert O.isfinite().all() and lse.isfinite().all()
    assert_as_exact_as_plain(
        O,
        *(dense((q * small).to(t), k.to(t), v.to(t), causal=True, scale=scale) for t in (torch.float32, torch.float64)),
        4,
    )
