"""Questions to answer before a cell shows the answer: what must be kept, and a quiz on the lessons up to this one."""

from flashlab.grading.exercise import Question

keep = Question(
    answer=2,
    because="The block's maximum, and its sum of exponentials relative to that maximum.",
    hints=(
        "The sum alone is not enough: relative to what was it taken?",
        "Think of adding 3 km and 500 m. What do you need to know beside the two numbers?",
        "A sum, and the maximum that was subtracted before the exponentials were taken.",
    ),
    wrong=(
        (1, "The sum alone is not enough: two sums taken relative to different maxima cannot be added. Read on."),
        ("all", "That would be safe, but the first block is to be forgotten. Far less will do. Read on."),
        (12, "That is all of it, but the first block is to be forgotten. Far less will do. Read on."),
        (3, "One too many, as long as it is about the denominator. What would the third be for? Read on."),
    ),
)

quiz_size = Question(
    answer=64,
    unit="MiB",
    because="4,096² numbers of 4 bytes are 2²⁴ · 4 = 2²⁶ bytes, and a MiB is 2²⁰.",
    hints=("How many scores are there?", "4,096² = 2²⁴ scores, and a float32 has 4 bytes.", "2²⁶ / 2²⁰"),
    wrong=((32, "That is float16. A float32 has 4 bytes."), (67, "Those are MB, of 10⁶ bytes. A MiB has 2²⁰.")),
)

quiz_passes = Question(
    answer=6,
    because="S out and in, the masked S out and in, P out and in.",
    hints=(
        "Which kernels run, and which squares does each load and store?",
        "Without a mask there are 4 passes. The mask is a kernel of its own.",
        "The mask kernel loads S and stores the masked S.",
    ),
    wrong=(
        (4, "That is without the mask, which is a kernel of its own."),
        (2, "A mask forbids half of the scores, but they travel all the same, as −∞. It is one kernel more."),
        (5, "The mask kernel loads S and also stores the masked S."),
    ),
)

quiz_gate = Question(
    answer=0.25,
    because="The arithmetic needs 50 / 200 of the time that the bytes need, so it runs for a quarter of it.",
    hints=(
        "Which of the two clocks stops later?",
        "While a byte comes, the card could do 200 FLOPs, and the kernel has 50 for it.",
        "50 / 200",
    ),
    wrong=(
        (4, "That is upside down: a share is at most 1."),
        (1, "That is to the right of the ridge. This kernel is left of it."),
    ),
)

quiz_half = Question(
    answer="zeros",
    because="e^10.5 = 36,316 fits into float16, but the sum of three does not: it is ∞, and 36,316 / ∞ = 0.",
    hints=(
        "The largest float16 is 65,504. Which step leaves it first?",
        "e^10.5 is 36,316. Three of them are more than 65,504.",
        "A finite number divided by ∞ is ...",
    ),
    wrong=(
        ("right", "Each exponential fits, but does their sum?"),
        ("nan", "That takes ∞ / ∞. Here the exponentials are finite, and only the sum is ∞."),
    ),
)

quiz_merged = Question(
    answer=2.5,
    because="m = ln 2. The first sum is rescaled by e^(0 − ln 2) = 1/2, the second by 1: 3/2 + 1.",
    hints=(
        "Which maximum do both together have?",
        "The first sum is multiplied by e^(m_a − m) = e^(−ln 2).",
        "3 · 1/2 + 1 · 1",
    ),
    wrong=(
        (4, "The sums were added as they are. They are relative to different maxima."),
        (7, "That is rescaled by the inverse: e^(m_a − m) is 1/2, not 2."),
        (5, "That is relative to the smaller maximum. Take the larger one."),
    ),
)

quiz_lse = Question(
    answer=0.6931,
    because="The sum of exponentials is twice as large, and log(2 x) = log x + log 2.",
    hints=(
        "What is the sum of exponentials of both parts, if each has the sum x?",
        "It is 2 x. What is its logarithm?",
        "log 2",
    ),
    wrong=(
        (2, "The sum of exponentials doubles. The lse is its logarithm."),
        (1, "That would be the logarithm to base 2. The lse is a natural logarithm."),
        (0, "The maximum may stay as it is, but the sum of exponentials doubles."),
    ),
)
