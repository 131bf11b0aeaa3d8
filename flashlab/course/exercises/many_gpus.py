"""The exercises on many GPUs: whose keys are where, zigzag, the merge of finished parts, and what overlaps."""

import numpy as np

from flashlab.grading.draws import finished, whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.grading.laws import no_nan_replaced, nothing_clipped
from flashlab.reference import ring as reference

__all__ = ["turn", "merge", "idle", "zigzag", "lse_of", "cheaper", "overlap"]  # in the lesson's order

inf = np.inf


def turn_of(rank, step, P):
    """Return whose keys a rank has in a step, to whom it sends them, and from whom it gets the next ones."""
    return (rank - step) % P, (rank + 1) % P, (rank - 1) % P


def _draw_turn(rng, size):
    P = int(rng.integers(1, 2 * size + 1))
    return *(int(n) for n in rng.integers(P, size=2)), P


turn = Exercise(
    reference=turn_of,
    edges=(
        Case("the first step: everyone has its own keys", (2, 0, 4)),
        Case("the second step", (2, 1, 4)),
        Case("rank 0, whose neighbour behind is the last rank", (0, 1, 4)),
        Case("the last rank, whose neighbour ahead is rank 0", (3, 2, 4)),
        Case("a rank alone", (0, 0, 1)),
    ),
    draw=_draw_turn,
    mistakes=(
        Mistake("took the keys of a rank ahead.", "Keys move up, so they come from behind.",
                "(rank - step) % P", "(rank + step) % P"),
        Mistake("took step 0 for the second one.", "At first every rank has its own keys.",
                "(rank - step) % P", "(rank - step - 1) % P"),
        Mistake("did not close the ring.", "Past the last rank comes rank 0 again: % P.",
                "(rank - step) % P, (rank + 1) % P, (rank - 1) % P", "rank - step, rank + 1, rank - 1"),
        Mistake("exchanged the rank to send to and the rank to receive from.", "Keys go to rank + 1.",
                "(rank + 1) % P, (rank - 1) % P", "(rank - 1) % P, (rank + 1) % P"),
        Mistake("sent keys `step` ranks on.", "In each step they go one rank on.",
                "(rank + 1) % P, (rank - 1) % P", "(rank + step) % P, (rank - step) % P"),
    ),
    minutes=5,
    hints=(
        "Write down who has which keys in steps 0, 1 and 2, for three ranks.",
        "Keys move up by one rank per step. So a rank's keys came from as many ranks behind as there were steps.",
        "return (rank - step) % P, (rank + 1) % P, (rank - 1) % P",
    ),
)  # fmt: skip

idle = Question(
    answer=4 / 7,
    because="Rank 3 computes 3.5 blocks while an average rank computes 2: 2 / 3.5. In general P / (2P − 1).",
    hints=(
        "How many blocks, counting a half for the diagonal, does the last rank compute? And all ranks together?",
        "The last rank: 3 whole blocks and a half one. All together: half of the 16.",
        "8 / 4 blocks per rank on average, and 3.5 for the slowest.",
    ),
    wrong=(
        (0.5, "That is the limit for many ranks. With four, the average rank does a bit more."),
        (1, "Tokens are divided evenly, work is not: the causal mask hides whole blocks from all ranks but the last."),
        (3 / 7, "That is the idle share. The question is about the share in which they compute."),
        (0.4375, "The slowest rank has 3.5 blocks, not 4; and the average is 2, not 1.75."),
    ),
    rel=0.02,
    minutes=4,
)


def zigzag_positions(rank, P, N):
    """Return the positions of a rank's tokens: of 2 P stretches, those at ``rank`` and at 2 P − 1 − ``rank``."""
    n = N // (2 * P)
    first, second = rank * n, (2 * P - 1 - rank) * n
    return np.concatenate([np.arange(first, first + n), np.arange(second, second + n)])


def _draw_zigzag(rng, size):
    P, n = (int(n) for n in rng.integers(1, size + 1, 2))
    n = int(rng.choice([n, 20_000], p=[0.95, 0.05]))
    return int(rng.integers(P)), P, 2 * P * n


zigzag = Exercise(
    reference=zigzag_positions,
    edges=(
        Case("two ranks, two tokens per stretch", (0, 2, 8)),
        Case("the other rank, whose stretches meet in the middle", (1, 2, 8)),
        Case("two ranks, one token per stretch", (0, 2, 4)),
        Case("a rank alone", (0, 1, 6)),
    ),
    draw=_draw_zigzag,
    mistakes=(
        Mistake("returned one stretch per rank: the contiguous placement.", "Count the second from the right end.",
                "rank * n, (2 * P - 1 - rank) * n", "2 * rank * n, (2 * rank + 1) * n"),
        Mistake("counted both stretches from the left.", "Count the second one from the right.",
                "(2 * P - 1 - rank) * n", "(P + rank) * n"),
        Mistake("were off by one stretch.", "Counted from 0, the last of 2 P stretches is 2 P − 1.",
                "(2 * P - 1 - rank) * n", "(2 * P - rank) * n"),
        Mistake("cut the text into P stretches.", "There are 2 P, so one has N / (2 P) tokens.",
                "N // (2 * P)", "N // P"),
        Mistake("reversed the second stretch.", "Tokens keep their order within it.",
                "np.arange(second, second + n)]", "np.arange(second, second + n)[::-1]]"),
        Mistake("put the later stretch first.", "Keep the order of the text: a causal mask within the rank needs it.",
                "[np.arange(first, first + n), np.arange(second, second + n)]",
                "[np.arange(second, second + n), np.arange(first, first + n)]"),
    ),
    minutes=8,
    hints=(
        "Cut the text into 2 P stretches of N / (2 P) tokens. Which two belong to rank 0? To the last rank?",
        "Rank 0: the first and the last. Rank r: stretch r, and stretch 2 P − 1 − r.",
        "n = N // (2 * P); the stretches begin at rank * n and (2 * P - 1 - rank) * n, each n long.",
    ),
)  # fmt: skip


def _sides(lse, lse_b, O=1, O_b=3):
    """Return two sides of one row, whose values have one column."""
    return np.float32([[O]]), np.float32([lse]), np.float32([[O_b]]), np.float32([lse_b])


def _draw_merge(rng, size):
    n, dv = rng.integers(1, size + 1, 2)
    (O, O_b), (lse, lse_b) = finished(rng, 2, n, dv)
    return O, lse, O_b, lse_b


def _weights(order):
    """Return a function: the weights of sides whose lse are x [n], beside sides whose lse are 0. order: 1 or -1."""

    def weights(merge, x):
        sides = (np.zeros((len(x), 1), np.float32), np.zeros_like(x)), (np.ones((len(x), 1), np.float32), x)
        first, second = sides[::order]
        O, _ = merge(*first, *second)  # [n, 1]
        return O[:, 0] / (1 - O[:, 0])

    return weights


merge = Exercise(
    reference=reference.merge,
    edges=(
        Case("the second side weighs e times as much", _sides(0, 1)),
        Case("lse whose exponentials overflow", _sides(201, 200)),
        Case("a second side that weighs nearly everything", _sides(-200, 0)),
        Case("an lse below −1e9, which is often used for −∞", _sides(-3e38, -inf, O_b=0)),
        Case("two sides of which neither has met a key", _sides(-inf, -inf, O=0, O_b=0)),
    ),
    draw=_draw_merge,
    once=(nothing_clipped(_weights(1)), nothing_clipped(_weights(-1))),
    laws=(no_nan_replaced,),
    sways=True,  # the rounding of lse changes the weights e^(lse - lse of both)
    mistakes=(
        Mistake("averaged the outputs, however heavy the sides are.", "Weigh them with e^lse.",
                "(l[:, None] * O + l_b[:, None] * O_b) / l_safe[:, None]", "(O + O_b) / 2"),
        Mistake("did not divide the weighted sum.", "Divide it by l + l_b.", " / l_safe[:, None]", ""),
        Mistake("returned the larger lse.", "Add the exponentials, then take the logarithm.",
                "m + np.log(l_safe)", "m"),
        Mistake("did not subtract the maximum.", "e²⁰⁰ overflows: subtract the larger lse first.",
                "m = np.maximum", "l, l_b = np.exp(lse), np.exp(lse_b); s = l + l_b; return (l[:, None] * O + "
                "l_b[:, None] * O_b) / np.where(s, s, 1)[:, None], np.log(s); m = np.maximum"),
        Mistake("subtracted one side's lse from both: the other may overflow.", "Subtract the larger one.",
                "np.maximum(lse, lse_b)", "lse"),
        Mistake("got NaN where neither side has met a key.", "Subtract 0 there, and divide by 1.",
                "m_safe = np.where(m == -np.inf, 0, m)", "m_safe = m"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Each output is an average of values. How much should each count: which number says how heavy a side is?",
        "e^lse is the sum of a side's exponentials. Weigh the two outputs with e^lse and e^lse_b, over their sum; "
        "subtract the larger lse first, as always.",
        "m = np.maximum(lse, lse_b), m_safe = 0 where m is −∞; l, l_b = exp(lse − m_safe), exp(lse_b − m_safe); "
        "O is (l O + l_b O_b) / (l + l_b), lse is m + log(l + l_b); guard l + l_b = 0.",
    ),
)  # fmt: skip

lse_of = Question(
    answer="all keys",
    because="P = e^(S − lse) must be the weights that the forward pass used, and those were divided by the sum over "
    "all keys. A block's own lse would make the weights of each block sum to 1.",
    hints=(
        "Which weights did the output use for the keys of one block? What do they sum to?",
        "Over all blocks, a row's weights sum to 1. So over one block they sum to less.",
        "The one that the last merge left.",
    ),
    wrong=(
        ("the block", "Then the weights of each block would sum to 1, and those of a row to the number of ranks."),
        ("own keys", "The rank's own keys are one block of many."),
    ),
    minutes=2,
)


def tokens_to_hide(H, Hk, itemsize, flop_rate, wire_rate):
    """Return the tokens per rank from which computing a full block takes longer than receiving its keys and values."""
    return itemsize / 2 * Hk / H * flop_rate / wire_rate


def _draw_overlap(rng, size):
    Hk, g = (whole(rng, size, 64) for _ in range(2))
    return Hk * g, Hk, int(rng.choice([1, 2, 4])), *(10 ** rng.uniform((12, 9), (15.5, 12.5))).tolist()


overlap = Exercise(
    reference=tokens_to_hide,
    edges=(
        Case("one head, one byte per number, everything at rate 1", (1, 1, 1, 1.0, 1.0)),
        Case("two bytes per number", (1, 1, 2, 1.0, 1.0)),
        Case("a processor that is a thousand times as fast as its wire", (1, 1, 2, 1000.0, 1.0)),
        Case("four query heads share their keys", (32, 8, 2, 600e12, 400e9)),
    ),
    draw=_draw_overlap,
    mistakes=(
        Mistake("counted keys without values.", "Both K and V travel.", "itemsize / 2", "itemsize / 4"),
        Mistake("counted half of the FLOPs.",
                "A block has two products, and an addition and a multiplication are two FLOPs.",
                "itemsize / 2", "itemsize"),
        Mistake("sent all H heads.", "Only the Hk heads of keys and values travel.", " * Hk / H", ""),
        Mistake("exchanged the heads.", "More query heads per key head mean more to compute per byte.",
                "Hk / H", "H / Hk"),
        Mistake("exchanged the rates.", "A faster processor needs more tokens to stay busy.",
                "flop_rate / wire_rate", "wire_rate / flop_rate"),
        Mistake("counted numbers, not bytes.", "Multiply by itemsize.", "itemsize / 2", "1 / 2"),
    ),
    level=2,
    minutes=10,
    hints=(
        "Write down the FLOPs of one block (n queries, n keys, H heads of width d) and the bytes of n keys and values.",
        "4 n² d H FLOPs; 2 n d Hk numbers of `itemsize` bytes. Both as times; where are they equal?",
        "4 n² d H / flop_rate = 2 n d Hk itemsize / wire_rate. Solve for n.",
    ),
)  # fmt: skip

cheaper = Question(
    answer=4,
    because="P Hk = H + Hk: 8 P = 40 at P = 5. Up to 4 GPUs the ring sends less; from 6 GPUs, the all-to-all does.",
    hints=(
        "The ring sends (P − 1) 2 Hk n d numbers, the all-to-all (P − 1) / P (2 H + 2 Hk) n d. When is the first less?",
        "Divide: the ratio is P Hk / (H + Hk).",
        "The largest P with 8 P < 40, among 2, 4 and 8.",
    ),
    wrong=(
        (8, "8 · 8 = 64 is more than 40: with 8 GPUs the all-to-all sends less."),
        (2, "It is true of 2, but of a larger number as well."),
        (5, "At 5 they send the same; the question is about 2, 4 and 8."),
    ),
    minutes=4,
)
