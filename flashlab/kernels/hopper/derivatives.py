"""Score functions and their derivatives at once, as the Hopper backward kernel takes them.

It has no registers for scores that wait until their gradient is known. So it multiplies the weights by the derivative
as soon as it has them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import scores


def kernel_args(problem):
    """Return ``Chain.kernel_args`` of a problem, with the steps of ``FASTER``, which need no derivative."""
    if problem.score is None:
        return None
    args = problem.score.kernel_args(problem)
    return tuple((FASTER[step[0]], step[1]) if step[0] in FASTER else step for step in args)


@gluon.jit
def apply(problem, St_ij, b, h, i, j):
    """Return the scores after all steps, and their derivatives by the scaled scores St_ij [Bc, Br].

    i, j: places in the whole matrix, [1, Br] and [Bc, 1].
    """
    b, i, j, Nq, Nk = scores.places(problem.texts, b, i, j, problem.Nq, problem.Nk)
    i, j = gl.minimum(i, Nq - 1), gl.maximum(gl.minimum(j, Nk - 1), 0)
    slope = 1.0
    for n in gl.static_range(len(problem.score)):
        if len(problem.score[n]) == 2:
            St_ij, factor = problem.score[n][0](St_ij, b, h, i, j, Nq, Nk, *problem.score[n][1])
            slope *= factor
        else:
            slope *= problem.score[n][2](St_ij, b, h, i, j, Nq, Nk, *problem.score[n][3])
            St_ij = problem.score[n][0](St_ij, b, h, i, j, Nq, Nk, *problem.score[n][1])
    return St_ij, slope


@gluon.jit
def capped(s, b, h, i, j, Nq, Nk, cap):
    """Return ``scores.capped`` and its derivative, by the hardware's hyperbolic tangent.

    That is right to 11 bits, as float16 is: one special instruction in the place of two.
    """
    t = gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [s * (1 / cap)], dtype=gl.float32, is_pure=True, pack=1
    )
    return cap * t, 1 - t * t


@gluon.jit
def lowered(s, b, h, i, j, Nq, Nk, slopes, batch, head):
    """Return ``scores.lowered`` and its derivative, with places that are float32 before they are subtracted."""
    slope = gl.load(slopes + b * batch + h * head).to(gl.float32)
    return s - slope * gl.abs((i + Nk - Nq).to(gl.float32) - j.to(gl.float32)), 1.0


FASTER = {scores.capped: capped, scores.lowered: lowered}
