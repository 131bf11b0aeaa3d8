"""The measured numbers that lessons and CHANGELOG.md state in words are those of the stored measurements."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, geometric_mean

from flashlab.course import data, which_version_when

ROOT = Path(__file__).resolve().parents[2]


def words(notebook, cell):
    """Return the text of a cell, in one line."""
    cells = json.loads((ROOT / "notebooks" / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
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


def decoding(field="us", **row):
    """Return a number of a step of decoding, by our kernels unless the row says otherwise."""
    return the("h200_decoding", field, **{"impl": "flashlab"} | row)


def float8(impl="fastest", d=128):
    """Return the TFLOP/s of a forward pass, timed beside the float8 kernel in Gluon."""
    return the("h200_float8_hopper", "tflops", impl=impl, d=d, causal=False, N=16384)


def cudnn_trains(name):
    """Return the milliseconds of cuDNN forward and backward, causal, N = 16,384, d = 128."""
    shape = {"impl": "cudnn", "causal": True, "d": 128, "N": 16384}
    return sum(the(name, "ms", **shape, **{"pass": which}) for which in ("forward", "backward"))


def times_fa4(which):
    """Return how many times as fast as FlashAttention-4 our Hopper kernels are, for each shape: d, causal, N."""
    shapes = {}
    for row in data.measured("h200_hopper")["rows"]:
        if row["pass"] == which:
            shapes.setdefault((row["d"], row["causal"], row["N"]), {})[row["impl"]] = row["tflops"]
    return {at: shape["hopper"] / shape["fa4"] for at, shape in shapes.items()}


def gained(kernel, d):
    """Return by how many percent a change of the backward kernel gained, least and most."""
    trials = data.measured("h200_backward_tried")["trials"]
    (cells,) = [trial["cells"] for trial in trials if (trial["kernel"], trial["d"]) == (kernel, d)]
    quotients = [100 * cell["after"] / cell["before"] - 100 for cell in cells]
    return min(quotients), max(quotients)


def leads():
    """Return by how much the fastest is ahead of the next in a step of training, for each shape of h200_hopper."""
    cells = {cell[0].call: cell for cell in which_version_when.cells() if cell[0].file == "h200_hopper"}
    return [cell[1].us / cell[0].us for call, cell in cells.items() if call.direction == "both"]


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
    forth, back = times_fa4("forward"), times_fa4("backward")
    low, level, *_ = sorted(forth, key=forth.get)
    assert (low, level) == ((64, False, 16384), (64, True, 16384)) and forth[level] >= 1
    told = f"level under a causal mask, {100 - 100 * forth[low]:.0f} % behind without one"
    yield "17_schedules", "result-answer", told
    yield "17_schedules", "recap", f"ours is {geometric_mean(forth.values()):.2f} times as fast as FlashAttention-4"
    yield "17_schedules", "recap", f"Backward it is {geometric_mean(back.values()):.2f} times"
    assert min(times for (d, *_), times in back.items() if d == 64) > 1
    most, *_, least = sorted(100 - 100 * times for (d, *_), times in back.items() if d == 128)[::-1]
    yield "17_schedules", "backward-limit-text", f"At d = 128 it is {least:.0f} to {most:.0f} % behind"
    anchor = gained("the persistent one, an anchor, 4 stages", 64)
    yield "17_schedules", "backward-untried", "with four stages, that is {:.0f} to {:.0f} % faster".format(*anchor)
    trials = data.measured("h200_portable_tried")["trials"]
    (roles,) = [it["cells"] for it in trials if it["what"] == "with the specialized forward, unused barriers given up"]
    faster = 100 * geometric_mean(cell["after"] / cell["before"] for cell in roles) - 100
    yield "17_schedules", "aims-text", f"the portable forward pass at d = 128 was {faster:.0f} % faster"
    calls = {row["pass"]: row for row in data.measured("h200_calls")["rows"]}
    words = "A backward call took ours {flashlab} µs, cuDNN's {cudnn} and autograd alone {autograd}"
    yield "17_schedules", "aims-text", words.format(**calls["backward"])
    words = "in the calling thread {flashlab}, {cudnn} and {autograd}"
    yield "17_schedules", "aims-text", words.format(**calls["backward in the calling thread"])
    first, last = decoding(part="plain", B=1, N=8192), decoding("clean_us", part="plain", B=16, H=16)
    yield "20_decoding", "measured-answer", f"planned, {first:.1f} measured"
    yield "20_decoding", "measured-answer", f"the last step takes {last:.1f} µs"
    whole = decoding(part="plain", B=16, H=64)
    more = (100 * decoding(part="pages", impl=f"page {page}") / whole - 100 for page in (64, 16))
    yield "21_the_cache", "measured-answer", "Pages cost {:.0f} and {:.0f} %".format(*more)
    for share in (100 * decoding(impl=kind) / whole for kind in ("e4m3", "int8")):
        yield "21_the_cache", "measured-answer", f"8 bits take {share:.0f} % of the time"
    shared = decoding(impl="unshared") / decoding(impl="shared")
    yield "21_the_cache", "measured-answer", f"The shared prefix is {shared:.0f} times as fast"
    gluon, triton = (decoding("tflops", part="latent", H=128, impl=impl) for impl in ("flashlab", "fastest"))
    yield "21_the_cache", "measured-answer", f"reaches {gluon:.0f} TFLOP/s, the one in Triton {triton:.0f}"
    old = [row for row in data.measured("h200_ring_trace")["rows"] if row["lists"] == "whole"]
    copy = max((row for row in old if row["kernel"].startswith("nccl")), key=lambda row: row["ms"])
    *others, held = sorted(row["ms"] for row in old if row["kernel"] == "attention_forward")
    yield "22_many_gpus", "measured-answer", f"One held {copy['programs']} SMs for {copy['ms']:.0f} ms"
    yield "22_many_gpus", "measured-answer", f"took {held:.0f} ms, others about {fmean(others):.0f}"
    tera = [float8(impl, d) / 1000 for d, impl in ((128, "fastest"), (256, "fastest"), (256, "fastest, one level"))]
    times = float8() / float8("flashlab")
    told = "reaches {:.2f} at d = 128, {:.2f} times its bfloat16, and {:.2f} at d = 256 ({:.2f} with one level)"
    yield "23_eight_bits", "speed-answer", told.format(tera[0], times, *tera[1:])
    apart = 100 * cudnn_trains("h200_attention") / cudnn_trains("h200_hopper") - 100
    yield "25_which_version_when", "training-answer", f"cuDNN was in both runs, {abs(apart):.0f} % apart"
    *rest, most = sorted(leads())
    yield "25_which_version_when", "training-answer", f"{100 * most - 100:.0f} % apart at d = 64"
    yield "25_which_version_when", "training-answer", f"elsewhere {100 * rest[-1] - 100:.0f} % at most"
    row = {"kind": "documents", "d": 64, "pass": "backward"}
    behind = 100 * the("h200_masks", "ms", impl="flex", **row) / the("h200_masks", "ms", impl="hopper", **row) - 100
    yield "25_which_version_when", "forward-answer", f"documents at d = 64: {behind:.0f} % behind"


def test_lessons_state_what_was_measured():
    assert [claim for claim in claims() if claim[2] not in words(*claim[:2])] == []


def test_the_changes_state_what_was_measured():
    told = f"{float8():.0f} TFLOP/s on an H200 at d = 128, {float8(d=256):.0f} at d = 256"
    assert told in " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
