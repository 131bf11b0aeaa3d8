"""Products of tiles on the tensor cores (wgmma): where their operands and sums are held."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma


@gluon.constexpr_function
def accumulator(columns, rows=64):
    """Return the layout of the sums of a product [rows, columns]: 16 rows per warp, so a warpgroup holds 64."""
    return gl.NVMMADistributedLayout([3, 0], [rows // 16, 1], [16, columns, 16])


@gluon.jit
def product(A, B):
    """Issue A B^T, of tiles in shared memory: B's transpose is another view of the same bytes."""
    rows: gl.constexpr = A.shape[0]
    columns: gl.constexpr = B.shape[0]
    zeros = gl.zeros([rows, columns], gl.float32, accumulator(columns, rows))
    return warpgroup_mma(A, B.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def operand(P_ij, dtype: gl.constexpr, width: gl.constexpr):
    """Return P_ij narrowed, as the left operand of a product with ``width`` columns: no number leaves its register."""
    left: gl.constexpr = gl.DotOperandLayout(0, accumulator(width, P_ij.shape[0]), 2)
    return gl.convert_layout(P_ij.to(dtype), left, assert_trivial=True)


@gluon.jit
def along_rows(x, O_i, free: gl.constexpr = True):
    """Return x [Br] in the layout of the rows of O_i. free: no number may leave its register."""
    return gl.convert_layout(x, gl.SliceLayout(1, O_i.type.layout), assert_trivial=free)
