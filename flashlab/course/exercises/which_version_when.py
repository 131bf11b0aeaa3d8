"""The exercises on which version when: the fastest that can, states that merge, chunks with decay, crossovers."""

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.reference import linear_attention

inf = np.inf


def chosen(lengths, us, able, N):
    """Return the nearest cell in which an able version was timed, and the fastest able version in it."""
    usable = np.where(able, us, np.inf)  # [cells, versions]
    timed = np.isfinite(usable).any(1)  # [cells]
    apart = np.where(timed, np.abs(np.log2(lengths / N)), np.inf)  # [cells]
    cell = apart.argmin()
    return cell, usable[cell].argmin()


def _measured(*rows):
    return np.array(rows, np.float64)


_LENGTHS = np.array([1024.0, 4096.0, 16384.0])
_TIMES = _measured([10, 12, 15], [40, 35, 50], [180, 150, 140])
_ALL, _SECOND = np.array([True, True, True]), np.array([False, True, False])

choose = Exercise(
    reference=chosen,
    cases=lambda: [
        Case("a length that was measured", (_LENGTHS, _TIMES, _ALL, 4096)),
        Case("the same, the longest cell first", (_LENGTHS[::-1].copy(), _TIMES[::-1].copy(), _ALL, 4096)),
        Case("another one, where another version is fastest", (_LENGTHS, _TIMES, _ALL, 16384)),
        Case("the fastest version cannot compute this", (_LENGTHS, _TIMES, np.array([True, False, True]), 4096)),
        Case("shorter than all that was measured", (_LENGTHS, _TIMES, _ALL, 17)),
        Case("a length between two: 2,500 is 1.6 times from 4,096 and 2.4 times from 1,024",
             (_LENGTHS, _TIMES, _ALL, 2500)),
        Case("a length between two: 2,400 is nearer to 1,024 in tokens and to 4,096 in ratio",
             (_LENGTHS, _TIMES, _ALL, 2400)),
        Case("the nearest cell has no time of an able version",
             (_LENGTHS, _measured([10, 12, inf], [40, inf, inf], [180, 150, 140]), _SECOND, 4096)),
        Case("a version without a time is not fast",
             (_LENGTHS, _measured([inf, 3, 2], [inf, 9, 8], [inf, 7, 6]), _ALL, 1)),
        Case("two versions, one cell", (np.array([64.0]), _measured([5, 4]), np.array([True, True]), 100000)),
    ],
    level=2,
    minutes=10,
    hints=(
        "Which times may you look at at all? Set all others to ∞ first, and most of the work is done.",
        "A cell counts if any able version has a time there. Among those, the nearest: by the ratio of lengths, "
        "as time goes by ratios.",
        "usable = np.where(able, us, inf); apart = |log2(lengths / N)|, ∞ where no usable time is finite; two argmins.",
    ),
    mistakes=(
        Mistake("a version was chosen that cannot compute the call.", "np.where(able, us, np.inf)", "us"),
        Mistake("only the versions that cannot compute it were looked at.", "np.where(able, us, np.inf)",
                "np.where(able, np.inf, us)"),
        Mistake("the nearest cell was taken by the difference of lengths: from 2,400 it is 1,696 to 4,096 and 1,376 "
                "to 1,024, but time grows by ratios.", "np.abs(np.log2(lengths / N))", "np.abs(lengths - N)"),
        Mistake("the cell was taken though no able version has a time in it.",
                "np.where(timed, np.abs(np.log2(lengths / N)), np.inf)", "np.abs(np.log2(lengths / N))"),
        Mistake("the slowest of them was chosen.", "usable[cell].argmin()",
                "np.where(np.isfinite(usable[cell]), usable[cell], -1).argmax()"),
        Mistake("the distance has a sign: take its absolute value.", "np.abs(np.log2(lengths / N))",
                "np.log2(lengths / N)"),
        Mistake("the version with the least time in any cell was taken: it may be slow at this length.",
                "usable[cell].argmin()", "usable.min(0).argmin()"),
        Mistake("the first cell was taken, whatever its length.", "apart.argmin()", "timed.argmax()"),
    ),
)  # fmt: skip

training = Question(
    answer="neither",
    because="We save 4 % of a forward pass and lose 2 % of a backward pass, which is three times as long: 4 − 3 · 2 = "
    "−2 % of a forward pass. FlashAttention-4 is ahead by half a per cent of the step, less than rounds differ by.",
    hints=(
        "A step of training is both passes of one version. Add them up.",
        "Let FlashAttention-4's forward pass take 1, and its backward pass 3. What do ours take?",
        "0.96 and 3.06: 4.02 against 4. Is that more than 3 %?",
    ),
    wrong=(
        (
            "flashlab",
            "Forward it is ahead, but backward it loses more: that pass takes three times as long.",
        ),
        ("FlashAttention-4", "It is, by half a per cent. Two rounds of one run differ by more."),
    ),
)

fallback = Question(
    answer="math",
    because="The kernel for CPUs has no dropout, so torch takes its plain operations, with an N × N matrix, silently.",
    hints=(
        "What does torch do if the kernel that it likes best cannot compute a call?",
        "It goes down a list of its backends. The last one can do everything.",
        "The last one is written in plain operations: its name in torch is math.",
    ),
    wrong=(
        ("flash", "It would, without dropout. The kernel for CPUs has none."),
        ("cudnn", "cuDNN needs a GPU."),
        ("an error", "That would be better! torch takes the next backend that can do it, and says nothing."),
    ),
)


def merged(shrink, KV, shrink_b, KV_b):
    """Return the state of two neighbouring stretches of tokens, the second one right after the first."""
    return shrink * shrink_b, shrink_b * KV + KV_b


def _states(d, dv, decay, n, n_b, seed):
    rng = np.random.default_rng(seed)
    states = []
    for tokens in (n, n_b):
        K, V = rng.normal(size=(tokens, d)).astype(np.float32), rng.normal(size=(tokens, dv)).astype(np.float32)
        states += [np.float32(decay**tokens), linear_attention.state(K, V, decay=decay).KV]
    return tuple(states)


def _ones(value):
    return np.full((1, 2), value, np.float32)


merge = Exercise(
    reference=merged,
    cases=lambda: [
        Case("without decay states add up", (np.float32(1), _ones(3), np.float32(1), _ones(4))),
        Case("the second stretch halves what came before", (np.float32(1), _ones(3), np.float32(0.5), _ones(4))),
        Case("the first stretch shrinks what came before it", (np.float32(0.5), _ones(3), np.float32(1), _ones(4))),
        Case("both shrink", (np.float32(0.5), _ones(3), np.float32(0.25), _ones(4))),
        Case("nothing comes after", (np.float32(0.5), _ones(3), np.float32(1), _ones(0))),
        Case("nothing came before", (np.float32(1), _ones(0), np.float32(0.5), _ones(4))),
        Case("stretches of three and five tokens", _states(4, 6, 0.9, 3, 5, 0)),
        Case("strong decay", _states(3, 3, 0.1, 2, 4, 1)),
    ],
    minutes=5,
    hints=(
        "What do the tokens of the second stretch do to everything before them?",
        "Each shrinks it by the decay; all of them together by shrink_b. What does the first stretch do to the second?",
        "return shrink * shrink_b, shrink_b * KV + KV_b",
    ),
    mistakes=(
        Mistake("decay is on the wrong side: the later stretch shrinks the earlier one.",
                "shrink_b * KV + KV_b", "KV + shrink * KV_b"),
        Mistake("the earlier state was not shrunk: it is as many tokens away as the later stretch has.",
                "shrink_b * KV", "KV"),
        Mistake("it was shrunk by its own tokens again: those of the later stretch came after it.",
                "shrink_b * KV", "shrink * KV"),
        Mistake("both states were shrunk: nothing comes after the later one.",
                "shrink_b * KV + KV_b", "shrink_b * (KV + KV_b)"),
        Mistake("factors multiply: so many tokens, then so many more.", "shrink * shrink_b,", "shrink + shrink_b,"),
        Mistake("the earlier state is lost.", "shrink_b * KV + KV_b", "KV_b"),
    ),
)  # fmt: skip


def chunked(KV, Q_i, K_i, V_i):
    """Return the output of a chunk of tokens, and the state after it; KV is the state before it."""
    S_i = np.tril(Q_i @ K_i.T)  # [C, C]
    O_i = S_i @ V_i + Q_i @ KV  # [C, dv]
    return O_i, KV + K_i.T @ V_i


def _chunk(C, d, dv, seed, past=True):
    rng = np.random.default_rng(seed)
    shapes = (d, dv), (C, d), (C, d), (C, dv)
    KV, Q_i, K_i, V_i = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return KV * past, Q_i, K_i, V_i


def _numbers(KV, Q_i, K_i, V_i):
    return tuple(np.array(x, np.float32) for x in (KV, Q_i, K_i, V_i))


_BY_HAND = [
    ("one token, nothing before it", _numbers([[0]], [[1]], [[2]], [[3]])),
    ("one token, and a past", _numbers([[10]], [[1]], [[2]], [[3]])),
    ("two tokens: the first does not see the second", _numbers([[0]], [[1], [1]], [[1], [1]], [[1], [10]])),
    ("two tokens and a past, which both see", _numbers([[100]], [[1], [1]], [[1], [1]], [[1], [10]])),
]
_DRAWN = [
    ("values of another width than keys", (3, 2, 4, 0)),
    ("more tokens than columns", (7, 2, 2, 1)),
    ("more columns than tokens", (2, 6, 5, 2)),
    ("as many of all", (4, 4, 4, 3)),
]

chunk = Exercise(
    reference=chunked,
    cases=lambda: [*(Case(*it) for it in _BY_HAND), *(Case(name, _chunk(*sizes)) for name, sizes in _DRAWN),
                   Case("the first chunk of a text", _chunk(5, 3, 4, 4, past=False))],
    level=2,
    minutes=12,
    sways=True,
    hints=(
        "A query sees two things: tokens of its own chunk, up to itself, and all that came before. Treat them apart.",
        "Within the chunk: scores Q_i K_iᵀ, above the diagonal 0, times V_i. Before it: Q_i times KV.",
        "np.tril(Q_i @ K_i.T) @ V_i + Q_i @ KV, and KV + K_i.T @ V_i, with the old KV in the first.",
    ),
    mistakes=(
        Mistake("the state was updated before its use: a query then sees its own chunk twice, its future included.",
                "Q_i @ KV  #", "Q_i @ (KV + K_i.T @ V_i)  #"),
        Mistake("a query sees later tokens of its chunk: scores above the diagonal are 0.",
                "np.tril(Q_i @ K_i.T)", "Q_i @ K_i.T"),
        Mistake("a query does not see its own key: the diagonal belongs to the scores.",
                "np.tril(Q_i @ K_i.T)", "np.tril(Q_i @ K_i.T, -1)"),
        Mistake("the triangle is the wrong one: row i sees columns up to i.", "np.tril", "np.triu"),
        Mistake("the past is missing from the output.", " + Q_i @ KV", ""),
        Mistake("the chunk itself is missing from the output.", "S_i @ V_i + Q_i @ KV", "Q_i @ KV"),
        Mistake("the past is missing from the new state.", "KV + K_i.T @ V_i", "K_i.T @ V_i"),
        Mistake("the state was not updated.", "return O_i, KV + K_i.T @ V_i", "return O_i, KV"),
        Mistake("there is no softmax here: scores are used as they are.", "S_i @ V_i",
                "(np.exp(S_i) / np.exp(S_i).sum(1, keepdims=True)) @ V_i"),
        Mistake("scores are not scaled here.", "np.tril(Q_i @ K_i.T)",
                "np.tril(Q_i @ K_i.T) / np.sqrt(Q_i.shape[1])"),
        Mistake("keys and queries are exchanged in the scores.", "Q_i @ K_i.T", "K_i @ Q_i.T"),
    ),
)  # fmt: skip

decayed = Exercise(
    reference=linear_attention.step,
    cases=lambda: [
        *(Case(f"{name}, decay ½", (*args, 0.5)) for name, args in _BY_HAND),
        Case("no decay at all", (*_chunk(4, 3, 5, 5), 1.0)),
        *(Case(f"{name}, decay 0.9", (*_chunk(*sizes), 0.9)) for name, sizes in _DRAWN),
        Case("strong decay", (*_chunk(6, 3, 4, 6), 0.1)),
        Case("the first chunk of a text, decay 0.8", (*_chunk(5, 3, 4, 7, past=False), 0.8)),
    ],
    level=3,
    minutes=15,
    sways=True,
    hints=(
        "Count tokens. How many lie between key j and query i of one chunk? Between the last token before the chunk "
        "and query r? Between key r and the chunk's end?",
        "i − j within the chunk; r + 1 to the past; C − 1 − r to the end; and the old state is C tokens further away.",
        "S_i takes decay^(i − j) below the diagonal; rows of Q_i @ KV take decay^(r + 1); rows of K_i take "
        "decay^(C − 1 − r) before K_i.T @ V_i; KV takes decay^C.",
    ),
    mistakes=(
        Mistake("the past did not shrink for the first query: it is one token away.",
                "powers(decay, r + 1, Q_i.dtype)", "powers(decay, r, Q_i.dtype)"),
        Mistake("the past did not shrink within the chunk: query r is r + 1 tokens past it.",
                "powers(decay, r + 1, Q_i.dtype)[:, None] * (Q_i @ KV)", "Q_i @ KV"),
        Mistake("decay is on the wrong side: early keys of a chunk shrink most, they are furthest from its end.",
                "powers(decay, C - 1 - r, Q_i.dtype)", "powers(decay, r, Q_i.dtype)"),
        Mistake("the last key of a chunk shrank already: it is no token away from the chunk's end.",
                "powers(decay, C - 1 - r, Q_i.dtype)", "powers(decay, C - r, Q_i.dtype)"),
        Mistake("keys went into the state without decay.", "powers(decay, C - 1 - r, Q_i.dtype)[:, None] * K_i",
                "K_i"),
        Mistake("the state shrank by one token per chunk: a chunk has C.",
                "powers(decay, C, Q_i.dtype) * KV", "decay * KV"),
        Mistake("the state did not shrink.", "powers(decay, C, Q_i.dtype) * KV", "KV"),
        Mistake("scores within the chunk have no decay.", "distances(C, decay, Q_i.dtype)",
                "distances(C, 1.0, Q_i.dtype)"),
        Mistake("decay is on the wrong side of the scores: it goes by i − j, row minus column.",
                "distances(C, decay, Q_i.dtype) * (Q_i @ K_i.T)", "distances(C, decay, Q_i.dtype).T * (Q_i @ K_i.T)"),
        Mistake("the state was updated before its use.",
                "past = powers(decay, r + 1, Q_i.dtype)[:, None] * (Q_i @ KV)",
                "KV = powers(decay, C, Q_i.dtype) * KV + (powers(decay, C - 1 - r, Q_i.dtype)[:, None] * K_i).T @ V_i\n"
                "    past = powers(decay, r + 1, Q_i.dtype)[:, None] * (Q_i @ KV)"),
        Mistake("the past is missing from the output.", "S_i @ V_i + past", "S_i @ V_i"),
    ),
)  # fmt: skip

crossing = Question(
    answer=320,
    because="2 N d (N + C) = 4 N d (C + d) where N + C = 2 C + 2 d: N = C + 2 d = 64 + 256.",
    hints=(
        "Set the two formulas equal. What cancels?",
        "2 N d cancels: N + C = 2 (C + d).",
        "N = C + 2 d.",
    ),
    wrong=(
        (192, "That is C + d. The product with the state, and the update of it, take 2 N d² FLOPs each."),
        (128, "That is d. Within a chunk there are scores, too."),
        (256, "That is 2 d: the chunk's own scores cost something."),
        (64, "At N = C the two have the same scores, and linear attention has the state on top."),
    ),
    rel=0.001,
    minutes=4,
)
