"""The pages that Sphinx does not write: of one figure each, which a frame may show, and of missing ones."""

import base64
import html
import re
from pathlib import Path
from urllib.parse import quote

TITLE = "How FlashAttention works"
STATIC = Path(__file__).parent / "static"
STYLES = "colours.css", "bare.css"


def page(title: str, body: str, root: str, head: str = "", *, alone: bool = False) -> str:
    """Return a page in the site's typefaces and colours, with the way home and a switch between light and dark.

    root: the address of the site's folder, with a slash at its end; body and head: HTML; title: words, in the head too;
    alone: does the page contain its style, script and icon, for any address at which it may be shown?
    """
    style, script = _contained() if alone else _linked(root)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
{style}{head}</head>
<body>
{script}
<header><a href="{root}index.html" target="_top">flashlab</a>
<a href="{root}figures.html" target="_top">all figures</a>
<button type="button" hidden>theme</button></header>
<main>
{body}</main>
</body>
</html>
"""


def _linked(root):
    """Return the HTML of the style, with the typefaces, and of the script."""
    styles = (f'<link rel="stylesheet" href="{root}_static/{name}">\n' for name in ("fonts.css", *STYLES))
    return "".join(styles), f'<script src="{root}_static/bare.js"></script>'


def _contained():
    """Return the HTML of the style, with the icon, and of the script."""
    icon = f'<link rel="icon" type="image/svg+xml" href="data:image/svg+xml,{quote(static("favicon.svg"))}">\n'
    return (
        f"<style>\n{_letters()}{''.join(map(static, STYLES))}</style>\n{icon}",
        f"<script>\n{static('bare.js')}</script>",
    )


def _letters():
    """Return the rules of the typeface of text and headings, with its files in them."""
    rules = [rule for rule in static("fonts.css").splitlines() if "Literata" in rule and "italic" not in rule]
    return re.sub(r'url\("(.*?)"\)', lambda found: f'url("{_data(found[1])}")', "\n".join(rules)) + "\n"


def _data(name):
    return f"data:font/woff2;base64,{base64.b64encode((STATIC / name).read_bytes()).decode()}"


def static(name: str) -> str:
    """Return the text of a file in ``static``."""
    return (STATIC / name).read_text(encoding="utf-8")
