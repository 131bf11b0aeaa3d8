"""memory_hierarchy: right solutions pass however they are written."""

import numpy as np

from flashlab.course.registry import find
from flashlab.machine import hardware
from flashlab.reference import roofline
from tests.course.exercises import right


def by_asking_which_is_later(flops, nbytes, flop_rate, byte_rate):
    arithmetic, bytes_ = flops / flop_rate, nbytes / byte_rate
    if arithmetic > bytes_:
        return arithmetic
    return bytes_


def by_numpy(flops, nbytes, flop_rate, byte_rate):
    return np.max(np.array([flops, nbytes]) / [flop_rate, byte_rate])


def by_the_ridge(flops, nbytes, flop_rate, byte_rate):
    return nbytes / byte_rate if flops * byte_rate < nbytes * flop_rate else flops / flop_rate


def by_the_closed_form(N, d):
    return d / (1 + 2 * d / N)


def by_the_kernels(N, d):
    return roofline.intensity(roofline.attention(N, d)["QKᵀ"])


def by_arrays(N, d):
    Q, S_row = np.empty((min(N, 8), d), np.float16), np.empty(N, np.float16)
    return 2 * N * N * d / (2 * Q.nbytes / len(Q) * N + S_row.nbytes * N)


RIGHT = {
    "memory_hierarchy.seconds": [by_asking_which_is_later, by_numpy, by_the_ridge],
    "memory_hierarchy.intensity": [by_the_closed_form, by_the_kernels, by_arrays],
}
test_right_answers_pass = right.all_pass(RIGHT)


def test_the_answers_are_what_flashlab_says():
    waiting = 2 * hardware.ridge(hardware.CARDS["A100 40 GB"])
    assert abs(waiting / find("memory_hierarchy.while_waiting").answer - 1) < 0.01
    short, long = (roofline.intensity(roofline.attention(N, 64)["standard"]) for N in (1024, 65536))
    assert find("memory_hierarchy.longer").answer == "stays" and 1 < long / short < 1.07
