"""A failure in a group raises an error of one sentence on every rank, within the timeout."""

import math
import os
from types import SimpleNamespace

import pytest
import torch

from flashlab.distributed import Team, attention, shard, unshard, whole
from flashlab.distributed.wire import GroupError
from tests.distributed import work
from tests.tools.long import long


@pytest.mark.parametrize(
    "difference, sentence",
    [
        ("heads", "the processes disagree on H: rank 0 has 8, rank 1 has 4"),
        long("length", "a zigzag placement of 13 tokens gives the ranks [5, 4, 4], got [5, 3, 5]"),
        long("mask", "the processes disagree on the window of the mask: rank 0 has [None, 0], rank 1 has [3, 0]"),
        long("dtype", "the processes disagree on the dtype: rank 0 has torch.float32, rank 1 has torch.float64"),
        ("argument", "the processes disagree on whether the arguments are right: rank 0 has True, rank 1 has False"),
    ],
)
def test_every_rank_names_what_ranks_disagree_on(difference, sentence):
    with Team(3, timeout=2 * work.HANGS) as team:
        outcomes = team.outcomes(work.unlike, 1, difference, work.HANGS)
    for rank, outcome in enumerate(outcomes):
        expected = "q must be a tensor" if (difference, rank) == ("argument", 1) else sentence
        assert isinstance(outcome, Exception) and str(outcome).startswith(expected), outcome


@pytest.mark.parametrize("method", ["ring", long("gather"), long("all-to-all")])
@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"scale": math.nan}, "ValueError: scale must be a finite number, got nan"),
        ({"scale": math.inf}, "ValueError: scale must be a finite number, got inf"),
        ({"scale": True}, "TypeError: scale must be a number or None, got True"),
        ({"documents": [0, 4.5, 16]}, "TypeError: documents must be whole numbers, got 4.5"),
        (
            {"mask": SimpleNamespace(left=2.5, right=0)},
            "ValueError: mask.left must be a whole number from 0 on, got 2.5",
        ),
        (
            {"mask": SimpleNamespace(left=3, right=-1)},
            "ValueError: mask.right must be a whole number from 0 on, got -1",
        ),
        ({"kernel": "fast"}, "ValueError: kernel must be one of torch, portable, hopper, decode, or None, got 'fast'"),
        (
            {"mask": torch.ones(4, 4, dtype=torch.bool)},
            "TypeError: mask must be None, causal() or window(left, right) of masks, got Tensor torch.bool [4, 4]",
        ),
    ],
)
def test_wrong_options_are_refused_on_every_rank(team, method, options, sentence):
    assert team.run(work.refusal, method, options) == [sentence] * 4


@pytest.mark.parametrize("method", ["ring", long("gather"), long("all-to-all")])
def test_second_derivatives_are_refused(team, method):
    sentence = "attention over a group has first derivatives only: create_graph must be False"
    assert team.run(work.second_derivative, method) == [sentence] * 4


@pytest.mark.parametrize("difference, timeout", [("dies", work.HANGS), long("does not come", 1.0)])
def test_all_other_ranks_notice_one_that_dies_or_does_not_come(difference, timeout):
    """They notice a dead rank at once and an absent one at the timeout of the call, before that of the group."""
    with Team(3, timeout=2 * work.HANGS) as team:
        team.run(os.getpid)  # all have joined the group
        outcomes = team.outcomes(work.unlike, 1, difference, timeout, timeout=work.HANGS / 2)
    for rank in (0, 2):
        message = f"rank {rank} of 3 lost the others: a process has ended, failed, or not answered within {timeout:g} s"
        assert isinstance(outcomes[rank], GroupError) and str(outcomes[rank]) == message
    if difference == "dies":
        assert str(outcomes[1]) == "the process ended, exit status 9"


@pytest.mark.exhaustive
def test_all_other_ranks_notice_one_that_dies_between_the_passes():
    with Team(3, timeout=2 * work.HANGS) as team, pytest.raises(GroupError) as error:
        team.run(work.dies_in_the_backward_pass, 1)
    rows = str(error.value).splitlines()
    assert len(rows) == 3 and "rank 1: the process ended, exit status 9" in rows
    assert sum("lost the others" in row for row in rows) == 2


X = torch.zeros(1, 1, 4, 4)


def test_without_a_group_an_error_says_so():
    with pytest.raises(GroupError, match="there is no process group"):
        attention(X, X, X)


@pytest.mark.parametrize("backend", ["nccl", "smoke signals"])
def test_a_missing_backend_is_refused(backend):
    with pytest.raises(GroupError, match="no backend|a GPU each"):
        Team(2, backend=backend)


@pytest.mark.parametrize("call", [
    lambda: Team(0), lambda: Team("2"), lambda: Team(True), lambda: Team(1, timeout=-1.0),
    lambda: attention(X, X, X, way="bus"), lambda: attention(X, X, X, dropout=0.1), lambda: whole("ring", None, X, X),
    lambda: whole("ring", X, X, X, X.numpy()),
    lambda: shard([1.0]), lambda: shard(torch.zeros(1, 1, 4, 4), dim=4), lambda: unshard(torch.zeros(4), dim="0"),
])  # fmt: skip
def test_wrong_arguments_of_a_call_are_refused(call):
    with pytest.raises((TypeError, ValueError), match=", got "):
        call()


def test_a_function_that_cannot_be_imported_is_refused():
    with Team(1) as team, pytest.raises(TypeError, match="the function must be importable"):
        team.run(lambda: 1)
