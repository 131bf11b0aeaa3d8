"""Assign the tiles of O to programs, and order them, on the host. The kernel reads the result from a table.

A persistent grid has as many programs as the GPU has multiprocessors, and each computes tiles until its list is empty.
The lists come from list scheduling, longest tile first: in that order each tile goes to the program that is free
first. Under a causal mask tiles differ in length, and in this order no program waits for a long tile at the end. Heads
are taken a few at a time, so that the keys and values in use fit the L2 cache.

A list of several milliseconds is cut into parts, each a program of its own: a multiprocessor that another kernel holds
for a while, such as NCCL's, then delays one part, and others take the rest.

Source: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969 (longest processing time first).
"""

import functools
import heapq
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType

import numpy as np
import torch

from flashlab.kernels import masks, tiles
from flashlab.kernels.configurations import BOUNDARY
from flashlab.kernels.masks import questions

# Bytes of keys and values in use at a time. Tried by hand on an H200 (22 November 2026; causal, 16,384 tokens, d = 64
# and 128), not stored: shares from 4 to 32 MiB of its cache differed by noise; without a limit, N = 1,024 and 4,096
# took 9 to 14 % longer. In notebooks/data/h200_forward_tried.json 4 MiB cost 3 %: few heads are dealt out unevenly.
L2_SHARE = 16 * 2**20
PART = 2048  # blocks of keys in a part of a list, 3 ms at d = 128: the start of a program costs a few µs
bounds = FunctionType(questions.bounds.fn.__code__, {"tl": np})  # the kernels' own lines: numpy has the same names


def blocks(i, Br, Bc, problem):
    """Return how many blocks of Bc keys tile i of Br queries meets in a window, as ``hopper.work.tile_of`` does.

    i may be an array. If the window has a right end, tiles are aligned at the last query, so that tile 0 may be cut
    short. A tile that sees no key meets one block, hidden as a whole.
    """
    Nq, Nk = problem.Nq, problem.Nk
    start = np.asarray(i) * Br
    if problem.mask.right is not None:
        start = start + Nq - tiles.count(Nq, Br) * Br
    begin, end = bounds(problem.mask, start, Br, Nq, Nk)
    return np.maximum(tiles.count(end, Bc), 1) - begin // Bc + 0 * start


def assign(costs, programs):
    """Return the program [tiles] that computes each tile: in the order given, whichever program is free first.

    Args:
        costs: time that each tile takes, in any unit, [tiles]. programs: how many work side by side.
    """
    if len(set(costs)) == 1:  # equal tiles go round
        return np.arange(len(costs)) % programs
    free = [(0.0, p) for p in range(programs)]  # a heap of (when it is free, program)
    owners = np.empty(len(costs), dtype=np.int64)  # [tiles]
    for tile, cost in enumerate(costs):
        when, p = free[0]
        heapq.heapreplace(free, (when + cost, p))
        owners[tile] = p
    return owners


def ordered_tiles(problem, Br, counts=None):
    """Return all tiles of O, [tiles, 4]: columns i, b, h, hk.

    counts: blocks that each tile meets, broadcastable to [B, H, Tr]. With counts, the longest come first among the
    heads that share the L2 cache; tiles up to an eighth as long as the longest come last, to fill the remaining gaps.
    Without counts, tiles come head by head.
    """
    B, H, Hk, Nq, Nk, d, _ = problem[:7]
    Tr = tiles.count(Nq, Br)
    together = max(1, L2_SHARE // (4 * Nk * d))  # key heads at most: K and V, 2 bytes per element
    groups = tiles.count(B * Hk, together)  # as equal as they can be: a small last one could not be dealt out evenly
    heads = np.arange(B * H)
    group, i = np.meshgrid(heads // (H // Hk) * groups // (B * Hk), np.arange(Tr), indexing="ij")  # [B * H, Tr] each
    head = np.broadcast_to(heads[:, None], i.shape)  # [B * H, Tr]
    longest_first = ()
    if counts is not None:
        counts = np.broadcast_to(counts, (B, H, Tr)).reshape(i.shape)
        group = np.where(counts <= counts.max() // 8, groups, group)
        longest_first = -counts, group
    order = np.lexsort([key.ravel() for key in (i, head, *longest_first)])  # [tiles]      the last one sorts first
    i, head = i.ravel()[order], head.ravel()[order]  # [tiles]
    return np.stack([i, head // H, head % H, head % H // (H // Hk)], axis=1)


def parts_of(blocks, programs):
    """Return the number of parts of each list, if all tiles together meet this many blocks of keys."""
    return max(1, int(blocks / programs / PART))


def schedule(tiles, costs, programs, parts=1):
    """Return the table that the kernel reads: tiles [tiles, 4], program after program, and starts [programs + 1].

    Program p computes the tiles starts[p] .. starts[p + 1] of the table, in that order. With lists in parts there are
    more programs than work side by side: first come the first parts of all lists.

    Args:
        tiles: [tiles, 4], longest first. costs: of each, [tiles]. programs: how many work side by side.
        parts: how many each list has.
    """
    owners = assign(costs.tolist(), programs)
    before = np.empty(len(owners))  # [tiles]      what its list costs up to each tile
    for p in range(programs):
        before[owners == p] = np.cumsum(costs[owners == p]) - costs[owners == p]
    turn = parts * before // np.bincount(owners, costs)[owners]  # [tiles]
    _, owners = np.unique(turn * programs + owners, return_inverse=True)  # an empty part gets no program
    starts = np.searchsorted(np.sort(owners), np.arange(owners.max() + 2))
    return tiles[np.argsort(owners, kind="stable")].astype(np.int32), starts.astype(np.int32)


def table(problem, Br, Bc, programs):
    """Return the ``schedule`` of a ``Problem``, on its device, and the number of programs that it is for.

    For a ``Rule`` the table has four more columns: the leftmost block of keys that a tile meets, how many blocks it
    meets, and the first and the last of the keys that all its queries see.
    """
    if isinstance(problem.mask, masks.Rule):
        key = "schedule", *problem[:6], Br, Bc, programs
        return problem.mask.cached(problem.device, key, lambda: _longest_interval_first(problem, Br, Bc, programs))
    if problem.mask == masks.full() or problem.Nq <= Br:
        return plain_table(problem, Br, Bc, programs)
    return _longest_first(problem._replace(scale=1.0, score=None, sinks=None), Br, Bc, programs)


@functools.lru_cache(maxsize=256)
def _longest_first(problem, Br, Bc, programs):
    counts = blocks(np.arange(tiles.count(problem.Nq, Br)), Br, Bc, problem)  # [Tr]
    order = ordered_tiles(problem, Br, counts)
    met = counts[order[:, 0]]  # [tiles]
    return _on_device(order, met + BOUNDARY, programs, parts_of(met.sum(), programs), problem.device)


def _longest_interval_first(problem, Br, Bc, programs):
    met = intervals_of_tiles(problem, Br, Bc)  # [B or 1, Tr, 4]
    order = ordered_tiles(problem, Br, met[:, None, :, 1])
    i, b, _, _ = order.T
    met = np.broadcast_to(met, (problem.B, *met.shape[1:]))[b, i]  # [tiles, 4]
    costs = met[:, 1] + BOUNDARY
    parts = parts_of(met[:, 1].sum(), programs)
    return _on_device(np.concatenate([order, met], 1), costs, programs, parts, problem.device)


def intervals_of_tiles(problem, Br, Bc):
    """Return the four columns that ``table`` adds for a ``Rule``, [B or 1, Tr, 4]."""
    first, last = (x.cpu().numpy() for x in problem.mask.keys(problem))  # [B or 1, Nq] each
    ends = (first, np.minimum), (first, np.maximum), (last, np.minimum), (last, np.maximum)
    starts = np.arange(0, problem.Nq, Br)
    begin, since, till, end = (extreme.reduceat(x, starts, axis=1) for x, extreme in ends)  # [B or 1, Tr] each
    begin = np.minimum(begin, np.maximum(end, 0)) // Bc
    return np.stack([begin, np.maximum(tiles.count(end + 1, Bc) - begin, 1), since, till], -1)


def plain_table(problem, Br, Bc, programs):
    """Return the ``table`` of tiles in plain order, assigned in turn: with as many programs as tiles, each has one."""
    met = problem.B * problem.H * tiles.count(problem.Nq, Br) * tiles.count(problem.Nk, Bc)
    # Whatever the keys are: one table serves every step of decoding.
    unchanging = problem._replace(Nk=1, d=1, dv=1, mask=masks.full(), scale=1.0, score=None, sinks=None)
    return _in_turn(unchanging, Br, programs, parts_of(met, programs))


@functools.lru_cache(maxsize=256)
def _in_turn(problem, Br, programs, parts):
    order = ordered_tiles(problem, Br)
    return _on_device(order, np.ones(len(order)), programs, parts, problem.device)


def _on_device(order, costs, programs, parts, device):
    table, starts = schedule(order, costs, programs, parts)
    return *lasting((table, starts), device), len(starts) - 1


def lasting(arrays, device):
    """Return arrays as tensors on a device that later calls may read, even if this call is part of a CUDA graph.

    A CUDA graph of ``torch.compile`` owns all memory that its thread allocates, and forbids its use afterwards. So
    another thread allocates these, on the same stream.
    """
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def make():
        with torch.cuda.stream(stream):
            return [torch.from_numpy(x).to(device) for x in arrays]

    with ThreadPoolExecutor(1) as aside:
        return aside.submit(make).result()
