"""Plain charts for a cell: bars, lines and a map of weights, each with its words beside it."""

import numpy as np

from figures import style
from figures.canvas import Canvas


class Chart:
    """A still picture. In words it is what the caption says."""

    def __init__(self, figure, caption):
        self._png = Canvas(figure, lambda _: {}, lambda *_: None).png(None)
        self._caption = caption

    def __repr__(self):
        return self._caption

    def _repr_mimebundle_(self, **_):
        return {"image/png": self._png, "text/plain": self._caption}


def bars(values: dict, *, unit="", title="", colors=None, width=7.0):
    """Horizontal bars with their values written on them. ``values``: number by name."""
    figure = style.figure(width, 0.6 + 0.36 * len(values))
    ax = style.quiet(figure.add_axes((0.3, 0.02, 0.55, 0.82 if title else 0.94)))
    drawn = ax.barh(list(values), list(values.values()), color=colors or style.FLASH, height=0.62)
    ax.bar_label(drawn, [f" {style.number(value)} {unit}" for value in values.values()], fontsize=10, color=style.INK)
    ax.tick_params(left=False, labelleft=True, labelsize=10)
    ax.invert_yaxis()
    ax.set_title(title, loc="left", fontsize=11, color=style.INK)
    return Chart(figure, _words(title, (f"{name} {style.number(value)} {unit}" for name, value in values.items())))


def lines(x, series: dict, *, xlabel="", ylabel="", title="", log=False, colors=None, width=7.0):
    """Lines over x, each named at its end. ``series``: values by name."""
    figure = style.figure(width, 3.2)
    ax = style.quiet(figure.add_axes((0.11, 0.16, 0.66, 0.72)), x=True, y=True)
    for at, (name, y) in enumerate(series.items()):
        line = ax.plot(x, y, marker="o", markersize=3.5, color=colors[at] if colors else None, ls=("-", "--", ":", "-.")[at % 4])
        ax.annotate(f" {name}", (x[-1], y[-1]), color=line[0].get_color(), fontsize=10, va="center", annotation_clip=False)
    if log:
        ax.set(xscale="log", yscale="log")
    ax.set_xlabel(xlabel, color=style.INK)
    ax.set_ylabel(ylabel, color=style.INK)
    ax.set_title(title, loc="left", fontsize=11, color=style.INK)
    ends = (f"{name} from {style.number(y[0])} to {style.number(y[-1])}" for name, y in series.items())
    return Chart(figure, _words(title, ends))


def weights(P, rows, columns, *, title="", width=7.0):
    """A map of attention weights P [rows, columns], darker for more, each row's largest written on it."""
    P = np.asarray(P)
    figure = style.figure(width, 0.9 + 0.3 * len(rows))
    ax = style.quiet(figure.add_axes((0.12, 0.02, 0.86, 0.98 - 0.75 / (0.9 + 0.3 * len(rows)))))
    ax.imshow(P, cmap="Purples", vmin=0, vmax=1, aspect="auto")
    for i, j in enumerate(P.argmax(1)):
        ax.text(j, i, f"{P[i, j]:.2f}", ha="center", va="center", fontsize=8, color=style.PAPER if P[i, j] > 0.5 else style.INK)
    ax.set_xticks(range(len(columns)), columns, rotation=60, ha="left", fontsize=9)
    ax.set_yticks(range(len(rows)), rows, fontsize=9)
    ax.tick_params(top=False, labeltop=True, left=False, labelleft=True)
    largest = (f"{row} looks most at {columns[j]} ({P[i, j]:.2f})" for i, (row, j) in enumerate(zip(rows, P.argmax(1), strict=True)))
    return Chart(figure, _words(title, largest))


def _words(title, parts):
    return f"{title}: {'; '.join(parts)}" if title else "; ".join(parts)
