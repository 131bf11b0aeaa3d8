"""The checks that implementations in numpy and torch must pass."""

import inspect

import numpy as np
import torch

from flashlab.machine.memory import Memory
from flashlab.models import plain
from flashlab.reference import (
    dropout,
    eight_bits,
    masks,
    next_machine,
    online_softmax,
    recomputation,
    safe_softmax,
    scores,
    tiling,
)
from flashlab.reference import linear_attention as linear
from flashlab.reference.attention import attention
from flashlab.reference.rules import Rules
from tests.mutants.acceptance.cases import backward, cases, forward, inputs, mask_if


def tiled_forward():
    for order in ("fa1_forward", "fa2_forward"):
        forward(lambda Q, K, V, causal, f=order: getattr(tiling, f)(Q, K, V, 4, 4, Rules(mask_if(causal))), 4)


def torch_forward():
    def run(Q, K, V, causal):
        O, lse = plain.tiled(*(torch.from_numpy(x) for x in (Q, K, V)), 4, 4, causal=causal)
        return O.numpy(), lse.numpy()

    forward(run, 4)


def masked_forward():
    """Compare masks in both orders with the dense computation, whose mask is written pair by pair."""
    for case in cases(4)[:5]:
        Q, K, V, _ = (x.astype(float) for x in inputs(case))
        Nq, Nk = case.Nq, case.Nk
        blocks = np.random.default_rng(Nq).random((-(-Nq // 3), -(-Nk // 5))) < 0.6  # [Tr, Tc] for tiles of 3 x 5
        visible = {
            masks.window(2): [[0 <= i + Nk - Nq - j <= 2 for j in range(Nk)] for i in range(Nq)],
            masks.window(5, 1): [[-1 <= i + Nk - Nq - j <= 5 for j in range(Nk)] for i in range(Nq)],
            masks.blocks(blocks, 3, 5): [[blocks[i // 3, j // 5] for j in range(Nk)] for i in range(Nq)],
            masks.documents(np.arange(Nk) // 3): [[0 <= i + Nk - Nq and (i + Nk - Nq) // 3 == j // 3
                                                   for j in range(Nk)] for i in range(Nq)],
            masks.padding(3): [[j < 3 for j in range(Nk)] for i in range(Nq)],
            masks.prefix(5): [[j < 5 or j <= i + Nk - Nq for j in range(Nk)] for i in range(Nq)],
            masks.window(2) & masks.documents(np.arange(Nk) // 4): [
                [0 <= i + Nk - Nq - j <= 2 and (i + Nk - Nq) // 4 == j // 4 for j in range(Nk)] for i in range(Nq)],
        }  # fmt: skip
        for mask, pairs in visible.items():
            pairs = np.array(pairs)  # [Nq, Nk]
            exact = attention(Q, K, V, mask=pairs, return_lse=True)
            for order in (tiling.fa1_forward, tiling.fa2_forward):
                for ours, theirs in zip(order(Q, K, V, 4, 4, Rules(mask)), exact, strict=True):
                    np.testing.assert_allclose(ours, theirs, 1e-12, 1e-14, err_msg=f"{case.shows}, {mask}")
            for B in (1, 4):
                for rows in tiling.tiles(Nq, B):
                    tiles = [pairs[rows, cols] for cols in tiling.tiles(Nk, B)]
                    met = mask.tiles(rows, B, pairs.shape)
                    assert [*met] == [j for j, tile in enumerate(tiles) if tile.any()], f"{mask}: other tiles"
                    whole = [mask.whole(rows, cols, pairs.shape) for cols in tiling.tiles(Nk, B)]
                    assert whole == [tile.all() for tile in tiles], f"{mask}: other tiles are whole"


def tiled_backward():
    def run(*tensors, causal):
        return recomputation.backward(*tensors, 4, 4, Rules(mask=mask_if(causal)))

    backward(run, 4)


def tiled_dropout():
    """Compare dropout in both passes with dense weights under the same mask, and its bits with those of the kernels."""
    drop = dropout.Dropout(0.4, 7)
    for case in cases(4)[1], cases(4)[4], cases(4)[8]:
        Q, K, V, dO = (a.astype(float) for a in inputs(case))
        scale, rules = case.d**-0.5, Rules(mask_if(case.causal), dropout=drop)
        O, lse = tiling.fa2_forward(Q, K, V, 4, 4, rules)
        S = scale * Q @ K.T
        S = rules.mask.apply(S, slice(0, case.Nq), slice(0, case.Nk), S.shape)
        P, Z = safe_softmax.safe(S), drop.tile(slice(0, case.Nq), slice(0, case.Nk), np.float64)
        P[lse == -np.inf] = 0
        np.testing.assert_allclose(O, (Z * P) @ V, 1e-9, 1e-12)
        narrow = tiling.fa2_forward(*(x.astype(np.float32) for x in (Q, K, V)), 4, 4, rules)[0]
        np.testing.assert_allclose(narrow, O, 1e-2, 1e-3)
        dP = Z * (dO @ V.T)
        dS = P * (dP - (P * dP).sum(1, keepdims=True))
        exact = scale * dS @ K, scale * dS.T @ Q, (Z * P).T @ dO
        for ours, theirs in zip(recomputation.backward(Q, K, V, O, lse, dO, 3, 5, rules), exact, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-9, 1e-10)
    bits = [
        dropout.Dropout(0.4, 2**32 + 7, h, b).random(np.array([[i]]), np.array([[j]])).item() for h, b, i, j in BITS
    ]
    assert bits == list(BITS.values()), "other random numbers than the kernels draw"
    least = dropout.Dropout(bits[0] / 2**16, 2**32 + 7).tile(slice(0, 1), slice(0, 1)).item()
    assert least == np.float32(1 / (1 - bits[0] / 2**16)), "a weight whose number is the threshold is kept"


BITS = {(0, 0, 0, 0): 63136, (0, 0, 0, 1): 4742, (0, 0, 8, 0): 60793, (0, 0, 0, 8): 13670, (0, 0, 8, 9): 38456,
        (0, 0, 19, 22): 45283, (1, 0, 0, 0): 59753, (0, 1, 0, 0): 17851}  # h, b, i, j: 16 bits  # fmt: skip


def scored():
    """Compare soft caps, ALiBi and sinks in both passes, in float32, with dense computations in float64."""
    np.testing.assert_allclose(np.log2(scores.slopes(7)), [-2, -4, -6, -8, -1, -3, -5])
    for case in cases(4)[:3]:
        Q, K, V, dO = inputs(case)
        Nq, Nk, scale = case.Nq, case.Nk, case.d**-0.5
        distance = np.abs(np.arange(Nq)[:, None] + Nk - Nq - np.arange(Nk))  # [Nq, Nk]
        visible = distance == np.arange(Nq)[:, None] + Nk - Nq - np.arange(Nk)  # [Nq, Nk]
        raw = scale * Q.astype(float) @ K.T.astype(float)
        written = {
            (scores.softcap(0.5),): (0.5 * np.tanh(2 * raw), 1 - np.tanh(2 * raw) ** 2),
            (scores.alibi(scores.slopes(4)[1]),): (raw - distance / 16, 1),
        }
        for functions, (S, slope) in written.items():
            for sink, mask in ((-1.0, None), (100.0, masks.causal())):
                rules = Rules(mask, functions, sink)
                S = np.where(visible, S, -np.inf) if mask is not None else S
                lse = np.logaddexp(np.logaddexp.reduce(S, 1), sink)  # [Nq]
                P = np.exp(S - lse[:, None])
                dS = slope * P * (dO @ V.T - (dO * (P @ V)).sum(1, keepdims=True))
                ours = tiling.fa2_forward(Q, K, V, 4, 4, rules)
                gradients = recomputation.backward(Q, K, V, *ours, dO, 4, 4, rules)
                exact = P @ V, lse, scale * dS @ K, scale * dS.T @ Q, P.T @ dO
                for mine, true in zip((*ours, *gradients), exact, strict=True):
                    np.testing.assert_allclose(mine, true, 2e-4, 2e-5, err_msg=f"{case.shows}, {functions}, {sink}")


def tiled_traffic():
    """The bill in closed form is the bill of the run."""
    for case in cases(4):
        Q, K, V, dO = inputs(case)
        rules = Rules(mask_if(case.causal))
        options = {"dv": None if case.dv == case.d else case.dv, "mask": rules.mask}
        sizes = case.Nq, case.Nk, case.d, 4, 4
        O_lse = attention(Q, K, V, mask=rules.mask, return_lse=True)
        for run, traffic, results in (
            (tiling.fa1_forward, tiling.fa1_traffic, ()),
            (tiling.fa2_forward, tiling.fa2_traffic, ()),
            (recomputation.backward, recomputation.traffic, (*O_lse, dO)),
        ):
            memory = Memory()
            run(Q, K, V, *results, 4, 4, rules, memory=memory)
            predicted, counted = (
                {key: n for key, n in bill.items() if n} for bill in (traffic(*sizes, **options), memory.bytes)
            )
            assert predicted == counted, f"{case.shows}: predicted {predicted}, counted {counted}"


def in_eight_bits():
    """Rounding is exact, rotations keep scores, sums lose the expected bits, and tiles agree with a dense product."""
    x = np.array([0.3, -1e6, 470, 2.0**-9, 1.4 * 2.0**-8, 1.0625, 1.125, 17, 0])
    np.testing.assert_equal(eight_bits.to_e4m3(x), [0.3125, -448, 448, 2.0**-9, 1.5 * 2.0**-8, 1, 1.125, 16, 0])
    Q, K, V = (np.random.default_rng(seed).normal(size=(80, 8)) for seed in range(3))
    for per, axes in (("tensor", (0, 1, 2)), ("head", (1, 2)), ("token", 2)):
        largest = np.abs(X := np.stack([Q, 2 * K])).max(axes, keepdims=True)
        np.testing.assert_allclose(448 * eight_bits.quantise(X, per=per).scale[:, :, 0], (largest + 0 * X)[:, :, 0])
    assert eight_bits.quantise(Q[:0]).scale.shape == (0, 1)
    np.testing.assert_array_equal(
        eight_bits.hadamard(Q[:, :3]), eight_bits.hadamard(np.pad(Q[:, :3], ((0, 0), (0, 1))))
    )
    s = eight_bits.signs(8)
    rotated = eight_bits.rotate(Q, s)
    np.testing.assert_allclose(rotated @ eight_bits.rotate(K, s).T, Q @ K.T)
    np.testing.assert_allclose(eight_bits.hadamard(rotated) * s, Q)
    np.testing.assert_allclose(eight_bits.without_mean(K)[0].mean(0), 0, atol=1e-12)
    Q, K, V = 3 * Q, K * np.repeat([3, 1, 2], 32)[:80, None], V * np.repeat([1, 9, 0], 32)[:80, None]
    Q[0] = -100 * np.abs(Q[0])
    inputs = [eight_bits.quantise(X, per="block", block=32) for X in (Q, K, V)]
    widened = [x.widened() for x in inputs]
    for x, X in zip(inputs, (Q, K, V), strict=True):
        near = np.abs(x.widened() - X) <= np.maximum(2.0**-4 * np.abs(X), 2.0**-10 * x.scale)
        assert near.all(), "further than half a step away"
    for mask in (None, masks.window(8)):
        O, lse = eight_bits.attention(*inputs, Bc=32, mask=mask)
        exact, lse_exact = attention(*widened, mask=mask, return_lse=True)
        np.testing.assert_allclose(lse, lse_exact, rtol=1e-9)
        assert np.linalg.norm(O - exact) <= 0.03 * np.linalg.norm(exact), "more than the rounding of weights"
    far = [eight_bits.Quantised(X, np.ones((len(X), 1))) for X in (np.ones((1, 1)), np.array([[8.0], *127 * [[0.0]]]))]
    others = eight_bits.Quantised(1 - far[1].numbers / 8, np.ones((128, 1)))
    for largest, exact in ((None, 127 * np.exp(-8) / (1 + 127 * np.exp(-8))), (1, 0)):  # small weights count, or vanish
        np.testing.assert_allclose(eight_bits.attention(*far, others, largest=largest)[0], exact, rtol=0.07)
    assert eight_bits.hadamard(np.zeros((1, 0))).shape == (1, 1)
    ones, total = np.ones((1, 32 * 1025)), 64.0
    for _ in range(1025):
        step = 2.0 ** (np.floor(np.log2(total + 32.125)) - 13)
        total = (total + 32.125) // step * step  # a sum of 32 terms of 1 + 2^-8
    np.testing.assert_equal(eight_bits.TensorCore(13)(np.full((1, 1), 64.0), ones, ones.T + 2.0**-8), total)
    two_level = eight_bits.TensorCore(13, flush=64)(np.full((1, 1), 2.0**20), ones, ones.T + 2.0**-8)
    np.testing.assert_equal(two_level, 2.0**20 + 32.125 * 1025)
    step = np.repeat([33 / 32, 34 / 32], 32)[:, None]
    np.testing.assert_equal(eight_bits.TensorCore(5, flush=64)(np.zeros((1, 1)), ones[:, :64], step), 66)  # not 67
    np.testing.assert_equal(eight_bits.cut(np.array([1.9, -1.9, 3.99]), 1), [1.5, -1.5, 3])


def linear_chunks():
    """Chunks of every size agree with the definition, key by key, and states of parts merge into that of all keys."""
    Q, K, V = (np.random.default_rng(seed).normal(size=(11, width)) for seed, width in enumerate((4, 4, 6)))
    for decay in (1.0, 0.7):
        far = [[decay ** (i - j) if j <= i else 0 for j in range(11)] for i in range(11)]
        exact = (np.array(far) * (Q @ K.T)) @ V
        whole = sum(decay ** (10 - j) * np.outer(K[j], V[j]) for j in range(11))
        np.testing.assert_allclose(linear.quadratic(Q, K, V, decay=decay), exact, 1e-9, 1e-12)
        for C in (1, 4, 11):
            for ours, theirs in zip(linear.chunked(Q, K, V, C, decay=decay), (exact, whole), strict=True):
                np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)
        parts = [linear.state(K[part], V[part], decay=decay) for part in np.split(np.arange(11), [3, 7])]
        for merged in (
            linear.merge(linear.merge(*parts[:2]), parts[2]),
            linear.merge(parts[0], linear.merge(*parts[1:])),
        ):
            np.testing.assert_allclose(merged.KV, whole, 1e-9, 1e-12)


def late_maximum():
    """A lazy maximum is exact, and no weight exceeds 2^threshold; new scores exceed m by 5, 6 and 20."""
    S = np.array([-30.0, -25.0, -24.0, -4.0, -10.0])[None, :] + np.zeros((2, 1))
    S[1, :2] = -np.inf
    V = np.random.default_rng(0).normal(size=(5, 3))
    state = online_softmax.identity(2, 3, S.dtype)
    for j in range(5):
        state = next_machine.lazy_update(state, S[:, j : j + 1], V[j : j + 1])
        finite = S[:, j] > -np.inf  # [rows]
        assert np.exp(S[finite, j] - state.m[finite]).max() <= 2**8, "a weight is larger than the threshold allows"
        assert j != 1 or state.m[0] == -30, "a rise of 5 natural units is 7.2 of log2: m stays"
    weights = np.exp(S + 4)
    np.testing.assert_allclose(online_softmax.finish(state)[0], weights @ V / weights.sum(1, keepdims=True), 1e-12)


def powers_of_two():
    """2^x by polynomial is near 2^x over the whole range, exact at whole numbers, 0 far below."""
    c = inspect.unwrap(next_machine.minimax)(3)  # not from its cache
    x = np.linspace(-126, 126, 4001, dtype=np.float32)
    np.testing.assert_allclose(next_machine.exp2(x, c), np.exp2(x.astype(np.float64)), 9e-5)
    whole = np.float32([0, -1, -126, 7, -200, -np.inf])
    np.testing.assert_array_equal(next_machine.exp2(whole, c), [1, 0.5, 2.0**-126, 128, 0, 0])
    survey = next_machine.survey(c, 4096)
    assert abs(survey.largest - 8.56e-5) < 5e-7 and survey.apart <= 1, "not the least error"
    bits = next_machine.bfloat16(np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7 - 2**-20]))
    np.testing.assert_array_equal(bits - bits[0], [0, 0, 2, 1])
