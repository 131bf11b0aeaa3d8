"""Wrong arguments are refused in one sentence, and never answered with NaN or with a number."""

import numpy as np
import pytest

from flashlab.machine import costs, hardware, ranks
from flashlab.machine.memory import Memory
from flashlab.reference import (
    block_size,
    decoding,
    eight_bits,
    io_complexity,
    linear_attention,
    next_machine,
    online_softmax,
    packed_texts,
    pipeline,
    recomputation,
    ring,
    roads_not_taken,
    roles,
    roofline,
    safe_softmax,
    scores,
    standard_attention,
    the_cache,
    tiling,
)
from flashlab.reference.attention import attention, attention_backward, weights
from flashlab.reference.dropout import Dropout
from flashlab.reference.masks import causal
from flashlab.reference.rules import Rules

Q, K, V, dO = np.random.default_rng(3).normal(size=(4, 24, 8)).astype(np.float32)
ROW = np.arange(8, dtype=np.float32)
INF = float("inf")

ATTENTIONS = {
    "oracle": lambda *tensors, **options: attention(*tensors, **options),
    "oracle's weights": lambda Q, K, V, **options: weights(Q, K, **options),
    "oracle backward": lambda *tensors, **options: attention_backward(*tensors, dO, **options),
    "standard": lambda *tensors, **options: standard_attention.forward(*tensors, Rules(**options)),
    "queries outside": lambda *tensors, **options: tiling.fa2_forward(*tensors, 8, 8, Rules(**options)),
    "keys outside": lambda *tensors, **options: tiling.fa1_forward(*tensors, 8, 8, Rules(**options)),
}
every_attention = pytest.mark.parametrize("run", ATTENTIONS.values(), ids=ATTENTIONS)


@every_attention
@pytest.mark.parametrize("scale, error", [
    (1e300, ValueError), (-1e39, ValueError), (INF, ValueError), (float("nan"), ValueError),
    ("0.1", TypeError), (True, TypeError), (np.ones(2), TypeError),
])  # fmt: skip
def test_a_scale_is_a_finite_number(run, scale, error):
    with pytest.raises(error, match="scale must be a (finite )?number"):
        run(Q, K, V, scale=scale)


@every_attention
@pytest.mark.parametrize("sink", [INF, float("nan"), "1", True, np.zeros(2)])
def test_a_sink_is_a_finite_number(run, sink):
    with pytest.raises((TypeError, ValueError), match="sink must be a finite number, got"):
        run(Q, K, V, sink=sink)


@every_attention
def test_a_head_has_a_dimension(run):
    with pytest.raises(ValueError, match="a head needs at least one dimension, got d = 0"):
        run(Q[:, :0], K[:, :0], V)


@every_attention
@pytest.mark.parametrize("mask", [True, "causal", causal])
def test_a_mask_is_made_by_masks(run, mask):
    with pytest.raises(TypeError, match="mask must be None or made by flashlab.reference.masks"):
        run(Q, K, V, mask=mask)


BAD = {
    "a placement of fewer tokens": (lambda: ring.forward(Q, K, V, ranks.contiguous(20, 2)), "each of the 24 tokens"),
    "fewer keys than tokens": (lambda: ring.forward(Q, K[:8], V[:8], ranks.contiguous(24, 2)), "a row for each token"),
    "roles of fewer keys": (lambda: roles.forward(Q, K[:8], V), "expected Q .Nq, d., .* got .24, 8., .8, 8., .24, 8."),
    "a score above 2^127": (lambda: next_machine.exp2(ROW + 128, next_machine.minimax(3)), "expected x up to 127"),
    "an order that adds a part twice": (lambda: next_machine.dQ_sum(Q, [0] * 24), "the 24 parts, each once"),
    "no rank": (lambda: ring.forward(Q, K, V, []), "each of the 24 tokens to one rank"),
    "tokens of two ranks": (lambda: ring.forward(Q, K, V, [(range(24),)] * 2), "each of the 24 tokens to one rank"),
    "dO of another batch": (lambda: attention_backward(Q, K, V, dO[None]), "dO .*Nq, dv., got .*1, 24, 8"),
    "codes of fewer keys": (
        lambda: eight_bits.attention(*(eight_bits.quantise(x) for x in (Q, K[:8], V))),
        "got .24, 8., .8, 8., .24, 8.",
    ),
    "a state that grows": (lambda: linear_attention.state(K, V, decay=2.0), "at most 1, got 2.0"),
    "S_ij of one row for many": (lambda: update(S_ij=ROW[:5]), "expected S_ij .* got .5,., .5, 2"),
    "values of width 1": (lambda: update(V_j=np.ones((5, 1))), "V_j .Bc, dv. for O .3, 2., got .3, 5., .5, 1."),
    "a value too few": (lambda: update(V_j=np.ones((4, 2))), "got .3, 5., .4, 2."),
    "naive, block of -1": (lambda: safe_softmax.naive_streamed(ROW, -1, Memory()), "block must be .* got -1"),
    "safe, block of 0": (lambda: safe_softmax.safe_streamed(ROW, 0, Memory()), "block must be .* got 0"),
    "online, block of 2.5": (lambda: safe_softmax.online_streamed(ROW, 2.5, Memory()), "block must be .* got 2.5"),
    "two rows": (lambda: safe_softmax.safe_streamed(Q, 4, Memory()), "expected one row .N., got .24, 8."),
    "low rank, scale of -1": (
        lambda: roads_not_taken.low_rank(Q, K, V, roads_not_taken.directions(8, 8), 8, 8, scale=-1),
        "scale must be a finite number above 0, got -1",
    ),
    "crossover of one token": (lambda: io_complexity.crossover(1, 4096), "N must be a whole number from 2 on, got 1"),
    "crossover without memory": (lambda: io_complexity.crossover(64, 0), "M must be a whole number from 1 on, got 0"),
    "crossover in no end of memory": (lambda: io_complexity.crossover(64, INF), "M must be .* got inf"),
    "crossover in nan": (lambda: io_complexity.crossover(64, float("nan")), "M must be .* got nan"),
    "crossover in steps of 0": (lambda: io_complexity.crossover(64, 4096, 0), "step must be .* got 0"),
    "longest in no end of room": (lambda: longest(INF), "nbytes must be a finite number .* got inf"),
    "longest in nan": (lambda: longest(float("nan")), "got nan"),
    "longest of d = -64": (lambda: longest(d=-64), "d must be .* got -64"),
    "longest of no heads": (lambda: longest(heads=0), "heads must be .* got 0"),
    "largest tile in no end of room": (lambda: block_size.largest(INF, 64), "sram_bytes must be .* got inf"),
    "largest tile in nan": (lambda: block_size.largest(float("nan"), 64), "got nan"),
    "largest tile in a terabyte": (lambda: block_size.largest(1e12, 64), "got 1000000000000.0"),
    "largest tile in steps of 0": (lambda: block_size.largest(2**16, 64, step=0), "step must be .* got 0"),
    "values without dimensions": (lambda: attention(Q, K, V[:, 0]), "expected V .*, 24, dv., got .24,."),
    "work below 0": (lambda: roofline.reachable(roofline.Work(-1, 2), 1.0, 1.0), "flops must be .* got -1"),
    "numbers below 0": (lambda: the_cache.Kind(-4).nbytes, "numbers must be .* got -4"),
    "a need below 0": (lambda: io_complexity.Need(-1, 0, 0).total, "thin must be .* got -1"),
    "packed values too many": (
        lambda: packed_texts.forward(Q, K[:8], V, np.r_[0, 24], np.r_[0, 8], 8, 8),
        "offsets of V .*24",
    ),
    "no rate": (lambda: roofline.seconds(1.0, 1.0, 0.0, 1.0), "flop_rate must be .* got 0.0"),
    "a bias of NaN": (lambda: scores.bias(np.array([[0, np.nan]])), "finite numbers, or -inf, got nan"),
    "a bias of infinity": (lambda: scores.bias(np.array([[INF, 0.0]])), "finite numbers, or -inf, got inf"),
    "parts without a key": (lambda: decoding.weights(np.full(2, -INF)), "a part that sees a key, got .*-inf, -inf"),
    "signs of 0": (lambda: eight_bits.rotate(Q, np.zeros(8, np.float32)), "signs s of 1 or -1, got 0"),
    "a degree of 99": (lambda: next_machine.minimax(99), "degree must be a whole number from 1 to 12, got 99"),
    "a threshold of NaN": (lambda: lazy(np.nan), "a threshold from 0 on, got .* and nan"),
    "a window of -1": (lambda: ranks.blocks((range(4),), (range(4),), -1, 0), "left must be .* got -1"),
    "a window of half a key": (lambda: ranks.pairs((range(4),), (range(4),), None, 1.5), "right must be .* got 1.5"),
    "texts that begin between tokens": (
        lambda: ranks.check_documents([0, 2.5, 8], 8),
        "documents must be .* got .0, 2.5",
    ),
    "a rate in int4": (lambda: hardware.flop_rate(hardware.CARDS["T4"], "int4"), "expected one of .* got int4"),
}


OF_ONE_ROW = {
    "safe": safe_softmax.safe,
    "lse": safe_softmax.lse,
    "streamed": lambda x: safe_softmax.safe_streamed(x, 2, Memory()),
    "quantise": eight_bits.quantise,
    "hadamard": eight_bits.hadamard,
}
OF_THREE = ATTENTIONS | {
    "decoding": lambda Q, K, V: decoding.decode(Q[:, None], K, V, 8, 8),
    "linear attention": linear_attention.quadratic,
    "ring": lambda Q, K, V: ring.forward(Q, K, V, ranks.contiguous(24, 1)),
    "pipeline": pipeline.forward,
    "roles": roles.forward,
    "low rank": lambda Q, K, V: roads_not_taken.low_rank(Q, K, V, roads_not_taken.directions(8, 8), 8, 8),
}
CALLS = OF_ONE_ROW | {name: lambda x, call=call: call(*[x[:, None]] * 3) for name, call in OF_THREE.items()}


@pytest.mark.parametrize("dtype", [int, np.uint8, bool, complex, object])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_numbers_are_floating(call, dtype):
    with pytest.raises(TypeError, match="must hold floating-point numbers"):
        call(np.array([1, 0] * 12, dtype))


@pytest.mark.parametrize("call", OF_ONE_ROW.values(), ids=OF_ONE_ROW)
def test_a_list_is_no_array(call):
    with pytest.raises(TypeError, match="numpy array, got list"):
        call([1.0, 0.0])


def update(**wrong):
    right = {"S_ij": np.ones((3, 5)), "V_j": np.ones((5, 2))}
    return online_softmax.update(online_softmax.identity(3, 2), **(right | wrong))


def lazy(threshold):
    return next_machine.lazy_update(online_softmax.identity(3, 2), np.ones((3, 5)), np.ones((5, 2)), threshold)


def longest(nbytes=10**9, d=64, heads=16):
    return io_complexity.longest(nbytes, d, heads=heads, fused=True)


@pytest.mark.parametrize("call, sentence", BAD.values(), ids=BAD)
def test_wrong_arguments_are_refused_in_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)


def test_longest_is_the_last_that_fits():
    assert costs.longest(99, lambda N: N * N) == 9 and costs.longest(100, lambda N: N * N) == 10
    assert costs.longest(0.5, lambda N: N) == 0 and costs.longest(10**30, lambda N: N, most=7) == 7


def test_standard_backward_takes_the_rules_of_forward_from_its_memory():
    memory = Memory()
    rules = Rules(mask=causal(), scale=0.7, dropout=Dropout(0.3, 2))
    standard_attention.forward(Q, K, V, rules, memory=memory)
    O, lse = tiling.fa2_forward(Q, K, V, 8, 8, rules)
    tiled = recomputation.backward(Q, K, V, O, lse, dO, 8, 8, rules)
    for stored, rebuilt in zip(standard_attention.backward(dO, memory), tiled, strict=True):
        np.testing.assert_allclose(stored, rebuilt, 1e-3, 1e-4)


def test_lazy_chunks_may_contain_keys_that_nobody_sees():
    hidden = K.copy()
    hidden[8:16] = -np.inf  # a whole chunk
    with np.errstate(all="raise"):
        O = roads_not_taken.lazy(np.abs(Q), hidden, V, 8, 8)
    visible = np.r_[0:8, 16:24]  # [keys]
    np.testing.assert_allclose(O, attention(np.abs(Q), K[visible], V[visible]), 1e-5, 1e-6)
