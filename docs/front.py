"""The front page: a sentence, the race, three ways through the course, for whom it is, and the map."""

import html
import json
from itertools import groupby

from docs import drawn
from docs.lessons import CODESPACE, REPOSITORY, minutes
from figures import style, tiling
from flashlab.course.lessons import LESSONS, Lesson, notebook, number

# Lessons by name. What they need from lessons that are left out, they say in their first lines.
WAYS = {
    "An evening": (
        "You end with a FlashAttention of your own, in numpy.",
        ("start_here", "online_softmax", "tiling"),
    ),
    "A weekend": (
        "You end with a FlashAttention kernel of your own, in Triton.",
        (
            "start_here",
            "memory_hierarchy",
            "standard_attention",
            "safe_softmax",
            "online_softmax",
            "tiling",
            "first_triton_kernel",
            "triton_forward",
        ),
    ),
    "All of it": (
        "You end with kernels for training and for writing, and know which one to call.",
        tuple(lesson.name for lesson in LESSONS),
    ),
}


def page() -> str:
    """Return the front page in Markdown, without its tables of contents."""
    return f"""# How FlashAttention works

{_raw(_opening())}

{_about()}

## The map

{_map()}
"""


def duration(total: int) -> str:
    """Return minutes in words, such as "35 min" or "3 h 15 min"; from 20 hours on in whole hours."""
    hours, rest = divmod(total, 60)
    if hours >= 20:
        return f"{round(total / 60)} h"
    return " ".join([f"{hours} h"] * (hours > 0) + [f"{rest} min"] * (rest > 0))


def lessons_of(way: str) -> list[Lesson]:
    """Return the lessons of one of the ways through, in the order of the course."""
    return [lesson for lesson in LESSONS if lesson.name in WAYS[way][1]]


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
<a class="start" href="lessons/{page_of(first)}">Start <small>{duration(minutes(first))}</small></a>
{ways}
</div>
<section class="race" aria-label="The race" data-clock="{html.escape(json.dumps(trace["clock"]))}">
<p><button type="button" hidden>pause</button>
<span>One attention, three programs: bytes moved.</span>
<output>The same result after <b>{moved[0]}</b>, <b>{moved[1]}</b> and <b>{moved[2]}</b>.</output></p>
{drawn.alive("tiling", "figures", brief=True)}</section>
<script defer src="_static/race.js"></script>"""


def _way(name):
    says, _ = WAYS[name]
    rows = "\n".join(
        f'<li>{number(it):02} <a href="lessons/{page_of(it)}">{it.title}</a> {duration(minutes(it))}</li>'
        for it in lessons_of(name)
    )
    total = duration(sum(map(minutes, lessons_of(name))))
    return (
        f'<details name="way"><summary>{name} <small>{total}</small></summary>\n'
        f"<div><p>{says}</p>\n<ol>\n{rows}\n</ol></div></details>"
    )


def _about():
    """Return for whom the course is, what comes out of it, and where else to go."""
    to = {lesson.name: f"[{lesson.title}](lessons/{notebook(lesson)})" for lesson in LESSONS}
    return f"""## For whom

- You **use** attention, or train models, and want to know what happens below one call, in bytes and in time.
- You **write** kernels, or want to: {to["first_triton_kernel"]} needs no experience with GPUs, and
  {to["gluon"]} reads a kernel for Hopper.
- You **teach**: each [figure](figures.md) has a page of its own, and a link to every state of it.

You need Python, numpy and some linear algebra. You need no GPU and no CUDA.

## What you will be able to do

- Say of an operation, before it runs, whether it will wait for bytes or for arithmetic: {to["memory_hierarchy"]}.
- Write both passes of FlashAttention, and the bill of their bytes: {to["tiling"]}, {to["recomputation"]}.
- Train a small model with Triton kernels that you wrote: {to["triton_backward"]}.
- Read a kernel that spells out every wait and every copy: {to["gluon"]}.
- Choose a kernel for a shape, by a measurement: {to["which_version_when"]}.

**To run it**: each lesson opens in Google Colab with one click, and the whole course in a [Codespace]({CODESPACE}); on
your own machine, `git clone {REPOSITORY}`, then `make lab` ([set up](set_up.md)). **To look up**: [notation and
glossary](lessons/notation.ipynb), [all figures](figures.md), [measurements](measurements.md), [wrong implementations,
and what rejects them](wrong_answers.md), [the interface of the code](interface.rst)."""


def _map():
    """Return the lessons by part, each with its picture, its time and its sentence."""
    parts = []
    for part, some in groupby(LESSONS, key=lambda lesson: lesson.part):
        lessons = list(some)
        cards = "\n".join(map(_card, lessons))
        total = duration(sum(map(minutes, lessons)))
        cards = f'<p>{total}</p>\n<div class="cards lessons">\n{cards}\n</div>'
        parts.append(f"### {part}\n\n{_raw(cards)}")
    return "\n\n".join(parts)


def _card(lesson):
    shown = drawn.shown_by(lesson)
    picture = f'<img alt="" loading="lazy" src="figures/{shown[0]}.png">' if shown else ""
    return (
        f'<a href="lessons/{page_of(lesson)}">{picture}<b>{number(lesson):02} {lesson.title}</b> '
        f"<small>{duration(minutes(lesson))}</small><br>{html.escape(lesson.proves)}</a>"
    )


def _raw(text):
    return f"```{{raw}} html\n{text}\n```"
