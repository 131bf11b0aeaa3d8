"""Which thread holds which number of a tile, which bank of shared memory has it, and how many turns an access takes.

Kills two beliefs: that a thread holds a row or a block of a product (it has two numbers in each of two rows, and the
same again every eight columns), and that bank conflicts come from shared memory alone (they come from both layouts:
lanes along a row have none, lanes of the accumulator have some unless the tile is swizzled).

Triton computes both layouts, from the objects that kernels pass to it. They are linear: the place of a number is the
XOR of one place for each bit that is set in its thread and its register. So the trace has these few places, and no
table.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from figures.explore import explorer
from figures.figure import Choose, Scrub, Slide, Toggle
from figures.style import times
from flashlab.kernels.hopper.rungs.two_consumers import gl

SIZE = 64  # rows and columns of the tile, in 16 bits: a row has 128 bytes, one word of each bank
THREADS = 128
REGISTERS = (0, 2, 4, 8, 16, 24)
BANKS = 32  # of 4 bytes
LAYOUTS = {
    "accumulator of wgmma": gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16]),
    "blocked, along rows": gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]),
    "blocked, down columns": gl.BlockedLayout([1, 8], [16, 2], [4, 1], [0, 1]),
}
IN_ORDER = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
SWIZZLED = gl.NVMMASharedLayout.get_default_for([SIZE, SIZE], gl.bfloat16)


@dataclass(frozen=True)
class State:
    """Thread ``step`` moves ``register`` to or from shared memory, and other lanes do the same."""

    step: int = 5
    layout: str = "accumulator of wgmma"
    register: int = 0
    swizzled: bool = False


@cache
def numbers_of(layout: str) -> np.ndarray:
    """Return row and column of each register of each thread, [THREADS, registers, 2], as Triton says."""
    view = LAYOUTS[layout].format_tensor_view([SIZE, SIZE])
    thread, register = np.array(re.findall(r"T(\d+): *(\d+)", view), int).T  # [SIZE * SIZE] each, row after row
    places = np.empty((THREADS, SIZE * SIZE // THREADS, 2), int)  # [THREADS, registers, 2]
    places[thread, register] = np.indices((SIZE, SIZE)).reshape(2, -1).T
    return places


@cache
def offsets(swizzled: bool) -> np.ndarray:
    """Return where shared memory has each number, counted in numbers, [SIZE, SIZE], as Triton says."""
    view = (SWIZZLED if swizzled else IN_ORDER).format_hardware_view([SIZE, SIZE])
    offset, row, column = np.array(re.findall(r"Offset: (\d+) -> \( *(\d+), *(\d+)\)", view), int).T
    result = np.empty((SIZE, SIZE), int)  # [SIZE, SIZE]
    result[row, column] = offset
    return result


def together(layout: str) -> int:
    """Return how many registers of a thread one instruction moves: neighbours in a row, up to 16 bytes."""
    rows, columns = numbers_of(layout)[0].T
    side_by_side = (rows == 0) & (columns == np.arange(len(columns)))
    return min(8, int(np.argmin(side_by_side)))


def words(layout: str, swizzled: bool, register: int) -> np.ndarray:
    """Return the words that move at once with the registers around this one, [groups, 32].

    A group of lanes moves 128 bytes at once: a warp in words of 4 bytes, eight lanes in words of 16.
    """
    size = together(layout)
    first = register // size * size
    own = numbers_of(layout)[:, first : first + size : 2]  # [THREADS, size / 2, 2]      a word has two numbers
    return offsets(swizzled)[own[..., 0], own[..., 1]].reshape(-1, BANKS) // 2


@cache
def _trace(layout: str, register: int, swizzled: bool) -> dict[str, Any]:
    places, shared = numbers_of(layout), offsets(swizzled)
    moved = words(layout, swizzled, register) % BANKS  # [groups, 32]
    return {
        "of_thread": places[2 ** np.arange(7), 0].tolist(),  # a place per bit of a thread's number
        "of_register": places[0, 2 ** np.arange(5)].tolist(),  # a place per bit of a register's number
        "offset_of_row": shared[2 ** np.arange(6), 0].tolist(),
        "offset_of_column": shared[0, 2 ** np.arange(6)].tolist(),
        "layout": layout,
        "swizzled": swizzled,
        "register": register,
        "together": together(layout),
        "banks": [np.bincount(banks, minlength=BANKS).tolist() for banks in moved],
        "code": repr(LAYOUTS[layout]),
        "shared": repr(SWIZZLED if swizzled else IN_ORDER),
    }


def trace(state: State) -> dict:
    """Return places per bit of threads and registers, offsets per bit of rows and columns, words per group and bank."""
    return _trace(state.layout, state.register, state.swizzled)


def describe(state: State) -> str:
    """Say where the thread's register is in the tile, and how many turns it takes to move with those of other lanes."""
    row, column = numbers_of(state.layout)[state.step, state.register].tolist()
    groups = trace(state)["banks"]
    counts, lanes = groups[state.step * len(groups) // THREADS], THREADS // len(groups)
    turns, used = max(counts), np.count_nonzero(counts)
    return (
        f"Thread {state.step}, register {state.register}: row {row}, column {column}. {lanes} lanes move {BANKS} words "
        f"at once, in {used} of {BANKS} banks: {times(turns, 'turn')}."
    )


CONTROLS = {
    "step": Scrub(lambda state: THREADS - 1, "thread"),
    "layout": Choose(tuple(LAYOUTS)),
    "register": Slide(REGISTERS),
    "swizzled": Toggle("swizzled"),
}
explore = explorer(__name__)
