"""Figures as HTML that needs no server: one script of our own, its numbers, and a still picture where no script runs.

``fragment`` is one figure, as a notebook's output or a page carries it. ``page`` is a whole file with all numbers that
its controls can ask for. The script is the modules of ``figures/js`` joined into one text; nothing is fetched. The
numbers of the first picture are plain, all others are packed: the page unpacks them when that picture is there.
"""

import base64
import html
import json
import re
import uuid
import zlib
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from figures.figure import Scrub, declared, key, numbers, states

HERE = Path(__file__).parent
SHARED = ("svg", "words", "marks", "state", "clock", "hands", "tip", "theme", "mount")  # each imports from those before
CHARTS = ("svg", "theme", "tip", "chart")  # for charts; here, too, each imports from those before
# The most sets of numbers that a page carries, and that a reader can wait for while a cell runs. A figure with more
# sets carries those that differ from the first in one control.
MOST, AWAITED = 1000, 64

PAGE = """:root { color-scheme: light dark; background: Canvas; color: CanvasText }
h1 { margin: 8px }
body { margin: 0 auto; max-width: 1180px; font-family: system-ui, sans-serif }"""

# The theme is that of JupyterLab, of the page, or else of the system, as for figures (``theme.js``). White becomes the
# paper of JupyterLab's dark theme; hues stay. On a narrow screen a chart is scrolled, so that its words stay legible.
# On wide screens no output area cuts off the tip of a mark.
INVERTED = "img.flashlab-chart { filter: invert(0.93) hue-rotate(180deg) }"
CHART = (
    f':is([data-jp-theme-light="false"], [data-theme="dark"]) {INVERTED} @media (prefers-color-scheme: dark) '
    f'{{ :root:not([data-theme="light"]) body:not([data-jp-theme-light], [data-theme="light"]) {INVERTED} }} '
    ".flashlab-chart { display: block } @media (max-width: 46em) { .flashlab-chart { min-width: 640px } } "
    "@media (min-width: 46em) { .jp-Cell:not(.jp-mod-outputsScrolled) :is(.jp-OutputArea, .jp-OutputArea-child, "
    ".jp-RenderedHTML):has(.flashlab-chart) { overflow: visible } }"
)


def drawn() -> list[str]:
    """Return the names of all figures that have a drawing."""
    return [path.stem for path in sorted((HERE / "js").glob("*.js")) if path.stem not in {*SHARED, *CHARTS}]


def name_of(figure: Any) -> str:
    """Return the name that a figure's module, drawing and still picture share."""
    return figure.__name__.rpartition(".")[2]


def title_of(figure: Any) -> str:
    """Return the title of a figure's page: its name in words."""
    words = name_of(figure).split("_")
    return " ".join([words[0].upper() if len(words[0]) == 2 else words[0].capitalize(), *words[1:]])


@cache
def script(name: str) -> str:
    """Return the modules that draw a figure as one text: each module becomes a function that is called once."""
    return "\n".join(_wrapped(module) for module in (*SHARED, name))


@cache
def chart_script() -> str:
    """Return the script that lets the marks of a page's charts say their values."""
    style = "".join((HERE / "js" / name).read_text(encoding="utf-8") for name in ("theme.css", "chart.css"))
    return "\n".join([*map(_wrapped, CHARTS), f"chart.start({_json(style)});\n"])


def _wrapped(module: str) -> str:
    text = (HERE / "js" / f"{module}.js").read_text(encoding="utf-8")
    names = re.findall(r"^export (?:const|(?:async )?function) (\w+)", text, re.M)
    text = re.sub(r'^import (\{.*\}) from "\./(\w+)\.js";$', r"const \1 = \2;", text, flags=re.M)
    text = re.sub(r"^export ", "", text, flags=re.M)
    return f"const {module} = (() => {{\n{text}return {{ {', '.join(names)} }};\n}})();"


def still(figure: Any, state: Any) -> bytes | None:
    """Return the stored picture of a figure's first state as PNG; None for other states and before it was taken."""
    path = HERE / "stills" / f"{name_of(figure)}.png"
    return path.read_bytes() if state == figure.State() and hasattr(figure, "__file__") and path.exists() else None


def picture(png: bytes, words: str, style: str = "max-width: 100%") -> str:
    """Return a picture as HTML with alt text, which JupyterLab does not give to pictures stored as image/png."""
    data = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{data}" style="{style}">'


def chart(png: bytes, words: str, drawing: dict | None = None) -> str:
    """Return a chart as HTML: dark on light, and light on dark where the theme is dark and styles are kept.

    drawing: the chart as data, from which ``chart_script`` draws one whose marks say their values.
    """
    data = f" data-chart='{html.escape(_json(drawing), quote=False).replace(chr(39), '&#39;')}'" if drawing else ""
    return f'{picture(png, words)[:-1]} class="flashlab-chart"{data}><style>{CHART}</style>'


def captioned(png: bytes | None, words: str) -> str:
    """Return a figure for readers without scripts: its picture, if there is one, and its words."""
    image = picture(png, words, "max-width: 100%; width: 960px") if png else ""
    return f'<figure style="margin: 0">{image}<figcaption>{html.escape(words)}</figcaption></figure>'


def fragment(figure: Any, state: Any, traces: dict, *, id: str | None = None, page: bool = False) -> str:
    """Return the HTML of one figure with these numbers by key: alive where scripts run, a picture and words elsewhere.

    id: of the element, by which a kernel finds it; page: no kernel will ever answer.
    """
    name, id, first = name_of(figure), id or f"flashlab-{uuid.uuid4().hex[:12]}", key(figure, state)
    data = {"name": name, "controls": declared(figure), "state": asdict(state), "page": page}
    data |= {"traces": {first: traces[first]}, "packed": packed({it: traces[it] for it in traces if it != first})}
    style = (HERE / "js" / "theme.css").read_text(encoding="utf-8")
    return (
        f'<div id="{id}" data-figure="{name}">{captioned(still(figure, state), figure.describe(state))}</div>\n'
        f'<script type="module">\n{script(name)}\n'
        f"const figure = [{_json(data)}, {name}.draw, {_json(style)}];\n"
        f'mount.start("{id}", ...figure);\n</script>\n'
    )


def packed(traces: dict) -> str:
    """Return numbers by key as short text, which ``state.js`` unpacks: a line for each, deflated, in base64."""
    lines = "\n".join(f"{key}\t{_json(numbers)}" for key, numbers in traces.items())
    return base64.b64encode(zlib.compress(lines.encode(), 9)).decode() if traces else ""


def shipped(figure: Any, most: int = MOST) -> dict:
    """Return numbers by key: of all states if there are at most ``most``, else of those one control from the first."""
    first = figure.State()
    selection = list(states(figure))
    if len(selection) > most:
        selection = [first]
        for field, control in figure.CONTROLS.items():
            if not isinstance(control, Scrub):
                selection += [replace(first, **{field: value}) for value in control.values]
    return {key(figure, state): numbers(figure, state) for state in selection}


def page(figure: Any) -> str:
    """Return a whole HTML file, which asks for no other, with one figure that moves without a kernel."""
    title, content = title_of(figure), fragment(figure, figure.State(), shipped(figure), page=True)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{PAGE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f"{content}</main>\n</body>\n</html>\n"
    )


def _json(data: Any) -> str:
    return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
