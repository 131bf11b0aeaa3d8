"""linear_attention: right solutions pass however they are written; the lengths cross where the formulas say."""

import numpy as np
import torch

from flashlab.course.registry import find
from flashlab.reference import linear_attention
from tests.course.exercises import right


def merge_from_the_end(shrink, KV, shrink_b, KV_b):
    return shrink_b * shrink, KV_b + KV * shrink_b


def chunk_token_by_token(KV, Q_i, K_i, V_i):
    O_i = np.zeros_like(V_i)
    for t in range(len(Q_i)):
        KV = KV + np.outer(K_i[t], V_i[t])
        O_i[t] = Q_i[t] @ KV
    return O_i, KV


def chunk_in_torch(KV, Q_i, K_i, V_i):
    KV, Q_i, K_i, V_i = (torch.tensor(x) for x in (KV, Q_i, K_i, V_i))
    return (Q_i @ K_i.T).tril() @ V_i + Q_i @ KV, KV + torch.einsum("cd,cv->dv", K_i, V_i)


def decayed_token_by_token(KV, Q_i, K_i, V_i, decay):
    O_i = np.zeros_like(V_i)
    for t in range(len(Q_i)):
        KV = np.float32(decay) * KV + np.outer(K_i[t], V_i[t])
        O_i[t] = Q_i[t] @ KV
    return O_i, KV


def decayed_as_if_longer(KV, Q_i, K_i, V_i, decay):
    C = len(Q_i)
    i = np.arange(C)
    near = np.tril(np.float32(decay) ** np.maximum(i[:, None] - i, 0)).astype(np.float32)
    far = (np.float32(decay) ** (i + 1))[:, None]
    O_i = (near * (Q_i @ K_i.T)) @ V_i + (far * Q_i) @ KV
    return O_i, np.float32(decay) ** C * KV + (K_i * far[::-1] / np.float32(decay)).T @ V_i


RIGHT = {
    "linear_attention.merge": [merge_from_the_end],
    "linear_attention.chunk": [chunk_token_by_token, chunk_in_torch],
    "linear_attention.decayed": [decayed_token_by_token, decayed_as_if_longer],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_crossing_is_where_the_formulas_are_equal():
    crossing = find("linear_attention.crossing").answer
    assert crossing == linear_attention.crossover(64, 128)
    assert linear_attention.softmax_flops(crossing, 128, 64) == linear_attention.flops(crossing, 128, 64)
