"""the_cache: right solutions pass however they are written."""

import numpy as np
import pytest
import torch

from flashlab.course.registry import find
from flashlab.grading.verdict import first_failure
from flashlab.reference import the_cache
from tests.course.exercises import right


def keys_one_by_one(K, table, N):
    result = np.zeros((N, K.shape[2]), K.dtype)
    for j in range(N):
        number, row = divmod(j, K.shape[1])
        result[j] = K[table[number], row]
    return result


def keys_in_torch(K, table, N):
    pages = torch.tensor(table[: -(-N // K.shape[1])])
    return torch.tensor(K).index_select(0, pages).flatten(0, 1)[:N]


def needed_by_appending(length, n, page, shared):
    taken = 0
    for at in range(length, length + n):
        taken += at % page == 0 or (shared and at == length)
    return taken


def eight_bits_by_a_factor(X):
    largest = np.abs(X).max(axis=1, keepdims=True)
    factor = np.divide(127, largest, out=np.ones_like(largest), where=largest > 0)
    return np.rint(X * factor), np.where(largest > 0, largest / 127, 1)[:, 0]


def eight_bits_in_torch(X):
    X = torch.tensor(X)
    scale = X.abs().amax(1) / 127
    scale[scale == 0] = 1
    return (X / scale[:, None]).round().to(torch.int8).float(), scale


def absorb_in_one_product(q, q_rope, C, R, W_K, W_V, scale):
    q, q_rope, C, R, W_K, W_V = (torch.tensor(x) for x in (q, q_rope, C, R, W_K, W_V))
    both = torch.cat([(q[:, None] @ W_K)[:, 0], q_rope], 1) * scale
    P = torch.softmax(both @ torch.cat([C, R], 1).T, 1)
    return (W_V @ (P @ C)[..., None])[..., 0]


def absorb_by_lse(q, q_rope, C, R, W_K, W_V, scale):
    both, O = np.concatenate([C, R], 1), []
    for h in range(len(q)):
        S = both @ np.concatenate([W_K[h].T @ q[h], q_rope[h]]) * scale
        O.append(W_V[h] @ (np.exp(S - np.logaddexp.reduce(S)) @ C))
    return np.array(O)


RIGHT = {
    "the_cache.look_up": [keys_one_by_one, keys_in_torch],
    "the_cache.needed": [needed_by_appending],
    "the_cache.eight_bits": [eight_bits_by_a_factor, eight_bits_in_torch],
    "the_cache.absorb": [absorb_in_one_product, absorb_by_lse, the_cache.absorbed],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_keys_and_values_must_not_be_made():
    fault = first_failure(find("the_cache.absorb"), the_cache.expanded)
    assert fault is not None and "they are not made" in fault.on


def in_float64(q, q_rope, C, R, W_K, W_V, scale):
    return the_cache.expanded(*(X.astype(np.float64) for X in (q, q_rope, C, R, W_K, W_V)), scale)


@pytest.mark.parametrize("narrowed", [np.float64, np.float32])
def test_keys_and_values_must_not_be_made_in_float64(narrowed):
    fault = first_failure(find("the_cache.absorb"), lambda *args: in_float64(*args).astype(narrowed))
    assert fault is not None and "keys or values were made" in fault.message


def test_absorbed_in_float32_whatever_the_inputs_are_is_right():
    def narrowed(*tensors, scale):
        return the_cache.absorbed(*(X.astype(np.float32) for X in tensors), scale)

    assert first_failure(find("the_cache.absorb"), lambda *args: narrowed(*args[:-1], scale=args[-1])) is None
