"""The exercises on block_size."""

from flashlab.grading.draws import LARGEST, whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.reference import block_size

__all__ = ["formula", "overflow", "working_set", "largest"]  # in the lesson's order


def block(M, d):
    """Return the paper's (Br, Bc) for M elements of fast memory."""
    Bc = -(-M // (4 * d))
    return min(Bc, d), Bc


def _draw_formula(rng, size):
    """Draw a memory, often one that 4d divides or exceeds by 1, and a head dimension, often a power of two."""
    M, d = whole(rng, size, 10**6), int(rng.choice([whole(rng, size, 300), 2 ** rng.integers(min(size, 9) + 1)]))
    return int(rng.choice([M, 4 * d * whole(rng, size, 1000) + rng.integers(2)])), d


formula = Exercise(
    reference=block,
    edges=(
        Case("a quarter of the memory each, without remainder", (256, 8)),
        Case("a number that 4d does not divide", (250, 8)),
        Case("a short head: d limits Br", (51_200, 64)),
        Case("a long head: the memory limits Br", (51_200, 128)),
        Case("a memory smaller than four rows", (3, 8)),
    ),
    draw=_draw_formula,
    mistakes=(
        Mistake("added 1, which is one too many where 4d divides M.", "Round up instead.",
                "-(-M // (4 * d))", "M // (4 * d) + 1"),
        Mistake("rounded down.", "⌈ ⌉ rounds up.", "-(-M // (4 * d))", "M // (4 * d)"),
        Mistake("divided by 4, then multiplied by d.", "4d belongs in parentheses: M / (4 * d).",
                "-(-M // (4 * d))", "-(-M // 4 * d)"),
        Mistake("divided by two bytes per number.", "M already counts elements.", "4 * d", "8 * d"),
        Mistake("let Br exceed d.", "Br is at most d: otherwise the tile of scores grows beyond a quarter.",
                "min(Bc, d)", "Bc"),
        Mistake("returned Br and Bc in the wrong order.", "Br comes first.", "min(Bc, d), Bc", "Bc, min(Bc, d)"),
    ),
    level=1,
    minutes=5,
    hints=(
        "Four tiles share the memory, Q_i, K_j, V_j and O_i. How many rows of d numbers are in a quarter of M?",
        "Bc = ⌈M / 4d⌉; Br is the same, but never more than d.",
        "Bc = -(-M // (4 * d)); return min(Bc, d), Bc.",
    ),
)  # fmt: skip


def room(Br, Bc, d, itemsize):
    """Return the bytes of fast memory for one tile of scores; what is computed has 4 bytes per number."""
    loaded = itemsize * (Br * d + 2 * Bc * d)
    computed = 4 * (Br * Bc + Br * d + 2 * Br)
    return loaded + computed


def _draw_working_set(rng, size):
    return *(whole(rng, size, 1000) for _ in range(3)), int(rng.choice([2, 4]))


working_set = Exercise(
    reference=room,
    edges=(
        Case("small tiles", (3, 4, 5, 4)),
        Case("more rows than columns", (8, 2, 4, 4)),
        Case("more columns than rows", (2, 8, 4, 4)),
        Case("float16 comes in, float32 is computed", (4, 8, 6, 2)),
        Case("FlashAttention-2's tile at d = 64", (128, 128, 64, 2)),
    ),
    draw=_draw_working_set,
    mistakes=(
        Mistake("left the tile of scores out.", "It has Br × Bc numbers of 4 bytes.", "(Br * Bc + Br", "(Br"),
        Mistake("left m_i and l_i out.", "They are two numbers per row, of 4 bytes.", " + 2 * Br)", ")"),
        Mistake("counted numbers, not bytes.", "A number that is loaded has itemsize bytes, a computed one 4.",
                "loaded + computed", "2 * Br * d + 2 * Bc * d + Br * Bc + 2 * Br"),
        Mistake("counted what is computed in the dtype of the inputs.", "It is float32, of 4 bytes.",
                "4 * (Br", "itemsize * (Br"),
        Mistake("left V out, or K.", "Both are loaded.", "2 * Bc * d", "Bc * d"),
        Mistake("gave P_ij room of its own.", "It takes the place of S_ij.", "(Br * Bc +", "(2 * Br * Bc +"),
    ),
    level=1,
    minutes=8,
    hints=(
        "Which tiles are in fast memory when a tile of queries meets one of keys? Three are loaded, four computed.",
        "Loaded: Q_i [Br, d], K_j and V_j [Bc, d]. Computed, in float32: S_ij [Br, Bc], O_i [Br, d], m_i and l_i [Br].",
        "itemsize * (Br * d + 2 * Bc * d) + 4 * (Br * Bc + Br * d + 2 * Br).",
    ),
)  # fmt: skip


def widest(sram_bytes, d, step):
    """Return the largest B, a multiple of step, whose square tile in float16 fits; 0 if there is none."""
    B = 0
    while sum(block_size.working_set(B + step, B + step, d).values()) <= sram_bytes:
        B += step
    return B


def _draw_largest(rng, size):
    """Draw a memory for a tile of B below 4,096, of up to 64 MiB, with room to spare or not."""
    d, step = whole(rng, size, 256), whole(rng, size, 64)
    most = 400 * min(size, LARGEST) // step
    B = step * int(rng.choice([rng.integers(0, size + 1), rng.integers(0, most + 1)]))
    least, next_least = max(1, _bytes(B, d)), _bytes(B + step, d)
    return int(rng.choice([least, next_least - 1, rng.integers(least, next_least)])), d, step


def _bytes(B, d):
    return sum(block_size.working_set(B, B, d).values()) if B else 0


largest = Exercise(
    reference=widest,
    edges=(
        Case("a tile that fits exactly", (_bytes(16, 8), 8, 16)),
        Case("a memory one byte too small for any tile", (_bytes(16, 8) - 1, 8, 16)),
        Case("a memory one byte too small for the next tile", (_bytes(32, 8) - 1, 8, 16)),
        Case("an A100's 163 KiB", (163 * 1024, 64, 16)),
        Case("a long head on an H100", (227 * 1024, 256, 16)),
    ),
    draw=_draw_largest,
    mistakes=(
        Mistake("went one step too far.", "Stop before the first tile that does not fit.",
                "return B", "return B + step"),
        Mistake("left out a tile that fits exactly.", "Compare with ≤, not <.", "<= sram_bytes", "< sram_bytes"),
        Mistake("stopped one step too early.", "The question is whether a tile of B + step still fits.",
                "return B", "return max(B - step, 0)"),
        Mistake("returned a tile where none fits.", "There the answer is 0.", "return B", "return max(B, step)"),
        Mistake("went up by 1.", "B is a multiple of step.",
                "while sum(block_size.working_set(B + step, B + step, d).values()) <= sram_bytes:\n        B += step",
                "while sum(block_size.working_set(B + 1, B + 1, d).values()) <= sram_bytes:\n        B += 1"),
        Mistake("computed the bytes for float32.", "The inputs are in float16.",
                "B + step, d)", 'B + step, d, "float32")'),
    ),
    level=1,
    minutes=5,
    hints=(
        "Try one step after the other, and stop before the first that does not fit.",
        "The question is always about the next one: does a tile of B + step still fit?",
        "B = 0; while sum(block_size.working_set(B + step, B + step, d).values()) <= sram_bytes: B += step; return B.",
    ),
)  # fmt: skip

_FORMULA = block_size.working_set(*block_size.formula(51_200, 128), 128, "float32")

overflow = Question(
    answer=round(sum(_FORMULA.values()) / (4 * 51_200), 2),
    because="Four tiles of 100 × 128 are 51,200 numbers: all of M. The tile of scores, 100 × 100, comes on top.",
    hints=(
        "Br = Bc = ⌈51,200 / 512⌉ = 100. How many numbers are in Q_i, K_j, V_j and O_i together? What else is there?",
        "4 × 100 × 128 = 51,200 is already M. The tile of scores has 100 × 100.",
        "(51,200 + 10,000) / 51,200, and a little for m_i and l_i.",
    ),
    wrong=(
        (1.0, "That is the four tiles. A fifth one, the scores, is computed between them."),
        (0.2, "Those are the scores alone. The four tiles are in use as well."),
        (120, "That is in per cent. As a share, 1 is all of M."),
        (0.91, "That is d = 64, where Br = d is much smaller than Bc."),
        (1.25, "Five quarters would be the worst case; here the tile of scores is smaller than a quarter."),
    ),
    minutes=4,
)
