"""Charts: every number is drawn and stands in the words, and every name is inside the picture."""

import html
import json
import re

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb

from figures import charts, page, scene, style


@pytest.fixture
def drawn(monkeypatch):
    """Return a list that collects the matplotlib figures of the charts of a test."""
    figures, chart = [], charts.Chart
    monkeypatch.setattr(charts, "Chart", lambda figure, *more: figures.append(figure) or chart(figure, *more))
    return figures


PANELS = {"error": {"one way": 0.25, "another": [0.5, 0.125]}, "bytes": {"one way": 20, "another": [0.1, 3]}}


def test_dots_stand_at_their_numbers(drawn):
    charts.dots(PANELS, log=("bytes",), marks={"bytes": 1}, title="what a way costs")
    error, nbytes = drawn[0].axes
    for ax, panel in ((error, "error"), (nbytes, "bytes")):
        assert ax.get_title(loc="left") == panel
        rows = [line for line in ax.lines if line.get_marker() == "o"]
        assert [list(line.get_xdata()) for line in rows] == [[PANELS[panel]["one way"]], PANELS[panel]["another"]]
        assert [set(line.get_ydata()) for line in rows] == [{"one way"}, {"another"}]
    assert (error.get_xscale(), nbytes.get_xscale()) == ("linear", "log")
    assert error.get_xlim()[0] <= 0
    assert [list(line.get_xdata()) for line in nbytes.lines if line.get_linestyle() == "--"] == [[1, 1]]


def test_dots_say_their_numbers_in_words():
    words = repr(charts.dots(PANELS, title="costs"))
    assert words == ("costs: error, one way 0.25, another 0.12 to 0.5; bytes, one way 20, another 0.1 to 3")


def test_every_series_has_a_line_that_looks_different(drawn):
    series = {f"rung {n}": [n, 2 * n] for n in range(1, 6)}
    charts.lines([1, 2], series)
    (ax,) = drawn[0].axes
    assert [list(line.get_ydata()) for line in ax.lines] == list(series.values())
    assert len({line.get_color() for line in ax.lines}) == len(series)
    with pytest.raises(ValueError, match="at most 5 lines.*got 6"):
        charts.lines([1, 2], series | {"rung 6": [6, 12]})


def test_no_line_has_the_colour_of_a_tensor_and_lines_differ_in_grey():
    colors = [color for color, _ in charts.LOOKS]
    assert not {getattr(style, name) for name in "QKVSPO"} & set(colors)
    greys = sorted(to_rgb(color) @ np.array((0.299, 0.587, 0.114)) for color in colors)
    assert min(np.diff(greys)) >= 0.07
    assert all(contrast(color, style.PAPER) >= 3 for color in colors)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_has_the_colours_of_the_lines(theme):
    colors = page_colors(theme)
    names = [scene.colored(color)[6:-1] for color, _ in charts.LOOKS]  # of var(--fast)
    assert len({colors[name] for name in names}) == len(names)
    assert all(contrast(colors[name], colors["paper"]) >= 3 for name in names)


@pytest.mark.parametrize("log", [False, True])
def test_large_numbers_leave_room_for_the_name_of_their_axis(drawn, log):
    charts.lines([128, 1024], {"dense": [10**5, 5 * 10**6]}, ylabel="bytes", log=log)
    (ax,) = drawn[0].axes
    ticks = [tick.get_text() for tick in ax.get_yticklabels()]
    assert ax.yaxis.get_label().get_window_extent().x0 >= 0 and (not log or "1,000,000" in ticks)


def test_the_names_of_lines_are_legible_and_no_two_look_the_same(drawn):
    charts.lines([1, 2], {f"rung {n}": [n, 2 * n] for n in range(1, 6)})
    colors = [label.get_color() for label in drawn[0].axes[0].texts]
    assert len(set(colors)) == 5 and all(contrast(color, style.PAPER) >= 4.5 for color in colors)


@pytest.mark.parametrize("weight", np.linspace(0, 1, 21))
def test_the_number_on_a_weight_is_legible(drawn, weight):
    charts.weights([[weight]], ["river"], ["bank"])
    (number,) = drawn[0].axes[0].texts
    ground = colormaps[style.WEIGHTS](float(weight))
    inks = [contrast(ink, ground) for ink in (style.INK, style.PAPER)]
    assert contrast(number.get_color(), ground) >= max(3.8, 0.95 * max(inks))


def contrast(one, other):
    """Return the contrast of two colours as WCAG 2.2 defines it: 4.5 is the least for words."""
    channels = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    light = linear @ (0.2126, 0.7152, 0.0722) + 0.05
    return light.max() / light.min()


KINDS = {
    "bars": lambda: charts.bars({"ours": 812.3, "theirs": 31}, unit="TFLOP/s", colors=[style.Q, style.FAST], title="t"),
    "lines": lambda: charts.lines([1, 10, 1000], {f"rung {n}": [n, 2 * n, 3 * n] for n in range(1, 6)}, log=True),
    "weights": lambda: charts.weights([[0.25, 0.75]], ["river"], ["bank", "boat"]),
    "dots": lambda: charts.dots(PANELS, log=("bytes",), marks={"bytes": 1}, title="costs"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_carries_its_drawing_in_the_colours_of_the_theme(kind, monkeypatch):
    monkeypatch.setenv("FLASHLAB_FIGURES", "live")
    live = KINDS[kind]()._repr_mimebundle_()["text/html"]
    monkeypatch.setenv("FLASHLAB_FIGURES", "still")
    still = KINDS[kind]()._repr_mimebundle_()["text/html"]
    assert live == f'{still}<script type="module">\n{page.chart_script()}</script>'
    data, looks = re.fullmatch(
        "<img [^>]* class=\"flashlab-chart\" data-chart='([^'>]*)'><style>(.*)</style>", still
    ).groups()
    drawing = json.loads(html.unescape(data))
    assert looks == page.CHART and "#" not in data and "$" not in data
    assert drawing["nodes"] and len(drawing["marks"]) > 1


MARKS = {
    "bars": {("ours", "812.3 TFLOP/s"), ("theirs", "31 TFLOP/s")},
    "lines": {(str(x), *(f"rung {n} {at * n}" for n in range(1, 6))) for at, x in ((1, 1), (2, 10), (3, "1,000"))},
    "weights": {("river → bank", "0.25"), ("river → boat", "0.75")},
    "dots": {
        ("one way: error", "0.25"),
        ("another: error", "0.12 to 0.5"),
        ("one way: bytes", "20"),
        ("another: bytes", "0.1 to 3"),
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_marks_of_a_chart_say_every_value_and_do_not_overlap(kind):
    drawing = drawing_of(KINDS[kind]())
    assert {(mark["title"], *mark["lines"]) for mark in drawing["marks"]} == MARKS[kind]
    boxes = [mark["box"] for mark in drawing["marks"]]
    for at, (x, y, width, height) in enumerate(boxes):
        assert 0 <= x < x + width <= drawing["width"] and 0 <= y < y + height <= drawing["height"]
        for left, top, across, high in boxes[:at]:
            assert (
                min(x + width, left + across) - max(x, left) <= 0.2 or min(y + height, top + high) - max(y, top) <= 0.2
            )


def test_a_mark_is_where_its_value_is():
    drawing = drawing_of(charts.lines([1, 2, 4], {"a": [1, 2, 3]}))
    (dots,) = [
        attributes["d"] for tag, attributes in (node[:2] for node in drawing["nodes"]) if "a" in attributes.get("d", "")
    ]
    left = [float(x) + 2 for x in re.findall(r"M([\d.]+) ", dots)]
    for at, mark in zip(left, drawing["marks"], strict=True):
        x, _, width, _ = mark["box"]
        assert x < at < x + width


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("weight", np.linspace(0, 1, 21))
def test_the_number_on_a_weight_is_legible_on_the_page(theme, weight):
    drawing = drawing_of(charts.weights([[weight]], ["river"], ["bank"]))
    (ink,) = [node[1]["fill"] for node in drawing["nodes"] if node[-1] == f"{weight:.2f}"]
    colors = page_colors(theme)
    share = drawing["marks"][0]["share"] / 100
    ground = share * np.array(to_rgb(colors["most"])) + (1 - share) * np.array(to_rgb(colors["paper"]))
    assert contrast(colors[re.search("--([a-z]+)", ink)[1]], ground) >= 3.6


def drawing_of(chart):
    """Return the drawing of a chart that the page gets."""
    return json.loads(html.unescape(re.search("data-chart='([^']*)'", chart._repr_mimebundle_()["text/html"])[1]))


def page_colors(theme):
    """Return the colours of the page in a theme, by name."""
    text = "".join((page.HERE / "js" / name).read_text(encoding="utf-8") for name in ("theme.css", "chart.css"))
    colors = {}
    for selector, rules in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        if theme == "dark" or "dark" not in selector:
            colors |= re.findall(r"--(\w+): (#\w{6})", rules)
    return colors


def test_the_longest_name_of_a_bar_is_inside_the_picture(drawn):
    charts.bars({"ours": 1, "one kernel in plain Triton, which spills 168 B": 2}, unit="TFLOP/s")
    figure = drawn[0]
    labels = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in labels)
