"""packed_texts_and_dropout: right solutions pass however they are written; answers are what the library computes."""

import numpy as np
import torch

from flashlab.course.registry import find
from flashlab.reference import online_softmax, packed_texts, tiling
from flashlab.reference.dropout import Dropout, philox
from tests.course.exercises import right


def positions_text_by_text(offsets):
    return np.concatenate([np.arange(stop - start) for start, stop in zip(offsets, offsets[1:], strict=False)])


def positions_by_search(offsets):
    rows = np.arange(offsets[-1])
    return rows - offsets[np.searchsorted(offsets, rows, "right") - 1]


def work_of_the_library(offsets, Br):
    return packed_texts.work(offsets, Br)


def work_backwards(offsets, Br):
    for n in range(len(offsets) - 1)[::-1]:
        N = offsets[n + 1] - offsets[n]
        for start in range(0, N, Br):
            yield [n, start, min(N, start + Br)]


def update_by_merging(state, S, V, Z):
    return online_softmax.merge(state, tiling.dropped(S, V, Z))


def update_in_torch(state, S, V, Z):
    m, l, O, S, V, Z = (torch.tensor(x) for x in (*state, S, V, Z))
    top = torch.maximum(m, S.max(1).values)
    safe = torch.where(top.isinf(), 0, top)
    alpha, P = (m - safe).exp(), (S - safe[:, None]).exp()
    return top, alpha * l + P.sum(1), alpha[:, None] * O + (Z * P) @ V


def bits_by_division(i, j, words):
    word = words[(i // 8 % 2) * 2 + j // 8 % 2]
    return word // 65536 if j % 2 else word % 65536


RIGHT = {
    "packed_texts_and_dropout.positions": [positions_text_by_text, positions_by_search],
    "packed_texts_and_dropout.work": [work_of_the_library, work_backwards],
    "packed_texts_and_dropout.update": [update_by_merging, update_in_torch],
    "packed_texts_and_dropout.bits": [bits_by_division],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_bits_are_those_of_the_library():
    bits, dropout = find("packed_texts_and_dropout.bits").reference, Dropout(0.1, 5, h=3, b=2)
    for i, j in ((0, 0), (17, 30), (8, 9), (100, 41)):
        words = [int(word) for word in philox((j & ~9, i & ~8, 3, 2), (5, 0))]
        assert bits(i, j, words) == dropout.random(np.array([[i]]), np.array([[j]])).item()


def test_the_answers_are_what_is_counted():
    rows = np.ogrid[0:16, 0:16]
    calls = len(np.unique((rows[0] & ~8) * 16 + (rows[1] & ~9)))
    assert find("packed_texts_and_dropout.instructions").answer == 7 * 4 * calls / 16**2
    positions = find("packed_texts_and_dropout.positions").reference(packed_texts.offsets([57, 55]))
    assert find("packed_texts_and_dropout.first_of_next").answer == positions[57]
