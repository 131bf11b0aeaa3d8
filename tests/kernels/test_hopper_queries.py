"""The Hopper backward kernel takes in each score that the mask leaves, once, and meets no tile without one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashlab.kernels import masks, packed
from flashlab.kernels.hopper import queries
from flashlab.kernels.problem import Problem
from tests.tools.hopper_queries import taken

LENGTHS = [(128, 128), (64, 200), (200, 64), (133, 130), (130, 133), (1, 70), (320, 256), (256, 320)]
WINDOWS = [
    (None, None),
    (None, 0),
    (0, 0),
    (5, 0),
    (64, 0),
    (126, 0),
    (150, 0),
    (20, 70),
    (0, 9),
    (None, 70),
    (40, None),
]


def in_window(left, right, Nq, Nk):
    i, j = np.arange(Nk - Nq, Nk)[:, None], np.arange(Nk)[None]
    return (j >= i - (Nk + Nq if left is None else left)) & (j <= i + (Nk + Nq if right is None else right))


@pytest.mark.parametrize("left, right", WINDOWS)
def test_each_score_in_a_window_is_taken_in_once(left, right):
    for Nq, Nk in LENGTHS:
        Nk = Nk if left is None else min(Nk, Nq + left)  # ``backward.run`` leaves out what lies before
        seen = in_window(left, right, Nq, Nk)  # [Nq, Nk]
        counts, tiles = taken(Nq, Nk, masks.Window(left, right), H=2)
        assert (counts[:, :Nq, :Nk] == seen).all(), f"{Nq} queries, {Nk} keys"
        assert (counts[:, :, Nk:] == 0).all(), "keys past the end"
        assert tiles == 2 * met(seen), "tiles that nobody needs, or a tile too few"


def test_the_window_that_stands_for_no_mask_hides_nothing():
    for Nq, Nk in ((4096, 256), (4130, 130)):
        problem = Problem(1, 1, 1, Nq, Nk, 128, 128, torch.bfloat16, torch.device("cpu"), masks.full(), 1.0, "ieee")
        assert queries.kernel_args(problem, 64, 128)[:2] == queries.ENDLESS.T
        counts, tiles = taken(Nq, Nk, masks.full(), d=128)
        assert (counts[:, :Nq, :Nk] == 1).all() and (counts[:, :, Nk:] == 0).all()
        assert tiles == counts.size // (64 * 128)


def met(seen):
    """Count the tiles of 64 queries and 128 keys that hold a visible score."""
    Nq, Nk = seen.shape
    padded = np.pad(seen, ((0, -Nq % 64), (0, -Nk % 128)))
    return padded.reshape(padded.shape[0] // 64, 64, -1, 128).any((1, 3)).sum()


def test_each_score_that_a_rule_shows_is_taken_in_once():
    for N in (128, 200, 333):
        i, j = np.arange(N)[:, None], np.arange(N)[None]
        ids = torch.arange(N) // 70
        same = (ids[:, None] == ids[None]).numpy()
        pieces = (torch.arange(N) // 40) % 3
        again = (pieces[:, None] == pieces[None]).numpy()
        for mask, seen, table in (
            (masks.documents(ids) & masks.causal(), same & (j <= i), True),
            (masks.documents(ids) & masks.window(30, 9), same & (j >= i - 30) & (j <= i + 9), True),
            (masks.documents(ids), same, True),
            (masks.prefix(90), (j <= i) | (j < 90), True),
            (masks.documents(pieces) & masks.causal(), again & (j <= i), False),
            (masks.causal() & (masks.window(40) | masks.sinks(3)), (j <= i) & ((j >= i - 40) | (j < 3)), True),
        ):
            problem = SimpleNamespace(mask=mask, Nq=N, Nk=N, device=torch.device("cpu"))
            assert (mask.interval(problem) is not None) == table
            counts, tiles = taken(N, N, mask, H=4, Hk=2, seen=np.stack([seen] * 4))
            assert (counts[:, :N, :N] == seen).all() and (counts[:, :, N:] == 0).all()
            assert tiles == 4 * met(seen)


def test_each_score_inside_a_text_is_taken_in_once():
    offsets = torch.tensor([0, 50, 50, 51, 190, 320, 323])
    texts = packed.prepared(offsets, offsets)
    T = int(offsets[-1])
    own = texts.of[0].numpy()
    i, j = np.arange(T)[:, None], np.arange(T)[None]
    for mask, seen in (
        (masks.full(), j >= 0),
        (masks.causal(), j <= i),
        (masks.window(70, 3), (j >= i - 70) & (j <= i + 3)),
    ):
        seen = seen & (own[:, None] == own[None])
        counts, tiles = taken(T, T, texts.apart(mask))
        assert (counts[:, :T, :T] == seen).all() and (counts[:, :, T:] == 0).all()
        assert tiles == met(seen)


def test_heads_may_differ_in_their_tiles():
    """A program takes the query heads of its key/value head one after the other, each with a list of its own."""
    N, H = 400, 4
    kept = torch.rand(H, 13, 13, generator=torch.Generator().manual_seed(0)) < 0.1
    tiles_kept = kept.repeat_interleave(32, 1).repeat_interleave(32, 2)[:, :N, :N].numpy()
    seen = tiles_kept | in_window(0, 0, N, N)
    counts, _ = taken(N, N, masks.blocks(kept, 32, 32) | masks.window(0), H=H, Hk=2, seen=seen)
    assert (counts[:, :N, :N] == seen).all() and (counts[:, :, N:] == 0).all()
