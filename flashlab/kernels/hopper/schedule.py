"""Which program computes which tiles of O, and in which order: decided on the host, read by the kernel from a table.

A persistent grid has as many programs as the GPU has multiprocessors, and each computes tiles until its list is empty.
The lists come from list scheduling, longest tile first: in that order each tile goes to the program that is free
first. Under a causal mask tiles differ in length, and this leaves nobody waiting for a long one at the end. Heads
are taken a few at a time, so that the keys and values in use fit the L2 cache.

Source: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969 (longest processing time first).
"""

import functools
import heapq

import numpy as np
import torch

L2_SHARE = 16 * 2**20  # bytes of keys and values in use at a time: about a quarter of an H200's L2 cache
BOUNDARY = 1.4  # what the change from one tile to the next costs, in blocks of keys


def blocks(i, Br, Bc, Nq, Nk, causal):
    """How many blocks of Bc keys tile i meets; at least 1: a tile that sees no key meets one, masked out as a whole.

    i may be an array. Tiles of Br queries are aligned at the last query, so it is tile 0 that hangs over, if one does.
    """
    i = np.asarray(i)
    behind = (-(-Nq // Br) - 1 - i) * Br if causal else np.zeros_like(i)  # keys that its last query does not see
    seen = Nk - behind
    return np.maximum(-(-seen // Bc), 1)


def assign(costs, programs):
    """The program [tiles] that computes each tile: tile by tile, in the order given, whichever is free first.

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


def ordered_tiles(B, H, Hk, Nq, Nk, Br, d, causal):
    """All tiles of O, [tiles, 4]: columns i, b, h, hk. Longest first among the heads that share the L2 cache."""
    Tr = -(-Nq // Br)
    together = max(1, L2_SHARE // (4 * Nk * d)) * (H // Hk)  # query heads: K and V, 2 bytes an element
    heads = np.arange(B * H)
    group, i = np.meshgrid(heads // together, np.arange(Tr), indexing="ij")  # [B * H, Tr] each
    head = np.broadcast_to(heads[:, None], i.shape)  # [B * H, Tr]
    length = -i if causal else np.zeros_like(i)  # [B * H, Tr]      sorts the longest to the front
    keys = (i, head, length, group) if causal else (i, head)
    order = np.lexsort([key.ravel() for key in keys])  # [tiles]
    i, head = i.ravel()[order], head.ravel()[order]  # [tiles]
    return np.stack([i, head // H, head % H, head % H // (H // Hk)], axis=1)


def schedule(tiles, costs, programs):
    """The table that the kernel reads: (tiles [tiles, 4] in the order of their programs, starts [programs + 1]).

    Program p computes the tiles starts[p] .. starts[p + 1] of the table, in that order.
    """
    owners = assign(costs, programs)
    starts = np.searchsorted(np.sort(owners), np.arange(programs + 1))
    return tiles[np.argsort(owners, kind="stable")].astype(np.int32), starts.astype(np.int32)


def table(B, H, Hk, Nq, Nk, d, Br, Bc, causal, programs, device):
    """``schedule`` of a whole problem, on the device, with how many programs it is for."""
    if causal and Nq > Br:
        return _longest_first(B, H, Hk, Nq, Nk, d, Br, Bc, causal, programs, device)
    # Tiles are equal, whatever Nk is: one table serves every step of decoding.
    return plain_table(B, H, Hk, Nq, 1, 1, Br, 1, False, programs, device)


@functools.lru_cache(maxsize=256)
def _longest_first(B, H, Hk, Nq, Nk, d, Br, Bc, causal, programs, device):
    tiles = ordered_tiles(B, H, Hk, Nq, Nk, Br, d, causal)
    costs = blocks(tiles[:, 0], Br, Bc, Nq, Nk, causal) + BOUNDARY
    return _on_device(tiles, costs.tolist(), programs, device)


@functools.lru_cache(maxsize=256)
def plain_table(B, H, Hk, Nq, Nk, d, Br, Bc, causal, programs, device):
    """The same for tiles in plain order, dealt out in turn: with as many programs as tiles, each has one."""
    tiles = ordered_tiles(B, H, Hk, Nq, Nk, Br, d, False)
    return _on_device(tiles, [1] * len(tiles), programs, device)


def _on_device(tiles, costs, programs, device):
    programs = min(programs, len(tiles))
    table, starts = schedule(tiles, costs, programs)
    return torch.from_numpy(table).to(device), torch.from_numpy(starts).to(device), programs
