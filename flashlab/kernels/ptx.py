"""Blocks of PTX in the Hopper kernels. ``gluon_interpreter.language`` computes their results.

A warp skips alpha * O_i if all its alphas are 1. Gluon has no branch per warp, so this skip is PTX.
"""

from triton.experimental.gluon import language as gl

# Four float32 numbers as e4m3, the first in the lowest byte.
NARROW = gl.constexpr("""{
.reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
mov.b32 $0, {low, high};
}""")


def _multiply(n):
    """Return PTX that multiplies n numbers per thread by their factors, unless all factors of the warp are 1.

    Its operands are n numbers and n factors, one per number. Only two factors differ, those of the thread's two rows:
    factors 0 and 2. Also return the constraints of the operands.
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
