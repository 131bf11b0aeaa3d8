"""safe_softmax: right solutions pass however they are written; each mistake is told by its name."""

import numpy as np
import pytest
import torch

from flashlab.course.judge import first_failure
from flashlab.course.registry import find
from flashlab.machine.memory import Memory
from flashlab.reference import online_softmax, safe_softmax


def row_in_base_2(x):
    e = np.exp2((x - x.max()) * np.float32(np.log2(np.e)))
    return e * (1 / e.sum())


def row_of_ratios(x):
    """Each weight by itself: 1 / sum of e^(others - mine)."""
    return np.array([1 / np.exp(x - score).sum() for score in x])


def row_near_the_maximum(x):
    e = np.exp(x - (x.max() - 3))
    return e / e.sum()


def lse_in_torch(x):
    return torch.logsumexp(torch.tensor(x), -1)


def lse_of_states(x):
    return online_softmax.finish(
        online_softmax.update(online_softmax.identity(len(x), 0), x, np.empty((x.shape[1], 0), x.dtype))
    )[1]


def lse_key_by_key(x):
    return np.logaddexp.reduce(x, axis=-1)


def rows_one_by_one(x):
    done = []
    for row in x:
        seen = row > -np.inf
        out = np.zeros_like(row)
        if seen.any():
            out[seen] = safe_softmax.naive(row[seen] - row[seen].max())
        done.append(out)
    return np.array(done)


def rows_in_torch(x):
    x = torch.tensor(x)
    return torch.where(x.amax(-1, keepdim=True) == -torch.inf, 0, x.softmax(-1))


def rows_by_merging(x):
    """The weights of a row are its output when the values are the unit vectors."""
    return online_softmax.finish(
        online_softmax.update(online_softmax.identity(len(x), x.shape[1]), x, np.eye(x.shape[1], dtype=x.dtype))
    )[0]


RIGHT = {
    "safe_softmax.row": [row_in_base_2, row_of_ratios, row_near_the_maximum],
    "safe_softmax.lse": [lse_in_torch, lse_of_states, lse_key_by_key],
    "safe_softmax.rows": [rows_one_by_one, rows_in_torch, rows_by_merging],
}


@pytest.mark.parametrize("name, solution", [(name, right) for name in RIGHT for right in RIGHT[name]])
def test_a_right_solution_passes_however_it_is_written(name, solution):
    with np.errstate(all="ignore"):
        assert first_failure(find(name), solution) is None


def test_answers_are_what_the_machine_gives():
    with np.errstate(all="ignore"):
        assert np.array_equal(safe_softmax.naive(np.float16([11, 11])), [0, 0])
        assert np.array_equal(safe_softmax.naive(np.float32([-100, -200, -300])), [1, 0, 0])
    memory = Memory()
    safe_softmax.safe_streamed(np.ones(8, np.float32), 4, memory)
    assert memory.moved == 8 * 4 * find("safe_softmax.accesses").answer
