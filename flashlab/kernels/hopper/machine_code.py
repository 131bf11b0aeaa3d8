"""Compile kernels of this wing for Hopper, on any machine with Triton, and read what the compiler made of them.

The compiler and the interpreter cannot share a process, so ``machine_code`` starts one:
``python -m flashlab.kernels.hopper.machine_code NAME`` prints its answer as JSON.
"""

import json
import sys
from typing import NamedTuple

from flashlab.kernels.device import run_compiled

KERNELS = "one_block", "gram"


class Code(NamedTuple):
    """A compiled kernel."""

    ptx: list[str]  # NVIDIA's portable instructions, line by line
    shared: int  # bytes per program


def machine_code(name: str) -> Code:
    """Return the ``Code`` of a kernel of ``toy``, "one_block" or "gram", compiled for compute capability 9.0.

    Raises:
        ValueError: another name. subprocess.CalledProcessError: the compiler failed.
    """
    return Code(**run_compiled("flashlab.kernels.hopper.machine_code", name, KERNELS))


def compiled(name):
    """Compile a kernel in this process, whose Triton does not interpret, for blocks of 128 rows and two stages."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from flashlab.kernels.hopper import toy

    block = [128, toy.WIDTH]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    signature = {"X": f"tensordesc<bf16{block},{layout!r}>", "XX": "*fp32"}
    if name == "one_block":
        source = GluonASTSource(toy.one_block, signature, {})
    else:
        signature |= {"steps": "i32", "stages": "constexpr"}
        source = GluonASTSource(toy.gram_kernel, signature, {(3,): 2})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def main(name):
    """Print the ``Code`` of a kernel as JSON."""
    made = compiled(name)
    ptx = [line.strip() for line in made.asm["ptx"].splitlines() if line.startswith("\t")]
    print(json.dumps({"ptx": ptx, "shared": made.metadata.shared}))


if __name__ == "__main__":
    main(sys.argv[1])
