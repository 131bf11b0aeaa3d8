"""The front page: a sentence, the race, four ways through the course, for whom it is, and the map."""

import html
import io
import json
import re
from dataclasses import replace
from itertools import groupby

from PIL import Image

from docs import drawn, panels
from docs.lessons import CODESPACE, REPOSITORY, ROOT, needed
from figures import page as figure_page
from figures import style, tiling
from figures.figure import steps
from flashlab.course.lessons import CORE, LESSONS, WAYS, Lesson, builds_on, duration, notebook, number
from flashlab.reference.published import RUNS

FILM = ROOT / ".github" / "tiling.gif"
STILL = re.compile("<figure.*</figure>", re.DOTALL)
PAPER = "https://arxiv.org/abs/2205.14135"


def page() -> str:
    """Return the front page in Markdown, without its tables of contents."""
    return f"""# How FlashAttention works

{raw(_opening())}

{_about()}

## The map

{_map()}
"""


def page_of(lesson: Lesson) -> str:
    """Return the file name of a lesson's page."""
    return notebook(lesson).replace(".ipynb", ".html")


def _opening():
    """Return the first screen: the sentence, the way in, and the race with its result."""
    first, state, before, after = LESSONS[0], tiling.State(), RUNS["standard"], RUNS["fused"]
    trace = tiling.trace(state)
    moved = [style.amount(run["moved"]).replace(" ", "&nbsp;") for run in trace["runs"]]
    ways = "\n".join(map(_way, WAYS))
    return f"""<p class="lead">Build FlashAttention yourself, in {len(LESSONS)} lessons from one softmax to GPU kernels.
It cut an attention layer of GPT-2 <a href="{PAPER}">from {before.nbytes / 1e9:.1f} to {after.nbytes / 1e9:.1f} GB of
traffic, and from {before.milliseconds} to {after.milliseconds} ms</a>.</p>
<div class="begin">
<a class="start" href="lessons/{page_of(first)}">Start <small>{duration(first.minutes)}</small></a>
{ways}
</div>
<section class="race" aria-label="The race" data-clock="{html.escape(json.dumps(trace["clock"]))}">
<p><button type="button" hidden>pause</button>
<span>Three ways to one result, with the same bytes per second.</span>
<output>{state.N} × {state.N} scores crossed {_crossings(trace["runs"][0])} times: <b>{moved[0]}</b>. In FlashAttention
never: <b>{moved[1]}</b> or <b>{moved[2]}</b>.</output></p>
<p class="key"><b>Crossed 4×</b>: to slow memory and back, twice. <b>Keys outside</b>: keys in the outer loop.</p>
{STILL.sub(lambda _: _end(), drawn.alive("tiling", "figures", brief=True))}
<p class="key">{_why_less(state)} The gigabytes above are those of both passes of a layer of GPT-2 medium on an A100, as
the paper has them in figure 2.</p></section>
<script defer src="_static/race.js"></script>"""


def _crossings(run):
    """Return how often the scores of a run went to slow memory or came from there."""
    return len({(line["name"], line["kind"]) for line in run["lines"] if line["name"] in ("S", "P")})


def _why_less(state):
    """Return why the race saves less than the paper: its tiles are small, and larger tiles save more."""
    saved = [_saved(replace(state, Br=rows, Bc=rows)) for rows in (state.Br, 2 * state.Br)]
    return (
        f"Larger tiles save more: FlashAttention-2 moves {saved[0]:.1f}× less than standard attention with tiles of "
        f"{state.Br} × {state.Br}, as here, and {saved[1]:.1f}× less with {2 * state.Br} × {2 * state.Br}."
    )


def _saved(state):
    standard, *_, last = tiling.trace(state)["runs"]
    return standard["moved"] / last["moved"]


def _end():
    """Return the HTML of the race's end, which readers see without scripts: the last frame of the README's film."""
    state, png = tiling.State(), io.BytesIO()
    *_, end = steps(tiling, state)
    with Image.open(FILM) as film:
        film.seek(film.n_frames - 1)
        film.save(png, "png", optimize=True)
    return figure_page.captioned(png.getvalue(), tiling.describe(end))


def _way(way):
    rows = "\n".join(
        f'<li>{number(it):02} <a href="lessons/{page_of(it)}">{it.title}</a> {duration(it.minutes)}</li>'
        for it in way.lessons
    )
    return (
        f'<details name="way"><summary>{way.name} <small>{duration(way.minutes)}</small></summary>\n'
        f"<div><p>You end with {way.end}.</p>\n<ol>\n{rows}\n</ol>{_left_out(way)}</div></details>"
    )


def _left_out(way):
    """Return the HTML of the lessons that a way leaves out, although lessons of it name them as needed."""
    missing = sorted({it for lesson in way.lessons for it in needed(lesson)} - set(way.lessons), key=number)
    proved = "; ".join(
        f'{number(it):02} <a href="lessons/{page_of(it)}">{it.title}</a>, {html.escape(it.proves)}' for it in missing
    )
    return f"\n<p>To be taken on trust, or read first: {proved}.</p>" if missing else ""


def _about():
    """Return for whom the course is, what learners can do at its end, and where else to go."""
    to = {lesson.name: f"[{lesson.title}](lessons/{notebook(lesson)})" for lesson in LESSONS}
    return f"""## For whom

- You **use** attention, or train models, and want to know what happens below one call, in bytes and in time.
- You **write** kernels, or want to: {to["first_triton_kernel"]} needs no experience with GPUs, and
  in {to["gluon"]} you write one for Hopper.
- You **teach**: there are [routes of 6 to 14 weeks and a grader](teach.md), and each [figure](figures.md) has a page of
  its own, with a link to every state of it.

You need Python, numpy and some linear algebra. You need no GPU and no CUDA.

## What you will be able to do

- Say of an operation, before it runs, whether it will wait for bytes or for arithmetic: {to["memory_hierarchy"]}.
- Write both passes of FlashAttention, and the bill of their bytes: {to["tiling"]}, {to["recomputation"]}.
- Train a small model with Triton kernels that you wrote: {to["triton_backward"]}.
- Write the steps of a kernel that spells out every wait and every copy: {to["gluon"]}.
- Choose a kernel for a shape, by a measurement: {to["which_version_when"]}.

**To run it**: each lesson opens in Google Colab with one click, and the whole course in a [Codespace]({CODESPACE}); on
your own machine, `git clone {REPOSITORY}`, then `make lab` ([set up](set_up.md)). **To look up**: [notation and
glossary](lessons/notation.ipynb), [all figures](figures.md), [measurements](measurements.md), [the interface of
the code](interface.rst)."""


def _map():
    """Return the lessons by part, each with its picture, its time and its sentence."""
    core = duration(sum(lesson.minutes for lesson in CORE))
    parts = [f"The core takes {core}. An elective names the lessons that it builds on; those may be electives, too."]
    for part, some in groupby(LESSONS, key=lambda lesson: lesson.part):
        lessons = list(some)
        cards = "\n".join(map(_card, lessons))
        total = duration(sum(lesson.minutes for lesson in lessons))
        cards = f'<p>{total}</p>\n<div class="cards lessons">\n{cards}\n</div>'
        parts.append(f"### {part}\n\n{raw(cards)}")
    return "\n\n".join(parts)


def _card(lesson):
    place = "core" if lesson in CORE else f"builds on {builds_on(lesson)}"
    picture = image(*panels.of(lesson))
    return (
        f'<a href="lessons/{page_of(lesson)}">{picture}<b>{number(lesson):02} {lesson.title}</b> '
        f"<small>{duration(lesson.minutes)}, {place}</small><br>{html.escape(lesson.proves)}</a>"
    )


def image(file: str, width: int, height: int) -> str:
    """Return the HTML of a panel, a file in ``figures``. width, height: its size on a page, at most."""
    return f'<img alt="" loading="lazy" width="{width}" height="{height}" src="figures/{file}">'


def raw(text: str) -> str:
    """Return HTML in the form in which a Markdown page contains it."""
    return f"```{{raw}} html\n{text}\n```"
