"""masks_and_scores: right solutions pass however they are written; answers are what the library counts."""

import numpy as np
import pytest
import torch

from flashlab.course.registry import find
from flashlab.reference import masks, online_softmax, scores
from tests.course.exercises import right


def bounds_query_by_query(rows, Nq, Nk, left, right):
    own = [i + Nk - Nq for i in range(rows.start, rows.stop)]
    keys = [j for j in range(Nk) if any(at - left <= j <= at + right for at in own)]
    return keys[0], keys[-1] + 1


def bounds_of_the_library(rows, Nq, Nk, left, right):
    return masks.window(left, right).bounds(rows, (Nq, Nk))


def documents_by_multiplication(S, i, j, ids):
    seen = (ids[i] == ids[j]) * (j <= i)
    out = S.copy()
    out[~seen] = -np.inf
    return out


def documents_of_the_library(S, i, j, ids):
    seen = (masks.documents(ids) & masks.causal()).visible(i, j, (len(ids), len(ids)))
    return np.where(seen, S, -np.inf)


def softcap_in_place(S, seen, cap):
    S = np.tanh(S / cap)
    S *= cap
    S[~seen] = -np.inf
    return S


def softcap_in_torch(S, seen, cap):
    return (cap * torch.tanh(torch.tensor(S) / cap)).masked_fill(~torch.tensor(seen), -torch.inf)


def slope_by_the_capped_score(S, cap):
    share = scores.softcap(cap).apply(S, slice(0), slice(0), (0, 0)) / cap
    return 1 - share**2


def sink_by_update(s, Br, dv):
    return online_softmax.update(online_softmax.identity(Br, dv, float), np.full((Br, 1), s), np.zeros((1, dv)))


def sink_as_a_tuple(s, Br, dv):
    return s + np.zeros(Br), np.ones(Br), np.zeros((Br, dv))


RIGHT = {
    "masks_and_scores.bounds": [bounds_query_by_query, bounds_of_the_library],
    "masks_and_scores.documents": [documents_by_multiplication, documents_of_the_library],
    "masks_and_scores.softcap": [softcap_in_place, softcap_in_torch],
    "masks_and_scores.cap_slope": [slope_by_the_capped_score],
    "masks_and_scores.sink": [sink_by_update, sink_as_a_tuple],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_answers_are_what_is_counted():
    mask, shape, rows = masks.window(1023), (16384, 16384), slice(8192, 8320)
    met = mask.tiles(rows, 128, shape)
    assert find("masks_and_scores.tiles_per_row").answer == len(met)
    seen = mask.visible(*np.ogrid[rows, :16384], shape).sum()
    assert find("masks_and_scores.useful_share").answer == pytest.approx(seen / (len(met) * 128 * 128), abs=5e-4)
    assert find("masks_and_scores.window_keys").answer == masks.window(4096, 0).dense((9000, 9000))[8000].sum()
