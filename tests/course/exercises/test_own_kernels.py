"""The learner's own wrapper and autograd.Function: right ones pass however they are written, wrong ones do not."""

import pytest

pytest.importorskip("flashlab.kernels", reason="needs triton, which is for Linux")

import torch  # noqa: E402

from flashlab.course.exercises.triton_backward import kernels_of_one_head, of_all_heads  # noqa: E402
from flashlab.course.registry import find  # noqa: E402
from flashlab.grading.verdict import first_failure  # noqa: E402
from flashlab.kernels import DEVICE, INTERPRETED, triton  # noqa: E402
from flashlab.models import plain  # noqa: E402
from tests.course.exercises import right  # noqa: E402


def launch_in_tiles_of_16(kernel, Q, K, V, causal):
    Q, K, V = (X.clone(memory_format=torch.contiguous_format) for X in (Q, K, V))
    O = Q.new_zeros(Q.shape, dtype=torch.float32)
    lse = torch.zeros_like(O[:, 0]).contiguous()
    programs = -(-Q.shape[0] // 16)
    kernel[programs, 1, 1](Q, K, V, O, lse, len(Q), len(K), 1 / Q.shape[1] ** 0.5, Q.shape[1], 16, 32, causal)
    return [O, lse]


def launch_by_keywords(kernel, Q, K, V, causal):
    d = Q.size(1)
    O, lse = torch.full((len(Q), d), 7.0, device=Q.device), torch.full((len(Q),), 7.0, device=Q.device)
    tensors = [X.reshape(-1).clone() for X in (Q, K, V)]
    kernel[lambda meta: (triton.cdiv(len(Q), meta["Br"]),)](
        *tensors, O, lse, Nq=len(Q), Nk=len(K), scale=d**-0.5, d=d, Br=32, Bc=16, causal=causal
    )
    return O, lse


class WithCopies(torch.autograd.Function):
    """It saves copies of its inputs, so that later edits in place do not change them."""

    @staticmethod
    def forward(ctx, Q, K, V, causal, kernels):
        kept = [X.detach().clone() for X in (Q, K, V)]
        O, lse = kernels.forward(*kept, causal)
        ctx.save_for_backward(*kept, O, lse)
        ctx.causal, ctx.kernels = causal, kernels
        return O

    @staticmethod
    def backward(ctx, dO):
        *kept, O, lse = ctx.saved_tensors
        dO = dO.clone(memory_format=torch.contiguous_format)
        args = *kept, dO, lse, ctx.kernels.delta(O, dO), ctx.causal
        return ctx.kernels.query_gradients(*args), *ctx.kernels.key_value_gradients(*args), None, None


class WithSetup(torch.autograd.Function):
    """It saves its tensors in ``setup_context``, not in the forward pass."""

    @staticmethod
    def forward(Q, K, V, causal, kernels):
        return kernels.forward(Q.contiguous(), K.contiguous(), V.contiguous(), causal)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.causal, ctx.kernels = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx, dO, _):
        *tensors, O, lse = ctx.saved_tensors
        tensors, dO = [X.contiguous() for X in tensors], dO.contiguous()
        args = *tensors, dO, lse, ctx.kernels.delta(O, dO), ctx.causal
        return ctx.kernels.query_gradients(*args), *ctx.kernels.key_value_gradients(*args), None, None


class OfO(WithSetup):
    """``WithSetup``, but it returns only O."""

    @staticmethod
    def apply(*args):
        return WithSetup.apply(*args)[0]


class WithItsOwnDelta(WithCopies):
    @staticmethod
    def backward(ctx, dO):
        *kept, O, lse = ctx.saved_tensors
        args = *kept, dO.contiguous(), lse, (dO * O).sum(1), ctx.causal
        return ctx.kernels.query_gradients(*args), *ctx.kernels.key_value_gradients(*args), None, None


RIGHT = {
    "triton_forward.launch": [launch_in_tiles_of_16, launch_by_keywords],
    "triton_backward.function": [WithCopies, OfO, WithItsOwnDelta],
}

test_right_answers_pass = right.all_pass(RIGHT)


class KeptInCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, causal, kernels):
        ctx.args = Q, K, V, causal, kernels
        ctx.O, ctx.lse = kernels.forward(Q.contiguous(), K.contiguous(), V.contiguous(), causal)
        return ctx.O.clone()

    @staticmethod
    def backward(ctx, dO):
        Q, K, V, causal, kernels = ctx.args
        Q, K, V, dO = (X.contiguous() for X in (Q, K, V, dO))
        args = Q, K, V, dO, ctx.lse, kernels.delta(ctx.O, dO), causal
        return kernels.query_gradients(*args), *kernels.key_value_gradients(*args), None, None


def programs_for_each_query(kernel, Q, K, V, causal):
    O, lse = torch.empty(Q.shape, device=Q.device), torch.empty(len(Q), device=Q.device)
    numbers = len(Q), len(K), Q.shape[1] ** -0.5, Q.shape[1], 16, 16, causal
    kernel[(len(Q) + 1,)](Q.contiguous(), K.contiguous(), V.contiguous(), O, lse, *numbers)
    return O, lse


COUNTED = pytest.mark.skipif(not INTERPRETED, reason="a GPU counts nothing")


def launch_in_float32(kernel, Q, K, V, causal):
    return find("triton_forward.launch").reference(kernel, Q.float(), K.float(), V.float(), causal)


@pytest.mark.parametrize("name, attempt, words", [
    ("triton_backward.function", KeptInCtx, "tensors that autograd does not watch"),
    ("triton_backward.function", lambda *args: 0, "inherits from torch.autograd.Function"),
    pytest.param("triton_forward.launch", programs_for_each_query, "programs were launched", marks=COUNTED),
    pytest.param("triton_forward.launch", launch_in_float32, "Q, K and V in float16", marks=COUNTED),
    ("triton_forward.launch", lambda kernel, Q, K, V, causal: (Q, Q[:, 0]), "expected O in torch.float32"),
])  # fmt: skip
def test_mistakes_that_right_numbers_hide_are_found(name, attempt, words):
    assert words in str(first_failure(find(name), attempt))


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernels_of_the_course_give_the_gradients_of_torch(causal):
    names = ("triton_forward.launch", "triton_forward.forward", "triton_backward.delta", "triton_backward.dQ",
             "triton_backward.add_rows")  # fmt: skip
    kernels = kernels_of_one_head(*(find(name).reference for name in names), tile=16)
    attend = of_all_heads(find("triton_backward.function").reference, kernels)
    leaves = [torch.randn(1, 2, 40, 16, device=DEVICE).half().float().requires_grad_() for _ in range(3)]
    O, exact = attend(*leaves, causal=causal), plain.dense(*leaves, causal=causal)
    torch.testing.assert_close(O, exact, rtol=0, atol=5e-3)
    for ours, theirs in zip(
        torch.autograd.grad(O.sum(), leaves), torch.autograd.grad(exact.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-2)
