"""The figures of the course. Each takes its numbers from flashlab and is a function of a frozen ``State``.

A figure is two files of one name: ``figures/NAME.py`` says what there is to see, ``figures/js/NAME.js`` draws it in the
page. The same script serves JupyterLab, a saved notebook without a kernel, and a page from a file. Nothing registers a
figure: the two files are found by their names. ``tiling`` is the one to read first, ``crossover`` the shortest.

**The Python file** holds

- a docstring that names the wrong belief that the figure kills; its first line is shown with the figure;
- ``State``: a frozen dataclass; its defaults make the still picture that notebooks store. A good default is the moment
  at which the figure makes its point, never an empty one;
- ``CONTROLS``: {field: control}, each field of ``State`` once, in the order of the page (next section);
- ``trace(state)``: the numbers for *all* steps of the clock, as plain JSON (dicts, lists, ints, finite floats, strings,
  None), by running flashlab (``machine.memory.replay`` yields a recorded run moment by moment). It depends on every
  field but the clock, so scrubbing never asks the kernel. Never compute in the drawing what flashlab can compute;
- ``describe(state)``: the text below the picture, which is also its alt text: 3 to 40 words that end in a full stop,
  for each step. It says what the picture cannot, in sentences with numbers; each control changes it somewhere. In
  ``Caption("[128 keys](N) take 2 µs.")`` the page makes "128 keys" a handle of the control ``N``, to pull sideways;
- ``explore = explorer(__name__)``. A notebook says ``import figures.NAME`` and ``figures.NAME.explore()``.

``figures.figure.line(function, fragment)`` returns a line of source for a tip: the code that does what a mark shows.
``style.amount(nbytes)`` and ``style.number(value)`` write numbers in ``describe`` as ``words.js`` does in the drawing.

**Controls** come from ``figures.figure``. Values are numbers, strings and booleans; without a label the page shows the
name of the field.

- ``Scrub(steps, label="step", says=())`` is the clock, one at most: steps 0 ... ``steps(state)``, to scrub, to step and
  to play. ``steps`` takes a state and returns the number of its last step. A step is something that happens (a load, a
  token, a message), never a percentage. ``says`` names the steps, if they have names. A size that readers drag is a
  clock, too: its whole range is in one trace, and changes without the kernel (``block_size``). An event is a step at
  which ``describe``, without its numbers, says something for the first time. Play takes 12 s at most, shows events
  longer and groups the other steps. When another control changes, the clock keeps its time if the trace has the
  ``times`` of its steps, and otherwise its step; if the number of steps differs, it keeps its place between the same
  two events (``clock.js``).
- ``Slide(values, label)`` is a slider over a few ordered values, ``Choose(values, label)`` a menu of names,
  ``Toggle(label)`` on or off. Each value changes picture and words, whatever the values of the other controls; where a
  slider cannot, ``idle=lambda state: ...`` returns the reason, and the page turns the slider off and shows the reason.

**Speed.** For a state that the page does not have, the kernel computes ``trace`` and ``describe`` of every step: keep
both together below 100 ms on one core. Cache the run on the fields that it depends on (``functools.lru_cache`` on a
private function) and let ``describe`` look up its results; share what states have in common; prefer a smaller run to a
slow one. A page from a file carries all states if there are at most 1000 (``page.MOST``), otherwise those that differ
from the first in one control. The JSON of one state is some ten kB: a line per event, with what that event changes.

**The drawing** exports one pure function, ``draw({trace, state, step, width})``, that returns ``{height, nodes}`` in
pixels. ``width`` is the available width: 340 on a phone, 1160 at most; less with larger type. Lay out for every width
(see ``tiling.js``: three panels side by side, or one below the other). From ``WIDE`` (740) on, what is compared stands
side by side, in groups of class ``compared``, and a drawing is at most 612 high: with its controls it fits JupyterLab's
panel at 1280 x 900. For an element with the attribute ``data-brief`` the page passes ``brief: true``, too: the drawing
may leave out what a first look does not need. The function has no state and does not touch the page, so node can test
it. It imports from ``svg.js``, ``words.js``, ``marks.js`` and ``state.js``, one line each.

- ``h(tag, {attributes}, ...children)`` makes a node (``svg.js``). Give a ``key`` to whatever persists: the same key is
  the same element, and its changes are animated (class ``grow`` for x, y, width, height; ``style: at(x, y)`` and class
  ``mark`` for a group). ``from`` is the place from which a new element moves in when the clock goes one step on: a tile
  that is loaded again gets a new key in this step, and in ``from`` the place that it leaves.
- ``tip: {title, lines, code}`` makes a mark something to point at, by mouse, touch and keyboard: what it is, how often
  it was read, what it waited for, the line of code.
- ``drag: {field, to: ({x, y}) => ({field: value}), name}`` makes a mark something to pull (``hands.js``): its control
  takes the value that is nearest. With ``name`` the mark is a handle, which keys turn, too: at least 24 pixels, and one
  for each field. Every drag needs a line in ``DRAGS`` of ``tests/browser/test_page.py``.
- Colours are the variables of ``theme.css`` only: ``--Q --K --V --S --P --O`` and on them ``--on-Q`` ...; ``--slow``
  and ``--fast`` memory, ``--standard`` and ``--flash``; ``--text-A`` ... of texts; ``--ink``, ``--paper``, ``--pale``,
  ``--grey``, ``--wrong``. Light and dark come by themselves. Hatching (``url(#stored)``) means slow memory.
  Never show anything by colour alone: add a letter, hatching or an outline.
- Quantities are to scale, or the picture says why not. Letters have at least 12 pixels. Nothing overlaps at width 340.

**Marks** (``marks.js``; each returns nodes; lengths are pixels; the name of a tensor stands for its colour)

- ``label(x, y, words, {size, weight, anchor, fill, rotate})``, ``lines(x, y, [words], {gap})``: text, y at its middle;
- ``tile({key, x, y, width, height, name, letter, stored, faint, current, tip, drag, from})``: a tile of the tensor
  ``name`` with a letter where it fits; ``stored`` hatches it, ``faint`` (0 to 1) pales it, ``current`` outlines it;
- ``slot({key, x, y, width, height, dash, tip})``: an empty place that waits for a tile;
- ``memoryBox({x, y, width, height, name, color, key})``: a memory to scale, with its name above it;
- ``bars({x, y, rows: [{name, parts: [{value, color, stored}], words, tip}], scale, row, key, space})``: a bill;
- ``rule(x0, x1, y, {dash, color})``: a line across; ``ruler({key, x, y, width, spans, ticks, handle})``: an axis with
  spans above it and a handle to pull, all at fractions of the width;
- ``knob({key, x, y, tip, drag})``: a dot to pull; ``edges({key, x, y, unit, Br, Bc, named})``: the edges of the first
  tile of a map, to pull;
- ``legend(x, y, [{name, stored, faint, dash, words}])``, with ``dash`` for an empty place;
- ``source(x, y, rows, {width, ran, lit, tips, key})``: code, with marks at the lines that run.

``words.js``: ``amount(bytes)`` (decimal), ``room(bytes)`` (KiB, for memory on a chip), ``digits(value, count)``,
``grouped(count)``, ``times(count, thing)``, ``fits(text, width, size)``, ``wrapped(text, width, size)``. What a second
figure needs moves into one of these two files, and gets a line in this guide.

**Then** ``python -m tests.tools.stills NAME`` photographs the first state (node and Chromium, for development only);
``pytest tests/figures`` checks what holds for every figure, and in ``test_NAME.py`` that the trace is flashlab's;
``pytest tests/browser/test_page.py -k NAME`` drives every control and leaves screenshots, light and dark, at 1280 and
390 pixels, in ``tests/browser/screenshots``: look at them. ``make notebooks`` stores the new output.

``states(figure)`` enumerates the states that a reader can reach. Charts (``charts.py``, ``whole.py``) are painted by
matplotlib; ``scene.py`` records what matplotlib paints, and ``js/chart.js`` draws it on the page.
"""

from figures.figure import states, steps

__all__ = ["states", "steps"]
