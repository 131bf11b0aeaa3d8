"""A Sphinx extension: formulas as MathML, which browsers set themselves, without a script or a request."""

import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert


def setup(app):
    """Register the renderer "mathml"."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(translator, node):
    """Write a formula in the line."""
    _write(translator, node, "inline")


def block(translator, node):
    """Write a formula on a line of its own."""
    _write(translator, node, "block")


def _write(translator, node, display):
    tex = re.sub(r"\\text(tt|bf|it|rm)\b", r"\\text", node.astext()).replace(r"\_", "_")  # in words _ is no subscript
    # A letter is italic; the name of a function, which has two letters or more, is not.
    translator.body.append(re.sub(r"<mi>(?=[a-z]{2})", '<mi mathvariant="normal">', convert(tex, display=display)))
    raise SkipNode
