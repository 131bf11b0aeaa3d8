"""The exercises on packed texts and dropout: where a text begins, who computes which tile, which weights are kept."""

from typing import NamedTuple

import numpy as np

from flashlab.course.exercises.online_softmax.one_block import draw_block
from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.laws import no_nan_replaced
from flashlab.reference import online_softmax, packed_texts

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


def _offsets_cases():
    lengths = {
        "two texts": [3, 2],
        "one text": [4],
        "texts of one token": [1, 1, 1],
        "an empty text between two others": [2, 0, 3],
        "an empty text at the end": [2, 1, 0],
        "an empty text first": [0, 3, 1],
        "empty texts in a row": [2, 0, 0, 4],
        "many texts": [7, 1, 12, 3, 5],
    }
    return [Case(name, (packed_texts.offsets(some),)) for name, some in lengths.items()]


positions = Exercise(
    reference=positions_of,
    cases=_offsets_cases,
    level=1,
    minutes=6,
    hints=(
        "Row less the row at which the text begins. How do you get that beginning for each row?",
        "np.diff(offsets) are the lengths; np.repeat repeats each beginning as often as its text has tokens.",
        "np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))",
    ),
    mistakes=(
        Mistake("those are the rows: positions start again at 0 with each text.",
                " - np.repeat(offsets[:-1], np.diff(offsets))", ""),
        Mistake("those are the beginnings: subtract them from the rows.",
                "np.arange(offsets[-1]) - np.repeat", "np.repeat"),
        Mistake("the ends were subtracted: a text begins at offsets[n] and ends at offsets[n + 1].",
                "np.repeat(offsets[:-1]", "np.repeat(offsets[1:]"),
        Mistake("positions count from 0.", "np.arange(offsets[-1])", "1 + np.arange(offsets[-1])"),
        Mistake("that is how far each token is from the end of its text.",
                "np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))",
                "np.repeat(offsets[1:], np.diff(offsets)) - 1 - np.arange(offsets[-1])"),
        Mistake("those are the numbers of the texts.",
                "np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))",
                "np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))"),
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
    """Run a learner's list. Raises ValueError where it is no list of three numbers each."""
    tiles = [tuple(map(int, tile)) for tile in solution(offsets, Br)]
    if any(len(tile) != 3 for tile in tiles):
        raise ValueError(f"expected (text, start, stop) for each tile, got {tiles!r:.60}")
    return Work(np.array(sorted(tiles)).reshape(-1, 3))


work = Exercise(
    reference=tiles_of,
    launch=_sorted,
    exact=lambda offsets, Br: _sorted(tiles_of, offsets, Br),
    cases=lambda: [
        Case(f"{case.property}, tiles of {Br}", (*case.args, Br)) for case in _offsets_cases() for Br in (1, 2, 3, 4)
    ],
    level=2,
    minutes=8,
    hints=(
        "Take one text first: where do its tiles begin, and where does the last one end?",
        "range(0, N, Br) for a text of N tokens; the last tile is cut at N. An empty text has no tile.",
        "for n, N in enumerate(np.diff(offsets).tolist()), and in it for start in range(0, N, Br): "
        "(n, start, min(start + Br, N)).",
    ),
    mistakes=(
        Mistake("the last tile of a text reaches into the next one: stop at its length.", "min(start + Br, N)",
                "start + Br"),
        Mistake("a short last tile was left out: its queries get no output.", "range(0, N, Br)",
                "range(0, N - Br + 1, Br)"),
        Mistake("only the first tile of each text is there.", "range(0, N, Br)", "range(0, min(N, 1))"),
        Mistake("the last tile of a text is missing.", "range(0, N, Br)", "range(0, N - 1, Br)"),
        Mistake("every text has as many tiles as the longest: programs with nothing to do.", "range(0, N, Br)",
                "range(0, max(np.diff(offsets)), Br)"),
        Mistake("the tiles are numbered: give the rows at which they start and stop.", "(n, start, min(start + Br, N))",
                "(n, start // Br, start // Br + 1)"),
        Mistake("rows are counted within the text, not in the packed row.", "(n, start, min(start + Br, N))",
                "(n, start + int(offsets[n]), min(start + Br, N) + int(offsets[n]))"),
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
    return state, S, V, factor * (rng.random(S.shape) < 1 / factor)


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
    level=2,
    minutes=8,
    hints=(
        "The six lines of the online softmax. One of them takes Z_ij. Which?",
        "Dropout comes after the softmax: the denominator counts all weights. Only the output meets Z_ij.",
        "O_i = alpha[:, None] * O_i + (Z_ij * P_ij) @ V_j, and nothing else changes.",
    ),
    mistakes=(
        Mistake("l counts the dropped weights as well: softmax comes first, dropout after it.",
                "P_ij.sum(-1)", "(Z_ij * P_ij).sum(-1)"),
        Mistake("l counts the kept weights only: softmax comes first, over all of them.",
                "P_ij.sum(-1)", "((Z_ij > 0) * P_ij).sum(-1)"),
        Mistake("nothing was dropped: Z_ij belongs in the line of O_i.", "(Z_ij * P_ij) @ V_j", "P_ij @ V_j"),
        Mistake("the kept weights were not scaled: Z_ij is 0 or 1 / (1 − p), not 0 or 1.",
                "(Z_ij * P_ij)", "((Z_ij > 0) * P_ij)"),
        Mistake("dropped and kept are exchanged.", "(Z_ij * P_ij)", "((2 - Z_ij) * P_ij)"),
        Mistake("the scores were multiplied, before the exponential: a dropped score of 0 still has the weight e⁰.",
                "np.exp(S_ij - m_safe[:, None])", "np.exp(Z_ij * np.maximum(S_ij, -1e30) - m_safe[:, None])"),
        Mistake("the old output is not rescaled.", "alpha[:, None] * O_i", "O_i"),
        Mistake("the output so far was dropped: Z_ij concerns this tile's weights alone.",
                "alpha[:, None] * O_i", "alpha[:, None] * Z_ij[:, :1] * O_i"),
    ),
)  # fmt: skip


def bits_of(i, j, words):
    """Return the 16 random bits of weight (i, j) from the four words of 32 bits that its patch of eight shares."""
    word = words[2 * (i >> 3 & 1) + (j >> 3 & 1)]
    return word >> 16 * (j & 1) & 0xFFFF


WORDS = (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)  # Philox4x32-7 of zeros

bits = Exercise(
    reference=bits_of,
    cases=lambda: [
        Case(f"row {i}, column {j}", (i, j, words))
        for words in (WORDS, WORDS[::-1])
        for i, j in ((0, 0), (0, 1), (0, 8), (0, 9), (8, 0), (8, 9), (3, 6), (17, 30), (26, 41), (63, 63), (1000, 1005))
    ],
    level=2,
    minutes=8,
    hints=(
        "Bit 3 of a number n is n >> 3 & 1, bit 0 is n & 1. Two bits choose one of four words.",
        "The word is words[2 * (bit 3 of i) + (bit 3 of j)]. Bit 0 of j says whether to shift it down by 16.",
        "word = words[2 * (i >> 3 & 1) + (j >> 3 & 1)]; return word >> 16 * (j & 1) & 0xFFFF",
    ),
    mistakes=(
        Mistake("bit 3 of i counts twice, that of j once.", "2 * (i >> 3 & 1) + (j >> 3 & 1)",
                "(i >> 3 & 1) + 2 * (j >> 3 & 1)"),
        Mistake("the halves are exchanged: an even column takes the lower 16 bits.", "(j & 1)", "(1 - j & 1)"),
        Mistake("the row's bit 0 does not matter: the two halves belong to columns.", "16 * (j & 1)", "16 * (i & 1)"),
        Mistake("all 32 bits were returned: neighbours would share half of them.", " & 0xFFFF", " & 0xFFFFFFFF"),
        Mistake("bit 3 is n >> 3 & 1; n >> 2 & 1 is bit 2.", "2 * (i >> 3 & 1) + (j >> 3 & 1)",
                "2 * (i >> 2 & 1) + (j >> 2 & 1)"),
        Mistake("two neighbours share their bits: an odd column takes the upper half.", "16 * (j & 1)", "0"),
        Mistake("rows i and i + 8 share their bits: bit 3 of i chooses, too.", "2 * (i >> 3 & 1) + (j >> 3 & 1)",
                "(j >> 3 & 1)"),
    ),
)  # fmt: skip
