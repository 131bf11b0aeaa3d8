"""Separate real races from those that compute-sanitizer's racecheck reports in correct code.

Racecheck does not follow barriers in shared memory. We tried two small kernels, which are not in the repository: one
role stores numbers and another loads them. One kernel waits before it overwrites a number, the other has a race, and
racecheck reports a race in both (H200, CUDA 13.0). So its reports say nothing about plain stores from role to role.
``gluon_interpreter`` checks their order in our kernels. There are two kinds of such stores:

- Triton's handshake, in every kernel with ``gl.warp_specialize``. Code of the compiler writes the number of the
  partition that waiting warps shall run, and these warps read it. Racecheck reports this at the kernel's first line, or
  at the statement that calls ``gl.warp_specialize``, where our code accesses no memory.
- ``stages``: the producer announces a turn, and the other roles read it.

Racecheck's warnings are about accesses within one warp, which the compiler orders: in Triton 3.7, an elected thread
makes a barrier, and thread 0 of the same warp uses it.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

HOPPER = Path(__file__).resolve().parents[2] / "flashlab" / "kernels" / "hopper"
REPORT = re.compile(r"(Error|Warning): Race reported between .* access at .*\n(?:=+\s+and .* access at .*\n)+")
PLACE = re.compile(r" access at \S+(?: in (\S+))?")  # "" for an access without a place


class Statement(NamedTuple):
    """A statement of a Hopper kernel."""

    function: str
    place: str  # "file.py:line"
    calls: set[str]  # names of the functions that it, or a statement in it, calls
    whole: bool  # whether it is the definition of the function


def calls_in(node):
    """Return the names of the functions that a node of a syntax tree calls."""
    return {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}


@functools.cache
def statements():
    """Return all statements of all functions of the Hopper kernels, the definitions of the functions among them."""
    return [
        Statement(f.name, f"{path.name}:{s.lineno}", calls_in(s), s is f)
        for path in HOPPER.glob("*.py")
        for f in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(f, ast.FunctionDef)
        for s in ast.walk(f)
        if isinstance(s, ast.stmt)
    ]


def handshakes():
    """Return the places where racecheck reports the compiler's handshake."""
    names = {"gl.warp_specialize"}
    names |= {s.function for s in statements() if names & s.calls}
    return {s.place for s in statements() if names & s.calls}


def turns():
    """Return the two places at which a role announces a turn and others read it."""
    return {
        s.place
        for s in statements()
        if s.place.startswith("stages.py") and s.function in ("announce", "turn_of") and not s.whole
        if any(name.endswith((".store", ".load")) for name in s.calls)
    }


def judge(output):
    """Return the number of reports of correct code in racecheck's output, and the text of each other report."""
    harmless, blind = 0, (handshakes(), turns())
    others = []
    for race in REPORT.finditer(output):
        if race[1] == "Warning" or any(set(PLACE.findall(race[0])) <= places for places in blind):
            harmless += 1
        else:
            others.append(race[0])
    return harmless, others
