"""Compile the attention kernels for a GPU that is not here: ``python -m tests.tools.compile_for 9.0``.

Print one JSON object per kernel: its launch, and the shared memory, registers and stack that the machine code takes.
The arguments are those of a real launch: the functions get CPU tensors, and their ``launch`` only compiles.
Needs TRITON_INTERPRET=0, and so a process of its own.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
import triton
from triton.runtime import driver

from flashlab.kernels import configurations, dependent_launch, masks, scores, tiles
from flashlab.kernels import dropout as dropping
from flashlab.kernels.compiles import Elsewhere
from flashlab.kernels.packed import Texts
from flashlab.kernels.portable import backward, forward, rows
from flashlab.kernels.problem import Problem

SHARED = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (9, 0): 227, (12, 0): 99}  # KB a program may have at most
BINARIES = Path(triton.__file__).parent / "backends/nvidia/bin"


def compiling(kernel, grid, tensors, numbers, *, warps, stages=1, early=False):
    """Stand in for ``launch``: compile the kernel for these arguments, and return it."""
    return kernel.run(*tensors, *numbers, grid=grid, warmup=True, num_warps=warps, num_stages=stages, launch_pdl=early)


@contextmanager
def compiled_instead(capability, *modules):
    """Have these modules compile what they launch, for a GPU of this capability. Yields the list of the kernels."""
    kernels = []

    def compile_instead(kernel, grid, tensors, numbers, **options):
        if not any(getattr(x, "repair", False) for x in numbers):  # these kernels rarely have work
            kernels.append(compiling(kernel, grid, tensors, numbers, **options))

    driver.set_active(Elsewhere(capability))
    with ExitStack() as replaced:
        for home, name in ((tiles, "has_copy_engine"), (dependent_launch, "possible")):
            replaced.enter_context(mock.patch.object(home, name, lambda device: capability >= (9, 0)))
        for module in modules:
            replaced.enter_context(mock.patch.object(module, "launch", compile_instead))
        yield kernels


def print_reports(cases, compile_for):
    """Print what compile_for(capability, case) yields for each of cases(capability), a line of JSON each.

    Arguments of the command line: the capability, and optionally the largest number of cases to compile.
    """
    capability = tuple(int(number) for number in sys.argv[1].split("."))
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else None
    some = itertools.islice(cases(capability), limit)
    print_lines(report for case in some for report in compile_for(capability, case))


def print_lines(reports):
    """Print each report as a line of JSON, as soon as it is complete."""
    for report in reports:
        print(json.dumps(report, default=str), flush=True)


def compile_for(capability, problem):
    """Compile all portable kernels, forward and backward, of a problem on a GPU of this capability.

    Yields a dict per kernel. Ignores problem.device.
    """
    card = configurations.Card(capability, SHARED[capability] * 1024)
    names = (
        "forward",
        "row_constants",
        *configurations.of_backward(card, problem.kind),
    )  # in the order of their launches
    launches = {name: configurations.portable(name, card, problem.kind) for name in names if name != "row_constants"}
    launches = configurations.divided(launches, card, problem) | {"row_constants": configurations.STREAMED}
    if any(c.parts > 1 for c in launches.values()):
        names, launches["add_parts"] = (*names, "add_parts"), configurations.STREAMED
    with compiled_instead(capability, forward, backward, rows) as kernels:
        q, k, v, o, lse, rest = tensors_of(problem)
        forward.run(o, lse, q, k, v, problem, launches["forward"], rest)
        sums = (
            [] if problem.score is None else [getattr(s, "sums", lambda _: None)(problem) for s in problem.score.steps]
        )
        backward.run((q, k, v), (o, None), (q, k, v, o, lse), problem, launches, sums, rest)
    for name, compiled in zip(names, kernels, strict=True):
        yield describe(name, card, problem, launches[name], compiled)


def tensors_of(problem):
    """Return a problem's q, k, v, o, lse, and the rest of lse or None. No kernel writes them."""
    B, H, Hk, Nq, Nk, d, dv, dtype = problem[:8]
    shapes = (B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, dv), (B, H, Nq, dv)
    lse = torch.empty(B, H, Nq, dtype=torch.float32)
    return (
        *(torch.empty(shape, dtype=dtype) for shape in shapes),
        lse,
        torch.empty_like(lse) if problem.natural else None,
    )


def describe(name, card, problem, c, compiled):
    """Return a dict: a compiled kernel, its launch and its resources."""
    itemsize = 4 if card.capability < (8, 0) else problem.dtype.itemsize
    return {
        "kernel": name, "capability": card.capability, "dtype": str(problem.dtype), "d": problem.d,
        "mask": problem.mask, "plain": problem.plain, "Nk": problem.Nk, "configuration": c,
        "shared": compiled.metadata.shared, "available": card.shared_bytes,
        "bound": configurations.shared_bytes(name, c, max(problem.widths), itemsize),
        **resources(compiled.asm["cubin"]),
    }  # fmt: skip


def resources(cubin):
    """Return registers per thread, bytes of stack (what registers could not hold), and the number of instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = output("cuobjdump", "--dump-resource-usage", file.name).stdout
        sass = output("cuobjdump", "-sass", file.name).stdout
    instructions = len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s", sass, re.MULTILINE))
    registers, stack = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))
    return {"registers": registers, "stack": stack, "instructions": instructions}


def output(program, *arguments):
    """Run a program of the CUDA toolkit that Triton has, and return its output."""
    return subprocess.run([BINARIES / program, *arguments], capture_output=True, text=True, check=True)


def problem(dtype, d, mask, N=1000):
    """Return a problem of one head."""
    return Problem(1, 1, 1, N, N, d, d, dtype, torch.device("cpu"), mask, d**-0.5, "tf32")


def everything(d):
    """Return a problem with a mask that needs lists of tiles, score functions, sinks and dropout."""
    ids = torch.arange(1000, dtype=torch.int32) // 300
    slopes = torch.ones(1)
    return problem(torch.bfloat16, d, masks.documents(ids) & masks.causal())._replace(
        score=scores.chain((scores.softcap(30.0), scores.alibi(slopes))), sinks=torch.zeros(1),
        dropout=dropping.dropout(0.1, 7, torch.device("cpu")),
    )  # fmt: skip


def packed(d):
    """Return a problem of packed texts, with ALiBi."""
    ends = torch.tensor([0, 300, 1000], dtype=torch.int32)
    both = everything(d)._replace(
        texts=Texts(ends, ends), dropout=None, score=scores.chain(scores.alibi(torch.ones(2, 1)))
    )
    return both._replace(mask=both.texts.apart(masks.causal()))


def cases(capability):
    """Yield problems to compile for a card: the dtypes, head dimensions and masks of most of its configurations."""
    few = {(7, 5): [(torch.float16, (64, 256))], (8, 6): [(torch.bfloat16, (128, 256)), (torch.float32, (128,))]}
    usual = [(torch.bfloat16, (64, 128, 256)), (torch.float32, (64,))]
    yield from (
        problem(dtype, d, masks.causal()) for dtype, widths in few.get(capability, usual) for d in widths
    )  # fmt: skip
    if capability == (9, 0):
        yield from (problem(torch.bfloat16, d, masks.full(), N) for d in (64, 128) for N in (1000, 1024))
        yield from (problem(torch.bfloat16, 192, mask) for mask in (masks.full(), masks.causal(), masks.window(200)))
        yield from (problem(torch.bfloat16, 64, mask, 4096) for mask in (masks.full(), masks.causal()))
    if capability in ((8, 0), (9, 0)):
        yield from (problem(torch.bfloat16, d, masks.window(200)) for d in (64, 128))
        yield from (problem(torch.bfloat16, d, masks.causal())._replace(H=4) for d in (64, 128))  # a group in parts
        yield from (everything(d)._replace(dropout=None) for d in (64, 128))
        widths = (64, 128) if capability == (9, 0) else (64,)  # on 8.0, d = 128 spills 8 bytes
        yield from (everything(d) for d in widths)
        yield from (packed(d) for d in (64, 128))


if __name__ == "__main__":
    print_reports(cases, compile_for)
