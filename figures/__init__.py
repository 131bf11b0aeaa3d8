"""The figures of the course. Each takes its numbers from flashlab and is a function of a frozen ``State``.

A figure is two files of one name: ``figures/NAME.py`` says what there is to see, ``figures/js/NAME.js`` draws it in the
page. The same script serves JupyterLab, a saved notebook without a kernel, and a page from a file.

**The Python file** holds

- a docstring that names the wrong belief which the figure kills;
- ``State``: a frozen dataclass; its defaults make the still picture that notebooks store;
- ``CONTROLS``: for each field, in the order of the page, a ``Scrub`` (the clock), ``Slide``, ``Choose`` or ``Toggle``;
- ``trace(state)``: the numbers for *all* steps of the clock, as plain JSON (dicts, lists, ints, finite floats, strings,
  None), by running flashlab (``machine.memory.replay`` tells a recorded run moment by moment). It depends on every
  field but the clock, so scrubbing never asks the kernel: a size that readers drag may be a clock too, whose ``says``
  names its steps. Never compute in the drawing what flashlab can say;
- ``describe(state)``: the words below the picture and its alt text, 3 to 40 of them, one per step, ending in a full
  stop. They say what the picture cannot, in sentences with numbers;
- ``explore = explorer(__name__)``.

``figures.figure.line(function, fragment)`` returns a line of source for a tip: the code that did it.

**The drawing** exports one pure function, ``draw({trace, state, step, width, forward})``, that returns
``{height, nodes}`` in pixels. ``width`` is what there is: 340 on a phone, 1160 at most; lay out for both (see
``tiling.js``: three panels side by side, or one below the other). ``forward`` is true when the clock has just gone one
step on: only then may things travel. The function keeps nothing and touches no page, so node can test it.

- ``h(tag, {attributes}, ...children)`` makes a node (``svg.js``). Give ``key`` to whatever persists: the same key is
  the same element, and what changes about it moves there (class ``grow`` for x, y, width, height; ``style: at(x, y)``
  and class ``mark`` for a group). ``from`` is where a new element starts its journey.
- ``tip: {title, lines, code}`` makes a mark something to point at, by mouse, touch and keyboard: what it is, how often
  it was read, what it waited for, the line of code. ``drag: ({x, y}) => ({field: value})`` lets it set fields
  (``nearest`` in ``state.js`` snaps to a control's values). Every drag needs its control, for the keyboard.
- ``marks.js`` has tiles, slots, bars, labels, rules, legends and memories; ``words.js`` amounts and digits. What a
  second figure needs goes there.
- Colours are the variables of ``theme.css`` only (``var(--Q)``, on it ``var(--on-Q)``; ``--ink``, ``--grey``,
  ``--paper``, ``--slow``, ``--fast``, ``--wrong``): light and dark come by themselves. Hatching
  (``url(#stored)``) is what is in slow memory. Say nothing by colour alone: a letter or an outline says it too.
- Quantities are to scale, or the picture says why not. Letters have 12 pixels at least. Nothing overlaps at 340.

**Then** ``python -m tests.tools.stills NAME`` photographs the first state (node and Chromium, for development only);
``pytest tests/figures`` checks what holds for every figure and ``tests/figures/test_NAME.py`` that the trace is
flashlab's; ``pytest tests/browser/test_page.py`` drives every control and leaves screenshots, light and dark, at 1280
and 390 pixels in ``tests/browser/screenshots``: look at them. ``make notebooks`` stores the new output.

``states(figure)`` enumerates what a reader can reach. Charts (``charts.py``, ``whole.py``) are painted by matplotlib.
"""

from figures.figure import states, steps

__all__ = ["states", "steps"]
