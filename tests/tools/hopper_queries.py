"""Find the scores that the Hopper backward kernel takes in: its own functions of ``hopper.queries``, run in Python.

As in ``hopper_scores``, what decides on tiles and masks computes with plain numbers, or with small arrays.
"""

from types import SimpleNamespace

import numpy as np
import torch

from flashlab.kernels.hopper import queries, schedule
from flashlab.kernels.hopper.stages import Turns
from flashlab.kernels.problem import Problem
from tests.tools.hopper_scores import in_python

Br, ROWS, CONSUMERS = 64, 64, 2


class Tile(np.ndarray):
    """An array as the kernels have it."""

    type = SimpleNamespace(layout=None)

    def to(self, dtype):
        return self.astype(dtype)


class Number(int):
    """An end of a window: a sum of two is one, too."""

    def __add__(self, other):
        return Number(int(self) + int(other))

    __radd__ = __add__

    def to(self, dtype):
        return dtype(self)


def substitutes(stored, seen):
    """Return stand-ins for the GPU.

    stored: the table or the lists. seen: which scores of a head a ``Rule`` shows, boolean [H, Nq, Nk].
    """
    gl = SimpleNamespace(
        load=lambda at: stored[at].view(Tile) if np.ndim(at) else int(stored[at]),
        min=lambda x, axis: int(x.min()),
        max=lambda x, axis: int(x.max()),
        BlockedLayout=lambda *_: None,
        cdiv=lambda x, y: -(-int(x) // y),
        to_tensor=lambda x: x,
        arange=lambda start, stop, layout: np.arange(start, stop, dtype=np.int32).view(Tile),
        zeros=lambda shape, dtype, layout: np.zeros(shape, np.int32).view(Tile),
        where=np.where,
        int32=np.int32,
        uint32=np.uint32,
        SliceLayout=lambda *_: None,
    )

    def listed(mask, b, h, n):
        return b * mask.batch + h * mask.head + n * mask.length

    def visible(mask, b, h, i, j, Nq, Nk, ragged, transposed):
        assert transposed
        shown = seen[h][np.minimum(i, Nq - 1), np.minimum(j, Nk - 1)]  # [Bc, Br]
        return shown & (j < Nk) if ragged else shown

    asked = SimpleNamespace(bounds=schedule.bounds, listed=listed, visible=visible)
    return {"gl": gl, "questions": asked, "NEVER": Number(queries.NEVER.value)}


def loaded(of, work, problem):
    """Return the head and the tile of queries of each step of ``backward_roles.produce``."""
    heads = range(work.hk * problem.group, (work.hk + 1) * problem.group)
    places = {h: range(work.begin, work.end) for h in heads}
    if problem.mask.rules is not None:
        places = {h: range(of["places"](work, problem, h)[1]) for h in heads}
    return [(h, int(of["at"](work, problem, h, place))) for h in heads for place in places[h]]


def taken(Nq, Nk, mask, H=1, Hk=1, seen=None, d=64):
    """Return how often each score of each head is taken in, [H, Nq rounded up to tiles, Nk rounded up to tiles].

    And how many tiles that all is.
    """
    keys = ROWS * CONSUMERS
    problem = Problem(1, H, Hk, Nq, Nk, d, d, torch.bfloat16, torch.device("cpu"), mask, 1.0, "ieee")
    args = queries.kernel_args(problem, Br, keys)
    stored = [x.flatten().numpy() for x in (args.table, args.lists) if x is not None]
    ends = (end if end is None else Number(end) for end in args[:2])
    args = args._replace(**dict(zip(("left", "right"), ends, strict=True)), table=None if args.table is None else 0)
    problem = SimpleNamespace(group=H // Hk, Nq=Number(Nq), Nk=Nk, mask=args)
    ragged = Nk % keys != 0
    counts, tiles = np.zeros((H, -(-Nq // Br) * Br, -(-Nk // keys) * keys), int), 0
    of_head = -(-Nk // keys)
    turns = Turns(of_head, Hk, of_head * Hk, counts.shape[1])
    for turn in range(turns.all):
        instead = substitutes(stored[0] if stored else None, seen)
        of = {name: in_python(getattr(queries, name), instead) for name in
              ("work_of", "places", "at", "first", "following", "count", "keys_of", "are_cut", "hide")}  # fmt: skip
        work = of["work_of"](turn, turns, problem, 1, keys, Br)  # the sums have room for two heads
        these = of["first"](work, problem, Br)
        asked_for = loaded(of, work, problem)
        assert len(asked_for) == of["count"](work, problem)
        for t, (h, i) in enumerate(asked_for):
            these = of["following"](these, work, problem, Br) if t else these
            assert (these.h, these.i) == (h, i), "queries that the producer does not bring"
            place = these.h % (2 * problem.group)
            assert these.tile == place * (counts.shape[1] // Br) + these.i, "dQ of another tile"
            tiles += 1
            for w in range(CONSUMERS):
                start = work.j * keys + w * ROWS
                of_w = of["keys_of"](problem, 0, start, ROWS, ragged, None)
                Pt_ij = np.ones((ROWS, Br)).view(Tile)
                if of["are_cut"](these, of_w, problem, Br):
                    Pt_ij = of["hide"](Pt_ij, these, of_w, work, problem, ragged)
                counts[these.h, these.i * Br : (these.i + 1) * Br, start : start + ROWS] += Pt_ij.T.astype(int)
    return counts, tiles
