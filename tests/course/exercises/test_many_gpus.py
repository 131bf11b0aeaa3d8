"""many_gpus: right solutions pass however they are written; answers agree with the plan."""

import math

import numpy as np
import torch

from flashlab.course.registry import find
from flashlab.distributed import plan
from flashlab.machine import ranks
from tests.course.exercises import right


def turn_by_walking(rank, step, P):
    has = list(range(P))
    for _ in range(step):
        has = [has[-1], *has[:-1]]
    ahead = rank + 1 if rank + 1 < P else 0
    behind = rank - 1 if rank > 0 else P - 1
    return has[rank], ahead, behind


def zigzag_by_splitting(rank, P, N):
    stretches = np.split(np.arange(N), 2 * P)
    return np.hstack([stretches[rank], stretches[-1 - rank]])


def zigzag_of_the_placement(rank, P, N):
    return np.array([position for run in ranks.zigzag(N, P)[rank] for position in run])


def merge_with_logaddexp(O, lse, O_b, lse_b):
    both = np.logaddexp(lse, lse_b)
    safe = np.where(both == -np.inf, 0, both)
    return np.exp(lse - safe)[:, None] * O + np.exp(lse_b - safe)[:, None] * O_b, both


def merge_with_a_sigmoid(O, lse, O_b, lse_b):
    O, lse, O_b, lse_b = (torch.tensor(x) for x in (O, lse, O_b, lse_b))
    gap = torch.where(lse == lse_b, 0.0, lse_b - torch.where(lse == lse_b, 0.0, lse))
    return O - torch.sigmoid(gap)[:, None] * (O - O_b), torch.logaddexp(lse, lse_b)


def tokens_from_times(H, Hk, itemsize, flop_rate, wire_rate):
    d = 64
    compute, transfer = 4 * d * H / flop_rate, 2 * d * Hk * itemsize / wire_rate  # per n^2, per n
    return transfer / compute


RIGHT = {
    "many_gpus.turn": [turn_by_walking],
    "many_gpus.zigzag": [zigzag_by_splitting, zigzag_of_the_placement],
    "many_gpus.merge": [merge_with_logaddexp, merge_with_a_sigmoid],
    "many_gpus.overlap": [tokens_from_times],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_the_answers_are_those_of_the_plan():
    costs = plan.costs(2**14, 4, H=32, Hk=8, d=128)
    contiguous = next(cost for cost in costs if (cost.method, cost.placement) == ("ring", "contiguous"))
    assert math.isclose(find("many_gpus.idle").answer, contiguous.efficiency, rel_tol=1e-3)

    def ring_sends_less(P):
        sent = {cost.method: cost.sent[0] for cost in plan.costs(2**14, P, H=32, Hk=8, d=128)}
        return sent["ring"] < sent["all-to-all"]

    assert max(P for P in (2, 4, 8) if ring_sends_less(P)) == find("many_gpus.cheaper").answer
    n = find("many_gpus.overlap").reference(32, 8, 2, 600e12, 400e9)
    rates = {"itemsize": 2, "flop_rate": 600e12, "wire_rate": 400e9}
    assert n == plan.tokens_to_overlap(H=32, Hk=8, causal=False, **rates)
