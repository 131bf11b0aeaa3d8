"""The front page: a sentence, the race, four ways through the course, for whom it is, and the map."""

import html
import json
from itertools import groupby

from docs import drawn
from docs.lessons import CODESPACE, REPOSITORY
from figures import style, tiling
from flashlab.course.lessons import CORE, LESSONS, WAYS, Lesson, builds_on, duration, notebook, number


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
    first, trace = LESSONS[0], tiling.trace(tiling.State())
    moved = [style.amount(run["moved"]).replace(" ", "&nbsp;") for run in trace["runs"]]
    ways = "\n".join(map(_way, WAYS))
    return f"""<p class="lead">{len(LESSONS)} lessons in which you build FlashAttention yourself, from one
softmax to GPU kernels, and count every byte it saves.</p>
<div class="begin">
<a class="start" href="lessons/{page_of(first)}">Start <small>{duration(first.minutes)}</small></a>
{ways}
</div>
<section class="race" aria-label="The race" data-clock="{html.escape(json.dumps(trace["clock"]))}">
<p><button type="button" hidden>pause</button>
<span>One attention, three programs: bytes moved.</span>
<output>The same result after <b>{moved[0]}</b>, <b>{moved[1]}</b> and <b>{moved[2]}</b>.</output></p>
{drawn.alive("tiling", "figures", brief=True)}</section>
<script defer src="_static/race.js"></script>"""


def _way(way):
    rows = "\n".join(
        f'<li>{number(it):02} <a href="lessons/{page_of(it)}">{it.title}</a> {duration(it.minutes)}</li>'
        for it in way.lessons
    )
    return (
        f'<details name="way"><summary>{way.name} <small>{duration(way.minutes)}</small></summary>\n'
        f"<div><p>You end with {way.end}.</p>\n<ol>\n{rows}\n</ol></div></details>"
    )


def _about():
    """Return for whom the course is, what comes out of it, and where else to go."""
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
glossary](lessons/notation.ipynb), [all figures](figures.md), [measurements](measurements.md), [wrong implementations,
and what rejects them](wrong_answers.md), [the interface of the code](interface.rst)."""


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
    shown = drawn.shown_by(lesson)
    place = "core" if lesson in CORE else f"builds on {builds_on(lesson)}"
    picture = f'<img alt="" loading="lazy" src="figures/{shown[0]}.png">' if shown else ""
    return (
        f'<a href="lessons/{page_of(lesson)}">{picture}<b>{number(lesson):02} {lesson.title}</b> '
        f"<small>{duration(lesson.minutes)}, {place}</small><br>{html.escape(lesson.proves)}</a>"
    )


def raw(text: str) -> str:
    """Return HTML as it stands in a page in Markdown."""
    return f"```{{raw}} html\n{text}\n```"
