"""The exercises on memory_hierarchy."""

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.reference import roofline


def product_intensity(N, d):
    """Return the FLOPs per byte of Q K^T in float16: Q and K [N, d] are read, S [N, N] is written."""
    flops = 2 * N * N * d
    nbytes = 2 * (2 * N * d + N * N)
    return flops / nbytes


while_waiting = Question(
    answer=400,
    rel=0.01,
    because="312 TFLOP/s divided by 1,555 GB/s are 201 FLOPs per byte, and a float16 has two bytes.",
    hints=(
        "How long does the number take, if 1,555 GB come in a second? How much can the card compute until then?",
        "2 bytes / 1,555e9 bytes per second is 1.3 picoseconds. Multiply by 312e12 FLOPs per second.",
        "312e12 * 2 / 1555e9 is a little above 400.",
    ),
    wrong=(
        (4, "A factor of a hundred too little. Divide 312 TFLOP/s by the numbers that come in a second."),
        (40, "Divide 312 TFLOP/s by the float16 numbers that come in a second: 1,555 GB/s are 777 billion of them."),
        (4000, "A factor of ten too much: 777 billion numbers come in a second, for 312,000 billion FLOPs."),
        (200, "That is for one byte; a float16 has two."),
    ),
)


def _draw_seconds(rng, size):
    """Draw amounts, of which one may be 0, and rates."""
    flops, nbytes, flop_rate, byte_rate = (float(whole(rng, size, 10**15)) for _ in range(4))
    some_flops, some_bytes = rng.choice([(1, 1), (1, 1), (0, 1), (1, 0)])
    return float(flops * some_flops), float(nbytes * some_bytes), flop_rate, byte_rate


LATER = "max(flops / flop_rate, nbytes / byte_rate)"

seconds = Exercise(
    reference=roofline.seconds,
    edges=(
        Case("work that waits for bytes", (1.0, 8.0, 1.0, 2.0)),
        Case("work that waits for arithmetic", (8.0, 2.0, 1.0, 2.0)),
        Case("a copy: bytes and no arithmetic", (0.0, 8.0, 1.0, 2.0)),
        Case("arithmetic, and no bytes that move", (8.0, 0.0, 1.0, 2.0)),
        Case("a real kernel on a real card", (134e6, 2.4e6, 312e12, 1555e9)),
    ),
    draw=_draw_seconds,
    mistakes=(
        Mistake("added the clocks.", "They run side by side: the later one decides.",
                LATER, "flops / flop_rate + nbytes / byte_rate"),
        Mistake("took the earlier clock.", "The work is done when the later one stops.", "max(", "min("),
        Mistake("left the bytes out.", "The later of the two clocks decides.", LATER, "flops / flop_rate"),
        Mistake("exchanged the rates.", "FLOPs go with flop_rate, bytes with byte_rate.",
                LATER, "max(flops / byte_rate, nbytes / flop_rate)"),
        Mistake("divided the rates by the amounts.", "FLOP divided by FLOP/s are seconds.",
                "flops / flop_rate, nbytes / byte_rate", "flop_rate / flops, byte_rate / nbytes"),
        Mistake("dropped the fraction with //, which makes each time below a second 0.", "Divide with /.",
                "flops / flop_rate, nbytes / byte_rate", "flops // flop_rate, nbytes // byte_rate"),
    ),
    hints=(
        "Two clocks run at the same time. How long does each run, and when has the later one stopped?",
        "The arithmetic takes flops / flop_rate, the bytes take nbytes / byte_rate.",
        "return max(flops / flop_rate, nbytes / byte_rate)",
    ),
)  # fmt: skip

intensity = Exercise(
    reference=product_intensity,
    edges=(
        Case("one query, one key, one number each", (1, 1)),
        Case("two queries and two keys", (2, 1)),
        Case("rows of two numbers", (2, 2)),
        Case("d = 64", (1024, 64)),
        Case("a long sequence, where S is nearly all of the bytes", (65536, 64)),
    ),
    draw=lambda rng, size: (whole(rng, size, 10**5), whole(rng, size, 1000)),
    mistakes=(
        Mistake("counted half of the FLOPs, or twice the bytes.",
                "A product and a sum are two FLOPs, and a float16 has 2 bytes.", "2 * N * N * d", "N * N * d"),
        Mistake("counted entries instead of bytes, or twice the FLOPs.", "A float16 has 2 bytes.",
                "2 * (2 * N * d + N * N)", "2 * N * d + N * N"),
        Mistake("counted d − 1 sums, which is all that d products need.",
                "By custom it is 2·d FLOPs: the first product is added to 0.",
                "2 * N * N * d", "N * N * (2 * d - 1)"),
        Mistake("left the scores S out.", "This kernel writes them to slow memory.", "2 * N * d + N * N", "2 * N * d"),
        Mistake("left Q or K out.", "Both are read.", "2 * N * d + N * N", "N * d + N * N"),
        Mistake("returned the bytes per FLOP.", "Divide the FLOPs by the bytes.", "flops / nbytes", "nbytes / flops"),
    ),
    level=2,
    minutes=8,
    hints=(
        "Count the FLOPs and the bytes one after the other. What is read, what is written, and how large is each?",
        "Each of the N x N scores is d products and d sums. Two matrices [N, d] are read and one [N, N] is written, "
        "2 bytes per entry.",
        "return 2 * N * N * d / (2 * (2 * N * d + N * N))",
    ),
)  # fmt: skip

longer = Question(
    answer="stays",
    because="FLOPs and bytes both grow with N²: 4N²d over 8N² (1 + d/N) is nearly d/2 from N = 1,000 on.",
    hints=(
        "How do the FLOPs grow with N? And how do the bytes?",
        "The products do 4N²d FLOPs. S is written and read, P is written and read: 4N² entries of 2 bytes.",
        "The N² cancels.",
    ),
    wrong=(
        ("rises", "The FLOPs grow with N², but so do the bytes: S and P are N × N."),
        ("falls", "The bytes grow with N², but so do the FLOPs."),
    ),
)
