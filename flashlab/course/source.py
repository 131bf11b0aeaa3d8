"""Source code as a lesson shows it: the module's own text, so that prose and code cannot drift apart."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import zip_longest

WIDTH = 120  # characters that a line of columns may take
GAP = "   "


class Source(str):
    """Source code that a notebook displays with colours and a terminal as it is."""

    def __repr__(self):
        return str(self)

    def _repr_markdown_(self):
        return f"```python\n{self}\n```"


def show(*functions: Callable) -> None:
    """Display the source of a function, class or Triton kernel; of several functions, their bodies in columns.

    Columns are for comparing: what gives a value to a name is beside what gives it to the same name in the first
    function, without docstrings and comments. A statement that is too long for its column goes on in the next line,
    broken at a space and never within a name.
    """
    if not functions:
        raise TypeError("expected at least one function to show")
    source = Source(_text(functions[0]) if len(functions) == 1 else columns(*functions))
    try:
        from IPython.display import display
    except ImportError:
        print(source)
    else:
        display(source)


def columns(*functions: Callable, width: int = WIDTH) -> str:
    """Return the bodies of functions side by side, aligned to the first one's, under the functions' names."""
    bodies = [list(_statements(function)) for function in functions]
    table = [tuple(map(_name, functions)), *_aligned(bodies)]
    widths = _fit([max(map(_longest, column)) for column in zip(*table, strict=True)], width)
    lines = []
    for row in table:
        cells = [_wrapped(cell, room) for cell, room in zip(row, widths, strict=True)]
        lines.extend(zip_longest(*cells, fillvalue=""))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]  # a word may be wider than its column
    return "\n".join(GAP.join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _text(function):
    return textwrap.dedent(inspect.getsource(getattr(function, "fn", function))).rstrip()  # a Triton kernel has fn


def _name(function):
    function = getattr(function, "fn", function)
    module = function.__module__.split(".")
    return "# " + ".".join([*(module[2:] or module), function.__qualname__])


def _statements(function):
    """Return the statements of a function's body as text, without the docstring and without the comments after them."""
    text = _text(function)
    body = ast.parse(text).body[0].body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    lines = text.splitlines()
    for statement in body:
        part = lines[statement.lineno - 1 : statement.end_lineno]
        part[-1] = part[-1].encode()[: statement.end_col_offset].decode()  # which counts bytes
        yield textwrap.dedent("\n".join(part))


def _aligned(bodies):
    """Return rows of one statement or "" per body; those that begin like one of the first body's are in its row."""
    spine, *others = bodies
    rows = [spine]  # per body and statement of the spine: what is in its row
    before = [[[] for _ in range(len(spine) + 1)]]  # per body and statement of the spine: what comes before it
    for body in others:
        at, row, between = 0, [""] * len(spine), [[] for _ in range(len(spine) + 1)]
        same = SequenceMatcher(None, [*map(_target, spine)], [*map(_target, body)], autojunk=False)
        for match in same.get_matching_blocks():
            between[match.a] += body[at : match.b]
            at = match.b + match.size
            row[match.a : match.a + match.size] = body[match.b : at]
        rows.append(row)
        before.append(between)
    for place in range(len(spine) + 1):
        yield from zip_longest(*(between[place] for between in before), fillvalue="")
        if place < len(spine):
            yield tuple(row[place] for row in rows)


def _target(statement):
    """Return the target of an assignment, or the first word of another statement."""
    return statement.split(" = ")[0] if " = " in statement else statement.split()[0]


def _longest(text):
    return max(map(len, text.splitlines()), default=0)


def _fit(wanted, width):
    """Return the widths of columns that together have ``width`` characters: narrow ones get what they want."""
    left = width - len(GAP) * (len(wanted) - 1)
    widths = dict.fromkeys(range(len(wanted)), 0)
    for done, at in enumerate(sorted(widths, key=wanted.__getitem__)):
        widths[at] = min(wanted[at], left // (len(wanted) - done))
        left -= widths[at]
    return [max(1, widths[at]) for at in range(len(wanted))]


def _wrapped(text, width):
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(line, width, initial_indent="", subsequent_indent=indent + "    ", drop_whitespace=True,
                               break_long_words=False, break_on_hyphens=False) or [""]  # fmt: skip
    return lines
