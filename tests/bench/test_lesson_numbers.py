"""The measured numbers that prose in lessons and CHANGELOG.md states are those of the stored measurements."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, geometric_mean

from flashlab.bench import models
from flashlab.course import data

ROOT = Path(__file__).resolve().parents[2]


def words(notebook, cell):
    """Return the text of a cell, in one line."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ["".join(it["source"]) for it in cells if it["id"] == cell]
    return " ".join(source.split())


def states(text, numbers):
    """Return whether a text has these numbers in this order, none as a part of a longer number or of a name."""
    each = (rf"(?<![\w.,-]){re.escape(number)}(?![.,]?\d|\w)" for number in numbers)
    return re.search(".*?".join(each), text) is not None


def the(name, field, **row):
    """Return a field of the one row of a measurement that has these values."""
    (match,) = [it for it in data.measured(name)["rows"] if row.items() <= it.items()]
    return match[field]


def hopper(impl, N, causal=False):
    """Return the TFLOP/s of a forward pass, d = 128."""
    return the("h200_hopper", "tflops", impl=impl, N=N, causal=causal, d=128, **{"pass": "forward"})


def rung(impl, N, causal=False):
    """Return the TFLOP/s of a rung, or of another kernel in the same measurement, d = 128."""
    return the("h200_rungs", "tflops", impl=impl, N=N, causal=causal, d=128)


def backward(impl):
    """Return the TFLOP/s of a backward pass, d = 128, N = 4,096, without a mask."""
    return the("h200_attention", "tflops", impl=impl, N=4096, causal=False, d=128, **{"pass": "backward"})


def decoding(field="us", **row):
    """Return a number of a step of decoding; ``impl`` is our kernels by default."""
    return the("h200_decoding", field, **{"impl": "flashlab"} | row)


def float8(impl="fastest", d=128):
    """Return the TFLOP/s of a forward pass in the measurement of the float8 kernel in Gluon."""
    return the("h200_float8_hopper", "tflops", impl=impl, d=d, causal=False, N=16384)


def times_fa4(which):
    """Return {(d, causal, N): our speed / that of FlashAttention-4} for a pass of the Hopper kernels."""
    shapes = {}
    for row in data.measured("h200_hopper")["rows"]:
        if row["pass"] == which:
            shapes.setdefault((row["d"], row["causal"], row["N"]), {})[row["impl"]] = row["tflops"]
    return {at: shape["hopper"] / shape["fa4"] for at, shape in shapes.items()}


def times_fa3(d, least):
    """Return our speed / FlashAttention-3's, for backward calls of models with this d and at least ``least`` keys."""
    cells = models.cells(data.measured("models")["rows"])
    long = (it for (_, which, _, _, Nk), it in cells.items() if which == "backward" and Nk >= least)
    return [models.ratio(it, models.kernels_us, "fa3") for it in long if it["flashlab"]["d"] == d and "fa3" in it]


def measured() -> Iterator[tuple]:
    """Yield a notebook, a cell, the digits after the point, and the measured numbers in the order of the cell.

    The cells also state which implementation is faster: that is asserted here.
    """
    cudnn, portable, flex, flash = map(backward, ("cudnn", "portable", "flex", "flash"))
    assert cudnn > portable > flex > flash
    yield "12_triton_backward", "speed-answer", 0, portable, cudnn, flex, flash
    sweep = data.measured("h200_sweep")
    speeds = [row["tflops"] for row in sweep["rows"]]
    yield "14_measure_and_debug", "opening", 1, max(speeds) / min(speeds)
    yield "14_measure_and_debug", "still-wrong", 0, max(speeds)
    yield "14_measure_and_debug", "clocks-read", 0, sweep["clocks_us"]["host clock, nobody waits for the GPU"]
    yield "16_gluon", "opening", 0, rung("rung 1", 4096), rung("rung 3", 4096), rung("cudnn", 4096)
    two, three, few = (rung(impl, 16384, True) for impl in ("rung 2", "rung 3", "rung 3, few heads at a time"))
    yield "17_schedules", "opening", 0, three, few
    yield "17_schedules", "all-rungs-answer", 0, three, two
    forth, back = times_fa4("forward"), times_fa4("backward")
    slowest, second, *_ = sorted(forth, key=forth.get)
    assert (slowest, second) == ((64, False, 16384), (64, True, 16384)) and forth[second] >= 1
    yield "17_schedules", "result-answer", 0, 100 - 100 * forth[slowest]
    yield "17_schedules", "recap", 2, geometric_mean(forth.values()), geometric_mean(back.values())
    assert min(times for (d, *_), times in back.items() if d == 64) > 1
    yield "17_schedules", "models-answer", 0, 100 - 100 * min(times_fa3(128, 16384)), 100 - 100 * forth[slowest]
    first, last = decoding(part="plain", B=1, N=8192), decoding("clean_us", part="plain", B=16, H=16)
    yield "20_decoding", "measured-answer", 1, first, last
    plain = decoding(part="plain", B=16, H=64)
    more = (100 * decoding(part="pages", impl=f"page {page}") / plain - 100 for page in (64, 16))
    times = decoding(impl="unshared") / decoding(impl="shared")
    (share,) = {round(100 * decoding(impl=kind) / plain) for kind in ("e4m3", "int8")}
    latent = (decoding("tflops", part="latent", H=128, impl=impl) for impl in ("flashlab", "fastest"))
    yield "21_the_cache", "measured-answer", 0, *more, times, share, *latent
    old = [row for row in data.measured("h200_ring_trace")["rows"] if row["lists"] == "whole"]
    copy = max((row for row in old if row["kernel"].startswith("nccl")), key=lambda row: row["ms"])
    *others, longest = sorted(row["ms"] for row in old if row["kernel"] == "attention_forward")
    yield "22_many_gpus", "measured-answer", 0, copy["programs"], copy["ms"], longest, fmean(others)
    ways = ({"way": "zigzag", "P": 2}, {"way": "one GPU"})
    versions = ("h200_ring", "h200_ring_before")
    steps = [the(name, "ms", tokens=32768, direction="forward", **way) for way in ways for name in versions]
    yield "22_many_gpus", "measured-answer", 1, *steps
    speeds = (float8() / 1000, float8(d=256) / 1000, float8("fastest, one level", 256) / 1000)
    times, with_codes = (float8(impl) / float8("flashlab") for impl in ("fastest", "with quantise"))
    yield "23_eight_bits", "speed-answer", 2, speeds[0], times, *speeds[1:], with_codes
    long = (128, True, 16384)
    yield "25_which_version_when", "training-text", 0, 100 * forth[long] - 100, 100 / back[long] - 100
    row = {"kind": "documents", "d": 64, "pass": "backward"}
    behind = 100 * the("h200_masks", "ms", impl="flex", **row) / the("h200_masks", "ms", impl="hopper", **row) - 100
    yield "25_which_version_when", "forward-answer", 0, row["d"], behind


def claims() -> Iterator[tuple[str, str, list[str]]]:
    """Yield a notebook, a cell, and the numbers that it must state, as they are written."""
    for notebook, cell, digits, *numbers in measured():
        yield notebook, cell, [f"{number:.{digits}f}" for number in numbers]


def test_lessons_state_what_was_measured():
    assert [claim for claim in claims() if not states(words(*claim[:2]), claim[2])] == []


def test_the_changes_state_what_was_measured():
    changes = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert states(changes, [f"{float8():.0f}", f"{float8(d=256):.0f}"])
