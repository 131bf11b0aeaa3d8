"""eight_bits: right solutions pass however they are written; answers are what the reference gives."""

import numpy as np
import pytest
import torch

from flashlab.course.registry import find
from flashlab.grading.verdict import cases
from flashlab.machine import hardware
from flashlab.reference import eight_bits
from tests.course.exercises import right

NUMBERS = np.sort(eight_bits.numbers_of_e4m3()[:127])


def nearest_in_torch(x):
    return torch.tensor(x).clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.tensor(x).dtype)


def nearest_by_search(x):
    size = np.minimum(np.abs(x), 448)
    above = np.searchsorted(NUMBERS, size)
    low, high = NUMBERS[np.maximum(above - 1, 0)], NUMBERS[above]
    even = np.where(above % 2 == 0, high, low)  # a code is even where its last bit is 0
    found = np.where(size - low < high - size, low, np.where(size - low > high - size, high, even))
    return np.sign(x) * found


def nearest_by_exponent(x):
    x = np.clip(x, -448, 448)
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**-6)))
    step = 2.0 ** (exponent - 3)
    return (np.round(x / step) * step).astype(np.float32)


def hadamard_with_a_matrix(X):
    matrix = np.ones((1, 1))
    while len(matrix) < X.shape[1]:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return X @ (matrix / len(matrix) ** 0.5).astype(X.dtype)


def less_mean_in_torch(Q, K, scale):
    Q, K = torch.tensor(Q), torch.tensor(K)
    return K - K.mean(0), Q @ K.mean(0) * scale


def weights_times_the_largest(S, V, largest):
    top = S.max(1, keepdims=True)
    P = largest * np.exp(S - top)
    l = P.sum(1, keepdims=True)
    return eight_bits.to_e4m3(P) @ V / l, (top + np.log(l / largest))[:, 0]


def weights_of_the_library(S, V, largest):
    one = np.ones((len(V), 1), V.dtype)
    state = eight_bits.identity(len(S), V.shape[1], S.dtype)
    raised = S.dtype.type(np.log(largest))
    state = eight_bits.update(state, S, V, one[0], raised, "e4m3", eight_bits.exactly)
    return eight_bits.finish(state)


def two_levels_of_the_library(P, V, flush):
    return eight_bits.TensorCore(flush=flush)(np.zeros((len(P), V.shape[1]), P.dtype), P, V)


RIGHT = {
    "eight_bits.nearest": [nearest_in_torch, nearest_by_search, nearest_by_exponent],
    "eight_bits.hadamard": [hadamard_with_a_matrix, eight_bits.hadamard],
    "eight_bits.without_mean": [less_mean_in_torch],
    "eight_bits.weights": [weights_times_the_largest, weights_of_the_library],
    "eight_bits.two_level": [two_levels_of_the_library],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_no_weight_is_so_near_a_tie_that_float32_could_round_it_to_either_side():
    for case in cases(find("eight_bits.weights")):
        S, _, largest = case.args
        P = largest * np.exp(S.astype(float) - S.max(1, keepdims=True))
        ties = (NUMBERS[1:] + NUMBERS[:-1]) / 2
        room = 4e-7 * (1 + np.abs(S[np.isfinite(S)]).max())  # of float32's scores, relative to a weight
        assert (np.abs(P[..., None] - ties) > room * P[..., None]).all(), case.property


def test_the_answers_are_those_of_the_reference():
    assert find("eight_bits.next_to_one").answer == NUMBERS[NUMBERS > 1].min() - 1
    edge = find("eight_bits.vanish").answer
    assert (eight_bits.to_e4m3(np.array([edge, edge * 1.001])) > 0).tolist() == [False, True]
    P, V = np.random.default_rng(0).random((1, 2**15)), np.random.default_rng(1).random((2**15, 8))
    lost = [
        1 - eight_bits.TensorCore()(np.zeros((1, 8)), P[:, :N], V[:N]).sum() / (P[:, :N] @ V[:N]).sum()
        for N in (2**10, 2**15)
    ]
    assert find("eight_bits.growth").answer == "N" and 25 < lost[1] / lost[0] < 40  # 32 times as many keys
    card = hardware.CARDS["H100 SXM"]
    clocks = {
        name: 4 * 128 / (getattr(card, name) / card.sms / card.clock) + 1 / card.per_sm.exps
        for name in ("float16", "float8")
    }
    assert clocks["float16"] / clocks["float8"] == pytest.approx(find("eight_bits.at_most").answer, rel=0.01)
