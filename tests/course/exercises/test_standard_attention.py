"""standard_attention: right solutions pass however they are written."""

import numpy as np

from flashlab.course.registry import find
from flashlab.machine.memory import Memory
from flashlab.reference import masks, standard_attention
from flashlab.reference.dropout import Dropout
from flashlab.reference.rules import Rules
from tests.course.exercises import right


def by_the_table(N, d, itemsize, mask, dropout):
    return standard_attention.moved(N, d, itemsize, mask=mask, dropout=dropout)


def by_counting(N, d, itemsize, mask, dropout):
    Q = np.ones((N, d), {1: np.float16, 2: np.float16, 4: np.float32, 8: np.float64}[itemsize])
    memory = Memory()
    standard_attention.forward(
        Q,
        Q,
        Q,
        Rules(mask=masks.causal() if mask else None, dropout=Dropout(0.5, 0) if dropout else None),
        memory=memory,
    )
    Z = memory.bytes["store", "Z"]
    return (memory.moved - Z) * itemsize // Q.itemsize + Z


def kernel_by_kernel(N, d, itemsize, mask, dropout):
    square, thin = N * N * itemsize, N * d * itemsize
    total = (2 * thin + square) + 2 * square + (square + 2 * thin)  # scores, softmax, output
    if mask:
        total += 2 * square
    if dropout:
        total += 2 * square + N * N
    return float(total)


RIGHT = {"standard_attention.bytes_moved": [by_the_table, by_counting, kernel_by_kernel]}
test_right_answers_pass = right.all_pass(RIGHT)


def test_answers_are_what_the_memory_counts():
    assert find("standard_attention.passes").answer == sum(k.square for k in standard_attention.passes().values())
    assert find("standard_attention.heads").answer == 2 * 100_000**2 / 1e9
