"""io_complexity: right solutions pass however they are written; each mistake is told by its name."""

import math

import numpy as np
import pytest

from flashlab.course.judge import first_failure
from flashlab.course.registry import find
from flashlab.reference import block_size, io_complexity, tiling

NAME = "io_complexity.elements"


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


@pytest.mark.parametrize("solution", [tensor_by_tensor, by_the_closed_form, tile_by_tile])
def test_a_right_solution_passes_however_it_is_written(solution):
    assert first_failure(find(NAME), solution) is None


def test_answers_are_what_is_counted():
    grown = [io_complexity.predicted(N, 64, 16384) for N in (8192, 16384)]
    assert find("io_complexity.doubling").answer == pytest.approx(grown[1] / grown[0], rel=0.01)
    near = [io_complexity.predicted(2**16, d, 49152) / (4 * 2**32 + 4 * 2**16 * d) for d in (112, 128, 144)]
    assert near[0] < 0.9 < near[1] < 1.1 < near[2]
    layer = {"heads": 16, "fused": True}
    reach = [io_complexity.longest(nbytes, 64, **layer) for nbytes in (10**9, 2 * 10**9)]
    assert find("io_complexity.longest").answer == pytest.approx(reach[1] / reach[0], rel=0.01)
