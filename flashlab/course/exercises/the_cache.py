"""The exercises on the cache: its bytes, pages and their table, 8 bits, and latent attention in absorbed form."""

from typing import NamedTuple

import numpy as np

from flashlab.grading.exercise import Case, Exercise, Question
from flashlab.grading.exercise import OneSentence as Mistake

latent_bytes = Question(
    answer=1152,
    unit="bytes",
    because="512 numbers of the latent and 64 of the position, of 2 bytes each, whatever the number of heads.",
    hints=(
        "What is kept for a token: a key and a value per head, or one vector for all?",
        "One vector of 512 numbers, and 64 more that carry the position. bfloat16 has 2 bytes.",
        "2 * (512 + 64)",
    ),
    wrong=(
        (1024, "The 64 columns with the position are kept, too."),
        (2304, "One vector serves as key and as value: it is kept once."),
        (576, "A number of bfloat16 has 2 bytes."),
        (147456, "All 128 heads share the vector."),
    ),
    minutes=3,
)

wasted = Question(
    answer=15,
    because="A text of 16 k + 1 tokens has one token in its last page. All its other pages are full.",
    hints=(
        "How many pages of a text are not full?",
        "The last one at most. How few tokens can it hold?",
        "One: 16 - 1 are empty.",
    ),
    wrong=((16, "A page without any token is not held."), (8, "That is about the average. The most is asked for.")),
    minutes=1,
)

shared_reads = Question(
    answer="P + B * N",
    because="The prefix is read once for all texts, and each text's own keys once for it.",
    hints=(
        "How often is the prefix read, if all texts' queries are there while it is?",
        "Once. And the own keys of a text serve this text only.",
        "P once, and N for each of the B texts.",
    ),
    wrong=(("B * (P + N)", "That is every text by itself."), ("P + N", "Each text has N keys of its own.")),
    minutes=2,
)


def gathered(K, table, N):
    """Return the N keys of a text [N, d] from pages K [pages, page, d], where the table [T] says which."""
    page = K.shape[1]
    j = np.arange(N)  # [N]
    return K[table[j // page], j % page]


def _pages(seed, pages, page, table, N, d=3):
    K = np.random.default_rng(seed).normal(size=(pages, page, d)).astype(np.float32)
    return K, np.array(table), N


look_up = Exercise(
    reference=gathered,
    cases=lambda: [
        Case("one page, full", _pages(0, 3, 4, [1], 4)),
        Case("one page, not full", _pages(1, 3, 4, [2], 3)),
        Case("two pages, out of order", _pages(2, 4, 4, [3, 0], 7)),
        Case("entries past the last page are absurd", _pages(3, 4, 2, [2, 1, 99, -1], 4)),
        Case("pages of one token", _pages(4, 6, 1, [5, 0, 3], 3)),
        Case("an empty text", _pages(5, 2, 4, [7], 0)),
        Case("pages of five tokens", _pages(6, 5, 5, [4, 2, 0, 99], 11)),
        Case("a page that comes twice", _pages(7, 3, 2, [1, 0, 1], 6)),
        Case("a long text", _pages(8, 40, 3, [*range(39, -1, -1)], 119)),
    ],
    minutes=8,
    hints=(
        "Key j is in the text's page number j // page. Where is that page? And which row of it is the key?",
        "The table turns the text's page number into a page of the pool: table[j // page]. The row is j % page.",
        "j = np.arange(N); K[table[j // page], j % page]",
    ),
    mistakes=(
        Mistake("the row within the page is j % page.", "j % page]", "j // len(table) % page]"),
        Mistake("the table was not asked: pages of a text may be anywhere.",
                "table[j // page]", "(j // page) % len(K)"),
        Mistake("a page holds `page` tokens: key j is in the text's page j // page.",
                "table[j // page]", "table[j % len(table)] % len(K)"),
        Mistake("entries past the text's last page mean nothing: do not read them.",
                "K[table[j // page], j % page]", "K[table].reshape(-1, K.shape[2])[:N]"),
    ),
)  # fmt: skip


def needed_pages(length, n, page, shared):
    """Return how many free pages it takes to append n tokens to a text of ``length`` whose pages may be shared."""
    new = -(-(length + n) // page) - -(-length // page)
    copied = shared and n > 0 and length % page > 0
    return new + int(copied)


needed = Exercise(
    reference=needed_pages,
    cases=lambda: [
        Case("room in the last page", (5, 2, 4, False)),
        Case("one page more", (5, 4, 4, False)),
        Case("the last page is full", (8, 1, 4, False)),
        Case("an empty text", (0, 9, 4, False)),
        Case("nothing to append, to a shared page", (5, 0, 4, True)),
        Case("a shared last page with room: it is copied", (5, 2, 4, True)),
        Case("a shared last page with room, and more than fits", (5, 9, 4, True)),
        Case("shared, but the last page is full: nothing to copy", (8, 3, 4, True)),
        Case("an empty fork", (0, 3, 4, True)),
        Case("pages of one token", (3, 2, 1, True)),
        *(
            Case(f"{length} tokens, {n} more, pages of 3{', shared' * shared}", (length, n, 3, shared))
            for length in range(8)
            for n in range(6)
            for shared in (False, True)
        ),
    ],
    minutes=8,
    level=2,
    hints=(
        "Count the pages after and before. Then ask whether the append writes into a page that somebody else holds.",
        "Pages of a text of L tokens: ceil(L / page) = -(-L // page). It writes into an old page if L % page > 0.",
        "-(-(length + n) // page) - -(-length // page), plus 1 if shared and n > 0 and length % page > 0.",
    ),
    mistakes=(
        Mistake("a shared page must be copied before it is written to.", "new + int(copied)", "new"),
        Mistake("a full page is not written to: it stays shared.", " and length % page > 0", ""),
        Mistake("who appends nothing writes nothing.", "shared and n > 0 and", "shared and"),
        Mistake("round up: a page that has begun is a page.", "-(-(length + n) // page) - -(-length // page)",
                "(length + n) // page - length // page"),
        Mistake("the room that is left in the last page is used first.",
                "-(-(length + n) // page) - -(-length // page)", "-(-n // page)"),
    ),
)  # fmt: skip


class Rounded(NamedTuple):
    """Rows in 8 bits."""

    codes: np.ndarray  # [N, d], whole numbers from -127 to 127
    scale: np.ndarray  # [N]


def rounded_rows(X):
    """Return X [N, d] as whole numbers from -127 to 127, and for each row the scale that they must be multiplied by."""
    scale = np.abs(X).max(1) / 127  # [N]
    scale = np.where(scale == 0, 1, scale)  # [N]     a row of zeros
    return Rounded(np.round(X / scale[:, None]), scale)


def _spread(seed, N, d, factors=1.0):
    return ((np.random.default_rng(seed).normal(size=(N, d)) * factors).astype(np.float32),)


eight_bits = Exercise(
    reference=rounded_rows,
    cases=lambda: [
        Case("a row whose largest number is 127", (np.array([[127, 1, -3.4]], np.float32),)),
        Case("a row whose largest number is negative", (np.array([[0.5, -2.54, 1.0]], np.float32),)),
        Case("a row of zeros", (np.array([[0, 0], [1, 2]], np.float32),)),
        Case("rows of very different size", _spread(0, 3, 4, np.array([[1e-4], [1], [1e4]]))),
        Case("many rows", _spread(1, 6, 8)),
        Case("tiny rows", _spread(2, 3, 4, np.array([[1e-9], [1e-20], [1e-30]]))),
    ],
    minutes=10,
    hints=(
        "A row has its own scale, so that its largest number in size becomes 127.",
        "scale = np.abs(X).max(1) / 127, and the codes are np.round(X / scale[:, None]). For zeros: scale 1.",
        "np.where(scale == 0, 1, scale) before the division.",
    ),
    mistakes=(
        Mistake("a scale per row, not one for all: small keys would become zeros.",
                "np.abs(X).max(1) / 127", "np.full(len(X), np.abs(X).max()) / 127"),
        Mistake("the largest in size may be negative: take the maximum of |X|.", "np.abs(X).max(1)", "X.max(1)"),
        Mistake("round to nearest; cutting off is twice as wrong.",
                "np.round(X / scale[:, None])", "np.trunc(X / scale[:, None])"),
        Mistake("round to nearest; rounding down is twice as wrong.",
                "np.round(X / scale[:, None])", "np.floor(X / scale[:, None])"),
        Mistake("the largest number becomes 127, not 128: int8 has no 128.", "/ 127", "/ 128"),
        Mistake("0 / 0: a row of zeros needs some scale.", "np.where(scale == 0, 1, scale)", "scale"),
        Mistake("codes must be multiplied by the scale, so X is divided by it.",
                "X / scale[:, None]", "X * scale[:, None]"),
    ),
)  # fmt: skip


def absorbed_heads(q, q_rope, C, R, W_K, W_V, scale):
    """Return the outputs O [H, dv] of latent attention without making a key or a value."""
    q = np.einsum("hn,hnr->hr", q, W_K)  # [H, r]
    S = scale * (q @ C.T + q_rope @ R.T)  # [H, N]
    P = np.exp(S - S.max(1, keepdims=True))  # [H, N]
    P = P / P.sum(1, keepdims=True)  # [H, N]
    return np.einsum("hr,hvr->hv", P @ C, W_V)


def _latents(seed, H, N, dn=3, dr=2, r=5, dv=4, factor=1):
    rng = np.random.default_rng(seed)
    shapes = (H, dn), (H, dr), (N, r), (N, dr), (H, dn, r), (H, dv, r)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    arrays[0] *= factor  # q, and scores with it
    return *arrays, float((dn + dr) ** -0.5)


absorb = Exercise(
    reference=absorbed_heads,
    cases=lambda: [
        Case("one head, one token: the weight is 1", _latents(0, 1, 1)),
        Case("one head, two tokens", _latents(1, 1, 2)),
        Case("two heads", _latents(2, 2, 4)),
        Case("more columns in values than in keys", _latents(3, 3, 6, dn=2, dv=7)),
        Case("scores too large to be exponentiated", _latents(4, 2, 5, factor=300)),
        Case("scores far below 0", _latents(5, 2, 1, factor=300)),
    ],
    minutes=20,
    level=3,
    sways=True,
    hints=(
        "A token's score is q · (W_K c). Move W_K to the query: (W_K^T q) · c, one product per head.",
        "Scores are q' @ C.T + q_rope @ R.T, times scale. Values are W_V c: sum the latents first, W_V comes last.",
        'q = np.einsum("hn,hnr->hr", q, W_K); P = softmax of scale * (q @ C.T + q_rope @ R.T); '
        'O = np.einsum("hr,hvr->hv", P @ C, W_V).',
    ),
    mistakes=(
        Mistake("the columns with the position have a part in the score, too.", "q @ C.T + q_rope @ R.T", "q @ C.T"),
        Mistake("the scale is that of the keys that were never made, 1/sqrt(dn + dr): not that of the latent.",
                "scale * (q", "(len(C[0]) + len(R[0])) ** -0.5 * (q"),
        Mistake("the position's columns take part in the same softmax: scale both.",
                "scale * (q @ C.T + q_rope @ R.T)", "scale * (q @ C.T) + q_rope @ R.T"),
        Mistake("no maximum was subtracted: exponentials overflow, or all are 0.", "S - S.max(1, keepdims=True)", "S"),
        Mistake("one maximum for all heads: the scores of a head far below it underflow.",
                "S.max(1, keepdims=True)", "S.max()"),
        Mistake("the weights must be divided by their sum.", "P / P.sum(1, keepdims=True)", "P"),
        Mistake("each head has its own W_V.", '"hr,hvr->hv", P @ C, W_V', '"hr,vr->hv", P @ C, W_V[0]'),
        Mistake("each head has its own W_K.", '"hn,hnr->hr", q, W_K', '"hn,nr->hr", q, W_K[0]'),
    ),
)  # fmt: skip
