"""Compile the Hopper forward kernels without a Hopper GPU: ``python -m tests.tools.compile_hopper forward``.

The arguments name what to compile. "forward": each configuration in use. "kinds": each kind of mask and score function.
"one_consumer", "two_consumers" and "persistent": these ``rungs``. "no_early_wait": the second rung without its line for
the assembler. ``compile_hopper_backward`` compiles the backward kernels.

Prints one JSON object per line: the resources of the machine code, and the instructions in it and in its loops. Needs
TRITON_INTERPRET=0, and so a process of its own.
"""

import importlib.util
import inspect
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
from triton.runtime import driver

from flashlab.course.exercises.gluon.edits import EDITS
from flashlab.kernels import masks, portable, scores
from flashlab.kernels.compiles import Elsewhere
from flashlab.kernels.configurations import Configuration, on_hopper
from flashlab.kernels.hopper import forward
from flashlab.kernels.hopper.rungs import one_consumer, persistent, two_consumers
from flashlab.kernels.tables import ON_HOPPER
from tests.tools.compile_for import (
    compiled_instead,
    compiling,
    output,
    print_lines,
    problem,
    resources,
    tensors_of,
)

RUNGS = {module.__name__.rpartition(".")[2]: module for module in (one_consumer, two_consumers, persistent)}
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
H, EVEN, RAGGED = 2, 4096, 4000


def rows_in_use():
    """Yield a description, a problem and a configuration for every row in use. Causal rows have ragged lengths.

    The rows of 128 columns without a mask come in float16, too, and with heads of 80 columns.
    """
    fields = ("Br", "Bc", "width", "width_v", "causal", "warps", "stages")
    rows = [tuple(getattr(row, key) for key in fields) for row in ON_HOPPER.rows if row.kernel == "forward"]
    for Br, Bc, width, width_v, causal, warps, stages in dict.fromkeys(rows):
        both = (torch.float16, width), (torch.bfloat16, 80)
        for dtype, d in ((torch.bfloat16, width), *(both if width == 128 and not causal else ())):
            dv = d if d < width else width_v or d
            sizes = {"Br": Br, "Bc": Bc, "width": width, "causal": causal, "stages": stages, "d": d, "dv": dv}
            mask, N = (masks.causal(), RAGGED) if causal else (masks.full(), EVEN)
            name = {"kernel": "forward", "dtype": NAMES[dtype], **sizes, "ragged": causal}
            yield name, problem(dtype, d, mask, N)._replace(dv=dv), Configuration(Br, Bc, warps, stages)


def kinds():
    """Yield a description, a problem and a configuration for each kind of problem and each width."""
    causal, slopes = masks.causal(), torch.ones(H)
    documents = masks.documents(torch.arange(RAGGED) // 300) & causal
    for name, mask, score, sinks, N in (
        ("window", masks.window(300), None, None, EVEN),
        ("ragged window", masks.Window(300, 20), None, None, RAGGED),
        ("sinks", causal, None, torch.zeros(H), EVEN),
        ("soft cap", causal, scores.softcap(30.0), None, EVEN),
        ("ALiBi", causal, scores.alibi(slopes), None, EVEN),
        ("documents", documents, None, torch.zeros(H), RAGGED),
        ("all", masks.window(300), (scores.alibi(slopes), scores.softcap(30.0)), torch.zeros(H), RAGGED),
    ):
        for width in (64, 128, 192, 256):
            extras = {"H": H, "Hk": H, "score": scores.chain(score), "sinks": sinks}
            whole = problem(torch.bfloat16, width, mask, N)._replace(**extras)
            c = on_hopper("forward", whole.kind)
            yield {"kind": name, "width": width, "Br": c.Br, "Bc": c.Bc}, whole, c


def compile_forward(name, problem, c):
    """Return a dict: the name, and the resources and instructions of the forward kernel."""
    q, k, v, o, lse, _ = tensors_of(problem)
    return name | launched(forward, lambda: forward.run(o, lse, q, k, v, problem, c))


def compile_rung(name, d, causal):
    """Return a dict: a rung's name, resources and instructions."""
    module, kernels = RUNGS.get(name) or without_early_wait(), []
    x = torch.empty(1, 1, 256, d, dtype=torch.bfloat16)
    more = {"table": persistent.table_of([[0], [1]], "cpu")} if module is persistent else {}
    driver.set_active(Elsewhere((9, 0)))
    module.attend(x, x, x, causal, **more, launch=lambda *args, **options: kernels.append(compiling(*args, **options)))
    (compiled,) = kernels
    return {"kernel": name, "dtype": "bf16", "width": d, "causal": causal} | assembled(compiled)


def without_early_wait():
    """Return the second rung without its line for the assembler, as a module of its own."""
    _, old, new = EDITS["no early wait"]
    source = inspect.getsource(two_consumers)
    assert source.count(old) == 1
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:  # Triton reads the source later
        file.write(source.replace(old, new))
    spec = importlib.util.spec_from_file_location("no_early_wait", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launched(module, call):
    """Return a dict: the resources and instructions of the one kernel that ``call`` launches from this module."""
    of_an_h200 = mock.patch.object(module, "multiprocessors", lambda device: 132, create=True)
    with of_an_h200, compiled_instead((9, 0), module, portable.forward) as kernels:
        call()
    (compiled,) = kernels
    return assembled(compiled)


def assembled(compiled):
    """Return a dict: the resources, the warnings of serialized products, and the number of each instruction."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(compiled.asm["ptx"], encoding="utf-8")
        report = output("ptxas", "-v", "-arch=sm_90a", source, "-o", cubin).stderr
        code = instructions(output("cuobjdump", "-sass", cubin).stdout)
        used = resources(cubin.read_bytes())
    bodies = [[text for at, text in code if begin <= at <= end] for begin, end in loops(code)]
    # Warnings that products are serialized: each waits for the one before. (C7519: an instruction was inserted.)
    warnings = re.findall(r"C75(?!19)\d\d.*", report)
    return used | {
        "shared": compiled.metadata.shared,
        "warnings": warnings,
        "counts": counts(text for _, text in code),
        "loops": [counts(b) | {"MUFU beside": beside(b)} for b in bodies],
    }


def instructions(sass):
    """Return (address, text) of each instruction."""
    return [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]+)\*/\s+(.*?);", sass, re.MULTILINE)]


def loops(code):
    """Return the (first, last) address of each innermost loop that multiplies.

    A loop ends in a conditional jump back; an unconditional jump back belongs to a wait at a barrier.
    """
    jumps = [(at, re.match(r"@!?U?P\d BRA\S* .*?0x([0-9a-f]+)", text)) for at, text in code]
    back = [(int(jump[1], 16), at) for at, jump in jumps if jump and int(jump[1], 16) < at]
    products = [at for at, text in code if "GMMA" in text]  # HGMMA, or QGMMA of 8 bits
    multiply = [(begin, end) for begin, end in back if any(begin <= at <= end for at in products)]
    return [a for a in multiply if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in multiply)]


def counts(texts):
    """Count the instructions of each kind; "REDG x4" are those of them that add four numbers."""
    names = [re.sub(r"^@!?U?P\w+ ", "", text).split()[0].split(".") for text in texts]
    kinds = Counter(name[0] for name in names)
    return kinds | Counter("REDG x4" for name in names if name[0] == "REDG" and "F32x4" in name)


def beside(loop):
    """Count the exponentials that overlap with the newest product.

    They are between the wait for all products but the newest and the next wait for all. Each piece counts as a product.
    """
    waits = [i for i, text in enumerate(loop) if "WARPGROUP.DEPBAR" in text]
    begin = next((i for i in waits if "gsb0, 0x0" not in loop[i]), len(loop))
    end = next((i for i in waits if i > begin and "gsb0, 0x0" in loop[i]), len(loop))
    return sum("MUFU" in text for text in loop[begin:end])


def reports(name):
    """Yield a dict for each case of a name on the command line."""
    if name in ("forward", "kinds"):
        yield from (compile_forward(*case) for case in (rows_in_use() if name == "forward" else kinds()))
    else:
        yield from (compile_rung(name, d, causal) for d, causal in ((128, False), (64, True)))


if __name__ == "__main__":
    print_lines(report for name in sys.argv[1:] for report in reports(name))
