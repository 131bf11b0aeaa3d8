"""Compile a kernel for any GPU, and read its shared memory, registers, spills and code.

    python -m flashlab.bench.compiled 9.0 64,64,64,4,2 128,64,64,4,2

A launch is Br,Bc,d,warps,stages of the smallest attention kernel, in float16. Prints a JSON list. ``compiled`` runs
this command in a process of its own, since one process either compiles or interprets kernels.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class Launch(NamedTuple):
    """A launch of ``one_head.attention_small``, and what its machine code takes."""

    Br: int
    Bc: int
    d: int
    warps: int
    stages: int
    shared: int = 0  # bytes per program
    registers: int = 0  # per thread
    stack: int = 0  # bytes per thread: what registers could not hold was spilled there
    ptx: str = ""  # the portable assembler
    sass: str = ""  # the machine code


def compiled(*launches: tuple[int, int, int, int, int], capability: str = "9.0") -> list[Launch]:
    """Compile ``(Br, Bc, d, warps, stages)`` each for a compute capability; no GPU is needed.

    Raises RuntimeError with the end of the compiler's message.
    """
    command = [sys.executable, "-m", "flashlab.bench.compiled", capability]
    process = subprocess.run(
        command + [",".join(map(str, launch)) for launch in launches],
        env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True,
    )  # fmt: skip
    if process.returncode:
        raise RuntimeError(f"the compiler's process failed: {process.stderr.strip()[-500:]}")
    return [Launch(**it) for it in json.loads(process.stdout)]


def _compile(capability, launch):
    from flashlab.kernels import triton  # here, since a caller of ``compiled`` may need no kernels
    from flashlab.kernels.portable.one_head import attention_small

    names = attention_small.arg_names
    signature = {name: "*fp16" for name in names[:4]} | {"N": "i32", "scale": "fp32"}
    signature |= {name: "constexpr" for name in names[6:]}
    aligned = {(at,): [["tt.divisibility", 16]] for at in range(5)}  # four pointers and N: multiples of 16
    source = triton.compiler.ASTSource(
        attention_small, signature, {"d": launch.d, "Br": launch.Br, "Bc": launch.Bc}, aligned
    )
    options = {"num_warps": launch.warps, "num_stages": launch.stages}
    target = triton.backends.compiler.GPUTarget("cuda", int(capability.replace(".", "")), 32)
    kernel = triton.compile(source, target=target, options=options)
    binaries = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, sass = (
            subprocess.run(
                [binaries / "cuobjdump", option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for option in ("--dump-resource-usage", "-sass")
        )
    registers, stack = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))
    lines = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", sass, re.MULTILINE)
    return launch._replace(
        shared=kernel.metadata.shared, registers=registers, stack=stack, ptx=kernel.asm["ptx"], sass="\n".join(lines)
    )


def main(argv: list[str]) -> int:
    """Run the command line. Returns 0; 2 where kernels are interpreted, not compiled."""
    parser = argparse.ArgumentParser("python -m flashlab.bench.compiled", description=__doc__.split("\n\n")[0])
    parser.add_argument("capability", type=_capability, help="the GPU's, such as 9.0")
    parser.add_argument("launches", nargs="+", type=_launch, metavar="launch", help="Br,Bc,d,warps,stages")
    options = parser.parse_args(argv)
    from flashlab.kernels import INTERPRETED  # here, since a caller of ``compiled`` may need no kernels

    if INTERPRETED:
        print("Kernels are interpreted here: set TRITON_INTERPRET=0 to compile them.", file=sys.stderr)
        return 2
    compiled_launches = [_compile(options.capability, launch) for launch in options.launches]
    print(json.dumps([it._asdict() for it in compiled_launches]))
    return 0


def _capability(text):
    if not re.fullmatch(r"\d+\.\d", text):
        raise argparse.ArgumentTypeError(f"expected a compute capability such as 9.0, got {text}")
    return text


def _launch(text):
    if not re.fullmatch(r"\d+(,\d+){4}", text):
        raise argparse.ArgumentTypeError(f"expected Br,Bc,d,warps,stages, five whole numbers, got {text}")
    return Launch(*map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
