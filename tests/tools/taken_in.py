"""Check which scores the Hopper kernels take in, in the interpreter of Gluon.

All that a pass adds up are random signs, so a key too many, too few or in another's place changes the sums of 32 or 64
columns. In the forward pass, each weight is 1 or 2. In the backward pass, each weight and the gradient of each score is
1: dQ, dK and dV are sums over the scores that the kernel took in.
"""

import math
from typing import NamedTuple

import torch
from torch.testing import assert_close
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import masks, scores, tiles
from flashlab.kernels.configurations import Configuration
from flashlab.kernels.float8 import Scales
from flashlab.kernels.hopper import backward, forward, forward_float8, queries, schedule
from flashlab.kernels.hopper.stages import Turns
from flashlab.kernels.launch import launch
from flashlab.kernels.problem import Problem
from tests.kernels.written_out import own
from tests.tools.launches import LAUNCHES

NARROW = torch.bfloat16


def signs(*shape, seed=0):
    """Return random numbers, each 1 or -1."""
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(NARROW) * 2 - 1


def in_window(mask, Nq, Nk):
    """Return which scores a window shows, [Nq, Nk]."""
    i, j = own(Nq, Nk)
    left, right = (Nq + Nk if end is None else end for end in mask)
    return (j >= i - left) & (j <= i + right)


def assert_forward_takes_in(seen, mask, Br, kernel="forward"):
    """Compare with ``seen`` [Nq, Nk], the scores that a mask shows. Under a window, keys that no query sees are NaN."""
    (Nq, Nk), d = seen.shape, 64
    first = torch.arange(d) == 0  # the column of q and k that is not 0
    q, v = first.expand(1, 1, Nq, d).to(NARROW), signs(1, 1, Nk, d)
    k = (signs(1, 1, Nk, d, seed=1) > 0) * first.to(NARROW)
    o, lse = torch.full(q.shape, math.nan, dtype=torch.float32), torch.full((1, 1, Nq), math.nan)
    weights = seen * 2 ** k[0, 0, :, 0].float()  # [Nq, Nk]
    sums, l = weights @ v[0, 0].float(), weights.sum(1)  # [Nq, d], [Nq]
    if isinstance(mask, masks.Window):
        k, v = (x.masked_fill(~seen.any(0)[:, None], math.nan) for x in (k, v))
    c = Configuration(Br, 128, Br // 16 + 4, 2)
    if kernel == "float8":
        q, k, v = (x.to(torch.float8_e4m3fn) for x in (q, k, v))
        scales = Scales(*(torch.ones(1, 1, n) for n in (tiles.count(Nq, 128), tiles.count(Nk, 128), 1)))
        v = tiles.ready(v.view(torch.uint8).mT).view(v.dtype).mT
        forward_float8.run(o, lse, q, k, v, Problem.of(q, k, v, mask, math.log(2), scales=scales), c, in_one_program)
    else:
        forward.run(o, lse, q, k, v, Problem.of(q, k, v, mask, math.log(2)), c, table=in_one_program)
    assert_close((o[0, 0], lse[0, 0]), (sums / l.clamp(1)[:, None], l.log()))


def in_one_program(problem, Br, Bc, _):
    """Return the table of a schedule in which one program computes all tiles, one after the other."""
    return schedule.table(problem, Br, Bc, 1)


def assert_backward_takes_in(seen, mask, H=1, Hk=1, d=64, biases=None):
    """Compare with ``seen``, the scores that a mask shows, [Nq, Nk] or [H, Nq, Nk]. Tiles without one must be skipped.

    Scores are far below 0, so the weight of a key past the end would be infinite. biases: of each head's scores, [H].
    """
    Nq, Nk = seen.shape[-2:]
    seen = seen.expand(H, Nq, Nk)
    of_k = torch.arange(d) < d // 2  # these columns are 0 in q, except the first; the others are 0 in k
    q, k = signs(1, H, Nq, d, seed=1).masked_fill(of_k, 0), signs(1, Hk, Nk, d, seed=2).masked_fill(~of_k, 0)
    q[..., 0], k[..., 0] = 16, -16  # scores are -256
    lse = torch.full((1, H, Nq), -256.0)
    score = None
    if biases is not None:
        lse, score = lse + biases[:, None], scores.chain(scores.bias(biases[:, None, None]))
    do, v = signs(1, H, Nq, d, seed=3), torch.zeros_like(k)
    exact = [seen.float() @ k[0].float().repeat_interleave(H // Hk, 0)]
    exact += [(seen.mT.float() @ x[0].float()).view(Hk, H // Hk, Nk, d).sum(1) for x in (q, do)]
    k, v = (x.masked_fill(~seen.any(1).any(0)[:, None], math.nan) for x in (k, v))
    problem = Problem.of(q, k, v, mask, 1.0, score=score)
    gradients = [torch.full_like(x, math.nan) for x in (q, k, v)]
    backward.run(gradients, (do, torch.ones_like(lse)), (q, k, v, torch.zeros_like(q), lse), problem, LAUNCHES)
    assert_close([x[0] for x in gradients], [x.to(NARROW) for x in exact], rtol=0, atol=0)
    problem, *_ = backward.without_unseen(problem, *gradients[1:], k, v)
    assert tiles_met(problem) == tiles_shown(seen[..., -problem.Nk :]), "a tile too many or too few"


class Fields(NamedTuple):
    """The fields of a problem that ``queries`` reads."""

    mask: queries.Mask
    group: int
    Nq: int
    Nk: int


@gluon.jit
def count_tiles(total, problem, turns, Br: gl.constexpr, keys: gl.constexpr):
    """Add up the tiles of all turns of the backward kernel."""
    for turn in range(turns.all):
        work = queries.work_of(turn, turns, problem, None, keys, Br)
        gl.atomic_add(total, queries.count(work, problem))


def tiles_met(problem):
    """Return how many tiles the backward kernel computes."""
    Br, keys = backward.ROWS_OF_QUERIES, backward.KEYS
    of_head, total = tiles.count(problem.Nk, keys), torch.zeros(1, dtype=torch.int32)
    fields = Fields(queries.kernel_args(problem, Br, keys), problem.group, problem.Nq, problem.Nk)
    turns = Turns(of_head, problem.Hk, of_head * problem.Hk, tiles.count(problem.Nq, Br) * Br, None)
    launch(count_tiles, (1, 1, 1), (total,), (fields, turns, Br, keys), warps=4)
    return int(total)


def tiles_shown(seen):
    """Return how many tiles of the backward kernel have a visible score."""
    tall, wide = torch.split(seen, backward.ROWS_OF_QUERIES, 1), backward.KEYS
    return sum(int(part.any((1, 2)).sum()) for row in tall for part in torch.split(row, wide, 2))
