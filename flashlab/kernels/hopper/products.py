"""Products of tiles on the tensor cores (wgmma), and alpha * O_i."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from flashlab.kernels.ptx import MULTIPLY_32, MULTIPLY_64, NARROW, OPERANDS_32, OPERANDS_64


@gluon.constexpr_function
def accumulator(columns, rows=64, bits=16):
    """Return the layout of the sums of a product [rows, columns]: 16 rows per warp, so a warpgroup holds 64.

    bits: of the numbers that are multiplied; one instruction takes 256 bits of a row.
    """
    return gl.NVMMADistributedLayout([3, 0], [rows // 16, 1], [16, columns, 256 // bits])


@gluon.constexpr_function
def filled(d):
    """Return how many columns of a tile the products read, if rows have d numbers: 64, 80, 96 or all 128.

    Columns past d are zeros. Those past the returned number take no instructions.
    """
    return next((columns for columns in (64, 80, 96) if d <= columns), 128)


@gluon.jit
def product(A, B, columns: gl.constexpr = None):
    """Issue A B^T, of tiles in shared memory: B's transpose is another view of the same bytes.

    columns: how many are read, as ``filled``. None: all.
    """
    rows: gl.constexpr = A.shape[0]
    rows_B: gl.constexpr = B.shape[0]
    zeros = gl.zeros([rows, rows_B], gl.float32, accumulator(rows_B, rows, A.dtype.primitive_bitwidth))
    if columns is None or columns == A.shape[1]:
        return warpgroup_mma(A, B.permute((1, 0)), zeros, use_acc=False, is_async=True)
    else:
        A_0, B_0 = A.slice(0, 64, dim=1), B.slice(0, 64, dim=1)
        S = warpgroup_mma(A_0, B_0.permute((1, 0)), zeros, use_acc=False, is_async=True)
        more: gl.constexpr = columns - 64
        if more > 0:
            A_1, B_1 = A.slice(64, more, dim=1), B.slice(64, more, dim=1)
            S = warpgroup_mma(A_1, B_1.permute((1, 0)), S, is_async=True)
        return S


@gluon.jit
def operand(P_ij, dtype: gl.constexpr, width: gl.constexpr):
    """Return P_ij, narrowed, as the left operand of a product with ``width`` columns: no number changes its thread."""
    left: gl.constexpr = gl.DotOperandLayout(0, accumulator(width, P_ij.shape[0]), 2)
    return gl.convert_layout(P_ij.to(dtype), left, assert_trivial=True)


@gluon.jit
def fours(P_ij):
    """Return P_ij [Br, Bc] in e4m3, the weights of four keys in a number of 32 bits: [Br, Bc / 4].

    Columns are in the order of ``forward_float8.key_of``. Loops carry this form: a number of 8 bits
    alone takes a register of 32.
    """
    Br: gl.constexpr = P_ij.shape[0]
    Bc: gl.constexpr = P_ij.shape[1]
    even, odd = gl.split(gl.permute(gl.reshape(P_ij, [Br, 2, Bc // 4, 2]), (0, 2, 1, 3)))
    P_0, P_2 = gl.split(even)  # [Br, Bc / 4]
    P_1, P_3 = gl.split(odd)  # [Br, Bc / 4]
    # Not pure, so that it stays in place: no register of an operand may be written while a product runs.
    return gl.inline_asm_elementwise(NARROW, "=r,f,f,f,f", [P_0, P_1, P_2, P_3], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def operand_of_fours(fours, width: gl.constexpr):
    """Return the left operand [Br, Bc], in e4m3, of a product with ``width`` columns. See ``operand``."""
    left: gl.constexpr = gl.DotOperandLayout(0, accumulator(width, fours.shape[0], 8), 4)
    each = gl.join(gl.join(fours, fours), gl.join(fours, fours))  # [Br, Bc / 4, 2, 2]
    each = gl.convert_layout(gl.reshape(each, [fours.shape[0], 4 * fours.shape[1]]), left, assert_trivial=True)
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r,r,r,r", [each], dtype=gl.float8e4nv, is_pure=False, pack=4
    )


@gluon.jit
def along_rows(x, O_i, free: gl.constexpr = True):
    """Return x [Br] in the layout of the rows of O_i. free: raise if a number would have to move."""
    return gl.convert_layout(x, gl.SliceLayout(1, O_i.type.layout), assert_trivial=free)


@gluon.jit
def rescale(O_i, alpha):
    """Return alpha[:, None] * O_i for O_i [64, width] in the registers of a warpgroup; free where all alphas are 1."""
    O_i, factors = gl.broadcast(O_i, along_rows(alpha, O_i)[:, None])
    if O_i.shape[1] == 64:
        O_i = gl.inline_asm_elementwise(
            MULTIPLY_32, OPERANDS_32, [O_i, factors], dtype=gl.float32, is_pure=True, pack=32
        )
    else:
        O_i = gl.inline_asm_elementwise(
            MULTIPLY_64, OPERANDS_64, [O_i, factors], dtype=gl.float32, is_pure=True, pack=64
        )
    return O_i
