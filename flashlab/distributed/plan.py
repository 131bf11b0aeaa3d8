"""The transfers and scores of each way of dividing attention, by formula, before anything is started.

With n = N / P tokens per rank, e bytes per number, and d = dv, a rank sends

- ring, gather: forward (P - 1) 2 Hk n d e; backward the same again, and dK and dV in float32, (P - 1) 2 Hk n d 4: a
  rank's shares for its own keys stay;
- all-to-all: forward (P - 1) / P (2 H + 2 Hk) n d e; backward as much again.

So a ring sends less than an all-to-all forward if P Hk < H + Hk: with few key/value heads, or few ranks.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from flashlab.machine.arguments import check_arguments, shown
from flashlab.machine.ranks import check_documents, length, pairs, placement_of, schedule


class Cost(NamedTuple):
    """The costs of one way. Scores are those of all query heads of one text, bytes those of the whole batch."""

    method: str
    placement: str
    scores: tuple[int, ...]  # of each rank
    makespan: int  # scores of the busiest rank of each step, summed over the steps
    sent: tuple[int, ...]  # bytes that each rank sends, forward
    sent_backward: tuple[int, ...]
    against: str | None = None  # why the way is impossible; None if it is possible

    @property
    def efficiency(self) -> float:
        """The share of the time in which the average rank computes, if transfers take no time."""
        return sum(self.scores) / len(self.scores) / self.makespan if self.makespan else 1.0


@check_arguments(N=0)
def costs(
    N: int, P: int, *, H: int, Hk: int, d: int, dv: int | None = None, B: int = 1, itemsize: int = 2,
    window: tuple[int | None, int | None] = (None, 0), documents: tuple[int, ...] | None = None,
) -> list[Cost]:  # fmt: skip
    """Return the costs of every way for one shape and a group of P ranks.

    B, H, Hk, d, dv as for ``attention``; itemsize: bytes of a number of Q; window: (left, right) of the mask, None for
    no end, causal by default.
    """
    if H % Hk:
        raise ValueError(f"H must be a multiple of Hk, got H = {H} and Hk = {Hk}")
    if documents is not None:
        check_documents(documents, N)
    if not isinstance(window, Sequence) or len(window) != 2:
        raise ValueError(f"window must be a pair (left, right), got {shown(window)}")
    dv = d if dv is None else dv
    ways = []
    for name in ("contiguous", "zigzag", "striped"):
        placement = placement_of(name, N, P)
        sizes = [B * Hk * length(runs) * (d + dv) for runs in placement]  # numbers in K and V of each rank
        steps = schedule(placement, *window, documents=documents)
        scores = tuple(H * sum(step[rank][1] for step in steps) for rank in range(P))
        makespan = H * sum(max(count for _, count in step) for step in steps)
        # Numbers that a rank sends: K and V in all steps but the last, then dK and dV of other ranks' keys.
        forward = [sum(sizes[(rank - s) % P] for s in range(len(steps) - 1)) for rank in range(P)]
        gradients = [sum(sizes[(rank - s) % P] for s in range(1, len(steps))) for rank in range(P)]
        sent = tuple(itemsize * count for count in forward)
        wide = max(itemsize, 4)
        back = tuple(s + wide * count for s, count in zip(sent, gradients, strict=True))
        ways.append(Cost("ring", name, scores, makespan, sent, back))
        if name != "striped":
            sent = tuple((P - 1) * itemsize * size for size in sizes)
            back = tuple(s + wide * (sum(sizes) - size) for s, size in zip(sent, sizes, strict=True))
            ways.append(Cost("gather", name, scores, max(scores), sent, back))
    ways.append(_all_to_all(N, P, H, Hk, d, dv, B, itemsize, window, documents))
    return ways


def _all_to_all(N, P, H, Hk, d, dv, B, itemsize, window, documents):
    heads = [b - a for a, b in pairwise([Hk * rank // P for rank in range(P + 1)])]  # key/value heads of each rank
    whole = (range(N),)
    visible = pairs(whole, whole, *window, documents=documents)
    scores = tuple(H // Hk * own * visible for own in heads)
    tokens = [length(runs) for runs in placement_of("contiguous", N, P)]
    group = H // Hk
    sent, back = [], []
    for own, n in zip(heads, tokens, strict=True):
        away, others = B * (Hk - own) * n, B * own * (N - n)  # (head, token) pairs sent before and after attention
        sent.append(itemsize * (away * (group * d + d + dv) + others * group * dv))
        back.append(itemsize * (away * group * dv + others * (group * d + d + dv)))
    against = None if P <= Hk else f"{P} ranks cannot divide {Hk} key/value heads"
    return Cost("all-to-all", "contiguous", scores, max(scores), tuple(sent), tuple(back), against)


@check_arguments()
def seconds(cost: Cost, *, d: int, dv: int | None = None, B: int = 1, flop_rate: float, wire_rate: float) -> float:
    """Return the seconds of a forward pass, given the FLOPs per second and bytes per second of a rank.

    A ring sends while it computes and takes the longer of the two times; the other ways take their sum.
    """
    compute = B * cost.makespan * 2 * (d + (d if dv is None else dv)) / flop_rate
    transfer = max(cost.sent) / wire_rate
    return max(compute, transfer) if cost.method == "ring" else compute + transfer


@check_arguments()
def pick(ways: Sequence[Cost], **rates) -> Cost:
    """Return the cheapest possible way by ``seconds``; the first of equals."""
    possible = [cost for cost in ways if cost.against is None]
    if not possible:
        raise ValueError(f"expected at least one cost that is possible, got {len(ways)} impossible ones")
    return min(possible, key=lambda cost: seconds(cost, **rates))


@check_arguments()
def tokens_to_overlap(*, H: int, Hk: int, itemsize: int, flop_rate: float, wire_rate: float, causal: bool) -> float:
    """Return the smallest number of tokens per rank with which a ring's transfer takes no longer than its computation.

    In each step a rank computes 4 n² d FLOPs per query head, half of them under a causal mask in zigzag, and receives
    2 n d numbers per key/value head.
    """
    return itemsize / 2 * Hk / H * flop_rate / wire_rate * (2 if causal else 1)
