"""The exercises on measure_and_debug: predict the occupancy, and find the bug in four kernels."""

import inspect
import re

from flashlab.course.exercises.triton_forward import attention_one_head
from flashlab.grading.exercise import Question, edited

# Three kernels with one wrong line each. The lesson shows what they do wrong, and then their source.
first = edited(attention_one_head, "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "tl.minimum(i * Br + Nk - Nq + 1, Nk)")
second = edited(attention_one_head, "alpha * l_i + tl.sum(P_ij, 1)", "l_i + tl.sum(P_ij, 1)")
third = edited(
    attention_one_head,
    "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)",
    "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None])",
)

occupancy = Question(
    answer=2,
    because="A thread's 193 registers are given out as 200, so a program takes 200 · 128 = 25,600 of 65,536: two fit. "
    "Shared memory would hold four, the threads sixteen.",
    hints=(
        "Three resources, each with room for some programs. The scarcest decides.",
        "An SM has 65,536 registers, 228 KiB of shared memory and room for 2,048 threads. A program has 128 threads.",
        "Registers: 65,536 / (200 · 128), rounded down. Shared memory: 228 KiB / (48 KiB + 1 KiB).",
    ),
    wrong=(
        (4, "That is what shared memory has room for. And the registers?"),
        (16, "That is what the threads have room for. And the registers?"),
        (3, "Round down: part of a program cannot run."),
        (1, "65,536 registers are enough for more than one program of 25,600."),
    ),
    rel=0,
)

LINES = tuple(
    name
    for left in re.findall(r"^ +([\w, ]+) = ", inspect.getsource(attention_one_head.fn), re.MULTILINE)
    for name in left.split(", ")
)
CANDIDATES = 'Answer with the name on the left of the wrong line, such as "alpha".'

bug_1 = Question(
    answer="seen",
    because="It ends where the tile's *first* row ends. Later rows see more keys: up to (i + 1) · Br + Nk − Nq.",
    hints=(
        "It is right without a mask, and the first row of each tile is right with one. What differs between rows?",
        "The later a row is in its tile, the more keys it sees. Which line says how many the whole tile meets?",
        f"{CANDIDATES} The loop ends at it.",
    ),
    choices=LINES,
    wrong=(
        ("S_ij", "The scores are masked as they should be. Are all of them computed?"),
        ("rows", "The rows are right: each program stores its own."),
    ),
)

bug_2 = Question(
    answer="l_i",
    because="The old sum belongs to the old maximum, so it must be rescaled: alpha * l_i + tl.sum(P_ij, 1).",
    hints=(
        "With all values 1 each output should be 1. It is smaller. Which of the two sums is wrong, if O_i is right?",
        "Rows whose maximum never rises after the first tile are right. What happens when it rises?",
        f"{CANDIDATES} It is a denominator.",
    ),
    choices=LINES,
    wrong=(
        ("O_i", "The outputs are too small, so the sum is too large, or O_i is too small. Look at both lines again."),
        ("alpha", "alpha is right, e^(m_i − m_safe). Where is it used, and where is it not?"),
    ),
)

bug_3 = Question(
    answer="V_j",
    because="Without other= a masked load is undefined on a GPU. The weight there is 0, but 0 · NaN is NaN.",
    hints=(
        "Every number is right here. What does the interpreter do more kindly than a GPU?",
        "Three tensors are loaded with a mask. What is in the masked places?",
        f"{CANDIDATES} It is loaded.",
    ),
    choices=LINES,
    wrong=(
        ("K_j", "K_j has other=0.0, and its scores are masked."),
        ("Q_i", "Q_i has other=0.0, and rows past the end are not stored."),
    ),
)

bug_4 = Question(
    answer=0,
    because="No key comes before key 0. From 0 to a negative number, rounded either way, there is no tile.",
    hints=(
        "For a tile of queries that sees no key the loop must be empty, whichever way -97 is rounded.",
        "The loop may start at a key that exists, and nowhere else.",
        "The first key has this number.",
    ),
    wrong=(
        (-34, "That is `end` for this tile. A loop that starts there reads keys that do not exist."),
        (-97, "Then the loop starts 97 keys before the first one."),
        (-98, "That is where the first query stands. Is there a key?"),
        (1, "Then a tile of queries that sees no key still loads key 0."),
    ),
    rel=0,
)
