"""Settings of Sphinx for `make site`."""

import importlib
import inspect
import re
from importlib.metadata import version as installed
from pathlib import Path

from docs.lessons import REPOSITORY

ROOT = Path(__file__).resolve().parents[1]

project = "flashlab"
author = "the flashlab authors"
copyright = "the flashlab authors, MIT licence"
version = release = installed("flashlab-course")
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode", "docs.mathml"]
html_math_renderer = "mathml"
nb_execution_mode = "off"  # what a lesson printed is stored, and nbval holds it
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_heading_slug_func = "docs.lessons.anchor"  # links between notebooks were written for Jupyter
myst_dmath_double_inline = True

suppress_warnings = ["docutils"]  # docstrings are written to be read as they are: only pages are held to a form
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_rtype = False

html_theme = "furo"
html_title = "flashlab"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "source_repository": REPOSITORY,
    "top_of_page_buttons": [],
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

PLAIN = re.compile(r"(``.*?``|\*\*?\w[^*`]*\w\*\*?)|([*|])")  # literals and emphasis; else products and amounts


def linkcode_resolve(domain, info):
    """Return the address of the lines that define an object, None where inspect finds none."""
    module = importlib.import_module(info["module"])
    found = module
    for name in info["fullname"].split("."):
        found = getattr(found, name, None)
    try:
        lines, first = inspect.getsourcelines(found)
        path = Path(inspect.getsourcefile(inspect.unwrap(found))).relative_to(ROOT)
    except (TypeError, OSError, ValueError):  # no function or class, none with a source, or none of ours
        return None
    return f"{REPOSITORY}/blob/main/{path}#L{first}-L{first + len(lines) - 1}"


def setup(app):
    """Let * and | in a docstring be what they are in mathematics."""
    app.connect("autodoc-process-docstring", _mathematics, priority=100)


def _mathematics(app, what, name, obj, options, lines):
    lines[:] = [PLAIN.sub(lambda found: found[1] or "\\" + found[2], line) for line in lines]
