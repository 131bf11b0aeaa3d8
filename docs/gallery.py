"""Two pages: a list of all figures, and how to embed a figure elsewhere."""

import html

from docs import drawn, panels
from docs.front import image, raw
from docs.lessons import SITE

EXAMPLE = "online_softmax"
EMBEDDED = f"""<p>When is the past rescaled?
<button data-source="rising">rising scores</button>
<button data-source="falling">falling scores</button></p>
<div id="example">PICTURE</div>

<script type="module">
  import {{ render }}
    from "SITE/figures/{drawn.MODULES}/{EXAMPLE}.js";

  const place = document.querySelector("#example");
  const figure = render(place, {{ state: {{ step: 5, source: "rising" }} }});
  for (const button of document.querySelectorAll("[data-source]")) {{
    button.addEventListener("click", () => figure.set({{ source: button.dataset.source }}));
  }}
</script>"""
FRAME = f'<iframe title="Tiling" width="100%" height="760"\n  src="{SITE}/figures/tiling.html#tiling?step=30"></iframe>'


def page() -> str:
    """Return the page of all figures, each with a panel of it, its sentence and a link to its own page."""
    cards = "\n".join(map(_card, drawn.names()))
    return f"""# Figures

{len(drawn.names())} figures, each computed from code of the course. Each has a page of its own, with all its controls.
*link* in a figure copies the address of what you see. [In a page of your own](embed.md) a figure takes two lines of
code.

{raw(f'<div class="cards details">{cards}</div>')}
"""


def _card(name):
    return (
        f'<a href="figures/{name}.html"><span>{image(*panels.of_figure(name))}</span>'
        f"<b>{drawn.title(name)}</b><br>{html.escape(drawn.sentence(name))}</a>"
    )


def embed() -> str:
    """Return the page about figures in other people's pages. Its example runs the code that it shows."""
    picture = f'<img alt="{drawn.title(EXAMPLE)}" src="figures/{EXAMPLE}.png">'
    code = EMBEDDED.replace("SITE", SITE).replace("PICTURE", "")
    names = "\n".join(f"- `{name}`: {drawn.sentence(name)}" for name in drawn.names())
    return f"""# A figure in your page

Every [figure](figures.md) of the course can stand in a page of yours: a post, slides in HTML, notes of a lecture. The
licence is MIT: keep the name of the course with the figure.

## As a module

A figure is an ES module that draws into an element. It needs no other package, and its style stays inside of it.

```html
{code}
```

That is this figure. Try its controls and the two buttons above it:

{raw(EMBEDDED.replace("SITE", ".").replace("PICTURE", picture))}

A browser loads modules from a server only. If this page was opened as a file, or scripts are off, you see a picture,
and the two buttons do nothing. A frame works in a file, too.

- `render(element, {{ state, brief }})` draws the figure into the element and returns an object. `state` sets the
  initial values of some fields; all others begin as on the figure's own page. `brief: true` draws a figure without its
  details.
- The object has `state`, the fields at present, and `set(fields)`, which changes some of them.
- The module also has `controls`, the fields and their values, and `version`, the version of the course.
- The theme is that of your page, if `data-theme` of `html` or `body` is `light` or `dark`, and else that of the system.

The address contains `{drawn.MODULES}`, the version of this interface. A change that breaks a page of yours gets another
address. To stay independent of this site, copy the module `{drawn.MODULES}/NAME.js` and the script `NAME.js`, which it
imports from the folder above.

## As a frame

A page of a figure fits into a frame, with the state that its link names:

```html
{FRAME}
```

## Names

{names}
"""
