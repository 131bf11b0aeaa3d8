"""The roles of a B200's forward pass compute attention in the cycles that its units allow; wrong roles are noticed."""

from itertools import pairwise

import numpy as np
import pytest

from flashlab.course import data
from flashlab.course.check import edited
from flashlab.machine import sm
from flashlab.reference import next_machine, roles
from flashlab.reference.attention import attention
from flashlab.reference.next_machine import Rates
from flashlab.reference.roles import Design
from tests.reference.test_tiling import draw
from tests.tools.bounds import assert_as_exact_as_plain


@pytest.fixture(scope="module")
def head():
    Q, K, V = data.captured("alice").head()
    return Q[:256], K, V


@pytest.mark.parametrize(
    "design, Bc",
    [(Design(), 128), (Design(threshold=0), 100), (Design(d=64, stages=2), 100), (Design(d=192, dv=128), 600)],
)
def test_roles_compute_attention(head, design, Bc):
    run = roles.forward(*head, design, Bc=Bc)
    plain = attention(*head, return_lse=True)
    exact = attention(*(tensor.astype(np.float64) for tensor in head), return_lse=True)
    for got, rounded, true in zip((run.O, run.lse), plain, exact, strict=True):
        assert_as_exact_as_plain(got, rounded, true)


@pytest.mark.parametrize("Nq, Nk, Bc", [(2, 1, 1), (3, 5, 2), (9, 16, 16)])
def test_small_and_ragged_shapes(Nq, Nk, Bc):
    Q, K, V = draw(Nq, Nk)
    np.testing.assert_allclose(roles.forward(Q, K, V, Bc=Bc).O, attention(Q, K, V), 1e-5, 1e-6)


def test_the_polynomial_is_lost_in_the_rounding_of_weights(head):
    exact = attention(*(tensor.astype(np.float64) for tensor in head))
    errors = [np.abs(roles.forward(*head, Design(share=share)).O - exact).max() for share in (0, 0.25, 1)]
    assert errors[0] < 2e-6 < errors[1] < errors[2] < 2e-4 < 2**-9 * np.abs(exact).max()


@pytest.mark.parametrize("d, dv, cycles", [(64, None, 2048), (128, None, 2176), (192, 128, 2560)])
def test_cycles_per_block_when_the_pipeline_is_filled(head, d, dv, cycles):
    """The limit at d = 64: exponentials. At 128: the chain S, maximum, weights, P V of one tile. At 192: products."""
    run = roles.forward(*head, Design(d=d, dv=dv), Bc=32)
    assert run.steady == pytest.approx(cycles, rel=2e-3) and run.blocks == 16
    assert run.busy["exponential unit"] == 16 * 2048 and run.cycles > 16 * cycles
    chain = 512 + 128 + 1024 + 512
    assert d != 128 or run.steady == chain


def best(head, **about):
    """Return the smallest of six shares, 0 to 5/16, that takes at most 0.5 % more cycles than the fastest of them."""
    shares = [n / 16 for n in range(6)]
    cycles = [roles.forward(*head, Design(share=share, **about), Bc=32).steady for share in shares]
    return next(share for share, it in zip(shares, cycles, strict=True) if it <= 1.005 * min(cycles))


@pytest.mark.parametrize("d, dv, share", [(64, None, 3 / 16), (128, None, 2 / 16), (192, 128, 0)])
def test_the_best_share_falls_with_the_head_dimension(head, d, dv, share):
    assert best(head, d=d, dv=dv) == share


def test_with_twice_the_exponentials_per_cycle_the_best_share_is_0(head):
    assert best(head, d=64, rates=Rates(exponentials=32)) == 0


def test_a_late_maximum_spares_rescaling(head):
    always, late = (roles.forward(*head, Design(threshold=threshold), Bc=32) for threshold in (0, 8))
    assert always.rescales > 4 * late.rescales > 0
    assert always.busy["vector units"] - late.busy["vector units"] == 128 * (always.rescales - late.rescales)


@pytest.mark.parametrize("design", [Design(), Design(share=0.25, d=64), Design(stages=2)], ids=str)
def test_events_lie_within_the_run_and_the_copy_engine_and_each_role_do_one_thing_at_a_time(head, design):
    run = roles.forward(*head, design, Bc=64)
    one_at_a_time = {unit: [] for unit in ("copy engine", "load", "multiply", "correct", "softmax 0", "softmax 1")}
    for event in run.events:
        assert 0 <= event.start <= event.end <= run.cycles
        if event.unit in one_at_a_time:
            one_at_a_time[event.unit].append((event.start, event.end))
    assert one_at_a_time["copy engine"]
    for times in one_at_a_time.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(times)))
    assert run.busy["tensor core"] == 8 * 2 * (design.scores[0] * design.scores[1] + 8 * design.weighted[1])
    assert run.busy["exponential unit"] == 8 * 2 * design.weights[1]


def test_tensor_memory_is_full_at_d_128():
    assert roles.COLUMNS == 512 == Design().columns
    with pytest.raises(ValueError, match="tensor memory has 512 columns: S and O of two tiles take 544"):
        Design(d=144)


def test_the_cycles_of_a_design_are_those_of_table_1_of_the_paper():
    products, _, exponentials = next_machine.forward_cycles(256, 128, 128)
    of_scores, of_weighted = (a * b for a, b in (Design().scores, Design().weighted))
    assert 2 * (of_scores + of_weighted) == products and 2 * Design().weights[1] == exponentials
    assert roles.teraflops(products) == pytest.approx(2250, rel=5e-3)  # the peak that NVIDIA states


P_IN, V_IN = "yield Wait(pipe.p_full[w], j & 1)", "yield Wait(pipe.full[stage], n & 1)\n            yield pipe"
EDITS = {
    "P is not waited for": ("multiply", P_IN, "pass", sm.Race),
    "the phase of P never flips": ("multiply", P_IN, "yield Wait(pipe.p_full[w], 0)", sm.Race),
    "V is not waited for": ("multiply", V_IN, "yield pipe", sm.Race),
    "P V is not issued": ("multiply", "yield pipe.weighted(w, j)", "pass", (sm.Race, sm.Deadlock)),
    "S is not waited for": ("softmax", "yield Wait(pipe.s_full[w], j & 1)", "pass", sm.Race),
    "the phase of S never flips": ("softmax", "pipe.s_full[w], j & 1", "pipe.s_full[w], 0", sm.Race),
    "O is divided before it is there": ("correct", "yield Wait(pipe.o_full[w], 0)", "pass", sm.Race),
    "the stage of V is not released": ("multiply", "yield Commit(pipe.empty[stage])", "pass", sm.Deadlock),
    "P is not announced": ("softmax", "yield Arrive(pipe.p_full[w])", "pass", sm.Deadlock),
    "O is not announced": ("multiply", "yield Commit(pipe.o_full[w])", "pass", sm.Deadlock),
    "the correction is not announced": ("correct", "yield Arrive(pipe.corrected[w])", "pass", sm.Deadlock),
}


@pytest.mark.parametrize("role, old, new, error", EDITS.values(), ids=EDITS)
def test_a_wrong_role_is_caught(head, role, old, new, error):
    with pytest.raises(error):
        roles.forward(*head, Design(threshold=0, stages=2), Bc=32, **{role: edited(getattr(roles, role), old, new)})


def test_without_strict_a_race_is_recorded(head):
    wrong = edited(roles.multiply, "yield Wait(pipe.p_full[w], j & 1)", "pass")
    run = roles.forward(*head, Bc=64, strict=False, multiply=wrong)
    assert "multiply wants P_0 from S[0], but it holds S_0" in run.races[0]
    assert not np.allclose(run.O, attention(*head), 1e-3, 1e-3)


@pytest.mark.parametrize("arguments, sentence", [
    (lambda: Design(share=1.5), "share must be a finite number at least 0 and at most 1, got 1.5"),
    (lambda: Design(d=100), "d and dv must be multiples of 16, which one instruction takes, got 100 and 100"),
    (lambda: Design(stages=1), "stages must be a whole number from 2 on, got 1"),
    (lambda: roles.forward(*draw(1, 4)), "expected a query for each of two tiles, and a key, got 1 and 4"),
])  # fmt: skip
def test_bad_input_gives_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        arguments()
