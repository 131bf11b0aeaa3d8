from itertools import product

import pytest

from figures import roofline as figure
from flashlab.machine import hardware
from flashlab.reference import roofline

STATES = [
    figure.State(0, card, d, N, dtype)
    for card, (d, N, dtype) in product(
        hardware.CARDS, ((16, 256, "float32"), (64, 1024, "float16"), (256, 16384, "float8"), (256, 16384, "float16"))
    )
]
states = pytest.mark.parametrize("state", STATES, ids=str)


@states
def test_marks_lie_on_the_roof(state):
    trace, card = figure.trace(state), hardware.CARDS[state.card]
    peak = getattr(card, state.dtype)
    assert trace["peak"] == peak and trace["slope"] == card.dram_rate
    for mark in [*trace["parts"], *trace["fused"]]:
        if peak:
            assert mark["reach"] == pytest.approx(min(peak, mark["intensity"] * card.dram_rate))
            assert mark["share"] == pytest.approx(mark["reach"] / peak)
        else:
            assert mark["reach"] is mark["share"] is None
    if peak:
        assert trace["ridge"] * card.dram_rate == pytest.approx(peak)


@states
def test_marks_are_those_of_the_reference(state):
    trace, works = figure.trace(state), roofline.attention(state.N, state.d, state.dtype)
    for mark, part in zip(trace["parts"], figure.PARTS, strict=True):
        assert mark["intensity"] == roofline.intensity(works[part]) and mark["nbytes"] == works[part].nbytes
    fused = {mark["Br"]: mark["intensity"] for mark in trace["fused"]}
    assert fused[128] == roofline.intensity(works["fused"])
    assert fused[state.N] == roofline.intensity(works["fused, read once"])


@states
def test_a_larger_tile_has_a_higher_intensity(state):
    sizes, intensities = zip(*((mark["Br"], mark["intensity"]) for mark in figure.trace(state)["fused"]), strict=True)
    assert list(sizes) == sorted(sizes) and list(intensities) == sorted(intensities) and sizes[-1] == state.N


def test_fusing_with_small_tiles_moves_more_than_three_kernels():
    trace = figure.trace(figure.State())
    assert trace["fused"][0]["Br"] == 16
    assert trace["fused"][0]["nbytes"] > trace["parts"][-1]["nbytes"] > trace["fused"][3]["nbytes"]


def test_the_words_say_which_rate_is_missing():
    words = figure.describe(figure.State(0, "T4", dtype="float8"))
    assert words.startswith("No float8 rate for T4: its tensor cores have no float8.")


def test_words_have_the_numbers():
    assert figure.describe(figure.State(0)) == (
        "A100 40 GB, float16, N = 1024, d = 64; standard: all three: 30.1 FLOPs per byte, 15.0% of the peak: "
        "it waits for bytes. The ridge is at 201."
    )
    last = figure.describe(figure.State(step=6))
    assert "tiles of 1024 queries: 508 FLOPs per byte, 100.0% of the peak: it waits for arithmetic" in last
