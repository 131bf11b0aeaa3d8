"""The stored shared memory, measured on an H200, is that of the course's kernel compiled here for the same GPU."""

import json
import os
import subprocess
import sys

import pytest

from flashlab.course import data

pytest.importorskip("flashlab.kernels", reason="the kernels need triton, which is for Linux")

COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from flashlab.bench.shared_memory import SHAPES
from flashlab.course.exercises.triton_forward import attention_one_head

POINTERS = {"Q": "*fp16", "K": "*fp16", "V": "*fp16", "O": "*fp32", "lse": "*fp32"}
for Br, Bc, d, stages, warps in SHAPES:
    constants = {"Br": Br, "Bc": Bc, "d": d, "causal": False}
    types = {name: POINTERS.get(name, "i32") for name in attention_one_head.arg_names} | {"scale": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    values = {(list(types).index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(types) if types[name][0] in "*i"}
    source = ASTSource(attention_one_head, types, values, aligned)
    options = {"num_warps": warps, "num_stages": stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    print(json.dumps([Br, Bc, d, stages, warps, compiled.metadata.shared]))
"""


@pytest.mark.exhaustive
def test_the_stored_shared_memory_is_that_of_the_kernel_compiled_here():
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    compiled = [json.loads(line) for line in run.stdout.splitlines()]
    stored = data.measured("shared_memory")["launches"]
    assert [line[:5] for line in compiled] == [
        [launch[key] for key in ("Br", "Bc", "d", "stages", "warps")] for launch in stored
    ]
    for (*_, shared), launch in zip(compiled, stored, strict=True):
        assert launch.get("shared") == shared or f"Required: {shared}," in launch["refused"]
