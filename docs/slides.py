"""Write the figures of the course as slides, in one HTML file: `python -m docs.slides FILE`.

A slide has a figure's picture, its sentence, and its words as alternative text. Arrow keys turn pages; a print has a
slide per page.
"""

import argparse
import html
from pathlib import Path

from docs import drawn
from docs.sharing import ADDRESS, NAME
from figures import page
from flashlab.course.lessons import number

STYLE = """:root { color-scheme: light dark; background: Canvas; color: CanvasText; scroll-snap-type: y mandatory;
  font: 20px/1.4 system-ui, sans-serif }
body { margin: 0 }
section { box-sizing: border-box; height: 100vh; padding: 3vh 4vw; display: flex; flex-direction: column; gap: 1.5vh;
  scroll-snap-align: start; break-after: page; break-inside: avoid }
section:last-of-type { break-after: auto }
h2, p { margin: 0 }
h2 { font-size: 1.6em }
img { flex: 1; min-height: 0; box-sizing: border-box; padding: 1vh 1vw; object-fit: contain; background: white;
  border-radius: 4px }
small a { color: LinkText }
@page { size: 297mm 167mm; margin: 0 }"""
SCRIPT = """const slides = [...document.querySelectorAll("section")];
const turns = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 };
addEventListener("keydown", (event) => {
  const turn = turns[event.key];
  if (!turn) return;
  event.preventDefault();
  const now = slides.findIndex((slide) => slide.getBoundingClientRect().bottom > innerHeight / 2);
  slides[now + turn]?.scrollIntoView();
});"""


def slides() -> str:
    """Return the HTML of all slides, in the order of the course."""
    body = "\n".join(map(_slide, drawn.names()))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Figures of {NAME}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def _slide(name):
    figure, lesson, address = drawn.figure(name), drawn.lesson_of(name), f"{ADDRESS}figures/{name}.html"
    picture = page.picture(page.still(figure, figure.State()), figure.describe(figure.State()), style="")
    return f"""<section>
<h2>{drawn.title(name)}</h2>
{picture}
<p>{html.escape(drawn.sentence(name))}</p>
<small>Lesson {number(lesson):02}, {lesson.title} · it moves at <a href="{address}">{address}</a></small>
</section>"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.slides", description="Write the figures as slides.")
    parser.add_argument("file", type=Path, help="such as slides.html")
    parser.parse_args().file.write_text(slides(), encoding="utf-8")
