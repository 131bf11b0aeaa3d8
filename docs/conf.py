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

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode"]
extensions += ["docs.kernels", "docs.mathml"]
html_math_renderer = "mathml"
nb_execution_mode = "off"  # what a lesson prints is stored, and nbval checks it
nb_merge_streams = True
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 3
myst_heading_slug_func = "docs.lessons.anchor"  # links between notebooks were written for Jupyter
myst_dmath_double_inline = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_rtype = False

html_theme = "furo"
html_title = "flashlab"
html_static_path = ["static"]
html_css_files = ["fonts.css", "colours.css", "site.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("copy.js", "read.js")]
html_search_scorer = str(ROOT / "docs" / "search.js")
html_copy_source = False
html_show_sphinx = False
FACE = {
    "font-stack": "Literata, Georgia, serif",
    "font-stack--monospace": '"JetBrains Mono", ui-monospace, Menlo, Consolas, monospace',
    "code-font-size": "12.5px",  # the longest line of a lesson is as wide as the column
}
# The values of colours.css, for light and dark, by the theme's names. Links of the sidebar have the colour of text.
COLOURS = dict.fromkeys(("color-brand-primary", "color-brand-content", "color-brand-visited"), "var(--link)") | {
    "color-background-primary": "var(--ground)",
    "color-code-background": "var(--code)",
    "color-sidebar-link-text--top-level": "var(--color-foreground-primary)",
}
html_theme_options = {
    "source_repository": REPOSITORY,
    "top_of_page_buttons": [],
    "light_css_variables": FACE | COLOURS,
    "dark_css_variables": COLOURS,
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

PLAIN = re.compile(r"(``.*?``|\*\*?\w[^*`]*\w\*\*?)|([*|])")  # literals and emphasis, or a * or | of mathematics


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
    """Let docstrings, which are written for the editor, read well on a page."""
    app.connect("autodoc-process-docstring", _readable, priority=100)
    app.connect("autodoc-skip-member", _skip)


def _readable(app, what, name, obj, options, lines):
    """Escape * and | of mathematics, and make a list of the lines that begin with a parameter's name."""
    try:
        names = inspect.signature(obj).parameters
    except (TypeError, ValueError):  # a module, or nothing that is called
        names = {}
    listed, result = False, []
    for line in lines:
        line = PLAIN.sub(lambda found: found[1] or "\\" + found[2], line)
        about, _, words = line.partition(": ")
        if words and all(name in names for name in about.split(", ")):
            result += [f"- **{about}**: {words}"] if listed else ["", f"- **{about}**: {words}"]
            listed = True
        else:
            listed = listed and bool(line) and line != "Raises:"
            result.append(f"  {line.strip()}" if listed else line)
    lines[:] = result


def _skip(app, what, name, it, skipped, options):
    """Skip the docstrings that Python writes for the fields of a named tuple. Return None to let autodoc decide."""
    return True if (getattr(it, "__doc__", None) or "").startswith("Alias for field number") else None
