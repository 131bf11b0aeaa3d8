"""The roads not taken: some are exact, the others compute the function that they state; and the costs of each."""

import numpy as np
import pytest

from flashlab.course import data
from flashlab.machine.costs import error, measure
from flashlab.machine.memory import FastMemoryFull, Memory
from flashlab.reference import roads_not_taken, standard_attention, tiling
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.roads_not_taken import (
    gathered,
    lazy,
    low_rank,
    row_by_row,
    sampled,
    strided,
    trained,
    window,
    windowed,
)
from tests.tools.bounds import assert_as_exact_as_plain

SHAPES = {  # Nq, Nk, d, dv
    "one row, one key": (1, 1, 4, 4),
    "no tile divides": (50, 50, 16, 8),
    "more keys than queries": (33, 70, 16, 16),
    "fewer keys than queries": (70, 33, 16, 16),
}
ALL = {
    "row by row": lambda Q, K, V, **options: row_by_row(Q, K, V, 12, **options),
    "lazy": lambda Q, K, V, **options: lazy(Q, K, V, 16, 12, **options),
    "every key gathered": lambda Q, K, V, **options: gathered(Q, K, V, lambda i, N: np.arange(N), **options),
    "every key sampled": lambda Q, K, V, **options: sampled(Q, K, V, len(K), 16, **options),
}


def inputs(Nq, Nk, d, dv, dtype=np.float32, size=1.0):
    rng = np.random.default_rng(5)
    return [(size * rng.normal(size=shape)).astype(dtype) for shape in ((Nq, d), (Nk, d), (Nk, dv))]


def hold(road, Q, K, V, **options):
    """Assert that a road's error is at most twice the plain one, plus one rounding of the output and of the scores.

    A relative rounding of a score s changes e^s by |s| times as much. Two right computations may round a score
    differently, so the plain one may have the smaller error by chance.
    """
    wide = [X.astype(np.float64) for X in (Q, K, V)]
    exact = attention(*wide, **options)
    largest = np.abs(wide[0] @ wide[1].T).max(initial=0) * options.get("scale", Q.shape[1] ** -0.5)
    computed = np.finfo(np.result_type(Q.dtype, np.float32)).eps / np.finfo(Q.dtype).eps  # where scores are float32
    roundings = 1 + largest * computed
    assert_as_exact_as_plain(road(Q, K, V, **options), attention(Q, K, V, **options), exact, roundings)


@pytest.mark.parametrize("road", ALL.values(), ids=ALL)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_exact_roads_and_full_patterns_equal_dense(road, shape, dtype):
    hold(road, *inputs(*shape, dtype))


@pytest.mark.parametrize("road", ALL.values(), ids=ALL)
@pytest.mark.parametrize("size", [1e-3, 30.0], ids=["tiny scores", "scores up to 1e4"])
def test_exact_at_any_size_of_scores_and_any_scale(road, size):
    hold(road, *inputs(40, 40, 16, 16, size=size))
    hold(road, *inputs(40, 40, 16, 16), scale=1.7)


@pytest.mark.parametrize("road", ALL.values(), ids=ALL)
def test_a_growing_maximum_and_strided_inputs(road):
    Q, K, V = (X[::2] for X in inputs(40, 80, 16, 16))
    hold(road, Q, K * np.linspace(0, 5, len(K), dtype=np.float32)[:, None], V)


@pytest.mark.parametrize("road", [ALL["row by row"], ALL["lazy"]])
def test_without_keys_the_output_is_zero(road):
    assert not road(*inputs(5, 0, 4, 4)).any()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_gradients_are_exact_with_and_without_checkpoint(checkpoint):
    Q, K, V = inputs(40, 40, 16, 16)
    dO = np.random.default_rng(6).normal(size=V.shape).astype(np.float32)
    plain, exact = attention_backward(Q, K, V, dO), attention_backward(*(X.astype(float) for X in (Q, K, V, dO)))
    for ours, theirs, true in zip(trained(Q, K, V, dO, 7, checkpoint=checkpoint), plain, exact, strict=True):
        assert_as_exact_as_plain(ours, theirs, true)


def distances(Nq, Nk):
    i, j = np.ogrid[:Nq, :Nk]
    return i - j  # [Nq, Nk]


@pytest.mark.parametrize("w", [0, 1, 5, 100])
@pytest.mark.parametrize("Br", [1, 7, 64])
def test_window_equals_dense_under_its_mask_tiled_or_gathered(w, Br):
    Q, K, V = inputs(50, 50, 16, 8)
    mask = abs(distances(50, 50)) <= w
    exact = attention(*(X.astype(float) for X in (Q, K, V)), mask=mask)
    for O in (windowed(Q, K, V, w, Br, 16), gathered(Q, K, V, window(w))):
        assert_as_exact_as_plain(O, attention(Q, K, V, mask=mask), exact)


def test_strided_equals_dense_under_its_mask():
    Q, K, V = inputs(50, 50, 16, 8)
    mask = (abs(distances(50, 50)) <= 3) | (distances(50, 50) % 7 == 0)
    exact = attention(*(X.astype(float) for X in (Q, K, V)), mask=mask)
    assert_as_exact_as_plain(gathered(Q, K, V, strided(3, 7)), attention(Q, K, V, mask=mask), exact)


def test_sampled_equals_dense_on_the_sample():
    Q, K, V = inputs(50, 40, 16, 8)
    sample = np.random.default_rng(3).permutation(40)[:10]
    exact = attention(*(X.astype(float) for X in (Q, K[sample], V[sample])))
    assert_as_exact_as_plain(sampled(Q, K, V, 10, 16, seed=3), attention(Q, K[sample], V[sample]), exact)


def test_directions_are_normal_and_orthogonal_in_blocks():
    omega = roads_not_taken.directions(20, 8)
    assert omega.shape == (20, 8)
    products = omega[:8] @ omega[:8].T
    np.testing.assert_allclose(products, np.diag(np.diag(products)), atol=1e-12)
    many = np.concatenate([roads_not_taken.directions(8, 8, seed) for seed in range(500)])  # 4,000 x 8 normal numbers
    assert abs(many.mean()) < 0.03 and abs(many.var() - 1) < 0.03
    assert abs((many**2).sum(1).var() / 16 - 1) < 0.15  # of chi square with 8 degrees of freedom


def features(X, omega):
    """Return phi(X), [N, r]."""
    return np.exp(roads_not_taken.log_features(X, omega)) / len(omega) ** 0.5


def test_product_of_features_is_the_exponential_on_average():
    x, y = np.array([[0.3, -0.5, 0.1, 0.2]]), np.array([[0.4, 0.6, -0.2, 0.1]])
    draws = [roads_not_taken.directions(64, 4, seed) for seed in range(400)]
    products = [(features(x, omega) @ features(y, omega).T).item() for omega in draws]
    spread = np.std(products) / len(draws) ** 0.5
    assert abs(np.mean(products) - np.exp((x @ y.T).item())) < 4 * spread < 0.03


def low_rank_as_printed(Q, K, V, omega, scale):
    """Return phi(Q) (phi(K)^T V) divided by phi(Q) (phi(K)^T 1), in float64."""
    Q, K, V = (X.astype(float) for X in (Q, K, V))
    phi_Q, phi_K = (features(scale**0.5 * X, omega) for X in (Q, K))
    return phi_Q @ (phi_K.T @ V) / (phi_Q @ phi_K.sum(0))[:, None]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_low_rank_is_the_quotient_of_its_features(shape):
    Q, K, V = inputs(*shape)
    omega = roads_not_taken.directions(24, shape[2])
    for scale in (shape[2] ** -0.5, 0.7):
        np.testing.assert_allclose(
            low_rank(Q, K, V, omega, 16, 12, scale=scale), low_rank_as_printed(Q, K, V, omega, scale), 2e-4, 2e-4
        )


def test_low_rank_does_not_overflow_where_its_features_would():
    Q, K, V = inputs(20, 20, 16, 8, size=30)
    omega = roads_not_taken.directions(24, 16)
    with np.errstate(all="ignore"):
        assert not np.isfinite(low_rank_as_printed(Q, K, V, omega, 0.25)).all()
    O = low_rank(Q, K, V, omega, 16, 12)
    assert np.isfinite(O).all() and (abs(O) <= abs(V).max() * 1.001).all()  # a mean of values


def test_low_rank_comes_closer_with_more_features():
    Q, K, V = inputs(60, 60, 8, 8, size=0.5)
    exact = attention(Q, K, V)
    few, many = (error(low_rank(Q, K, V, roads_not_taken.directions(r, 8), 16, 16), exact) for r in (8, 2048))
    assert many < few / 4


# the costs of each, at N = 64, d = 16, float32

N, D = 64, 16
Q, K, V = inputs(N, N, D, D)
EXACT = attention(Q, K, V)


def test_row_by_row_reads_all_keys_and_values_for_each_query():
    b = measure(row_by_row, Q, K, V, Bc=16, exact=EXACT)
    assert (b.extra, b.moved, b.flops) == (0, 4 * (2 * N * N * D + 2 * N * D), 4 * N * N * D)


@pytest.mark.parametrize("Br, Bc", [(16, 8), (64, 64), (20, 24)])
def test_lazy_moves_the_whole_matrix_chunk_by_chunk(Br, Bc):
    b = measure(lazy, Q, K, V, Br=Br, Bc=Bc, exact=EXACT)
    Tr, Tc = -(-N // Br), -(-N // Bc)
    states = 2 * Tc * N * (D + 2)
    assert b.moved == 4 * (4 * N * N + Tc * N * D + 2 * Tr * N * D + states + N * D)
    assert b.extra == 4 * (2 * Br * Bc + Tc * Br * (D + 2))
    assert b.flops == 4 * N * N * D
    assert b.moved > measure(standard_attention.forward, Q, K, V, Br=16, exact=EXACT).moved


def test_checkpointing_costs_a_second_forward_pass_and_saves_no_memory_of_one_head():
    forward = measure(standard_attention.forward, Q, K, V, Br=16, exact=EXACT)
    dQ, _, _ = attention_backward(Q, K, V, V)
    plain, again = (measure(trained, Q, K, V, V, Br=16, checkpoint=on, exact=dQ, output="dQ") for on in (False, True))
    assert again.moved - plain.moved == forward.moved and again.flops - plain.flops == forward.flops
    assert again.extra == plain.extra == 4 * 4 * N * N  # S, P, dP, dS
    assert plain.flops == 3 * forward.flops


def test_gathering_moves_two_vectors_for_each_pair():
    pairs = (abs(distances(N, N)) <= 4).sum()
    b = measure(gathered, Q, K, V, window(4), exact=EXACT)
    assert (b.extra, b.moved, b.flops) == (0, 4 * (2 * pairs * D + 2 * N * D), 4 * pairs * D)


def test_a_tiled_window_computes_more_and_moves_less_than_a_gathered_one():
    gather, tiles = (
        measure(gathered, Q, K, V, window(4), exact=EXACT),
        measure(windowed, Q, K, V, w=4, Br=16, Bc=4, exact=EXACT),
    )
    keys = 2 * 20 + 2 * 24  # tiles at an end see 4 keys beyond themselves, the others 8
    assert tiles.moved == 4 * D * (2 * N + 2 * keys) + 4 * N and tiles.extra == 4 * N  # lse
    assert tiles.flops == 4 * D * 16 * keys
    assert tiles.moved < gather.moved / 4 and tiles.flops > 2 * gather.flops


def test_low_rank_and_sampled_read_everything_once():
    r, n = 24, 10
    b = measure(low_rank, Q, K, V, roads_not_taken.directions(r, D), Br=16, Bc=16, exact=EXACT)
    state = r * (D + 2)
    assert b.moved == 4 * (4 * N * D + 2 * r * D + 2 * state) and b.extra == 4 * (r * D + state)
    assert b.flops == 2 * N * r * (4 * D + 1)  # features of Q and K, the states, their mix and its denominator
    b = measure(sampled, Q, K, V, n=n, Br=16, exact=EXACT)
    assert (b.extra, b.moved, b.flops) == (0, 4 * (2 * N * D + 2 * n * D), 4 * N * n * D)


def test_the_lessons_statements_about_real_heads():
    alice = data.captured("alice")
    omega = roads_not_taken.directions(128, 32)
    errors = {}
    for head in ((0, 5), (5, 0)):
        q, k, v = alice.head(*head)
        exact = attention(q, k, v)
        approximations = windowed(q, k, v, 16, 64, 16), low_rank(q, k, v, omega, 64, 64), sampled(q, k, v, 64, 64)
        errors[head] = [error(O, exact) for O in approximations]
    near, wide = errors.values()
    assert near[0] < 0.4 and min(near[1:]) > 0.8  # only the window is good for this head
    assert wide[0] > 0.8 and max(wide[1:]) < 0.4  # only the window is bad for this head
    last = [alice.head(5, head) for head in range(12)]
    worse = [error(windowed(q, k, v, 16, 64, 16), attention(q, k, v)) > 1 for q, k, v in last]
    assert sum(worse) > 6


# bad input

BAD = {
    "expected Q": lambda: row_by_row(Q, K[:, :4], V, 8),
    "Br must be a whole number from 1 on, got 0": lambda: lazy(Q, K, V, 0, 8),
    "whole numbers from 0 on, or inf, got -1": lambda: windowed(Q, K, V, -1, 8, 8),
    "w must be a whole number from 0 on, got -2": lambda: window(-2),
    "stride must be a whole number from 1 on, got 0": lambda: strided(2, 0),
    "as many keys as queries": lambda: windowed(Q[:3], K, V, 2, 8, 8),
    "cannot draw 65 different keys from 64": lambda: sampled(Q, K, V, 65, 8),
    r"omega \[r, d\] with d = 16": lambda: low_rank(Q, K, V, np.ones((4, 5)), 8, 8),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_input_gives_a_sentence(sentence):
    with pytest.raises(ValueError, match=sentence):
        BAD[sentence]()


def test_integers_and_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="floating"):
        row_by_row(*(X.astype(int) for X in (Q, K, V)), 8)
    with pytest.raises(TypeError, match="one dtype"):
        sampled(Q, K.astype(float), V, 8, 8)


def test_a_memory_too_small_for_a_row_says_so():
    with pytest.raises(FastMemoryFull, match="S_i 256"):
        row_by_row(Q, K, V, 1, memory=Memory(300))


def test_tiling_has_the_flops_of_lazy_and_moves_less_than_half_the_bytes():
    ours, theirs = (
        measure(tiling.fa2_forward, Q, K, V, Br=16, Bc=8, exact=EXACT),
        measure(lazy, Q, K, V, 16, 8, exact=EXACT),
    )
    assert ours.flops == theirs.flops and ours.moved < theirs.moved / 2
