from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from figures import standard_attention as figure
from figures import style
from figures.canvas import Canvas
from flashlab.reference import standard_attention, tiling

STATES = [figure.State(0, *rest) for rest in product(figure.WAYS, (False, True), (False, True))]


def fresh():
    return Canvas(style.figure(9.2, 4.7), figure.build, figure.update)


@pytest.fixture(scope="module")
def canvas():
    return fresh()


@pytest.mark.parametrize("state", STATES, ids=str)
def test_the_last_step_has_moved_what_the_closed_form_says(state):
    moved = sum(figure.trace(state)[-1].bill.values())
    if state.way == "standard":
        assert moved == standard_attention.moved(1024, 64, mask=state.mask, dropout=state.dropout)
    else:
        assert moved == tiling.fa2_traffic(1024, 1024, 64, 256, 256, dtype=np.float16).total()


@pytest.mark.parametrize("state", STATES, ids=str)
def test_each_step_adds_its_transfer_and_nothing_else(state):
    steps = figure.trace(state)
    for before, now in zip(steps, steps[1:], strict=False):
        assert sum(now.bill.values()) == sum(before.bill.values()) + now.nbytes
        assert now.bill[now.kind, now.name] == before.bill.get((now.kind, now.name), 0) + now.nbytes
        if now.kind == "load":
            bands = range(figure.BANDS) if now.band is None else [now.band]
            assert all((now.name, band) in before.written for band in bands)


def test_no_square_matrix_is_in_slow_memory_when_attention_is_fused():
    steps = figure.trace(figure.State(way="fused"))
    assert {name for name, _ in steps[-1].written} == {"Q", "K", "V", "O", "lse"}


def test_counted_beside_the_paper():
    total = figure.counted(figure.State())
    assert {way: round(nbytes / 1e9, 2) for way, nbytes in total.items()} == {"standard": 40.27, "fused": 4.43}
    assert total["fused"] == 33 * 1024 * (1024 * 64 * 2)  # 33 passes over N x d
    for way, (reported, _) in figure.PAPER.items():
        assert total[way] / 1e9 == pytest.approx(reported, rel=0.01)
    assert figure.counted(figure.State(mask=False, dropout=False))["standard"] < total["standard"]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_the_picture_shows_the_numbers_of_the_trace(canvas, state):
    for step in (0, 7, figure.count(state)):
        canvas.png(replace(state, step=step))
        now = figure.trace(state)[step]
        for row, name in enumerate(figure.PLACES):
            assert canvas.artists["loads"][row].get_width() * 1e6 == pytest.approx(now.bill.get(("load", name), 0))
            assert canvas.artists["stores"][row].get_width() * 1e6 == pytest.approx(now.bill.get(("store", name), 0))
        moved = sum(now.bill.values()) / 1e6
        assert canvas.artists["total"][0].get_width() == pytest.approx(moved)
        assert canvas.artists["sum"].get_text().strip() == f"{moved:.2f}"
        filled = (canvas.artists["bands"].get_facecolor()[:, 3] > 0).sum()
        assert filled == len([name for name, _ in now.written if name in figure.PLACES])


def test_the_arrow_points_to_where_the_bytes_go(canvas):
    for step, now in enumerate(figure.trace(figure.State())[1:], start=1):
        canvas.png(figure.State(step))
        xy = canvas.artists["arrow"].get_xy()
        tip = xy[np.abs(xy[:, 1] - 1.55).argmin(), 0]
        assert tip == (xy[:, 0].max() if now.kind == "load" else xy[:, 0].min())
        assert now.kind in canvas.artists["transfer"].get_text()


def test_words_have_the_numbers():
    words = figure.describe(figure.State(figure.count(figure.State())))
    for said in ("18.4 MB", "counted standard 40.27 GB, fused 4.43 GB", "40.3 GB in 41.7 ms", "4.4 GB in 7.3 ms"):
        assert said in words
    assert "N x N matrices 0 B" in figure.describe(figure.State(44, "fused"))
    bundle = figure.explore()._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"} <= set(bundle)
