"""The exercises on memory_hierarchy."""

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
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

seconds = Exercise(
    reference=roofline.seconds,
    cases=lambda: [
        Case("work that waits for bytes", (1.0, 8.0, 1.0, 2.0)),
        Case("work that waits for arithmetic", (8.0, 2.0, 1.0, 2.0)),
        Case("clocks that stop together", (6.0, 6.0, 2.0, 2.0)),
        Case("a copy: bytes and no arithmetic", (0.0, 8.0, 1.0, 2.0)),
        Case("arithmetic on nothing that moves", (8.0, 0.0, 1.0, 2.0)),
        Case("a real kernel on a real card", (134e6, 2.4e6, 312e12, 1555e9)),
    ],
    hints=(
        "Two clocks run at the same time. How long does each run, and when has the later one stopped?",
        "The arithmetic takes flops / flop_rate, the bytes take nbytes / byte_rate.",
        "return max(flops / flop_rate, nbytes / byte_rate)",
    ),
    mistakes=(
        Mistake("the clocks were added: they run side by side, so the later one decides.",
                "max(flops / flop_rate, nbytes / byte_rate)", "flops / flop_rate + nbytes / byte_rate"),
        Mistake("the earlier clock was taken: the work is done when the later one stops.", "max(", "min("),
        Mistake("the bytes were left out.", "max(flops / flop_rate, nbytes / byte_rate)", "flops / flop_rate"),
        Mistake("the arithmetic was left out.", "max(flops / flop_rate, nbytes / byte_rate)", "nbytes / byte_rate"),
        Mistake("the rates were exchanged: each amount goes with its own.",
                "max(flops / flop_rate, nbytes / byte_rate)", "max(flops / byte_rate, nbytes / flop_rate)"),
        Mistake("upside down: FLOP divided by FLOP/s are seconds.",
                "flops / flop_rate, nbytes / byte_rate", "flop_rate / flops, byte_rate / nbytes"),
        Mistake("multiplied: FLOP divided by FLOP/s are seconds.",
                "flops / flop_rate, nbytes / byte_rate", "flops * flop_rate, nbytes * byte_rate"),
        Mistake("// drops the fraction, and here most times are a small fraction of a second: divide with /.",
                "flops / flop_rate, nbytes / byte_rate", "flops // flop_rate, nbytes // byte_rate"),
    ),
)  # fmt: skip

intensity = Exercise(
    reference=product_intensity,
    cases=lambda: [
        Case("one query, one key, one number each", (1, 1)),
        Case("two queries and two keys", (2, 1)),
        Case("d = 64", (1024, 64)),
        Case("d = 128", (1024, 128)),
        Case("a long sequence, where S is nearly all of the bytes", (65536, 64)),
    ],
    level=2,
    minutes=8,
    hints=(
        "Count the FLOPs and the bytes one after the other. What is read, what is written, and how large is each?",
        "Each of the N x N scores is d products and d sums. Two matrices [N, d] are read and one [N, N] is written, "
        "2 bytes per entry.",
        "return 2 * N * N * d / (2 * (2 * N * d + N * N))",
    ),
    mistakes=(
        Mistake("half of what it should be: a product and a sum are two FLOPs, and a float16 has 2 bytes, not 4.",
                "2 * N * N * d", "N * N * d"),
        Mistake("twice what it should be: count bytes, not entries (a float16 has 2), and the FLOPs of one product.",
                "2 * (2 * N * d + N * N)", "2 * N * d + N * N"),
        Mistake("d products take only d − 1 sums. But it is the custom to count 2·d FLOPs: the first adds to 0.",
                "2 * N * N * d", "N * N * (2 * d - 1)"),
        Mistake("each score is a sum of d products.", "2 * N * N * d", "2 * N * N"),
        Mistake("the scores S were left out: this kernel writes them to slow memory.",
                "2 * N * d + N * N", "2 * N * d"),
        Mistake("Q or K was left out: both are read.", "2 * N * d + N * N", "N * d + N * N"),
        Mistake("the inputs were left out: Q and K are read.", "2 * N * d + N * N", "N * N"),
        Mistake("bytes for each FLOP: it is the other way round.", "flops / nbytes", "nbytes / flops"),
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
