"""The smallest pipeline: one program has blocks copied, another multiplies them, and barriers keep them in order.

It computes X^T X as the sum of X_g^T X_g over blocks X_g of X. Step g uses stage g % stages, and is the
(g // stages)-th to use it, counted from 0. Shared memory holds nothing but these stages.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.arguments import check_arguments
from flashlab.machine.operations import Arrive, Barrier, Buffer, Copy, Finish, Product, Tile, Wait
from flashlab.machine.sm import SM

COPY, MULTIPLY = 600, 500  # cycles that a block takes, by the copy engine and by the tensor core


class Ring(NamedTuple):
    """Stages of shared memory, and for each the two barriers that guard it."""

    X: list[Buffer]  # [rows, d] each
    full: list[Barrier]  # its phase ends when the bytes of a step have arrived
    empty: list[Barrier]  # its phase ends when the step has been read


@check_arguments()
def ring(stages: int, shape: tuple[int, int], dtype: DTypeLike) -> Ring:
    """Return a ``Ring`` of empty buffers and of barriers in their first phase."""
    full, empty = ([Barrier(f"{name}[{s}]", count=1) for s in range(stages)] for name in ("full", "empty"))
    return Ring([Buffer(f"X[{s}]", shape, dtype) for s in range(stages)], full, empty)


def produce(ring: Ring, blocks: Sequence[np.ndarray]) -> Generator[object, Any, None]:
    """Run the producer: have each block copied as soon as its stage is free."""
    for g, X_g in enumerate(blocks):
        stage, n = g % len(ring.X), g // len(ring.X)
        yield Wait(ring.empty[stage], (n & 1) ^ 1)
        yield Arrive(ring.full[stage], ring.X[stage].nbytes)
        yield Copy(Tile("X", g, g), X_g, ring.X[stage], ring.full[stage], COPY)


def consume(ring: Ring, steps: int, sums: np.ndarray) -> Generator[object, Any, None]:
    """Run the consumer: multiply each block once it is there, and give its stage back."""
    for g in range(steps):
        stage, n = g % len(ring.X), g // len(ring.X)
        yield Wait(ring.full[stage], n & 1)
        job = yield Product("XX", g, {ring.X[stage]: Tile("X", g, g)}, lambda X_g: X_g.T @ X_g, 1, MULTIPLY)
        yield Finish(0)
        sums += job.result
        yield Arrive(ring.empty[stage])


@check_arguments()
def gram(
    X: np.ndarray, rows: int, stages: int, *, produce: Callable = produce, consume: Callable = consume
) -> tuple[np.ndarray, int]:
    """Return X^T X [d, d] and the cycles that it took.

    Args:
        X: [N, d], cut into blocks of ``rows``, which must divide N. stages: the number of stages of shared memory.
        produce, consume: the two programs.

    Raises:
        ValueError: rows does not divide N. Deadlock, Race: the programs do not agree.
    """
    if len(X) % rows:
        raise ValueError(f"expected a number of rows that divides {len(X)}, got {rows}")
    blocks, sums = np.split(X, len(X) // rows), np.zeros((X.shape[1],) * 2, X.dtype)
    shared, sm = ring(stages, (rows, X.shape[1]), X.dtype), SM()
    sm.run({"producer": produce(shared, blocks), "consumer": consume(shared, len(blocks), sums)})
    return sums, sm.now
