"""Every rung is as exact as the production kernel must be, compiled and interpreted, and imports nothing of ours."""

import ast
import inspect
import itertools

import pytest
import torch

from flashlab.kernels import DEVICE, masks
from flashlab.kernels.gluon_interpreter import seeded
from flashlab.kernels.hopper.rungs import one_consumer, persistent, two_consumers
from flashlab.kernels.launch import launch
from tests.kernels import written_out
from tests.kernels.implementations import HOPPER
from tests.kernels.inputs import in_bfloat16
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long_except
from tests.tools.taken_in import in_window

RUNGS = one_consumer, two_consumers, persistent
LENGTHS = [(300, 333), (128, 256), (70, 133), (133, 70), (1, 1), (300, 20)]
LARGE = [(1000, 777), (4096, 4096), (777, 1000)] if HOPPER else []

each_rung = pytest.mark.parametrize("rung", RUNGS, ids=[rung.__name__.rpartition(".")[2] for rung in RUNGS])


def poisoning(kernel, grid, tensors, numbers, warps):
    """Launch a kernel with NaN where O and lse will be."""
    o, lse = tensors[3].base, tensors[4]
    o.fill_(torch.nan), lse.fill_(torch.nan)
    launch(kernel, grid, tensors, numbers, warps=warps)


def attend(rung, q, k, v, causal, **options):
    """Run a rung; the persistent one with five programs."""
    if rung is persistent:
        tiles = q.shape[0] * q.shape[1] * -(-q.shape[2] // 128)
        options = {"table": persistent.table_of(persistent.dealt(tiles, 5), DEVICE)} | options
    return rung.attend(q, k, v, causal, launch=poisoning, **options)


def assert_equals_dense(rung, q, k, v, causal, **options):
    o, lse = attend(rung, q, k, v, causal, **options)
    seen = in_window(masks.either(causal, None), q.shape[2], k.shape[2])
    (exact_o, exact_lse), (plain_o, _), (_, plain_lse) = (
        written_out.attention(*(x.to(t) for x in (q, k, v)), seen) for t in (torch.float64, q.dtype, torch.float32)
    )
    assert_as_exact_as_plain(o, plain_o, exact_o)
    assert_as_exact_as_plain(lse, plain_lse, exact_lse, roundings=4)
    assert (o[exact_lse == -torch.inf] == 0).all()


@each_rung
@pytest.mark.parametrize("d, dtype", [(64, torch.bfloat16), (128, torch.float16)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Nq, Nk", long_except([(300, 333), (133, 70)], LENGTHS + LARGE))
def test_a_rung_equals_dense(rung, Nq, Nk, causal, d, dtype):
    assert_equals_dense(rung, *in_bfloat16(2, 4, 2, Nq, Nk, d, dtype=dtype), causal)


@each_rung
def test_large_scores_do_not_overflow(rung):
    q, k, v = in_bfloat16(1, 2, 1, 130, 260, 64)
    assert_equals_dense(rung, 30 * q, 30 * k, v, True)


@each_rung
def test_the_order_of_roles_and_programs_does_not_change_bits(rung):
    q, k, v = in_bfloat16(1, 2, 1, 200, 300, 64)
    results = []
    for seed in range(4):
        with seeded(seed):
            results.append(attend(rung, q, k, v, True))
    assert all(torch.equal(x, y) for other in results for x, y in zip(results[0], other, strict=True))


def test_the_persistent_rung_takes_any_lists_of_tiles():
    q, k, v = in_bfloat16(2, 2, 1, 300, 200, 64)
    for lists in [[[11, 0, 5], [], [*range(1, 5), *range(6, 11)]], [[*range(12)]]]:
        assert_equals_dense(persistent, q, k, v, True, table=persistent.table_of(lists, DEVICE))


@each_rung
def test_a_rung_refuses_what_it_does_not_take(rung):
    right = dict(zip("qkv", in_bfloat16(1, 2, 1, 8, 9, 64), strict=True))
    wrong = [
        {"q": right["q"].float()},
        {"v": right["v"].half()},
        {name: x[..., :32] for name, x in right.items()},
        {"v": right["v"][..., :32]},
        {"k": right["k"][:, :, :5]},
        {name: right[name].expand(1, 4, 9, 64) for name in "kv"},
        {"q": right["q"][:, :, :0]},
        {name: right[name][:, :0] for name in "kv"},
    ]
    for changed in wrong:
        with pytest.raises(ValueError, match="expected q"):
            attend(rung, **right | changed, causal=False)


@each_rung
def test_a_rung_imports_nothing_of_ours(rung):
    names = [
        [it.name for it in node.names] if isinstance(node, ast.Import) else [node.module]
        for node in ast.walk(ast.parse(inspect.getsource(rung)))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert {name.split(".")[0] for name in itertools.chain(*names)} <= {"itertools", "torch", "triton", "typing"}
