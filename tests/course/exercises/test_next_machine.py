"""next_machine: right solutions pass however they are written; answers are what the modules compute."""

import math

import numpy as np

from flashlab.course.registry import find
from flashlab.machine import hardware
from flashlab.reference import next_machine, online_softmax, roles
from tests.course.exercises import right


def cycles_by_tiles(Br, Bc, d):
    tiles = Br // 128
    tile = 128 * d * 2 + 2 * Bc * d * 2  # bytes: those of Q once, and those of a tile of K and V
    return tiles * 4 * 128 * Bc * d / 8192, tiles * tile / 128, tiles * 128 * Bc / 16


def exp2_with_ldexp(x, coefficients):
    x = np.maximum(x, -150)
    n = np.floor(x)
    return np.ldexp(np.polyval(coefficients[::-1], x - n), n.astype(int))


def exp2_with_a_power(x, coefficients):
    x = np.maximum(x, np.float32(-127))
    n, f = np.floor(x), x - np.floor(x)
    return sum(c * f**k for k, c in enumerate(coefficients)) * np.float32(2) ** n


def exp2_with_the_round_down_trick(x, coefficients):
    x = np.maximum(x, np.float32(-127))
    rounded = (np.float64(1.5 * 2**23) + np.floor(x)).astype(np.float32)  # what add.rm gives
    f = x - (rounded - np.float32(1.5 * 2**23))
    p = np.zeros_like(f)
    for c in coefficients[::-1]:
        p = p * f + c
    return (p.view(np.int32) + (rounded.view(np.int32) << 23)).view(np.float32)


def lazy_with_log2(state, S_ij, V_j, threshold):
    m_i, l_i, O_i = state
    top = S_ij.max(1)
    rise = top - np.where(m_i == -np.inf, 0, m_i)
    stays = (m_i > -np.inf) & (rise / np.log(2) <= threshold)
    m_new = np.where(stays | (top == -np.inf), m_i, top)
    safe = np.where(np.isinf(m_new), 0, m_new)
    P_ij = np.exp(S_ij - safe[:, None])
    alpha = np.where(m_new == m_i, 1, np.exp(m_i - safe))
    return online_softmax.State(m_new, l_i * alpha + P_ij.sum(1), O_i * alpha[:, None] + P_ij @ V_j)


def order_by_rotation(program, T, causal):
    tiles = list(range(T))
    return np.array(tiles[program:] + ([] if causal else tiles[:program]))


RIGHT = {
    "next_machine.cycles": [cycles_by_tiles, next_machine.forward_cycles],
    "next_machine.exp2": [exp2_with_ldexp, exp2_with_a_power, exp2_with_the_round_down_trick, next_machine.exp2],
    "next_machine.lazy": [lazy_with_log2],
    "next_machine.order": [order_by_rotation],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_answers_are_what_the_modules_compute():
    answer = {name: find(f"next_machine.{name}").answer for name in ("busy", "share", "columns", "pair")}
    products, _, exponentials = next_machine.forward_cycles(256, 128, 64)
    assert answer["busy"] == products / exponentials
    rates = next_machine.Rates()
    assert math.isclose(answer["share"], rates.balanced())
    assert [rates.lane_cycles(128 * 128, share) for share in (0, 1)] == [512, 512 + 1280]
    assert round(rates.exponential_cycles(128 * 128, answer["share"])) == 796 and round(1024 / 796, 2) == 1.29
    assert 2 * (128 + answer["columns"]) == roles.COLUMNS
    assert {a + 1 + b + 1 for a, b in next_machine.pairs(16)} == {answer["pair"]}
    assert find("next_machine.largest_weight").answer == 2**next_machine.THRESHOLD
    assert hardware.flops_per_clock(next_machine.B200) == 8192 == rates.flops


def test_the_orders_of_all_programs_are_those_of_the_module():
    for causal in (False, True):
        orders = [find("next_machine.order").reference(j, 6, causal).tolist() for j in range(6)]
        assert orders == next_machine.visits(6, causal)
        steps = [[order[s] for order in orders if s < len(order)] for s in range(6)]
        assert all(len(set(step)) == len(step) for step in steps), "no two programs add to one dQ at a time"
