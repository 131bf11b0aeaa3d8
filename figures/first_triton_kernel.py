"""Which program touches which elements by which line, step by step, in a recorded run of a real kernel.

Kills the belief that a kernel is a function that is called once on whole tensors: it runs many times, each run knows
only its number, works out its own block from it, and masks what is past the end.
"""

import ast
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide
from figures.style import times
from flashlab.kernels import first_triton_kernel
from flashlab.kernels.count import count as count_bytes
from flashlab.machine.memory import replay

ROWS = 4  # of the softmax's matrix
BAND = 2  # rows per program of the online softmax
KERNELS = {
    "add": first_triton_kernel.add_kernel,
    "softmax": first_triton_kernel.softmax_kernel,
    "online softmax": first_triton_kernel.softmax_online_kernel,
}


@dataclass(frozen=True)
class State:
    """``step`` loads and stores of the kernel have happened, on rows of ``N`` elements, in blocks of ``block``."""

    step: int = 6  # at first the figure shows a store of one of the middle programs
    kernel: str = "add"
    N: int = 13
    block: int = 4


@lru_cache(maxsize=128)
def _trace(kernel: str, N: int, block: int) -> dict[str, Any]:
    source = inspect.getsource(KERNELS[kernel].fn).splitlines()[1:]  # without its decorator
    function, tensors, options = _call(kernel, N, block)
    memory, ran = _followed(KERNELS[kernel].fn, source, lambda: count_bytes(function, *tensors.values(), **options))
    tensors["z" if kernel == "add" else "y"] = function(*tensors.values(), **options)
    accesses = []
    for now in replay(memory.events):
        if now.kind == "kernel":
            continue
        *rows, columns = now.place
        lines = ran[len(accesses)]
        moved = {kind: sum(n for (way, _), n in now.bytes.items() if way == kind) for kind in ("load", "store")}
        accesses.append(
            {
                "program": now.program[0],
                "kind": now.kind,
                "tensor": now.name,
                "rows": rows[0] if rows else (0, 1),
                "columns": columns,
                "ran": lines,  # since the previous load or store, or the program's begin; the last is this one
                "value": _value(source[lines[-1]]),
                "loaded": moved["load"],
                "stored": moved["store"],
            }
        )
    return {
        "tensors": {name: _written(tensor) for name, tensor in tensors.items()},
        "height": 1 if kernel == "add" else ROWS,
        "N": N,
        "width": 1 << (N - 1).bit_length() if kernel == "softmax" else block,  # a row, rounded up to a power of two
        "band": BAND if kernel == "online softmax" else 1,
        "programs": 1 + accesses[-1]["program"],
        "source": source,
        "accesses": accesses,
    }


def _call(kernel: str, N: int, block: int) -> tuple[Callable, dict[str, Any], dict[str, int]]:
    """Return a function of flashlab that launches the kernel, its tensors by name, and its options."""
    row = torch.arange(N, dtype=torch.float32)  # [N]
    if kernel == "add":
        return first_triton_kernel.add, {"x": row, "y": 10 * (row % 4 + 1)}, {"block": block}
    x = (row + torch.arange(ROWS)[:, None]) % 4  # [ROWS, N]
    if kernel == "softmax":
        return first_triton_kernel.softmax, {"x": x}, {}
    return first_triton_kernel.softmax_online, {"x": x}, {"rows": BAND, "block": block}


def _followed(kernel: Callable, source: list[str], run: Callable[[], Any]) -> tuple[Any, list[list[int]]]:
    """Return the memory of a run, and for each load and store the numbers of the lines that ran up to it."""
    first = kernel.__code__.co_firstlineno + 1  # below the decorator
    ran = [[]]

    def line(frame: FrameType, event: str, _: Any) -> Callable:
        if event == "line":
            ran[-1].append(frame.f_lineno - first)
            if _moves(source[ran[-1][-1]]):
                ran.append([])
        return line

    def call(frame: FrameType, event: str, _: Any) -> Callable | None:
        if frame.f_code.co_name == kernel.__name__:
            ran[-1] = []  # a program begins
            return line
        return None

    before = sys.gettrace()
    sys.settrace(call)  # the interpreter runs a kernel as Python
    try:
        return run(), ran
    finally:
        sys.settrace(before)


def _moves(line: str) -> bool:
    return "tl.load(" in line or "tl.store(" in line


def _value(line: str) -> str:
    """Return the name to which a line's load is assigned, or the expression that its store writes."""
    statement: Any = ast.parse(line.strip()).body[0]
    return ast.unparse(statement.targets[0] if isinstance(statement, ast.Assign) else statement.value.args[1])


def _written(tensor: torch.Tensor) -> list[list[str]]:
    """Return the numbers of a tensor as they are written into cells, for each row."""
    rows = tensor.reshape(-1, tensor.shape[-1]).tolist()
    return [[f"{x:.2f}".removeprefix("0").removesuffix(".00") or "0" for x in row] for row in rows]


def trace(state: State) -> dict:
    """Return the kernel's source and all its loads and stores, in the order in which the interpreter ran them."""
    return _trace(state.kernel, state.N, state.block)


def count(state: State) -> int:
    """Return the number of loads and stores."""
    return len(trace(state)["accesses"])


def describe(state: State) -> str:
    """Say which program does what, and how much of its block is masked."""
    numbers = trace(state)
    if state.step == 0:
        return f"{state.kernel}: {times(numbers['programs'], 'program')} of one kernel, and none has begun."
    now = numbers["accesses"][state.step - 1]
    (first, end), width = now["columns"], numbers["width"]
    verb = "loads from" if now["kind"] == "load" else "stores to"
    inside = end - first
    masked = f"{width - inside} of {width} masked" if inside < width else f"all {width} inside"
    return (
        f"Program {now['program']} (of {numbers['programs']}) {verb} {now['tensor']}, columns {first} to "
        f"{first + width - 1}, {masked}. Loaded so far: {now['loaded']} B; stored: {now['stored']} B."
    )


CONTROLS = {
    "step": Scrub(count),
    "kernel": Choose(tuple(KERNELS)),
    "N": Slide(range(1, 17)),
    "block": Slide((2, 4, 8), idle=lambda state: "a row is one block" if state.kernel == "softmax" else ""),
}
explore = explorer(__name__)
