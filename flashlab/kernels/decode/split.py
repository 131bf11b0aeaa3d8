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
# ``widened``. The compiler takes each code on its own: 1,012 instructions per tile of 128 keys instead of 738 for e4m3,
# and 1,203 instead of 867 for int8 (Triton 3.6, compute capability 9.0).
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
    d: tl.constexpr = tile.d
    dv: tl.constexpr = tile.dv
    Br: tl.constexpr = tile.Br
    Bc: tl.constexpr = tile.Bc
    width: tl.constexpr = tile.width
    width_v: tl.constexpr = tile.width_v
    rope: tl.constexpr = tile.rope
    pairs: tl.constexpr = tile.pairs is not None
    precision: tl.constexpr = tile.precision
    left, right, first = request.reach
    Q_b, Q_h, Q_t, K_p, K_h, K_n, V_p, V_h, V_n, scales_kv, scales_p, scales_h = strides
    B, H, Hk, n, most, T = sizes
    group = H // Hk
    tiles = tl.cdiv(n * group, Br)
    x, s = tl.program_id(0), tl.program_id(1)
    b, hk = x // tiles // Hk, (x // tiles % Hk).to(tl.int64)  # 64 bits, and so are the offsets that they make
    Nk = most
    if lengths is not None:
        Nk = tl.load(lengths + b)
    read, skipped, size = divided(splits, n, Nk, most, request.reach, Bc)
    begin = s * size  # as if the skipped keys were not there
    end = tl.minimum(begin + size, read)
    if (s > 0) & (begin >= end):  # nobody asks for this part; part 0 is always there
        return

    rows = x % tiles * Br + tl.arange(0, Br)  # [Br]      a row is a token and a head of the group
    token, h = rows // group, hk * group + rows % group  # [Br], [Br]
    alive = rows < n * group  # [Br]
    if left is not None and first is None:
        nearest = tl.maximum(x % tiles * Br // group + Nk - n - left, 0)  # from 0 on, // is the same everywhere
        begin = tl.maximum(begin, nearest // Bc * Bc - skipped)
    if right is not None:
        end = tl.minimum(end, (x % tiles * Br + Br - 1) // group + Nk - n + right + 1 - skipped)  # the last one's
    d_k = d if rope is None else dv  # columns of K_j; the others are R_j's
    half: tl.constexpr = width_v // 2 if pairs else width_v  # columns of O_i; the odd ones, if V has pairs, are O_odd's
    cols, cols_v = tl.arange(0, width), tl.arange(0, half)  # [d], [dv]
    cols_k = tl.arange(0, width // 2 if pairs else width)  # [d]
    cols_r = dv + tl.arange(0, rope or 1)  # [rope]
    Q_at = Q + b.to(tl.int64) * Q_b + h * Q_h + token * Q_t  # [Br]
    Q_i = tl.load(Q_at[:, None] + cols[None, :], mask=alive[:, None] & (cols < d_k)[None, :], other=0.0)  # [Br, d]
    Q_i = widened(Q_i, scales)
    if pairs:
        Q_i, Q_odd = tl.split(Q_i.reshape(Br, width // 2, 2))  # [Br, d / 2], [Br, d / 2]
    if rope:
        R_i = widened(tl.load(Q_at[:, None] + cols_r[None, :], mask=alive[:, None], other=0.0), scales)  # [Br, rope]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, half], tl.float32)  # [Br, dv]
    O_odd = O_i  # [Br, dv / 2]
    for at in range(begin, end, Bc):
        start = at + skipped if first is None else tl.where(at < first, at, at + skipped)
        keys = start + tl.arange(0, Bc)  # [Bc]
        there = at + tl.arange(0, Bc) < end  # [Bc]
        if left is not None:  # what no token sees is not read: its page may be gone
            near = keys >= Nk - n - left  # [Bc]
            there = there & (near if first is None else near | (keys < first))
        number, row = place(table, T, b, start, keys, there, tile.page, Bc)  # page or pages [Bc], [Bc]
        K_at = K + number * K_p + hk * K_h + row * K_n  # [Bc]
        if pairs:
            K_j, K_odd = apart(gather(K_at, there, cols_k, d // 2, None), tile.pairs)  # [Bc, d / 2], [Bc, d / 2]
            S_ij = tl.dot(Q_i, K_j.T, tl.dot(Q_odd, K_odd.T))  # [Br, Bc]  not yet scaled
        else:
            K_j = gather(K_at, there, cols_k, d_k, scales)  # [Bc, d]
            S_ij = tl.dot(Q_i, K_j.T, input_precision=precision)  # [Br, Bc]  not yet scaled
        if rope:
            R_j = gather(K_at, there, cols_r, d, scales)  # [Bc, rope]
            S_ij = tl.dot(R_i, R_j.T, S_ij, input_precision=precision)
        V_j, V_odd, V_scale = K_j, None, None
        V_at = V + number * V_p + hk * V_h + row * V_n  # [Bc]
        if pairs:
            V_j, V_odd = apart(gather(V_at, there, cols_v, dv // 2, None), tile.pairs)  # [Bc, dv / 2], [Bc, dv / 2]
        elif rope is None:
            V_j = gather(V_at, there, cols_v, dv, scales)  # [Bc, dv]
        if scales is not None:
            scale_at = scales + number * scales_p + hk * scales_h + row  # [Bc]
            S_ij *= tl.load(scale_at, mask=there, other=0.0)[None, :]
            V_scale = tl.load(scale_at + scales_kv, mask=there, other=0.0)  # [Bc]
        i, j = tl.minimum(token, n - 1)[:, None], tl.minimum(keys, most - 1)[None, :]  # [Br, 1], [1, Bc]
        if request.score is not None:
            steps: tl.constexpr = len(request.score)
            S_ij = score_functions.after(request.score, steps, S_ij * request.scale, b, h[:, None], i, j, n, Nk)
        if request.rules is None:
            seen = visible(request.reach, token, keys, n, Nk)  # [Br, Bc]
        else:
            seen = questions.obeyed(request.rules, b, h[:, None], i, j, n, Nk) & (keys < Nk)[None, :]  # [Br, Bc]
        S_ij = tl.where(seen, S_ij, -float("inf"))
        if tile.apart:
            if scales is not None:
                fits = tl.abs(V_scale) < float("inf")  # [Bc]
                V_scale = tl.where(fits, V_scale, 0)
                V_j = tl.where(fits[:, None], V_j, float("nan")).to(V_j.dtype)
            O_i, V_j = questions.finite(O_i, V_j, seen)
            if pairs:
                O_odd, V_odd = questions.finite(O_odd, V_odd, seen)
        m_i, l_i, O_i, alpha, P_ij = update(m_i, l_i, O_i, S_ij, V_j, V_scale, request.factor, tile.unit, precision)
        if pairs:
            O_odd = tl.dot(P_ij, V_odd, alpha[:, None] * O_odd, input_precision=precision)  # [Br, dv / 2]

    if tile.early:
        tl.extra.cuda.gdc_launch_dependents()  # ``combine`` may come, and wait on the SMs for the last part
    if pairs:
        O_i = tl.interleave(O_i, O_odd)  # [Br, dv]
        cols_v = tl.arange(0, width_v)  # [dv]
    sink = None
    if request.sinks is not None:  # it counts in the first part
        sink = tl.load(request.sinks + h, mask=alive, other=0.0).to(tl.float32)  # [Br]
        sink = tl.where(s == 0, sink, -float("inf"))  # [Br]
    lse_i, rest_i, inverse = log_sum_exp.finish(m_i * (tile.unit / LOG2_E), l_i, sink)  # [Br] each
    wrong = tl.where((Nk < 0) | (Nk > most), float("nan"), 0.0)  # a length that the cache cannot have
    to = ((s.to(tl.int64) * B + b) * H + h) * n + token  # [Br]
    O_i = O_i * inverse[:, None] + wrong  # [Br, dv]
    tl.store(
        O + to[:, None] * dv + cols_v[None, :], O_i.to(O.dtype.element_ty), alive[:, None] & (cols_v < dv)[None, :]
    )
    log_sum_exp.store(lse, rest, to, lse_i + wrong, rest_i, alive)


@triton.jit
def update(m_i, l_i, O_i, S_ij, V_j, V_scale, factor, unit: tl.constexpr, precision: tl.constexpr):
    """Take in one tile of scores S_ij [Br, Bc] and its values V_j [Bc, dv], which V_scale [Bc], or None, multiplies.

    factor, unit: as in ``portable.forward.update``.
    """
    m_new = tl.maximum(m_i, tl.max(S_ij, 1) * factor)  # [Br]
    m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]      a row that has met no key yet
    alpha = tl.exp2((m_i - m_safe) * unit)  # [Br]
    P_ij = tl.exp2((S_ij * factor - m_safe[:, None]) * unit)  # [Br, Bc]
    l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
    if V_scale is not None:
        P_ij = P_ij * V_scale[None, :]
    P_ij = P_ij.to(V_j.dtype)  # the one narrowing
    O_i = tl.dot(P_ij, V_j, alpha[:, None] * O_i, input_precision=precision)  # [Br, dv]
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
def place(table, stride, b, start, keys, there, page: tl.constexpr, Bc: tl.constexpr):
    """Return the page of each of these keys [Bc], in 64 bits, and their rows in it. Without a table: page b."""
    row = keys
    if table is None:
        number = b.to(tl.int64)
    else:
        row = keys % page
        if page % Bc == 0:  # all keys of the tile are in one page
            number = tl.load(table + b * stride + start // page).to(tl.int64)
        else:
            number = tl.load(table + b * stride + keys // page, mask=there, other=0).to(tl.int64)
    return number, row.to(tl.int64)


@triton.jit
def gather(at, there, cols, d, scales):
    """Return columns ``cols`` of the rows at these addresses [Bc]: zeros past d and where there is no key.

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
