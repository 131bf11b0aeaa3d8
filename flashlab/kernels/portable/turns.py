"""Which tiles a program computes if there is one program per multiprocessor: if, as one says, it is persistent.

All tiles of all heads are in one list, and the programs take turns at it, with one or two neighbours at a time. Under a
causal mask, the list has the tiles of a head from both ends: the last, the first, the last but one, the second, and so
on. So two neighbours see about as many keys as any other two.
"""

import functools

import torch
import triton
import triton.language as tl

from flashlab.kernels.device import INTERPRETED

COMPILED = tl.constexpr(not INTERPRETED)
FORGET = tl.constexpr("""{
    .reg .pred maker;
    .reg .u32 thread, place;
    mov.u32 thread, %tid.x;
    setp.eq.u32 maker, thread, 0;
    mov.u32 place, global_smem;
    add.u32 place, place, $1;
    @maker mbarrier.inval.shared::cta.b64 [place];
    mov.u32 $0, 0;
}""")  # thread 0 made the barriers; ``global_smem`` is where Triton's shared memory begins


@functools.cache
def programs(device):
    """Return the number of multiprocessors of a GPU; 4 in the interpreter, so that programs have several turns."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@triton.jit
def first(stages: tl.constexpr):
    """Return 0, the number of the first turn, after the barriers that the compiler leaves unused are given up.

    For each tile that warps hand to others, Triton 3.6 and 3.7 make ``stages`` barriers that nothing uses, and then lay
    the first tiles over them. PTX allows that only after ``mbarrier.inval``, and the hardware means it: without, a row
    of Q or K was NaN now and then, at 16 bytes where such barriers had been.
    """
    turn = 0
    if COMPILED:
        for barrier in tl.static_range(stages):
            turn += tl.inline_asm_elementwise(FORGET, "=r,r", [8 * barrier], tl.int32, is_pure=False, pack=1)
    return turn


@triton.jit
def count(tiles, together: tl.constexpr):
    """Return how many turns this program has at a list of tiles, of which it takes ``together`` at once."""
    P = tl.num_programs(0)
    turns = tl.cdiv(tl.cdiv(tiles, together) - tl.program_id(0), P) * together
    return tl.minimum(turns, turns + tiles - 1 - place(turns - 1, together))  # the last tile may lack its neighbour


@triton.jit
def place(turn, together: tl.constexpr):
    """Return the place in the list of the tile that this program takes in a turn."""
    return (tl.program_id(0) + turn // together * tl.num_programs(0)) * together + turn % together


@triton.jit
def tile(place, Tr, alternating: tl.constexpr):
    """Return the head of a tile, counted over all batches, and its number there, of Tr. alternating: from both ends."""
    i = place % Tr
    if alternating:
        i = tl.where(i % 2 == 0, Tr - 1 - i // 2, i // 2)
    return place // Tr, i
