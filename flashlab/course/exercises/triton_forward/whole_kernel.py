"""The capstone, the whole kernel of one head: ``forward``."""

import numpy as np

from flashlab.course.exercises.triton_forward.one_head import TILE, Output, attend, attention_one_head
from flashlab.grading.exercise import Broken, Case, Exercise, edited
from flashlab.grading.exercise import OneSentence as Mistake
from flashlab.grading.generators import FINITE, sweep
from flashlab.grading.kernel_laws import factors_are_wide, loads_at_most, no_small_number_added
from flashlab.grading.laws import DROPPED
from flashlab.kernels import triton
from flashlab.reference import masks, tiling
from flashlab.reference.attention import attention


def _enough(Q, K, V, causal, Br=TILE, Bc=TILE):
    """Return the bytes that the kernel must load: Q once, and K and V once for each program that sees them."""
    width, mask = max(16, triton.next_power_of_2(Q.shape[1])), masks.causal() if causal else None
    bill = tiling.fa2_traffic(len(Q), len(K), width, Br, Bc, mask=mask, dtype=np.float16)
    return sum(size for (kind, _), size in bill.items() if kind == "load")


def _outputs(Q, *others):
    """Return the bytes of O, of a tile's width, and of lse."""
    return 4 * len(Q) * (max(16, triton.next_power_of_2(Q.shape[1])) + 1)


def _dense(Q, K, V, causal, Br=TILE, Bc=TILE):
    return Output(*attention(Q, K, V, mask=masks.causal() if causal else None, return_lse=True))


def _forward_cases():
    def case(name, Q, K, V, causal=False, *tile):
        return Case(name, (*(np.array(x, np.float16) for x in (Q, K, V)), causal, *tile))

    def draw(Nq, Nk, d, factor=1.0):
        rng = np.random.default_rng(Nq + Nk)
        return factor * rng.normal(size=(Nq, d)), factor * rng.normal(size=(Nk, d)), rng.normal(size=(Nk, d))

    values = np.arange(17.0)[:, None] @ np.ones((1, 1))
    rising, falling = np.linspace(0, 3, 17)[:, None], np.zeros((17, 1))
    falling[0] = 200
    many, ones = draw(3, 500, 2, 0.1), np.ones((500, 2))
    late = np.ones((2, 1)), 100 * np.eye(320)[:, -1:], np.arange(320)[:, None] % 7
    return [
        case("one query, one key", [[2, 0, 0, 0]], [[1, 0, 0, 0]], [[3, 0, 0, 0]]),
        case("one query, two keys", [[2.0]], [[1.0], [0.0]], [[10.0], [20.0]]),
        case("two queries of two dimensions", [[1, 0], [0, 2]], [[3, 1], [-1, 2]], [[1, 2], [3, 4]]),
        case("negative scores: a key that is not there must not win", [[2.0]], [[-1.0], [-2.0]], [[10.0], [20.0]]),
        case("scores too large to be exponentiated", [[100.0]], [[10.0], [9.99]], [[1.0], [2.0]]),
        case("scores far below 0", [[100.0]], [[-10.0], [-9.99]], [[1.0], [2.0]]),
        case("a full tile of scores far below 0", [[100.0]], [[-0.5]] * 16, values[:16]),
        case("scores below any number that one would take for −∞", [[5e4]], [[-4e4], [-5e4]], [[1.0], [2.0]]),
        case("a second tile of keys that raises the maximum", [[1.0]], rising, values),
        case("a second tile of keys far below the first: its maximum is not the row's", [[1.0]], falling, values),
        case("causal: a query sees itself and what was before", [[1.0]] * 3, [[1], [2], [3]], [[10], [20], [30]], True),
        case("causal, more keys than queries: the last query sees the last key", *draw(2, 5, 1), True),
        case("causal over several tiles, more keys than queries", *draw(21, 40, 4), True),
        case("causal, fewer keys than queries: queries that see nothing", *draw(19, 2, 1), True),
        case("causal, the first row sees all keys of a tile but one", *draw(16, 30, 4), True),
        case("whole tiles, two programs", *draw(32, 32, 4)),
        case("lengths that no tile divides", *draw(21, 37, 4)),
        case("no keys at all", np.ones((3, 2)), np.zeros((0, 2)), np.zeros((0, 2))),
        case("no keys at all, causal", np.ones((3, 2)), np.zeros((0, 2)), np.zeros((0, 2)), True),
        *(  # equal scores, whose weights are exact in any order
            case(f"Nq = {Nq}, Nk = {Nk}, causal", np.zeros((Nq, 1)), np.ones((Nk, 1)), values[:Nk] + 1, True)
            for Nq, Nk in ((1, 1), (1, 17), (3, 1))
        ),
        *(
            case(f"a key {far} below, of a large value", [[1.0]], [[0.0], [-far]], [[0.0], [65504]])
            for far in (12, 16, 30)
        ),
        case(
            "a tile of keys far below, of large values",
            [[1.0]],
            [[0.0]] * 16 + [[-12.0]] * 16,
            [[0.0]] * 16 + [[6e4]] * 16,
        ),
        *(  # the weights of these are numbers of float16, nearly: they are right in any order
            case(f"a maximum that rises by 2^{power}", [[1.0]], [[first]] * 16 + [[first + 2.0**power]], values)
            for power, first in ((-10, 1.0), (-11, 0.5))
        ),
        case("a maximum that rises by very little", [[1.0]], [[0.25]] * 16 + [[0.25 + 2**-12]], [[0.0]] * 16 + [[1.0]]),
        case(
            "maxima near 10,000 that rise by little", [[100, 1]], [[141.4, 0]] * 16 + [[141.4, 0.14]], values @ [[1, 1]]
        ),
        *(
            case(
                f"a key, and {what} it 16,384 whose weights are small", [[1.0]], K[::step], V[::step], False, TILE, 4096
            )
            for K, V in [([[1.0]] + [[-19.5]] * 16_384, [[1.0]] + [[0.0]] * 16_384)]
            for what, step in (("after", 1), ("before", -1))
        ),
        case("values whose sum is beyond float16", [[1.0]], [[2.0]] * 3, [[65504]] * 3),
        case("a wide head", *draw(17, 33, 100)),
        case("a very wide head", *draw(3, 18, 200)),
        case(
            "products of the largest numbers of float16",
            [[6e4] * 128],
            [[-5e4] * 128, [-6e4] * 128],
            values[:2] * [[1] * 128],
        ),
        case(
            "products of the largest numbers of float16, all positive",
            [[6e4] * 128],
            [[5e4] * 128, [6e4] * 128],
            values[:2] * [[1] * 128],
        ),
        case("many keys of the same sign: sums need float32", many[0], many[1], ones + 0.1 * many[2]),
        *(case(name, *draw(Nq, Nk, d), causal, Br, Bc) for name, Nq, Nk, d, causal, Br, Bc in _sizes()),
        *(case(f"Nq = {Nq}, Nk = {Nk}, causal", *draw(Nq, Nk, 4), True) for Nq, Nk in remainders(TILE)),
        *(case(f"Nq = 3, Nk = {Nk}", *draw(3, Nk, 4)) for Nk in range(TILE + 1, 2 * TILE + 1)),
        case("two hundred queries, three keys", *draw(200, 3, 2)),
        case("a maximum that rises in the last of twenty tiles", *late),
        case("a thousand queries and keys, tiles of 512 × 512, causal", *draw(1000, 1000, 2), True, 512, 512),
        case("two thousand equal scores, tiles of 16 × 1024", *(0 * x + 1 for x in draw(2, 2000, 1)), False, 16, 1024),
        *sweep(_forward_args, regimes=FINITE, sizes={}, usual={"Nq": 3, "Nk": 35, "d": 3}),
    ]


def remainders(tile):
    """Return lengths (Nq, Nk) in which Nk, Nq and their difference take every remainder of a tile."""
    return [(tile + 4, tile + 4 + more) for more in range(tile)] + [(tile + more, tile + 1) for more in range(tile)]


def _sizes():
    """Yield lengths and tiles in which no two of Br, Bc, the width are equal: (name, Nq, Nk, d, causal, Br, Bc)."""
    lengths = [(64, 64, False), (64, 64, True), (33, 65, True), (65, 33, True), (40, 41, True), (64, 48, False)]
    for Nq, Nk, causal in lengths:
        for Br, Bc, d in ((64, 16, 32), (16, 32, 64), (32, 64, 12)):
            yield f"Nq = {Nq}, Nk = {Nk}, tiles of {Br} × {Bc}{', causal' * causal}", Nq, Nk, d, causal, Br, Bc


def _forward_args(draw, Nq, Nk, d):
    Q, K = draw.queries_and_keys(Nq, Nk, d)
    return (*(x.astype(np.float16) for x in (Q, K, draw.normal(Nk, d))), False)


_with_lse_unguarded = edited(  # as right: where l_i is 0, m_i is −∞
    attention_one_head, 'tl.where(l_i == 0, -float("inf"), m_i + tl.log(l_safe))', "m_i + tl.log(l_safe)"
)
_SEEING = "mask=((rows < Nq) & (l_i > 0))"  # of rows that see a key
_with_blind_rows_not_stored = edited(
    attention_one_head, "None], mask=rows[:, None] < Nq)", f"None], {_SEEING}[:, None])"
)


def _with_future_at(bound):
    """Return the kernel with a finite score for keys that a query must not see."""
    return edited(attention_one_head, 'Nk - Nq, S_ij, -float("inf"))', f"Nk - Nq, S_ij, {bound})")


_with_end_clamped = edited(attention_one_head, "(i + 1) * Br + Nk - Nq", "(i + 1) * Br + tl.maximum(Nk - Nq, 0)")
_ZEROS = (np.zeros((1, 16), np.float16), *np.zeros((2, 3, 16), np.float16))  # Q, K, V


def _multiplied_narrow(kernel):
    """Law of its own inputs: tl.dot multiplies in float16, as the inputs are."""
    if factors_are_wide(attend, kernel, *_ZEROS):
        return Broken(
            "one query and three keys, all zeros",
            "the numbers are right, but a product was computed in float32, which takes a GPU several times as long: "
            "narrow P_ij to V_j.dtype, and leave Q_i, K_j and V_j as they come.",
            if_right=True,
        )


def _past_is_kept(kernel):
    """Law of its own inputs: large values count that lie far below. What float16 makes of such weights is allowed."""
    V = np.float16(65504 * (np.arange(32) < 16))[:, None]  # [32, 1]

    def kept(rise):
        """Return what is left of the value that is due, in parts of it."""
        K = np.float16(rise * (np.arange(32) >= 16))[:, None]  # [32, 1]
        return attend(kernel, np.ones((1, 1), np.float16), K, V).O[0, 0] / 65504 * (1 + np.exp(rise))

    near = np.isclose(kept(1), 1, 0.01)  # otherwise the scores are wrong: for the cases to find
    for rise in (12, 16):
        if near and kept(rise) < 0.4:
            return Broken(f"16 values of 65,504, and 16 of 0 whose scores are larger by {rise}", DROPPED)
    return None


forward = Exercise(
    reference=attention_one_head,
    launch=attend,
    exact=_dense,
    cases=_forward_cases,
    moves=(loads_at_most(_enough, "Q_i is", _outputs),),
    once=(no_small_number_added(attend, *_ZEROS), _multiplied_narrow, _past_is_kept),
    sways=True,
    level=3,
    minutes=60,
    hints=(
        "One program, one tile of O: load Q_i once; loop over the tiles of keys with m_i, l_i, O_i in registers; "
        "divide and store after the loop. Get one query and one key right first.",
        "rows = tl.program_id(0) * Br + tl.arange(0, Br), keys = start + tl.arange(0, Bc), addresses "
        "K + keys[:, None] * d + tl.arange(0, d). A score whose key is past the end or in the future becomes −∞ "
        "before the maximum is taken.",
        "S_ij = tl.dot(Q_i, K_j.T) * scale; mask; then the six lines; O_i = tl.dot(P_ij.to(V_j.dtype), V_j, "
        "alpha[:, None] * O_i). At the end O_i / l_safe[:, None] and m_i + tl.log(l_safe), or 0 and −∞ where l_i is 0.",
    ),
    mistakes=(
        Mistake("the scale was forgotten: scores are multiplied by scale.", "K_j.T) * scale", "K_j.T)"),
        Mistake("the scale was applied twice.", "K_j.T) * scale", "K_j.T) * scale * scale"),
        Mistake("e^x where 2^x is meant: log2(e) in the scale goes with tl.exp2.",
                "K_j.T) * scale", "K_j.T) * (scale * 1.4426950408889634)"),
        Mistake("K was not transposed: S_ij = Q_i K_jᵀ.", "K_j.T)", "K_j)"),
        Mistake("keys past the end were read as 0 and count: their scores must be −∞.",
                "tl.where(inside[None, :], S_ij, -float(\"inf\"))", "S_ij"),
        Mistake("the maximum was not subtracted.", "tl.exp(S_ij - m_safe[:, None])", "tl.exp(S_ij)"),
        Mistake("the maximum of the last tile was used, not of all so far.",
                "tl.maximum(m_i, tl.max(S_ij, 1))", "tl.max(S_ij, 1)"),
        Mistake("the maximum was taken before the mask: a key that is not there, or in the future, must not win it.",
                "tl.max(S_ij, 1)", "tl.max(tl.dot(Q_i, K_j.T) * scale, 1)"),
        Mistake("m_i stayed at −∞: at the end of each turn m_new becomes m_i.", "m_i = m_new", "m_i = m_i"),
        Mistake("the maximum began at 0, which is a score like any other: begin at −∞.",
                'tl.full([Br], -float("inf"), tl.float32)', "tl.zeros([Br], tl.float32)"),
        Mistake("the old sum was not rescaled: multiply l_i by alpha.", "alpha * l_i", "l_i"),
        Mistake("the old output was not rescaled: multiply O_i by alpha.", "alpha[:, None] * O_i", "O_i"),
        Mistake("alpha stands for queries, which are the rows of O_i: alpha[:, None].",
                "alpha[:, None]", "alpha[None, :]"),
        Mistake("alpha is upside down: e^(old − new) is at most 1.", "tl.exp(m_i - m_safe)", "tl.exp(m_safe - m_i)"),
        Mistake("the last tile of keys, which is not full, was dropped.",
                "range(0, seen, Bc)", "range(0, seen // Bc * Bc, Bc)"),
        Mistake("every turn of the loop took the first tile of keys.", "start + tl.arange(0, Bc)", "tl.arange(0, Bc)"),
        Mistake("every program took the first tile of queries.", "i * Br + tl.arange", "tl.arange"),
        Mistake("the output was not divided by l.", "O_i / l_safe[:, None]", "O_i"),
        Mistake("lse is in units of log2: it is natural at every boundary.",
                "m_i + tl.log(l_safe)", "(m_i + tl.log(l_safe)) * 1.4426950408889634"),
        Mistake("lse was scaled: the scores of which it is the logarithm are scaled already.",
                "m_i + tl.log(l_safe)", "(m_i + tl.log(l_safe)) * scale"),
        Mistake("lse lacks the maximum: m + log(l).", "m_i + tl.log(l_safe)", "tl.log(l_safe)"),
        Mistake("the mask is off by one: a query sees its own key too.", "None] + Nk - Nq", "None] + Nk - Nq - 1"),
        Mistake("the mask is off by one: a query saw one key of the future.", "None] + Nk - Nq", "None] + Nk - Nq + 1"),
        Mistake("aligned at the upper left: query i sees keys j ≤ i + Nk − Nq.",
                "rows[:, None] + Nk - Nq", "rows[:, None]"),
        Mistake("the loop ended too early: aligned at the lower right, tile i sees up to (i + 1) * Br + Nk − Nq keys.",
                "(i + 1) * Br + Nk - Nq", "(i + 1) * Br"),
        Mistake("−∞ − (−∞) is NaN: where m_new is −∞, subtract 0.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        Mistake("0 / 0 is NaN: a row that sees no key has l = 0; divide by 1 there.",
                "tl.where(l_i == 0, 1, l_i)", "l_i"),
        Mistake("rows that see no key were not stored: their O is 0, and only tl.store writes it.",
                "l_safe[:, None], mask=rows[:, None] < Nq)", f"l_safe[:, None], {_SEEING}[:, None])"),
        Mistake("rows that see no key were not stored: their lse is −∞, and only tl.store writes it.",
                "lse_i, mask=rows < Nq", f"lse_i, {_SEEING}"),
        Mistake("rows that see no key were not stored: their O is 0, their lse −∞, and only tl.store writes that.",
                "mask=rows < Nq", _SEEING, of=_with_blind_rows_not_stored),
        Mistake("a large negative number is not −∞: a row that sees no key would average its values.",
                'Nk - Nq, S_ij, -float("inf"))', "Nk - Nq, S_ij, -1e9)"),
        Mistake("the output was accumulated in half precision: keep O_i in float32.",
                "alpha[:, None] * O_i)", "alpha[:, None] * O_i).to(tl.float16).to(tl.float32)"),
        Mistake("O was rounded to half precision before it was stored: O is float32.",
                "O_i / l_safe[:, None]", "(O_i / l_safe[:, None]).to(tl.float16).to(tl.float32)"),
        Mistake("l_i was rounded to half precision: keep it in float32.",
                "alpha * l_i + tl.sum(P_ij, 1)", "(alpha * l_i + tl.sum(P_ij, 1)).to(tl.float16).to(tl.float32)"),
        Mistake("the scores were rounded to half precision: keep S_ij in float32.",
                "tl.dot(Q_i, K_j.T)", "tl.dot(Q_i, K_j.T).to(tl.float16).to(tl.float32)"),
        Mistake("the sum was taken of the narrowed P_ij: sum in float32, then narrow.",
                "tl.sum(P_ij, 1)", "tl.sum(P_ij.to(V_j.dtype), 1)"),
        Mistake("P_ij is float32, V_j float16: narrow P_ij to V_j.dtype for the product.",
                "P_ij.to(V_j.dtype), V_j", "P_ij, V_j"),
        Mistake("it read or stored past the end: mask loads and stores.",
                "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)",
                "V_j = tl.load(V + keys[:, None] * d + columns)"),
        Mistake("it read or stored past the end: mask loads and stores.", "lse_i, mask=rows < Nq", "lse_i"),
        Mistake(
            "the maximum was frozen at the first tile: a later one may hold a larger score.",
            "tl.maximum(m_i, tl.max(S_ij, 1))",
            "tl.where(m_i == -float(\"inf\"), tl.max(S_ij, 1), m_i)",
        ),
        Mistake(
            "the loop ended a key too early: the last row of tile i sees (i + 1) * Br + Nk − Nq keys.",
            "(i + 1) * Br + Nk - Nq",
            "(i + 1) * Br + Nk - Nq - 1",
        ),
        Mistake('the loop went on by Br: tiles of keys are Bc wide.', 'range(0, seen, Bc)', 'range(0, seen, Br)'),
        Mistake(
            "Bc stands where Br belongs: tile i of the queries has Br rows.",
            "(i + 1) * Br + Nk",
            "(i + 1) * Bc + Nk",
        ),
        Mistake(
            "Bc stands where Br belongs: tile i of the queries begins at row i * Br.",
            "rows = i * Br",
            "rows = i * Bc",
        ),
        Mistake('rows of K lie d elements apart, not Bc.', 'K + keys[:, None] * d', 'K + keys[:, None] * Bc'),
        Mistake('rows of O lie d elements apart, not Br.', 'O + rows[:, None] * d', 'O + rows[:, None] * Br'),
        Mistake('rows of Q lie d elements apart, not Bc.', 'Q + rows[:, None] * d', 'Q + rows[:, None] * Bc'),
        Mistake('rows of V lie d elements apart, not Nk.', 'V + keys[:, None] * d', 'V + keys[:, None] * Nk'),
        Mistake('a row has d columns, not Bc.', 'tl.arange(0, d)', 'tl.arange(0, Bc)'),
        Mistake('O_i is [Br, d], not [Br, Bc].', 'tl.zeros([Br, d]', 'tl.zeros([Br, Bc]'),
        Mistake(
            "a masked load without other= reads anything at all, on a GPU: say what stands there.",
            "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)",
            "V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None])",
        ),
        Mistake(
            "a finite number was put in the place of −∞, at first or in the guard, and scores may lie below it.",
            "tl.full([Br], -float(\"inf\"), tl.float32)",
            "tl.full([Br], -1e4, tl.float32)",
        ),
        Mistake(
            "2^x where e^x is meant: tl.exp, or tl.exp2 with log2(e) in the scale.",
            "        l_i = alpha",
            "        alpha, P_ij = tl.exp2(m_i - m_safe), tl.exp2(S_ij - m_safe[:, None])\n        l_i = alpha",
        ),
        Mistake(
            "O was divided by l inside the loop: it stays a plain sum until all keys have come.",
            "        m_i = m_new\n",
            "        m_i = m_new\n        O_i = O_i / tl.where(l_i == 0, 1, l_i)[:, None]\n",
        ),
        Mistake(
            "it read or stored past the end: mask loads and stores.",
            "O_i / l_safe[:, None], mask=rows[:, None] < Nq",
            "O_i / l_safe[:, None]",
        ),
        Mistake('scores were divided by scale: it is 1/√d already, multiply.', 'K_j.T) * scale', 'K_j.T) / scale'),
        Mistake(
            "neither old sum was rescaled: multiply l_i and O_i by alpha.",
            "tl.exp(m_i - m_safe)",
            "tl.zeros([Br], tl.float32) + 1",
        ),
        Mistake(
            "the causal mask was forgotten: a query saw keys of its future.",
            "if causal:\n            S_ij",
            "if False:\n            S_ij",
        ),
        Mistake(
            "the mask was always causal: only where causal is set.",
            "if causal:\n            S_ij",
            "if True:\n            S_ij",
        ),
        Mistake(
            "0 was subtracted wherever the maximum is negative, and such a row underflows: guard −∞ alone.",
            "tl.where(m_new == -float(\"inf\"), 0, m_new)",
            "tl.maximum(m_new, 0)",
        ),
        Mistake(
            "a finite number was put in the place of −∞, at first or in the guard, and scores may lie below it.",
            "tl.where(m_new == -float(\"inf\"), 0, m_new)",
            "tl.maximum(m_new, -1e4)",
        ),
        Mistake('the logarithm of l is in units of log2: tl.log.', 'm_i + tl.log(l_safe)', 'm_i + tl.log2(l_safe)'),
        Mistake('m was stored instead of lse = m + log l.', 'm_i + tl.log(l_safe)', 'm_i'),
        Mistake(
            "a row that sees no key has lse −∞, not 0.",
            "tl.where(l_i == 0, -float(\"inf\"), m_i",
            "tl.where(l_i == 0, 0.0, m_i",
        ),
        Mistake('V_j was loaded from K.', 'tl.load(V + keys', 'tl.load(K + keys'),
        Mistake(
            "O was not stored: only tl.store writes where it points.",
            "tl.store(O + rows[:, None] * d + columns, O_i / l_safe[:, None], mask=rows[:, None] < Nq)",
            "O_i / l_safe[:, None]",
        ),
        Mistake(
            "lse was not stored: only tl.store writes where it points.",
            "tl.store(lse + rows, lse_i, mask=rows < Nq)",
            "lse_i",
        ),
        Mistake('Nq and Nk are exchanged: there are Nk keys.', 'inside = keys < Nk', 'inside = keys < Nq'),
        *(
            Mistake("Nq and Nk are exchanged: there are Nk keys.",
                    f"tl.load({X} + keys[:, None] * d + columns, mask=inside[:, None]",
                    f"tl.load({X} + keys[:, None] * d + columns, mask=(keys < Nq)[:, None]")
            for X in "KV"
        ),
        Mistake(
            "the difference is inverted: query i sees the keys j ≤ i + Nk − Nq.",
            "rows[:, None] + Nk - Nq",
            "rows[:, None] + Nq - Nk",
        ),
        Mistake(
            "the maximum was taken over the rows: each row has its own, along axis 1.",
            "tl.max(S_ij, 1)",
            "tl.max(S_ij, 0)",
        ),
        Mistake(
            "the first row decides where to stop; it must be the last one, which sees most.",
            "(i + 1) * Br + Nk - Nq",
            "i * Br + Nk - Nq",
        ),
        Mistake("off by one: the keys are 0 to Nk − 1.", "tl.where(inside[None, :]", "tl.where((keys <= Nk)[None, :]"),
        *(
            Mistake("a large negative number is not −∞: a key that is not there would win over scores below it.",
                    'where(inside[None, :], S_ij, -float("inf"))', f"where(inside[None, :], S_ij, {bound})", of=of)
            for bound in (-1e4, -1e6, -1e9)
            for of in (None, _with_future_at(bound))
        ),
        Mistake("a finite number was put in the place of −∞, at first or in the guard, and scores may lie below it.",
                'tl.where(m_new == -float("inf"), 0, m_new)', "tl.maximum(m_new, -1e4)", of=_with_lse_unguarded),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)"),
        Mistake("with fewer keys than queries the difference is negative, and stays so: the first queries see nothing.",
                "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(Nk - Nq, 0)", of=_with_end_clamped),
        Mistake("tl.dot multiplies tiles: @ is for numpy and torch.", "tl.dot(Q_i, K_j.T)", "(Q_i @ K_j.T)"),
        Mistake("tl.dot multiplies tiles: @ is for numpy and torch.",
                "tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i)", "P_ij.to(V_j.dtype) @ V_j"),
        Mistake("the mask was left out where a tile is not whole: its first row must see the tile's last key.",
                "if causal:\n            S_ij", "if causal and start + Bc > i * Br + Nk - Nq + 2:\n            S_ij"),
        Mistake("Q_i or K_j was rounded again after the scale: multiply S_ij by it, which is float32.",
                "tl.dot(Q_i, K_j.T) * scale", "tl.dot((Q_i * scale).to(tl.float16), K_j.T)"),
        Mistake("the scores were rounded to half precision: keep S_ij in float32.",
                "tl.dot(Q_i, K_j.T) * scale", "(tl.dot(Q_i, K_j.T) * scale).to(tl.float16).to(tl.float32)"),
        Mistake(
            "1/√d was computed from d, which may be filled up with columns of zeros: take the argument scale.",
            "K_j.T) * scale",
            "K_j.T) / tl.sqrt(1.0 * d)",
        ),
        Mistake("a score of 0 was taken for that of a key that is not there: ask keys < Nk.",
                "tl.where(inside[None, :], S_ij", "tl.where(inside[None, :] & (S_ij != 0), S_ij"),
        Mistake("0 was subtracted wherever the tile is masked, but the past may hold keys: guard m_new.",
                'tl.where(m_new == -float("inf"), 0, m_new)',
                'tl.where(tl.max(S_ij, 1) == -float("inf"), 0, m_new)'),
    ),
)  # fmt: skip
