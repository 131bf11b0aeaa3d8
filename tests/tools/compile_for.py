"""Compile the attention kernels for a GPU that is not here: ``python -m tests.tools.compile_for 9.0``.

Prints one JSON object a line: the kernel, and what the machine code takes of shared memory, registers and stack.
Needs TRITON_INTERPRET=0, and so a process of its own.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flashlab.kernels import configurations, tiles
from flashlab.kernels.portable import backward, forward

SHARED = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (9, 0): 227, (12, 0): 99}  # KB a program may have at most
KERNELS = {
    "forward": forward.attention_forward,
    "key_value_gradients": backward.key_value_gradients,
    "query_gradients": backward.query_gradients,
}
ROWS = {"Q": "Br", "K": "Bc", "V": "Bc", "O": "Br", "dO": "Br", "dQ": "Br", "dK": "Bc", "dV": "Bc"}
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
BINARIES = Path(triton.__file__).parent / "backends/nvidia/bin"


def compile_for(capability, kernel, dtype, d, causal, Nk=1000, *, true_float32=False, c=None):
    """Compile with the configuration that a launch would have, or with c; what it takes, as a dict."""
    card = configurations.Card(capability, SHARED[capability] * 1024)
    c = c or configurations.choose(kernel, card, dtype, true_float32, d, d, causal, Nk)
    function = KERNELS[kernel]
    constants = {"Br": c.Br, "Bc": c.Bc, "width": tiles.width_of(d), "width_v": tiles.width_of(d), "group": 1}
    constants |= {"causal": causal, "masked": causal or Nk % c.Bc != 0, "precision": "ieee" if true_float32 else "tf32"}
    signature, constexprs, attributes = {}, {}, {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            constexprs[i,] = constants[name]
        elif name.endswith("_strides"):
            signature[name] = ("i64", "i64", "i32", "constexpr")
            constexprs[i, 3] = 1
            attributes |= {(i, j): [["tt.divisibility", 16]] for j in range(3)}
        elif name in ROWS and capability >= (9, 0):
            signature[name] = f"tensordesc<{NAMES[dtype]}[1, 1, {getattr(c, ROWS[name])}, {tiles.width_of(d)}]>"
        elif name in ROWS or name in ("lse", "lse_log2", "delta"):
            signature[name] = "*" + (NAMES[dtype] if name in ROWS else "fp32")
            attributes[i,] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name.startswith("scale") else "i32"
            if name in ("d", "dv", "Nq_padded"):
                attributes[i,] = [["tt.divisibility", 16]]
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    options = {"num_warps": c.warps, "num_stages": c.stages}
    compiled = triton.compile(ASTSource(function, signature, constexprs, attributes), target=target, options=options)
    used = resources(compiled.asm["cubin"])
    itemsize = 4 if capability < (8, 0) else dtype.itemsize
    return {
        "kernel": function.__name__, "capability": capability, "dtype": NAMES[dtype], "d": d, "causal": causal,
        "configuration": c, "shared": compiled.metadata.shared, "available": card.shared_bytes,
        "bound": configurations.shared_bytes(kernel, c, tiles.width_of(d), itemsize), **used,
    }  # fmt: skip


def resources(cubin):
    """Registers a thread, and bytes of stack, of machine code: a stack is what registers could not hold."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(BINARIES / "cuobjdump"), "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {"registers": int(re.search(r"REG:(\d+)", report)[1]), "stack": int(re.search(r"STACK:(\d+)", report)[1])}


def cases(capability):
    """What is compiled for a card: dtypes, head dimensions and masks, most of what its list of configurations has."""
    dtypes = {(7, 5): [(torch.float16, (64, 256))], (8, 6): [(torch.bfloat16, (128, 256)), (torch.float32, (128,))]}
    usual = [(torch.bfloat16, (64, 128, 256)), (torch.float32, (64,))]
    for dtype, widths in dtypes.get(capability, usual):
        for d in widths:
            for kernel in KERNELS:
                yield kernel, dtype, d, True
    if capability == (9, 0):
        for d in (64, 128):
            for kernel in KERNELS:
                yield kernel, torch.bfloat16, d, False
                yield kernel, torch.bfloat16, d, False, 1024


if __name__ == "__main__":
    capability = tuple(int(number) for number in sys.argv[1].split("."))
    for case in cases(capability):
        print(json.dumps(compile_for(capability, *case)), flush=True)
