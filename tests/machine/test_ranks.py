"""Placements of tokens on ranks: every token has one owner, every visible score is in one block."""

import itertools

import numpy as np
import pytest

from flashlab.machine import ranks

SIZES = [(1, 1), (2, 3), (7, 2), (16, 4), (29, 3), (40, 5)]  # N, P
WINDOWS = [(None, None), (None, 0), (3, 0), (0, 0), (2, 5), (None, 2), (4, None)]
TEXTS = [None, (0, 1, 9, 10, 40), (0, 23, 40)]


def dense(N, left, right, documents):
    """Return the mask of the whole sequence, [N, N]."""
    i, j = np.ogrid[:N, :N]
    visible = (j >= i - (N if left is None else left)) & (j <= i + (N if right is None else right))
    if documents:
        text = np.searchsorted(documents, np.arange(N), side="right")
        visible &= text[:, None] == text
    return visible


def covered(blocks, shape):
    """Return how many blocks contain each score, with their windows aligned at the lower right."""
    count = np.zeros(shape, int)
    for rows, cols, left, right in blocks:
        Nq, Nk = rows[1] - rows[0], cols[1] - cols[0]
        i, j = np.arange(Nk - Nq, Nk)[:, None], np.arange(Nk)  # [Nq, 1], [Nk]
        inside = (j >= i - (Nk + Nq if left is None else left)) & (j <= i + (Nk + Nq if right is None else right))
        assert inside.any(1).all() or left is not None, "a block without a left end has rows that see nothing"
        count[slice(*rows), slice(*cols)] += inside
    return count


@pytest.mark.parametrize("name", ranks.PLACEMENTS)
@pytest.mark.parametrize("N, P", [(0, 2), *SIZES])
def test_every_token_has_one_owner(name, N, P):
    placement = ranks.placement_of(name, N, P)
    assert len(placement) == P
    assert sorted(itertools.chain(*itertools.chain(*placement))) == list(range(N))
    counts = [ranks.length(runs) for runs in placement]
    assert max(counts) - min(counts) <= (2 if name == "zigzag" else 1)


@pytest.mark.parametrize("documents", TEXTS, ids=str)
@pytest.mark.parametrize("left, right", WINDOWS)
@pytest.mark.parametrize("name", ranks.PLACEMENTS)
def test_blocks_cover_each_visible_score_once(name, left, right, documents):
    for N, P in SIZES:
        texts = documents and tuple(sorted({min(end, N) for end in documents}))
        placement = ranks.placement_of(name, N, P)
        whole = dense(N, left, right, texts)
        for queries, keys in itertools.product(placement, placement):
            rows, cols = ([p for run in runs for p in run] for runs in (queries, keys))
            blocks = ranks.blocks(queries, keys, left, right, texts)
            expected = whole[np.ix_(rows, cols)]  # [queries, keys] of these two ranks
            assert (covered(blocks, expected.shape) == expected).all(), (N, P, queries, keys, blocks)
            assert sum(block.pairs for block in blocks) == expected.sum()
            assert all((end is None or end >= 0) for block in blocks for end in block[2:])


def test_causal_zigzag_is_one_block_per_step():
    """Own keys: a causal square. Keys of a lower rank: their first half. Keys of a higher one: the second half of Q."""
    placement = ranks.zigzag(32, 4)
    assert ranks.blocks(placement[1], placement[1], None, 0) == (((0, 8), (0, 8), None, 0),)
    assert ranks.blocks(placement[2], placement[1], None, 0) == (((0, 8), (0, 4), None, None),)
    assert ranks.blocks(placement[1], placement[2], None, 0) == (((4, 8), (0, 8), None, None),)


@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_zigzag_is_balanced_in_every_step_and_contiguous_is_not(P):
    N = 16 * P
    for step in ranks.schedule(ranks.zigzag(N, P), None, 0):
        assert len({count for _, count in step}) == 1
    steps = ranks.schedule(ranks.contiguous(N, P), None, 0)
    makespan = sum(max(count for _, count in step) for step in steps)
    n = N // P
    assert makespan == n * (n + 1) // 2 + (P - 1) * n * n


def test_a_window_ends_the_ring_early():
    assert len(ranks.schedule(ranks.contiguous(64, 8), 7, 0)) == 2
    assert len(ranks.schedule(ranks.contiguous(64, 8), 0, 0)) == 1


@pytest.mark.parametrize("arguments", [("spiral", 8, 2), ("zigzag", -1, 2), ("zigzag", 8, 0)])
def test_a_wrong_placement_is_refused(arguments):
    with pytest.raises(ValueError, match="expected a placement|must be a whole number"):
        ranks.placement_of(*arguments)


def test_queries_and_keys_whose_ranges_differ_in_step_are_refused():
    with pytest.raises(ValueError, match="one step"):
        ranks.blocks((range(8),), (range(0, 8, 2),))
