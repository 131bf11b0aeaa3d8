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
import re
from pathlib import Path

HOPPER = Path(__file__).resolve().parents[2] / "flashlab" / "kernels" / "hopper"
REPORT = re.compile(r"(Error|Warning): Race reported between .* in \S+\n(?:=+\s+and .* in \S+.*\n)+")
PLACE = re.compile(r" in (\S+\.py:\d+)")


def functions():
    """Yield the file and the syntax tree of each function of the Hopper kernels."""
    for path in HOPPER.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from ((path.name, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def called(node):
    """Return the names of what is called within a node of a syntax tree."""
    return {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}


def handshakes():
    """Return the places, as "file.py:line", where the compiler's handshake is said to be."""
    part = {"gl.warp_specialize"}
    part |= {f.name for _, f in functions() if part & called(f)}
    places = set()
    for file, f in functions():
        if part & called(f):
            forks = [s for s in ast.walk(f) if isinstance(s, ast.stmt) and part & called(s)]
            places |= {f"{file}:{s.lineno}" for s in forks}
    return places


def turns():
    """Return the places where a turn is announced and where it is read."""
    return {
        f"{file}:{s.lineno}"
        for file, f in functions()
        if file == "turns.py" and f.name in ("announce", "turn_of")
        for s in f.body
        if any(name.endswith((".store", ".load")) for name in called(s))
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
