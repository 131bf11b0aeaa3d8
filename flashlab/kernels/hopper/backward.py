"""The backward pass for compute capability 9.0 in one pass over the tiles: 5 products of tiles, not 7.

Heads of more than 128 columns, and of more than 64 in deterministic mode, take two passes: ``two_passes``.

Programs take tiles of keys in turn (``Turns``), half a tile in each of two consumers (warpgroups), and iterate over the
queries. dK_j and dV_j stay in registers until the end of a turn. dQ_i is computed a tile at a time and added to sums in
global memory, in float32. Idle warps narrow these sums with 64 columns, and a kernel of its own with 128 (``sums``).
All tiles of keys of a head add to the same sums, in an order that differs from run to run, so the last bits of dQ
differ, too. ``flashlab.kernels.portable.backward`` gives the same bits every time.

Tiles are transposed, [Bc, Br], so that P^T and dS^T multiply from the left as they come out of the registers. dS^T also
goes to shared memory, because dQ_i takes the keys of both consumers: each then makes a part of dQ_i. That product is
issued a step late, after the next dS^T. By then the other consumer has stored its part of dS_i^T, so the wait is short.

Shared memory delivers 128 bytes per cycle, and products of tiles in shared memory would take all of them. With 64
columns, registers hold the left operands that all steps share: K, V, and K^T, since dQ_i comes transposed there.

This module has the launches and the kernel; ``backward_roles`` has its roles and the step of a consumer.

Source: FlashAttention-3, section 3, and its backward kernel's division of labour; with 64 columns, the order of a step
is that of FlashAttention-4, but for dQ_i.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.kernels import dependent_launch, masks, tiles
from flashlab.kernels.configurations import choose, hopper_width
from flashlab.kernels.hopper import queries, scores, two_passes
from flashlab.kernels.hopper.arguments import descriptor, flat_descriptor, last_heads, multiprocessors, rows_descriptor
from flashlab.kernels.hopper.backward_roles import CONSUMERS, ROWS, allocate, consume, produce
from flashlab.kernels.hopper.products import filled
from flashlab.kernels.hopper.stages import Turns
from flashlab.kernels.hopper.sums import (
    PART_COLUMNS,
    PART_ROWS,
    WARPS,
    columns_of,
    hold,
    lag_of,
    narrow,
    narrow_earlier,
    ring_of,
    size_of,
    transposed,
)
from flashlab.kernels.launch import launch, repeat
from flashlab.kernels.portable.backward import repair
from flashlab.kernels.portable.rows import Constants, constants_for, padded_rows, shares_of, start_rows, start_sums

KEYS = 128  # of a program: those of its consumers
ROWS_OF_QUERIES = 64  # in a tile: the sums of dQ are ordered by such tiles
REGISTERS = gl.constexpr(240)  # per thread of a consumer
OTHER_REGISTERS = gl.constexpr(24)  # of the producer, and of the warps that narrow


def run(gradients, incoming, saved, problem, launches, rest=None, launched=None):
    """Fill dq, dk, dv as ``portable.backward.run`` does, except for the last bits of dq, which may differ.

    All tensors have one dtype, float16 or bfloat16; Nq and Nk are at least 1. Inputs must be ``tiles.ready``, and dq,
    dk, dv contiguous. There is no dropout, and under a ``Rule`` some query sees each key. launches: a ``Configuration``
    for "row_constants", and one for "backward", of which Br (always ROWS_OF_QUERIES), stages and parts are used. In
    place of the latter, two for the kernels of ``two_passes``, with which the bits of dq are always the same.

    Returns delta, as ``portable.backward.run`` does.
    """
    launched = {} if launched is None else launched
    dq, *of_keys = gradients
    q, k, v, o, lse = saved
    do, dlse = incoming
    problem, dk, dv, k, v = without_unseen(problem, *of_keys, k, v)
    parts = max(c.parts for c in launches.values())
    constants, shares = constants_for(lse, rest), shares_of((dk, dv), parts)
    rows = o, do, lse, rest, dlse, constants
    if "backward" in launches:
        start_one_pass(rows, q, k, v, do, dq, *shares, problem, launches, launched)
    else:
        start_rows(*rows, None, problem.unit, launches["row_constants"], launched)
        tensors = q, k, v, do
        two_passes.start_keys(*tensors, *shares, constants, problem, launches["key_value_gradients"], launched)
        two_passes.start_queries(*tensors, dq, constants, problem, launches["query_gradients"], launched)
    start_sums((dk, dv), shares, parts, launched)
    if problem.mask.keeps_apart:
        launches = choose("backward", problem, "portable").launches
        repair((dq, dk, dv), q, k, v, do, constants, problem, launches, launched)
    return None if problem.sinks is None else constants.delta


def start_one_pass(rows, q, k, v, do, dq, dk, dv, problem, launches, launched):
    """Launch the kernels that compute dK, dV and the sums of dQ, and narrow these. rows: as for ``start_rows``."""
    lse, constants = rows[2], rows[5]
    c, width = launches["backward"], hopper_width(problem.d, problem.dv)
    columns = columns_of(problem.d, width)
    lag = lag_of(problem, KEYS, width)
    heads, group, Nq_padded = problem.B * problem.Hk * c.parts, problem.group // c.parts, padded_rows(problem.Nq)
    zeros = lse.new_empty(size_of(heads, lag, Nq_padded, columns, group))
    sums, counters = ring_of(zeros, heads, Nq_padded, columns)
    start_rows(*rows, zeros, problem.unit, launches["row_constants"], launched)
    start_products(q, do, k, v, dk, dv, constants, sums, counters, dq, Nq_padded, problem, lag, c, launched)
    start_narrow(dq, sums, problem.scale, min(lag or heads, heads) * group, launched)


class Sums:
    """The sums of dQ, to which several calls may add, each with other keys, and the ``Constants`` that all calls need.

    do and o [B, H, Nq, dv]; lse [B, H, Nq] is that of all keys. columns: as ``columns_of`` gives. unit: as in
    ``Problem``.
    """

    def __init__(self, do, dlse, o, lse, columns, unit, launch_of_rows):
        B, H, Nq = lse.shape
        zeros = lse.new_empty(size_of(B * H, None, padded_rows(Nq), columns, 1))
        self.constants = constants_for(lse)
        self.dQ, self.counters = ring_of(zeros, B * H, padded_rows(Nq), columns)
        start_rows(o, do, lse, None, dlse, self.constants, zeros, unit, launch_of_rows, {})

    def add(self, of_queries, of_keys, gradients, problem, c, row=0):
        """Fill dk and dv from (q, do) and (k, v), and add their share to the sums of dQ.

        The queries are those from ``row`` on, in whole tiles of c.Br; only the last tile of all may be shorter.
        """
        problem, dk, dv, k, v = without_unseen(problem, *gradients, *of_keys)
        constants = Constants(*(None if x is None else x.view(-1)[row:] for x in self.constants))
        _, Nq_padded, columns = self.dQ.shape
        shares = shares_of((dk, dv), c.parts)
        tensors = *of_queries, k, v, *shares, constants, self.dQ.view(-1, columns)[row:], self.counters, None
        start_products(*tensors, Nq_padded, problem, None, c, {})
        start_sums((dk, dv), shares, c.parts, {})

    def narrow(self, dq, scale):
        """Fill dq [B, H, Nq, d], contiguous, with scale times the sums."""
        start_narrow(dq, self.dQ, scale, len(self.dQ), {})


def start_products(
    q, do, k, v, dk, dv, constants, sums, counters, dq, Nq_padded, problem, lag, c, launched
):  # fmt: skip
    """Launch the kernel of dK, dV and the sums of dQ: ``Constants`` [..., rows], sums [..., rows, width].

    lag: between the heads that are added to and those that are narrowed. None: this kernel narrows no head.
    """

    def first():
        width = hopper_width(problem.d, problem.dv)
        streamed = [descriptor(x, c.Br, width) for x in (q, do)]
        kept = [descriptor(x, ROWS.value, width) for x in (k, v, dk, dv)]
        of_rows = [None if x is None else flat_descriptor(x, c.Br) for x in constants]
        parts = None if lag is None else rows_descriptor(sums, PART_ROWS.value, PART_COLUMNS.value)
        args, _ = problem._replace(mask=masks.full(), sinks=None).kernel_args(c)
        Hk = problem.Hk * c.parts
        score = scores.derivative_args(problem)
        args = args._replace(mask=queries.kernel_args(problem, c.Br, KEYS), score=score)
        args = args._replace(d=gl.constexpr(filled(problem.d)), dv=gl.constexpr(filled(problem.dv)))
        tiles_of_keys = tiles.count(problem.Nk, KEYS)
        heads = Hk * problem.B
        last = last_heads(problem, tiles_of_keys, heads) if lag is None else None  # a lag needs heads in order
        turns = Turns(tiles_of_keys, Hk, tiles_of_keys * heads, Nq_padded, last)
        variant = queries.Variant.of(problem, queries.stand_in(problem), KEYS, is_late(problem, width))
        early = dependent_launch.possible(problem.device)
        return launch(
            attention_backward,
            (min(turns.all, multiprocessors(problem.device)), 1, 1),
            (*streamed, *kept, *of_rows, sums, counters, parts, earlier[1]),
            (turns, args, lag, problem.d, c.Br, width, c.stages, variant, early),
            warps=4,
            early=early,
        )

    earlier = (None, None) if lag is None else (sums, dq)
    repeat(launched, "products", (q, do, k, v, dk, dv, *constants, sums, counters, *earlier), first)


def is_late(problem, width):
    """Tell whether the second consumer leaves out the first tile of queries, which see none of its keys.

    With 128 columns it does not: that loop would spill more.
    """
    aligned = problem.Nq >= problem.Nk and (problem.Nq - problem.Nk) % KEYS == 0
    return transposed(width) and aligned and problem.mask == masks.causal()


def start_narrow(dq, sums, scale, last, launched):
    """Launch the kernel that narrows the sums of dQ of this many heads, the last ones."""

    def first():
        B, H, Nq, d = dq.shape
        heads, Nq_padded, columns = sums.shape
        grid = tiles.count(Nq, ROWS_OF_QUERIES), CONSUMERS.value, last
        early = dependent_launch.possible(dq.device)
        numbers = scale, Nq, Nq_padded, d, B * H - last, heads, ROWS_OF_QUERIES, columns, early
        return launch(narrow, grid, (dq, sums), numbers, warps=4, early=early)

    repeat(launched, "narrow", (dq, sums), first)


def without_unseen(problem, dk, dv, k, v):
    """Leave out the keys before the window of the first query: no query sees them, and their gradients are 0.

    Masks are aligned at the lower right, so the others keep their places.
    """
    left = None if isinstance(problem.mask, masks.Rule) else problem.mask.left
    unseen = 0 if left is None else problem.Nk - problem.Nq - left
    if unseen <= 0:
        return problem, dk, dv, k, v
    dk[:, :, :unseen] = dv[:, :, :unseen] = 0
    return problem._replace(Nk=problem.Nk - unseen), *(x[:, :, unseen:] for x in (dk, dv, k, v))


@gluon.jit
def attention_backward(
    Q, dO, K, V, dK, dV,  # descriptors
    lse, delta, rest,  # descriptors of ``Constants``, flat, [B * H * Nq_padded]
    sums,  # pointer to the sums of dQ, float32, [heads, Nq_padded * width], each tile as ``sums.add`` orders it
    counters,  # pointer, int32 [1 + B * Hk]: of turns, and with a lag, of tiles of each head that are done
    parts, dQ,  # with a lag: descriptor of the sums, pointer to dQ; None without
    turns, problem, lag, d,
    Br: gl.constexpr, width: gl.constexpr, stages: gl.constexpr, variant: gl.constexpr, early: gl.constexpr,
):  # fmt: skip
    """Compute rows j * Bc .. (j + 1) * Bc of dK and dV for each tile j of keys, and add its share to dQ.

    turns: ``Turns``. lag: as in ``sums``, or None. variant: ``queries.Variant``. Causal: the first tiles of a head have
    the keys that most queries see. Where a group has several parts, a head of K and V counts as several heads in a row,
    as in the portable kernel.
    """
    dependent_launch.begin(early)
    shared = allocate(Q, dO, K, V, lse, delta, rest, lag, Br, width, stages)
    if lag is None:
        gl.warp_specialize(
            [
                (consume, (shared, dK, dV, sums, turns, problem, lag, 0, variant)),
                (consume, (shared, dK, dV, sums, turns, problem, lag, 1, variant)),
                (produce, (shared, Q, dO, K, V, lse, delta, rest, counters, turns, problem, lag)),
            ],
            [4, 1],
            [REGISTERS, OTHER_REGISTERS],
        )
    else:
        held = hold(parts)
        gl.warp_specialize(
            [
                (consume, (shared, dK, dV, sums, turns, problem, lag, 0, variant)),
                (consume, (shared, dK, dV, sums, turns, problem, lag, 1, variant)),
                (produce, (shared, Q, dO, K, V, lse, delta, rest, counters, turns, problem, lag)),
                (narrow_earlier, (shared, held, parts, sums, counters, dQ, turns, problem, lag, d)),
            ],
            [4, 1, WARPS],
            [REGISTERS, OTHER_REGISTERS, OTHER_REGISTERS],
        )
