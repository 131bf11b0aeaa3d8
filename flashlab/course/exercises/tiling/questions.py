"""Bytes to predict: what each loop order moves."""

from flashlab.grading.exercise import Question
from flashlab.reference import tiling

_N, _D, _B = 512, 32, 64  # of the lesson's text

k_bytes = Question(
    answer=tiling.fa2_traffic(_N, _N, _D, _B, _B)["load", "K"],
    unit="bytes",
    because="Each of the 512 / 64 = 8 tiles of queries reads all 512 × 32 numbers of K, at 4 bytes each.",
    hints=(
        "How often does the inner loop run from the first key to the last?",
        "Once for each tile of queries; and each time it reads all of K.",
        "(512 / 64) × 512 × 32 × 4 bytes.",
    ),
    wrong=(
        (_N * _D * 4, "That is K once. With the queries outside it is read again for each tile of queries."),
        (_N // _B * _N * _D, "Those are the numbers; a float32 has 4 bytes."),
        (_N * _N * _D * 4, "That is K once for each query; a tile of 64 queries shares one reading."),
        (_B * _N * _D * 4, "64 is the number of rows in a tile; there are 512 / 64 = 8 tiles."),
        (2 * _N // _B * _N * _D * 4, "That is K and V together; the question is for K alone."),
    ),
)

o_bytes = Question(
    answer=tiling.fa1_traffic(_N, _N, _D, _B, _B)["store", "O"] + tiling.fa1_traffic(_N, _N, _D, _B, _B)["load", "O"],
    unit="bytes",
    because="Written in each of the 8 passes, read back in all but the first: 15 × 512 × 32 × 4 bytes.",
    hints=(
        "How many tiles of keys are there? What happens to O for each of them?",
        "8 times O is written. It is also read back, except in the first pass, where nothing has been written yet.",
        "(8 + 7) × 512 × 32 × 4 bytes.",
    ),
    wrong=(
        (_N * _D * 4, "That is O written once, as with the queries outside."),
        (8 * _N * _D * 4, "Those are the stores. To be continued, O must also be read back."),
        (2 * _N * _D * 4, "That is one store and one load of O. It travels for each of the 8 tiles of keys."),
        (16 * _N * _D * 4, "Almost: in the first pass there is nothing to read back yet."),
        (15 * _N * _D, "Those are the numbers; a float32 has 4 bytes."),
    ),
    minutes=3,
)
