"""Compile the Hopper forward kernel without a Hopper GPU: ``python -m tests.tools.compile_hopper forward``.

Also "one_consumer", "two_consumers" and "persistent", the ``rungs``, and "no_early_wait", the second without its line
for the assembler. ``compile_hopper_backward`` has the rest.

Prints one JSON object per line for each configuration in use: what the machine code takes, and which instructions it
and its loops consist of. Needs TRITON_INTERPRET=0, so it runs in a process of its own.
"""

import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver

from flashlab.course.exercises.gluon.edits import EDITS
from flashlab.kernels import masks, portable
from flashlab.kernels.hopper import arguments, forward
from flashlab.kernels.hopper.arguments import layout
from flashlab.kernels.hopper.products import filled
from flashlab.kernels.hopper.rungs import one_consumer, persistent, two_consumers
from flashlab.kernels.tables import ON_HOPPER
from tests.tools.compile_for import BINARIES, Elsewhere, compiled_instead, compiling, resources

RUNGS = {module.__name__.rpartition(".")[2]: module for module in (one_consumer, two_consumers, persistent)}
ROWS = {"Q": "Br", "K": "Bc", "V": "Bc", "O": 64, "O_first": 64}
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
ALIGNED = [["tt.divisibility", 16]]
TARGET = GPUTarget("cuda", 90, 32)


def compile_forward(row, dtype, ragged):
    """Return what the kernel takes and contains, as a dict. row: as in hopper.json, with d and dv."""
    function, consumers = forward.attention_forward, row["Br"] // 64
    mask = masks.causal() if row["causal"] else masks.full()
    shape = arguments.Shape.of(row["d"], row["dv"])
    shape = shape.with_turns(row["Br"], row["Bc"], row["stages"])
    constants = {key: row[key] for key in ("Br", "Bc", "stages")} | {
        "mask": mask,
        "ragged": ragged,
        "shape": shape,
        "rest": None,
    }
    constants["variant"] = arguments.Variant(mask, row["causal"] and ragged, ragged, 1, filled(row["d"]))
    constants |= {"consumers": consumers}
    constants |= dict(zip(("registers", "producer_registers"), arguments.REGISTERS[consumers], strict=True))
    rows = ROWS | {"Br": 64, "Bc": row["Bc"]}
    signature, constexprs, attributes = {}, {}, {}
    for i, argument in enumerate(function.arg_names):
        if argument == "request":  # for nothing more
            signature[argument] = arguments.Request(masks.Window(*["constexpr"] * 2), *["constexpr"] * 5)
            constexprs |= dict.fromkeys([(i, 0, 0), (i, 0, 1), (i, 1), (i, 2), (i, 3), (i, 4), (i, 5)])
        elif argument in constants:
            signature[argument], constexprs[i,] = "constexpr", constants[argument]
        elif argument in ROWS:
            height = rows.get(ROWS[argument], rows[argument])
            signature[argument] = descriptor((1, 1, height, shape.columns), dtype)
        elif argument in ("lse", "table", "starts"):
            signature[argument] = "*fp32" if argument == "lse" else "*i32"
            attributes[i,] = ALIGNED
        else:
            signature[argument] = "fp32" if argument.startswith("scale") else "i32"
    source = GluonASTSource(function, signature, constexprs, attributes)
    compiled = triton.compile(source, target=TARGET, options={"num_warps": 4})
    code = {"kernel": "forward", "dtype": NAMES[dtype], **row, "ragged": ragged, "shared": compiled.metadata.shared}
    return code | assembled(compiled.asm["ptx"])


def compile_rung(name, d, causal):
    """Return what a rung takes and contains, as a dict."""
    module, made = RUNGS.get(name) or without_early_wait(), []
    x = torch.empty(1, 1, 256, d, dtype=torch.bfloat16)
    more = {"table": persistent.table_of([[0], [1]], "cpu")} if module is persistent else {}
    driver.set_active(Elsewhere((9, 0)))
    module.attend(x, x, x, causal, **more, launch=lambda *args, **options: made.append(compiling(*args, **options)))
    (compiled,) = made
    code = {"kernel": name, "dtype": "bf16", "width": d, "causal": causal, "shared": compiled.metadata.shared}
    return code | assembled(compiled.asm["ptx"])


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
    """Return what the one kernel takes and contains that ``call`` launches from this module, as a dict."""
    with (
        compiled_instead((9, 0), module, portable.forward) as made,
        mock.patch.object(module, "multiprocessors", lambda device: 132),
    ):
        call()
    (compiled,) = made
    return {"shared": compiled.metadata.shared} | assembled(compiled.asm["ptx"])


def descriptor(block, dtype):
    """Write a descriptor of tiles of the shape ``block`` as a signature does."""
    return f"tensordesc<{NAMES[dtype]}{list(block)},{layout(block, dtype)!r}>"


def assembled(ptx):
    """Return registers, bytes of stack, serialized products and counted instructions of PTX."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        said = output("ptxas", "-v", "-arch=sm_90a", source, "-o", cubin).stderr
        code = instructions(output("cuobjdump", "-sass", cubin).stdout)
        used = resources(cubin.read_bytes())
    bodies = [[text for at, text in code if begin <= at <= end] for begin, end in loops(code)]
    # That products are serialized, each waits for the one before. (C7519 only tells of an instruction put before one.)
    warnings = re.findall(r"C75(?!19)\d\d.*", said)
    return used | {
        "warnings": warnings,
        "counts": counts(text for _, text in code),
        "loops": [counts(b) | {"MUFU beside": beside(b)} for b in bodies],
    }


def output(program, *arguments):
    return subprocess.run([BINARIES / program, *arguments], capture_output=True, text=True, check=True)


def instructions(sass):
    """Return (address, text) of each instruction."""
    return [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]+)\*/\s+(.*?);", sass, re.MULTILINE)]


def loops(code):
    """Return the (first, last) address of each innermost loop that multiplies.

    A loop ends in a conditional jump back; unconditional ones return from where a barrier is waited for.
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
    """Count the exponentials that the newest product may run beside: after a wait for all but it, before its own.

    A product in pieces counts as so many.
    """
    waits = [i for i, text in enumerate(loop) if "WARPGROUP.DEPBAR" in text]
    begin = next((i for i in waits if "gsb0, 0x0" not in loop[i]), len(loop))
    end = next((i for i in waits if i > begin and "gsb0, 0x0" in loop[i]), len(loop))
    return sum("MUFU" in text for text in loop[begin:end])


def cases():
    """Yield arguments of ``compile_forward``: every row in use, causal ones with ragged lengths.

    With 128 columns and no mask also in float16, and with heads of 80 columns.
    """
    fields = ("Br", "Bc", "width", "width_v", "causal", "stages")
    rows = [tuple(getattr(row, key) for key in fields) for row in ON_HOPPER.rows if row.kernel == "forward"]
    for values in dict.fromkeys(rows):
        row = dict(zip(fields, values, strict=True))
        row |= {"d": row["width"], "dv": row.pop("width_v") or row["width"]}
        yield row, torch.bfloat16, row["causal"]
        if row["width"] == 128 and not row["causal"]:
            yield row, torch.float16, False
            yield row | {"d": 80, "dv": 80}, torch.bfloat16, False


def main(names):
    """Print each case of these kernels."""
    for name in names:
        if name == "forward":
            made = (compile_forward(*case) for case in cases())
        else:
            made = (compile_rung(name, d, causal) for d, causal in ((128, False), (64, True)))
        for code in made:
            print(json.dumps(code), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
