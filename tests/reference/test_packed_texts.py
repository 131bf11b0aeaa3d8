"""Packed texts: every text has the output that it has alone, and the tiles cover each row once."""

import numpy as np
import pytest

from flashlab.machine.memory import Memory
from flashlab.reference import packed_texts, tiling
from flashlab.reference.attention import attention
from flashlab.reference.dropout import Dropout
from flashlab.reference.masks import causal, documents
from flashlab.reference.rules import Rules
from flashlab.reference.scores import alibi

LENGTHS = [5, 0, 1, 8, 3]


def rows(seed, T, d):
    return np.random.default_rng(seed).normal(size=(T, d))


def test_each_text_has_the_output_that_it_has_alone():
    ends, other = packed_texts.offsets(LENGTHS), packed_texts.offsets([7, 2, 1, 8, 4])
    Q, K, V = rows(0, 17, 4), rows(1, 22, 4), rows(2, 22, 3)
    rules = dict(mask=causal(), score=alibi(0.2), sink=0.1)
    O, lse = packed_texts.forward(Q, K, V, ends, other, 2, 3, Rules(**rules))
    for n in range(5):
        part, keys = slice(*ends[n : n + 2]), slice(*other[n : n + 2])
        alone = tiling.fa2_forward(Q[part], K[keys], V[keys], 4, 4, Rules(**rules))
        np.testing.assert_allclose(O[part], alone[0], 1e-12, 1e-13)
        np.testing.assert_allclose(lse[part], alone[1], 1e-12, 1e-13)


def test_packed_texts_equal_one_text_with_a_mask_of_documents():
    ends, (Q, K, V) = packed_texts.offsets(LENGTHS), (rows(seed, 17, 4) for seed in (0, 1, 2))
    row = causal() & documents(np.repeat(np.arange(5), LENGTHS))
    exact = attention(Q, K, V, mask=row, return_lse=True)
    for ours, theirs in zip(packed_texts.forward(Q, K, V, ends, ends, 3, 4, Rules(mask=causal())), exact, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-12, 1e-13)
    dropped = tiling.fa2_forward(Q, K, V, 5, 5, Rules(mask=row, dropout=Dropout(0.4, 3)))
    ours = packed_texts.forward(Q, K, V, ends, ends, 3, 4, Rules(mask=causal(), dropout=Dropout(0.4, 3)))
    for mine, theirs in zip(ours, dropped, strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-12, 1e-13)


def test_the_bytes_are_those_of_the_texts():
    ends, (Q, K, V) = packed_texts.offsets(LENGTHS), (rows(seed, 17, 4) for seed in (0, 1, 2))
    memory = Memory(record=False)
    packed_texts.forward(Q, K, V, ends, ends, 3, 4, Rules(mask=causal()), memory=memory)
    alone = (tiling.fa2_traffic(N, N, 4, 3, 4, mask=causal(), dtype=float).total() for N in LENGTHS)
    assert memory.moved == sum(alone)


@pytest.mark.parametrize("Br", [1, 3, 8, 20])
def test_the_work_has_every_row_once_and_no_tile_of_two_texts(Br):
    ends = packed_texts.offsets(LENGTHS)
    covered = [ends[n] + i for n, start, stop in packed_texts.work(ends, Br) for i in range(start, stop)]
    assert covered == list(range(17))
    assert all(0 < stop - start <= Br and start % Br == 0 for _, start, stop in packed_texts.work(ends, Br))


@pytest.mark.parametrize("ends, other, sentence", [
    ([0, 3], [0, 4], "offsets of Q must begin with 0, not decrease, and end with its 4 rows"),
    ([1, 4], [0, 4], "offsets of Q"),
    ([0, 4], [0, 3, 2, 4], "offsets of K"),
    ([0, 2, 4], [0, 4], "as many texts of keys as of queries, got 1, 2"),
])  # fmt: skip
def test_bad_offsets_get_a_sentence(ends, other, sentence):
    X = rows(0, 4, 2)
    with pytest.raises(ValueError, match=sentence):
        packed_texts.forward(X, X, X, np.array(ends), np.array(other), 2, 2)
