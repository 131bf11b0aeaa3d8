"""The page of measurements has every stored file, with device, date and command, and bars in scale with its numbers."""

import re

import pytest

from docs import measurements
from docs.measurements import Bar
from flashlab.course import data


def test_every_stored_measurement_is_there_with_device_date_and_command():
    parts = measurements.page().split("\n## ")[1:]
    assert len(parts) == len(data.names(".json"))
    for name in data.names(".json"):
        (part,) = [part for part in parts if f"[{name}.json](" in part]
        about = data.measured(name).get("about", data.measured(name))
        assert all(about[what] in part for what in ("device", "date", "command"))
        assert name not in measurements.CHARTS or name == "llama" or "<table>" in part


@pytest.mark.parametrize(
    "name", ["flashlab", "flashlab, counted", "fastest", "portable", "hopper", "zigzag", "page 64"]
)
def test_a_bar_of_ours_is_recognised_by_its_name(name):
    assert Bar(name, 1).ours
    assert not any(Bar(other, 1).ours for other in ("flash", "fa4", "flex", "cudnn", "torch flash", "copy"))


def test_bars_are_to_scale_and_in_order():
    shapes = dict(measurements.by_shape(data.measured("h200_hopper")))
    words, bars = next(iter(shapes.items()))
    assert words == "forward, d = 64, no mask, N = 1,024" and len(shapes) == 24
    html = measurements._bars(words, bars)
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", html)]
    numbers = sorted((bar.value for bar in bars), reverse=True)
    assert widths == pytest.approx([100 * number / numbers[0] for number in numbers], abs=0.06)
    assert [int(number) for number in re.findall(r'"number">(\d+)<', html)] == [round(number) for number in numbers]


def test_the_best_comes_first_where_shorter_is_better_too():
    section = measurements._section("h200_decoding", data.measured("h200_decoding"))
    for chart in re.findall(r"<table>.*?</table>", section):
        numbers = [float(number.replace(",", "")) for number in re.findall(r'"number">([\d.,]+)<', chart)]
        assert len(numbers) > 1 and numbers == sorted(numbers)


def test_a_file_without_charts_has_a_section_too(monkeypatch):
    monkeypatch.delitem(measurements.CHARTS, "h200_ring")
    assert "## h200_ring\n" in measurements.page()
