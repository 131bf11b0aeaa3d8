"""alpha * O_i, skipped by warps in which every alpha is 1. Gluon has no branch for one warp, so this is PTX."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels.hopper.products import along_rows


def _multiply(n):
    """Return PTX that multiplies n numbers per thread by their factors unless all factors of the warp are 1.

    n factors come in, one per number, but only two differ: those of the two rows that a thread has part in, which the
    layout puts at 0 and 2. Also returned: the names of its operands.
    """
    products = "\n".join(f"mul.ftz.f32 ${k}, ${k}, ${2 * n + k};" for k in range(n))
    code = f"""{{
.reg .pred first, any;
setp.neu.f32 first, ${2 * n}, 0f3F800000;
setp.neu.or.f32 any, ${2 * n + 2}, 0f3F800000, first;
vote.sync.any.pred any, any, 0xffffffff;
@!any bra.uni KEEP;
{products}
KEEP:
}}"""
    operands = ["=f"] * n + [str(k) for k in range(n)] + ["f"] * n
    return gl.constexpr(code), gl.constexpr(",".join(operands))


MULTIPLY_32, OPERANDS_32 = _multiply(32)
MULTIPLY_64, OPERANDS_64 = _multiply(64)


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
