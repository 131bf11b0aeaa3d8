"""The stored measurements as a page: bars, each group with its device, versions, date and command."""

import html
from collections.abc import Callable, Iterable
from itertools import groupby
from statistics import geometric_mean
from typing import NamedTuple

from docs.front import raw
from docs.lessons import REPOSITORY
from flashlab.course import data

# How the names of other people's implementations begin.
THEIRS = ("autograd", "copy", "cudnn", "fa2", "fa3", "fa4", "flash", "flex", "nccl", "standard", "torch")
CALLED = {
    "autograd": "autograd alone",
    "before": "flashlab, as it was",
    "copy": "a copy of the bytes",
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "fastest": "flashlab, swept",
    "flash": "torch's flash",
    "flex": "FlexAttention",
}
IN_EIGHT_BITS = {
    "flashlab": "flashlab, bfloat16",
    "portable": "portable, bfloat16",
    "with quantise": "float8, codes made",
    "one level": "float8, one level",
    "fastest": "float8, swept",
    "fastest, one level": "float8, swept, one level",
}
FAST = "TFLOP/s; longer is better."
SHORTER = "Shorter is better."
SHORT = "Microseconds; shorter is better."


class Bar(NamedTuple):
    """A bar of a chart: what was measured, and the number."""

    name: str
    value: float

    @property
    def ours(self) -> bool:
        """Return whether the bar is about code of this course."""
        return self.name.startswith("flashlab") or not self.name.startswith(THEIRS)


class Charts(NamedTuple):
    """The charts of one file: a title, what the numbers are, and a function that yields (words, bars) of each chart."""

    title: str
    says: str
    of: Callable[[dict], Iterable[tuple[str, list[Bar]]]]


def by_shape(stored):
    """Yield a chart for each pass, width, mask and length."""
    for (which, d, causal, N), rows in _groups(
        stored["rows"], lambda row: (row["pass"], row["d"], row["causal"], row["N"])
    ):
        yield f"{which}, d = {d}, {_mask(causal)}, N = {N:,}", [Bar(row["impl"], row["tflops"]) for row in rows]


def by_model(stored):
    """Yield a chart for each call of a model: the microseconds of its kernels."""
    call = lambda row: (row["pass"], row["model"], row["B"], row["Nq"], row["Nk"])  # noqa: E731
    for (which, model, B, Nq, Nk), rows in _groups(stored["rows"], call):
        keys = "" if Nq == Nk else f" on {Nk:,}"
        yield f"{which}, {model}, {B} × {Nq:,}{keys}", [Bar(row["impl"], row["gpu_us"]) for row in rows]


def by_choice(stored):
    """Yield a chart for each shape with heads of another width, or with query heads that share keys."""
    for row in stored["rows"]:
        if row["set"] in ("widths", "groups"):
            heads = f"{row['B']} × {row['H']} heads on {row['Hk']}"
            words = f"{row['pass']}, d = {row['d']}, {_mask(row['causal'])}, {heads}, N = {row['N']:,}"
            yield words, [Bar(name, row[name]) for name in ("portable", "hopper", "cudnn", "flash") if name in row]


def by_mask(stored):
    """Yield a chart for each mask or score function, head dimension and pass."""
    for (which, kind, d), rows in _groups(stored["rows"], lambda row: (row["pass"], row["kind"], row["d"])):
        yield f"{which}, {kind}, d = {d}", [Bar(row["impl"], row["tflops"]) for row in rows]


def by_cache(stored):
    """Yield a chart for each shape of a cache."""
    size = lambda row: (row["part"], row["B"], row["N"], row["H"], row.get("Hk", 1))  # noqa: E731
    for (part, B, N, H, Hk), rows in _groups(stored["rows"], size):
        words = f"{part}: {B} {'text' if B == 1 else 'texts'} of {N:,} tokens, {H} query heads, {Hk} of keys"
        yield words, [Bar(row["impl"], row["us"]) for row in rows]


def by_codes(stored):
    """Yield a chart for each width, mask and length: kernels on 8 bits beside some in bfloat16."""
    timed = [row for row in stored["rows"] if row.get("tflops")]  # rows on making the codes have no products
    for (d, causal, N), rows in _groups(timed, lambda row: (row["d"], row["causal"], row["N"])):
        bars = [Bar(IN_EIGHT_BITS.get(row["impl"], row["impl"]), row["tflops"]) for row in rows]
        yield f"forward, d = {d}, {_mask(causal)}, N = {N:,}", bars


def by_ring(stored):
    """Yield a chart for each number of GPUs, length and direction."""
    alone = {(row["tokens"], row["direction"]): row["tflops"] for row in stored["rows"] if row["P"] == 1}
    several = [row for row in stored["rows"] if row["P"] > 1]
    for (P, tokens, which), rows in _groups(several, lambda row: (row["P"], row["tokens"], row["direction"])):
        bars = [Bar(row["variant"], row["tflops"]) for row in rows] + [Bar("one GPU", alone[tokens, which])]
        yield f"{P} GPUs, {tokens:,} tokens each, {'forward and backward' if which == 'both' else which}", bars


def by_trace(stored):
    """Yield a chart for each state of the lists: how long each kernel ran."""
    for (lists,), rows in _groups(stored["rows"], lambda row: (row["lists"],)):
        yield f"lists {lists}", [Bar(f"{row['kernel']}, from {row['start_ms']:.1f} ms", row["ms"]) for row in rows]


def by_launch(stored):
    """Yield one chart of launches, and one of clocks."""
    launch = "{Br} × {Bc}, warps {warps}, stages {stages}".format_map
    yield stored["sweep"], [Bar(launch(row), row["tflops"]) for row in stored["rows"]]
    first, *others = stored["clocks_us"].items()
    yield f"one short call, in microseconds; {first[0]}: {first[1] / 1e6:.1f} s", [Bar(*it) for it in others]


def by_pass(stored):
    """Yield a chart for each pass of a call."""
    launches = stored["launch_us"]
    for which in next(iter(launches.values())):
        yield which, [Bar(name, us[which]) for name, us in launches.items()]


def by_threshold(stored):
    """Yield a chart for each mask and length: the rate by how seldom the maximum is raised, a mean of two rounds."""
    for (causal, N), rows in _groups(stored["rows"], lambda row: (row["causal"], row["N"])):
        bars = [Bar(f"if it rises by over {row['raised_above']}", sum(row["tflops"]) / 2) for row in rows]
        bars += [Bar("cudnn", sum(rows[0]["cudnn_tflops"]) / 2)]
        yield f"forward, d = 128, {_mask(causal)}, N = {N:,}", bars


def by_kernel(stored):
    """Yield one chart of kernels, or of attempts at one."""
    note = {True: "", False: " (incomplete)"}
    yield "backward, d = 128", [Bar(row["kernel"] + note[row["complete"]], row["tflops"]) for row in stored["rows"]]


def by_trial(stored):
    """Yield a chart for each width: the mean rate of each trial, relative to the kernel as it was."""
    mean = lambda trial: geometric_mean(cell["after"] / cell["before"] for cell in trial["cells"])  # noqa: E731
    for (d,), trials in _groups(stored["trials"], lambda trial: (trial["d"],)):
        yield f"backward, d = {d}", [Bar(trial["kernel"], mean(trial)) for trial in trials]


def by_traffic(stored):
    """Yield the bytes loaded and stored, as predicted and as counted."""
    for words, predicted, counted in (("loaded", "load", "read"), ("stored", "store", "written")):
        yield (
            f"{words}, in MB",
            [
                Bar("standard, counted", stored["measured"]["standard"][counted] / 1e6),
                Bar("flashlab, counted", stored["measured"]["flashlab"][counted] / 1e6),
                Bar("flashlab, predicted", stored["predicted"]["formula"][predicted] / 1e6),
            ],
        )


def by_algorithm(stored):
    """Yield time, memory and bytes of two algorithms."""
    for field, words, unit in (("ms", "ms", 1), ("peak_bytes", "GB at the peak", 1e9), ("bytes", "GB moved", 1e9)):
        yield words, [Bar(name, stored[name][field] / unit) for name in ("standard", "flash")]


def by_tile(stored):
    """Yield one chart of the shared memory of each tile."""
    launch = "{Br} × {Bc}, d = {d}, stages {stages}".format_map
    yield "KiB per program", [Bar(launch(row), row["shared"] / 1024) for row in stored["launches"] if "shared" in row]


def by_instruction(stored):
    """Yield one chart of what a thread executes."""
    yield stored["of"], [Bar(*it) for it in stored["instructions"].items()]


def by_way(stored):
    """Yield a chart for each way to compute exponentials."""
    for way, counted in stored["ways"].items():
        yield f"{way}: {stored['of']}", [Bar(*it) for it in counted["sass"].items() if it[1]]


CHARTS = {
    "models": Charts("Models that people run", SHORT, by_model),
    "h200_hopper": Charts("The kernels for Hopper", FAST, by_shape),
    "h200_attention": Charts("The portable kernels", FAST, by_shape),
    "h200_wide": Charts("Wide heads", FAST, by_shape),
    "h200_choice": Charts("Other widths, and grouped heads", SHORT, by_choice),
    "h200_masks": Charts("Masks and score functions", FAST, by_mask),
    "h200_decoding": Charts("A step of decoding", SHORT, by_cache),
    "h200_float8": Charts("Eight bits, in Triton", FAST, by_codes),
    "h200_float8_hopper": Charts("Eight bits, in Gluon", FAST, by_codes),
    "h200_float8_hopper_causal": Charts("Eight bits, in Gluon: causal and shorter", FAST, by_codes),
    "h200_ring": Charts("One sequence on several GPUs", "TFLOP/s per GPU; longer is better.", by_ring),
    "h200_ring_before": Charts("The same with our first ring", "TFLOP/s per GPU; longer is better.", by_ring),
    "h200_ring_trace": Charts("The kernels of one rank in a pass", "Milliseconds that each ran.", by_trace),
    "h200_sweep": Charts("Launches and clocks", FAST, by_launch),
    "h200_calls": Charts("A call, in the host's time", SHORT, by_pass),
    "h200_rescaling": Charts("How seldom the maximum is raised", FAST, by_threshold),
    "h200_backward_limits": Charts("What limits the backward pass", FAST, by_kernel),
    "h200_backward_tried": Charts(
        "What was tried for the backward pass", "Relative to the kernel as it was; longer is better.", by_trial
    ),
    "h200_traffic": Charts("Bytes, predicted and counted", SHORTER, by_traffic),
    "h200_recomputation": Charts("Stored or recomputed", SHORTER, by_algorithm),
    "shared_memory": Charts("Shared memory of a tile", "What a small kernel took.", by_tile),
    "hopper_instructions": Charts("Instructions of a step", "Counted in the machine code.", by_instruction),
    "blackwell_instructions": Charts("Instructions of a tile", "Counted in the machine code.", by_way),
    "llama": Charts(
        "What a Llama writes", "The same tokens with transformers' attention and with ours.", lambda stored: ()
    ),
}


def page() -> str:
    """Return the page: the files that have charts, in this order, and the others by name."""
    parts = [_section(name, data.measured(name)) for name in sorted(data.names(".json"), key=_place)]
    notes = f"[notes on the data]({REPOSITORY}/blob/main/notebooks/data/README.md)"
    head = f"# Measurements\n\nOurs are red. The {notes} say how each file was measured."
    return "\n\n".join([head, *parts]) + "\n"


def _place(name):
    return [*CHARTS, name].index(name)


def _section(name, stored):
    """Return the charts of one file, below its device, date, versions and command."""
    charts = CHARTS.get(name, Charts(name, "", lambda stored: ()))
    about = stored.get("about", stored)
    versions = about.get("versions") or {it: about[it] for it in ("torch", "cuda") if it in about}
    packages = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    where = f"{about['device']}, {about['date']}. [{name}.json]({REPOSITORY}/blob/main/notebooks/data/{name}.json)"
    folded = raw('<details class="making"><summary>Versions and command</summary>')
    making = "\n\n".join([folded, packages, f"`{about['command']}`", raw("</details>")])
    least = charts.says in (SHORT, SHORTER)
    tables = "".join(_bars(*chart, least=least) for chart in charts.of(stored))
    cells = raw(f'<div class="cells">{tables}</div>') if tables else ""
    return f"## {charts.title}\n\n{charts.says} {where}\n\n{making}\n\n{cells}"


def _bars(words, bars, least=False):
    """Return a small table with a bar for each number, the longest first. least: the shortest first."""
    most = max(bar.value for bar in bars)
    lines = "".join(_line(bar, most) for bar in sorted(bars, key=lambda bar: bar.value, reverse=not least))
    return f"<table><caption>{html.escape(words)}</caption>{lines}</table>"


def _line(bar, most):
    return (
        f'<tr class="{"ours" if bar.ours else "theirs"}">'
        f'<th scope="row">{html.escape(CALLED.get(bar.name, bar.name))}</th>'
        f'<td class="bar"><span style="width: {100 * bar.value / most:.1f}%"></span></td>'
        f'<td class="number">{_number(bar.value)}</td></tr>'
    )


def _groups(rows, key):
    """Yield the rows with the same key together, forward first."""
    order = lambda row: tuple("" if it == "forward" else it for it in key(row))  # noqa: E731
    for _, together in groupby(sorted(rows, key=order), order):
        together = list(together)
        yield key(together[0]), together


def _number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _mask(causal):
    return "causal" if causal else "no mask"
