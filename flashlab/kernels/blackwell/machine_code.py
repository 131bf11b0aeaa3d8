"""Compile ``toy.one_tile`` for Blackwell, on any machine with Triton, and count its instructions.

The compiler and the interpreter cannot share a process, so ``machine_code`` starts one:
``python -m flashlab.kernels.blackwell.machine_code polynomial`` prints its answer as JSON.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from flashlab.kernels.device import run_compiled

WAYS = "unit", "polynomial"  # where exponentials come from


class Code(NamedTuple):
    """A compiled kernel."""

    ptx: dict[str, int]  # NVIDIA's portable instructions, by name, counted in the text of the kernel
    sass: dict[str, int]  # the machine's own, likewise, without their suffixes
    shared: int  # bytes per program
    columns: int  # of tensor memory


def machine_code(way: str) -> Code:
    """Return the ``Code`` of ``one_tile``, d = 128, bfloat16, with exponentials from the "unit" or by "polynomial".

    Raises:
        ValueError: another way. subprocess.CalledProcessError: the compiler failed.
    """
    return Code(**run_compiled("flashlab.kernels.blackwell.machine_code", way, WAYS))


def compiled(way):
    """Compile the kernel in this process, whose Triton does not interpret."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from flashlab.kernels.blackwell import toy

    block = [128, 128]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    tensors = dict.fromkeys("QKV", f"tensordesc<bf16{block},{layout!r}>")
    numbers = dict.fromkeys(("scale_log2", "c_1", "c_2", "c_3"), "fp32")
    signature = tensors | {"O": "*fp32"} | numbers | {"polynomial": "constexpr"}
    source = GluonASTSource(toy.one_tile, signature, {(8,): way == "polynomial"}, {(3,): [["tt.divisibility", 16]]})
    return triton.compile(source, target=GPUTarget("cuda", 100, 32), options={"num_warps": 4})


def portable(ptx) -> Counter:
    """Count the instructions of PTX by name."""
    lines = [line.split() for line in ptx.splitlines() if line.startswith("\t") and line.endswith(";")]
    return Counter(next(word for word in line if word[0] != "@").rstrip(";") for line in lines)


def machine(cubin) -> Counter:
    """Count the instructions of machine code by name, without their suffixes."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        text = subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout
    lines = [line.split("*/", 1)[1].split(";")[0].split() for line in text.splitlines() if " ;  " in line]
    return Counter(next(word for word in line if word[0] != "@").split(".")[0] for line in lines)


def main(way):
    """Print the ``Code`` of the kernel as JSON."""
    kernel = compiled(way)
    counts = portable(kernel.asm["ptx"]), machine(kernel.asm["cubin"])
    print(json.dumps(Code(*counts, kernel.metadata.shared, kernel.metadata.tmem_size)._asdict()))


if __name__ == "__main__":
    main(sys.argv[1])
