"""The exercises on many GPUs: whose keys are where, zigzag, the merge of finished parts, and what overlaps."""

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import sweep
from flashlab.reference import ring as reference


def turn_of(rank, step, P):
    """Return whose keys a rank has in a step, to whom it sends them, and from whom it gets the next ones."""
    return (rank - step) % P, (rank + 1) % P, (rank - 1) % P


turn = Exercise(
    reference=turn_of,
    cases=lambda: [
        Case("the first step: everyone has its own keys", (2, 0, 4)),
        Case("the second step", (2, 1, 4)),
        Case("rank 0, whose neighbour behind is the last rank", (0, 1, 4)),
        Case("the last rank, whose neighbour ahead is rank 0", (3, 2, 4)),
        Case("the last step", (1, 3, 4)),
        Case("three ranks", (0, 2, 3)),
        Case("a rank alone", (0, 0, 1)),
        Case("many ranks", (5, 60, 64)),
        *(Case(f"rank {rank} of 5 in step {step}", (rank, step, 5)) for rank in range(5) for step in range(5)),
    ],
    minutes=5,
    hints=(
        "Write down who has which keys in steps 0, 1 and 2, for three ranks.",
        "Keys move up by one rank per step. So a rank's keys came from as many ranks behind as there were steps.",
        "return (rank - step) % P, (rank + 1) % P, (rank - 1) % P",
    ),
    mistakes=(
        Mistake("the keys of a rank ahead came: they move up, so they come from behind.",
                "(rank - step) % P", "(rank + step) % P"),
        Mistake("step 0 was taken for the second one: at first every rank has its own keys.",
                "(rank - step) % P", "(rank - step - 1) % P"),
        Mistake("the ring was not closed: past the last rank comes rank 0 again, % P.",
                "(rank - step) % P, (rank + 1) % P, (rank - 1) % P", "rank - step, rank + 1, rank - 1"),
        Mistake("to whom and from whom are exchanged.",
                "(rank + 1) % P, (rank - 1) % P", "(rank - 1) % P, (rank + 1) % P"),
        Mistake("keys were sent `step` ranks on: in each step they go one rank on.",
                "(rank + 1) % P, (rank - 1) % P", "(rank + step) % P, (rank - step) % P"),
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
        (0.4375, "The slowest rank has 3.5 blocks, not 4; and 1.75 are not the average."),
    ),
    rel=0.02,
    minutes=4,
)


def zigzag_positions(rank, P, N):
    """Return the positions of a rank's tokens: of 2 P stretches, the one at ``rank`` from either end."""
    n = N // (2 * P)
    first, second = rank * n, (2 * P - 1 - rank) * n
    return np.concatenate([np.arange(first, first + n), np.arange(second, second + n)])


zigzag = Exercise(
    reference=zigzag_positions,
    cases=lambda: [
        Case("two ranks, one token per stretch", (0, 2, 4)),
        Case("the other rank", (1, 2, 4)),
        Case("stretches of three tokens", (1, 2, 12)),
        Case("four ranks", (2, 4, 32)),
        Case("the last rank, whose stretches meet in the middle", (3, 4, 32)),
        Case("a rank alone", (0, 1, 6)),
        Case("three ranks", (0, 3, 18)),
        *(Case(f"rank {rank} of 5", (rank, 5, 20)) for rank in range(5)),
    ],
    minutes=8,
    hints=(
        "Cut the text into 2 P stretches of N / (2 P) tokens. Which two belong to rank 0? To the last rank?",
        "Rank 0: the first and the last. Rank r: stretch r, and stretch 2 P − 1 − r.",
        "n = N // (2 * P); the stretches begin at rank * n and (2 * P - 1 - rank) * n, each n long.",
    ),
    mistakes=(
        Mistake("that is the contiguous placement: one stretch per rank.", "(2 * P - 1 - rank) * n", "(rank + 1) * n"),
        Mistake("both stretches were counted from the left: the second one is counted from the right.",
                "(2 * P - 1 - rank) * n", "(P + rank) * n"),
        Mistake("off by one stretch: counted from 0, the last of 2 P stretches is 2 P − 1.",
                "(2 * P - 1 - rank) * n", "(2 * P - rank) * n"),
        Mistake("there are 2 P stretches, so one has N / (2 P) tokens.", "N // (2 * P)", "N // P"),
        Mistake("the second stretch is reversed: tokens keep their order within it.",
                "np.arange(second, second + n)]", "np.arange(second, second + n)[::-1]]"),
        Mistake("that is the striped placement: every P-th token.",
                "np.concatenate([np.arange(first, first + n), np.arange(second, second + n)])",
                "np.arange(rank, N, P)"),
        Mistake("the later stretch came first: keep the order of the text, or a causal mask within the rank is wrong.",
                "[np.arange(first, first + n), np.arange(second, second + n)]",
                "[np.arange(second, second + n), np.arange(first, first + n)]"),
    ),
)  # fmt: skip


def _finished(draw, Br, Bc, dv):
    sides = []
    for _ in range(2):
        S, V = draw.scores(Br, Bc), draw.normal(Bc, dv)
        m = S.max(-1)
        m_safe = np.where(m == -np.inf, 0, m)
        l = np.exp(S - m_safe[:, None]).sum(-1)
        l_safe = np.where(l == 0, 1, l)
        sides += [np.exp(S - m_safe[:, None]) @ V / l_safe[:, None], m + np.log(l_safe)]
    return tuple(x.astype(draw.dtype) for x in sides)


def _by_hand():
    one = np.float32([[1.0, 2.0]])
    inf = np.float32([-np.inf])
    return [
        Case("both sides weigh the same", (one, np.float32([0]), one + 2, np.float32([0]))),
        Case("the second side weighs three times as much", (one, np.float32([0]), one + 4, np.log(np.float32([3])))),
        Case("the first side has met no key", (0 * one, inf, one, np.float32([1]))),
        Case("neither side has met a key", (0 * one, inf, 0 * one, inf)),
        Case("a first side that weighs nearly everything", (one, np.float32([200]), one + 2, np.float32([0]))),
        Case("a second side that weighs nearly everything", (one, np.float32([0]), one + 2, np.float32([200]))),
        Case("a first side that weighs e¹² times less", (one + 2, np.float32([-12]), one, np.float32([0]))),
        Case("a second side that weighs e¹² times less", (one, np.float32([0]), one + 2, np.float32([-12]))),
        Case("an lse of −2e9, and none", (one, np.float32([-2e9]), 0 * one, inf)),
        Case("scores around 200, whose exponentials overflow", (one, np.float32([200]), one + 2, np.float32([201]))),
    ]


merge = Exercise(
    reference=reference.merge,
    cases=lambda: [*_by_hand(), *sweep(_finished)],
    sways=True,  # a weight e^(lse - lse of both) has the rounding of lse in it
    level=2,
    minutes=10,
    hints=(
        "Each output is an average of values. How much should each count: which number says how heavy a side is?",
        "e^lse is the sum of a side's exponentials. Weigh the two outputs with e^lse and e^lse_b, over their sum; "
        "subtract the larger lse first, as always.",
        "m = np.maximum(lse, lse_b), m_safe = 0 where m is −∞; l, l_b = exp(lse − m_safe), exp(lse_b − m_safe); "
        "O is (l O + l_b O_b) / (l + l_b), lse is m + log(l + l_b); guard l + l_b = 0.",
    ),
    mistakes=(
        Mistake("the outputs were added: each is an average already, so take a weighted average of the two.",
                "(l[:, None] * O + l_b[:, None] * O_b) / l_safe[:, None]", "O + O_b"),
        Mistake("the outputs count equally, however heavy the sides are: weigh them with e^lse.",
                "(l[:, None] * O + l_b[:, None] * O_b) / l_safe[:, None]", "(O + O_b) / 2"),
        Mistake("each side was weighed with the other's lse.",
                "l[:, None] * O + l_b[:, None] * O_b", "l_b[:, None] * O + l[:, None] * O_b"),
        Mistake("the weighted sum was not divided by l + l_b.", " / l_safe[:, None]", ""),
        Mistake("the heavier side's lse was kept: add the exponentials, then take the logarithm.",
                "m + np.log(l_safe)", "m"),
        Mistake("the maximum is missing from lse.", "m + np.log(l_safe)", "np.log(l_safe)"),
        Mistake("nothing was subtracted before exp, which overflows for scores as small as 100.",
                "m_safe = np.where(m == -np.inf, 0, m)", "m_safe = 0 * np.where(m == -np.inf, 0, m)"),
        *(
            Mistake("one side's lse was subtracted from both: subtract the larger, or the other overflows.",
                    "np.maximum(lse, lse_b)", side)
            for side in ("lse", "lse_b", "np.where(lse == -np.inf, lse_b, lse)")
        ),
        Mistake("where both sides are −∞, −∞ − (−∞) is NaN: use 0 for such a maximum.",
                "m_safe = np.where(m == -np.inf, 0, m)", "m_safe = m"),
        Mistake("the logarithm has base 2: lse is natural.", "np.log(l_safe)", "np.log2(l_safe)"),
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
        ("the block", "Then the weights of each block would sum to 1, and those of a row to P."),
        ("own keys", "The rank's own keys are one block among P."),
    ),
    minutes=2,
)


def tokens_to_hide(H, Hk, itemsize, flop_rate, wire_rate):
    """Return the tokens per rank from which on a full block takes longer to compute than its keys to arrive."""
    return itemsize / 2 * Hk / H * flop_rate / wire_rate


overlap = Exercise(
    reference=tokens_to_hide,
    cases=lambda: [
        Case("one head, one byte per number, everything at rate 1", (1, 1, 1, 1.0, 1.0)),
        Case("two bytes per number", (1, 1, 2, 1.0, 1.0)),
        Case("a processor that is a thousand times as fast as its wire", (1, 1, 2, 1000.0, 1.0)),
        Case("four query heads share their keys", (32, 8, 2, 600e12, 400e9)),
        Case("every head has keys of its own", (32, 32, 2, 600e12, 400e9)),
        Case("a slow wire", (32, 8, 2, 600e12, 12e9)),
    ],
    level=2,
    minutes=10,
    hints=(
        "Write down the FLOPs of one block (n queries, n keys, H heads of width d) and the bytes of n keys and values.",
        "4 n² d H FLOPs; 2 n d Hk numbers of `itemsize` bytes. Both as times; where are they equal?",
        "4 n² d H / flop_rate = 2 n d Hk itemsize / wire_rate. Solve for n.",
    ),
    mistakes=(
        Mistake("keys were counted without values, or a product was counted twice: both K and V travel, and there are "
                "two products of 2 n² d FLOPs.", "itemsize / 2", "itemsize / 4"),
        Mistake("one product was counted: a block has two, S = QKᵀ and PV.", "itemsize / 2", "itemsize"),
        Mistake("all H heads were sent: only the Hk heads of keys and values travel.", " * Hk / H", ""),
        Mistake("the heads are the wrong way round: more query heads per key head mean more to compute per byte.",
                "Hk / H", "H / Hk"),
        Mistake("the rates are the wrong way round: a faster processor needs more tokens to stay busy.",
                "flop_rate / wire_rate", "wire_rate / flop_rate"),
        Mistake("numbers were counted, not bytes: multiply by itemsize.", "itemsize / 2", "1 / 2"),
    ),
)  # fmt: skip

cheaper = Question(
    answer=4,
    because="P Hk = H + Hk: 8 P = 40 at P = 5. Up to 4 GPUs the ring sends less, from 6 on the all-to-all.",
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
