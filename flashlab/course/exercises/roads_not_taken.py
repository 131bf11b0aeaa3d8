"""The exercises on roads_not_taken."""

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question
from flashlab.reference import roads_not_taken

rows = Question(
    answer=15,
    because="A query reads all keys and values, 2·N·d numbers, where its row of the matrix was 4·N: d/2 times as many.",
    hints=(
        "Count numbers moved for one query only, on both roads.",
        "Standard attention writes and reads the query's row of S, then of P: 4·N numbers. What does it read now?",
        "Now it reads all of K and V, 2·N·d numbers: d/2 = 16 times 4·N, and a little less with Q, K, V and O counted.",
    ),
    wrong=(
        (1, "The matrix is gone, but what came in its place? Every query reads every key and every value."),
        (512, "K and V are indeed read 512 times. Set that against the matrix, which is much larger than they are."),
        (32, "d numbers for each key and d for each value, 2·d in all, but the matrix took 4 numbers a pair, not 2."),
    ),
    rel=0.1,
)

share = Question(
    answer=0.98,
    because="33 keys and 33 values of 32 numbers each are 2,112; the row of the matrix was 4 · 512 = 2,048 numbers. "
    "Near the ends of the text a window has fewer keys, and with Q and O the share is 0.98.",
    hints=(
        "A skipped pair costs no FLOPs. What does a pair that is not skipped cost in bytes?",
        "It costs a key and a value, 2·d = 64 numbers; in standard attention a pair costs 4, skipped or not.",
        "33 · 64 numbers for each query, against 512 · 4.",
    ),
    wrong=(
        (0.0625, "That is the share of the FLOPs. But each key and value that is left is fetched for one query alone."),
        (98, "In per cent, yes. As a share, where 1 is as many as standard attention, it is 0.98."),
        (0.5, "It would be, were d half as large. Each pair that is left costs 2·d = 64 numbers, not 32."),
    ),
    rel=0.1,
)


def _draw_reach(rng, size):
    """Draw a tile of queries, at an end of the text or not, and a window, which may be wider than the text."""
    N = whole(rng, size, 10**4)
    start = int(rng.choice([0, rng.integers(N)]))
    stop = int(rng.choice([N, rng.integers(start, N) + 1]))
    return start, stop, int(rng.choice([0, rng.integers(N), whole(rng, size, 10**4)])), N


BOTH = "max(start - w, 0), min(stop + w, N)"

reach = Exercise(
    reference=roads_not_taken.reach,
    edges=(
        Case("a tile of queries in the middle", (8, 12, 3, 20)),
        Case("a window of the query's own place alone", (8, 12, 0, 20)),
        Case("a tile at the beginning, before which there are no keys", (0, 4, 3, 20)),
        Case("a tile at the end, after which there are no keys", (16, 20, 3, 20)),
        Case("a window wider than the text", (4, 8, 50, 20)),
    ),
    draw=_draw_reach,
    mistakes=(
        Mistake("loaded one key too many.", "The last query is stop − 1, not stop.", "stop + w", "stop + w + 1"),
        Mistake("left the last key out.", "A stop is one more than the last key.", "stop + w", "stop + w - 1"),
        Mistake("let start fall below 0, and a negative index counts from the end.", "Take 0 instead.",
                "max(start - w, 0)", "start - w"),
        Mistake("let stop exceed N.", "There are only N keys.", "min(stop + w, N)", "stop + w"),
        Mistake("took w for the width of the whole window.", "The window has w places to either side.",
                BOTH, "max(start - w // 2, 0), min(stop + w // 2, N)"),
        Mistake("took the first query's last key.", "The tile's last query, stop − 1, sees further.",
                "min(stop + w, N)", "min(start + w + 1, N)"),
    ),
    level=1,
    minutes=5,
    hints=(
        "Which is the first key that the tile's first query sees? Which is the last that its last query sees?",
        "The first query is start and sees from start - w on. The last is stop - 1 and sees up to stop - 1 + w.",
        "A stop is one more than the last: stop + w. Then keep both within 0 and N.",
    ),
)  # fmt: skip
