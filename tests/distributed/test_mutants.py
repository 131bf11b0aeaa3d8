"""Wrong edits of the code that the processes run: each fails, or its results differ from those of one device."""

import pytest
import torch

from tests.distributed import work

MUTANTS = [  # mistake, module, function, old, new
    ("lse of the block in the backward pass", "compute", "backward",
     "_safe(lse)", "_safe(torch.logsumexp(S, -1))"),
    ("one hop short: dK and dV of a neighbour", "ring", "backward", "(here, -step)", "(here, 1 - step)"),
    ("the gradients of a block do not travel", "ring", "backward",
     "arriving() if arriving else [torch.zeros_like(x, dtype=wide) for x in held]",
     "[0 * x for x in (arriving() if arriving else held)]"),
    ("the gradients of own keys are others' alone", "ring", "backward", "compute.add_up((dk, dv), own_shares)", "None"),
    ("positions are not permuted", "shards", "runs_of",
     "runs = placement_of(placement, sum", "runs = placement_of('contiguous', sum"),
    ("a buffer is written while it is sent and read", "wire", "Wire.pass_on",
     "def wait():", "[x.zero_() for x in tensors]\n\n    def wait():"),
    ("keys of the wrong owner", "ring", "owners_by_step", "(wire.rank - s) % P for", "(wire.rank + s) % P for"),
    ("the last step is left out", "ring", "forward", "enumerate(owners)", "enumerate(owners[:-1])"),
    ("every block is causal", "compute", "_scores", "if block.right is not None:", "if True:"),
    ("a block of queries counts only once", "compute", "Gradients.add", "+= dq", "= dq"),
    ("a block of keys counts only once", "compute", "add_up", "+= x", "= x"),
    ("scale is forgotten in dQ and dK", "compute", "backward", " * scale", ""),
    ("sums of two blocks, not their merge", "compute", "merge",
     "(l / l_safe)[..., None] * O + (l_b / l_safe)[..., None] * O_b", "O + O_b"),
    ("the parts are not put in order", "shards", "arranged", "if all(run.step == 1", "if True or all(run.step == 1"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mistake for mistake, *_ in MUTANTS])
def test_a_wrong_edit_is_noticed(team, mutant):
    exact = work.one_device(*work.inputs(16, torch.float64), causal=True)
    right = [
        not isinstance(outcome, str)
        and all(torch.allclose(x, y, atol=1e-6) for x, y in zip(outcome, exact, strict=True))
        for outcome in team.run(work.mutated, *mutant[1:])
    ]
    assert not any(right)


def test_without_an_edit_all_is_right(team):
    exact = work.one_device(*work.inputs(16, torch.float64), causal=True)
    for outcome in team.run(work.mutated, "ring", "backward", "in the last step it goes", "in the final step it goes"):
        for x, y in zip(outcome, exact, strict=True):
            torch.testing.assert_close(x, y)
