"""Tables of FlashAttention-4, exponentials by polynomial, a late maximum, and an order of additions without waits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashlab.course import data
from flashlab.machine import hardware
from flashlab.reference import next_machine, online_softmax
from flashlab.reference.attention import attention, attention_backward
from flashlab.reference.next_machine import Rates, exp2, lazy_update, minimax
from tests.tools.long import long

PUBLISHED = {3: (8.77e-5, 5.43e-5), 4: (3.05e-6, 1.84e-6), 5: (1.44e-7, 5.48e-8)}  # FlashAttention-4, table 2


@pytest.mark.parametrize("Br, cycles", [(128, (1024, 768, 1024)), (256, (2048, 1536, 2048))])
def test_forward_cycles_are_those_of_table_1(Br, cycles):
    assert next_machine.forward_cycles(Br, 128, 128) == cycles


@pytest.mark.parametrize("pair, cycles", [(False, (2560, 3328, 1024)), (True, (2560, 2688, 1024))])
def test_backward_cycles_are_those_of_table_3(pair, cycles):
    assert next_machine.backward_cycles(pair) == cycles


def test_hopper_had_twice_the_time_for_exponentials():
    H100 = hardware.CARDS["H100 SXM"]
    there, here = (next_machine.forward_cycles(128, 128, 128, card) for card in (H100, next_machine.B200))
    assert there.products == 2 * here.products and there.exponentials == here.exponentials == here.products


def test_cycles_of_half_a_product_are_refused():
    with pytest.raises(ValueError, match="Br must be a multiple of 128, the rows of a product, got 64"):
        next_machine.forward_cycles(64, 128, 128)


def alternations(c):
    """Return in how many runs of one sign the relative error of a polynomial reaches 97 % of its largest size."""
    x = np.linspace(0, 1, 100_001)[1:]
    error = np.polynomial.polynomial.polyval(x, c.astype(np.float64)) / 2**x - 1
    runs = np.split(error, np.flatnonzero(np.diff(np.sign(error))) + 1)
    return sum(np.abs(run).max() > 0.97 * np.abs(error).max() for run in runs)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_the_largest_error_alternates(degree):
    """If so, by Chebyshev's theorem, no polynomial of this degree that is 1 at 0 has a smaller largest error."""
    c = minimax(degree)
    assert c.dtype == np.float32 and len(c) == degree + 1 and c[0] == 1
    assert alternations(c) == degree + 1


@pytest.mark.parametrize("degree", PUBLISHED)
@pytest.mark.parametrize("every", [64, long(1)])
def test_the_polynomial_is_as_good_as_the_published_one(degree, every):
    survey = next_machine.survey(minimax(degree), every)
    largest, mean = PUBLISHED[degree]
    assert survey.inputs == 2**24 // every
    assert 0.5 * largest < survey.largest <= largest and survey.mean < 1.01 * mean
    assert survey.apart == 1 and survey.same > 0.9899
    assert survey.ulps < {3: 1440, 4: 50, 5: 2.5}[degree]


def test_the_survey_covers_the_fraction_of_every_float():
    """x - floor(x) of a float32 from -126 to 0 is a multiple of 2^-24."""
    rng = np.random.default_rng(0)
    x = -np.exp2(rng.uniform(-40, np.log2(126), 100_000)).astype(np.float32)
    f = x - np.floor(x)
    assert (f * 2**24 == np.round(f * 2**24)).all() and 0 <= f.min() and f.max() <= 1


def test_the_integer_part_of_x_changes_no_digit():
    c, f = minimax(3), np.linspace(0, 1, 1000, endpoint=False, dtype=np.float32)
    for n in (-126, -20, -1, 0, 5, 100):
        x = (f + np.float32(n)).astype(np.float32)
        exact = exp2(x - np.float32(n), c).astype(np.float64) * 2.0**n
        np.testing.assert_array_equal(exp2(x, c), exact.astype(np.float32))


def test_exp2_at_its_ends():
    c = minimax(3)
    x = np.float32([0, -1, -126, 1, 127, -127, -200, -np.inf])
    np.testing.assert_array_equal(exp2(x, c), [1, 0.5, 2.0**-126, 2, 2.0**127, 0, 0, 0])
    assert np.isnan(exp2(np.float32([np.nan]), c)).all()
    low = exp2(np.linspace(-140, -126, 5000, dtype=np.float32), c)
    assert (low >= 0).all() and low.max() <= 2.0**-126 and low.dtype == np.float32
    with pytest.raises(ValueError, match="degree must be a whole number from 1 to 12, got 0"):
        minimax(0)


def test_bfloat16_is_that_of_torch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    x[:4] = [1 + 2**-8, 1 + 3 * 2**-8, 0, 2]  # the first two are ties
    bits = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().astype(np.int32)
    np.testing.assert_array_equal(next_machine.bfloat16(x).astype(np.int16), bits)


def test_lanes_and_the_exponential_unit_are_balanced():
    rates, scores = Rates(), 128 * 128
    share = rates.balanced()
    assert share == pytest.approx(2 / 9)
    assert rates.lane_cycles(scores, share) == pytest.approx(rates.exponential_cycles(scores, share))
    assert rates.lane_cycles(scores, 0) == 512 and rates.exponential_cycles(scores, 0) == 1024
    assert Rates(exponentials=32).balanced() == 0, "twice as many exponentials, as a B300 has: nothing to gain"
    assert rates.balanced(5) < rates.balanced(3)


def test_rates_are_what_the_machine_code_takes():
    """``Rates`` agrees with the stored counts of the kernel for Blackwell, per thread and row of 128 scores."""
    unit, polynomial = (data.measured("blackwell_instructions")["ways"][way]["sass"] for way in ("unit", "polynomial"))
    fma, add = (lambda code, name=name: code[name] + 2 * code[f"{name}2"] for name in ("FFMA", "FADD"))
    assert fma(unit) == 128 and add(unit) == 127 and unit["FMNMX3"] == 63 and unit["F2FP"] == 64
    assert fma(polynomial) - fma(unit) == 3 * 128 == add(polynomial) - add(unit)
    assert polynomial["FMNMX"] - unit["FMNMX"] == polynomial["LEA"] - unit["LEA"] == 128
    assert unit["MUFU"] - polynomial["MUFU"] == 128 and unit["SHFL"] == 0
    assert Rates().lane_cycles(128 * 128, 1) == 128 * (2 + 2 * (63 + 1 + 64) / 128 + 6 + 2 * 2)


# The late maximum


def fold(S, V, Bc, threshold):
    state, largest = online_softmax.identity(len(S), V.shape[1], S.dtype), 0.0
    for start in range(0, S.shape[1], Bc):
        state = lazy_update(state, S[:, start : start + Bc], V[start : start + Bc], threshold)
        exponents = S[:, start : start + Bc] - np.where(state.m == -np.inf, 0, state.m)[:, None]  # [rows, Bc]
        largest = max(largest, np.exp(exponents).max())
    return state, largest


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 8.0, 30.0]), st.floats(0.01, 60))
def test_any_threshold_is_exact(seed, threshold, spread):
    rng = np.random.default_rng(seed)
    S, V = rng.normal(scale=spread, size=(5, 24)).cumsum(1), rng.normal(size=(24, 3))  # a drift, so that m rises
    S[0, :9], S[1] = -np.inf, -np.inf
    state, largest = fold(S, V, 4, threshold)
    with np.errstate(invalid="ignore"):
        O, lse = online_softmax.finish(state)
    weights = np.exp(S - np.where(S.max(1) == -np.inf, 0, S.max(1))[:, None])  # [5, 24]
    l = weights.sum(1, keepdims=True)  # [5, 1]
    np.testing.assert_allclose(O, weights @ V / np.where(l == 0, 1, l), 1e-9, 1e-11)
    np.testing.assert_allclose(lse[2:], S[2:].max(1) + np.log(l[2:, 0]), 1e-12)
    assert lse[1] == -np.inf and (O[1] == 0).all()
    assert largest <= 2**threshold * (1 + 1e-9)


def test_a_threshold_of_0_is_the_online_softmax():
    rng = np.random.default_rng(2)
    S, V = rng.normal(scale=5, size=(6, 32)), rng.normal(size=(32, 4))
    mine, theirs = (online_softmax.identity(6, 4, S.dtype) for _ in range(2))
    for start in range(0, 32, 8):
        cols = slice(start, start + 8)
        mine = lazy_update(mine, S[:, cols], V[cols], 0)
        theirs = online_softmax.update(theirs, S[:, cols], V[cols])
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_late_maximum_rises_seldom_on_real_scores():
    Q, K, _ = data.captured("alice").head()
    S = Q @ K.T / np.sqrt(Q.shape[1])
    always, late = (next_machine.raised(S, 32, threshold) for threshold in (0, 8))
    assert 0 < late < 0.1 * always < 0.1


# The order of additions


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("T", [1, 2, 5, 8])
def test_shifted_programs_never_wait(T, causal):
    shifted, plain = (next_machine.finished(T, causal, on) for on in (True, False))
    assert shifted == (5 * T, 0) and (plain.waited > 0 or T == 1)
    assert plain.makespan == 5 * T + T - 1, "without the shift, the last one begins to add T - 1 additions late"


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_tile_is_visited_and_added_once(causal, shifted):
    visits, turns = next_machine.visits(6, causal, shifted), next_machine.turns(6, causal, shifted)
    pairs = {(i, j) for i in range(6) for j in range(6) if j <= i or not causal}
    assert {(i, j) for j, queue in enumerate(visits) for i in queue} == pairs
    assert {(i, j) for i, order in enumerate(turns) for j in order} == pairs
    assert sum(map(len, visits)) == sum(map(len, turns)) == len(pairs)


def test_an_order_in_which_all_programs_wait_is_refused(monkeypatch):
    monkeypatch.setattr(next_machine, "turns", lambda T, *_: [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="every program waits for another's turn"):
        next_machine.finished(2)


def test_dQ_depends_on_the_order_in_its_last_bits_only():
    Q, K, V = data.captured("alice").head()
    dO = np.random.default_rng(0).normal(size=Q.shape).astype(np.float32)
    dQ, _, _ = attention_backward(Q, K, V, dO)
    lse = attention(Q, K, V, return_lse=True)[1]
    scale = 1 / np.sqrt(np.float32(Q.shape[1]))
    P = np.exp(scale * (Q @ K.T) - lse[:, None])
    dS = P * (dO @ V.T - (dO * (P @ V)).sum(1, keepdims=True))
    parts = np.stack([scale * dS[:, j : j + 64] @ K[j : j + 64] for j in range(0, 512, 64)])
    up, down = next_machine.dQ_sum(parts, range(8)), next_machine.dQ_sum(parts, range(7, -1, -1))
    np.testing.assert_allclose(up, dQ, 1e-3, 1e-5)
    np.testing.assert_allclose(up, down, 1e-3, 1e-5)
    assert (up != down).any() and (up == next_machine.dQ_sum(parts, range(8))).all()


def test_the_busiest_program():
    work = [1, 2, 3, 4, 5, 6]
    assert next_machine.busiest(work, 3) == 9 and next_machine.busiest(work[::-1], 3) == 7
    assert next_machine.busiest([a + b + 2 for a, b in next_machine.pairs(6)], 3) == 7
    assert next_machine.busiest([], 2) == 0


def test_pairs_have_equal_work():
    pairs = next_machine.pairs(8)
    assert {i + 1 + j + 1 for i, j in pairs} == {9} and sorted(sum(pairs, ())) == [*range(8)]
    with pytest.raises(ValueError, match="expected an even number of tiles, got 7"):
        next_machine.pairs(7)
