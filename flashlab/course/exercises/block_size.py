"""The exercises on block_size."""

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.reference import block_size


def block(M, d):
    """Return the paper's (Br, Bc) for M elements of fast memory."""
    Bc = -(-M // (4 * d))
    return min(Bc, d), Bc


formula = Exercise(
    reference=block,
    cases=lambda: [
        Case("a quarter of the memory each, without remainder", (256, 8)),
        Case("a number that 4d does not divide", (250, 8)),
        Case("a short head: d limits Br", (51_200, 64)),
        Case("a long head: the memory limits Br", (51_200, 128)),
        Case("a memory smaller than four rows", (3, 8)),
        Case("a memory of exactly four hundred rows", (4_000, 10)),
        *(Case(f"M = {M:,}, d = {d}", (M, d)) for M in (1, 64, 1_023, 49_152, 1_000_000) for d in (1, 3, 64, 100, 256)),
    ],
    level=1,
    minutes=5,
    hints=(
        "Four tiles share the memory, Q_i, K_j, V_j and O_i. How many rows of d numbers are in a quarter of M?",
        "Bc = ⌈M / 4d⌉; Br is the same, but never more than d.",
        "Bc = -(-M // (4 * d)); return min(Bc, d), Bc.",
    ),
    mistakes=(
        Mistake("one too many where 4 d divides M: round up, do not add 1.", "-(-M // (4 * d))", "M // (4 * d) + 1"),
        Mistake("rounded down: the formula has ⌈ ⌉, up.", "-(-M // (4 * d))", "M // (4 * d)"),
        Mistake("divided by 4, then multiplied with d: write M / (4 * d).", "-(-M // (4 * d))", "-(-M // 4 * d)"),
        Mistake("three tiles instead of four: O_i is there too.", "4 * d", "3 * d"),
        Mistake("two bytes per number were divided by, but M already counts elements.", "4 * d", "8 * d"),
        Mistake("Br must not exceed d: otherwise the tile of scores grows beyond a quarter.", "min(Bc, d)", "Bc"),
        Mistake("Br and Bc are in the wrong order: Br first.", "min(Bc, d), Bc", "Bc, min(Bc, d)"),
    ),
)


def room(Br, Bc, d, itemsize):
    """Return the bytes of fast memory for one visit; what is computed there has 4 bytes per number."""
    loaded = itemsize * (Br * d + 2 * Bc * d)
    computed = 4 * (Br * Bc + Br * d + 2 * Br)
    return loaded + computed


working_set = Exercise(
    reference=room,
    cases=lambda: [
        Case("small tiles", (3, 4, 5, 4)),
        Case("more rows than columns", (8, 2, 4, 4)),
        Case("more columns than rows", (2, 8, 4, 4)),
        Case("float16 comes in, float32 is computed", (4, 8, 6, 2)),
        Case("FlashAttention-2's tile at d = 64", (128, 128, 64, 2)),
        *(
            Case(f"Br = {Br}, Bc = {Bc}, d = {d}, {itemsize} bytes per number", (Br, Bc, d, itemsize))
            for Br, Bc in ((1, 1), (1, 64), (64, 1), (80, 176))
            for d in (1, 40, 256)
            for itemsize in (2, 4)
        ),
    ],
    level=1,
    minutes=8,
    hints=(
        "Which tiles are in fast memory during a visit? Three are loaded, four are computed there.",
        "Loaded: Q_i [Br, d], K_j and V_j [Bc, d]. Computed, in float32: S_ij [Br, Bc], O_i [Br, d], m_i and l_i [Br].",
        "itemsize * (Br * d + 2 * Bc * d) + 4 * (Br * Bc + Br * d + 2 * Br).",
    ),
    mistakes=(
        Mistake("the tile of scores is missing: Br × Bc numbers of 4 bytes.", "(Br * Bc + Br", "(Br"),
        Mistake(
            "the output is missing: it grows in fast memory, 4 bytes per number.", " + Br * d + 2 * Br", " + 2 * Br"
        ),
        Mistake("m_i and l_i are missing: two numbers per row.", " + 2 * Br)", ")"),
        Mistake("m_i and l_i are two numbers per row; one was counted.", " + 2 * Br)", " + Br)"),
        Mistake(
            "numbers were counted: multiply by the bytes that each has.",
            "loaded + computed",
            "2 * Br * d + 2 * Bc * d + Br * Bc + 2 * Br",
        ),
        Mistake(
            "what is computed was counted in the dtype of the inputs: it has 4 bytes per number.",
            "4 * (Br",
            "itemsize * (Br",
        ),
        Mistake(
            "the output was counted in the dtype of the inputs: it is summed up in float32.",
            "4 * (Br * Bc + Br * d + 2 * Br)",
            "4 * (Br * Bc + 2 * Br) + itemsize * Br * d",
        ),
        Mistake(
            "the scores were counted in the dtype of the inputs: they are computed in float32.",
            "4 * (Br * Bc + Br * d + 2 * Br)",
            "4 * (Br * d + 2 * Br) + itemsize * Br * Bc",
        ),
        Mistake("K was counted, V was not.", "2 * Bc * d", "Bc * d"),
        Mistake("K_j and V_j were given Br rows: they have Bc.", "2 * Bc * d", "2 * Br * d"),
        Mistake("P_ij was given room of its own: it takes the place of S_ij.", "(Br * Bc +", "(2 * Br * Bc +"),
    ),
)


def widest(sram_bytes, d, step):
    """Return the largest B, a multiple of step, whose square tile in float16 fits; 0 if there is none."""
    B = 0
    while sum(block_size.working_set(B + step, B + step, d).values()) <= sram_bytes:
        B += step
    return B


_EXACT = sum(block_size.working_set(16, 16, 8).values())

largest = Exercise(
    reference=widest,
    cases=lambda: [
        Case("a tile that fits exactly", (_EXACT, 8, 16)),
        Case("a memory one byte too small for any tile", (_EXACT - 1, 8, 16)),
        Case("a T4's 64 KiB, in steps of 8", (64 * 1024, 64, 8)),
        Case("an A100's 163 KiB", (163 * 1024, 64, 16)),
        Case("a long head on an H100", (227 * 1024, 256, 16)),
        *(
            Case(f"{KiB} KiB, d = {d}, in steps of {step}", (KiB * 1024, d, step))
            for KiB in (1, 48, 99, 1024)
            for d in (1, 40, 128)
            for step in (1, 24, 64)
        ),
    ],
    level=1,
    minutes=5,
    hints=(
        "Try one step after the other, and stop before the first that does not fit.",
        "The question is always about the next one: does a tile of B + step still fit?",
        "B = 0; while sum(block_size.working_set(B + step, B + step, d).values()) <= sram_bytes: B += step; return B.",
    ),
    mistakes=(
        Mistake("one step too far: that one no longer fits.", "return B", "return B + step"),
        Mistake("a tile that fits exactly does fit: ≤, not <.", "<= sram_bytes", "< sram_bytes"),
        Mistake("one step too few.", "return B", "return max(B - step, 0)"),
        Mistake("where no tile fits the answer is 0.", "return B", "return max(B, step)"),
        Mistake(
            "not a multiple of the step: go up in steps.",
            "while sum(block_size.working_set(B + step, B + step, d).values()) <= sram_bytes:\n        B += step",
            "while sum(block_size.working_set(B + 1, B + 1, d).values()) <= sram_bytes:\n        B += 1",
        ),
        Mistake("float32 was asked for, the inputs have float16.", "B + step, d)", 'B + step, d, "float32")'),
    ),
)

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
        (120, "As a share of M: 1 would be all of it."),
        (0.91, "That is d = 64, where Br = d is much smaller than Bc."),
        (1.25, "Five quarters would be the worst case; here the tile of scores is smaller than a quarter."),
    ),
    minutes=4,
)
