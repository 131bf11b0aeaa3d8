"""The exercises on roads_not_taken."""

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.reference import roads_not_taken

rows = Question(
    answer=15,
    because="A query reads all keys and values, 2·N·d numbers, where its row of the matrix was 4·N: about d/2 times.",
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


def _reach_cases():
    cases = [
        ("one query in the middle", 5, 6, 2, 20),
        ("a tile of queries in the middle", 8, 12, 3, 20),
        ("a window of the query's own place alone", 8, 12, 0, 20),
        ("a tile at the beginning, before which there are no keys", 0, 4, 3, 20),
        ("a tile at the end, after which there are no keys", 16, 20, 3, 20),
        ("a window wider than the text", 4, 8, 50, 20),
        ("a long text", 4096, 4224, 1023, 100_000),
        ("a window that reaches past the text on one side", 14, 18, 3, 20),
        *(
            (f"queries {start} to {stop - 1} of {N}, a window of {w}", start, stop, w, N)
            for N in (1, 7, 1000)
            for start in sorted({0, N // 2, N - 1})
            for stop in sorted({start + 1, N})
            for w in (0, 1, 5, 400)
        ),
    ]
    return [Case(name, tuple(numbers)) for name, *numbers in cases]


reach = Exercise(
    reference=roads_not_taken.reach,
    cases=_reach_cases,
    level=1,
    minutes=5,
    hints=(
        "Which is the first key that the tile's first query sees? Which is the last that its last query sees?",
        "The first query is start and sees from start - w on. The last is stop - 1 and sees up to stop - 1 + w.",
        "A stop is one more than the last: stop + w. Then keep both within 0 and N.",
    ),
    mistakes=(
        Mistake("one key too many: the last query is stop - 1, not stop.", "stop + w", "stop + w + 1"),
        Mistake("the last key is missing: a stop is one more than the last.", "stop + w", "stop + w - 1"),
        Mistake("a negative start counts from the array's end: not below 0.", "max(start - w, 0)", "start - w"),
        Mistake("there are only N keys: the stop must not exceed N.", "min(stop + w, N)", "stop + w"),
        Mistake("the window looks both ways: the tile also sees w keys before it.", "max(start - w, 0)", "start"),
        Mistake("the window looks both ways: the tile also sees w keys after it.", "min(stop + w, N)", "stop"),
        Mistake(
            "the window is missing: the tile also sees w keys before and after it.",
            "max(start - w, 0), min(stop + w, N)",
            "start, stop",
        ),
        Mistake(
            "w is the reach to either side, not the width of the whole window.",
            "max(start - w, 0), min(stop + w, N)",
            "max(start - w // 2, 0), min(stop + w // 2, N)",
        ),
        Mistake(
            "the tile's last query is stop - 1, not start: it sees further.",
            "min(stop + w, N)",
            "min(start + w + 1, N)",
        ),
        Mistake("a stop is one more than the last key, so it may be N.", "min(stop + w, N)", "min(stop + w, N - 1)"),
    ),
)


def _features_cases():
    def array(values):
        return np.array(values, np.float32)

    rng = np.random.default_rng(5)
    X, omega = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(6, 3)).astype(np.float32)
    return [
        Case("a vector of zeros", (array([[0, 0]]), array([[1, 2]]))),
        Case("one number, one direction", (array([[1]]), array([[2]]))),
        Case("two directions", (array([[1]]), array([[2], [-1]]))),
        Case("a vector of length 5", (array([[3, 4]]), array([[1, 0]]))),
        Case("four vectors, six directions", (X, omega)),
        *(
            Case(f"{N} vectors of {d} numbers, {r} directions", _normal(N, d, r))
            for N, d, r in ((1, 1, 1), (1, 4, 7), (5, 1, 3), (6, 4, 1), (3, 3, 3), (150, 16, 20), (2, 70, 130))
        ),
    ]


def _normal(N, d, r):
    rng = np.random.default_rng(N)
    return rng.normal(size=(N, d)).astype(np.float32), rng.normal(size=(r, d)).astype(np.float32)


features = Exercise(
    reference=roads_not_taken.features,
    cases=_features_cases,
    level=2,
    minutes=8,
    hints=(
        "X @ omega.T has the right shape already. What must be subtracted from it, and from which axis is it taken?",
        "Half of each vector's squared length, (X * X).sum(-1) / 2, as a column so that it goes with the rows.",
        "np.exp(X @ omega.T - (X * X).sum(-1, keepdims=True) / 2), divided by the square root of len(omega).",
    ),
    mistakes=(
        Mistake(
            "the squared length is missing: subtract half of it inside the exponential.",
            "log_features(X, omega)",
            "X @ omega.T",
        ),
        Mistake(
            "half of the squared length is to be subtracted, not all of it.",
            "log_features(X, omega)",
            "X @ omega.T - (X * X).sum(-1, keepdims=True)",
        ),
        Mistake(
            "half of the length was subtracted: it must be squared.",
            "log_features(X, omega)",
            "X @ omega.T - np.sqrt((X * X).sum(-1, keepdims=True)) / 2",
        ),
        Mistake(
            "the squared length was added: it is to be subtracted.",
            "log_features(X, omega)",
            "X @ omega.T + (X * X).sum(-1, keepdims=True) / 2",
        ),
        Mistake(
            "divide by the square root of r: two features are multiplied, and the product is to be a mean.",
            "/ len(omega) ** 0.5",
            "/ len(omega)",
        ),
        Mistake(
            "divide by the square root of r, the number of directions: a sum is to become a mean.",
            " / len(omega) ** 0.5",
            "",
        ),
        Mistake("divided by √d: r is the number of directions.", "/ len(omega) ** 0.5", "/ X.shape[1] ** 0.5"),
        Mistake(
            "the squared lengths go with the rows: keepdims=True makes a column of them.",
            "log_features(X, omega)",
            "X @ omega.T - (X * X).sum(-1) / 2",
        ),
        Mistake(
            "one length for all vectors: sum along the last axis only.",
            "log_features(X, omega)",
            "X @ omega.T - (X * X).sum() / 2",
        ),
        Mistake(
            "the length of omega was taken: half of the squared length of x is to be subtracted.",
            "log_features(X, omega)",
            "X @ omega.T - (omega * omega).sum(-1) / 2",
        ),
        Mistake("the exponential is missing.", "np.exp(log_features(X, omega))", "log_features(X, omega)"),
        Mistake(
            "a maximum was subtracted, as in a softmax, but no division takes it out again.",
            "log_features(X, omega)",
            "log_features(X, omega) - log_features(X, omega).max()",
        ),
    ),
)
