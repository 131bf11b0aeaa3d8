"""The pages that Sphinx does not write: of one figure each, which a frame may show, and of missing ones."""

import html

TITLE = "How FlashAttention works"


def page(title: str, body: str, root: str, head: str = "") -> str:
    """Return a page in the site's typefaces and colours, with the way home and a switch between light and dark.

    root: the address of the site's folder, with a slash at its end; body and head: HTML; title: words, in the head too.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{root}_static/fonts.css">
<link rel="stylesheet" href="{root}_static/bare.css">
{head}</head>
<body>
<script src="{root}_static/bare.js"></script>
<header><a href="{root}index.html" target="_top">flashlab</a>
<a href="{root}figures.html" target="_top">all figures</a>
<button type="button" hidden>theme</button></header>
<main>
{body}</main>
</body>
</html>
"""
