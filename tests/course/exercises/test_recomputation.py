"""recomputation: right solutions pass however they are written."""

import numpy as np
import torch

from flashlab.course.registry import find
from flashlab.machine import costs
from flashlab.reference import recomputation
from tests.course.exercises import right


def delta_by_einsum(dO, O):
    return np.einsum("id,id->i", dO, O)


def delta_by_the_diagonal(dO, O):
    return np.diag(dO @ O.T)


def delta_in_torch(dO, O):
    return (torch.tensor(dO) * torch.tensor(O)).sum(1)


def rebuild_row_by_row(S, lse):
    return np.stack([np.exp(s - l) if l > -np.inf else np.zeros_like(s) for s, l in zip(S, lse, strict=True)])


def rebuild_where_it_can(S, lse):
    P = np.zeros_like(S)
    sees = np.isfinite(lse)
    P[sees] = np.exp(S[sees] - lse[sees, None])
    return P


def rebuild_in_torch(S, lse):
    S, lse = torch.tensor(S), torch.tensor(lse)[:, None]
    return (S - lse.clamp(min=torch.finfo(lse.dtype).min)).exp()


def gradients_by_einsum(Q, K, V, dO, P, delta, scale):
    dP = np.einsum("ie,je->ij", dO, V)
    dS = np.einsum("ij,ij->ij", P, dP - delta.reshape(-1, 1)) * scale
    return np.einsum("ij,jd->id", dS, K), np.einsum("ij,id->jd", dS, Q), np.einsum("ij,ie->je", P, dO)


def gradients_key_by_key(Q, K, V, dO, P, delta, scale):
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for j in range(len(K)):
        dS = P[:, j] * (dO @ V[j] - delta) * scale
        dQ += np.outer(dS, K[j])
        dK[j] = dS @ Q
        dV[j] = P[:, j] @ dO
    return recomputation.Gradients(dQ, dK, dV)


def gradients_in_torch(*arrays):
    Q, K, V, dO, P, delta, scale = (torch.as_tensor(x) for x in arrays)
    dS = P * (dO @ V.mT - delta[:, None])
    return dS @ K * scale, dS.mT @ Q * scale, P.mT @ dO


def backward_queries_outside(Q, K, V, O, lse, dO, Br, Bc):
    scale, dQ, dK, dV = 1 / np.sqrt(Q.shape[1]), [], np.zeros(K.shape), np.zeros(V.shape)
    for i in range(0, len(Q), Br):
        Q_i, dO_i, lse_i = Q[i : i + Br] * scale, dO[i : i + Br], lse[i : i + Br, None]
        delta_i, dQ_i = (dO_i * O[i : i + Br]).sum(1, keepdims=True), 0
        for j in range(0, len(K), Bc):
            P = np.exp(Q_i @ K[j : j + Bc].T - lse_i)
            dS = P * (dO_i @ V[j : j + Bc].T - delta_i)
            dQ_i = dQ_i + dS @ K[j : j + Bc] * scale
            dK[j : j + Bc] += dS.T @ Q_i
            dV[j : j + Bc] += P.T @ dO_i
        dQ.append(dQ_i)
    return np.vstack(dQ), dK, dV


def backward_by_cuts(Q, K, V, O, lse, dO, Br, Bc):
    """Tiles of nearly equal size, each transposed, in float64."""
    cut = lambda X, B: np.array_split(np.asarray(X, float), -(-len(X) // B))  # noqa: E731
    queries = list(zip(*(cut(X, Br) for X in (Q, O, lse, dO)), strict=True))
    scale, dQ, dKV = Q.shape[1] ** -0.5, [0] * len(queries), []
    for K_j, V_j in zip(cut(K, Bc), cut(V, Bc), strict=True):
        dK_j, dV_j = 0 * K_j, 0 * V_j
        for i, (Q_i, O_i, lse_i, dO_i) in enumerate(queries):
            P = np.exp(scale * np.einsum("jd,id->ji", K_j, Q_i) - lse_i)
            dS = P * (V_j @ dO_i.T - np.einsum("ie,ie->i", dO_i, O_i)) * scale
            dQ[i] = dQ[i] + dS.T @ K_j
            dK_j, dV_j = dK_j + dS @ Q_i, dV_j + P @ dO_i
        dKV.append((dK_j, dV_j))
    return np.vstack(dQ), *(np.vstack(parts) for parts in zip(*dKV, strict=True))


RIGHT = {
    "recomputation.delta": [delta_by_einsum, delta_by_the_diagonal, delta_in_torch],
    "recomputation.rebuild": [rebuild_row_by_row, rebuild_where_it_can, rebuild_in_torch],
    "recomputation.gradients": [gradients_by_einsum, gradients_key_by_key, gradients_in_torch],
    "recomputation.backward": [backward_queries_outside, backward_by_cuts],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_answers_are_what_is_counted():
    N, d = 1024, 64
    bill = recomputation.traffic(N, N, d, 64, 256, dtype=np.float16)
    thin = sum(nbytes for (_, name), nbytes in bill.items() if name not in ("lse", "delta"))
    assert find("recomputation.passes").answer == thin / (N * d * 2)
    assert find("recomputation.products").answer == costs.flops(N, N, d, training=True, rebuilt=True) / (2 * N * N * d)
    row, lse = np.zeros((1, N), np.float16), np.zeros(1, np.float32)
    assert find("recomputation.kept").answer == row.nbytes / lse.nbytes
