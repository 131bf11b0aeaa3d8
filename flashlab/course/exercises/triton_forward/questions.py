"""Numbers to predict: tiles that need the mask, and loads of keys that heads share."""

from flashlab.grading.exercise import Question

masked_tiles = Question(
    answer=16,
    because="8 programs, and the diagonal crosses two tiles of each: 128 rows are two tiles of 64 keys.",
    hints=(
        "The diagonal leaves a tile of 128 rows after how many keys?",
        "Each program's rows begin and end at multiples of 128, which are multiples of 64.",
        "1024 / 128 programs, 128 / 64 tiles each.",
    ),
    wrong=(
        (8, "That is one per program; but a program's 128 rows are two tiles of 64 keys wide."),
        (72, "Those are all that are visited. Those below the diagonal need no mask."),
        (56, "Those are the whole ones: 0 + 2 + 4 + … + 14. What does the diagonal cross?"),
        (128, "That is all of them. Tiles above the diagonal are never loaded."),
    ),
    rel=0,
)

grouped_keys = Question(
    answer=1,
    because="Each of the 8 heads has programs of its own, and each program loads all keys for itself, even if others "
    "load the same. What is saved is room: 2 heads of K and V to keep instead of 8, and neighbours find them in the "
    "cache.",
    hints=(
        "A program handles one tile of one query head. Whose keys does it load?",
        "It loads all of its key/value head, however many other query heads load the same.",
        "How many programs are there with Hk = 8, and with Hk = 2? Each loads N × d numbers of K.",
    ),
    wrong=(
        (0.25, "That is how much smaller K is. But who loads it, and how often?"),
        (4, "Fewer key/value heads do not make a program load more."),
    ),
    rel=0,
)  # fmt: skip
