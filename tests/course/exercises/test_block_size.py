"""block_size: right solutions pass however they are written."""

import math
from itertools import count, takewhile

from flashlab.course.registry import find
from flashlab.reference import block_size
from tests.course.exercises import right


def test_the_references_are_the_lessons():
    for M, d in [(51_200, 64), (98_304, 128), (83_456, 32)]:
        assert find("block_size.formula").reference(M, d) == block_size.formula(M, d)
    for Br, Bc, d, dtype in [(16, 256, 64, "float16"), (100, 7, 3, "float32")]:
        counted = find("block_size.working_set").reference(Br, Bc, d, int(dtype[-2:]) // 8)
        assert counted == sum(block_size.working_set(Br, Bc, d, dtype).values())
    assert find("block_size.largest").reference(166_912, 128, 16) == block_size.largest(166_912, 128)


def formula_with_ceil(M, d):
    Bc = math.ceil(M / 4 / d)
    return (d, Bc) if d < Bc else (Bc, Bc)


def formula_by_counting(M, d):
    Bc = 0
    while 4 * d * Bc < M:
        Bc += 1
    return [min(d, Bc), Bc][0], Bc


def formula_rounded(M, d):
    Bc = (M + 4 * d - 1) // (4 * d)
    return sorted([d, Bc])[0], Bc


def working_set_tile_by_tile(Br, Bc, d, itemsize):
    Q, K, V = Br * d * itemsize, Bc * d * itemsize, Bc * d * itemsize
    S, O, m, l = 4 * Br * Bc, 4 * Br * d, 4 * Br, 4 * Br
    return Q + K + V + S + O + m + l


def working_set_by_rows(Br, Bc, d, itemsize):
    return Br * (d * itemsize + 4 * (Bc + d + 2)) + Bc * 2 * d * itemsize


def working_set_from_the_lesson(Br, Bc, d, itemsize):
    return sum(block_size.working_set(Br, Bc, d, f"float{8 * itemsize}").values())


def bytes_of(B, d):
    return sum(block_size.working_set(B, B, d).values())


def largest_by_counting_down(sram_bytes, d, step):
    bound = math.isqrt(sram_bytes // 4) // step * step  # the scores alone fill the memory
    return next(B for B in range(bound, -1, -step) if B == 0 or bytes_of(B, d) <= sram_bytes)


def largest_by_filter(sram_bytes, d, step):
    return max(takewhile(lambda B: bytes_of(B, d) <= sram_bytes, count(step, step)), default=0)


def largest_by_root(sram_bytes, d, step):
    """Solve 4 B^2 + (10 d + 8) B = sram_bytes."""
    root = (-(10 * d + 8) + math.sqrt((10 * d + 8) ** 2 + 16 * sram_bytes)) / 8
    return int(root) // step * step


RIGHT = {
    "block_size.formula": [formula_with_ceil, formula_by_counting, formula_rounded],
    "block_size.working_set": [working_set_tile_by_tile, working_set_by_rows, working_set_from_the_lesson],
    "block_size.largest": [largest_by_counting_down, largest_by_filter, largest_by_root],
}

test_right_answers_pass = right.all_pass(RIGHT)
