"""How much each memory of a GPU holds, and how fast it hands it over.

Kills two beliefs: that HBM is the fast memory (it is the slow one of the card; its "high bandwidth" is high beside
other DRAM), and that a program has all of the "20 MB" of fast memory: turn to one SM's share.
"""

from dataclasses import dataclass

from figures import style
from figures.figure import Choose, Toggle, explorer
from flashlab.machine import hardware

CAPACITY, RATE = (1e4, 2e14), (3e7, 1e17)  # bytes, bytes a second: wide enough for every card and for the words
MARKS = {1e6: "1 MB", 1e9: "1 GB", 1e12: "1 TB"}
GAP = 1.8  # from a bar's end to its words, a factor on logarithmic axes
DRAM = 3  # its place among the levels

SIZE = (8.6, 3.7)  # inches


@dataclass(frozen=True)
class State:
    """``card`` by its name in ``hardware.CARDS``; ``one_sm`` for what one streaming multiprocessor has."""

    card: str = "A100 40 GB"
    one_sm: bool = False


def trace(state):
    """The levels of the card, fastest first: what the bars are as long as."""
    return hardware.levels(hardware.CARDS[state.card], one_sm=state.one_sm)


def build(fig):
    """Two sets of bars, back to back: capacity to the left, bandwidth to the right, names and latencies between."""
    left = _axes(fig, 0.02, CAPACITY, "")
    right = _axes(fig, 0.62, RATE, "/s")
    left.invert_xaxis()
    for x, ha, words in ((0.38, "right", "how much it holds"), (0.62, "left", "how fast it hands it over")):
        fig.text(x, 0.945, words, ha=ha, fontsize=11, fontweight="bold", color=style.INK)
    levels = trace(State())
    rows = range(len(levels))
    colors = [style.FAST, style.FAST, (style.FAST, 0.6), style.SLOW, style.SLOW]
    names = [_middle(left, row - 0.13, level.name, 10.5, "bold") for row, level in enumerate(levels)]
    return {
        "capacity": list(left.barh(rows, 1, height=0.52, color=colors)),
        "rate": list(right.barh(rows, 1, height=0.52, color=colors)),
        "holds": [left.text(1, row, "", ha="right", va="center", fontsize=9.5, color=style.INK) for row in rows],
        "hands": [right.text(1, row, "", ha="left", va="center", fontsize=9.5, color=style.INK) for row in rows],
        "dram": names[DRAM],
        "latency": [_middle(left, row + 0.19, "", 9, "normal") for row in rows],
    }


def update(artists, state):
    """Every bar and every word."""
    levels = trace(state)
    for row, level in enumerate(levels):
        holds, hands = _holds(level, levels[DRAM]), _hands(level, levels[DRAM])
        _stretch(artists["capacity"][row], artists["holds"][row], level.nbytes, CAPACITY[0], holds)
        _stretch(artists["rate"][row], artists["hands"][row], level.rate, RATE[0], hands)
        artists["latency"][row].set_text(_latency(level, state))
    artists["dram"].set_text(levels[DRAM].name)


def describe(state):
    """Every level with its numbers, and what a program can have of the fast one."""
    levels = trace(state)
    parts = []
    for level in levels:
        words = (_holds(level, levels[DRAM]), _hands(level, levels[DRAM]), _latency(level, state))
        parts.append(f"{level.name}: " + ", ".join(" = ".join(word.split("\n")) for word in words if word))
    per_sm = hardware.CARDS[state.card].per_sm
    whose = "one SM's share" if state.one_sm else "all SMs together"
    block = f"One block of threads can have {_size(per_sm.block_bytes)} of shared memory."
    return f"{state.card}, {whose}. " + "; ".join(parts) + f". {block}"


CONTROLS = {
    "card": Choose(tuple(hardware.CARDS)),
    "one_sm": Toggle("one SM's share"),
}

explore = explorer(__name__)


def _axes(fig, x, limits, per):
    ax = style.quiet(fig.add_axes((x, 0.02, 0.36, 0.84)))
    ax.set(xscale="log", xlim=limits, ylim=(4.6, -0.45))
    for value, words in MARKS.items():
        if limits[0] < value < limits[1]:
            ax.vlines(value, -0.46, -0.38, color=style.STANDARD, lw=0.8)
            ax.text(value, -0.48, words + per, ha="center", va="bottom", fontsize=8, color=style.STANDARD)
    return ax


def _middle(ax, y, words, size, weight):
    """Words between the two sets of bars, at a height of the left one's axes."""
    return ax.text(0.48 / 0.36, y, words, transform=ax.get_yaxis_transform(), ha="center", va="center", fontsize=size,
                   fontweight=weight, color=style.INK)  # fmt: skip


def _stretch(bar, words, value, start, text):
    """Let a bar on a logarithmic axis reach to its value, and put the words at its end."""
    end = start if value is None else value
    bar.set_x(start)
    bar.set_width(end - start)
    words.set_x(GAP * end)
    words.set_text(text)


def _holds(level, dram):
    if level.name == "CPU memory":
        return "differs by machine" if level.nbytes is None else f"over {style.amount(level.nbytes)}"
    if level.nbytes >= dram.nbytes:
        return _size(level.nbytes)
    return f"{_size(level.nbytes)}\n1/{dram.nbytes / level.nbytes:,.0f} of {dram.name}"


def _hands(level, dram):
    if level.rate is None:
        return "differs by machine" if level.name == "CPU memory" else "no published figure"
    rate = f"{level.rate / 1e12:.4g} TB/s" if level.rate >= 1e12 else f"{level.rate / 1e9:.3g} GB/s"
    return rate if level.rate <= dram.rate else f"{rate}\n{level.rate / dram.rate:.3g} × {dram.name}"


def _latency(level, state):
    if level.cycles is None:
        return ""
    return f"{level.cycles} cycles, {hardware.nanoseconds(hardware.CARDS[state.card], level.cycles):.0f} ns"


def _size(nbytes):
    """A size in binary units, which is what NVIDIA means by KB, MB and GB of memory."""
    if nbytes >= 2**30:
        return f"{nbytes / 2**30:.4g} GiB"
    return f"{nbytes / 2**20:.3g} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.0f} KiB"
