"""How the clock of every figure plays, and to which step it goes when a control changes."""

import functools
import importlib
import re
from dataclasses import replace

import pytest

from figures import figure as declarations
from figures import page
from figures.figure import Scrub
from tests.figures.test_every_figure import NAMES, needs_node
from tests.tools import drawn

pytestmark = needs_node
PROGRAM = """
import { readFileSync } from "node:fs";
const { first, others } = JSON.parse(readFileSync(0, "utf8"));
const plays = [first, ...others].map((words) => {
  const plan = clock.schedule(words);
  const shown = [[0, 0]];
  while (shown.at(-1)[0] < words.length - 1) {
    const { next, ms } = clock.ahead(plan, shown.at(-1)[0], 1);
    shown.push([next, ms]);
  }
  return { shown, events: [...clock.events(words).values()] };
});
const moves = others.map((words) => first.map((_, step) => clock.moved(step, first, words)));
console.log(JSON.stringify({ plays, moves }));
"""


@functools.cache
def described_and_played(name):
    """Return the words of a figure's first state, those with one control at an end, and how all of them play."""
    figure = importlib.import_module(f"figures.{name}")
    first = figure.State()
    ends = {field: control.values for field, control in figure.CONTROLS.items() if not isinstance(control, Scrub)}
    near = [
        replace(first, **{field: values[0] if getattr(first, field) == values[-1] else values[-1]})
        for field, values in ends.items()
    ]
    first, *others = [[figure.describe(now) for now in declarations.steps(figure, state)] for state in (first, *near)]
    program = page.script(name) + PROGRAM
    return first, others, drawn.run(program, {"first": first, "others": others})


names = pytest.mark.parametrize("name", NAMES)


@names
def test_play_takes_seconds_and_shows_every_event(name):
    first, others, clocks = described_and_played(name)
    for words, play in zip([first, *others], clocks["plays"], strict=True):
        shown = dict(play["shown"])
        last = len(words) - 1
        assert list(shown) == sorted(shown) and last in shown and set(play["events"]) <= set(shown)
        seconds = sum(shown.values()) / 1000
        assert 0.9 * min(12, last) <= seconds <= 12.1, (last, seconds)
        assert all(ms >= 39 for step, ms in shown.items() if step not in (0, *play["events"], last))


@names
def test_an_event_is_shown_no_shorter_than_another_step(name):
    _, _, clocks = described_and_played(name)
    for play in clocks["plays"]:
        shown = dict(play["shown"])
        events = {step: ms for step, ms in shown.items() if step in play["events"][1:]}
        others = [shown[it] for it in range(1, max(shown)) if it in shown and it - 1 in shown and it not in events]
        assert not events or not others or min(events.values()) >= max(others) - 1e-6


@names
def test_a_control_that_changes_keeps_the_moment(name):
    first, others, clocks = described_and_played(name)
    for words, steps in zip(others, clocks["moves"], strict=True):
        assert steps == sorted(steps) and steps[0] == 0 and steps[-1] == len(words) - 1
        if len(words) == len(first):
            assert steps == list(range(len(words)))


def test_the_moment_lies_between_the_same_events():
    """Standard attention stays in the same kernel, even if the number of steps changes."""
    first, others, clocks = described_and_played("standard_attention")
    kernel = re.compile(r"kernel (scores|softmax|output),")
    for words, steps in zip(others, clocks["moves"], strict=True):
        for before, step in zip(first, steps, strict=True):
            if here := kernel.search(before):
                assert here[0] in words[step], (before, words[step])
