"""First kernels in Gluon: X^T X, of one block of X and of many. Kernels to read, small enough for one screen.

``one_block`` allocates all that it uses: shared memory for a tile, a barrier that completes when the tile is there, and
registers for the product. ``gram`` gives the two halves of the work to two kinds of warps. Its ``produce`` and
``consume`` are those of ``flashlab.reference.barriers``, which run on the simulated multiprocessor.

``machine_code`` compiles them on any machine with Triton. The compiler and the interpreter cannot share a process, so
it starts one: ``python -m flashlab.kernels.hopper.toy NAME`` prints its answer as JSON.
"""

import json
import sys
from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from flashlab.kernels.device import run_compiled
from flashlab.kernels.hopper.arguments import DTYPES
from flashlab.kernels.hopper.products import accumulator
from flashlab.kernels.hopper.stages import release, stage_of, wait_empty, wait_full
from flashlab.kernels.launch import launch

WIDTH = 64  # columns of X, which are the rows of the result: a product of a warpgroup has 64


def gram(x, rows=128, stages=2):
    """Compute X^T X by one program, on compute capability 9.0, or for X on the CPU in the interpreter.

    Args:
        x: X [N, 64], float16 or bfloat16, contiguous. rows: of a block; past the end of X the copy engine brings zeros.
        stages: of shared memory.

    Returns:
        X^T X [64, 64], float32.
    """
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    result = torch.empty(WIDTH, WIDTH, dtype=torch.float32, device=x.device)
    layout = gl.NVMMASharedLayout.get_default_for([rows, WIDTH], DTYPES[x.dtype])
    X = TensorDescriptor.from_tensor(x, [rows, WIDTH], layout)
    launch(gram_kernel, (1, 1, 1), (X, result), (-(-len(x) // rows), stages), warps=4)
    return result


@gluon.jit
def one_block(X, XX):
    """Compute X^T X [d, d] of one block of X [rows, d], both d = 64."""
    X_0 = gl.allocate_shared_memory(X.dtype, X.block_type.shape, X.layout)  # [rows, d]
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    fence_async_shared()
    mbarrier.expect(full, X.block_type.nbytes)
    tma.async_copy_global_to_shared(X, [0, 0], full, X_0)
    mbarrier.wait(full, 0)
    zeros = gl.zeros([64, 64], gl.float32, accumulator(64))  # [d, d]
    sums = warpgroup_mma(X_0.permute((1, 0)), X_0, zeros)  # [d, d]
    store(XX, sums)


@gluon.jit
def store(XX, sums):
    """Store sums [d, d] from the registers in which they are."""
    rows = gl.arange(0, sums.shape[0], layout=gl.SliceLayout(1, sums.type.layout))  # [d]
    columns = gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, sums.type.layout))  # [d]
    gl.store(XX + rows[:, None] * sums.shape[1] + columns[None, :], sums)


@gluon.jit
def gram_kernel(X, XX, steps, stages: gl.constexpr):
    """Compute X^T X: a warp that copies, and four warps that multiply."""
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    ring = gl.allocate_shared_memory(X.dtype, [stages, X.block_type.shape[0], X.block_type.shape[1]], X.layout)
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], barriers)
    empty = gl.allocate_shared_memory(gl.int64, [stages, 1], barriers)
    for stage in gl.static_range(stages):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    fence_async_shared()
    gl.warp_specialize([(consume, (ring, full, empty, steps, XX)), (produce, (ring, full, empty, steps, X))], [1], [24])


@gluon.jit
def produce(ring, full, empty, steps, X):
    """Run the producer: have each block copied as soon as its stage is free."""
    for g in range(steps):
        wait_empty(empty, g)
        mbarrier.expect(stage_of(full, g), X.block_type.nbytes)
        tma.async_copy_global_to_shared(X, [g * ring.shape[1], 0], stage_of(full, g), stage_of(ring, g))


@gluon.jit
def consume(ring, full, empty, steps, XX):
    """Run the consumer: multiply each block once it is there, and give its stage back."""
    sums = gl.zeros([64, 64], gl.float32, accumulator(64))  # [d, d]
    for g in range(steps):
        wait_full(full, g)
        X_g = stage_of(ring, g)  # [rows, d]
        sums = warpgroup_mma(X_g.permute((1, 0)), X_g, sums, is_async=True)  # [d, d]
        sums = warpgroup_mma_wait(0, deps=(sums,))
        release(empty, g)
    store(XX, sums)


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
    return Code(**run_compiled("flashlab.kernels.hopper.toy", name, KERNELS))


def compiled(name):
    """Compile a kernel in this process, whose Triton does not interpret, for blocks of 128 rows and two stages."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    block = [128, WIDTH]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16)
    signature = {"X": f"tensordesc<bf16{block},{layout!r}>", "XX": "*fp32"}
    if name == "one_block":
        source = GluonASTSource(one_block, signature, {})
    else:
        signature |= {"steps": "i32", "stages": "constexpr"}
        source = GluonASTSource(gram_kernel, signature, {(3,): 2})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def main(name):
    """Print the ``Code`` of a kernel as JSON."""
    kernel = compiled(name)
    ptx = [line.strip() for line in kernel.asm["ptx"].splitlines() if line.startswith("\t")]
    print(json.dumps({"ptx": ptx, "shared": kernel.metadata.shared}))


if __name__ == "__main__":
    main(sys.argv[1])
