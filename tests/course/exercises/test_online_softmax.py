"""online_softmax: right solutions pass however they are written."""

import numpy as np
import torch

from flashlab.reference import online_softmax
from tests.course.exercises import right


def update_by_merging(state, S_ij, V_j):
    """One key at a time."""
    for s, v in zip(S_ij.T, V_j, strict=True):
        state = online_softmax.merge(
            state, online_softmax.State(s, np.where(s == -np.inf, 0, 1), np.where(s == -np.inf, 0, 1)[:, None] * v)
        )
    return state


def update_in_base_2(state, S_ij, V_j):
    log2e = np.float32(np.log2(np.e))
    m = np.maximum(state.m, S_ij.max(-1))
    safe = np.nan_to_num(m, neginf=0)
    alpha, P = np.exp2((state.m - safe) * log2e), np.exp2((S_ij - safe[:, None]) * log2e)
    return online_softmax.State(m, state.l * alpha + P.sum(1), state.O * alpha[:, None] + P @ V_j)


def update_in_torch(state, S_ij, V_j):
    m_i, l_i, O_i = (torch.tensor(part) for part in state)
    S, V = torch.tensor(S_ij), torch.tensor(V_j).float()  # torch multiplies within one dtype
    m = torch.maximum(m_i, S.amax(1))
    safe = torch.where(m.isinf(), torch.zeros_like(m), m)
    alpha, P = (m_i - safe).exp(), (S - safe[:, None]).exp()
    return m, alpha * l_i + P.sum(1), alpha[:, None] * O_i + P @ V


def sums_by_difference(m_a, l_a, m_b, l_b):
    """One factor instead of two: the side of the larger maximum needs none."""
    first = m_a >= m_b
    high, low = np.where(first, m_a, m_b), np.where(first, m_b, m_a)
    gap = np.where(low == -np.inf, -np.inf, low - np.where(high == -np.inf, 0, high))
    return high, np.where(first, l_a, l_b) + np.exp(gap) * np.where(first, l_b, l_a)


def sums_row_by_row(*parts):
    rows = []
    for m_a, l_a, m_b, l_b in zip(*parts, strict=True):
        m = max(m_a, m_b)
        rows.append((m, sum(l * np.exp(part - m) for part, l in ((m_a, l_a), (m_b, l_b)) if part > -np.inf)))
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def sums_in_torch(*parts):
    m_a, l_a, m_b, l_b = map(torch.tensor, parts)
    m = torch.maximum(m_a, m_b)
    safe = m.nan_to_num(neginf=0)
    return m, (m_a - safe).exp() * l_a + (m_b - safe).exp() * l_b


def merge_row_by_row(a, b):
    rows = []
    for ma, la, Oa, mb, lb, Ob in zip(*a, *b, strict=True):
        m = max(ma, mb)
        wa, wb = (0 if part == -np.inf else np.exp(part - m) for part in (ma, mb))
        rows.append((m, wa * la + wb * lb, wa * Oa + wb * Ob))
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def merge_by_sigmoid(a, b):
    """The weight of each side as a softmax of the two maxima."""
    m = np.logaddexp(a.m, b.m)
    m = np.where(np.isinf(m), 0, m)
    wa, wb = np.exp(a.m - m), np.exp(b.m - m)
    top = np.maximum(a.m, b.m)
    undo = np.exp(m - np.where(np.isinf(top), 0, top))
    return online_softmax.State(
        top, (wa * a.l + wb * b.l) * undo, (wa[:, None] * a.O + wb[:, None] * b.O) * undo[:, None]
    )


def merge_in_torch(a, b):
    (ma, la, Oa), (mb, lb, Ob) = ([torch.tensor(part) for part in side] for side in (a, b))
    m = torch.maximum(ma, mb)
    wa, wb = ((x - m.nan_to_num(neginf=0)).exp() for x in (ma, mb))
    return m, wa * la + wb * lb, wa[:, None] * Oa + wb[:, None] * Ob


def finish_by_dividing_where_it_can(state):
    O = np.divide(state.O, state.l[:, None], out=np.zeros_like(state.O), where=state.l[:, None] > 0)
    return O, state.m + np.log(state.l)


def finish_row_by_row(state):
    rows = [(O / l, m + np.log(l)) if l else (0 * O, -np.inf) for m, l, O in zip(*state, strict=True)]
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def finish_in_torch(state):
    m, l, O = (torch.tensor(part) for part in state)
    return O / torch.where(l > 0, l, 1)[:, None], m + l.log()


RIGHT = {
    "online_softmax.update": [update_by_merging, update_in_base_2, update_in_torch],
    "online_softmax.sums": [sums_by_difference, sums_row_by_row, sums_in_torch],
    "online_softmax.merge": [merge_row_by_row, merge_by_sigmoid, merge_in_torch],
    "online_softmax.finish": [finish_by_dividing_where_it_can, finish_row_by_row, finish_in_torch],
}

test_right_answers_pass = right.all_pass(RIGHT)
