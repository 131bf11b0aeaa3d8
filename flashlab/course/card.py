"""The verdict of a check as a card in a notebook, and the same words as text for all other places.

What comes from the learner (values, messages, output) is escaped.
"""

from html import escape
from typing import NamedTuple

COLOURS = {"✓": "seagreen", "✗": "crimson"}  # a contrast of at least 3 to 1 on a white and on a black page
EDGES = {"✓": "solid", "✗": "double"}  # they tell the marks apart without colour, too
WORDS = {"✓": "right", "✗": "wrong"}
ROW = "text-align: left; vertical-align: top; padding: 1px 12px 1px 0; background: none; border: 0"


class Verdict(NamedTuple):
    """The verdict of a check on an attempt."""

    mark: str  # ✓ ✗ or ○ (not judged)
    line: str  # the verdict in one line
    did: str = ""  # the diagnosis: what the learner did, and what to do
    message: str = ""  # other faults of the results, in a sentence or two
    inputs: tuple[tuple[str, str], ...] = ()  # the smallest inputs with a wrong result: name and value
    results: tuple[tuple[str, str], ...] = ()  # expected results, and the attempt's: name and value
    printed: str = ""  # what the attempt printed
    next: str = ""  # a call that helps


def body(verdict: Verdict) -> str:
    """Return the lines of a verdict as text."""
    pairs = [f"  {key} = {value}" for key, value in (*verdict.inputs, *verdict.results)]
    others = [f"  {line}" for line in verdict.message.splitlines()]
    printed = ["  it printed:", *(f"    {line}" for line in verdict.printed.splitlines())] if verdict.printed else []
    last = [f"  next: {verdict.next}"] if verdict.next else []
    return "\n".join([verdict.line, *filter(None, [verdict.did]), *pairs, *others, *printed, *last])


def text(name: str, verdict: Verdict) -> str:
    """Return a verdict on an exercise as text."""
    return f"{verdict.mark} {name}{_joint(verdict)}{body(verdict)}"


def _joint(verdict):
    """Return what stands between an exercise's name and a verdict's line: a space if the name is the line's subject."""
    return " " if verdict.line.startswith("fails for ") else ": "


def html(name: str, verdict: Verdict) -> str:
    """Return a verdict as a card: a coloured edge, a large mark, the diagnosis, a table, and the call that helps."""
    colour = COLOURS[verdict.mark]
    edge = f"border-left: 8px {EDGES[verdict.mark]} {colour}; padding: 2px 14px; margin: 4px 0; line-height: 1.5"
    mark = f"font-size: 2em; font-weight: bold; line-height: 1; color: {colour}; margin-right: 10px"
    parts = [
        f'<div><span role="img" aria-label="{WORDS[verdict.mark]}" style="{mark}">{verdict.mark}</span>'
        f"<b>{escape(name)}</b>{_joint(verdict)}{_lines(verdict.line)}</div>"
    ]
    if verdict.did:
        parts.append(f"<div><b>{_lines(verdict.did)}</b></div>")
    if verdict.inputs or verdict.results:
        rows = "".join(map(_row, (*verdict.inputs, *verdict.results)))
        parts.append(f'<table style="margin: 4px 0">{rows}</table>')
    if verdict.message:
        parts.append(f"<div>{_lines(verdict.message)}</div>")
    if verdict.printed:
        parts.append(f"<div>it printed:</div><pre>{escape(verdict.printed)}</pre>")
    if verdict.next:
        parts.append(f"<div>next: <code>{escape(verdict.next)}</code></div>")
    return f'<div style="{edge}">{"".join(parts)}</div>'


def _lines(words):
    return escape(words).replace("\n", "<br>")


def _row(pair):
    name, value = map(escape, pair)
    code = '<code style="white-space: pre-wrap; background: none">'
    return f'<tr style="background: none"><th style="{ROW}">{name}</th><td style="{ROW}">{code}{value}</code></td></tr>'


def display(name: str, verdict: Verdict, words: str) -> bool:
    """In a notebook, display a verdict as a card, or ``words`` without HTML. Return whether this is a notebook."""
    try:
        from IPython import display, get_ipython
    except ImportError:
        return False
    if getattr(get_ipython(), "kernel", None) is None:  # a terminal, or Python without IPython
        return False
    card = html(name, verdict).encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    display.display({"text/html": card, "text/plain": words}, raw=True)
    return True
