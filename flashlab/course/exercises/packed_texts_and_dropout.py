"""The exercises on packed texts and dropout: where a text begins, who computes which tile, which weights are kept."""

from typing import NamedTuple

import numpy as np

from flashlab.course.exercises.online_softmax.one_block import draw_block
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import online_softmax, packed_texts

__all__ = ["first_of_next", "positions", "work", "update", "instructions", "bits"]  # in the lesson's order

first_of_next = Question(
    answer=0,
    because="Each text has positions of its own. Position 57 would tell the model that 57 tokens come before.",
    hints=(
        "What would the position be if the text were alone?",
        "The row number says where a token is in the row. The position says where it is in its text.",
        "The first token of a text is at position 0.",
    ),
    wrong=(
        (57, "That is its row. In its text it is the first."),
        (56, "That is the last row of the text before."),
        (1, "Positions count from 0 here, as rows do."),
    ),
    minutes=1,
)

instructions = Question(
    answer=3.5,
    because="28 for eight weights. It was 40 for one: ten rounds, and a call for each.",
    hints=(
        "How many instructions does one call take, and how many weights does it serve?",
        "Seven rounds of four instructions, for eight weights.",
        "7 * 4 / 8",
    ),
    wrong=(
        (28, "That is the call. Eight weights share it."),
        (5, "That is with ten rounds. There are seven."),
        (40, "That is a call of ten rounds for each weight, as before."),
        (0.875, "That counts a round as one instruction. It has four."),
    ),
    minutes=2,
)


def positions_of(offsets):
    """Return the position of each token within its own text [T], from the offsets [texts + 1] of packed texts."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def _draw_offsets(rng, size):
    """Draw the offsets of texts, some or all of which may be empty, and one long."""
    lengths = rng.integers(0, size + 1, rng.integers(1, size + 1))  # [texts]
    lengths *= rng.random(len(lengths)) < rng.choice([0.5, 1])
    lengths[0] += rng.choice([0, 40_000], p=[0.95, 0.05])
    return (packed_texts.offsets(lengths),)


LENGTHS = {
    "one text": [4],
    "two texts": [3, 2],
    "an empty text first": [0, 3],
    "an empty text between two others": [2, 0, 3],
    "an empty text at the end": [2, 1, 0],
}

positions = Exercise(
    reference=positions_of,
    edges=tuple(Case(name, (packed_texts.offsets(some),)) for name, some in LENGTHS.items()),
    draw=_draw_offsets,
    mistakes=(
        Mistake("returned the rows.", "Positions start again at 0 with each text.",
                " - np.repeat(offsets[:-1], np.diff(offsets))", ""),
        Mistake("returned where the texts begin.", "Subtract that from the rows.",
                "np.arange(offsets[-1]) - np.repeat", "np.repeat"),
        Mistake("subtracted the ends.", "A text begins at offsets[n] and ends at offsets[n + 1].",
                "np.repeat(offsets[:-1]", "np.repeat(offsets[1:]"),
        Mistake("counted from 1.", "The first token of a text is at position 0.",
                "np.arange(offsets[-1])", "1 + np.arange(offsets[-1])"),
        Mistake("returned how far each token is from the end of its text.", "Count from its beginning.",
                "np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))",
                "np.repeat(offsets[1:], np.diff(offsets)) - 1 - np.arange(offsets[-1])"),
        Mistake("returned the numbers of the texts.", "Return how many tokens of the same text come before.",
                "np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))",
                "np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))"),
    ),
    level=1,
    minutes=6,
    hints=(
        "Row less the row at which the text begins. How do you get that beginning for each row?",
        "np.diff(offsets) are the lengths; np.repeat repeats each beginning as often as its text has tokens.",
        "np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))",
    ),
)  # fmt: skip


class Work(NamedTuple):
    """A list of tiles, sorted: who computes them, and when, does not matter here."""

    tiles: np.ndarray  # [tiles, 3] text, first row, one past the last row


def tiles_of(offsets, Br):
    """Return the tiles of at most Br queries, as (text, start, stop) with rows counted within the text."""
    return [
        (n, start, min(start + Br, N)) for n, N in enumerate(np.diff(offsets).tolist()) for start in range(0, N, Br)
    ]


def _sorted(solution, offsets, Br):
    """Sort a learner's list of tiles. Raises ValueError where a tile is not three numbers."""
    tiles = [tuple(map(int, tile)) for tile in solution(offsets, Br)]
    if any(len(tile) != 3 for tile in tiles):
        raise ValueError(f"expected (text, start, stop) for each tile, got {tiles!r:.60}")
    return Work(np.array(sorted(tiles)).reshape(-1, 3))


def _draw_work(rng, size):
    return *_draw_offsets(rng, size), int(rng.integers(1, size + 2))


def _work_case(property, lengths, Br):
    return Case(property, (packed_texts.offsets(lengths), Br))


work = Exercise(
    reference=tiles_of,
    launch=_sorted,
    exact=lambda offsets, Br: _sorted(tiles_of, offsets, Br),
    edges=(
        _work_case("a text of two tiles", [4], 2),
        _work_case("a text whose last tile has one row", [3], 2),
        _work_case("a second text that is shorter", [4, 2], 2),
        _work_case("an empty text between two others", [2, 0, 3], 2),
        _work_case("texts shorter than a tile", [2, 1], 4),
    ),
    draw=_draw_work,
    mistakes=(
        Mistake("let the last tile of a text reach into the next one.", "Stop at its length.",
                "min(start + Br, N)", "start + Br"),
        Mistake("left out a short last tile, so its queries get no output.", "The last tile may have fewer rows.",
                "range(0, N, Br)", "range(0, N - Br + 1, Br)"),
        Mistake("left out a last tile of one row.", "range(0, N, Br) ends before N by itself.",
                "range(0, N, Br)", "range(0, N - 1, Br)"),
        Mistake("gave every text as many tiles as the longest.", "Programs without rows are not launched.",
                "range(0, N, Br)", "range(0, max(np.diff(offsets)), Br)"),
        Mistake("numbered the tiles.", "Return the rows at which they start and stop.",
                "(n, start, min(start + Br, N))", "(n, start // Br, start // Br + 1)"),
        Mistake("counted rows across all texts.", "Count them within the text.", "(n, start, min(start + Br, N))",
                "(n, start + int(offsets[n]), min(start + Br, N) + int(offsets[n]))"),
    ),
    level=2,
    minutes=8,
    hints=(
        "Take one text first: where do its tiles begin, and where does the last one end?",
        "range(0, N, Br) for a text of N tokens; the last tile is cut at N. An empty text has no tile.",
        "for n, N in enumerate(np.diff(offsets).tolist()), and in it for start in range(0, N, Br): "
        "(n, start, min(start + Br, N)).",
    ),
)  # fmt: skip


def update_with_dropout(state, S_ij, V_j, Z_ij):
    """Take in a tile of scores [Br, Bc] and values [Bc, dv]; Z_ij [Br, Bc] are the factors of dropout."""
    m_i, l_i, O_i = state
    m_new = np.maximum(m_i, S_ij.max(-1))  # [Br]
    m_safe = np.where(m_new == -np.inf, 0, m_new)  # [Br]
    alpha = np.exp(m_i - m_safe)  # [Br]
    P_ij = np.exp(S_ij - m_safe[:, None])  # [Br, Bc]
    l_i = alpha * l_i + P_ij.sum(-1)  # [Br]
    O_i = alpha[:, None] * O_i + (Z_ij * P_ij) @ V_j  # [Br, dv]
    return online_softmax.State(m_new, l_i, O_i)


def _draw_update(rng, size):
    state, S, V = draw_block(rng, size)
    factor = np.float32(1 / (1 - rng.choice([0.1, 0.5, 0.9])))
    return state, S, V.astype(np.float32), factor * (rng.random(S.shape) < 1 / factor)


FIRST = online_softmax.identity(1, 1), np.float32([[0, 0]]), np.float32([[1], [3]])

update = Exercise(
    reference=update_with_dropout,
    edges=(
        Case("two equal scores, the second dropped", (*FIRST, np.float32([[2, 0]]))),
        Case("nothing is dropped", (*FIRST, np.float32([[1, 1]]))),
        Case("all is dropped: the denominator still counts", (*FIRST, np.float32([[0, 0]]))),
    ),
    draw=_draw_update,
    laws=(no_nan_replaced,),
    sways=True,
    mistakes=(
        Mistake("multiplied the weights in l by Z.", "Softmax comes first: l counts all weights as they are.",
                "P_ij.sum(-1)", "(Z_ij * P_ij).sum(-1)"),
        Mistake("left the dropped weights out of l.", "Softmax comes first: l counts all weights.",
                "P_ij.sum(-1)", "((Z_ij > 0) * P_ij).sum(-1)"),
        Mistake("dropped nothing.", "Z_ij belongs in the line of O_i.", "(Z_ij * P_ij) @ V_j", "P_ij @ V_j"),
        Mistake("did not scale the weights that stay.", "Multiply by Z_ij, which is 0 or 1 / (1 − p).",
                "(Z_ij * P_ij)", "((Z_ij > 0) * P_ij)"),
        Mistake("multiplied the scores by Z: a score of 0 still has the weight e⁰.", "Multiply the weights.",
                "np.exp(S_ij - m_safe[:, None])", "np.exp(Z_ij * np.maximum(S_ij, -1e30) - m_safe[:, None])"),
        Mistake("did not rescale the old output.", "Multiply it by alpha, like l.", "alpha[:, None] * O_i", "O_i"),
    ),
    level=2,
    minutes=8,
    hints=(
        "The six lines of the online softmax. One of them takes Z_ij. Which?",
        "Dropout comes after the softmax: the denominator counts all weights. Only the output meets Z_ij.",
        "O_i = alpha[:, None] * O_i + (Z_ij * P_ij) @ V_j, and nothing else changes.",
    ),
)  # fmt: skip


def bits_of(i, j, words):
    """Return the 16 random bits of weight (i, j) from the four words of 32 bits that its patch of eight shares."""
    word = words[2 * (i >> 3 & 1) + (j >> 3 & 1)]
    return word >> 16 * (j & 1) & 0xFFFF


WORDS = (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)  # Philox4x32-7 of zeros


def _draw_bits(rng, size):
    i, j = (int(n) for n in rng.integers(8 * size, size=2))
    return i, j, tuple(int(word) for word in rng.integers(2**32, size=4))


bits = Exercise(
    reference=bits_of,
    edges=(
        Case("row 0, column 0: the lower half of the first word", (0, 0, WORDS)),
        Case("an odd column: the upper half", (0, 1, WORDS)),
        Case("column 8: the second word", (0, 8, WORDS)),
        Case("row 8: the third word", (8, 0, WORDS)),
        Case("row 17, whose bit 3 is 0", (17, 0, WORDS)),
    ),
    draw=_draw_bits,
    mistakes=(
        Mistake("exchanged the bits of i and j.", "The word is 2 · (bit 3 of i) + (bit 3 of j).",
                "2 * (i >> 3 & 1) + (j >> 3 & 1)", "(i >> 3 & 1) + 2 * (j >> 3 & 1)"),
        Mistake("exchanged the halves.", "An even column takes the lower 16 bits.", "(j & 1)", "(1 - j & 1)"),
        Mistake("let the row choose the half.", "Bit 0 of j chooses it.", "16 * (j & 1)", "16 * (i & 1)"),
        Mistake("returned more than 16 bits.", "Keep the lowest 16: neighbours would share the others.",
                " & 0xFFFF", " & 0xFFFFFFFF"),
        Mistake("took bit 2.", "Bit 3 of n is n >> 3 & 1.", "2 * (i >> 3 & 1) + (j >> 3 & 1)",
                "2 * (i >> 2 & 1) + (j >> 2 & 1)"),
        Mistake("gave two neighbours the same bits.", "An odd column takes the upper half.", "16 * (j & 1)", "0"),
    ),
    level=2,
    minutes=8,
    hints=(
        "Bit 3 of a number n is n >> 3 & 1, bit 0 is n & 1. Two bits choose one of four words.",
        "The word is words[2 * (bit 3 of i) + (bit 3 of j)]. Bit 0 of j says whether to shift it down by 16.",
        "word = words[2 * (i >> 3 & 1) + (j >> 3 & 1)]; return word >> 16 * (j & 1) & 0xFFFF",
    ),
)  # fmt: skip
