"""io_complexity: right solutions pass however they are written."""

import math

import numpy as np
import pytest

from flashlab.course.registry import find
from flashlab.reference import block_size, io_complexity, recomputation, tiling
from flashlab.reference.masks import causal
from tests.course.exercises import right


def tensor_by_tensor(N, d, M):
    Tc = math.ceil(N / math.ceil(M / (4 * d)))
    loads = {"Q": Tc, "K": 1, "V": 1, "O": Tc - 1}
    return N * d * (sum(loads.values()) + Tc)


def by_the_closed_form(N, d, M):
    bill = tiling.fa1_traffic(N, N, d, *block_size.formula(M, d))
    return sum(nbytes for (_, name), nbytes in bill.items() if name != "lse") / 4


def tile_by_tile(N, d, M):
    total = 0
    for start in range(0, N, -(-M // (4 * d))):
        total += 2 * N * d + (N * d if start else 0)
    return np.int64(total + 2 * N * d)


RIGHT = {"io_complexity.elements": [tensor_by_tensor, by_the_closed_form, tile_by_tile]}
test_right_answers_pass = right.all_pass(RIGHT)


def test_answers_are_what_is_counted():
    grown = [io_complexity.predicted(8192, d, 16384) for d in (64, 128)]
    assert find("io_complexity.doubling").answer == pytest.approx(grown[1] / grown[0], rel=0.01)
    near = [io_complexity.predicted(2**16, d, 49152) / (4 * 2**32 + 4 * 2**16 * d) for d in (112, 128, 144)]
    assert near[0] < 0.9 < near[1] < 1.1 < near[2]
    layer = {"heads": 16, "fused": True}
    reach = [io_complexity.longest(nbytes, 64, **layer) for nbytes in (10**9, 2 * 10**9)]
    assert find("io_complexity.longest").answer == pytest.approx(reach[1] / reach[0], rel=0.01)


def test_answers_of_the_quiz_are_what_flashlab_computes():
    def answer(name):
        return find(f"io_complexity.quiz_{name}").answer

    rows, shape = tiling.tiles(1024, 128), (1024, 1024)
    assert answer("tiles") == sum(len(causal().tiles(tile, 128, shape)) for tile in rows)
    bill = tiling.fa1_traffic(160, 160, 8, 16, 16)
    assert answer("passes") == sum(n for (_, name), n in bill.items() if name != "lse") / (160 * 8 * 4)
    assert answer("stages") == block_size.shared_memory(128, 128, 64, stages=3) / 1024
    assert answer("rebuilt") == pytest.approx(recomputation.rebuild(np.array([[2.0]]), 2 + np.log([4.0]))[0, 0])
    P, dP = np.array([0.5, 0.5]), np.array([1.0, 3.0])
    assert answer("gradient") == (P * (dP - (P * dP).sum()))[0]
    moved = [io_complexity.predicted(2**15, d, M) for d, M in ((64, 2**14), (128, 2**16))]
    assert answer("law") == pytest.approx(moved[1] / moved[0], rel=0.01)
    held = [io_complexity.need(N, 64, heads=1, fused=True).total for N in (1024, 2048)]
    assert answer("linear") == "memory" and held[1] == 2 * held[0]
