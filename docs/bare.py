"""The frame of pages that Sphinx does not write: one per figure, which an iframe may show, and the 404 page."""

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

    title: the plain text of <title>; body and head: HTML; root: the address of the site's folder, with a slash at its
    end; alone: whether the page contains its style, script and icon, to be shown at any address.
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
        f"<style>\n{_typeface()}{''.join(map(static, STYLES))}</style>\n{icon}",
        f"<script>\n{static('bare.js')}</script>",
    )


def _typeface():
    """Return the @font-face rules of the upright typeface of text and headings, with the font files embedded."""
    rules = [rule for rule in static("fonts.css").splitlines() if "Literata" in rule and "italic" not in rule]
    return re.sub(r'url\("(.*?)"\)', lambda found: f'url("{_data(found[1])}")', "\n".join(rules)) + "\n"


def _data(name):
    return f"data:font/woff2;base64,{base64.b64encode((STATIC / name).read_bytes()).decode()}"


def static(name: str) -> str:
    """Return the text of a file in ``static``."""
    return (STATIC / name).read_text(encoding="utf-8")
