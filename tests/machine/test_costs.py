"""The costs of a run: FLOPs counted in its matrix products, bytes, and errors."""

import numpy as np
import pytest

from flashlab.machine import costs
from flashlab.machine.memory import Memory
from flashlab.reference import recomputation, tiling
from flashlab.reference.attention import attention, attention_backward

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 5))


@pytest.mark.parametrize(
    "product, flops",
    [
        (lambda a, b: a @ b, 2 * 3 * 4 * 5),
        (lambda a, b: np.matmul(a[:, :2], b[:2]), 2 * 3 * 2 * 5),
        (lambda a, b: b.T @ a.T, 2 * 3 * 4 * 5),
        (lambda a, b: a @ b[:, 0], 2 * 3 * 4),
        (lambda a, b: np.stack([a, a]) @ b, 2 * 2 * 3 * 4 * 5),
        (lambda a, b: np.exp(a * 2 - a.max()).sum(), 0),
        (lambda a, b: np.where(a > 0, a, 0) @ (b + 1), 2 * 3 * 4 * 5),
    ],
)
def test_every_product_is_counted_and_nothing_else(product, flops):
    result, counted = costs.counted(product, A, B)
    assert counted == flops
    np.testing.assert_array_equal(result, product(A, B))


def test_sums_in_place_and_into_plain_arrays_work():
    def accumulate(a, b):
        total = np.zeros((3, 5))
        total += a @ b
        c = a @ b
        c += 1
        return total + c

    result, flops = costs.counted(accumulate, A, B)
    np.testing.assert_array_equal(result, accumulate(A, B))
    assert flops == 2 * 2 * 3 * 4 * 5


def test_counting_twice_does_not_add_up():
    assert costs.counted(np.matmul, A, B)[1] == costs.counted(np.matmul, A, B)[1]


@pytest.mark.parametrize("N, d", [(32, 8), (50, 16)])
def test_tiled_attention_has_the_flops_of_its_formula(N, d):
    Q, K, V, dO = RNG.normal(size=(4, N, d))
    (O, lse), forward = costs.counted(tiling.fa2_forward, Q, K, V, 16, 12)
    _, backward = costs.counted(recomputation.backward, Q, K, V, O, lse, dO, 16, 12)
    assert forward + backward == costs.flops(N, N, d, training=True, rebuilt=True)
    assert costs.counted(attention, Q, K, V)[1] + costs.counted(attention_backward, Q, K, V, dO)[1] == (
        costs.flops(N, N, d, training=True, rebuilt=False) + 2 * N * N * d  # the dense backward makes S anew
    )


def test_the_costs_are_what_the_memory_counted():
    Q, K, V = RNG.normal(size=(3, 32, 8))
    memory = Memory()
    tiling.fa2_forward(Q, K, V, 16, 8, memory=memory)
    run = costs.measure(tiling.fa2_forward, Q, K, V, Br=16, Bc=8, exact=attention(Q, K, V))
    assert run.moved == memory.moved
    assert run.extra == 32 * 8  # lse, float64
    assert run.error < 1e-14


def test_error_of_the_right_output_is_0_of_zeros_1():
    assert costs.error(A, A) == 0
    assert costs.error(0 * A, A) == pytest.approx(1)
    assert np.isnan(costs.error(A * np.nan, A))
