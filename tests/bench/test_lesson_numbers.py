"""The measured numbers that lessons state in words are those of the stored measurements."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

from flashlab.course import data

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def words(notebook, cell):
    """Return the text of a cell, in one line."""
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ["".join(it["source"]) for it in cells if it["id"] == cell]
    return " ".join(source.split())


def the(name, field, **row):
    """Return a field of the one row of a measurement that has these values."""
    (found,) = [it for it in data.measured(name)["rows"] if row.items() <= it.items()]
    return found[field]


def hopper(impl, N, causal=False):
    """Return the TFLOP/s of a forward pass, d = 128."""
    return the("h200_hopper", "tflops", impl=impl, N=N, causal=causal, d=128, **{"pass": "forward"})


def backward(impl):
    """Return the TFLOP/s of a backward pass, d = 128, N = 4,096, without a mask."""
    return the("h200_attention", "tflops", impl=impl, N=4096, causal=False, d=128, **{"pass": "backward"})


def times_fa4(which):
    """Return how many times as fast as FlashAttention-4 our Hopper kernels are, as a mean of all shapes."""
    shapes = {}
    for row in data.measured("h200_hopper")["rows"]:
        if row["pass"] == which:
            shapes.setdefault((row["d"], row["causal"], row["N"]), {})[row["impl"]] = row["tflops"]
    return geometric_mean(shape["hopper"] / shape["fa4"] for shape in shapes.values())


def claims() -> Iterator[tuple[str, str, str]]:
    """Yield a notebook, a cell, and what it must say."""
    yield (
        "12_triton_backward",
        "speed-answer",
        (
            f"{backward('portable'):.0f} TFLOP/s, behind cuDNN ({backward('cudnn'):.0f}), "
            f"ahead of FlexAttention ({backward('flex'):.0f}) and of torch's FlashAttention-2 ({backward('flash'):.0f})"
        ),
    )
    sweep = data.measured("h200_sweep")
    speeds = [row["tflops"] for row in sweep["rows"]]
    launch = sweep["clocks_us"]["host clock, nobody waits for the GPU"]
    yield "14_measure_and_debug", "opening", f"{max(speeds) / min(speeds):.1f} times as fast as the worst"
    yield "14_measure_and_debug", "still-wrong", f"the best tiles reach {max(speeds):.0f} TFLOP/s"
    yield "14_measure_and_debug", "clocks-read", f"{launch:.0f} µs are the price of a *launch*"
    yield "16_gluon", "opening", f"from {hopper('rung 1', 4096):.0f} TFLOP/s to {hopper('rung 4', 4096):.0f}"
    four, five = (f"{hopper(impl, 16384, True):.0f}" for impl in ("rung 4", "hopper"))
    yield "17_schedules", "opening", f"{four} TFLOP/s → {five}"
    three, two = (f"{hopper(impl, 16384, True):.0f}" for impl in ("rung 3", "rung 2"))
    yield "17_schedules", "all-rungs-answer", f"{three} TFLOP/s against {two}"
    yield "17_schedules", "recap", f"ours is {times_fa4('forward'):.2f} times as fast as FlashAttention-4"
    yield "17_schedules", "recap", f"Backward it was {times_fa4('backward'):.2f} times"


def test_lessons_state_what_was_measured():
    assert [claim for claim in claims() if claim[2] not in words(*claim[:2])] == []
