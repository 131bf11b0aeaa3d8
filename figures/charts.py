"""Plain charts for a cell: bars, lines, dots and a map of weights, each with its words beside it."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from PIL import Image

from figures import page, scene, style

LOOKS = (  # of the lines of a chart: a colour, which is no tensor's, and dashes for readers who do not see colours
    (style.FAST, "-"),
    (style.PINK, "--"),
    (style.INK, ":"),
    (style.STANDARD, "-."),
    (style.BROWN, (0, (6, 2, 1, 2, 1, 2))),
)


class Mark(NamedTuple):
    """A place of a chart that says its value: x and y, each (from, to), in the axes' units."""

    ax: Any
    x: tuple
    y: tuple
    title: str
    lines: list
    share: float | None = None  # share of the darkest colour, in %, if the place itself is coloured

    def placed(self, height: float) -> dict:
        """Return the place as data for the page, in pixels from the upper left corner of the picture."""
        left, right = sorted(self.ax.transData.transform((x, self.y[0]))[0] for x in self.x)
        top, bottom = sorted(height - self.ax.transData.transform((self.x[0], y))[1] for y in self.y)
        box = [round(float(it), 1) for it in (left, top, right - left, bottom - top)]
        shown = {"box": box, "title": self.title, "lines": self.lines}
        return shown if self.share is None else shown | {"share": self.share}


class Chart:
    """A picture whose marks say their values where scripts run. Its caption is also its text form."""

    def __init__(self, figure: Figure, caption: str, marks: Sequence[Mark] = ()) -> None:
        self._png, canvas = _painted(figure)
        self._drawing = _drawing(canvas, marks) if marks else None
        self._caption = caption

    def __repr__(self) -> str:
        return self._caption

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        shown = page.chart(self._png, self._caption, self._drawing)
        if self._drawing and os.environ.get("FLASHLAB_FIGURES") != "still":
            shown += f'<script type="module">\n{page.chart_script()}</script>'
        return {"text/plain": self._caption, "text/html": shown}


def _painted(figure: Figure) -> tuple[bytes, FigureCanvasAgg]:
    """Return the picture as PNG, and the canvas that it was painted on."""
    canvas = FigureCanvasAgg(figure)
    with style.quick_text():
        canvas.draw()
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(buffer, "png", compress_level=6)
    return buffer.getvalue(), canvas


def _drawing(canvas: FigureCanvasAgg, marks: Sequence[Mark]) -> dict[str, Any]:
    """Return the picture as data: what the page draws, and the marks below it."""
    recorder = scene.Recorder(canvas.get_renderer())
    canvas.figure.draw(recorder)
    width, height = canvas.get_width_height()
    return {
        "width": width,
        "height": height,
        "nodes": recorder.nodes,
        "marks": [mark.placed(height) for mark in marks],
    }


def bars(values: dict, *, unit: str = "", title: str = "", colors: Any = style.FLASH, width: float = 7.0) -> Chart:
    """Draw horizontal bars with their values written on them. ``values``: number by name."""
    labels = [f"{style.number(value)} {unit}".strip() for value in values.values()]
    left = max(2.1, 0.3 + 0.075 * max(map(len, values)))  # inches: room for the longest name
    ax = _axes(width, 0.34 * len(values), left=left, right=0.3 + 0.1 * max(map(len, labels)), title=title)
    container = ax.barh(list(values), list(values.values()), color=colors, height=0.62)
    ax.bar_label(container, [f" {words}" for words in labels], fontsize=10, color=style.INK)
    ax.tick_params(left=False, labelleft=True, labelsize=10)
    ax.invert_yaxis()
    inside = [(2, 0), (width * style.DPI - 2, 0)]  # pixels: a mark covers the whole row, with its name and number
    across = ax.transData.inverted().transform(inside)[:, 0]
    marks = [
        Mark(ax, across, (row - 0.5, row + 0.5), name, [words])
        for row, (name, words) in enumerate(zip(values, labels, strict=True))
    ]
    return Chart(ax.figure, _words(title, map(" ".join, zip(values, labels, strict=True))), marks)


class _Plain(LogFormatter):
    """Write 0.1 and 1,000,000 where LogFormatter writes 1e-01 and 1e+06, or powers of ten."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return super().__call__(x, pos) and (f"{x:,.0f}" if x >= 1 else f"{x:g}")


def lines(
    x: Sequence[float],
    series: dict,
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    log: Any = False,
    decimals: int | None = None,
    width: float = 7.0,
) -> Chart:
    """Draw at most five lines over x, each named at its end. series: values by name; decimals: in the caption."""
    if len(series) > len(LOOKS):
        raise ValueError(f"expected at most {len(LOOKS)} lines, which look different, got {len(series)}")
    left = max(0.8, 0.3 + 0.08 * len(f"{max(map(max, series.values())):,.0f}"))  # inches: room for the largest number
    ax = style.quiet(_axes(width, 2.4, left=left, right=1.7, bottom=0.55, title=title), x=True, y=True)
    ends = {}
    for (name, y), (color, dashes) in zip(series.items(), LOOKS, strict=False):
        ax.plot(x, y, linestyle=dashes, marker="o", markersize=3.5, color=color)
        ends[name] = ax.text(x[-1], y[-1], f"  {name}", color=style.written(color), fontsize=10, va="center")
    ax.set(xscale="log" if log else "linear", yscale="log" if log else "linear")
    if log and len(x) <= 6:
        ax.set_xticks(x, [f"{value:,g}" for value in x])
        ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    elif log:
        ax.xaxis.set(major_formatter=_Plain(), minor_formatter=_Plain())
    if log:
        ax.yaxis.set(major_formatter=_Plain(), minor_formatter=_Plain())
        ax.tick_params(axis="y", which="minor", labelsize=9)
    ax.set_xlabel(xlabel, color=style.INK)
    ax.set_ylabel(ylabel, color=style.INK)
    _keep_apart(ax, ends.values())
    say = style.number if decimals is None else lambda value: f"{value:.{decimals}f}"
    sentences = (f"{name} from {say(y[0])} to {say(y[-1])}" for name, y in series.items())
    return Chart(ax.figure, _words(title, sentences), list(_columns(ax, x, series, xlabel, say)))


def _columns(ax: Any, x: Sequence[float], series: dict, xlabel: str, say: Callable[[float], str]) -> Iterator[Mark]:
    """Yield a mark for each x, which says all values there: as high as the axes, and halfway to the neighbours wide."""
    place = ax.transData
    pixels = place.transform([(value, ax.get_ylim()[0]) for value in x])  # [len(x), 2]
    middles = (pixels[1:] + pixels[:-1]) / 2
    sides = place.inverted().transform([2 * pixels[0] - middles[0], *middles, 2 * pixels[-1] - middles[-1]])[:, 0]
    for at, value in enumerate(x):
        values = [f"{name} {say(y[at])}" for name, y in series.items()]
        yield Mark(ax, (sides[at], sides[at + 1]), ax.get_ylim(), f"{xlabel} {value:,.6g}".strip(), values)


def weights(P: np.ndarray, rows: Sequence, columns: Sequence, *, title: str = "", width: float = 7.0) -> Chart:
    """Draw a map of attention weights P [rows, columns], darker for more, each row's largest written on it."""
    P = np.asarray(P)
    ax = _axes(width, 0.3 * len(rows), left=0.9, right=0.3, top=0.75, title=title)
    ax.imshow(P, cmap=style.WEIGHTS, vmin=0, vmax=1, aspect="auto")
    for i, j in enumerate(P.argmax(1)):
        ink = style.PAPER if P[i, j] > 0.62 else style.INK  # whichever has more contrast
        ax.text(j, i, f"{P[i, j]:.2f}", ha="center", va="center", fontsize=8, color=ink)
    ax.set_xticks(range(len(columns)), columns, rotation=60, ha="left", rotation_mode="anchor", fontsize=9)
    ax.set_yticks(range(len(rows)), rows, fontsize=9)
    ax.tick_params(top=False, labeltop=True, left=False, labelleft=True)
    peaks = (f"{row} looks most at {columns[j]} ({p[j]:.2f})" for row, p, j in zip(rows, P, P.argmax(1), strict=True))
    marks = [
        Mark(ax, (j - 0.5, j + 0.5), (i - 0.5, i + 0.5), f"{row} → {column}", [f"{P[i, j]:.2f}"], _share(P[i, j]))
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]
    return Chart(ax.figure, _words(title, peaks), marks)


def _share(weight: float) -> int:
    """Return the share of the darkest colour in %, on which letters are as legible as on the picture's colours."""
    return round(100 * float(weight) ** 0.8)


def dots(panels: dict, *, title: str = "", marks: Any = None, log: Any = (), width: float = 8.0) -> Chart:
    """Draw a row for each name, a panel for each quantity, a dot for each value. The caption has values in two digits.

    ``panels``: by the panel's name, the numbers by the row's name, one or several each; ``marks``: by the panel's name,
    where a dashed line stands; ``log``: names of the panels with a logarithmic axis.
    """
    names = list(next(iter(panels.values())))
    whole = _axes(width, 0.3 * len(names), left=1.9, right=0.2, top=0.3, bottom=0.35, title=title)
    figure, inside = whole.figure, whole.get_position()
    whole.remove()
    step = inside.width / len(panels)
    sentences, answers = [], []
    for at, (panel, values) in enumerate(panels.items()):
        ax = figure.add_axes((inside.x0 + at * step, inside.y0, 0.88 * step, inside.height))
        style.quiet(ax, x=True, y=False).set_title(panel, loc="left", fontsize=10, color=style.INK)
        rows = {name: np.ravel(values[name]) for name in names}
        for row, dot in rows.items():
            few = len(dot) == 1
            ax.plot(dot, [row] * len(dot), "o", color=style.FLASH, ms=7 if few else 5, alpha=1 if few else 0.5, mew=0)
        ax.set(xscale="log" if panel in log else "linear", ylim=(len(names) - 0.5, -0.5))
        if panel in log:
            ax.xaxis.set_major_formatter("{x:g}")
            ax.minorticks_off()
        else:
            ax.set_xlim(left=min(0, ax.get_xlim()[0]))
        if marks and panel in marks:
            ax.axvline(marks[panel], color=style.STANDARD, ls="--", lw=1, zorder=0)
        ax.hlines(names, *ax.get_xlim(), color=style.PALE, lw=0.8, zorder=0)
        ax.set_xlim(ax.get_xlim())
        ax.tick_params(left=False, labelleft=at == 0, labelsize=9)
        answers += [
            Mark(ax, ax.get_xlim(), (i - 0.5, i + 0.5), f"{name}: {panel}", [_span(dot)])
            for i, (name, dot) in enumerate(rows.items())
        ]
        sentences.append(f"{panel}, " + ", ".join(f"{row} {_span(dot)}" for row, dot in rows.items()))
    return Chart(figure, _words(title, sentences), answers)


def _axes(
    width: float, height: float, *, left: float, right: float, top: float = 0.05, bottom: float = 0.05, title: str = ""
) -> Any:
    """Return axes of this height in inches, with these margins around them and the title above them."""
    above = top + (0.35 if title else 0)
    whole = height + above + bottom
    figure = style.figure(width, whole)
    figure.text(0.1 / width, 1 - 0.1 / whole, title, va="top", fontsize=11, **style.FONT)
    return style.quiet(figure.add_axes((left / width, bottom / whole, 1 - (left + right) / width, height / whole)))


def _keep_apart(ax: Any, labels: Iterable) -> None:
    """Shift the labels at the ends of lines upwards until none covers another."""
    ax.autoscale_view()
    height, last = 13 / 72 * style.DPI, -np.inf  # pixels
    place = ax.transData
    for label in sorted(labels, key=lambda label: label.get_position()[1]):
        x, y = place.transform(label.get_position())
        last = max(y, last + height)
        label.set_position(place.inverted().transform((x, last)))


def _span(values: np.ndarray) -> str:
    """Return the least and the largest of some numbers, in two digits."""
    ends = dict.fromkeys(f"{end:.2g}" for end in (values.min(), values.max()))
    return " to ".join(ends)


def _words(title: str, parts: Iterable[str]) -> str:
    return f"{title}: {'; '.join(parts)}" if title else "; ".join(parts)
