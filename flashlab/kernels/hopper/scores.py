"""Soft caps and ALiBi as Hopper is fastest at them: ``flashlab.kernels.scores`` in Gluon.

A function of ``scores`` takes the places of all scores, i [Br, 1] and j [1, Bc]; one of these only those of the first
row and the first key.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import masks, scores
from flashlab.kernels.problem import LOG2_E


def kernel_args(problem):
    """Return, per step of a problem's score function, a function of these and its arguments."""
    if capped_only(problem.score):
        return ((tanh, ()),)
    looks_back = isinstance(problem.mask, masks.Window) and problem.mask.right == 0
    ours = {scores.capped: capped, scores.lowered: lowered_before if looks_back else lowered}
    return tuple((ours[function], arguments) for function, arguments, *_ in problem.score.kernel_args(problem))


def factors(problem):
    """Return the factor on the scores before those steps, and the one after them, which leads to units of log2."""
    if capped_only(problem.score):
        cap = problem.score.steps[0].cap
        return problem.scale / cap, cap * LOG2_E.value
    return problem.scale, LOG2_E.value


def capped_only(score):
    """Return whether a score function is a soft cap: a hyperbolic tangent between two factors."""
    return len(score.steps) == 1 and isinstance(score.steps[0], scores.Softcap)


@gluon.jit
def apply(steps, S_ij, b, h, row, key, Nq, Nk):
    """Return the scores S_ij [Br, Bc] after all steps. row, key: the places of the first ones."""
    for step in gl.static_range(len(steps)):
        S_ij = steps[step][0](S_ij, b, h, row, key, Nq, Nk, *steps[step][1])
    return S_ij


@gluon.jit
def tanh(S_ij, b, h, row, key, Nq, Nk):
    """Return the hyperbolic tangent as the hardware has it: right to 11 bits, as float16 is."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [S_ij], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def capped(S_ij, b, h, row, key, Nq, Nk, cap):
    """Return ``scores.capped`` by ``tanh``."""
    return cap * tanh(S_ij * (1 / cap), b, h, row, key, Nq, Nk)


@gluon.jit
def lowered(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head):
    """Return ``scores.lowered``."""
    per_block, own, place = distances(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head)
    return S_ij - per_block * gl.abs(own[:, None] - place[None, :])


@gluon.jit
def lowered_before(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head):
    """Return ``scores.lowered`` for the keys up to each query's own, an instruction shorter."""
    per_block, own, place = distances(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head)
    return S_ij + (per_block * place[None, :] - (per_block * own)[:, None])


@gluon.jit
def distances(S_ij, b, h, row, key, Nq, Nk, slopes, batch, head):
    """Return a head's slope per block of keys, the keys at the places of the queries [Br], and all keys [Bc].

    The keys are in blocks from ``key`` - Bc on, in float32. To convert an integer takes the hardware as long as an
    exponential. So the bits of 1 + j / Bc are put together instead.
    """
    Bc: gl.constexpr = S_ij.shape[1]
    gl.static_assert(Bc == 64 or Bc == 128, "the number of a key has 6 or 7 bits")
    shift: gl.constexpr = 17 if Bc == 64 else 16  # a mantissa has 23
    rows = gl.arange(0, S_ij.shape[0], layout=gl.SliceLayout(1, S_ij.type.layout))  # [Br]
    keys = gl.arange(0, Bc, layout=gl.SliceLayout(0, S_ij.type.layout))  # [Bc]
    own = (row + rows + Nk - Nq - key).to(gl.float32) * (1 / Bc) + 1  # [Br]
    place = (keys << shift | 0x3F800000).to(gl.float32, bitcast=True)  # [Bc]
    return gl.load(slopes + b * batch + h * head).to(gl.float32) * Bc, own, place
