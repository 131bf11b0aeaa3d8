"""The exercises on the cache: its bytes, pages and their table, 8 bits, and latent attention in absorbed form."""

from typing import NamedTuple

import numpy as np

from flashlab.grading.draws import lengths
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake, Question, edited
from flashlab.grading.laws import nothing_clipped

__all__ = [
    "latent_bytes",
    "absorb",
    "wasted",
    "look_up",
    "needed",
    "shared_reads",
    "eight_bits",
]  # in the lesson's order

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
    wrong=((16, "A page without any token is not held."), (8, "That is about the average. What is the most?")),
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


def _pages(pages, page, table, N):
    return np.arange(pages * page, dtype=np.float32).reshape(pages, page, 1), np.array(table, int), N


def _draw_look_up(rng, size):
    """Draw a pool, and a table with the text's pages, and with absurd entries after them."""
    pages, page, d = (int(n) for n in rng.integers(1, size + 1, 3))
    table = rng.choice([rng.permutation(pages), rng.integers(pages, size=pages)])  # [pages]
    N = int(rng.integers(pages * page + 1))
    absurd = rng.choice([-1, 0, pages, 10**9], rng.integers(3))
    return rng.normal(size=(pages, page, d)).astype(np.float32), np.append(table[: -(-N // page)], absurd), N


look_up = Exercise(
    reference=gathered,
    edges=(
        Case("one page, not full", _pages(3, 4, [2], 3)),
        Case("two pages, out of order", _pages(4, 2, [3, 0], 4)),
        Case("entries past the last page are absurd", _pages(3, 2, [2, 1, 99, -1], 4)),
        Case("pages of one token", _pages(4, 1, [3, 0, 2], 3)),
        Case("an empty text", _pages(2, 4, [7], 0)),
    ),
    draw=_draw_look_up,
    mistakes=(
        Mistake("took the wrong row of a page.", "Key j is in row j % page.", "j % page]", "j // len(table) % page]"),
        Mistake("did not use the table.", "Pages of a text may be anywhere: table[...] says where.",
                "table[j // page]", "(j // page) % len(K)"),
        Mistake("took another page for each key.", "A page holds `page` tokens: key j is in the text's page j // page.",
                "table[j // page]", "table[j % len(table)] % len(K)"),
        Mistake("used entries past the text's last page.", "They mean nothing: N tokens have ceil(N / page) pages.",
                "K[table[j // page], j % page]", "K[table].reshape(-1, K.shape[2])[:N]"),
    ),
    minutes=8,
    hints=(
        "Key j is in the text's page number j // page. Where is that page? And which row of it is the key?",
        "The table turns the text's page number into a page of the pool: table[j // page]. The row is j % page.",
        "j = np.arange(N); K[table[j // page], j % page]",
    ),
)  # fmt: skip


def needed_pages(length, n, page, shared):
    """Return how many free pages it takes to append n tokens to a text of ``length`` whose pages may be shared."""
    new = -(-(length + n) // page) - -(-length // page)
    copied = shared and n > 0 and length % page > 0
    return new + int(copied)


def _draw_needed(rng, size):
    length, n = (int(n) for n in rng.integers(0, 3 * size + 1, 2))
    return length, n, int(rng.integers(1, size + 1)), bool(rng.integers(2))


needed = Exercise(
    reference=needed_pages,
    edges=(
        Case("room in the last page", (5, 2, 4, False)),
        Case("more than the last page has room for", (5, 4, 4, False)),
        Case("a shared last page with room: it is copied", (5, 2, 4, True)),
        Case("no tokens for a shared page", (5, 0, 4, True)),
        Case("a shared last page that is full: nothing to copy", (8, 3, 4, True)),
    ),
    draw=_draw_needed,
    mistakes=(
        Mistake("did not copy the shared page.", "Another text holds it: copy it before you write to it.",
                "new + int(copied)", "new"),
        Mistake("copied a full page.", "It is not written to, and stays shared.", " and length % page > 0", ""),
        Mistake("copied a page though n is 0.", "Without new tokens nothing is written.",
                "shared and n > 0 and", "shared and"),
        Mistake("rounded down.", "A page that has begun is a page: round up.",
                "-(-(length + n) // page) - -(-length // page)", "(length + n) // page - length // page"),
        Mistake("began with a new page.", "The room in the last page is used first.",
                "-(-(length + n) // page) - -(-length // page)", "-(-n // page)"),
    ),
    level=2,
    minutes=8,
    hints=(
        "Count the pages after and before. Then ask whether the append writes into a page that another text holds.",
        "Pages of a text of L tokens: ceil(L / page) = -(-L // page). It writes into an old page if L % page > 0.",
        "-(-(length + n) // page) - -(-length // page), plus 1 if shared and n > 0 and length % page > 0.",
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


def _rows(*rows):
    return (np.float32(rows),)


def _draw_eight_bits(rng, size):
    """Draw rows of any size, and rows of zeros. No number is half way between two codes, or nearly."""
    N, d = rng.integers(1, size + 1, 2)
    codes = rng.integers(-126, 127, (N, d)) + rng.uniform(-0.49, 0.49, (N, d))  # [N, d]
    codes[np.arange(N), rng.integers(d, size=N)] = 127 * rng.choice([-1, 1], N)
    scales = 10.0 ** (rng.choice([1, 30]) * rng.uniform(-1, 1, (N, 1)))  # [N, 1]
    return (np.where(rng.random((N, 1)) < 0.1, 0, scales * codes).astype(np.float32),)


eight_bits = Exercise(
    reference=rounded_rows,
    edges=(
        Case("a row whose largest number is 127", _rows([127, 1, 3.4, 3.7])),
        Case("a row whose largest number in size is negative", _rows([0.5, -2.54, 1])),
        Case("two rows of very different size", _rows([1, 0.1], [1e4, 1e3])),
        Case("a row of zeros", _rows([0, 0], [1, 2])),
    ),
    draw=_draw_eight_bits,
    mistakes=(
        Mistake("took one scale for all rows.", "Each row has its own: small keys would become zeros.",
                "np.abs(X).max(1) / 127", "np.full(len(X), np.abs(X).max()) / 127"),
        Mistake("took the largest number for the largest in size.", "That may be negative: take the maximum of |X|.",
                "np.abs(X).max(1)", "X.max(1)"),
        Mistake("cut off the fraction.", "Round to the nearest: cutting off doubles the largest error.",
                "np.round(X / scale[:, None])", "np.trunc(X / scale[:, None])"),
        Mistake("let the largest number become 128.", "It becomes 127: int8 has no 128.", "/ 127", "/ 128"),
        Mistake("divided 0 by 0.", "A row of zeros has scale 1.", "np.where(scale == 0, 1, scale)", "scale"),
        Mistake("multiplied X by the scale.", "Codes times scale are X: so divide X by it.",
                "X / scale[:, None]", "X * scale[:, None]"),
    ),
    minutes=10,
    hints=(
        "A row has its own scale, so that its largest number in size becomes 127.",
        "scale = np.abs(X).max(1) / 127, and the codes are np.round(X / scale[:, None]). For zeros: scale 1.",
        "np.where(scale == 0, 1, scale) before the division.",
    ),
)  # fmt: skip


def absorbed_heads(q, q_rope, C, R, W_K, W_V, scale):
    """Return the outputs O [H, dv] of latent attention without making a key or a value."""
    q = np.einsum("hn,hnr->hr", q, W_K)  # [H, r]
    S = scale * (q @ C.T + q_rope @ R.T)  # [H, N]
    P = np.exp(S - S.max(1, keepdims=True))  # [H, N]
    P = P / P.sum(1, keepdims=True)  # [H, N]
    return np.einsum("hr,hvr->hv", P @ C, W_V)


def _one_head(latents, q=1, q_rope=1, W=1, dtype=np.float32):
    """Return one head whose vectors have one column each. The columns with the position are the latents once more."""
    C, W = np.array(latents, dtype)[:, None], np.array([[[W]]], dtype)  # [N, 1], [1, 1, 1]
    return np.array([[q]], dtype), np.array([[q_rope]], dtype), C, C, W, W, 2**-0.5


def _two_large_tokens(size, dtype):
    """Return one head with keys and values of ``size`` squared and its negative, scores of 0, and an output of 0."""
    return _one_head([size, -size], q=2.0**8 / size / size, q_rope=-(2.0**8) / size, W=size, dtype=dtype)


def _makes_no_keys(attempt):
    """Law with inputs of its own: no keys or values are made. At the size 2⁵¹² float64 would not hold them.

    An attempt that computes in float32, whatever its inputs are, is wrong at both sizes: the cases judge it.
    """

    def is_right(size):
        return np.array_equal(np.asarray(attempt(*_two_large_tokens(size, np.float64))), [[0]])

    if is_right(2.0**256) and not is_right(2.0**512):
        says = "the numbers are right, but keys or values were made. Move W_K to the query, and apply W_V last."
        return Broken("latents in float64, with keys and values that float64 does not hold", says, if_right=True)
    return None


def _two_heads():
    """Return two heads with matrices of their own, of which the second has much lower scores than the first."""
    q, q_rope, W = np.float32([[1], [2]]), np.float32([[200], [-200]]), np.float32([[[1]], [[3]]])
    return q, q_rope, np.float32([[0], [1]]), np.float32([[1], [1]]), W, W, 2**-0.5


def _draw_absorb(rng, size):
    H, N, dn, dr, r, dv = lengths(rng, min(size, 40), 6)
    shapes = (H, dn), (H, dr), (N, r), (N, dr), (H, dn, r), (H, dv, r)
    q, *others = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return np.float32(rng.choice([1, 1, 300])) * q, *others, (dn + dr) ** -0.5


_lse_rounded = edited(  # the weights are e^(S − lse), and float32 rounds lse
    absorbed_heads, "= P / P", "= np.exp(2.0**-23 * np.abs(S).max(1, keepdims=True)) * P / P"
)


def _weights(attempt, x):
    """Return the weights of tokens whose scores are x [N]; their latents and values are the rows of the identity."""
    scale, eye = 2**-0.5, np.eye(len(x), dtype=np.float32)  # [N, N]
    q, q_rope = np.float32([[0]]), np.float32([[1]])
    return attempt(q, q_rope, eye, x[:, None] / np.float32(scale), 0 * eye[None, :1], eye[None], scale)[0]


absorb = Exercise(
    reference=absorbed_heads,
    edges=(
        Case("one token: the weight is 1", _one_head([2])),
        Case("two tokens", _one_head([0, 1])),
        Case("two heads whose scores lie far apart", _two_heads()),
        Case("scores whose exponentials overflow", _one_head([100, 101])),
        Case("keys and values that float32 does not hold: they are not made",
             _two_large_tokens(2.0**64, np.float32)),
    ),
    draw=_draw_absorb,
    once=(_makes_no_keys, nothing_clipped(_weights)),
    sways=True,
    rounded=(_lse_rounded,),
    mistakes=(
        Mistake("left out the columns with the position.", "They have a part in the score: q_rope @ R.T.",
                "q @ C.T + q_rope @ R.T", "q @ C.T"),
        Mistake("took the scale of the latent.", "It is that of the keys, 1/√(dn + dr): use `scale`.",
                "scale * (q", "(len(C[0]) + len(R[0])) ** -0.5 * (q"),
        Mistake("scaled only a part of the score.", "Add the position's product, then scale the sum.",
                "scale * (q @ C.T + q_rope @ R.T)", "scale * (q @ C.T) + q_rope @ R.T"),
        Mistake("did not subtract the maximum of each head's scores.", "Exponentials overflow, or all are 0.",
                "S - S.max(1, keepdims=True)", "S"),
        Mistake("did not divide the weights by their sum.", "Weights sum to 1.", "P / P.sum(1, keepdims=True)", "P"),
        Mistake("made keys or values.", "Move W_K to the query, and apply W_V to the weighted sum of the latents.",
                '"hr,hvr->hv", P @ C, W_V', '"hn,hnv->hv", P, np.einsum("nr,hvr->hnv", C, W_V)'),
    ),
    level=3,
    minutes=20,
    hints=(
        "A token's score is q · (W_K c). Move W_K to the query: (W_K^T q) · c, one product per head.",
        "Scores are q' @ C.T + q_rope @ R.T, times scale. Values are W_V c: sum the latents first, W_V comes last.",
        'q = np.einsum("hn,hnr->hr", q, W_K); P = softmax of scale * (q @ C.T + q_rope @ R.T); '
        'O = np.einsum("hr,hvr->hv", P @ C, W_V).',
    ),
)  # fmt: skip
