"""The Hopper backward kernel takes in each score that the mask shows, once, and skips each tile without one."""

from types import SimpleNamespace

import pytest
import torch

from flashlab import kernels
from flashlab.kernels import masks, packed
from flashlab.kernels.hopper import queries
from flashlab.kernels.problem import Problem
from tests.tools.long import long, long_except
from tests.tools.taken_in import assert_backward_takes_in, in_window

pytestmark = pytest.mark.skipif(not kernels.INTERPRETED, reason="here the kernels run compiled")

LENGTHS = [(128, 128), (64, 200), (200, 64), (133, 130), (130, 133), (1, 70), (320, 256), (256, 320)]
WINDOWS = [
    (None, None),
    (None, 0),
    (0, 0),
    (5, 0),
    (64, 0),
    (126, 0),
    (150, 0),
    (20, 70),
    (0, 9),
    (None, 70),
    (40, None),
]


@pytest.mark.parametrize("Nq, Nk", long_except([(200, 64), (130, 133)], LENGTHS))
@pytest.mark.parametrize("left, right", WINDOWS)
def test_each_score_in_a_window_is_taken_in_once(left, right, Nq, Nk):
    mask = masks.Window(left, right)
    assert_backward_takes_in(in_window(mask, Nq, Nk), mask, H=2)


def test_each_head_has_its_own_scores():
    mask = masks.window(20, 70)
    assert_backward_takes_in(in_window(mask, 200, 133), mask, H=4, Hk=2, biases=torch.arange(4) * 32.0)


@pytest.mark.parametrize("Nq, Nk", [long(4096, 256), (4130, 130)])
def test_the_window_that_stands_for_no_mask_hides_nothing(Nq, Nk):
    problem = Problem(1, 1, 1, Nq, Nk, 128, 128, torch.bfloat16, torch.device("cpu"), masks.full(), 1.0, "ieee")
    assert queries.kernel_args(problem, 64, 128)[:2] == queries.ENDLESS.T
    assert_backward_takes_in(torch.ones(Nq, Nk, dtype=torch.bool), masks.full(), d=128)


@pytest.mark.parametrize("N", long_except([200], [128, 200, 333]))
def test_each_score_that_a_rule_shows_is_taken_in_once(N):
    i, j, ids, pieces = torch.arange(N)[:, None], torch.arange(N), torch.arange(N) // 70, torch.arange(N) // 40 % 3
    same, again = ids[:, None] == ids, pieces[:, None] == pieces
    for mask, seen, table in (
        (masks.documents(ids) & masks.causal(), same & (j <= i), True),
        (masks.documents(ids) & masks.window(30, 9), same & (j >= i - 30) & (j <= i + 9), True),
        (masks.documents(ids), same, True),
        (masks.prefix(90), (j <= i) | (j < 90), True),
        (masks.documents(pieces) & masks.causal(), again & (j <= i), False),
        (masks.causal() & (masks.window(40) | masks.sinks(3)), (j <= i) & ((j >= i - 40) | (j < 3)), True),
    ):
        problem = SimpleNamespace(mask=mask, Nq=N, Nk=N, device=torch.device("cpu"))
        assert (mask.interval(problem) is not None) == table
        assert_backward_takes_in(seen, mask, H=4, Hk=2)


def test_each_score_inside_a_text_is_taken_in_once():
    offsets = torch.tensor([0, 50, 50, 51, 190, 320, 323])
    texts = packed.prepared(offsets, offsets)
    own = texts.of[0]
    for mask in (masks.full(), masks.causal(), masks.window(70, 3)):
        seen = in_window(mask, len(own), len(own)) & (own[:, None] == own)
        assert_backward_takes_in(seen, texts.apart(mask))


def test_heads_may_differ_in_their_tiles():
    """A program takes the query heads of its key/value head one after the other, each with a list of its own."""
    N, H = 400, 4
    blocks = torch.rand(H, 13, 13, generator=torch.Generator().manual_seed(0)) < 0.1
    seen = blocks.repeat_interleave(32, 1).repeat_interleave(32, 2)[:, :N, :N] | torch.eye(N, dtype=torch.bool)
    assert_backward_takes_in(seen, masks.blocks(blocks, 32, 32) | masks.window(0), H=H, Hk=2)
