"""The interpreter of Gluon: the Hopper kernels are right in it, in every order, and wrong ones are rejected by name."""

import functools

import pytest
import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashlab import kernels
from flashlab.kernels import masks
from flashlab.kernels.gluon_interpreter import seeded
from flashlab.kernels.hopper import forward, ladder, toy
from flashlab.kernels.hopper.descriptors import layout
from flashlab.kernels.launch import launch
from flashlab.kernels.problem import Problem
from flashlab.machine.sm import Deadlock, Race
from tests.kernels import test_hopper as cases
from tests.kernels import wrong_gluon

pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="here the kernels run compiled")


def integers(N):
    """X [N, 64] of small whole numbers: their sums of products are exact."""
    return torch.randint(-4, 5, (N, toy.WIDTH), generator=torch.Generator().manual_seed(N)).bfloat16()


def gram_is_exact():
    for N, stages, seed in ((1, 1, 0), (1000, 2, 1), (1000, 3, 2)):
        x = integers(N)
        with seeded(seed):
            assert torch.equal(toy.gram(x, stages=stages), x.float().T @ x.float())


def test_gram_is_exact():
    gram_is_exact()


def test_one_block_is_exact():
    x, made = integers(128), torch.empty(64, 64)
    X = TensorDescriptor.from_tensor(x, [128, 64], layout((128, 64), x.dtype))
    launch(toy.one_block, (1, 1, 1), (X, made), (), warps=4)
    assert torch.equal(made, x.float().T @ x.float())


def exhaustive(values, quick):
    """Return test parameters, of which only these are quick."""
    return [x if x in quick else pytest.param(x, marks=pytest.mark.exhaustive) for x in values]


# the forward kernel, and the rungs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", exhaustive(cases.CONFIGURATIONS, ["64", "192"]))
def test_forward_equals_dense(name, causal):
    """300 queries on 333 keys: 6 heads on 2, so that a program computes several tiles."""
    width = cases.CONFIGURATIONS[name][0]
    cases.assert_equals_dense(cases.forward_run(name), *cases.inputs(2, 3, 1, 300, 333, width), causal)


def forward_is_right(names=("64",)):
    for name in names:
        run, width = cases.forward_run(name), cases.CONFIGURATIONS[name][0]
        cases.assert_equals_dense(run, *cases.inputs(2, 4, 2, 300, 400, width), True)
        cases.assert_equals_dense(run, *cases.inputs(1, 4, 2, 700, 100, width), False)  # tiles of one block of keys


def test_every_order_gives_the_same_bits():
    run = cases.forward_run("64")
    q, k, v = cases.inputs(1, 4, 2, 300, 333, 64)
    made = []
    for seed in range(4):
        *_, o, lse = cases.poisoned(q, 64)
        with seeded(seed):
            run(o, lse, q, k, v, Problem.of(q, k, v, masks.causal(), 0.1))
        made.append((o, lse))
    for o, lse in made[1:]:
        assert torch.equal(o, made[0][0]) and torch.equal(lse, made[0][1])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rung", exhaustive(range(1, len(ladder.RUNGS) + 1), [1, 3]))
def test_every_rung_equals_dense(rung, causal):
    cases.assert_equals_dense(functools.partial(ladder.run, rung), *cases.inputs(1, 4, 2, 300, 333, 64), causal)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["64", "64 three consumers", "128", "192", "256"])
def test_forward_is_right_for_all_kinds_of_cases(name):
    """One case in six of ``test_hopper``, those of at most 300 queries."""
    run, width = cases.forward_run(name), cases.CONFIGURATIONS[name][0]
    of_kinds = [case for kind in cases.KINDS for case in kind(width)]
    for n, (_, (q, k, v)) in enumerate(small(of_kinds)[::6]):
        cases.assert_equals_dense(run, q, k, v, n % 2 == 1)
    for kind in cases.MASKED:
        cases.hold_masked(run, small(kind(width))[:: 24 if kind is cases.windows else 6])


def small(of):
    """Return the cases of at most 300 queries and 500 keys."""
    return [case for case in of if case[1][0].shape[2] <= 300 and case[1][1].shape[2] <= 500]


# wrong kernels


def wrong_kernels(mistakes):
    """Return test parameters: the first mistake of each function is quick, the others are exhaustive."""
    seen, parameters = set(), []
    for mistake in mistakes:
        module, function, old, _ = mistake
        marks = [pytest.mark.exhaustive] if (module, function) in seen else []
        parameters.append(pytest.param(mistake, marks=marks, id=f"{function}: {old.strip():.50}"))
        seen.add((module, function))
    return parameters


@pytest.mark.parametrize("mistake", wrong_kernels(wrong_gluon.FORWARD))
def test_a_wrong_forward_kernel_is_rejected_by_name(mistake):
    module, function, *_ = mistake
    names = ("128 ping-pong",) if "turn" in function else ("64",)
    right = gram_is_exact if module is toy else functools.partial(forward_is_right, names)
    with wrong_gluon.wrong(*mistake), pytest.raises((Race, Deadlock, IndexError, AssertionError)):
        right()


def told(mistake):
    with wrong_gluon.wrong(*mistake), pytest.raises((Race, Deadlock)) as raised:
        toy.gram(integers(1000))
    return str(raised.value)


def test_a_sentence_names_roles_buffers_and_lines():
    said = told((toy, "consume", "wait_full(full, g)", "pass"))
    assert "consume has the tensor cores read ring[0]" in said and "no barrier keeps the two apart" in said
    assert "produce has the copy engine write it (toy.py:" in said
    said = told((toy, "gram_kernel", "    fence_async_shared()\n", ""))
    assert "produce has the copy engine arrive at full[0]" in said and "there is no fence between the two" in said
    said = told((toy, "consume", "release(empty, g)", "pass"))
    assert "produce waits for phase 0 of empty[0], which lacks 1 of 1 arrivals" in said
    said = told((toy, "produce", "X.block_type.nbytes", "X.block_type.nbytes // 2"))
    assert "full[0] gets 8,192 bytes more than it expects" in said


def test_the_same_seed_gives_the_same_sentence():
    mistake = (forward, "complete", "    release(shared.empty, g)\n", "")
    said = set()
    for _ in range(2):
        with wrong_gluon.wrong(*mistake), seeded(7), pytest.raises((Race, Deadlock)) as raised:
            forward_is_right()
        said.add(str(raised.value))
    assert len(said) == 1
