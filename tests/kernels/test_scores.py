"""Score functions, sinks and dropout in special calls; ``drawn_cases`` has them with all masks and gradients."""

import copy
import math
import pickle
import re

import numpy as np
import pytest
import torch

from flashlab.kernels import DEVICE, INTERPRETED, decode, dropout, flash_attention, masks, scores, tl, triton
from flashlab.reference.dropout import Dropout
from tests.kernels import written_out
from tests.kernels.inputs import randn

Nk = 133


@triton.jit
def cubed(s, b, h, i, j, Nq, Nk, weight, size):
    return s + tl.load(weight + j) * s * s * s / size


@triton.jit
def slope_of_cubed(s, b, h, i, j, Nq, Nk, weight, size):
    return 1 + 3 * tl.load(weight + j) * s * s / size


WEIGHT = randn(Nk).abs()
MINE = scores.custom(cubed, WEIGHT, 70.0, derivative=slope_of_cubed)


@pytest.mark.parametrize("sink", [100.0, -100.0, -float("inf")])
def test_a_sink_of_any_size(sink):
    q, k, v = randn(1, 1, 4, 16), randn(1, 1, 9, 16, seed=1), randn(1, 1, 9, 16, seed=2)
    sinks = torch.full((1,), sink, device=DEVICE, requires_grad=True)
    O, lse = flash_attention(q, k, v, sinks=sinks, return_lse=True)
    seen = torch.ones(1, 1, dtype=torch.bool, device=DEVICE)
    expected = written_out.attention(*(x.double() for x in (q, k, v)), seen, None, sinks)
    torch.testing.assert_close((O.double(), lse.double()), expected, rtol=1e-5, atol=1e-6)
    assert O.sum().backward() is None and sinks.grad.isfinite().all()


def test_a_row_that_sees_no_key_has_the_lse_of_its_sink():
    q, k, v = randn(1, 2, 4, 16), randn(1, 2, 2, 16), randn(1, 2, 2, 16)
    sinks = torch.tensor([0.5, -3.0], device=DEVICE)
    O, lse = flash_attention(q, k, v, causal=True, sinks=sinks, return_lse=True)
    assert (O[:, :, :2] == 0).all() and torch.equal(lse[0, :, :2], sinks[:, None].expand(2, 2))
    empty = flash_attention(q, k[:, :, :0], v[:, :, :0], sinks=sinks, return_lse=True)
    assert (empty[0] == 0).all() and torch.equal(empty[1][0], sinks[:, None].expand(2, 4))


def test_a_bias_of_minus_infinity_is_a_mask():
    q, k, v = (randn(1, 1, 40, 16, seed=seed).requires_grad_() for seed in range(3))
    hidden = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)).to(DEVICE) > 0.5
    hidden[7] = True
    added = torch.zeros(40, 40, device=DEVICE).masked_fill(hidden, -float("inf"))
    both = []
    for options in {"score": scores.bias(added)}, {"mask": masks.dense(~hidden)}:
        O = flash_attention(q, k, v, **options)
        both.append((O, *torch.autograd.grad((O**2).sum(), (q, k, v))))
    torch.testing.assert_close(*both)
    assert (both[0][0][:, :, 7] == 0).all()


def test_derivatives_agree_with_finite_differences():
    s = torch.linspace(-3, 3, 64, dtype=torch.float32, device=DEVICE)
    for score in (scores.softcap(0.9), scores.softcap(30.0), MINE):
        out = torch.empty(3, 64, device=DEVICE)
        evaluate[(1,)](s, out, score.function, score.derivative, score.kernel_args(None), 2.0**-8)
        numeric = (out[1] - out[0]) / 2.0**-7
        torch.testing.assert_close(out[2], numeric, rtol=1e-3, atol=1e-3)


@triton.jit
def evaluate(s, out, function: tl.constexpr, derivative: tl.constexpr, arguments, h):
    i = tl.arange(0, 64)
    x = tl.load(s + i)
    tl.store(out + i, function(x - h, 0, 0, i, i, 64, 64, *arguments))
    tl.store(out + 64 + i, function(x + h, 0, 0, i, i, 64, 64, *arguments))
    tl.store(out + 128 + i, derivative(x, 0, 0, i, i, 64, 64, *arguments))


@triton.jit
def factors(out, drop: tl.constexpr, args, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    ones = tl.full([N, N], 1.0, tl.float32)
    tl.store(out + i * N + j, drop(args, ones, tl.program_id(0) + 2, tl.program_id(0) + 3, i + 40, j + 24))


@pytest.mark.parametrize("seed", [7, 2**40 + 3, 2**64 - 5])
def test_the_bits_of_dropout_are_those_of_numpy(seed):
    out = torch.empty(64, 64, device=DEVICE)
    factors[(1,)](out, dropout.drop, dropout.dropout(0.3, seed, DEVICE).kernel_args, 64)
    expected = Dropout(0.3, seed, h=3, b=2).tile(slice(40, 104), slice(24, 88))
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


def test_keys_that_no_query_sees_get_no_gradient_from_a_score_of_nan():
    q, k, v = (randn(1, 1, 8, 16, seed=seed) for seed in range(3))
    k[:, :, 3:] = math.nan
    k.requires_grad_()
    padding = masks.padding(torch.tensor([3], device=DEVICE))
    O = flash_attention(q, k, v, mask=padding, score=scores.softcap(2))
    (dK,) = torch.autograd.grad(O.sum(), k)
    assert dK.isfinite().all() and (dK[:, :, 3:] == 0).all()


def test_a_seed_repeats_and_none_draws_one():
    q, k, v = (randn(1, 1, 64, 16, seed=seed) for seed in range(3))
    first, same, other = (flash_attention(q, k, v, dropout=0.5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)
    torch.manual_seed(0)
    drawn = [flash_attention(q, k, v, dropout=0.5) for _ in range(2)]
    assert not torch.equal(*drawn)
    torch.manual_seed(0)
    assert torch.equal(flash_attention(q, k, v, dropout=0.5), drawn[0])
    assert torch.equal(flash_attention(q, k, v, dropout=0.0), flash_attention(q, k, v))


@triton.jit
def with_a_wrong_name(s, b, h, i, j, Nq, Nk):
    return s + not_there  # noqa: F821


@triton.jit
def through_another(s, b, h, i, j, Nq, Nk):
    return with_a_wrong_name(s, b, h, i, j, Nq, Nk)


@triton.jit
def positive(s, b, h, i, j, Nq, Nk):
    return s > 0


@triton.jit
def of_half_precision(s, b, h, i, j, Nq, Nk):
    return s.to(tl.float16)


@triton.jit
def of_another_shape(s, b, h, i, j, Nq, Nk):
    return tl.zeros([4], tl.float32)


@triton.jit
def through(s, b, h, i, j, Nq, Nk):
    return s


@triton.jit
def of_nothing(s, b, h, i, j, Nq, Nk):
    s = s + 1


@pytest.mark.skipif(not INTERPRETED, reason="the compiler has its own sentences, and shows the line")
@pytest.mark.parametrize("function, sentence", [
    (with_a_wrong_name, "line [0-9]+: .*not_there"),
    (through_another, "with_a_wrong_name, line [0-9]+: .*not_there"),
    (positive, "line [0-9]+: a score function returns fp32 .* got int1"),
    (of_half_precision, "got fp16"),
    (of_another_shape, "got fp32 .4."),
    (of_nothing, "got NoneType"),
])  # fmt: skip
def test_a_wrong_function_gets_one_sentence_with_its_line(function, sentence):
    q = randn(1, 1, 3, 16)
    with pytest.raises(TypeError, match=sentence) as refused:
        flash_attention(q, q, q, score=scores.custom(function))
    assert "\n" not in str(refused.value) and refused.value.__suppress_context__
    with pytest.raises(TypeError, match=sentence):
        decode.decode(q, (q, q), score=scores.custom(function))


@pytest.mark.skipif(not INTERPRETED, reason="the compiler has its own sentences, and shows the line")
@pytest.mark.parametrize("derivative", [positive, of_half_precision, of_nothing])
def test_a_wrong_derivative_gets_one_sentence_with_its_line(derivative):
    q = randn(1, 1, 3, 16).requires_grad_()
    O = flash_attention(q, q, q, score=scores.custom(through, derivative=derivative))
    with pytest.raises(TypeError, match="line [0-9]+: a derivative returns fp32, as s is, got"):
        O.sum().backward()


def test_a_seed_may_be_a_whole_number_of_numpy():
    q = randn(1, 1, 9, 16)
    assert torch.equal(*(flash_attention(q, q, q, dropout=0.5, seed=seed) for seed in (3, np.int64(3))))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda score: pickle.loads(pickle.dumps(score))])
def test_copies_of_score_functions(copied):
    q = randn(1, 2, Nk, 16)
    for score in (scores.softcap(3.0), scores.alibi(randn(2)), scores.bias(randn(Nk)), MINE):
        assert torch.equal(*(flash_attention(q, q, q, score=each) for each in (score, copied(score))))


def test_a_function_without_an_address_has_no_copies():
    @triton.jit
    def local(s, b, h, i, j, Nq, Nk):
        return s

    with pytest.raises(pickle.PicklingError, match="local is not at the top level"):
        pickle.dumps(scores.custom(local))


BAD = [
    (ValueError, "cap must be a finite number", lambda: scores.softcap(0)),
    (ValueError, "cap must be a finite number", lambda: scores.softcap(float("inf"))),
    (TypeError, "slopes must be a floating-point tensor", lambda: scores.alibi([0.5])),
    (ValueError, "1 to 2 dimensions", lambda: scores.alibi(randn(1, 1, 1))),
    (TypeError, "a bias must be a floating-point tensor", lambda: scores.bias(torch.ones(3, dtype=torch.int))),
    (TypeError, "@triton.jit", lambda: scores.custom(abs)),
    (TypeError, "score must be made by flashlab.kernels.scores", lambda: call(score=30)),
    (TypeError, "score must be made by flashlab.kernels.scores", lambda: call(score=np.float32(0.5))),
    (TypeError, "score must be made by flashlab.kernels.scores", lambda: call(score=[])),
    (TypeError, "cubed(s, b, h, i, j, Nq, Nk, ", lambda: scores.custom(cubed)),
    (TypeError, "Nk) and then 3 arguments, which do not fit", lambda: scores.custom(cubed, WEIGHT, 1.0, 2.0)),
    (TypeError, "slope_of_cap(", lambda: scores.custom(cubed, WEIGHT, 7.0, derivative=scores.slope_of_cap)),
    (TypeError, "are tensors and numbers, got '7'", lambda: scores.custom(cubed, WEIGHT, "7")),
    (TypeError, "are tensors and numbers, got [7]", lambda: scores.custom(cubed, WEIGHT, [7])),
    (ValueError, "slopes must be broadcastable to [1, 2]", lambda: call(score=scores.alibi(randn(3)))),
    (ValueError, "a bias must be broadcastable to [1, 2, 3, 3]", lambda: call(score=scores.bias(randn(4)))),
    (ValueError, "cubed has no derivative", lambda: call(score=scores.custom(cubed, WEIGHT, 7.0), training=True)),
    (ValueError, "get no gradient", lambda: call(score=scores.custom(cubed, WEIGHT.clone().requires_grad_(), 7.0))),
    (TypeError, "sinks must be a floating-point tensor", lambda: call(sinks=0.5)),
    (TypeError, "tensor [H], got ndarray", lambda: call(sinks=np.zeros(2))),
    (TypeError, "return_lse must be True or False, got 'no'", lambda: call(return_lse="no")),
    (ValueError, "sinks must be [H] = [2]", lambda: call(sinks=randn(3))),
    (TypeError, "dropout must be a number", lambda: call(dropout="0.1")),
    (TypeError, "dropout must be a number, got []", lambda: call(dropout=[])),
    (TypeError, "dropout must be a number, got {}", lambda: call(dropout={})),
    (TypeError, "dropout must be a number, got False", lambda: call(dropout=False)),
    (ValueError, "dropout must be a probability below 1", lambda: call(dropout=1.0)),
    (ValueError, "goes in steps of 2^-16", lambda: call(dropout=1e-9)),
    (ValueError, "seed must be a whole number", lambda: call(dropout=0.1, seed=0.5)),
    (ValueError, "seed must be a whole number", lambda: call(dropout=0.1, seed=2**64)),
]  # fmt: skip


def call(training=False, **options):
    q, k, v = (randn(1, 2, 3, 16) for _ in range(3))
    return flash_attention(q.requires_grad_(training), k, v, **options)


@pytest.mark.parametrize(
    "score", [scores.softcap(30), scores.bias(randn(3, 3)), scores.alibi(randn(2))], ids=lambda it: type(it).__name__
)
def test_a_score_function_has_no_truth_value(score):
    for use in (bool, lambda score: score and scores.softcap(2), lambda score: score or None):
        with pytest.raises(TypeError, match="truth value.*tuple"):
            use(score)


@pytest.mark.parametrize("error, message, make", BAD, ids=[message for _, message, _ in BAD])
def test_bad_input_gets_a_sentence(error, message, make):
    with pytest.raises(error, match=re.escape(message)):
        make()
