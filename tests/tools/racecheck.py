"""Tell Triton's own handshake from races of ours, in what compute-sanitizer's racecheck reports.

Where warps specialize, those that wait for work read from shared memory which partition is theirs, and the compiler's
code writes it, between barriers of the whole program that racecheck does not follow. So it reports hazards there, in
every kernel with ``gl.warp_specialize``: both accesses at the kernel's first line or at that call, which hold no access
of ours.
"""

import ast
import re
from pathlib import Path

HOPPER = Path(__file__).resolve().parents[2] / "flashlab" / "kernels" / "hopper"
REPORT = re.compile(r"Race reported between .* in \S+\n(?:=+\s+and .* in \S+.*\n)+")
PLACE = re.compile(r" in (\S+\.py:\d+)")


def handshakes():
    """Return the places, as "file.py:line", where the compiler's handshake is said to be."""
    called = {}  # by file and function: its first line, and each call's name and line
    for path in HOPPER.glob("*.py"):
        for f in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(f, ast.FunctionDef):
                calls = [(ast.unparse(c.func), c.lineno) for c in ast.walk(f) if isinstance(c, ast.Call)]
                called[path.name, f.name] = f.lineno, calls
    part = {name for (_, name), (_, calls) in called.items() if "gl.warp_specialize" in dict(calls)}
    places = set()
    for (file, name), (first, calls) in called.items():
        if name in part or part & dict(calls).keys():  # or who calls the one that does
            forks = [line for name, line in calls if name == "gl.warp_specialize"]
            places |= {f"{file}:{line}" for line in (first, *forks)}
    return places


def judge(output):
    """Count the races in racecheck's output that are the handshake's, and return the others as text."""
    known, places = 0, handshakes()
    others = []
    for race in REPORT.finditer(output):
        if set(PLACE.findall(race[0])) <= places:
            known += 1
        else:
            others.append(race[0])
    return known, others
