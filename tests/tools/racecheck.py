"""Tell races of ours from those that compute-sanitizer's racecheck reports of right code.

Racecheck does not follow barriers in shared memory. In two kernels of ten lines, one role stores numbers and another
loads them; the first kernel waits before it overwrites a number, the second does not, and racecheck reports both (H200,
CUDA 13.0). So its reports say nothing about plain stores from role to role. ``gluon_interpreter`` checks the order of
ours. There are two kinds:

- Triton's handshake. Where warps specialize, those that wait for work read which partition is theirs, and the
  compiler's code writes it: in every kernel with ``gl.warp_specialize``, at the kernel's first line or at a statement
  that contains this call and no access of ours.
- ``stages``: the producer announces a turn, and the other roles read it.

Its warnings are about accesses within one warp, which the compiler orders: in Triton 3.7, an elected thread makes a
barrier, and thread 0 of the same warp uses it.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

HOPPER = Path(__file__).resolve().parents[2] / "flashlab" / "kernels" / "hopper"
REPORT = re.compile(r"(Error|Warning): Race reported between .* access at .*\n(?:=+\s+and .* access at .*\n)+")
PLACE = re.compile(r" access at \S+(?: in (\S+))?")  # "" for an access without one


class Statement(NamedTuple):
    """A statement of a Hopper kernel."""

    function: str
    place: str  # "file.py:line"
    called: set[str]  # names of functions, by it or by statements in it
    whole: bool  # whether it is the definition of the function


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
    """Return the places where racecheck reports the compiler's handshake."""
    part = {"gl.warp_specialize"}
    part |= {s.function for s in statements() if part & s.called}
    return {s.place for s in statements() if part & s.called}


def turns():
    """Return the place where a turn is announced and the one where it is read."""
    return {
        s.place
        for s in statements()
        if s.place.startswith("stages.py") and s.function in ("announce", "turn_of") and not s.whole
        if any(name.endswith((".store", ".load")) for name in s.called)
    }


def judge(output):
    """Count the reports in racecheck's output that are of right code, and return the others as text."""
    harmless, blind = 0, (handshakes(), turns())
    others = []
    for race in REPORT.finditer(output):
        if race[1] == "Warning" or any(set(PLACE.findall(race[0])) <= places for places in blind):
            harmless += 1
        else:
            others.append(race[0])
    return harmless, others
