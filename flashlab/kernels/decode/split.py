"""Attention of new tokens to a part of the past: the tile loop, for one head's group of queries, as a kernel.

A step has few queries, so programs divide the keys. One program takes one part of the keys for all query heads that
share them: its tile of Q has a row for each (token, head), and K and V are read once for the whole group. It stores
its normalised output and lse in float32 for ``combine``.

A cache is addressed by pages. Key j of batch b is in page ``table[b, j // page]``, at row ``j % page``. Without a
table, batch b is one page as long as the cache: an ordinary tensor [B, Hk, N, d].

Source: Flash-Decoding, https://pytorch.org/blog/flash-decoding/; the reference is ``reference.decoding.split``.
"""

import triton
import triton.language as tl

from flashlab.kernels import log_sum_exp
from flashlab.kernels import scores as score_functions
from flashlab.kernels.device import INTERPRETED
from flashlab.kernels.masks import questions
from flashlab.kernels.problem import LOG2_E

COMPILED = tl.constexpr(not INTERPRETED)
HALVES = tl.constexpr((tl.float16, tl.float16))
# Four codes of 8 bits in a register become float16 numbers in two registers; an int8 c becomes 1024 + 128 + c, as in
# ``widened``. Without these blocks, the compiler converts each code on its own: 1,012 instructions per tile of 128 keys
# instead of 738 for e4m3, and 1,203 instead of 867 for int8 (Triton 3.6, compute capability 9.0).
FOUR_E4M3 = tl.constexpr("""{
    .reg .b16 low, high;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}""")
PAIRS_OF_E4M3 = tl.constexpr("""{
    .reg .b32 sorted;
    .reg .b16 low, high;
    prmt.b32 sorted, $2, 0, 0x3120;
    mov.b32 {low, high}, sorted;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
}""")
INT8 = """{{
    .reg .b32 shifted;
    xor.b32 shifted, $2, 0x80808080;
    prmt.b32 $0, shifted, 0x64646464, {};
    prmt.b32 $1, shifted, 0x64646464, {};
}}"""
FOUR_INT8 = tl.constexpr(INT8.format("0x4140", "0x4342"))
PAIRS_OF_INT8 = tl.constexpr(INT8.format("0x4240", "0x4341"))


@triton.jit(do_not_specialize=["sizes", "splits"])  # which change from step to step: one compilation for all
def attention_split(
    Q, K, V,  # Q [B, H, n, d], K [pages, Hk, page, d], V [pages, Hk, page, dv]
    O, lse, rest,  # of the parts: O [S, B, H, n, dv], the others as for ``log_sum_exp.store`` [S, B, H, n]; contiguous
    table, lengths,  # [B, T] and [B], int32; or None
    scales,  # of K and V [2, pages, Hk, page], float32; or None
    strides,  # of Q, K, V and scales, without the last dimension
    sizes,  # B, H, Hk, n, the most keys of a batch (all have so many if lengths is None), columns of the table
    splits,  # S, and the keys per part, or 0 to divide each batch's own keys by S
    request,  # ``Request``: scale, mask, score function, sinks
    tile: tl.constexpr,  # ``Tile``: Br, Bc, ...
):  # fmt: skip
    """Compute part s of the keys of one key/value head, for one tile of rows: program (x, s)."""
    Br: tl.constexpr = tile.Br
    Bc: tl.constexpr = tile.Bc
    pairs: tl.constexpr = tile.pairs is not None
    half: tl.constexpr = tile.width_v // 2 if pairs else tile.width_v  # columns of O_i: with pairs, the even ones of O
    Q_b, Q_h, Q_t, K_p, K_h, K_n, V_p, V_h, V_n, scales_kv, scales_p, scales_h = strides
    B, H, Hk, n, most, T = sizes
    group = H // Hk
    s, b, hk, first = tile_of_program(n * group, Hk, Br)
    Nk = most
    if lengths is not None:
        Nk = tl.load(lengths + b)
    begin, end, skipped = part(s, splits, n, Nk, most, request.reach, Bc)
    if (s > 0) & (begin >= end):  # ``combine`` does not read this part; it always reads part 0
        return

    rows = first + tl.arange(0, Br)  # [Br]      a row is a token and a head of the group
    token, h = rows // group, hk * group + rows % group  # [Br], [Br]
    alive = rows < n * group  # [Br]
    begin, end = reached(begin, end, skipped, first, group, n, Nk, request.reach, Br, Bc)
    Q_at = Q + b.to(tl.int64) * Q_b + h * Q_h + token * Q_t  # [Br]
    Q_i, Q_odd = queries(Q_at, alive, scales, tile)  # [Br, d], or with pairs [Br, d / 2]
    R_i = gather(Q_at, alive, tile.dv + tl.arange(0, tile.rope or 1), tile.d, scales)  # [Br, rope]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, half], tl.float32)  # [Br, dv]
    O_odd = O_i  # [Br, dv / 2]
    for at in range(begin, end, Bc):
        keys, there = keys_of_tile(at, end, skipped, n, Nk, request.reach, Bc)  # [Bc], [Bc]
        number, row = place(table, T, b, keys, there, tile.page)  # page or pages [Bc], [Bc]
        S_ij, K_j = products(Q_i, Q_odd, R_i, K + number * K_p + hk * K_h + row * K_n, there, scales, tile)  # [Br, Bc]
        V_j, V_odd = values(K_j, V + number * V_p + hk * V_h + row * V_n, there, scales, tile)  # [Bc, dv]
        V_scale = None
        if scales is not None:
            S_ij, V_scale = scaled(S_ij, scales + number * scales_p + hk * scales_h + row, scales_kv, there)
        S_ij, seen = visible_scores(S_ij, request, b, h, token, keys, n, Nk, most)  # [Br, Bc], [Br, Bc]
        if tile.apart:
            if scales is not None:
                V_scale, V_j, V_odd = finite(V_scale, V_j, V_odd)
            O_i, V_j = questions.finite(O_i, V_j, seen)
            if pairs:
                O_odd, V_odd = questions.finite(O_odd, V_odd, seen)
        m_i, l_i, O_i, alpha, P_ij = update(m_i, l_i, O_i, S_ij, V_j, V_scale, request.factor, tile)
        if pairs:
            O_odd = tl.dot(P_ij, V_odd, alpha[:, None] * O_odd, input_precision=tile.precision)  # [Br, dv / 2]

    if tile.early:
        tl.extra.cuda.gdc_launch_dependents()  # ``combine`` may come, and wait on the SMs for the last part
    if pairs:
        O_i = tl.interleave(O_i, O_odd)  # [Br, dv]
    lse_i, rest_i, inverse = finished(m_i, l_i, s, h, alive, request.sinks, tile.unit)  # [Br] each
    wrong = tl.where((Nk < 0) | (Nk > most), float("nan"), 0.0)  # a length that the cache cannot have
    to = ((s.to(tl.int64) * B + b) * H + h) * n + token  # [Br]
    store(O, lse, rest, to, O_i * inverse[:, None] + wrong, lse_i + wrong, rest_i, alive, tile)


@triton.jit
def tile_of_program(rows, Hk, Br: tl.constexpr):
    """Return the part, the batch and the key/value head of this program, and the first of its rows."""
    tiles = tl.cdiv(rows, Br)
    x, s = tl.program_id(0), tl.program_id(1)
    b, hk = x // tiles // Hk, (x // tiles % Hk).to(tl.int64)  # hk has 64 bits, and so have its offsets
    return s, b, hk, x % tiles * Br


@triton.jit
def part(s, splits, n, Nk, most, reach, Bc: tl.constexpr):
    """Return begin and end of the keys of part s, numbered without the skipped keys, and the number of these."""
    read, skipped, size = divided(splits, n, Nk, most, reach, Bc)
    begin = s * size
    return begin, tl.minimum(begin + size, read), skipped


@triton.jit
def reached(begin, end, skipped, first, group, n, Nk, reach, Br: tl.constexpr, Bc: tl.constexpr):
    """Return begin and end of the keys of a part, without those that no token of rows first .. first + Br can see."""
    if reach.left is not None and reach.first is None:
        nearest = tl.maximum(first // group + Nk - n - reach.left, 0)  # from 0 on, // is the same everywhere
        begin = tl.maximum(begin, nearest // Bc * Bc - skipped)
    if reach.right is not None:
        end = tl.minimum(end, (first + Br - 1) // group + Nk - n + reach.right + 1 - skipped)
    return begin, end


@triton.jit
def queries(at, alive, scales, tile: tl.constexpr):
    """Return the rows of Q at these addresses [Br] twice; with pairs, their even and their odd columns."""
    d_k = tile.d if tile.rope is None else tile.dv  # the columns without rope
    Q_i = gather(at, alive, tl.arange(0, tile.width), d_k, scales)  # [Br, d]
    if tile.pairs is not None:
        return tl.split(Q_i.reshape(tile.Br, tile.width // 2, 2))  # [Br, d / 2], [Br, d / 2]
    else:
        return Q_i, Q_i


@triton.jit
def keys_of_tile(at, end, skipped, n, Nk, reach, Bc: tl.constexpr):
    """Return the keys [Bc] of the tile at a place of the loop, and which of them are read [Bc]."""
    start = at + skipped if reach.first is None else tl.where(at < reach.first, at, at + skipped)
    keys = start + tl.arange(0, Bc)  # [Bc]
    there = at + tl.arange(0, Bc) < end  # [Bc]
    if reach.left is not None:  # keys that no token sees are not read: their page may be gone
        near = keys >= Nk - n - reach.left  # [Bc]
        there = there & (near if reach.first is None else near | (keys < reach.first))
    return keys, there


@triton.jit
def products(Q_i, Q_odd, R_i, at, there, scales, tile: tl.constexpr):
    """Return Q_i K_j^T, not yet scaled, for the keys at these addresses [Bc], and K_j: with pairs, its even columns."""
    if tile.pairs is not None:
        cols = tl.arange(0, tile.width // 2)  # [d / 2]
        K_j, K_odd = apart(gather(at, there, cols, tile.d // 2, None), tile.pairs)  # [Bc, d / 2], [Bc, d / 2]
        S_ij = tl.dot(Q_i, K_j.T, tl.dot(Q_odd, K_odd.T))  # [Br, Bc]
    else:
        d_k = tile.d if tile.rope is None else tile.dv  # the columns without rope
        K_j = gather(at, there, tl.arange(0, tile.width), d_k, scales)  # [Bc, d]
        S_ij = tl.dot(Q_i, K_j.T, input_precision=tile.precision)  # [Br, Bc]
    if tile.rope:
        R_j = gather(at, there, tile.dv + tl.arange(0, tile.rope), tile.d, scales)  # [Bc, rope]
        S_ij = tl.dot(R_i, R_j.T, S_ij, input_precision=tile.precision)
    return S_ij, K_j


@triton.jit
def values(K_j, at, there, scales, tile: tl.constexpr):
    """Return the values at these addresses twice: K_j with ``rope``; with pairs, their even and their odd columns."""
    if tile.pairs is not None:
        cols = tl.arange(0, tile.width_v // 2)  # [dv / 2]
        return apart(gather(at, there, cols, tile.dv // 2, None), tile.pairs)  # [Bc, dv / 2], [Bc, dv / 2]
    elif tile.rope is not None:
        return K_j, K_j
    else:
        V_j = gather(at, there, tl.arange(0, tile.width_v), tile.dv, scales)  # [Bc, dv]
        return V_j, V_j


@triton.jit
def scaled(S_ij, at, to_values, there):
    """Return scores [Br, Bc] times the scales of their keys at these addresses [Bc], and the scales of the values."""
    S_ij *= tl.load(at, mask=there, other=0.0)[None, :]
    return S_ij, tl.load(at + to_values, mask=there, other=0.0)


@triton.jit
def visible_scores(S_ij, request, b, h, token, keys, n, Nk, most):
    """Return the scores [Br, Bc] after the score function, -inf where a key is hidden, and which keys are seen."""
    i, j = tl.minimum(token, n - 1)[:, None], tl.minimum(keys, most - 1)[None, :]  # [Br, 1], [1, Bc]
    if request.score is not None:
        steps: tl.constexpr = len(request.score)
        S_ij = score_functions.after(request.score, steps, S_ij * request.scale, b, h[:, None], i, j, n, Nk)
    if request.rules is None:
        seen = visible(request.reach, token, keys, n, Nk)  # [Br, Bc]
    else:
        seen = questions.obeyed(request.rules, b, h[:, None], i, j, n, Nk) & (keys < Nk)[None, :]  # [Br, Bc]
    return tl.where(seen, S_ij, -float("inf")), seen


@triton.jit
def finite(V_scale, V_j, V_odd):
    """Return scales [Bc] with 0 for those that are not finite, and values with NaN in the rows of such scales."""
    fits = tl.abs(V_scale) < float("inf")  # [Bc]
    V_j = tl.where(fits[:, None], V_j, float("nan")).to(V_j.dtype)
    V_odd = tl.where(fits[:, None], V_odd, float("nan")).to(V_odd.dtype)
    return tl.where(fits, V_scale, 0), V_j, V_odd


@triton.jit
def finished(m_i, l_i, s, h, alive, sinks, unit: tl.constexpr):
    """Return the same as ``log_sum_exp.finish``, with the sinks of heads h [Br] in part 0 only."""
    sink = None
    if sinks is not None:
        sink = tl.load(sinks + h, mask=alive, other=0.0).to(tl.float32)  # [Br]
        sink = tl.where(s == 0, sink, -float("inf"))  # [Br]
    return log_sum_exp.finish(m_i * (unit / LOG2_E), l_i, sink)


@triton.jit
def store(O, lse, rest, to, O_i, lse_i, rest_i, alive, tile: tl.constexpr):
    """Store O_i, narrowed to the dtype of O, lse_i and rest_i at rows ``to`` [Br]. alive: the rows that exist."""
    cols = tl.arange(0, tile.width_v)  # [dv]
    inside = alive[:, None] & (cols < tile.dv)[None, :]  # [Br, dv]
    tl.store(O + to[:, None] * tile.dv + cols[None, :], O_i.to(O.dtype.element_ty), inside)
    log_sum_exp.store(lse, rest, to, lse_i, rest_i, alive)


@triton.jit
def update(m_i, l_i, O_i, S_ij, V_j, V_scale, factor, tile: tl.constexpr):
    """Take in one tile of scores S_ij [Br, Bc] and values V_j [Bc, dv]. V_scale [Bc]: factors of the values, or None.

    factor, ``tile.unit``: as in ``portable.forward.update``.
    """
    unit: tl.constexpr = tile.unit
    m_new = tl.maximum(m_i, tl.max(S_ij, 1) * factor)  # [Br]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = tl.exp2((m_i - m_safe) * unit)  # [Br]
    P_ij = tl.exp2((S_ij * factor - m_safe[:, None]) * unit)  # [Br, Bc]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
    if V_scale is not None:
        P_ij = P_ij * V_scale[None, :]
    P_ij = P_ij.to(V_j.dtype)  # the one narrowing
    O_i = tl.dot(P_ij, V_j, alpha[:, None] * O_i, input_precision=tile.precision)  # [Br, dv]
    return m_new, l_i, O_i, alpha, P_ij


@triton.jit
def divided(splits, n, Nk, most, reach, Bc: tl.constexpr):
    """Return the numbers of keys to read, of keys to skip before the window, and of keys per part.

    The last two are multiples of Bc. The first keys of a ``Reach``, in whole tiles, are not skipped.

    splits: S, and the keys per part if that is fixed, otherwise 0: then S parts share a batch's own keys evenly.
    """
    S, size = splits
    there = tl.minimum(Nk, most)
    skipped = 0
    if reach.left is not None:
        skipped = tl.maximum(there - n - reach.left, 0) // Bc * Bc
        if reach.first is not None:
            skipped = tl.maximum(skipped - tl.cdiv(reach.first, Bc) * Bc, 0)
    even = tl.maximum(tl.cdiv(tl.cdiv(there - skipped, S), Bc), 1) * Bc
    return there - skipped, skipped, tl.where(size == 0, even, size)


@triton.jit
def place(table, stride, b, keys, there, page: tl.constexpr):
    """Return the page of each of these keys [Bc], in 64 bits, and their rows in it. Without a table: page b.

    Where all keys of a tile are in one page, one entry of the table would do. But the loads of K and V then wait for
    that entry: 616 us instead of 500 for 64 texts of 8,192 keys, 32 heads that share 8 (H200, Triton 3.6).
    """
    row = keys
    if table is None:
        number = b.to(tl.int64)
    else:
        row = keys % page
        number = tl.load(table + b * stride + keys // page, mask=there, other=0).to(tl.int64)
    return number, row.to(tl.int64)


@triton.jit
def gather(at, there, cols, d, scales):
    """Return columns ``cols`` of the rows at these addresses [Bc], or [Br]: zeros past d and where there is no row.

    With scales, the numbers have 8 bits and are widened to float16, which holds them exactly.
    """
    return widened(tl.load(at[:, None] + cols[None, :], mask=there[:, None] & (cols < d)[None, :], other=0.0), scales)


@triton.jit
def apart(X, kind: tl.constexpr):
    """Return the even and the odd columns of X, which holds pairs of 8-bit numbers of this kind, in float16.

    A pair has 16 bits, the size that loads for a matrix instruction need. Single codes would be read one by one.
    """
    if COMPILED and kind == tl.int8:
        even, odd = tl.inline_asm_elementwise(PAIRS_OF_INT8, "=r,=r,r", [X], HALVES, is_pure=True, pack=2)
        return even - 1152, odd - 1152
    elif COMPILED:
        return tl.inline_asm_elementwise(PAIRS_OF_E4M3, "=r,=r,r", [X], HALVES, is_pure=True, pack=2)
    else:
        even, odd = X.to(tl.int8).to(kind, bitcast=True), (X >> 8).to(tl.int8).to(kind, bitcast=True)
        return widened(even, X), widened(odd, X)


@triton.jit
def widened(X, scales):
    """Return X in float16, the dtype of arithmetic on 8-bit numbers, if there are scales; otherwise unchanged.

    For int8 the conversion is slow. But the last bits of the float16 1024 + 128 + c are those of c + 128.
    """
    if scales is None:
        return X
    elif COMPILED and X.dtype == tl.int8:
        return tl.inline_asm_elementwise(FOUR_INT8, "=r,=r,r", [X], tl.float16, is_pure=True, pack=4) - 1152
    elif COMPILED and X.dtype == tl.float8e4nv:
        return tl.inline_asm_elementwise(FOUR_E4M3, "=r,=r,r", [X], tl.float16, is_pure=True, pack=4)
    elif X.dtype == tl.int8:
        return (X.to(tl.uint8, bitcast=True).to(tl.int16) ^ 0x6480).to(tl.float16, bitcast=True) - 1152
    else:
        return X.to(tl.float16)


@triton.jit
def visible(reach, token, keys, n, Nk):
    """Return which of these tokens [Br] see which of these keys [Bc], as ``questions.visible`` does for queries."""
    own = token + Nk - n  # [Br]   the key at a token's position
    seen = keys[None, :] < Nk  # [1, Bc]
    if reach.right is not None:
        seen = seen & (keys[None, :] <= (own + reach.right)[:, None])  # [Br, Bc]
    if reach.left is not None:
        seen = seen & (keys[None, :] >= (own - reach.left)[:, None])  # [Br, Bc]
    return seen
