"""Numbers to predict: programs, and accesses per element."""

from flashlab.grading.exercise import Question

programs = Question(
    answer=977,
    because="Each program adds 1,024 elements, and 1,000,000 / 1,024 = 976.6: the last one is not full.",
    hints=(
        "One program per block. What becomes of a block that is not full?",
        "Divide, and round: in which direction?",
        "ceil(1,000,000 / 1,024): triton.cdiv computes it.",
    ),
    wrong=(
        (976, "That is rounded down: the last 576 elements would never be added."),
        (976.5625, "A part of a program cannot run. Which way must the number be rounded?"),
        (1000, "A block has 1,024 elements, not 1,000."),
        (1024, "That is the size of one block. How many of them does a million need?"),
        (1_000_000, "One program adds a whole block of 1,024 elements."),
    ),
    rel=0,
)

accesses = Question(
    answer=2,
    because="One load and one store: the row waits in registers from its load to its store.",
    hints=(
        "Count loads and stores of one element, from slow memory only.",
        "The maximum, the exponentials, the sum: where do they live while one program works?",
        "It is loaded once and its weight is stored once.",
    ),
    wrong=(
        (3, "That is the online softmax, whose row does not fit. Here it does."),
        (1, "That is the load. The weight is stored, too."),
        (8, "That is one kernel for each operation. Here one kernel does all of them."),
        (4, "That is the safe softmax in three passes. Here the row stays in registers."),
    ),
    rel=0,
)
