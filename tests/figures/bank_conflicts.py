"""Print Triton's own count of bank conflicts for each layout, in order and swizzled, for ``test_layouts``.

Triton counts while it compiles, so this runs in a separate process, without Triton's interpreter and cache.
"""

from figures import layouts  # isort: split

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource


@gluon.jit
def store(layout: gl.constexpr, shared: gl.constexpr, SIZE: gl.constexpr):
    """Store a tile from registers of one layout to shared memory of another."""
    tile = gl.allocate_shared_memory(gl.bfloat16, [SIZE, SIZE], shared)  # [SIZE, SIZE]
    zeros = gl.zeros([SIZE, SIZE], gl.bfloat16, layout)  # [SIZE, SIZE]
    gl.static_print(gl.bank_conflicts(zeros.type, tile.type))
    tile.store(zeros)


if __name__ == "__main__":
    for layout in layouts.LAYOUTS.values():
        for shared in (layouts.IN_ORDER, layouts.SWIZZLED):
            signature = {"layout": "constexpr", "shared": "constexpr", "SIZE": "constexpr"}
            source = GluonASTSource(store, signature, {(0,): layout, (1,): shared, (2,): layouts.SIZE})
            triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
