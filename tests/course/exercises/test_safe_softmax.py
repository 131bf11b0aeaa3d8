"""safe_softmax: right solutions pass however they are written."""

import math

import numpy as np
import torch

from flashlab.course.registry import find
from flashlab.machine.memory import Memory
from flashlab.reference import online_softmax, safe_softmax
from tests.course.exercises import right


def row_in_base_2(x):
    e = np.exp2((np.float32(x) - x.max()) * np.float32(np.log2(np.e)))
    return e * (1 / e.sum())


def row_near_the_maximum(x):
    x = np.float32(x)
    e = np.exp(x - (x.max() - 3))
    return e / e.sum()


def row_of_ratios(x):
    """Compute each weight separately: 1 / sum of e^(x - score)."""
    x = np.float32(x)
    return np.array([1 / np.exp(x - score).sum() for score in x])


def row_score_by_score(x):
    top = max(map(float, x))
    weights = [math.exp(float(score) - top) for score in x]
    return np.array(weights) / sum(weights)


def row_into_float64(x):
    y = x.astype(np.float32)
    out = np.zeros(len(x))
    out[:] = np.exp(y - y.max())
    return out / np.float64(np.exp(y - y.max()).sum())


def row_of_numbers(x):
    """Compute in float32, and return an array of Python numbers, so float64."""
    e = np.exp(np.float32(x) - np.float32(x.max()))
    l = e.sum()
    return np.array([float(weight / l) for weight in e])


def row_times_the_inverse(x):
    e = np.exp(np.float64(np.float32(x) - x.max()).astype(np.float32))
    return np.float64(e * (1 / e.sum()))


def row_as_x_is(x):
    e = np.exp(np.float32(x) - x.max())
    return (e / e.sum()).astype(x.dtype)


def row_summed_wide(x):
    e = np.exp(x - x.max())
    l = e.sum(dtype=np.result_type(x, np.float32))
    return e / l


def row_of_logarithms(x):
    y = np.float32(x) - np.float32(x).max()
    return np.float64(np.exp(y - np.log(np.exp(y).sum())))


def row_in_torch(x):
    return torch.tensor(x).softmax(0)


def rows_into_float64(x):
    out = np.zeros(x.shape)
    for r, row in enumerate(np.float32(x)):
        if row.max() > -np.inf:
            e = np.exp(row - row.max())
            out[r] = e / e.sum()
    return out


def rows_as_x_is(x):
    y = x.astype(np.result_type(x, np.float32))
    m = y.max(1, keepdims=True)
    e = np.exp(y - np.where(m == -np.inf, 0, m))
    l = e.sum(1, keepdims=True)
    return (e / np.where(l == 0, 1, l)).astype(x.dtype)


def lse_in_torch(x):
    return torch.logsumexp(torch.tensor(x).float(), -1)  # this function overflows in float16


def lse_of_states(x):
    return online_softmax.finish(
        online_softmax.update(online_softmax.identity(len(x), 0), x, np.empty((x.shape[1], 0), x.dtype))
    )[1]


def lse_key_by_key(x):
    return np.logaddexp.reduce(np.float32(x), axis=-1)


def lse_into_float64(x):
    """Compute in float32, row by row, and store in float64."""
    out = np.full(len(x), -np.inf)
    for r, row in enumerate(np.float32(x)):
        if (m := row.max()) > -np.inf:
            out[r] = m + np.log(np.exp(row - m).sum())
    return out


def lse_as_x_is(x):
    y = np.float32(x)
    m = y.max(1)
    safe = np.where(m == -np.inf, 0, m)
    return (safe + np.log(np.exp(y - safe[:, None]).sum(1))).astype(x.dtype)


def lse_summed_wide(x):
    """Maximum and exponentials in the dtype of x, the sum and all after it in float32 or better."""
    m = x.max(1, keepdims=True)
    m[m == -np.inf] = 0
    return m[:, 0] + np.log(np.exp(x - m).sum(1, dtype=np.float32))


def rows_one_by_one(x):
    done = []
    for row in x:
        seen = row > -np.inf
        out = np.zeros_like(row)
        if seen.any():
            e = np.exp(row[seen] - row[seen].max())
            out[seen] = e / e.sum(dtype=np.float32)
        done.append(out)
    return np.array(done)


def rows_in_torch(x):
    x = torch.tensor(x)
    nothing = x.amax(-1, keepdim=True) == -torch.inf
    return torch.where(nothing, 0, torch.where(nothing, 0, x).softmax(-1))


def rows_by_merging(x):
    """Take in one half of the keys after the other, without values. Then compute the weights."""
    x, none = np.float32(x), np.empty((x.shape[1], 0), np.float32)
    half = x.shape[1] // 2
    state = online_softmax.update(online_softmax.identity(len(x), 0), x[:, :half], none[:half])
    m, l, _ = online_softmax.update(state, x[:, half:], none[half:])
    return np.exp(x - np.where(l == 0, 0, m)[:, None]) / np.where(l == 0, 1, l)[:, None]


RIGHT = {  # fmt: skip
    "safe_softmax.row": [
        row_in_base_2,
        row_score_by_score,
        row_near_the_maximum,
        row_of_ratios,
        row_into_float64,
        row_of_numbers,
        row_times_the_inverse,
        row_as_x_is,
        row_summed_wide,
        row_of_logarithms,
        row_in_torch,
    ],
    "safe_softmax.lse": [lse_in_torch, lse_of_states, lse_key_by_key, lse_into_float64, lse_as_x_is, lse_summed_wide],
    "safe_softmax.rows": [rows_one_by_one, rows_in_torch, rows_by_merging, rows_into_float64, rows_as_x_is],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_answers_are_what_the_machine_gives():
    with np.errstate(all="ignore"):
        assert np.array_equal(safe_softmax.naive(np.float16([11, 11])), [0, 0])
        assert np.array_equal(safe_softmax.naive(np.float32([-100, -200, -300])), [1, 0, 0])
    memory = Memory()
    safe_softmax.safe_streamed(np.ones(8, np.float32), 4, memory)
    assert memory.moved == 8 * 4 * find("safe_softmax.accesses").answer
