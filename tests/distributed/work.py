"""The functions that the tests' processes run; a process imports them from this module."""

import functools
import importlib
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

from flashlab.distributed import attention, positions, shard, unshard, whole
from flashlab.distributed.wire import Wire
from flashlab.grading.exercise import edited
from flashlab.reference import masks

HANGS = 300.0  # seconds after which a call counts as hanging
groups = {}


def group_of(P):
    """Return the group of the first P processes. Every process must call this: torch forms the group among all."""
    if P not in groups:
        groups[P] = dist.new_group(list(range(P)))
    return groups[P]


def inputs(N, dtype, B=1, H=8, Hk=4, d=16, dv=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (B, H, N, d), (B, Hk, N, d), (B, Hk, N, dv), (B, H, N, dv)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def seen(N, causal=False, mask=None, documents=None):
    """Return the dense mask of the whole sequence, [N, N]."""
    i, j = torch.arange(N)[:, None], torch.arange(N)
    visible = j <= i if causal else torch.ones(N, N, dtype=torch.bool)
    if mask is not None:
        visible = (j >= i - mask.left) & (j <= i + mask.right)
    if documents is not None:
        text = torch.bucketize(torch.arange(N), torch.tensor(documents), right=True)
        visible = visible & (text[:, None] == text)
    return visible


def one_device(q, k, v, dO, scale=None, **mask):
    """Return O, dQ, dK and dV of the whole sequence, computed by torch on one device."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    O = F.scaled_dot_product_attention(q, k, v, attn_mask=seen(q.shape[2], **mask), scale=scale, enable_gqa=True)
    return [O.detach(), *torch.autograd.grad(O, (q, k, v), dO)]


def divided(method, P, placement, N, dtype, shape=None, **options):
    """Return O, dQ, dK and dV of the whole sequence, computed by a group of P processes; None on other processes."""
    group = group_of(P)
    if dist.get_rank() >= P:
        return None
    results = whole(method, *inputs(N, dtype, **(shape or {})), group=group, placement=placement, **options)
    return [results.O, *results.gradients]


def grid(P, cases):
    """Return the results of several cases, so that the tests need one message for all of them."""
    return [divided(*case[:1], P, *case[1:-1], **case[-1]) for case in cases]


def recorded(method, placement, N, H, Hk, d, dv, options):
    """Return this rank's events of a forward and a backward pass over all processes."""
    return whole(method, *inputs(N, torch.float32, H=H, Hk=Hk, d=d, dv=dv), placement=placement, **options).events


def logsumexp(method, placement, N):
    q, k, v, _ = (shard(x, placement=placement) for x in inputs(N, torch.float64))
    _, lse = attention(q, k, v, way=method, placement=placement, causal=True, return_lse=True)
    return unshard(lse, placement=placement)


def refusal(method, options):
    """Return the error with which this rank refuses these options, or None."""
    q, k, v, _ = (shard(x, placement="contiguous") for x in inputs(16, torch.float32))
    try:
        attention(q, k, v, way=method, placement="contiguous", **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def second_derivative(method):
    """Return the error with which this rank refuses create_graph, or None."""
    q, k, v, _ = (shard(x, placement="contiguous") for x in inputs(16, torch.float32))
    O = attention(q.requires_grad_(), k, v, way=method, placement="contiguous")
    try:
        torch.autograd.grad(O.square().sum(), q, create_graph=True)
    except NotImplementedError as error:
        return str(error)


def unlike(rank, difference, timeout):
    """Run ring attention in which one rank has another argument than the others, dies, or does not take part."""
    q, k, v, _ = (shard(x) for x in inputs(16, torch.float32))
    options = {"causal": True, "timeout": timeout}
    if dist.get_rank() == rank:
        if difference == "dies":
            os._exit(9)
        if difference == "does not come":
            return None
        if difference == "heads":
            q = q[:, :4]
        if difference == "length":
            q, k, v = (x[:, :, :-3] for x in (q, k, v))
        if difference == "mask":
            options |= {"causal": False, "mask": masks.window(3)}
        if difference == "argument":
            q = q[0]
        if difference == "dtype":
            q, k, v = (x.double() for x in (q, k, v))
    return attention(q, k, v, **options)


def dies_in_the_backward_pass(rank):
    q, k, v, dO = (shard(x) for x in inputs(16, torch.float32))
    O = attention(q.requires_grad_(), k, v, timeout=HANGS)
    if dist.get_rank() == rank:
        os._exit(9)
    O.backward(dO)


def positions_of(placement, N):
    """Return the positions of this rank's tokens."""
    return positions(N, placement=placement).tolist()


def passed_on(hops, counts):
    """Return what arrives when each rank sends its number, in tensors of ``counts[rank]`` tokens, ``hops`` ahead."""
    wire = Wire()
    own = [torch.full((1, 2, counts[wire.rank], width), float(wire.rank)) for width in (1, 3)]
    received = wire.pass_on(own, counts[(wire.rank - hops) % wire.size], hops=hops)()
    return [x.flatten().tolist() for x in received]


def exact_lse(N):
    q, k, _, _ = inputs(N, torch.float64)
    S = q.unflatten(1, (4, -1)) @ k[:, :, None].mT / math.sqrt(q.shape[-1])
    return S.masked_fill(~seen(N, causal=True), -math.inf).logsumexp(-1).flatten(1, 2)


def trained(P, placement, steps, forget_positions=False):
    """Return the losses of the character model whose context is divided over the first P processes."""
    from flashlab.course import character_model  # here, because it imports Triton

    group = group_of(P)
    if dist.get_rank() >= P:
        return None

    def attend(Q, K, V, *, causal):
        return attention(Q, K, V, group=group, placement=placement, causal=causal)

    own = positions(character_model.CONTEXT, group=group, placement=placement)
    model = character_model.CharacterModel
    if forget_positions:
        embed = model.embed
        model.embed = lambda self, tokens, _: embed(self, tokens)
    try:
        add_up = functools.partial(dist.all_reduce, group=group)
        return character_model.train(attend, steps=steps, positions=own, add_up=add_up).losses
    finally:
        if forget_positions:
            model.embed = embed


def mutated(module, function, old, new):
    """Return the results of a causal ring with one edit of one function, or the message of its error."""
    module = importlib.import_module(f"flashlab.distributed.{module}")
    *owner, name = function.split(".")
    owner = getattr(module, owner[0]) if owner else module
    right = getattr(owner, name)
    wrong = edited(right, old, new)
    others = (importlib.import_module(f"flashlab.distributed.{it}") for it in ("attention", "ring", "shards", "task"))
    places = [it for it in (owner, *others) if getattr(it, name, None) is right]  # some modules import it by name
    for place in places:
        setattr(place, name, wrong)
    try:
        fresh = dist.new_group()  # messages of a wrong version that no rank receives do not reach later calls
        results = whole("ring", *inputs(16, torch.float64), group=fresh, causal=True, timeout=HANGS)
        return [results.O, *results.gradients]
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error)
    finally:
        for place in places:
            setattr(place, name, right)
