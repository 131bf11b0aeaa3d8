"""The context length figure shows what io_complexity says, for every card and size."""

import numpy as np
import pytest

from figures import io_complexity as figure
from figures import style
from figures.canvas import Canvas
from flashlab.machine import costs
from flashlab.machine.hardware import CARDS, GiB
from flashlab.reference import io_complexity

CHOICES = {
    "N": figure.LENGTHS,
    "card": tuple(CARDS),
    "batch": (1, 4, 16, 64),
    "heads": (1, 8, 16, 32, 64),
    "d": (64, 128, 256),
    "dtype": tuple(figure.DTYPES),
    "training": (False, True),
}


@pytest.fixture(scope="module")
def canvas():
    return Canvas(style.figure(9.9, 5.0), figure.build, figure.update)


@pytest.mark.parametrize("name, fused", figure.WAYS.items())
def test_crosses_stand_where_memory_runs_out(name, fused, canvas):
    state = figure.State(card="H100 SXM", batch=4, d=128)
    canvas.png(state)
    N, nbytes = (values[0] for values in canvas.artists[f"{name} ends"][0].get_data())
    layer = {"heads": 64, "training": True, "fused": fused}
    assert nbytes == 80 * GiB and N == io_complexity.longest(80 * GiB, 128, **layer)
    N, seconds = (values[0] for values in canvas.artists[f"{name} ends"][1].get_data())
    flops = layer["heads"] * costs.flops(N, N, 128, training=layer["training"], rebuilt=layer["fused"])
    assert seconds == pytest.approx(flops / 989.4e12)


def test_memory_of_the_fused_way_is_linear_and_time_is_quadratic_on_axes_that_compare(canvas):
    curves = figure.trace(figure.State())
    assert np.allclose(np.diff(np.log2(curves["fused"].nbytes)), 1)
    assert np.allclose(np.diff(np.log2(curves["standard"].nbytes))[-5:], 2, atol=0.01)
    for curve in curves.values():
        assert np.allclose(np.diff(np.log2(curve.seconds)), 2)
    decades = [np.ptp(np.log10(ax.get_ylim())) for ax in canvas.figure.axes]
    assert decades[0] == pytest.approx(decades[1])


def test_solid_lines_hold_only_what_fits(canvas):
    canvas.png(figure.State())
    for name, curve in figure.trace(figure.State()).items():
        x, y = canvas.artists[f"{name} memory"].get_data()
        assert x.max() == curve.longest and y.max() <= 80 * GiB


def test_an_unknown_rate_is_said_and_not_guessed(canvas):
    state = figure.State(card="B200", dtype="float32")
    canvas.png(state)
    assert "no float32 rate is known" in canvas.artists["unknown"].get_text()
    assert np.isnan(canvas.artists["fused time"].get_ydata()).all()
    assert "no float32 rate is known" in figure.describe(state)


def test_describe_has_the_numbers():
    words = figure.describe(figure.State())
    for part in ("A100 80 GB", "1.1 TB, too much", "36,507 tokens", "2.16 GB", "5.2 million", "20.7 min"):
        assert part in words


@pytest.mark.parametrize(
    "seconds, said",
    [(1e-9, "0.001 µs"), (2e-5, "20 µs"), (0.25, "250 ms"), (59, "59 s"), (3600, "1 h"), (86400 * 3, "3 days")],
)
def test_durations_are_said_in_the_largest_unit(seconds, said):
    assert figure.duration(seconds) == said
