"""decoding: right solutions pass however they are written; answers agree with the plan."""

import math
from fractions import Fraction

import numpy as np
import torch

from flashlab.course.registry import find
from flashlab.kernels import tl, triton
from flashlab.machine import hardware
from flashlab.reference import decoding
from tests.course.exercises import right


def merge_in_torch(O_s, lse_s):
    O_s, lse_s = torch.tensor(O_s), torch.tensor(lse_s)
    lse = torch.logsumexp(lse_s, 0)
    return torch.exp(lse_s - (lse if lse > -torch.inf else 0)) @ O_s, lse


def merge_one_by_one(O_s, lse_s):
    O, lse = O_s[0], lse_s[0]
    for O_b, lse_b in zip(O_s[1:], lse_s[1:], strict=True):
        share = 0 if lse_b == -np.inf else 1 / (1 + np.exp(lse - lse_b))
        O, lse = O - share * (O - O_b), np.logaddexp(lse, lse_b)
    return O, lse


def parts_in_whole_numbers(programs, tiles, slots):
    shares = [Fraction(programs * S, slots * -(-programs * S // slots)) for S in range(1, tiles + 1)]
    return next(S for S, share in enumerate(shares, 1) if 20 * share >= 19 * max(shares))


def parts_from_a_rounded_quotient(programs, tiles, slots):
    w = [S * (programs / slots) for S in range(1, tiles + 1)]
    used = np.array([x / math.ceil(x) for x in w])
    return 1 + int(np.argmax(used / used.max() >= 0.95))


def packed_row_by_row(Q, Hk):
    g = len(Q) // Hk
    return np.array([[Q[h * g + member, t] for t in range(Q.shape[1]) for member in range(g)] for h in range(Hk)])


def packed_in_torch(Q, Hk):
    return torch.tensor(Q).unflatten(0, (Hk, -1)).transpose(1, 2).flatten(1, 2)


@triton.jit
def combine_one_by_one(O_s, lse_s, O, lse, rows, S, dv, Bs: tl.constexpr, width: tl.constexpr):
    i, cols = tl.program_id(0), tl.arange(0, width)
    m_i, l_i, O_i = -float("inf"), 0.0, tl.zeros([width], tl.float32)
    for s in range(S):
        at = s * rows + i
        lse_j = tl.load(lse_s + at)
        m_new = tl.maximum(m_i, lse_j)
        m_safe = tl.where(m_new == -float("inf"), 0.0, m_new)
        alpha, weight = tl.exp(m_i - m_safe), tl.exp(lse_j - m_safe)
        l_i = alpha * l_i + weight
        O_i = alpha * O_i + weight * tl.load(O_s + at * dv + cols, mask=cols < dv, other=0.0)
        m_i = m_new
    tl.store(O + i * dv + cols, O_i / tl.where(l_i == 0, 1.0, l_i), mask=cols < dv)
    tl.store(lse + i, tl.where(l_i == 0, -float("inf"), m_i + tl.log(l_i)))


RIGHT = {
    "decoding.merge": [merge_in_torch, merge_one_by_one],
    "decoding.parts": [parts_in_whole_numbers, parts_from_a_rounded_quotient],
    "decoding.packed": [packed_row_by_row, packed_in_torch],
    "decoding.combine_kernel": [combine_one_by_one],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_answers_are_those_of_the_plan():
    card = hardware.CARDS["H100 SXM"]
    assert find("decoding.waves").answer == decoding.plan(card, B=1, Hk=8, N=8192, S=17).waves
