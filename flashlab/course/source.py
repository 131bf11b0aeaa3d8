"""Display source code in lessons: the text of the modules themselves, so that prose and code agree."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import zip_longest

from flashlab.machine.arguments import check_arguments

WIDTH = 100  # characters of a line in a cell, on a window of 1,280 pixels
GAP = "   "
CHECK = re.compile(r"\s*(@check_arguments|_?check\w*)\(.*\)")  # a line that only checks arguments


class Source(str):
    """Source code that a notebook displays with colours and a terminal as it is."""

    def __repr__(self):
        return str(self)

    def _repr_markdown_(self):
        return f"```python\n{self}\n```"


class Folded(Source):
    """Source code that a notebook shows when the reader opens it, also on a page without a kernel."""

    when = "open when yours is done"  # the words to click

    def _repr_markdown_(self):
        return f"<details><summary>{self.when}</summary>\n\n{super()._repr_markdown_()}\n\n</details>"


def show(*functions: Callable, folded: bool | str = False) -> None:
    """Display the source of a function, class or Triton kernel; of several functions, their statements side by side.

    folded: whether the source is behind a line to click, as the answer to an exercise; or the words of that line.
    """
    text = _text(functions[0]) if len(functions) == 1 else beside(*functions)
    source = Folded(text) if folded else Source(text)
    if isinstance(folded, str):
        source.when = folded
    try:
        from IPython.display import display
    except ImportError:
        print(source)
    else:
        display(source)


@check_arguments()
def beside(*functions: Callable, width: int = WIDTH) -> str:
    """Return the bodies of functions for comparing, aligned to the first one's, under the functions' names.

    Assignments to a name stand beside assignments to the same name in the first function: in columns if these fit into
    ``width`` characters, otherwise line under line. Docstrings, comments and checks of arguments are left out.
    """
    if not functions:
        raise TypeError("expected at least one function to show")
    rows = _aligned([list(_statements(function)) for function in functions])
    table = [tuple(map(_name, functions)), *rows]
    widths = [max(map(_longest, column)) for column in zip(*table, strict=True)]
    if sum(widths) + len(GAP) * (len(widths) - 1) > width:
        return "\n\n".join("\n".join(filter(None, row)) for row in table)
    rows = (zip_longest(*map(str.splitlines, row), fillvalue="") for row in table)
    return "\n".join(GAP.join(map(str.ljust, line, widths)).rstrip() for row in rows for line in row)


def _text(function):
    """Return the source of a function, class or kernel without decorators and calls that only check arguments."""
    try:
        source = inspect.getsource(getattr(function, "fn", function))  # a Triton kernel has fn
    except (TypeError, OSError):  # no function, or its source is in no file
        raise TypeError(f"expected functions, classes or kernels with source code, got {function!r:.60}") from None
    lines = textwrap.dedent(source).rstrip().splitlines()
    return "\n".join(line for line in lines if not CHECK.fullmatch(line))


def _name(function):
    function = getattr(function, "fn", function)
    module = function.__module__.split(".")
    return "# " + ".".join([*(module[2:] or module), function.__qualname__])


def _statements(function):
    """Return the statements of a function's body as text, without docstring, checks and comments around statements."""
    text = _text(function)
    lines = text.splitlines()
    for statement in ast.parse(text).body[0].body:
        if _is_docstring(statement) or _is_check(statement):
            continue
        part = lines[statement.lineno - 1 : statement.end_lineno]
        part[-1] = part[-1].encode()[: statement.end_col_offset].decode()  # end_col_offset counts bytes
        yield textwrap.dedent("\n".join(part))


def _is_docstring(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_check(statement):
    return isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise)


def _aligned(bodies):
    """Yield rows, each with a statement or "" per body. A statement is in the row in which the first body has the same
    ``_target``, if it has one."""
    first, *others = bodies
    rows = [first]  # per body and statement of the first: the statement in its row
    before = [[[] for _ in range(len(first) + 1)]]  # per body and statement of the first: the statements before it
    for body in others:
        at, row, between = 0, [""] * len(first), [[] for _ in range(len(first) + 1)]
        same = SequenceMatcher(None, [*map(_target, first)], [*map(_target, body)], autojunk=False)
        for match in same.get_matching_blocks():
            between[match.a] += body[at : match.b]
            at = match.b + match.size
            row[match.a : match.a + match.size] = body[match.b : at]
        rows.append(row)
        before.append(between)
    for place in range(len(first) + 1):
        yield from zip_longest(*(between[place] for between in before), fillvalue="")
        if place < len(first):
            yield tuple(row[place] for row in rows)


def _target(statement):
    """Return the target of an assignment; of another statement its first word, such as the function that it calls."""
    return statement.split(" = ")[0] if " = " in statement else statement.split("(")[0].split()[0]


def _longest(text):
    return max(map(len, text.splitlines()), default=0)
