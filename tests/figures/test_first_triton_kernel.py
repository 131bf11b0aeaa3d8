import sys
from itertools import product

import numpy as np
import pytest
import torch

from figures import first_triton_kernel as figure
from figures.figure import numbers
from flashlab.kernels import first_triton_kernel
from flashlab.kernels.count import count

STATES = [figure.State(0, kernel, N, block) for kernel, N, block in product(figure.KERNELS, (1, 5, 13, 16), (2, 8))]
states = pytest.mark.parametrize("state", STATES, ids=str)


def test_the_last_step_has_the_bill_of_the_kernel():
    memory = count(first_triton_kernel.add, torch.zeros(13), torch.zeros(13), block=4)
    last = figure.trace(figure.State())["accesses"][-1]
    assert (last["loaded"], last["stored"]) == (memory.loaded, memory.stored) == (104, 52)
    assert "Loaded so far: 104 B; stored: 52 B." in figure.describe(figure.State(12))


@states
def test_every_element_is_stored_once_and_loaded_once_or_twice_in_online_softmax(state):
    trace = figure.trace(state)
    counts = {
        (kind, name): np.zeros((trace["height"], state.N), int) for kind, name in product(("load", "store"), "xyz")
    }
    for access in trace["accesses"]:
        rows, columns = (slice(*access[axis]) for axis in ("rows", "columns"))
        counts[access["kind"], access["tensor"]][rows, columns] += 1
    loads = {"add": 1, "softmax": 1, "online softmax": 2}[state.kernel]
    for name in [*trace["tensors"]][:-1]:
        assert (counts["load", name] == loads).all()
    assert (counts["store", [*trace["tensors"]][-1]] == 1).all()


def test_the_numbers_are_those_that_the_kernel_moves():
    x, y, z = (np.array(rows, float) for rows in figure.trace(figure.State())["tensors"].values())
    assert x.size == 13 and (x + y == z).all()
    softmax = figure.trace(figure.State(kernel="softmax", N=3))["tensors"]
    assert softmax["x"][0] == ["0", "1", "2"] and softmax["y"][0] == [".09", ".24", ".67"]


@states
def test_the_last_line_of_a_step_is_the_load_or_store(state):
    trace = figure.trace(state)
    moves = {}
    for access in trace["accesses"]:
        line = trace["source"][access["ran"][-1]]
        assert f"tl.{access['kind']}(" in line and access["value"] in line
        assert f"tl.{access['kind']}({access['tensor']} " in line or state.kernel == "online softmax"
        moves.setdefault(access["program"], []).append(access["ran"][-1])
    if state.kernel == "online softmax":  # the first loop loads all blocks, the second loads and stores each
        for lines in moves.values():
            blocks = len(lines) // 3
            first, again, store = lines[0], lines[blocks], lines[-1]
            assert lines == blocks * [first] + blocks * [again, store] and first < again < store


@states
def test_a_program_runs_every_line_of_its_kernel_from_the_first_on(state):
    trace = figure.trace(state)
    ran = {}
    for access in trace["accesses"]:
        ran.setdefault(access["program"], []).extend(access["ran"])
    for lines in ran.values():
        assert lines[0] == 1 and set(lines) == set(range(1, len(trace["source"])))
        if state.kernel != "online softmax":
            assert lines == sorted(lines)


def test_the_control_block_is_off_where_a_row_is_one_block():
    idle = {kernel: numbers(figure, figure.State(0, kernel))["idle"] for kernel in figure.KERNELS}
    assert idle == {"add": {}, "softmax": {"block": "a row is one block"}, "online softmax": {}}


def test_a_loop_runs_its_lines_once_for_each_block():
    trace = figure.trace(figure.State(0, "online softmax", 13, 4))
    lines = [at for access in trace["accesses"] for at in access["ran"]]
    update = next(at for at, line in enumerate(trace["source"]) if "l_i = alpha * l_i" in line)
    assert lines.count(update) == 2 * 4  # programs, blocks


def test_the_figure_restores_the_tracer_of_its_caller():
    def tracer(*_):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        figure._trace.cache_clear()
        figure.trace(figure.State())
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_the_block_of_the_last_program_is_masked_past_the_end():
    last = figure.trace(figure.State())["accesses"][-1]
    assert last["columns"] == (12, 13) and figure.trace(figure.State())["width"] == 4
    assert "columns 12 to 15, 3 of 4 masked" in figure.describe(figure.State(12))


@states
def test_no_block_is_wider_or_higher_than_the_picture_says(state):
    trace = figure.trace(state)
    for access in trace["accesses"]:
        (first, last), (top, bottom) = access["columns"], access["rows"]
        assert last - first <= trace["width"] and bottom - top <= trace["band"]
        assert first % trace["width"] == 0 and access["program"] < trace["programs"]
