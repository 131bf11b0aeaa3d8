"""The growth of bytes and memory: counts agree with closed forms, fits with known powers."""

import tracemalloc

import numpy as np
import pytest

from flashlab.machine.memory import Memory
from flashlab.reference import block_size, io_complexity, masks, published, recomputation, tiling
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.rules import Rules

rng = np.random.default_rng(9)


@pytest.mark.parametrize("N, d, M", [(64, 8, 256), (100, 8, 300), (257, 16, 1000), (64, 16, 64 * 16 * 4)])
def test_counted_elements_are_the_predicted_ones_and_those_of_lse(N, d, M):
    Br, Bc = block_size.formula(M, d)
    Tc = -(-N // Bc)
    assert io_complexity.fused(N, d, M) == io_complexity.predicted(N, d, M) + N * (2 * Tc - 1)
    assert io_complexity.standard(N, d) == 4 * N * N + 4 * N * d


def test_when_all_fits_each_tensor_moves_once():
    N, d = 128, 16
    assert io_complexity.predicted(N, d, 4 * N * d) == 4 * N * d


def test_fit_finds_a_power_and_its_error():
    x = np.array([1.0, 2, 4, 8, 16])
    assert io_complexity.fit(x, 3 * x**-1.5) == pytest.approx((-1.5, 0), abs=1e-12)
    noise = np.exp(np.array([0.1, -0.1, 0.1, -0.1, 0.1]))
    exponent, error = io_complexity.fit(x, x**2 * noise)
    expected, covariance = np.polyfit(np.log(x), np.log(x**2 * noise), 1, cov="unscaled")
    scatter = np.log(x**2 * noise) - np.polyval(np.polyfit(np.log(x), np.log(x**2 * noise), 1), np.log(x))
    assert exponent == pytest.approx(expected[0])
    assert error == pytest.approx((covariance[0, 0] * scatter @ scatter / 3) ** 0.5)
    assert str(io_complexity.Fit(1.97, 0.0051)) == "1.970 ± 0.005"


@pytest.mark.parametrize("x, y", [([1, 2], [1, 2]), ([1, 2, 3], [1, 2])])
def test_a_fit_of_too_few_points_is_refused(x, y):
    with pytest.raises(ValueError, match="at least three"):
        io_complexity.fit(x, y)


def test_exponents_are_those_of_theorem_2():
    Ns, ds, Ms = (256, 512, 1024), (16, 32, 64), (2048, 4096, 8192)
    assert io_complexity.fit(Ns, [io_complexity.fused(N, 32, 2048) for N in Ns]).exponent == pytest.approx(2, abs=0.05)
    assert io_complexity.fit(ds, [io_complexity.fused(512, d, 2048) for d in ds]).exponent == pytest.approx(2, abs=0.05)
    assert io_complexity.fit(Ms, [io_complexity.fused(512, 64, M) for M in Ms]).exponent == pytest.approx(-1, abs=0.05)
    assert io_complexity.fit(Ns, [io_complexity.standard(N, 16) for N in Ns]).exponent == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("M", [768, 3072])
def test_crossover_is_where_d_squared_is_a_third_of_M(M):
    d = io_complexity.crossover(512, M)
    assert d == pytest.approx((M / 3) ** 0.5, rel=0.1)
    assert io_complexity.fused(512, d, M) >= io_complexity.standard(512, d)
    assert io_complexity.fused(512, d - 4, M) < io_complexity.standard(512, d - 4)


@pytest.mark.parametrize("Nq, Nk, Br, Bc", [(64, 64, 16, 16), (50, 70, 16, 12), (5, 3, 8, 8)])
def test_block_sparse_equals_dense_with_the_blocks_masked(Nq, Nk, Br, Bc):
    Q, K, V = rng.normal(size=(Nq, 8)), rng.normal(size=(Nk, 8)), rng.normal(size=(Nk, 6))
    Tr, Tc = len(tiling.tiles(Nq, Br)), len(tiling.tiles(Nk, Bc))
    blocks = rng.random((Tr, Tc)) < 0.5
    blocks[0] = False  # rows that see no key
    O, lse = tiling.fa2_forward(Q, K, V, Br, Bc, Rules(mask=masks.blocks(blocks, Br, Bc)))
    mask = np.kron(blocks, np.ones((Br, Bc), bool))[:Nq, :Nk]
    O_dense, lse_dense = attention(Q, K, V, mask=mask, return_lse=True)
    assert np.abs(O - O_dense).max() < 1e-14 and (lse[:Br] == -np.inf).all() and (O[:Br] == 0).all()
    finite = np.isfinite(lse_dense)  # [Nq]
    assert np.abs(lse[finite] - lse_dense[finite]).max(initial=0) < 1e-14


def test_block_sparse_reads_keys_in_proportion_to_the_blocks():
    Q, K, V = rng.normal(size=(3, 64, 8))
    for number in (1, 4, 16):
        blocks, memory = np.zeros(16, bool), Memory()
        blocks[:number] = True
        mask = masks.blocks(rng.permutation(blocks).reshape(4, 4), 16, 16)
        tiling.fa2_forward(Q, K, V, 16, 16, Rules(mask=mask), memory=memory)
        assert memory.bytes["load", "K"] == number * 16 * 8 * 8
        assert memory.bytes["load", "Q"] == 64 * 8 * 8


def test_all_blocks_is_the_forward_pass():
    Q, K, V = rng.normal(size=(3, 50, 8))
    sparse, dense = Memory(), Memory()
    tiling.fa2_forward(Q, K, V, 16, 16, Rules(mask=masks.blocks(np.ones((4, 4), bool), 16, 16)), memory=sparse)
    tiling.fa2_forward(Q, K, V, 16, 16, memory=dense)
    assert sparse.bytes == dense.bytes


def test_blocks_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"expected blocks \[Tr, Tc\] = \(4, 4\), got \(4, 3\)"):
        tiling.fa2_forward(
            *rng.normal(size=(3, 50, 8)), 16, 16, Rules(mask=masks.blocks(np.ones((4, 3), bool), 16, 16))
        )


@pytest.mark.parametrize("step", [1, 4, 7])
@pytest.mark.parametrize("M", [1, 16, 100])
@pytest.mark.parametrize("N", [2, 3, 40])
def test_crossover_is_the_first_d_at_which_fused_moves_no_less(N, M, step):
    d = io_complexity.crossover(N, M, step)
    assert d % step == 0 and io_complexity.fused(N, d, M) >= io_complexity.standard(N, d)
    assert d == step or io_complexity.fused(N, d - step, M) < io_complexity.standard(N, d - step)


@pytest.mark.parametrize("d", [1, 64, 4096])
def test_for_one_token_the_fused_kernel_always_moves_less(d):
    assert io_complexity.fused(1, d, 4096) < io_complexity.standard(1, d)


def test_need_is_the_memory_of_the_runs():
    N, d = 64, 16
    Q, K, V = rng.normal(size=(3, N, d)).astype(np.float32)
    memory = Memory()
    O, lse = tiling.fa2_forward(Q, K, V, 16, 16, memory=memory)
    nbytes = sum(tensor.nbytes for tensor in memory.tensors.values())
    assert nbytes == io_complexity.need(N, d, heads=1, itemsize=4, fused=True).total
    recomputation.backward(Q, K, V, O, lse, Q, 16, 16, memory=memory)
    nbytes = sum(tensor.nbytes for tensor in memory.tensors.values())
    assert nbytes == io_complexity.need(N, d, heads=1, itemsize=4, training=True, fused=True).total


def test_one_square_forward_and_two_backward_suffice_for_the_standard_way():
    N, d, size = 512, 16, 8
    Q, K, V, dO = rng.normal(size=(4, N, d))
    dense = attention(Q, K, V), *attention_backward(Q, K, V, dO)
    tracemalloc.start()
    P = Q @ K.T  # [N, N]      S, which P overwrites
    P *= d**-0.5
    P -= P.max(-1, keepdims=True)
    np.exp(P, out=P)
    P /= P.sum(-1, keepdims=True)
    O = P @ V  # [N, d]
    forward = tracemalloc.get_traced_memory()[1]
    dP = dO @ V.T  # [N, N]      dS overwrites it
    dP -= np.einsum("ij,ij->i", P, dP)[:, None]
    dP *= P
    ours = O, d**-0.5 * (dP @ K), d**-0.5 * (dP.T @ Q), P.T @ dO
    backward = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(np.abs(a - b).max() < 1e-12 for a, b in zip(ours, dense, strict=True))
    for peak, training in ((forward, False), (backward, True)):
        square = io_complexity.need(N, d, heads=1, itemsize=size, training=training, fused=False).square
        assert square <= peak < 1.4 * square


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_longest_is_the_last_that_fits(training, fused):
    layer = {"heads": 16, "training": training, "fused": fused}
    N = io_complexity.longest(10**9, 64, **layer)
    assert io_complexity.need(N, 64, **layer).total <= 10**9 < io_complexity.need(N + 1, 64, **layer).total
    assert io_complexity.longest(1000, 64, **layer) == 0


def test_the_papers_memory_grows_linearly_or_nearly_quadratically():
    N, MB = published.MEMORY_N, published.MEMORY_MB
    assert io_complexity.fit(N[-4:], MB["FlashAttention"][-4:]).exponent == pytest.approx(1, abs=0.001)
    assert 1.9 < io_complexity.fit(N[3:6], MB["PyTorch"][3:]).exponent < 2
