"""Training with the context divided over a group has the losses of training on one processor, step by step."""

import numpy as np
import pytest

character_model = pytest.importorskip("flashlab.course.character_model", reason="the kernels need triton")

from flashlab.models import plain  # noqa: E402
from tests.distributed import work  # noqa: E402

pytestmark = pytest.mark.exhaustive  # every process imports the character model, and with it Triton


@pytest.mark.parametrize(
    "P, placement, steps",
    [
        (4, "zigzag", 24),
        (2, "zigzag", 24),
        (4, "striped", 24),
        (3, "contiguous", 24),
    ],
)
def test_the_same_losses_on_every_process(team, P, placement, steps):
    alone = character_model.train(plain.dense, steps=steps).losses
    for losses in team.run(work.trained, P, placement, steps)[:P]:
        assert np.abs(losses - alone).max() < 1e-4  # of 4.5 nats; rounding grows as the training goes on
    assert alone[-1] < alone[0]


def test_wrong_positions_give_other_losses(team):
    """So the test above would notice them: after one step, the losses already differ."""
    alone = character_model.train(plain.dense, steps=1).losses
    (wrong, *_) = team.run(work.trained, 4, "zigzag", 1, True)
    assert np.abs(wrong - alone).max() > 1e-3
