"""Which scores the Hopper forward pass takes in: its own lines about tiles, blocks and masks, run in Python.

Without a GPU nothing in Gluon runs. But these lines only reckon with numbers, so they can be called with Python's; the
loops around them, those of ``consume``, are written out again here.
"""

from types import FunctionType, SimpleNamespace

import numpy as np

from flashlab.kernels.hopper import forward, parts, schedule


def in_python(function, table):
    """A Gluon function of numbers as one of Python; ``gl.load`` reads from a flat list."""
    gl = SimpleNamespace(
        load=table.__getitem__,
        maximum=max,
        minimum=min,
        cdiv=lambda x, y: int((x + y - 1) / y),  # towards zero, as integers divide on a GPU
        static_assert=lambda holds, says: None,
        arange=lambda start, stop, layout: np.arange(start, stop),
        SliceLayout=lambda dim, layout: None,
        where=lambda seen, S, masked: seen,  # which scores ``mask`` leaves
    )
    return FunctionType(function.fn.__code__, function.fn.__globals__ | {"gl": gl})


def taken(Nq, Nk, causal, Br, rows=64, Bc=128):
    """How often each score of a head is taken in, [Nq, Nk rounded up to blocks]; behind Nk, memory holds zeros.

    Br: of a tile; rows: of it in each consumer.
    """
    tiles = schedule.ordered_tiles(1, 1, 1, Nq, Nk, Br, 64, causal)  # [tiles, 4]
    tile, unseen, mask = (in_python(f, tiles.ravel().tolist()) for f in (forward.tile, forward.unseen, parts.mask))
    work = forward.Work(0, 0, len(tiles), Nq, Nk, -(-Nq // Br), 1.0)
    K, O, Q = (SimpleNamespace(shape=(n, 1, 1, N, 64)) for n, N in ((2, Bc), (Br // rows, rows), (2, rows)))
    S = SimpleNamespace(shape=(rows, Bc), type=SimpleNamespace(layout=None))
    crossed = causal and (Nq % rows != 0 or Nk % rows != 0)
    counts = np.zeros((Nq, -(-Nk // Bc) * Bc), int)
    for t, w in np.ndindex(len(tiles), Br // rows):
        first_row, end, *_, n = tile(work, t, Br, Bc, causal)
        n -= unseen(n, first_row, end, Nk - Nq, SimpleNamespace(K=K, O=O, Q=Q), w, causal)
        first_row += w * rows
        mine = slice(first_row, max(min(first_row + rows, end), first_row))  # rows that are stored
        for j in (0, *range(1, n)):  # a first block there always is
            start = (n - 1 - j) * Bc
            first_seen = (first_row + Nk - Nq if causal else Nk - 1) - start
            masked = (causal or Nk % Bc != 0) if j == 0 else crossed and first_seen < Bc - 1
            seen = mask(S, first_seen, causal) if masked else np.ones(1, bool)  # [rows, Bc]
            counts[mine, start : start + Bc] += np.broadcast_to(seen, S.shape)[: mine.stop - mine.start]
    return counts


def wanted(Nq, Nk, causal, Bc=128):
    """What ``taken`` should be: each score that the mask leaves, once."""
    i, j = np.ogrid[:Nq, : -(-Nk // Bc) * Bc]
    return ((j < Nk) & ((j <= i + Nk - Nq) | (not causal))).astype(int)
