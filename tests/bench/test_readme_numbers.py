"""Every speed that README.md and docs/flash_attention.md state is computed from the measurement that they link to."""

import re
import statistics
from pathlib import Path

import pytest

models = pytest.importorskip("flashlab.bench.models", reason="the kernels need triton, which is for Linux")

from flashlab.course import data  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "flash_attention.md").read_text(encoding="utf-8")
KINDS = "forward", "backward", "decode"
CELLS = models.cells(data.measured("models")["rows"])


def ratios(direction, us):
    """Return our rate relative to the best rival, and our head dimension, of each call that a rival computes."""
    pairs = ((models.ratio(cell, us), cell) for key, cell in CELLS.items() if key[1] == direction)
    return [(ratio, cell["flashlab"]["d"]) for ratio, cell in pairs if ratio is not None]


def summary(some):
    """Return the geometric mean of ratios, the least, the greatest, and their count, as a text."""
    return f"{statistics.geometric_mean(some):.2f} ({min(some):.2f} to {max(some):.2f}), {len(some)}"


def table():
    """Yield the lines of README.md's table: a head dimension, its two passes, and decoding."""
    widths = sorted({cell["flashlab"]["d"] for cell in CELLS.values()})
    for d in widths:
        kinds = [[ratio for ratio, width in ratios(which, models.kernels_us) if width == d] for which in KINDS]
        if not any(kinds):
            continue
        numbers = (summary(some) if some else "–" for some in kinds)
        yield f"| d = {d} | {' | '.join(numbers)} |"


def test_the_table_states_the_rates_of_our_kernels():
    assert [line for line in table() if line not in README.splitlines()] == []


def test_readme_and_page_state_how_many_calls_take_longer_and_the_page_by_how_much():
    paragraph = next(it for it in PAGE.split("\n\n") if "models.json" in it)
    of_calls = [[ratio for ratio, _ in ratios(which, models.call_us)] for which in KINDS]
    numbers = [(sum(r < 1 for r in some), len(some), f"{1 / min(some):.1f}") for some in of_calls]
    assert re.search(r".*?".join(r".*?".join(map(str, some)) for some in numbers), " ".join(paragraph.split()))
    paragraph = next(it for it in README.split("\n\n") if "that of Python" in it)
    assert re.search(".*?".join(f"{slower} of {calls}" for slower, calls, _ in numbers), " ".join(paragraph.split()))


def test_the_page_names_the_calls_that_are_furthest_behind():
    paragraph = " ".join(next(it for it in PAGE.split("\n\n") if "Furthest behind" in it).split())
    for direction, least in (("forward", 0.95), ("backward", 0.92)):
        ratio = {key: models.ratio(cell, models.kernels_us) for key, cell in CELLS.items() if key[1] == direction}
        behind = sorted((r, key) for key, r in ratio.items() if r is not None and r < least)
        named = [f"{model} {B} × {Nq:,} ({r:.2f})" for r, (model, _, B, Nq, _) in behind]
        places = [paragraph.find(it) for it in named]
        assert -1 not in places and places == sorted(places), named


def test_the_page_states_the_speed_relative_to_flashattention_4():
    paragraph = next(it for it in PAGE.split("\n\n") if "FlashAttention-4 alone" in it)
    ratios = {way: [models.ratio(cell, models.kernels_us, "fa4") for key, cell in CELLS.items() if key[1] == way]
              for way in ("forward", "backward")}  # fmt: skip
    numbers = [summary([it for it in some if it is not None]) for some in ratios.values()]
    expected = ".*?".join(".*?".join(re.findall(r"[\d.]+", line)) for line in numbers)
    assert re.search(expected, " ".join(paragraph.split()))


def test_the_page_states_what_both_passes_take_in_one_thread_and_in_a_graph():
    paragraph = next(it for it in PAGE.split("\n\n") if "set_multithreading_enabled" in it)
    us = data.measured("h200_calls")["launch_us"]["flashlab"]
    numbers = rf"{us['one thread']:.0f} µs in place of {us['both']:.0f}\..*? {us['graph']:.0f} µs"
    assert re.search(numbers, " ".join(paragraph.split()))


def test_the_measurement_names_the_versions_of_all_rivals():
    assert {"torch", "triton", "cuda", "cudnn"} <= data.measured("models")["versions"].keys()
    assert data.measured("models")["rivals"].keys() >= {
        row["impl"] for cell in CELLS.values() for row in cell.values()
    } - {"flashlab"}
