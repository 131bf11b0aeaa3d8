"""Ping-pong: warpgroups issue their products in turn, so that one multiplies while the next takes exponentials."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def wait_turn(shared, w: gl.constexpr, g, variant: gl.constexpr):
    """Wait for one's turn: warpgroups issue products in turn, 0 first, and one multiplies while the next takes exps."""
    if variant.pingpong:
        mbarrier.wait(shared.turn.index(w), (g & 1) ^ 1 if w == 0 else g & 1)


@gluon.jit
def pass_turn(shared, w: gl.constexpr, variant: gl.constexpr):
    """Let the next warpgroup issue its products (ping-pong)."""
    if variant.pingpong:
        mbarrier.arrive(shared.turn.index((w + 1) % shared.O.shape[0]), count=1)


@gluon.jit
def skip_turn(shared, w: gl.constexpr, g, skipped, variant: gl.constexpr):
    """Take and pass the turn of a block that warpgroup w skips (ping-pong)."""
    if variant.pingpong:
        if skipped > 0:
            wait_turn(shared, w, g, variant)
            pass_turn(shared, w, variant)
