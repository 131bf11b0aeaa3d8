"""The smallest pipeline, X^T X: its time with one stage and with more, and wrong phases, which end in an error."""

import numpy as np
import pytest

from flashlab.grading.exercise import edited
from flashlab.machine.sm import Deadlock, Race
from flashlab.reference import barriers
from flashlab.reference.barriers import COPY, MULTIPLY

X = np.random.default_rng(0).normal(size=(640, 8))


@pytest.mark.parametrize("rows, stages", [(128, 1), (128, 2), (64, 3), (640, 1), (1, 4)])
def test_it_multiplies_every_block_once(rows, stages):
    product, _ = barriers.gram(X, rows, stages)
    np.testing.assert_allclose(product, X.T @ X, rtol=1e-12, atol=1e-11)


def test_with_one_stage_the_times_add_up_and_with_two_the_copies_decide():
    assert barriers.gram(X, 128, 1)[1] == 5 * (COPY + MULTIPLY)
    assert barriers.gram(X, 128, 2)[1] == barriers.gram(X, 128, 3)[1] == 5 * COPY + MULTIPLY


def test_wrong_phases_are_a_deadlock_or_a_race():
    with pytest.raises(Deadlock, match="producer for phase 0 of empty"):
        barriers.gram(X, 128, 2, produce=edited(barriers.produce, "(n & 1) ^ 1", "n & 1"))
    with pytest.raises(Race, match="consumer wants X_2 of step 2"):
        barriers.gram(X, 128, 2, consume=edited(barriers.consume, "n & 1", "0"))


def test_blocks_must_divide_the_rows():
    with pytest.raises(ValueError, match="a number of rows that divides 640, got 100"):
        barriers.gram(X, 100, 2)
