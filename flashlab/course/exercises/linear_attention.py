"""The exercises on linear attention: states that merge, a chunk without and with decay, and the N that saves FLOPs."""

import numpy as np

from flashlab.grading import draws
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.reference import linear_attention


def merged(shrink, KV, shrink_b, KV_b):
    """Return the state of two neighbouring stretches of tokens, the second one right after the first."""
    return shrink * shrink_b, shrink_b * KV + KV_b


def _draw_stretches(rng, size):
    """Draw two neighbouring stretches of any numbers of tokens, with or without decay."""
    (d, dv), decay = rng.integers(1, size + 1, 2), rng.choice([1, rng.random()])
    shrink, shrink_b = np.float32(decay ** rng.integers(1, size + 1, 2))
    KV, KV_b = np.float32(rng.normal(size=(2, d, dv)))
    return shrink, KV, shrink_b, KV_b


def _numbers(*tensors):
    return tuple(np.float32(x) for x in tensors)


merge = Exercise(
    reference=merged,
    edges=(
        Case("without decay states add up", _numbers(1, [[3]], 1, [[4]])),
        Case("the second stretch halves what came before", _numbers(1, [[3]], 0.5, [[4]])),
        Case("the first stretch shrinks what came before it", _numbers(0.5, [[3]], 1, [[4]])),
        Case("both shrink", _numbers(0.5, [[3]], 0.25, [[4]])),
        Case("nothing came before", _numbers(1, [[0]], 0.5, [[4]])),
    ),
    draw=_draw_stretches,
    minutes=5,
    hints=(
        "What do the tokens of the second stretch do to everything before them?",
        "Each shrinks it by the decay; all of them together by shrink_b. What does the first stretch do to the second?",
        "return shrink * shrink_b, shrink_b * KV + KV_b",
    ),
    mistakes=(
        Mistake("shrank the later state.", "The later stretch shrinks the earlier one.",
                "shrink_b * KV + KV_b", "KV + shrink * KV_b"),
        Mistake("did not shrink the earlier state.", "All tokens of the later stretch come after it.",
                "shrink_b * KV", "KV"),
        Mistake("shrank the earlier state by its own tokens again.", "The tokens of the later stretch come after it.",
                "shrink_b * KV", "shrink * KV"),
        Mistake("shrank both states.", "Nothing comes after the later one.",
                "shrink_b * KV + KV_b", "shrink_b * (KV + KV_b)"),
        Mistake("added the factors.", "They multiply: decay^n · decay^m is decay^(n + m).",
                "shrink * shrink_b,", "shrink + shrink_b,"),
        Mistake("lost the earlier state.", "Add it, times shrink_b.", "shrink_b * KV + KV_b", "KV_b"),
    ),
)  # fmt: skip


def chunked(KV, Q_i, K_i, V_i):
    """Return the output of a chunk of tokens, and the state after it; KV is the state before it."""
    S_i = np.tril(Q_i @ K_i.T)  # [C, C]
    O_i = S_i @ V_i + Q_i @ KV  # [C, dv]
    return O_i, KV + K_i.T @ V_i


def _draw_chunk(rng, size):
    """Draw a chunk; one in three is the first of its text, with KV = 0."""
    return _chunk(rng, *draws.lengths(rng, size, 3), past=rng.choice([0, 1, 1]))


def _chunk(rng, C, d, dv, past=1):
    KV, Q_i, K_i, V_i = (rng.normal(size=shape) for shape in ((d, dv), (C, d), (C, d), (C, dv)))
    return _numbers(past * KV, Q_i, K_i, V_i)


BY_HAND = (
    ("one token, nothing before it", _numbers([[0]], [[1]], [[2]], [[3]])),
    ("one token, and a past", _numbers([[10]], [[1]], [[2]], [[3]])),
    ("two tokens: the first does not see the second", _numbers([[0]], [[1], [1]], [[1], [1]], [[1], [10]])),
    ("two tokens and a past, which both see", _numbers([[100]], [[1], [1]], [[1], [1]], [[1], [10]])),
)

chunk = Exercise(
    reference=chunked,
    edges=tuple(Case(*edge) for edge in BY_HAND),
    draw=_draw_chunk,
    level=2,
    minutes=12,
    sways=True,
    hints=(
        "A query sees two things: tokens of its own chunk, up to itself, and all that came before. Treat them apart.",
        "Within the chunk: scores Q_i K_iᵀ, above the diagonal 0, times V_i. Before it: Q_i times KV.",
        "np.tril(Q_i @ K_i.T) @ V_i + Q_i @ KV, and KV + K_i.T @ V_i, with the old KV in the first.",
    ),
    mistakes=(
        Mistake("updated the state before its use.",
                "A query would see its own chunk twice, and its future: use the old KV.",
                "Q_i @ KV  #", "Q_i @ (KV + K_i.T @ V_i)  #"),
        Mistake("let a query see later tokens of its chunk.", "Scores above the diagonal are 0.",
                "np.tril(Q_i @ K_i.T)", "Q_i @ K_i.T"),
        Mistake("did not let a query see its own key.", "The diagonal belongs to the scores.",
                "np.tril(Q_i @ K_i.T)", "np.tril(Q_i @ K_i.T, -1)"),
        Mistake("left the past out of the output.", "Add Q_i @ KV.", " + Q_i @ KV", ""),
        Mistake("left the past out of the new state.", "Add K_i.T @ V_i to it.", "KV + K_i.T @ V_i", "K_i.T @ V_i"),
        Mistake("took a softmax of the scores.", "Here they are used as they are.", "S_i @ V_i",
                "(np.exp(S_i) / np.exp(S_i).sum(1, keepdims=True)) @ V_i"),
    ),
)  # fmt: skip


def _draw_decayed(rng, size):
    """Draw a chunk and a decay. The decay of a long chunk is so strong that its last powers vanish even in float64."""
    chunk = _draw_chunk(rng, size)
    strong = 10 ** (-400 / len(chunk[1]))
    weak = rng.choice([1, 10 ** rng.uniform(-6, 0), rng.random(), 1 - 0.1 * rng.random()])
    decay = strong if size == draws.LONG else weak
    return *chunk, float(np.float32(decay))


decayed = Exercise(
    reference=linear_attention.step,
    edges=(
        *(Case(f"{sentence}, decay ½", (*args, 0.5)) for sentence, args in BY_HAND),
        Case("no decay, and a chunk of 100 tokens", (*_chunk(np.random.default_rng(0), 100, 1, 1), 1.0)),
    ),
    draw=_draw_decayed,
    level=3,
    minutes=15,
    sways=True,
    hints=(
        "Count steps from token to token. How many are there from key j to query i of one chunk? From the last token "
        "before the chunk to query r? From key r to the chunk's last token?",
        "i − j within the chunk; r + 1 to the past; C − 1 − r to the end; and the old state is C tokens further away.",
        "S_i takes decay^(i − j) below the diagonal; rows of Q_i @ KV take decay^(r + 1); rows of K_i take "
        "decay^(C − 1 − r) before K_i.T @ V_i; KV takes decay^C.",
    ),
    mistakes=(
        Mistake("did not shrink the past for the first query.", "It is one token away: query r takes decay^(r + 1).",
                "powers(decay, r + 1, Q_i.dtype)", "powers(decay, r, Q_i.dtype)"),
        Mistake("shrank the late keys of a chunk most.", "The early ones are furthest from its end: decay^(C − 1 − r).",
                "powers(decay, C - 1 - r, Q_i.dtype)", "powers(decay, r, Q_i.dtype)"),
        Mistake("shrank the last key of a chunk.", "It is 0 tokens away from the chunk's end: decay^(C − 1 − r).",
                "powers(decay, C - 1 - r, Q_i.dtype)", "powers(decay, C - r, Q_i.dtype)"),
        Mistake("shrank the state by one token per chunk.", "A chunk has C.",
                "powers(decay, C, Q_i.dtype) * KV", "decay * KV"),
        Mistake("left decay out of the scores.", "Key j counts decay^(i − j) for query i.",
                "distances(C, decay, Q_i.dtype)", "distances(C, 1.0, Q_i.dtype)"),
        Mistake("updated the state before its use.", "The output takes the old KV.",
                "past = powers(decay, r + 1, Q_i.dtype)[:, None] * (Q_i @ KV)",
                "KV = powers(decay, C, Q_i.dtype) * KV + (powers(decay, C - 1 - r, Q_i.dtype)[:, None] * K_i).T @ V_i\n"
                "    past = powers(decay, r + 1, Q_i.dtype)[:, None] * (Q_i @ KV)"),
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
