"""Placements: how the P ranks of a group share one sequence of N tokens, and the scores between two ranks.

A placement lists the tokens of each rank as runs of positions: ``range`` objects, in the order of the rank's memory.

- contiguous: rank r has the r-th of P stretches. Under a causal mask the last rank has the most work.
- zigzag: of 2 P stretches, rank r has the r-th from the left and the r-th from the right. Under a causal mask all ranks
  have equal work if 2 P divides N.
- striped: rank r has the tokens r, r + P, r + 2P, ... Under a causal mask all ranks have nearly equal work.

Source: zigzag, https://github.com/zhuzilin/ring-flash-attention; striped, arXiv 2311.09431.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from flashlab.machine.arguments import check_arguments, check_whole, shown
from flashlab.machine.numbers import whole_number

Runs = tuple[range, ...]  # the tokens of one rank


@check_arguments(N=0)
def contiguous(N: int, P: int) -> tuple[Runs, ...]:
    """Return the runs of each of P ranks: one stretch of N / P tokens, rounded down or up."""
    return tuple((stretch,) for stretch in _stretches(N, P))


@check_arguments(N=0)
def zigzag(N: int, P: int) -> tuple[Runs, ...]:
    """Return the runs of each of P ranks: of 2 P stretches, the r-th from either end."""
    stretches = _stretches(N, 2 * P)
    return tuple((stretches[r], stretches[2 * P - 1 - r]) for r in range(P))


@check_arguments(N=0)
def striped(N: int, P: int) -> tuple[Runs, ...]:
    """Return the runs of each of P ranks: every P-th token."""
    return tuple((range(r, N, P),) for r in range(P))


PLACEMENTS = {"contiguous": contiguous, "zigzag": zigzag, "striped": striped}


@check_arguments(N=0)
def placement_of(name: str, N: int, P: int) -> tuple[Runs, ...]:
    """Return the placement of that name. Raises ValueError for another name, a negative N, or P below 1."""
    if name not in PLACEMENTS:
        raise ValueError(f"expected a placement out of {', '.join(PLACEMENTS)}, got {name!r:.40}")
    return PLACEMENTS[name](N, P)


def check_documents(documents: Sequence[int], N: int) -> None:
    """Raise ValueError unless these are the places where texts begin in a sequence of N tokens, with N at the end."""
    whole = all(whole_number(place) is not None for place in documents)
    if not whole or list(documents[:1]) != [0] or documents[-1] != N or list(documents) != sorted(documents):
        expected = f"the places where texts begin, from 0 on, and at the end {N}, the number of tokens"
        raise ValueError(f"documents must be {expected}, got {shown(list(documents))}")


@check_arguments()
def length(runs: Runs) -> int:
    """Return the number of tokens in these runs."""
    return sum(map(len, runs))


def _stretches(N: int, count: int) -> list[range]:
    return [range(N * i // count, N * (i + 1) // count) for i in range(count)]


class Block(NamedTuple):
    """A rectangle of scores between the queries of one rank and the keys of another, in the ranks' own indices.

    ``left`` and ``right`` are the ends of a window inside the rectangle, aligned at its lower right: query i of Nq sees
    the keys from i + Nk - Nq - left to i + Nk - Nq + right, both included. None: no end.
    """

    rows: tuple[int, int]  # queries, from and up to (excluded)
    cols: tuple[int, int]  # keys, from and up to (excluded)
    left: int | None
    right: int | None

    @property
    def pairs(self) -> int:
        """Number of visible scores."""
        Nq, Nk = self.rows[1] - self.rows[0], self.cols[1] - self.cols[0]
        hidden_after = _triangle(Nq - 1 - self.right, Nk) if self.right is not None else 0
        hidden_before = _triangle(Nk - 1 - self.left, Nk) if self.left is not None else 0
        hidden_before -= _triangle(Nk - Nq - 1 - self.left, Nk) if self.left is not None else 0
        return Nq * Nk - hidden_after - hidden_before


def _triangle(longest: int, most: int) -> int:
    """Return min(1, most) + min(2, most) + ... + min(longest, most): keys hidden, one more in each row."""
    if longest <= 0:
        return 0
    short = min(longest, most)
    return short * (short + 1) // 2 + (longest - short) * most


class _Part(NamedTuple):
    """Queries q0 to q1 - 1 and keys k0 to k1 - 1, in the ranks' own indices.

    Query i sees key j if lo <= j - i <= hi; None: no end.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    lo: int | None
    hi: int | None


@lru_cache(maxsize=4096)
def blocks(
    queries: Runs,
    keys: Runs,
    left: int | None = None,
    right: int | None = None,
    documents: tuple[int, ...] | None = None,
) -> tuple[Block, ...]:
    """Return blocks that cover each visible score between the queries of one rank and the keys of another exactly once.

    A query at position p sees the keys at p - left .. p + right, both included; None: no end. documents: the positions
    at which packed texts begin, and N at the end; then a query sees keys of its own text only. All runs must have the
    same step.
    """
    for name, end in (("left", left), ("right", right)):
        if end is not None:
            check_whole(name, end, 0)
    parts = []
    for text in zip(documents, documents[1:], strict=False) if documents is not None else [None]:
        for run, start, row in _placed(queries, text):
            below = []
            for other, first, col in _placed(keys, text):
                if run.step != other.step:
                    raise ValueError("the runs of queries and keys must have one step")
                part = _part(run, start, row, other, first, col, left, right)
                if part is not None:
                    _append(below, part, _beside)
            for part in below:
                _append(parts, part, _below)
    return tuple(_block(part) for part in parts)


def _placed(runs: Runs, text: tuple[int, int] | None) -> Iterable[tuple[range, int, int]]:
    """Yield the runs, cut to one text if there is one: (run, its first position, the rank's index of that position)."""
    offset = 0
    for run in runs:
        inside = run if text is None else run[_index(run, text[0]) : _index(run, text[1])]
        if len(inside) > 0:
            yield inside, inside.start, offset + run.index(inside.start)
        offset += len(run)


def _index(run: range, position: int) -> int:
    """Return how many positions of a run are before ``position``."""
    return min(max(-((run.start - position) // run.step), 0), len(run))


def _part(
    run: range, start: int, row: int, other: range, first: int, col: int, left: int | None, right: int | None
) -> _Part | None:
    """Return the smallest part that holds all visible scores between two runs, None if there are none."""
    step, ahead = run.step, start - first
    lo = None if left is None else -((left - ahead) // step) + col - row
    hi = None if right is None else (right + ahead) // step + col - row
    q0, q1, k0, k1 = row, row + len(run), col, col + len(other)
    if hi is not None:
        q0, k1 = max(q0, k0 - hi), min(k1, q1 + hi)
    if lo is not None:
        q1, k0 = min(q1, k1 - lo), max(k0, q0 + lo)
    if hi is not None:  # again: ``lo`` may have moved k0 and q1
        q0, k1 = max(q0, k0 - hi), min(k1, q1 + hi)
    empty = lo is not None and hi is not None and lo > hi  # a short window may fall between the tokens of a stripe
    if q0 >= q1 or k0 >= k1 or empty:
        return None
    hi = None if hi is None or q0 + hi >= k1 - 1 else hi
    lo = None if lo is None or q1 - 1 + lo <= k0 else lo
    return _Part(q0, q1, k0, k1, lo, hi)


def _append(parts: list, part: Any, join: Callable[[Any, Any], Any]) -> None:
    """Append a part, joined with the last one if ``join`` returns one part for the two."""
    joined = join(parts[-1], part) if parts else None
    parts[-1:] = [joined] if joined else [*parts[-1:], part]


def _beside(a: _Part, b: _Part) -> _Part | None:
    """Join two parts of the same queries if all keys of a are seen, and those of b follow without a left end."""
    if a[:2] == b[:2] and a.k1 == b.k0 and a.lo is a.hi is b.lo is None:
        return b._replace(k0=a.k0)
    return None


def _below(a: _Part, b: _Part) -> _Part | None:
    """Join two parts if b has the next queries, both begin at one key, and they have one right edge and no left one."""
    if a.q1 != b.q0 or a.k0 != b.k0 or not (a.lo is b.lo is None) or a.hi != b.hi:
        return None
    one_edge = a.k1 == b.k1 if a.hi is None else a.q1 + a.hi <= a.k1 <= b.k1
    return b._replace(q0=a.q0) if one_edge else None


def _block(part: _Part) -> Block:
    q0, q1, k0, k1, lo, hi = part
    return Block((q0, q1), (k0, k1), None if lo is None else k1 - q1 - lo, None if hi is None else hi + q1 - k1)


def pairs(queries: Runs, keys: Runs, *window: int | None, **options: tuple[int, ...] | None) -> int:
    """Return the number of visible scores between two ranks. Arguments: as for ``blocks``."""
    return sum(block.pairs for block in blocks(queries, keys, *window, **options))


def schedule(
    placement: Sequence[Runs], *window: int | None, **options: tuple[int, ...] | None
) -> list[list[tuple[int, int]]]:
    """Return, for each step of a ring and each rank, the owner of the keys that it has and how many scores it computes.

    In step s, rank r has the keys of rank r - s. Steps at the end in which no rank has anything to do are left out.
    """
    P = len(placement)
    owners = [[(r - s) % P for r in range(P)] for s in range(P)]
    steps = [
        [(owner, pairs(own, placement[owner], *window, **options)) for own, owner in zip(placement, row, strict=True)]
        for row in owners
    ]
    while len(steps) > 1 and not any(count for _, count in steps[-1]):
        steps.pop()
    return steps
