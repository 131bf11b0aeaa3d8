"""Launches of attempts in Triton, and laws on the loads, stores and operands of a launch.

The laws count in the interpreter; on a GPU they count nothing and accept every attempt.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from flashlab.grading.exercise import Broken
from flashlab.grading.laws import ADDED
from flashlab.grading.verdict import NEVER
from flashlab.kernels import DEVICE, INTERPRETED
from flashlab.kernels.interpreter import operands, running_as
from flashlab.kernels.interpreter_memory import APART
from flashlab.machine.memory import Event

MARGIN = 8  # elements around each output that a kernel must leave as they are


def attempted(kernel):
    """Return a learner's @triton.jit function. Raises TypeError for anything else, NotImplementedError for a stub."""
    if not hasattr(kernel, "fn"):
        raise TypeError("expected a Triton kernel: put @triton.jit above the def")
    if "NotImplementedError" in kernel.fn.__code__.co_names:
        raise NotImplementedError
    return kernel


def launched(kernel, grid, *args):
    """Launch a learner's kernel. With one stage, all tiles of the cases fit into a GPU's shared memory."""
    attempted(kernel)[grid](*args, num_stages=1)


def inside_margins(rows, N, name="the output"):
    """Return an output [rows, N] of NEVER within a tensor of sevens, and a function that returns it as a numpy array.

    The function raises IndexError if a seven was overwritten, and ValueError if nothing was stored in the output.
    """
    whole = torch.full((rows + 2, N + MARGIN), 7.0, dtype=torch.float32, device=DEVICE)  # [rows + 2, N + MARGIN]
    part = whole[1:-1, :N]  # [rows, N]
    part.view(torch.int32).fill_(NEVER)

    def stored():
        margins = whole.clone()  # [rows + 2, N + MARGIN]
        margins[1:-1, :N] = 7.0
        if not (margins == 7.0).all():
            raise IndexError(
                "it stored outside the output: is the store masked, and are its rows where the output has them?"
            )
        if part.numel() and (part.view(torch.int32) == NEVER).all():
            raise ValueError(f"nothing was stored in {name}")
        return part.cpu().numpy()

    return part, stored


def moved(kind: str, programs: Iterable[Iterable[Event]]) -> int:
    """Return the bytes that programs load or store. kind: "load" or "store"."""
    return sum(event.nbytes for program in programs for event in program if event.kind == kind)


def wrong_stores(programs, expected, in_order=False):
    """Return a sentence if programs stored more than ``expected`` bytes, or one did not store a tile of its own.

    in_order: program i has tile i. Otherwise any order will do. None if nothing is wrong.
    """
    stored = moved("store", programs)
    if stored > expected:
        return (
            f"the numbers are right, but it stored {stored:,} bytes where {expected:,} will do: each number is "
            "stored once, by the program that computes it. On a GPU programs run side by side, and any of them "
            "may store last."
        )
    places, sizes = zip(*map(_stored, programs), strict=True) if programs else ((), ())
    shorter = [number for number, size in enumerate(sizes) if size < max(sizes)]
    if 0 in sizes or len(shorter) > 1:
        return (
            "the numbers are right, but programs do not share the work: tl.program_id(0) says which tile is a "
            "program's own, and each program computes one."
        )
    if in_order and (list(places) != sorted(places) or shorter not in ([], [len(sizes) - 1])):
        return "the numbers are right, but the programs are not in the order of their tiles: program i has tile i."
    return None


def _stored(program):
    """Return where a program begins in each of its outputs, and the bytes that it stores."""
    begins = {}
    for event in program:
        if event.kind == "store":
            place = [part.start for part in event.region]
            begins[event.name] = min(place, begins.get(event.name, place))
    return sorted(begins.items()), moved("store", [program])


def loads_at_most(loads: Callable[..., int], before: str, stores: Callable[..., int]) -> Callable:
    """Build a law: a launch loads no more than ``loads(*args)`` bytes, and stores no more than ``stores(*args)``.

    before: the loads before the loop, in words.
    """

    def law(programs, *args):
        loaded, enough = moved("load", programs), loads(*args)
        if loaded > enough:
            return (
                f"the numbers are right, but it loaded {loaded:,} bytes where {enough:,} will do. {before} loaded "
                "once, before the loop; a tile of K and V once, and not at all where no row of the program sees it."
            )
        return wrong_stores(programs, stores(*args))

    return law


def factors_are_wide(launch, *args):
    """Return whether a product of tiles has a factor of more than 16 bits; on a GPU, which cannot tell, False."""
    if not INTERPRETED:
        return False
    with operands("create_dot") as factors:
        launch(*args)
    return any(factor.dtype.primitive_bitwidth > 16 for pair in factors for factor in pair)


def no_small_number_added(launch: Callable, *zeros: object) -> Callable[[Callable], Broken | None]:
    """Build a law with its own inputs: no small number is added to make a division or a logarithm safe.

    If all scores are 0, the terms of all sums are 0 or at least 1e-3: a smaller one is a constant in the source. A
    constant too small to change a sum of at least 1, even in float64, is accepted: it is as good as a guard.
    """

    def law(kernel):
        if not INTERPRETED:
            return None
        with operands("create_fadd", "create_fsub") as pairs:
            launch(kernel, *zeros)
        sizes = (np.abs(np.float64(operand.data)) for pair in pairs for operand in pair)
        small = any(((2.0**-53 < size) & (size < 1e-3)).any() for size in sizes)
        return Broken("scores that are all 0", ADDED) if small else None

    return law


BEYOND = "a tensor of more than 2³¹ elements"
NEAR = 16  # elements: at most those of a block
WRAPS = (
    "the offsets wrap around: a tensor may have more than 2³¹ elements, and the largest integer of 32 bits is 2³¹ − 1. "
    "Widen before the product: tl.program_id(0).to(tl.int64)."
)
MASK_WRAPS = (
    "a mask is wrong where a tensor has more than 2³¹ elements: compare numbers of 64 bits, from "
    "tl.program_id(0).to(tl.int64)."
)
ROUNDED = "large offsets are not exact: they were computed as floats, and must be integers."


def no_offset_wraps(program: int, sizes: tuple, *elements: range) -> Callable[[Callable], Broken | None]:
    """Build a law with its own inputs: offsets and masks are right beyond 2³¹ elements. Nothing is loaded from there.

    The kernel runs as ``program``, with ``sizes`` and a tensor of float32 for each of ``elements``: those that it must
    load or store, and no others.
    """

    def law(kernel):
        if not INTERPRETED:
            return None
        tensors = [torch.zeros(1, dtype=torch.float32) for _ in elements]
        with running_as(program) as addresses, np.errstate(over="ignore"):
            launched(kernel, (1,), *tensors, *sizes)
        found = [set() for _ in elements]
        for address in addresses:
            number = (address + APART // 2) // APART  # of the tensor, from 1 on
            found[number - 1].add((address - number * APART - tensors[number - 1].data_ptr()) // 4)
        pairs = list(zip(found, map(set, elements), strict=True))
        if all(own == right for own, right in pairs):
            return None
        off = [it - min(right) for own, right in pairs for it in own - right]
        turns = [round(it / 2**32) for it in off]
        if any(turn and abs(it - turn * 2**32) < NEAR for it, turn in zip(off, turns, strict=True)):
            return Broken(BEYOND, WRAPS)
        if all(abs(it) < NEAR for it in off):
            return Broken(BEYOND, MASK_WRAPS)
        return Broken(BEYOND, ROUNDED) if all(abs(it) < 1e5 for it in off) else None

    return law
