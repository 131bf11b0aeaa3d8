"""Tensors too long for a grid are taken in parts; gradients are of first order, and of the forward pass's inputs."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from flashlab.kernels import DEVICE, flash_attention, flash_attention_packed, masks, passes, scores
from tests.kernels.inputs import qkv
from tests.tools.long import long

TWICE = "the gradients of flash_attention cannot be differentiated again"


@pytest.mark.parametrize(
    "dim, Hk",
    [long(0, 3), long(1, 6), (1, 3)],
)
def test_parts_equal_the_whole(dim, Hk, monkeypatch):
    tensors = [x.requires_grad_() for x in qkv(7 if dim == 0 else 1, 6, Hk, 9, 12, 16)]

    def run():
        O, lse = flash_attention(*tensors, causal=True, return_lse=True)
        return O, lse, *torch.autograd.grad((O**2).sum() + lse.sum(), tensors)

    whole = run()
    monkeypatch.setattr(passes, "LONGEST", 6 if dim == 0 else 5)  # 7 batches; or 6 heads, in groups of 1 or 2
    for part, expected in zip(run(), whole, strict=True):
        assert torch.equal(part, expected)


OPTIONS = {
    "window": {},
    "mask": {"mask": masks.padding(torch.tensor([4], device=DEVICE))},
    "bias": {"score": scores.bias(torch.linspace(-1, 1, 25, device=DEVICE).view(5, 5).requires_grad_())},
    "dropout": {"dropout": 0.5, "seed": 1},
}


@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv")
@pytest.mark.parametrize("name", OPTIONS)
def test_second_derivatives_are_refused(name, which):
    """Also if the gradient of O does not require a gradient."""
    tensors = [x.requires_grad_(n == which) for n, x in enumerate(qkv(1, 1, 1, 5, 5, 16))]
    x = tensors[which]
    (g,) = torch.autograd.grad(flash_attention(*tensors, **OPTIONS[name]).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=TWICE):
        torch.autograd.grad(g.square().sum(), x)
    tensors[which] = x * 2
    with pytest.raises(NotImplementedError, match=TWICE):
        torch.autograd.functional.hvp(lambda x: flash_attention(*tensors[:which], x, *tensors[which + 1 :]).sum(), x, x)


@pytest.mark.exhaustive
def test_second_derivatives_are_refused_under_torch_func():
    q, k, v = qkv(1, 1, 1, 5, 5, 16)

    def loss(x):
        return flash_attention(x, k, v).sum()

    first = torch.func.grad(loss)
    for second in (torch.func.grad(lambda x: first(x).sum()), torch.func.jacrev(first)):
        with pytest.raises(NotImplementedError, match=TWICE):
            second(q)
    x = q.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=TWICE):
        first(x).sum().backward()
    for forward in (torch.func.hessian(loss), lambda q: torch.func.jvp(first, (q,), (q,))):
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            forward(q)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "backend, says",
    [("eager", TWICE), ("aot_eager", "support double backward|does not require grad")],  # torch 2.13 | 2.11
)
@pytest.mark.parametrize("name", ["window", "mask"])
def test_second_derivatives_are_refused_in_compiled_code(name, backend, says):
    torch._dynamo.reset()
    q, k, v = qkv(1, 1, 1, 5, 5, 16)

    @torch.compile(backend=backend)
    def penalty(x):
        O = flash_attention(x * 2, k, v, **OPTIONS[name])
        return torch.autograd.grad(O.sum(), x, create_graph=True)[0].square().sum()

    with pytest.raises(RuntimeError, match=says):
        penalty(q.requires_grad_()).backward()


def test_the_operators_derivatives_cannot_be_differentiated():
    q, k, v = (x.requires_grad_() for x in qkv(1, 1, 1, 5, 5, 16))
    O, *_ = torch.ops.flashlab.attention(q, k, v, None, None, 0.3, None)
    (g,) = torch.autograd.grad(O.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match=TWICE):
        g.sum().backward()


@pytest.mark.filterwarnings(
    "ignore:Using backward\\(\\) with create_graph=True"
)  # ``x.grad = None`` ends the reference cycle
@pytest.mark.parametrize("name", OPTIONS)
def test_first_derivatives_are_the_same_with_create_graph(name):
    """Also with retain_graph, hooks and checkpoints, and with a weight on the gradient."""
    tensors, options = [x.requires_grad_() for x in qkv(1, 1, 1, 5, 5, 16)], OPTIONS[name]

    def loss(q, k, v):
        return flash_attention(q * 2, k, v, **options).square().sum()

    expected = torch.autograd.grad(loss(*tensors), tensors)
    first = loss(*tensors)
    for _ in range(2):
        ours = torch.autograd.grad(first, tensors, create_graph=True)
        assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))
    again = torch.autograd.grad(first, tensors)
    weight = torch.ones((), requires_grad=True)
    assert torch.autograd.grad((ours[0] * weight).sum(), weight)[0] == expected[0].sum()
    for reentrant in (False, True):
        outcome = checkpoint(loss, *tensors, use_reentrant=reentrant)
        outcome.backward()
        for x, y, z in zip(tensors, expected, again, strict=True):
            assert torch.equal(x.grad, y) and torch.equal(y, z)
            x.grad = None
    gradients = []
    tensors[0].register_hook(gradients.append)
    loss(*tensors).backward(create_graph=True)
    assert torch.equal(gradients[0], expected[0])
    for x in tensors:
        x.grad = None


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch calls the operator once per row
def test_a_jacobian_has_a_row_for_each_output():
    q, k, v = qkv(1, 1, 1, 3, 4, 16)

    def total(q):
        return flash_attention(q, k, v).sum(-1)

    plain = torch.func.jacrev(lambda q: (torch.softmax(q @ k.mT / 4, -1) @ v).sum(-1))(q)
    torch.testing.assert_close(torch.func.jacrev(total)(q), plain)
    torch.testing.assert_close(torch.autograd.functional.jacobian(total, q), plain)


@pytest.mark.exhaustive
def test_a_backward_pass_in_compiled_code_gives_the_same_bits():
    torch._dynamo.reset()
    q, k, v = qkv(1, 1, 1, 5, 5, 16)

    def step(x):
        loss = flash_attention(x * 2, k, v, **OPTIONS["mask"]).square().sum()
        return torch.autograd.grad(loss, x)[0]

    q.requires_grad_()
    assert torch.equal(torch.compile(step, backend="eager")(q), step(q))


MASKS = {  # a mask, and a change in place of its tensor
    "padding": (masks.padding, torch.tensor([2]), torch.tensor([5])),
    "documents": (masks.documents, torch.zeros(5).long(), torch.arange(5)),
    "causal documents": (lambda ids: masks.documents(ids) & masks.causal(), torch.zeros(5).long(), torch.arange(5)),
    "dense": (masks.dense, torch.ones(5, 5).bool(), torch.eye(5).bool()),
    "blocks": (lambda seen: masks.blocks(seen, 5, 3), torch.tensor([[True, False]]), torch.tensor([[False, True]])),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_changes_before_the_backward_pass_raises(name, packed):
    make, before, after = MASKS[name]
    changing = before.to(DEVICE, copy=True)
    q, k, v = (x.requires_grad_() for x in qkv(1, 1, 1, 5, 5, 16))
    if packed:
        ends = torch.tensor([0, 5], device=DEVICE)
        rows = [x[0].transpose(0, 1) for x in (q, k, v)]
        O = flash_attention_packed(*rows, offsets_q=ends, mask=make(changing))
    else:
        O = flash_attention(q, k, v, mask=make(changing))
    expected = torch.autograd.grad(O.square().sum(), q, retain_graph=True)
    assert torch.equal(torch.autograd.grad(O.square().sum(), q, retain_graph=True)[0], expected[0])
    changing.copy_(after)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        O.square().sum().backward()


def test_offsets_may_change_before_the_backward_pass():
    """The kernels read a copy of the offsets."""
    q, k, v = (x[0].transpose(0, 1).requires_grad_() for x in qkv(1, 1, 1, 5, 5, 16))
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32, device=DEVICE)
    O = flash_attention_packed(q, k, v, offsets_q=offsets, mask=masks.prefix(1))
    expected = torch.autograd.grad(O.square().sum(), (q, k, v), retain_graph=True)
    offsets[1] = 4
    ours = torch.autograd.grad(O.square().sum(), (q, k, v))
    assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))
