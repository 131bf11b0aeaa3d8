"""recomputation: right solutions pass however they are written; each mistake is told by its name."""

import numpy as np
import pytest
import torch

from flashlab.course.registry import find
from flashlab.grading.verdict import first_failure
from flashlab.machine import costs
from flashlab.reference import recomputation


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
    np.exp(S - lse[:, None], out=P, where=np.isfinite(lse)[:, None])
    return P


def rebuild_in_torch(S, lse):
    S, lse = torch.tensor(S), torch.tensor(lse)[:, None]
    return torch.where(S.isinf(), 0, (S - lse).exp())


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


def gradients_in_torch(*given):
    Q, K, V, dO, P, delta, scale = (torch.as_tensor(x) for x in given)
    dS = P * (dO @ V.mT - delta[:, None])
    return dS @ K * scale, dS.mT @ Q * scale, P.mT @ dO


RIGHT = {
    "recomputation.delta": [delta_by_einsum, delta_by_the_diagonal, delta_in_torch],
    "recomputation.rebuild": [rebuild_row_by_row, rebuild_where_it_can, rebuild_in_torch],
    "recomputation.gradients": [gradients_by_einsum, gradients_key_by_key, gradients_in_torch],
}


@pytest.mark.parametrize("name, solution", [(name, right) for name in RIGHT for right in RIGHT[name]])
def test_a_right_solution_passes_however_it_is_written(name, solution):
    with np.errstate(all="ignore"):
        assert first_failure(find(name), solution) is None


def test_answers_are_what_is_counted():
    N, d = 1024, 64
    bill = recomputation.traffic(N, N, d, 64, 256, dtype=np.float16)
    thin = sum(nbytes for (_, name), nbytes in bill.items() if name not in ("lse", "delta"))
    assert find("recomputation.passes").answer == thin / (N * d * 2)
    assert find("recomputation.products").answer == costs.flops(N, N, d, training=True, rebuilt=True) / (2 * N * N * d)
    row, lse = np.zeros((1, N), np.float16), np.zeros(1, np.float32)
    assert find("recomputation.kept").answer == row.nbytes / lse.nbytes
