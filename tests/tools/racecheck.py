"""Tell races of ours from those that compute-sanitizer's racecheck reports of right code.

It does not follow barriers in shared memory: of two kernels of ten lines in which one role stores numbers and another
loads them, it reports that which waits before it overwrites a number as well as that which does not (H200, CUDA 13.0).
So it is blind where roles hand over plain stores, and what orders those is checked in ``gluon_interpreter``:

- Triton's handshake. Where warps specialize, those that wait for work read which partition is theirs, and the
  compiler's code writes it: in every kernel with ``gl.warp_specialize``, at the kernel's first line or at a statement
  that holds that call, and no access of ours.
- ``turns``: the producer announces a turn, and the other roles read it.

Its warnings are of accesses within a warp, whose order is the compiler's: Triton 3.7 has a barrier made by an elected
thread, and used by thread 0 of the same warp.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

HOPPER = Path(__file__).resolve().parents[2] / "flashlab" / "kernels" / "hopper"
REPORT = re.compile(r"(Error|Warning): Race reported between .* in \S+\n(?:=+\s+and .* in \S+.*\n)+")
PLACE = re.compile(r" in (\S+\.py:\d+)")


class Statement(NamedTuple):
    """A statement of a Hopper kernel."""

    function: str
    place: str  # "file.py:line"
    called: set[str]  # names, by it or by statements in it
    whole: bool  # the definition of the function


def called(node):
    """Return the names of what is called within a node of a syntax tree."""
    return {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}


@functools.cache
def statements():
    """Return the statements of all functions, each function itself among its own."""
    return [
        Statement(f.name, f"{path.name}:{s.lineno}", called(s), s is f)
        for path in HOPPER.glob("*.py")
        for f in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(f, ast.FunctionDef)
        for s in ast.walk(f)
        if isinstance(s, ast.stmt)
    ]


def handshakes():
    """Return the places where the compiler's handshake is said to be."""
    part = {"gl.warp_specialize"}
    part |= {s.function for s in statements() if part & s.called}
    return {s.place for s in statements() if part & s.called}


def turns():
    """Return the places where a turn is announced and where it is read."""
    return {
        s.place
        for s in statements()
        if s.place.startswith("turns.py") and s.function in ("announce", "turn_of") and not s.whole
        if any(name.endswith((".store", ".load")) for name in s.called)
    }


def judge(output):
    """Count the races in racecheck's output that are no races, and return the others as text."""
    known, blind = 0, (handshakes(), turns())
    others = []
    for race in REPORT.finditer(output):
        if race[1] == "Warning" or any(set(PLACE.findall(race[0])) <= places for places in blind):
            known += 1
        else:
            others.append(race[0])
    return known, others
