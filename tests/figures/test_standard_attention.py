from itertools import product

import numpy as np
import pytest

from figures import standard_attention as figure
from flashlab.machine.memory import Memory
from flashlab.reference import masks, standard_attention, tiling
from flashlab.reference.dropout import Dropout
from flashlab.reference.rules import Rules

STATES = [figure.State(0, *rest) for rest in product((False, True), (False, True))]
states = pytest.mark.parametrize("state", STATES, ids=str)


@states
def test_the_last_step_has_moved_the_bytes_of_the_closed_form(state):
    standard, fused = figure.trace(state)["runs"]
    assert standard["moved"] == standard_attention.moved(1024, 64, mask=state.mask, dropout=state.dropout)
    assert fused["moved"] == tiling.fa2_traffic(1024, 1024, 64, 256, 256, dtype=np.float16).total()
    assert figure.STEP * (figure.count(state) - 1) < standard["moved"] <= figure.STEP * figure.count(state)


@states
def test_the_lines_are_the_bill(state):
    """The bytes of each tensor agree with the memory's, and each line adds its own."""
    Q, K, V = np.random.default_rng(0).normal(size=(3, 1024, 64)).astype(np.float16)
    memory = Memory()
    mask = masks.causal() if state.mask else None
    standard_attention.forward(
        Q, K, V, Rules(mask=mask, dropout=Dropout(0.1, 0) if state.dropout else None), memory=memory
    )
    bill, moved = {}, 0
    for line in figure.trace(state)["runs"][0]["lines"]:
        entry = line["kind"], line["name"]
        bill[entry] = bill.get(entry, 0) + line["nbytes"]
        moved += line["nbytes"]
        assert line["moved"] == moved
    assert bill == memory.bytes


@states
def test_rows_have_the_bytes_of_their_line(state):
    """The areas of the picture are bytes: rows times columns times bytes per number."""
    for run in figure.trace(state)["runs"]:
        for line in run["lines"]:
            columns, size = {"lse": (1, 4), "Z": (1024, 1)}.get(line["name"], (1024, 2))
            columns = 64 if line["name"] in "QKVO" else columns
            assert (line["rows"][1] - line["rows"][0]) * columns * size == line["nbytes"], line


@states
def test_every_loaded_row_was_stored_before(state):
    for run in figure.trace(state)["runs"]:
        stored = {(name, row) for name in "QKV" for row in range(1024)}
        for line in run["lines"]:
            rows = {(line["name"], row) for row in range(*line["rows"])}
            if line["kind"] == "store":
                stored |= rows
            else:
                assert rows <= stored


def test_no_square_matrix_is_in_slow_memory_when_attention_is_fused():
    _, fused = figure.trace(figure.State())["runs"]
    assert {line["name"] for line in fused["lines"]} == {"Q", "K", "V", "O", "lse"}
    assert any("S_ij" in dict(line["resident"]) for line in fused["lines"])


def test_the_counted_bytes_are_those_of_the_paper():
    total = figure.counted(figure.State())
    assert {way: round(nbytes / 1e9, 2) for way, nbytes in total.items()} == {"standard": 40.27, "fused": 4.43}
    assert total["fused"] == 33 * 1024 * (1024 * 64 * 2)  # 33 passes over N x d
    for run, way in zip(figure.trace(figure.State())["runs"], figure.WAYS, strict=True):
        assert run["whole"] == total[way] == pytest.approx(1e9 * run["paper"][0], rel=0.01)
    assert figure.counted(figure.State(mask=False, dropout=False))["standard"] < total["standard"]


def test_a_tip_shows_the_line_that_loads_or_stores():
    for line in figure.trace(figure.State())["runs"][0]["lines"]:
        assert f"memory.{line['kind']}(" in line["code"]
        if line["number"] in (2, 4):  # mask and dropout name their matrices
            assert f'{line["kind"]}("{line["name"]}"' in line["code"]


def test_words_have_the_numbers():
    assert figure.describe(figure.State(66)) == (
        "Clock at 8.65 MB. Standard attention: kernel softmax, 3 of 5. "
        "Fused attention is done with 1.31 MB, none of them an N x N matrix."
    )
    assert figure.describe(figure.State(140)).startswith("Standard attention is done with 18.4 MB, 97% of them N x N")
