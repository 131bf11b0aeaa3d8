"""A number to predict: the occupancy."""

from flashlab.grading.exercise import Question

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
