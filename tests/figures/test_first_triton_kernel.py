from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from figures import first_triton_kernel as figure
from figures import style
from figures.canvas import Canvas
from flashlab.kernels import first_triton_kernel
from flashlab.kernels.count import count

KERNELS = ("add", "softmax", "online softmax")
STATES = [figure.State(0, kernel, N, block) for kernel, N, block in product(KERNELS, (1, 5, 16), (1, 8))]


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(9.0, 3.8), figure.build, figure.update)


def test_the_last_step_has_the_bill_of_the_kernel():
    memory, state = count(first_triton_kernel.add, torch.zeros(13), torch.zeros(13), block=4), figure.State()
    last = figure.trace(state)[-1]
    assert (last.loaded, last.stored) == (memory.loaded, memory.stored) == (104, 52)
    assert f"loaded {last.loaded} B" in figure.describe(replace(state, step=figure.count(state)))


@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_element_is_stored_exactly_once(state):
    stored = np.zeros((figure.ROWS, state.N), int)
    for access in figure.trace(state):
        if access.kind == "store":
            stored[access.rows, access.columns] += 1
    assert (stored[: 1 if state.kernel == "add" else figure.ROWS] == 1).all()


def test_the_block_of_the_last_program_hangs_over_the_end(canvas):
    state = replace(figure.State(), step=figure.count(figure.State()))
    canvas.png(state)
    block = canvas.artists["blocks"][2]
    assert block.get_x() == 11.5 and block.get_width() == 4 and state.N == 13
    assert "3 of 4 masked" in canvas.artists["program"].get_text()
