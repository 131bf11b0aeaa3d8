"""Predictions: what is kept, how often the backward pass moves an N × d tensor, and how many products it has."""

from flashlab.grading.exercise import Question

kept = Question(
    answer=512,
    because="A row of P has 1,024 numbers of 2 bytes, and one lse of 4 bytes stands for it: 2,048 / 4.",
    hints=(
        "How many bytes has one row of P? And the one number that is kept instead?",
        "1,024 numbers of 2 bytes, and one number of 4 bytes.",
        "2,048 / 4",
    ),
    wrong=(
        (1024, "That is the ratio of the numbers. But lse has 4 bytes, a weight 2."),
        (2048, "Those are the bytes of a row of P. One lse has 4 bytes."),
        (256, "A weight in float16 has 2 bytes: a row of P has 2,048."),
        (1, "P has 1,024 numbers per row, lse has one."),
    ),
    minutes=3,
)

passes = Question(
    answer=20,
    because="K, V read and dK, dV written once: 4. Q and dO read at 4 visits: 8. dQ written at 4 and read at 3: 7. "
    "O read once: 1.",
    hints=(
        "Which tensors belong to the keys, and move once? Which to the queries, and move at every visit?",
        "Outside: K, V, dK, dV. At each of the 4 visits: Q, dO and dQ. At the first visit only: O. And dQ need not be "
        "read where it is still zero.",
        "4 for the keys, 4 + 4 for Q and dO, 4 + 3 for dQ, 1 for O.",
    ),
    wrong=(
        (21, "dQ is zero before the first visit: there is nothing to read yet."),
        (23, "O is needed for delta only: at the first visit, and never again."),
        (24, "dQ is zero before the first visit, and O is needed at the first visit only."),
        (19, "O is read as well, once, for delta."),
        (8, "That is each tensor once. Q, dO and dQ move at each of the 4 visits."),
        (13, "That is the forward pass's bill. The backward pass has more to carry."),
        (33, "That is the forward pass and the backward pass together."),
    ),
    minutes=8,
)

products = Question(
    answer=7,
    because="Forward S and O; backward S once more, dV, dP, dQ, dK. Seven instead of six.",
    hints=(
        "A product makes an N × N matrix of two thin ones, or multiplies one by a thin one. Count the products.",
        "Where everything is kept: forward S and O, backward dV, dP, dQ, dK. Which of them is done again?",
        "P is an exponential away from S, so only S = Q Kᵀ is done again.",
    ),
    wrong=(
        (6, "That is with P kept: S, O, dV, dP, dQ, dK. To build P again takes S again."),
        (8, "The whole forward pass is not repeated: O is at hand, only S is needed again."),
        (5, "That is the backward pass alone. The forward pass's two count too."),
        (4, "That is the backward pass alone, with P kept."),
        (12, "That is the forward pass once, and all of the backward pass twice. Only one product is done again."),
    ),
    minutes=4,
)
