"""The backward pass for compute capability 9.0 in two passes over the tiles, one for dK and dV, one for dQ: 7 products.

Each kernel owns its sums, as the portable ones do, so the same inputs give the same bits. Heads of more than 128
columns always take two passes, and heads of 65 to 128 columns in deterministic mode. Above 128 columns, one pass would
have tiles of 64 keys, since registers hold no more of dK and dV. It would add as many bytes to the sums of dQ as it
loads of Q and dO. At the rate of the products, the second level of cache delivers no more than these loads.
"""

from flashlab.kernels import tiles
from flashlab.kernels.hopper import queries, scores
from flashlab.kernels.hopper.arguments import REGISTERS, SHARED, Shape, descriptor, flat_descriptor, last_heads
from flashlab.kernels.hopper.key_gradients import ROWS, key_value_gradients
from flashlab.kernels.hopper.query_gradients import query_gradients
from flashlab.kernels.hopper.stages import Turns
from flashlab.kernels.launch import launch, repeat


def start_keys(q, k, v, do, dk, dv, constants, problem, c, launched):
    """Launch the kernel of dK and dV."""

    def first():
        shape = Shape.of(problem.d, problem.dv)
        streamed = [descriptor(x, c.Br, shape.columns) for x in (q, do)]
        kept = [descriptor(x, ROWS.value, shape.columns) for x in (k, v, dk, dv)]
        of_rows = [None if x is None else flat_descriptor(x, c.Br) for x in constants]
        args, _ = problem._replace(sinks=None).kernel_args(c)
        args = args._replace(mask=queries.kernel_args(problem, c.Br, ROWS.value), score=scores.derivative_args(problem))
        of_head, Hk = tiles.count(problem.Nk, ROWS.value), problem.Hk * c.parts
        heads = Hk * problem.B
        last = last_heads(problem, of_head, heads)
        turns = Turns(of_head, Hk, of_head * heads, constants.delta.shape[2], last)
        variant = queries.Variant.of(problem, queries.stand_in(problem), ROWS.value)
        return launch(
            key_value_gradients,
            (turns.all, 1, 1),
            (*streamed, *kept, *of_rows),
            (turns, args, c.Br, shape, c.stages, variant, *REGISTERS[2]),
            warps=4,
        )

    repeat(launched, "keys", (q, do, k, v, dk, dv, *constants), first)


def start_queries(q, k, v, do, dq, constants, problem, c, launched):
    """Launch the kernel of dQ."""

    def first():
        shape = Shape.of(problem.d, problem.dv)
        kept = [descriptor(x, c.Br // 2, shape.columns) for x in (q, do)]
        streamed = [descriptor(x, c.Bc, shape.columns) for x in (k, v)]
        args, _ = problem._replace(sinks=None).kernel_args(c)
        args = args._replace(score=scores.derivative_args(problem))
        Tr, Nq_padded = tiles.count(problem.Nq, c.Br), constants.delta.shape[2]
        last = last_heads(problem, Tr, problem.H * problem.B)
        stages_v = stages_of_values(shape, c, q.dtype.itemsize)
        variant = queries.Variant.of(problem, problem.mask, c.Bc)
        return launch(
            query_gradients,
            (Tr * problem.H * problem.B, 1, 1),
            (*kept, *streamed, descriptor(dq, c.Br // 2, shape.columns), constants),
            (Tr, problem.H, Nq_padded, last, args, c.Bc, shape, c.stages, stages_v, variant, *REGISTERS[2]),
            warps=4,
        )

    repeat(launched, "queries", (q, do, k, v, dq, constants), first)


def stages_of_values(shape, c, itemsize):
    """Return how many stages of V fit beside those of K and a tile of Q and dO, but no more than K has."""
    of_Q_and_dO = c.Br * (shape.pieces + shape.pieces_v)
    room = SHARED // (shape.columns * itemsize) - of_Q_and_dO - c.stages * c.Bc * shape.pieces  # rows of a piece
    return min(c.stages, room // (c.Bc * shape.pieces_v))
