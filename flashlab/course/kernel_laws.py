"""Laws of kernels that several exercises share: what a launch loads, stores and computes with.

They count in the interpreter; on a GPU nothing is counted and nothing asked.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from flashlab.course.exercise import Broken
from flashlab.course.launches import launched
from flashlab.course.laws import ADDED
from flashlab.kernels import INTERPRETED, tl
from flashlab.kernels.interpreter import count


def events_by_program(launch, kernel, *args):
    """Return what each program of a launch loads and stores, in the order in which they run; none on a GPU."""
    if not INTERPRETED:
        return []
    with count() as memory:
        launch(kernel, *args)
    programs = []
    for event in memory.events:
        if event.kind == "kernel":
            programs.append([])
        else:
            programs[-1].append(event)
    return programs


def moved_by_program(launch, kernel, *args):
    """Return the bytes that each program of a launch loads and stores, in the order of their runs; none on a GPU."""
    programs = events_by_program(launch, kernel, *args)
    return [sum((Counter({event.kind: event.nbytes}) for event in program), Counter()) for program in programs]


def stored_too_often(programs, due):
    """Return a sentence if programs stored more than ``due`` bytes: then one stores what is another's, or twice."""
    stored = sum(moved["store"] for moved in programs)
    if stored > due:
        return (
            f"the numbers are right, but it stored {stored:,} bytes where {due:,} are due: each number is stored once, "
            "by the program that it belongs to. On a GPU programs run side by side, and any may store last."
        )


def loads_at_most(launch: Callable, due: Callable[..., int], before: str, stores: Callable[..., int]) -> Callable:
    """Build a law: a launch loads no more than ``due(*args)`` bytes, and stores no more than ``stores(*args)``.

    before: what is loaded before the loop, in words.
    """

    def law(kernel, *args):
        programs, enough = moved_by_program(launch, kernel, *args), due(*args)
        loaded = sum(moved["load"] for moved in programs)
        if loaded > enough:
            return (
                f"the numbers are right, but it loaded {loaded:,} bytes where {enough:,} will do. {before} loaded "
                "once, before the loop; a tile of K and V once, and not at all where no row of the program sees it."
            )
        return stored_too_often(programs, stores(*args))

    return law


@contextmanager
def operands(*names: str) -> Iterator[list]:
    """Gather the first two operands of these instructions of the interpreter, as they run."""
    builder, found = sys.modules["triton.runtime.interpreter"].InterpreterBuilder, []
    originals = [getattr(builder, name) for name in names]

    def noted(original):
        def run(self, x, y, *rest):
            found.append((x, y))
            return original(self, x, y, *rest)

        return run

    for name, original in zip(names, originals, strict=True):
        setattr(builder, name, noted(original))
    try:
        yield found
    finally:
        for name, original in zip(names, originals, strict=True):
            setattr(builder, name, original)


def factors_are_wide(launch, *args):
    """Return whether a product of tiles has a factor of more than 16 bits. Only the interpreter can tell."""
    if not INTERPRETED:
        return False
    with operands("create_dot") as factors:
        launch(*args)
    return any(factor.dtype.primitive_bitwidth > 16 for pair in factors for factor in pair)


def no_small_number_added(launch: Callable, *zeros: object) -> Callable[[Callable], Broken | None]:
    """Build a law of its own inputs: no small number is added where it makes a division or a logarithm safe.

    Where all scores are 0, what is added in float32 is 0 or at least 1e-3, unless it was typed. What is so small that
    it changes no sum, which is 0 or at least 1, in float64 either, is as good as a guard.
    """

    def law(kernel):
        if not INTERPRETED:
            return None
        with operands("create_fadd", "create_fsub") as added:
            launch(kernel, *zeros)
        sizes = (np.abs(np.float64(operand.data)) for pair in added for operand in pair)
        added = any(((2.0**-53 < size) & (size < 1e-3)).any() for size in sizes)
        return Broken("scores that are all 0", ADDED) if added else None

    return law


WRAPS = (
    "the offsets wrap around: a tensor may have more than 2³¹ elements, which 32 bits cannot count. Widen before the "
    "product: tl.program_id(0).to(tl.int64)."
)
ROUNDED = "the offsets are not exact where they are large: floats were used for them, and integers are needed."


@contextmanager
def running_as(program: int) -> Iterator[list[int]]:
    """Let every launch believe that it is this program. It loads zeros and stores nothing; gather its addresses."""
    interpreter = sys.modules["triton.runtime.interpreter"]
    builder, found = interpreter.InterpreterBuilder, []

    def load(self, pointers, mask, *rest):
        store(self, pointers, None, mask)
        kind = pointers.get_element_ty()
        return interpreter.TensorHandle(np.zeros(pointers.data.shape, interpreter._get_np_dtype(kind)), kind)

    def store(self, pointers, value, mask, *rest):
        found.extend(pointers.data[mask.data].tolist() or [0])
        if len(found) > 1000:
            raise RuntimeError("a loop over all of a tensor that is not there")

    def number(self, axis):
        return interpreter.TensorHandle(np.array([program if axis == 0 else 0], np.int32), tl.int32)

    fakes = {"create_masked_load": load, "create_masked_store": store, "create_get_program_id": number}
    originals = {name: getattr(builder, name) for name in fakes}
    try:
        for name, fake in fakes.items():
            setattr(builder, name, fake)
        yield found
    finally:
        for name, original in originals.items():
            setattr(builder, name, original)


def no_offset_wraps(tensors: int, program: int, sizes: tuple, *moves: int) -> Callable[[Callable], Broken | None]:
    """Build a law of its own inputs: offsets are right where they exceed 2³¹. Nothing is loaded from there.

    The kernel of so many tensors of float32, and ``sizes``, runs as program 0 and as ``program``. From one to the
    other, each address moves by one of these numbers of elements.
    """

    def law(kernel):
        if not INTERPRETED:
            return None
        given, places = torch.zeros(tensors, 1, dtype=torch.float32), []
        for number in (0, program):
            with running_as(number) as found, np.errstate(over="ignore"):
                launched(kernel, (1,), *given, *sizes)
            places.append(found)
        off = {
            it - move
            for here, there in zip(*places, strict=True)
            if (it := (there - here) // 4) not in moves
            for move in moves
        }
        if any(by % 2**32 == 0 for by in off):
            return Broken("a tensor of more than 2³¹ elements", WRAPS)
        if any(abs(by) < 1e-5 * max(moves) for by in off):
            return Broken("a tensor of more than 2³¹ elements", ROUNDED)
        return None

    return law
