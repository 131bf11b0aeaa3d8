"""Wrong answers to the exercises on kernels and models."""

import torch

from flashlab.grading.exercise import edited
from flashlab.kernels import flash_attention, tl, triton
from flashlab.models.kv_cache import Step
from tests.mutants.answers import wrong


@triton.jit
def add(x, y, z, N, Bc: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)
    ok = at < N
    a = tl.load(x + at, mask=ok, other=0.0)
    b = tl.load(y + N - 1 - at, mask=ok, other=0.0)
    tl.store(z + at, a + b, mask=ok)


@triton.jit
def softmax_row(x, y, x_stride, y_stride, N, Bc: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, Bc)
    ok = at < N
    S = tl.load(x + i * x_stride + at, mask=ok, other=-float("inf"))
    m = tl.max(S, 0)
    m = tl.where(m == -float("inf"), 0.0, m)
    P = tl.exp(S - m)
    l = tl.sum(P, 0)
    l = tl.where(l == 0, 1.0, l)
    tl.store(y + i * y_stride + at, P / l, mask=ok)


@triton.jit
def online(x, y, x_stride, y_stride, R, N, Br: tl.constexpr, Bc: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * Br + tl.arange(0, Br)
    m = tl.full([Br], -float("inf"), tl.float32)
    l = tl.zeros([Br], tl.float32)
    for start in range(0, N, Bc):
        at = start + tl.arange(0, Bc)
        ok = (rows[:, None] < R) & (at[None, :] < N)
        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float("inf"))
        m_new = tl.maximum(m, tl.max(S, 1))
        safe = tl.where(m_new == -float("inf"), 0.0, m_new)
        l = l * tl.exp(m - safe) + tl.sum(tl.exp(S - safe[:, None]), 1)
        m = m_new
    safe = tl.where(m == -float("inf"), 0.0, m)
    total = tl.where(l == 0, 1.0, l)
    for start in range(0, N, Bc):
        at = start + tl.arange(0, Bc)
        ok = (rows[:, None] < R) & (at[None, :] < N)
        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float("inf"))
        P = tl.exp(S - safe[:, None]) / total[:, None]
        tl.store(y + rows[:, None] * y_stride + at[None, :], P, mask=ok)


@triton.jit
def bounds(i, Nq, Nk, Br: tl.constexpr, Bc: tl.constexpr):
    shift = Nk - Nq
    least = tl.maximum(i * Br + shift + 1, 0)
    most = tl.maximum(tl.minimum(i * Br + Br + shift, Nk), 0)
    return (least // Bc) * Bc, most


@triton.jit
def update(m_i, l_i, O_i, S_ij, V_j, scale_log2):
    S = S_ij * scale_log2
    m = tl.maximum(m_i, tl.max(S, 1))
    safe = tl.where(m == -float("inf"), 0.0, m)
    alpha = tl.exp2(m_i - safe)
    P = tl.exp2(S - safe[:, None])
    l = l_i * alpha + tl.sum(P, 1)
    O = O_i * alpha[:, None] + tl.dot(P.to(V_j.dtype), V_j)
    return m, l, O


@triton.jit
def my_forward(
    Q, K, V, O, lse, Nq, Nk, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr, causal: tl.constexpr
):
    i = tl.program_id(0)
    rows = i * Br + tl.arange(0, Br)
    cols = tl.arange(0, d)
    q_ok = rows < Nq
    Q_i = tl.load(Q + rows[:, None] * d + cols[None, :], mask=q_ok[:, None], other=0.0)
    m = tl.full([Br], -float("inf"), tl.float32)
    l = tl.zeros([Br], tl.float32)
    acc = tl.zeros([Br, d], tl.float32)
    if causal:
        end = tl.minimum((i + 1) * Br + Nk - Nq, Nk)
    else:
        end = Nk
    for start in range(0, end, Bc):
        keys = start + tl.arange(0, Bc)
        k_ok = keys < Nk
        K_j = tl.load(K + keys[:, None] * d + cols[None, :], mask=k_ok[:, None], other=0.0)
        V_j = tl.load(V + keys[:, None] * d + cols[None, :], mask=k_ok[:, None], other=0.0)
        S = tl.dot(Q_i, K_j.T) * scale
        keep = k_ok[None, :]
        if causal:
            keep = keep & (keys[None, :] <= rows[:, None] + Nk - Nq)
        S = tl.where(keep, S, -float("inf"))
        m_new = tl.maximum(m, tl.max(S, 1))
        m_safe = tl.where(m_new == -float("inf"), 0, m_new)
        alpha = tl.exp(m - m_safe)
        P = tl.exp(S - m_safe[:, None])
        l = alpha * l + tl.sum(P, 1)
        acc = acc * alpha[:, None] + tl.dot(P.to(V_j.dtype), V_j)
        m = m_new
    l_safe = tl.where(l == 0, 1, l)
    tl.store(O + rows[:, None] * d + cols[None, :], acc / l_safe[:, None], mask=q_ok[:, None])
    tl.store(lse + rows, tl.where(l == 0, -float("inf"), m + tl.log(l_safe)), mask=q_ok)


@triton.jit
def delta(O, dO, delta, N, dv, Br: tl.constexpr, width: tl.constexpr):
    r = tl.program_id(0) * Br + tl.arange(0, Br)
    c = tl.arange(0, width)
    ok = (r[:, None] < N) & (c[None, :] < dv)
    o = tl.load(O + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(tl.float32)
    g = tl.load(dO + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(tl.float32)
    tl.store(delta + r, tl.sum(o * g, axis=1), mask=r < N)


@triton.jit
def add_rows(dK_j, dV_j, Q_i, K_j, V_j, dO_i, lse_i, delta_i, seen, scale):
    S = tl.dot(Q_i, tl.trans(K_j)) * scale
    P = tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0)
    dP = tl.dot(dO_i, tl.trans(V_j))
    dS = P * (dP - delta_i[:, None])
    dV_j = dV_j + tl.dot(tl.trans(P), dO_i)
    dK_j = dK_j + tl.dot(tl.trans(dS), Q_i) * scale
    return dK_j, dV_j


@triton.jit
def dq(
    Q, K, V, dO, lse, delta, dQ, Nq, Nk, scale,
    d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    r = i * Br + tl.arange(0, Br)
    c = tl.arange(0, d)
    real = (r < Nq)[:, None]
    q = tl.load(Q + r[:, None] * d + c[None, :], mask=real, other=0.0)
    g = tl.load(dO + r[:, None] * d + c[None, :], mask=real, other=0.0)
    lse_i = tl.load(lse + r, mask=r < Nq, other=0.0)
    delta_i = tl.load(delta + r, mask=r < Nq, other=0.0)
    acc = tl.zeros([Br, d], tl.float32)
    stop = Nk
    if causal:
        stop = tl.minimum((i + 1) * Br + Nk - Nq, Nk)
    for start in range(0, stop, Bc):
        j = start + tl.arange(0, Bc)
        k = tl.load(K + j[:, None] * d + c[None, :], mask=(j < Nk)[:, None], other=0.0)
        v = tl.load(V + j[:, None] * d + c[None, :], mask=(j < Nk)[:, None], other=0.0)
        ok = real & (j < Nk)[None, :]
        if causal:
            ok = ok & (j[None, :] <= r[:, None] + Nk - Nq)
        p = tl.where(ok, tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)
        acc += tl.dot(p * (tl.dot(g, v.T) - delta_i[:, None]), k)
    tl.store(dQ + r[:, None] * d + c[None, :], acc * scale, mask=real)


@triton.jit
def heads(h, b, H, Hk, Nq, Nk, d):
    shared, b = H // Hk, b.to(tl.int64)
    return (b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)


def forward(self, x):
    B, N, _ = x.shape
    q = self.q_proj(x).view(B, N, self.num_heads, -1).transpose(1, 2)
    k = self.k_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)
    v = self.v_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)
    O = self.attention(q, k, v, causal=self.causal)
    return self.o_proj(O.transpose(1, 2).reshape(B, N, -1))


def step(Q, K, V, past_K, past_V):
    K_all = torch.cat([past_K, K], dim=2)
    V_all = torch.cat([past_V, V], dim=2)
    O = flash_attention(Q, K_all, V_all, causal=True)
    return Step(O, K_all, V_all)


@triton.jit
def combine(O_s, lse_s, O, lse, rows, S, dv, Bs: tl.constexpr, width: tl.constexpr):
    i, s, c = tl.program_id(0), tl.arange(0, Bs), tl.arange(0, width)
    part = tl.load(lse_s + s * rows + i, mask=s < S, other=-float("inf"))
    ok = (s[:, None] < S) & (c[None, :] < dv)
    o = tl.load(O_s + (s * rows + i)[:, None] * dv + c[None, :], mask=ok, other=0.0)
    m = tl.max(part, 0)
    safe = tl.where(m == -float("inf"), 0.0, m)
    w = tl.exp(part - safe)
    l = tl.sum(w, 0)
    total = tl.where(l == 0, 1.0, l)
    tl.store(O + i * dv + c, tl.sum(w[:, None] * o, 0) / total, mask=c < dv)
    tl.store(lse + i, tl.where(l == 0, -float("inf"), safe + tl.log(total)))


from_last_to_first = edited(
    my_forward, "keys = start + tl.arange(0, Bc)", "keys = (tl.cdiv(end, Bc) - 1) * Bc - start + tl.arange(0, Bc)"
)

ANSWERS = [
    *wrong("triton_forward.forward", from_last_to_first,
        ("from last to first, the first left out", "", "range(0, end, Bc)", "range(0, end - Bc, Bc)"),
    ),
    *wrong("first_triton_kernel.add", add,
        ("no program id", "every program took the first block", "tl.program_id(0).to(tl.int64) * Bc + ", ""),
        ("every program adds everything", "the numbers are right, but a program read more than its own ", "    at = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)\n    ok = at < N\n    a = tl.load(x + at, mask=ok, other=0.0)\n    b = tl.load(y + N - 1 - at, mask=ok, other=0.0)\n    tl.store(z + at, a + b, mask=ok)\n", "    for start in range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = at < N\n        tl.store(z + at, tl.load(x + at, mask=ok) + tl.load(y + N - 1 - at, mask=ok), mask=ok)\n"),
        ("program 0 adds everything", "the numbers are right, but a program read more than its own ", "    at = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)\n    ok = at < N\n    a = tl.load(x + at, mask=ok, other=0.0)\n    b = tl.load(y + N - 1 - at, mask=ok, other=0.0)\n    tl.store(z + at, a + b, mask=ok)\n", "    for start in range(0, N * (tl.program_id(0).to(tl.int64) == 0), Bc):\n        at = start + tl.arange(0, Bc)\n        ok = at < N\n        tl.store(z + at, tl.load(x + at, mask=ok) + tl.load(y + N - 1 - at, mask=ok), mask=ok)\n"),
        ("programs overlap", "blocks overlap", "tl.program_id(0).to(tl.int64) * Bc", "tl.program_id(0).to(tl.int64)"),
        ("no mask at the load", "a load is not masked", "tl.load(x + at, mask=ok, other=0.0)", "tl.load(x + at)"),
        ("no mask at the store", "the store is not masked", "a + b, mask=ok)", "a + b)"),
        ("mask <=", "the mask lets one element too many through", "at < N", "at <= N"),
        ("mask one short", "the last element was masked out", "at < N", "at < N - 1"),
        ("nothing stored", "nothing was stored", "tl.store(z + at, a + b, mask=ok)", "z = a + b"),
        ("x twice", "y was never read", "a + b", "a + a"),
        ("multiplied", "x and y were multiplied", "a + b", "a * b"),
        ("pointer not moved at the store", "every program stored into the first block", "z + at", "z + tl.arange(0, Bc)"),
        ("y from its beginning", "y was read from its beginning", "y + N - 1 - at", "y + at"),
        ("y off by one", "off by one", "y + N - 1 - at", "y + N - at"),
        ("each block inverted", "each block was inverted by itself", "y + N - 1 - at", "y + tl.program_id(0).to(tl.int64) * Bc + tl.minimum(Bc, N - tl.program_id(0).to(tl.int64) * Bc) - 1 - tl.arange(0, Bc)"),
        ("x from the end too", "x was inverted as well", "tl.load(x + at", "tl.load(x + N - 1 - at"),
        ("x from the end instead", "x was inverted instead of y", "tl.load(x + at", "tl.load(x + N - 1 - at", "tl.load(y + N - 1 - at", "tl.load(y + at"),
        ("in float16", "the sum was rounded to half precision", "a + b", "(a + b).to(tl.float16)"),
        ("stored to x", "nothing was stored", "z + at", "x + at"),
        ("y counted from the end of the grid", "y was read from the end of its last block", "y + N - 1 - at, mask=ok, other=0.0", "y + (tl.num_programs(0) - tl.program_id(0)) * Bc - 1 - tl.arange(0, Bc), mask=(tl.num_programs(0) - tl.program_id(0)) * Bc - 1 - tl.arange(0, Bc) < N"),
        ("a block of y not inverted", "it was not inverted", "y + N - 1 - at, mask=ok, other=0.0", "y + N - (tl.program_id(0) + 1) * Bc + tl.arange(0, Bc), mask=N - (tl.program_id(0) + 1) * Bc + tl.arange(0, Bc) >= 0"),
        ("y masked at the wrong end", "a load is not masked where there is nothing to load", "y + N - 1 - at, mask=ok, other=0.0", "y + N - 1 - at, mask=N - 1 - at < N"),
        ("flipped along no dimension", "tl.flip must be told along which dimension", "a + b, mask", "a + tl.flip(b), mask"),
    ),
    *wrong("first_triton_kernel.softmax_row", softmax_row,
        ("+ 1e-6", "a small number was added", "    l = tl.where(l == 0, 1.0, l)\n", "    l = l + 1e-6\n"),
        ("+ 1e-9", "a small number was added", "    l = tl.where(l == 0, 1.0, l)\n", "    l = l + 1e-9\n"),
        ("guard maximum(m, -1e6)", "a finite number guards −∞", 'tl.where(m == -float("inf"), 0.0, m)', "tl.maximum(m, -1e6)"),
        ("exponents clipped at -30", "an exponent was clipped", "tl.exp(S - m)", "tl.where(ok, tl.exp(tl.maximum(S - m, -30.0)), 0.0)"),
        ("0 for masked scores in the maximum", "a masked element counted as 0 in the maximum, and a row far ", "tl.max(S, 0)", "tl.max(tl.where(ok, S, 0.0), 0)"),
        ("other=0", "masked elements were read as 0 and count in the sum", 'other=-float("inf")', "other=0.0"),
        ("no other", "a masked load without other= reads anything at all, on a GPU", ', other=-float("inf")', ""),
        ("no maximum", "the maximum was not subtracted", "S - m", "S"),
        ("no program id", "every program took the first row, and stored there", "tl.program_id(0).to(tl.int64)", "0"),
        ("not divided", "the exponentials were not divided by their sum", "P / l", "P"),
        ("no guard", "−∞ − (−∞) and 0 / 0 are NaN", '    m = tl.where(m == -float("inf"), 0.0, m)\n', ""),
        ("0 / 0", "−∞ − (−∞) and 0 / 0 are NaN", "    l = tl.where(l == 0, 1.0, l)\n", ""),
        ("N for the stride of x", "rows lie x_stride elements apart, not N", "i * x_stride", "i * N"),
        ("N for the stride of y", "rows of y lie y_stride elements apart", "i * y_stride", "i * N"),
        ("x_stride for y_stride", "rows of y lie y_stride elements apart", "i * y_stride", "i * x_stride"),
        ("Bc for the stride", "rows lie x_stride elements apart, not Bc", "i * x_stride", "i * Bc"),
        ("store not masked", "the store is not masked", "P / l, mask=ok)", "P / l)"),
        ("maximum at least 0", "0 was subtracted wherever the maximum is negative", "tl.max(S, 0)", "tl.maximum(tl.max(S, 0), 0.0)"),
        ("maximum at least -1e4", "a finite number guards −∞, but scores may lie below it, and ", '    m = tl.where(m == -float("inf"), 0.0, m)\n', "    m = tl.maximum(m, -1e4)\n"),
        ("loaded twice", "the numbers are right, but a row was read more than once", "tl.exp(S - m)", 'tl.exp(tl.load(x + i * x_stride + at, mask=ok, other=-float("inf")) - m)'),
        ("maximum in float16", "the maximum was rounded to half precision", "tl.max(S, 0)", "tl.max(S.to(tl.float16), 0).to(tl.float32)"),
        ("exp2", "2^x where e^x is meant", "tl.exp(", "tl.exp2("),
        ("minimum", "the minimum was taken", "tl.max(S, 0)", "tl.min(S, 0)"),
        ("-1e9 for −∞", "a large negative number is not −∞", 'other=-float("inf")', "other=-1e9"),
    ),
    *wrong("first_triton_kernel.online", online,
        ("+ 1e-9", "a small number was added", "total = tl.where(l == 0, 1.0, l)", "total = l + 1e-9"),
        ("guard maximum(m, -1e6)", "a finite number was put in the place of −∞", 'safe = tl.where(m_new == -float("inf"), 0.0, m_new)', "safe = tl.maximum(m_new, -1e6)"),
        ("guard maximum(m, 0)", "0 was subtracted wherever the maximum is negative", 'safe = tl.where(m_new == -float("inf"), 0.0, m_new)', "safe = tl.maximum(m_new, 0.0)"),
        ("guard on the block", "0 was subtracted wherever the block is masked", 'safe = tl.where(m_new == -float("inf"), 0.0, m_new)', 'safe = tl.where(tl.max(S, 1) == -float("inf"), 0.0, m_new)'),
        ("maximum frozen at the first tile", "the maximum was frozen at the first tile", "tl.maximum(m, tl.max(S, 1))", 'tl.where(m == -float("inf"), tl.max(S, 1), m)'),
        ("the guarded maximum kept in the first loop", "the guarded maximum was kept", "        m = m_new", "        m = safe"),
        ("m in float16", "the maximum was rounded to half precision", "        m = m_new", "        m = m_new.to(tl.float16).to(tl.float32)"),
        ("m from -1e4", "a finite number was put in the place of −∞", 'tl.full([Br], -float("inf"), tl.float32)', "tl.full([Br], -1e4, tl.float32)"),
        ("l not rescaled", "the old sum was not rescaled", "l * tl.exp(m - safe)", "l"),
        ("inverse", "alpha is inverted", "tl.exp(m - safe)", "tl.exp(safe - m)"),
        ("maximum of the block", "the maximum of the last block was used, not the row's", "tl.maximum(m, tl.max(S, 1))", "tl.max(S, 1)"),
        ("m not kept", "the maximum was not kept for the next block", "        m = m_new\n", ""),
        ("no column mask", "columns past the row's end were read", "& (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new", "\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new"),
        ("no store mask", "the store is not masked", "at[None, :], P, mask=ok)", "at[None, :], P)"),
        ("no row mask at the store", "the store does not mask the rows", "at[None, :], P, mask=ok)", "at[None, :], P, mask=(at < N)[None, :])"),
        ("no row mask", "rows past the last one are not masked", "        ok = (rows[:, None] < R) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new", "        ok = (rows[:, None] < R + Br) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new"),
        ("without a maximum", "no maximum was subtracted", "tl.exp(S - safe[:, None]), 1)", "tl.exp(S), 1)", "l * tl.exp(m - safe)", "l", "tl.exp(S - safe[:, None]) /", "tl.exp(S) /"),
        ("no guard in the loop", "−∞ − (−∞) is NaN", 'safe = tl.where(m_new == -float("inf"), 0.0, m_new)', "safe = m_new"),
        ("no guard after the loop", "−∞ − (−∞) and 0 / 0 are NaN", '    safe = tl.where(m == -float("inf"), 0.0, m)\n', "    safe = m\n"),
        ("0 / 0", "−∞ − (−∞) and 0 / 0 are NaN", "tl.where(l == 0, 1.0, l)", "l"),
        ("not divided", "the weights were not divided by the sum", " / total[:, None]", ""),
        ("the sum of the last block", "only the last block was summed", "l * tl.exp(m - safe) + ", ""),
        ("guard maximum(m, 0)", "0 was put in the place of −∞, at first or in a guard", 'safe = tl.where(m_new == -float("inf"), 0.0, m_new)', "safe = tl.maximum(m_new, 0.0)", '    safe = tl.where(m == -float("inf"), 0.0, m)\n', "    safe = tl.maximum(m, 0.0)\n"),
        ("guard maximum(m, -1e4)", "a finite number was put in the place of −∞", 'safe = tl.where(m_new == -float("inf"), 0.0, m_new)', "safe = tl.maximum(m_new, -1e4)", '    safe = tl.where(m == -float("inf"), 0.0, m)\n', "    safe = tl.maximum(m, -1e4)\n"),
        ("three passes", "the numbers are right, but rows were read more than twice", "    for start in range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new", "    for start in range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        m = tl.maximum(m, tl.max(tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\")), 1))\n    for start in range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new"),
        ("the last key dropped where blocks are full", "", "range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new", "range(0, N - 1, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new"),
        ("programs overlap", "programs overlap", "tl.program_id(0).to(tl.int64) * Br", "tl.program_id(0).to(tl.int64)"),
        ("sum over rows", "summed over the rows", "tl.sum(tl.exp(S - safe[:, None]), 1)", "tl.sum(tl.exp(S - safe[:, None]), 0)"),
    ),
    *wrong("triton_forward.bounds", bounds,
        ("aligned at the upper left", "aligned at the upper left, in both bounds", "Nk - Nq", "0"),
        ("seen - 1", "the last key was dropped", "i * Br + Br + shift, Nk)", "i * Br + Br + shift - 1, Nk)"),
        ("results swapped", "the bounds were returned in the wrong order", "(least // Bc) * Bc, most", "most, (least // Bc) * Bc"),
        ("unmasked one short", "off by one: row i * Br sees key i * Br + Nk − Nq too, so it ", "shift + 1, 0)", "shift, 0)"),
        ("unmasked by the last row", "the last row of the tile decides what is unmasked; it must b", "i * Br + shift + 1", "i * Br + Br + shift"),
        ("seen by the first row", "the first row decides where to stop; it must be the last one", "i * Br + Br + shift", "i * Br + shift + 1"),
        ("not rounded", "the first loop ended within a tile", "(least // Bc) * Bc", "least"),
        ("rounded up", "rounded up: the tile that the first row sees in part needs t", "(least // Bc) * Bc", "tl.cdiv(least, Bc) * Bc"),
        ("not clamped at Nk", "the last row may see up to Nk keys and no more", "tl.minimum(i * Br + Br + shift, Nk)", "i * Br + Br + shift"),
        ("negative", "a negative bound", "tl.maximum(i * Br + shift + 1, 0)", "i * Br + shift + 1"),
        ("nothing skipped", "nothing is skipped", "tl.minimum(i * Br + Br + shift, Nk)", "Nk"),
        ("Bc for Br", "", "i * Br + Br", "i * Bc + Bc", "i * Br + shift", "i * Bc + shift"),
        ("seen one more", "off by one: the last row is (i + 1) * Br − 1 and sees (i + 1", "Br + shift, Nk)", "Br + shift + 1, Nk)"),
        ("in tiles", "tiles were counted", "(least // Bc) * Bc, most", "least // Bc, most"),
        ("everything masked", "every tile was masked", "(least // Bc) * Bc", "0"),
    ),
    *wrong("triton_forward.update", update,
        ("guard maximum(m, -1e6)", "a finite number guards −∞", 'tl.where(m == -float("inf"), 0.0, m)', "tl.maximum(m, -1e6)"),
        ("guard on the tile", "0 was subtracted wherever the tile is masked", 'tl.where(m == -float("inf"), 0.0, m)', 'tl.where(tl.max(S, 1) == -float("inf"), 0.0, m)'),
        ("guard on the old maximum", "0 was subtracted in the first tile", 'tl.where(m == -float("inf"), 0.0, m)', 'tl.where(m_i == -float("inf"), 0.0, m)'),
        ("P never narrowed", "P_ij was multiplied in float32", "tl.dot(P.to(V_j.dtype), V_j)", "tl.dot(P, V_j.to(tl.float32))"),
        ("old O in half", "the old output was rounded to half precision", "O_i * alpha[:, None]", "(O_i * alpha[:, None]).to(tl.float16).to(tl.float32)"),
        ("exp", "e^x where 2^x is meant", "alpha = tl.exp2", "alpha = tl.exp", "P = tl.exp2", "P = tl.exp"),
        ("exp for P", "e^x where 2^x is due", "P = tl.exp2", "P = tl.exp"),
        ("not scaled", "m_new is in units of the unscaled scores", "S_ij * scale_log2", "S_ij"),
        ("l not rescaled", "the old sum was not rescaled", "l_i * alpha", "l_i"),
        ("O not rescaled", "the old output was not rescaled", "O_i * alpha[:, None]", "O_i"),
        ("inverse", "alpha is upside down", "m_i - safe", "safe - m_i"),
        ("maximum of the tile", "the maximum of this tile alone was used", "tl.maximum(m_i, tl.max(S, 1))", "tl.max(S, 1)"),
        ("maximum frozen", "the maximum was frozen at the first tile", "tl.maximum(m_i, tl.max(S, 1))", 'tl.where(m_i == -float("inf"), tl.max(S, 1), m_i)'),
        ("no guard", "−∞ − (−∞) is NaN", 'tl.where(m == -float("inf"), 0.0, m)', "m"),
        ("guard maximum(m, 0)", "0 was subtracted wherever the maximum is negative, and such ", 'tl.where(m == -float("inf"), 0.0, m)', "tl.maximum(m, 0.0)"),
        ("guarded m returned", "the guarded maximum was returned", "return m,", "return safe,"),
        ("the old m returned", "the old maximum was returned, but the sums are relative to m", "return m,", "return m_i,"),
        ("m in natural units", "m_new is in units of the unscaled scores", "return m,", "return m / 1.4426950408889634,"),
        ("sum of the narrowed P", "the sum was taken of the narrowed P_ij", "tl.sum(P, 1)", "tl.sum(P.to(V_j.dtype), 1)"),
        ("not narrowed", "P_ij is float32, V_j float16", "P.to(V_j.dtype)", "P"),
        ("finish inside", "O was divided by l", "return m, l, O", "return m, l, O / l[:, None]"),
        ("wrong axis", "the maximum was taken over the rows", "tl.max(S, 1)", "tl.max(S, 0)"),
        ("P in float16", "the weights were rounded to half precision", "P = tl.exp2(S - safe[:, None])", "P = tl.exp2((S - safe[:, None]).to(tl.float16).to(tl.float32)).to(tl.float16).to(tl.float32)"),
        ("O accumulated in half", "the output was rounded to half precision", "return m, l, O", "return m, l, O.to(tl.float16).to(tl.float32)"),
    ),
    *wrong("triton_forward.forward", my_forward,
        ("guard maximum(m, -1e6)", "a finite number was put in the place of −∞", 'tl.where(m_new == -float("inf"), 0, m_new)', "tl.maximum(m_new, -1e6)"),
        ("masked scores -1e6", "a large negative number is not −∞", 'S = tl.where(keep, S, -float("inf"))', "S = tl.where(keep, S, -1e6)"),
        ("+ 1e-9", "a small number was added", "l_safe = tl.where(l == 0, 1, l)", "l_safe = l + 1e-9"),
        ("a key too many", "off by one", "keep = k_ok[None, :]\n", "keep = (keys < Nk + 1)[None, :]\n"),
        ("Q scaled in half", "Q_i or K_j was rounded again after the scale", "tl.dot(Q_i, K_j.T) * scale", "tl.dot((Q_i * scale).to(tl.float16), K_j.T)"),
        ("maximum frozen at the first tile", "the maximum was frozen at the first tile", "m_new = tl.maximum(m, tl.max(S, 1))", 'm_new = tl.where(m == -float("inf"), tl.max(S, 1), m)'),
        ("one key short where Nk - Nq = 1", "the loop ended a key too early", "(i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + Nk - Nq - 1, Nk)"),
        ("step of the wrong tile", "the loop went on by Br", "range(0, end, Bc)", "range(0, end, Br)"),
        ("end by Bc", "Bc stands where Br belongs", "(i + 1) * Br + Nk", "(i + 1) * Bc + Nk"),
        ("rows by Bc", "Bc stands where Br belongs", "i * Br + tl.arange(0, Br)", "i * Bc + tl.arange(0, Br)"),
        ("row stride Bc for K", "rows of K lie d elements apart, not Bc", "K + keys[:, None] * d", "K + keys[:, None] * Bc"),
        ("row stride Br for O", "rows of O lie d elements apart, not Br", "O + rows[:, None] * d", "O + rows[:, None] * Br"),
        ("row stride Bc for Q", "rows of Q lie d elements apart, not Bc", "Q + rows[:, None] * d", "Q + rows[:, None] * Bc"),
        ("row stride Nk", "rows of V lie d elements apart, not Nk", "V + keys[:, None] * d", "V + keys[:, None] * Nk"),
        ("columns of Bc", "", "cols = tl.arange(0, d)", "cols = tl.arange(0, Bc)"),
        ("acc of Bc", "", "tl.zeros([Br, d]", "tl.zeros([Br, Bc]"),
        ("keys of Br", "", "start + tl.arange(0, Bc)", "start + tl.arange(0, Br)"),
        ("no other at V", "a masked load without other= reads anything at all, on a GPU", "V_j = tl.load(V + keys[:, None] * d + cols[None, :], mask=k_ok[:, None], other=0.0)", "V_j = tl.load(V + keys[:, None] * d + cols[None, :], mask=k_ok[:, None])"),
        ("m from -1e4", "a finite number was put in the place of −∞", 'tl.full([Br], -float("inf"), tl.float32)', "tl.full([Br], -1e4, tl.float32)"),
        ("m from 0", "the maximum began at 0, which is a score like any other", 'tl.full([Br], -float("inf"), tl.float32)', "tl.zeros([Br], tl.float32)"),
        ("nothing skipped", "the numbers are right, but it loaded 864 bytes where 736 wil", "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "Nk"),
        ("Q loaded each turn", "the numbers are right, but it loaded 128 bytes where 96 will", "S = tl.dot(Q_i,", "Q_i = tl.load(Q + rows[:, None] * d + cols[None, :], mask=q_ok[:, None], other=0.0)\n        S = tl.dot(Q_i,"),
        ("tl.max along rows", "the maximum was taken over the rows", "tl.max(S, 1)", "tl.max(S, 0)"),
        ("exp2 without log2(e)", "2^x where e^x is meant", "tl.exp(m - m_safe)", "tl.exp2(m - m_safe)", "tl.exp(S - m_safe", "tl.exp2(S - m_safe"),
        ("O normalised in each tile", "O was divided by l inside the loop", "        m = m_new\n", "        m = m_new\n        acc = acc / tl.where(l == 0, 1, l)[:, None]\n"),
        ("store without mask", "it read or stored past the end", "acc / l_safe[:, None], mask=q_ok[:, None])", "acc / l_safe[:, None])"),
        ("lse without mask", "it read or stored past the end", "m + tl.log(l_safe)), mask=q_ok)", "m + tl.log(l_safe)))"),
        ("no scale", "the scale was forgotten", "tl.dot(Q_i, K_j.T) * scale", "tl.dot(Q_i, K_j.T)"),
        ("scale of the padded width", "1/√d was computed from d", "tl.dot(Q_i, K_j.T) * scale", "tl.dot(Q_i, K_j.T) / tl.sqrt(d * 1.0)"),
        ("divided by scale", "scores were divided by scale", "tl.dot(Q_i, K_j.T) * scale", "tl.dot(Q_i, K_j.T) / scale"),
        ("l not rescaled", "the old sum was not rescaled", "alpha * l +", "l +"),
        ("O not rescaled", "the old output was not rescaled", "acc * alpha[:, None]", "acc"),
        ("neither rescaled", "neither old sum was rescaled", "alpha * l +", "l +", "acc * alpha[:, None]", "acc"),
        ("alpha inverse", "alpha is upside down", "tl.exp(m - m_safe)", "tl.exp(m_safe - m)"),
        ("maximum of the tile", "the maximum of the last tile was used, not of all so far", "tl.maximum(m, tl.max(S, 1))", "tl.max(S, 1)"),
        ("m not kept", "m_i stayed at −∞", "        m = m_new\n", ""),
        ("upper left", "aligned at the upper left", "rows[:, None] + Nk - Nq", "rows[:, None]"),
        ("end at the upper left", "the loop ended too early", "(i + 1) * Br + Nk - Nq", "(i + 1) * Br"),
        ("upper left in both", "aligned at the upper left", "rows[:, None] + Nk - Nq", "rows[:, None]", "(i + 1) * Br + Nk - Nq", "(i + 1) * Br"),
        ("mask <", "the mask is off by one", "keys[None, :] <= rows", "keys[None, :] < rows"),
        ("mask one key more", "the mask is off by one", "rows[:, None] + Nk - Nq", "rows[:, None] + Nk - Nq + 1"),
        ("mask of keys forgotten", "keys past the end were read as 0 and count", "keep = k_ok[None, :]\n", "keep = keys[None, :] >= 0\n"),
        ("causal forgotten", "the causal mask was forgotten", "keep & (keys[None, :] <= rows[:, None] + Nk - Nq)", "keep"),
        ("always causal", "the mask was always causal", "        if causal:\n            keep =", "        if d > 0:\n            keep ="),
        ("-1e9", "a large negative number is not −∞", 'S = tl.where(keep, S, -float("inf"))', "S = tl.where(keep, S, -1e9)"),
        ("0 for masked", "keys past the end were read as 0 and count", 'S = tl.where(keep, S, -float("inf"))', "S = tl.where(keep, S, 0.0)"),
        ("no guard", "−∞ − (−∞) is NaN", 'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        ("guard maximum(m, 0)", "0 was subtracted wherever the maximum is negative, and such ", 'tl.where(m_new == -float("inf"), 0, m_new)', "tl.maximum(m_new, 0)"),
        ("guard maximum(m, -1e4)", "a finite number was put in the place of −∞", 'tl.where(m_new == -float("inf"), 0, m_new)', "tl.maximum(m_new, -1e4)"),
        ("0 / 0", "0 / 0 is NaN: a row that sees no key has l = 0; divide by 1 ", "tl.where(l == 0, 1, l)", "l"),
        ("not divided", "the output was not divided by l", "acc / l_safe[:, None]", "acc"),
        ("lse without m", "lse lacks the maximum", "m + tl.log(l_safe)", "tl.log(l_safe)"),
        ("lse scaled", "lse was scaled", "m + tl.log(l_safe)", "(m + tl.log(l_safe)) * scale"),
        ("lse in log2", "lse is in units of log2", "m + tl.log(l_safe)", "(m + tl.log(l_safe)) * 1.4426950408889634"),
        ("lse log2 of l", "the logarithm of l is in units of log2", "tl.log(l_safe)", "tl.log2(l_safe)"),
        ("m for lse", "m was stored instead of lse = m + log l", "m + tl.log(l_safe)", "m"),
        ("lse 0 where nothing is seen", "a row that sees no key has lse −∞, not 0", 'tl.where(l == 0, -float("inf"), m + tl.log(l_safe))', "tl.where(l == 0, 0.0, m + tl.log(l_safe))"),
        ("K not transposed", "K was not transposed", "K_j.T", "K_j"),
        ("P not narrowed", "P_ij is float32, V_j float16", "P.to(V_j.dtype)", "P"),
        ("acc in float16", "the output was accumulated in half precision", "        m = m_new\n", "        m = m_new\n        acc = acc.to(tl.float16).to(tl.float32)\n"),
        ("l in float16", "l_i was rounded to half precision", "        m = m_new\n", "        m = m_new\n        l = l.to(tl.float16).to(tl.float32)\n"),
        ("S in float16", "the scores were rounded to half precision", "tl.dot(Q_i, K_j.T) * scale", "tl.dot(Q_i, K_j.T).to(tl.float16).to(tl.float32) * scale"),
        ("scaled S in float16", "the scores were rounded to half precision", "tl.dot(Q_i, K_j.T) * scale", "(tl.dot(Q_i, K_j.T) * scale).to(tl.float16).to(tl.float32)"),
        ("K scaled in float16", "Q_i or K_j was rounded again after the scale", "tl.dot(Q_i, K_j.T) * scale", "tl.dot(Q_i, (K_j * scale).to(K_j.dtype).T)"),
        ("sum of the narrowed P", "the sum was taken of the narrowed P_ij", "tl.sum(P, 1)", "tl.sum(P.to(tl.float16), 1)"),
        ("last tile dropped", "the last tile of keys, which is not full, was dropped", "range(0, end, Bc)", "range(0, end // Bc * Bc, Bc)"),
        ("last key dropped at whole tiles", "the last tile of keys, which is not full, was dropped", "        end = Nk\n", "        end = Nk - 1\n"),
        ("first tile always", "every turn of the loop took the first tile of keys", "start + tl.arange(0, Bc)", "tl.arange(0, Bc)"),
        ("no program id", "every program took the first tile of queries", "tl.program_id(0)", "0"),
        ("V loaded from K", "V_j was loaded from K", "tl.load(V + ", "tl.load(K + "),
        ("nothing stored", "O was not stored", "    tl.store(O + rows[:, None] * d + cols[None, :], acc / l_safe[:, None], mask=q_ok[:, None])\n", ""),
        ("lse not stored", "lse was not stored", '    tl.store(lse + rows, tl.where(l == 0, -float("inf"), m + tl.log(l_safe)), mask=q_ok)\n', ""),
        ("Nq and Nk swapped", "", "q_ok = rows < Nq", "q_ok = rows < Nk"),
        ("Nq for Nk", "Nq and Nk are exchanged", "k_ok = keys < Nk", "k_ok = keys < Nq"),
        ("Nq − Nk", "the difference is inverted", "rows[:, None] + Nk - Nq", "rows[:, None] + Nq - Nk"),
    ),
    *wrong("triton_backward.delta", delta,
        ("64 columns", "columns from 64 on were left out", "(c[None, :] < dv)", "(c[None, :] < tl.minimum(dv, 64))"),
        ("no other", "a masked load without other= reads anything at all, on a GPU", "o = tl.load(O + r[:, None] * dv + c[None, :], mask=ok, other=0.0)", "o = tl.load(O + r[:, None] * dv + c[None, :], mask=ok)"),
        ("in float16", "the product was rounded to float16", "o = tl.load(O + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(tl.float32)", "o = tl.load(O + r[:, None] * dv + c[None, :], mask=ok, other=0.0)", "g = tl.load(dO + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(tl.float32)", "g = tl.load(dO + r[:, None] * dv + c[None, :], mask=ok, other=0.0)"),
        ("wrong axis", "summed over the queries", "axis=1", "axis=0"),
        ("no column mask", "columns past the row's end were counted, the next row's", " & (c[None, :] < dv)", ""),
        ("no row mask at the store", "the store is not masked", ", mask=r < N)", ")"),
        ("stride width", "rows lie dv elements apart, not width", "O + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(tl.float32)\n    g", "O + r[:, None] * width + c[None, :], mask=ok, other=0.0).to(tl.float32)\n    g"),
        ("stride width in both", "rows lie dv elements apart, not width", "o = tl.load(O + r[:, None] * dv", "o = tl.load(O + r[:, None] * width", "dO + r[:, None] * dv", "dO + r[:, None] * width"),
        ("no program id", "every program took the first rows", "tl.program_id(0) * Br + ", ""),
        ("O times O", "O was multiplied with itself", "o * g", "o * o"),
        ("not multiplied", "that is the sum of dO alone", "o * g", "g"),
        ("mean", "that is the mean", "tl.sum(o * g, axis=1)", "tl.sum(o * g, axis=1) / dv"),
        ("nothing stored", "nothing was stored", "    tl.store(delta + r, tl.sum(o * g, axis=1), mask=r < N)\n", "    delta = tl.sum(o * g, axis=1)\n"),
    ),
    *wrong("triton_backward.add_rows", add_rows,
        ("dK scaled again", "the sum so far was scaled again", "dK_j = dK_j + tl.dot(tl.trans(dS), Q_i) * scale", "dK_j = (dK_j + tl.dot(tl.trans(dS), Q_i)) * scale"),
        ("delta missing", "delta is missing", "(dP - delta_i[:, None])", "dP"),
        ("row sum of the tile", "the row sum was taken over this tile only", "delta_i[:, None]", "tl.sum(P * dP, 1)[:, None]"),
        ("lse as a row", "lse_i stands for queries, which are the rows of the tile", "lse_i[:, None]", "lse_i[None, :]"),
        ("delta as a row", "delta_i stands for queries, which are the rows of the tile", "delta_i[:, None]", "delta_i[None, :]"),
        ("delta added", "delta was added", "dP - delta", "dP + delta"),
        ("dS without P", "dS must be multiplied with P", "P * (dP - delta_i[:, None])", "dP - delta_i[:, None]"),
        ("exp2", "2^x where e^x is due", "tl.exp(", "tl.exp2("),
        ("dK not scaled", "dK is not scaled", "tl.dot(tl.trans(dS), Q_i) * scale", "tl.dot(tl.trans(dS), Q_i)"),
        ("S not scaled", "the scores were not scaled", "tl.dot(Q_i, tl.trans(K_j)) * scale", "tl.dot(Q_i, tl.trans(K_j))"),
        ("dV scaled", "dV was scaled", "tl.dot(tl.trans(P), dO_i)", "tl.dot(tl.trans(P), dO_i) * scale"),
        ("swapped", "dK and dV were swapped", "return dK_j, dV_j", "return dV_j, dK_j"),
        ("P not transposed", "dV took P instead of Pᵀ", "tl.trans(P)", "P"),
        ("dS not transposed", "dK took dS instead of dSᵀ", "tl.trans(dS)", "dS"),
        ("softmax of the tile", "", "    dP =", "    P = P / tl.where(tl.sum(P, 1) == 0, 1, tl.sum(P, 1))[:, None]\n    dP ="),
        ("mask forgotten", "the mask was forgotten", "tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0)", "tl.exp(S - lse_i[:, None])"),
        ("multiplied by the mask", "a row that sees no key has lse = −∞, and ∞ · 0 and −∞ + ∞ ar", "tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0)", "tl.exp(S - lse_i[:, None]) * seen"),
        ("dV not added", "dV keeps only the last tile of queries", "dV_j = dV_j + ", "dV_j = "),
        ("dK not added", "dK keeps only the last tile of queries", "dK_j = dK_j + ", "dK_j = "),
        ("neither added", "dK and dV keep only the last tile", "dV_j = dV_j + ", "dV_j = ", "dK_j = dK_j + ", "dK_j = "),
        ("scale twice", "the scale was applied twice", "P * (dP - delta_i[:, None])", "P * (dP - delta_i[:, None]) * scale"),
        ("V not transposed", "V_j was not transposed", "tl.trans(V_j)", "V_j"),
        ("dV from dS", "dV was taken from dS", "tl.trans(P)", "tl.trans(dS)"),
        ("P (1 − P) dP", "P (1 − P) is a weight's slope by its own score", "P * (dP - delta_i[:, None])", "P * (1 - P) * dP"),
        ("P dP − delta", "delta is subtracted from dP before P is multiplied with it", "P * (dP - delta_i[:, None])", "P * dP - delta_i[:, None]"),
    ),
    *wrong("triton_forward.heads", heads,
        ("heads outside", "heads were taken for the outermost axis", "(b * H + h)", "(h * 2 + b)"),
        ("heads of keys outside", "heads were taken for the outermost axis", "(b * Hk + h // shared)", "(h // shared * 2 + b)"),
        ("h % Hk", "neighbours share keys", "h // shared", "h % Hk"),
        ("rounded up", "rounded up: the first H // Hk query heads share", "h // shared", "(h + shared - 1) // shared"),
        ("h // Hk", "H // Hk query heads share a head", "h // shared", "h // Hk"),
        ("b * H for keys", "a text has Hk heads of keys", "b * Hk + h", "b * H + h"),
        ("Nq for Nk", "a head of keys has Nk rows", "(Nk * d)", "(Nq * d)"),
    ),
    *wrong("triton_backward.dQ", dq,
        ("absent keys not masked", "keys past the end were not masked", "real & (j < Nk)[None, :]", "real & (j >= 0)[None, :]"),
        ("tiles that nobody sees", "the numbers are right, but it loaded", "stop = tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "stop = Nk"),
        ("dO loaded in the loop", "the numbers are right, but it loaded", "        ok = real & ", "        g = tl.load(dO + r[:, None] * d + c[None, :], mask=real, other=0.0)\n        ok = real & "),
        ("not scaled", "dQ is not scaled", "acc * scale", "acc"),
        ("scores not scaled", "the scores were not scaled", "tl.dot(q, k.T) * scale", "tl.dot(q, k.T)"),
        ("delta missing", "delta is missing", "(tl.dot(g, v.T) - delta_i[:, None])", "tl.dot(g, v.T)"),
        ("upper left", "aligned at the upper left", "r[:, None] + Nk - Nq", "r[:, None]"),
        ("multiplied by the mask", "a row that sees no key has lse = −∞", "tl.where(ok, tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)", "tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]) * ok"),
        ("Bc for Br", "Bc stands where Br belongs", "(i + 1) * Br", "(i + 1) * Bc"),
        ("lse not masked", "a load is not masked", "tl.load(lse + r, mask=r < Nq, other=0.0)", "tl.load(lse + r)"),
        ("dS in float16", "dS was rounded to half precision", "tl.dot(p * (tl.dot(g, v.T) - delta_i[:, None]), k)", "tl.dot((p * (tl.dot(g, v.T) - delta_i[:, None])).to(tl.float16), k.to(tl.float16)).to(tl.float32)"),
        ("only the last tile", "only the last tile of keys was kept", "acc += ", "acc = "),
    ),
    *wrong("attention_in_a_model.forward", forward,
        ("detached", "the numbers are right, but not all of the gradient comes bac", "transpose(1, 2).reshape(B, N, -1)", "detach().transpose(1, 2).reshape(B, N, -1)"),
        ("view in all three", "a view to [B, H, N, d] cuts positions to pieces", "self.q_proj(x).view(B, N, self.num_heads, -1).transpose(1, 2)", "self.q_proj(x).view(B, self.num_heads, N, -1)", "self.k_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)", "self.k_proj(x).view(B, self.num_kv_heads, N, -1)", "self.v_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)", "self.v_proj(x).view(B, self.num_kv_heads, N, -1)"),
        ("view in all three and back", "views cut positions to pieces, to [B, H, N, d] and back", "self.q_proj(x).view(B, N, self.num_heads, -1).transpose(1, 2)", "self.q_proj(x).view(B, self.num_heads, N, -1)", "self.k_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)", "self.k_proj(x).view(B, self.num_kv_heads, N, -1)", "self.v_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)", "self.v_proj(x).view(B, self.num_kv_heads, N, -1)", "O.transpose(1, 2).reshape(B, N, -1)", "O.reshape(B, N, -1)"),
        ("no transpose back", "a view of O to [B, N, d_model] mixes positions", "O.transpose(1, 2).reshape(B, N, -1)", "O.reshape(B, N, -1)"),
        ("causal forgotten", "the attention was not told whether it is causal", ", causal=self.causal", ""),
        ("always causal", "the attention was always causal", "causal=self.causal", "causal=True"),
        ("no o_proj", "the output was not projected back", "self.o_proj(O.transpose(1, 2).reshape(B, N, -1))", "O.transpose(1, 2).reshape(B, N, -1)"),
        ("scale of d_model", "scores were divided by √d_model", "causal=self.causal", "causal=self.causal, scale=x.shape[-1] ** -0.5"),
        ("heads not transposed", "heads and positions did not change places", "self.num_heads, -1).transpose(1, 2)", "self.num_heads, -1)", "self.k_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)", "self.k_proj(x).view(B, N, self.num_kv_heads, -1)", "self.v_proj(x).view(B, N, self.num_kv_heads, -1).transpose(1, 2)", "self.v_proj(x).view(B, N, self.num_kv_heads, -1)", "O.transpose(1, 2).reshape(B, N, -1)", "O.reshape(B, N, -1)"),
        ("num_heads for the keys", "keys and values have num_kv_heads heads, not num_heads", "self.k_proj(x).view(B, N, self.num_kv_heads, -1)", "self.k_proj(x).view(B, N, self.num_heads, -1)"),
        ("heads repeated in turn", "query heads took key/value heads in turn", "    O = ", "    k, v = (t.repeat(1, self.num_heads // self.num_kv_heads, 1, 1) for t in (k, v))\n    O = "),
        ("k for v", "V was taken from k_proj", "self.v_proj(x)", "self.k_proj(x)"),
    ),
    *wrong("attention_in_a_model.step", step,
        ("past zeroed in place", "it changed its inputs; make new arrays instead", "    return Step", "    past_K.zero_()\n    return Step"),
        ("not causal", "without causal=True a new token sees those that come after i", "causal=True", "causal=False"),
        ("new keys first", "new keys come after the past ones, as their values do", "[past_K, K]", "[K, past_K]"),
        ("new values first", "new values come after the past ones, as their keys do", "[past_V, V]", "[V, past_V]"),
        ("the past alone", "only the past was attended to", "flash_attention(Q, K_all, V_all", "flash_attention(Q, past_K, past_V"),
        ("the new alone", "only the new tokens were attended to", "flash_attention(Q, K_all, V_all", "flash_attention(Q, K, V"),
        ("the cache not returned", "return the longer keys and values", "Step(O, K_all, V_all)", "Step(O, past_K, past_V)"),
        ("the new returned", "only the new keys and values were returned", "Step(O, K_all, V_all)", "Step(O, K, V)"),
        ("torch's is_causal", "torch's is_causal lets query i see keys up to i, counted fro", "flash_attention(Q, K_all, V_all, causal=True)", "torch.nn.functional.scaled_dot_product_attention(Q, K_all, V_all, is_causal=True, enable_gqa=True)"),
        ("wrong dimension", "", "[past_K, K], dim=2", "[past_K, K], dim=1"),
    ),
    *wrong("first_triton_kernel.add", add,
        ("32 bits", "the offsets wrap around", "tl.program_id(0).to(tl.int64) * Bc", "tl.program_id(0) * Bc"),
        ("64 bits after the product", "the offsets wrap around", "tl.program_id(0).to(tl.int64) * Bc", "(tl.program_id(0) * Bc).to(tl.int64)"),
        ("4 for Bc", "", "tl.arange(0, Bc)", "tl.arange(0, 4)"),
        ("4 for Bc in the offset", "", "tl.program_id(0).to(tl.int64) * Bc", "tl.program_id(0).to(tl.int64) * 4"),
        ("inverted within a full block", "each block was inverted by itself", "y + N - 1 - at", "y + tl.program_id(0) * Bc + Bc - 1 - tl.arange(0, Bc)"),
    ),
    *wrong("first_triton_kernel.softmax_row", softmax_row,
        ("32 bits", "the offsets wrap around", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        ("the maximum only beyond 88.5", "", 'tl.where(m == -float("inf"), 0.0, m)', "tl.where(tl.abs(m) < 88.5, 0.0, tl.maximum(m, -1e38))"),
        ("weights e^-80 dropped", "a weight far below the largest was set to 0", "tl.exp(S - m)", "tl.where(S - m < -80, 0.0, tl.exp(S - m))"),
        ("the sum in float16", "", "tl.sum(P, 0)", "tl.sum(P.to(tl.float16), 0).to(tl.float32)"),
    ),
    *wrong("first_triton_kernel.online", online,
        ("32 bits", "the offsets wrap around", "tl.program_id(0).to(tl.int64) * Br", "tl.program_id(0) * Br"),
        ("64 bits after the product", "the offsets wrap around", "tl.program_id(0).to(tl.int64) * Br", "(tl.program_id(0) * Br)", "tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new", "tl.load(x + (rows[:, None] * x_stride + at[None, :]).to(tl.int64), mask=ok, other=-float(\"inf\"))\n        m_new"),
        ("one maximum for the tile", "one maximum for all rows", "tl.max(S, 1)", "tl.max(tl.max(S, 1), 0)"),
        ("m from 0", "0 was put in the place of −∞, at first or in a guard", 'tl.full([Br], -float("inf"), tl.float32)', "tl.zeros([Br], tl.float32)"),
        ("m from -1e9", "a finite number was put in the place of −∞", 'tl.full([Br], -float("inf"), tl.float32)', "tl.full([Br], -1e9, tl.float32)"),
        ("2 for Br", "", "tl.program_id(0).to(tl.int64) * Br + tl.arange(0, Br)", "tl.program_id(0).to(tl.int64) * 2 + tl.arange(0, Br)"),
        ("rescaled where the maximum rises by 0.01", "", "l * tl.exp(m - safe)", "l * tl.where(safe - m > 0.01, tl.exp(m - safe), 1.0)"),
    ),
    *wrong("triton_forward.bounds", bounds,
        ("a key too many in the first", "one key too many", "shift + 1, 0)", "shift + 2, 0)"),
        ("an index for a count", "the last key was dropped", "i * Br + Br + shift, Nk)", "i * Br + Br + shift - 1, Nk)"),
        ("inverted", "the difference is inverted", "Nk - Nq", "Nq - Nk"),
        ("max(shift, 0)", "with fewer keys than queries the difference is negative", "Nk - Nq", "tl.maximum(Nk - Nq, 0)"),
        ("rounded up at whole tiles", "one key too many", "(least // Bc) * Bc", "((least + 1) // Bc) * Bc"),
        ("least by the last key", "", "(least // Bc) * Bc, most", "(tl.minimum(least, Nk - 1) // Bc) * Bc, most"),
    ),
    *wrong("triton_forward.update", update,
        ("rescaled where the maximum rises by 0.01", "the past was rescaled only where the maximum rises much", "alpha = tl.exp2(m_i - safe)", "alpha = tl.where(safe - m_i > 0.01, tl.exp2(m_i - safe), 1.0)"),
        ("rescaled where it rises by 0.001", "", "alpha = tl.exp2(m_i - safe)", "alpha = tl.where(safe - m_i > 0.001, tl.exp2(m_i - safe), 1.0)"),
        ("numpy's product", "@ is for numpy and torch", "tl.dot(P.to(V_j.dtype), V_j)", "(P.to(V_j.dtype) @ V_j)"),
        ("weights 10 below dropped", "a key 12 below, of a large value", "P = tl.exp2(S - safe[:, None])", "P = tl.where(S - safe[:, None] < -15, 0.0, tl.exp2(S - safe[:, None]))"),
        ("a past far below dropped", "", "alpha = tl.exp2(m_i - safe)", "alpha = tl.where(m_i - safe < -15, 0.0, tl.exp2(m_i - safe))"),
        ("P in bfloat16", "", "tl.dot(P.to(V_j.dtype), V_j)", "tl.dot(P.to(tl.bfloat16).to(V_j.dtype), V_j)"),
        ("alpha in float16", "", "alpha = tl.exp2(m_i - safe)", "alpha = tl.exp2(m_i - safe).to(tl.float16).to(tl.float32)"),
        ("scaled in float16", "", "S = S_ij * scale_log2", "S = (S_ij * scale_log2).to(tl.float16).to(tl.float32)"),
    ),
    *wrong("triton_forward.forward", my_forward,
        ("a mask left out a key too early", "the mask was left out where a tile is not whole", "        if causal:\n            keep", "        if causal and start + Bc > i * Br + Nk - Nq + 2:\n            keep"),
        ("a mask left out at the tile's last row", "", "        if causal:\n            keep", "        if causal and start + Bc > (i + 1) * Br + Nk - Nq:\n            keep"),
        ("end of keys masked in the last tile alone, off by one", "", "keep = k_ok[None, :]\n", "keep = (k_ok | (start + Bc <= Nk + 1))[None, :]\n"),
        ("max(0, Nk - Nq) in the mask", "with fewer keys than queries the difference is negative", "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(0, Nk - Nq)"),
        ("max(0, Nk - Nq) in both", "with fewer keys than queries the difference is negative", "rows[:, None] + Nk - Nq", "rows[:, None] + tl.maximum(0, Nk - Nq)", "(i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + tl.maximum(0, Nk - Nq), Nk)"),
        ("numpy's product", "@ is for numpy and torch", "tl.dot(Q_i, K_j.T)", "(Q_i @ K_j.T)"),
        ("V in float32", "a product was computed in float32", "tl.dot(P.to(V_j.dtype), V_j)", "tl.dot(P, V_j.to(tl.float32))"),
        ("scores in float32", "a product was computed in float32", "tl.dot(Q_i, K_j.T)", "tl.dot(Q_i.to(tl.float32), K_j.T.to(tl.float32))"),
        ("weights 10 below dropped", "a key 12 below, of a large value", "P = tl.exp(S - m_safe[:, None])", "P = tl.where(S - m_safe[:, None] < -10, 0.0, tl.exp(S - m_safe[:, None]))"),
        ("tiles 10 below dropped", "a tile of keys far below, of large values", "S = tl.where(keep, S, -float(\"inf\"))", "S = tl.where(keep & (tl.max(S, 1) > m - 10)[:, None], S, -float(\"inf\"))"),
        ("rescaled where the maximum rises by 0.001", "", "alpha = tl.exp(m - m_safe)", "alpha = tl.where(m_safe - m > 0.001, tl.exp(m - m_safe), 1.0)"),
        ("16 for Br", "", "i * Br + tl.arange(0, Br)", "i * 16 + tl.arange(0, Br)"),
        ("empty rows by the mask of the first key", "", "tl.where(l == 0, -float(\"inf\"), m + tl.log(l_safe))", "tl.where(rows + Nk - Nq < 1, -float(\"inf\"), m + tl.log(l_safe))"),
        ("the output in float16", "", "acc / l_safe[:, None], mask", "(acc / l_safe[:, None]).to(tl.float16), mask"),
        ("lse in float16", "", "m + tl.log(l_safe)", "(m + tl.log(l_safe)).to(tl.float16)"),
        ("alpha in float16", "", "alpha = tl.exp(m - m_safe)", "alpha = tl.exp(m - m_safe).to(tl.float16).to(tl.float32)"),
        ("the maximum in float16", "", "m_new = tl.maximum(m, tl.max(S, 1))", "m_new = tl.maximum(m, tl.max(S, 1)).to(tl.float16).to(tl.float32)"),
        ("maximum of the last key of each tile", "", "tl.maximum(m, tl.max(S, 1))", "tl.maximum(m, tl.where(m == -float(\"inf\"), tl.max(S, 1), m))"),
        ("causal for more keys than queries alone", "", "        if causal:\n            keep", "        if causal and Nk >= Nq:\n            keep"),
        ("64 columns of V", "a wide head", "V_j = tl.load(V + keys[:, None] * d + cols[None, :], mask=k_ok[:, None], other=0.0)", "V_j = tl.load(V + keys[:, None] * d + cols[None, :], mask=k_ok[:, None] & (cols < 64)[None, :], other=0.0)"),
        ("K's rows by Br", "", "K + keys[:, None] * d", "K + keys[:, None] * Br"),
    ),
    *wrong("triton_forward.heads", heads,
        ("32 bits", "32 bits are too few", "    shared, b = H // Hk, b.to(tl.int64)\n", "    shared = H // Hk\n"),
        ("64 bits after the product", "32 bits are too few", "    shared, b = H // Hk, b.to(tl.int64)\n    return (b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)", "    shared = H // Hk\n    return ((b * H + h) * (Nq * d)).to(tl.int64), ((b * Hk + h // shared) * (Nk * d)).to(tl.int64)"),
        ("32 bits for the keys", "the offsets wrap around", "(b * Hk + h // shared) * (Nk * d)", "(b * Hk + h // shared).to(tl.int32) * (Nk * d)"),
        ("d forgotten", "rows were counted, not numbers", "(Nq * d)", "Nq", "(Nk * d)", "Nk"),
        ("d forgotten for the keys", "rows were counted, not numbers", "(Nk * d)", "Nk"),
        ("16 for d", "", "(Nq * d)", "(Nq * 16)", "(Nk * d)", "(Nk * 16)"),
        ("the remainder in the group", "not a remainder", "h // shared", "h % shared"),
    ),
    *wrong("triton_backward.delta", delta,
        ("4 for Br", "", "tl.program_id(0) * Br", "tl.program_id(0) * 4"),
        ("256 columns", "", "(c[None, :] < dv)", "(c[None, :] < tl.minimum(dv, 256))"),
        ("the sum in float16", "", "tl.sum(o * g, axis=1)", "tl.sum((o * g).to(tl.float16), axis=1).to(tl.float32)"),
        ("O alone in float32", "", "mask=ok, other=0.0).to(tl.float32)\n    tl", "mask=ok, other=0.0).to(tl.float16).to(tl.float32)\n    tl"),
    ),
    *wrong("triton_backward.add_rows", add_rows,
        ("1/√d for the scale", "1/√d was used for the scale", "    S = ", "    scale = 1 / tl.sqrt(1.0 * Q_i.shape[1])\n    S = "),
        ("1/√d for the scale of dK", "", "tl.dot(tl.trans(dS), Q_i) * scale", "tl.dot(tl.trans(dS), Q_i) / tl.sqrt(1.0 * Q_i.shape[1])"),
        ("numpy's product", "@ is for numpy and torch", "tl.dot(Q_i, tl.trans(K_j))", "(Q_i @ tl.trans(K_j))"),
        ("dS in bfloat16", "", "tl.dot(tl.trans(dS), Q_i)", "tl.dot(tl.trans(dS).to(tl.bfloat16), Q_i.to(tl.bfloat16)).to(tl.float32)"),
        ("lse guarded at -1e4", "", "lse_i[:, None]), 0.0)", "tl.maximum(lse_i, -1e3)[:, None]), 0.0)"),
        ("weights below 1e-3 dropped", "", "    dP =", "    P = tl.where(P < 1e-3, 0.0, P)\n    dP ="),
    ),
    *wrong("triton_backward.dQ", dq,
        ("1/√d for the scale", "1/√d was used for the scale", "    i = tl", "    scale = 1 / tl.sqrt(1.0 * d)\n    i = tl"),
        ("scaled in each tile, the sum too", "the sum so far was scaled again", "acc += tl.dot(p * (tl.dot(g, v.T) - delta_i[:, None]), k)", "acc = (acc + tl.dot(p * (tl.dot(g, v.T) - delta_i[:, None]), k)) * scale", "acc * scale, mask", "acc, mask"),
        ("scaled twice", "the scale was applied twice", "acc * scale", "acc * scale * scale"),
        ("max(0, Nk - Nq) in the mask", "with fewer keys than queries the difference is negative", "r[:, None] + Nk - Nq", "r[:, None] + tl.maximum(0, Nk - Nq)"),
        ("max(0, Nk - Nq) in both", "with fewer keys than queries the difference is negative", "r[:, None] + Nk - Nq", "r[:, None] + tl.maximum(0, Nk - Nq)", "(i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + tl.maximum(0, Nk - Nq), Nk)"),
        ("no other at K", "a masked load without other=", "k = tl.load(K + j[:, None] * d + c[None, :], mask=(j < Nk)[:, None], other=0.0)", "k = tl.load(K + j[:, None] * d + c[None, :], mask=(j < Nk)[:, None])"),
        ("no other at V", "a masked load without other=", "v = tl.load(V + j[:, None] * d + c[None, :], mask=(j < Nk)[:, None], other=0.0)", "v = tl.load(V + j[:, None] * d + c[None, :], mask=(j < Nk)[:, None])"),
        ("numpy's product", "@ is for numpy and torch", "tl.dot(q, k.T)", "(q @ k.T)"),
        ("the end a key too early", "", "(i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + Nk - Nq - 1, Nk)"),
        ("the first row's end", "the loop ended too early", "(i + 1) * Br + Nk - Nq", "i * Br + 1 + Nk - Nq"),
        ("a mask left out a key too early", "", "        if causal:\n            ok", "        if causal and start + Bc > i * Br + Nk - Nq + 2:\n            ok"),
        ("the first four tiles", "many tiles of keys", "range(0, stop, Bc)", "range(0, tl.minimum(stop, 4 * Bc), Bc)"),
        ("the sum in bfloat16", "", "acc * scale", "acc.to(tl.bfloat16).to(tl.float32) * scale"),
        ("16 for Bc", "", "start + tl.arange(0, Bc)", "start + tl.arange(0, 16)"),
    ),
    *wrong("attention_in_a_model.forward", forward,
        ("weights detached", "not all of the gradient comes back", "q = self.q_proj(x)", "q = torch.nn.functional.linear(x, self.q_proj.weight.detach())"),
        ("heads by d_model // 8", "", "self.q_proj(x).view(B, N, self.num_heads, -1)", "self.q_proj(x).view(B, N, self.num_kv_heads, -1, O_HEAD)[..., 0, :]"),
        ("causal where it matters, but for two", "the attention was not told whether it is causal", "causal=self.causal", "causal=self.causal and N < 3"),
    ),
    *wrong("attention_in_a_model.step", step,
        ("causal for one token alone", "without causal=True", "causal=True", "causal=Q.shape[2] < 2"),
        ("the last token's values forgotten", "", "[past_V, V]", "[past_V, V * (Q.shape[2] < 3)]"),
        ("heads repeated in turn", "", "    O = ", "    K_all, V_all = (t.repeat(1, Q.shape[1] // t.shape[1], 1, 1) for t in (K_all, V_all))\n    O = ", "Step(O, K_all, V_all)", "Step(O, torch.cat([past_K, K], dim=2), torch.cat([past_V, V], dim=2))"),
    ),
    *wrong("first_triton_kernel.add", add,
        ("x loaded twice", "a program read its own block more than once", "    a = tl.load(x + at, mask=ok, other=0.0)\n", "    a = tl.load(x + at, mask=ok, other=0.0)\n    a = tl.load(x + at, mask=ok, other=0.0)\n"),
    ),
    *wrong("triton_forward.bounds", bounds,
        ("seen rounded up to tiles", "seen was rounded up to whole tiles", "(least // Bc) * Bc, most", "(least // Bc) * Bc, (most + Bc - 1) // Bc * Bc"),
        ("Nk for seen where the tile is masked", "expected seen", "(least // Bc) * Bc, most", "(least // Bc) * Bc, tl.minimum(Nk, tl.cdiv(most, Bc) * Bc)"),
    ),
    *wrong("triton_forward.update", update,
        ("maximum raised by more than 8 only", "the maximum was raised only where it rises much", "    safe = ", "    m = tl.where(m > m_i + 8.0, m, m_i)\n    safe = "),
    ),
    *wrong("triton_forward.forward", my_forward,
        ("1/√d of the kernel's d", "1/√d was computed from d", "K_j.T) * scale", "K_j.T) * (1.0 / tl.sqrt(d * 1.0))"),
        ("O rounded before it is stored", "O was rounded to half precision before it was stored", "acc / l_safe[:, None]", "(acc / l_safe[:, None]).to(tl.float16)"),
        ("l rounded", "l_i was rounded to half precision", "        m = m_new\n", "        l = l.to(tl.float16).to(tl.float32)\n        m = m_new\n"),
        ("O of blind rows not stored", "rows that see no key were not stored: their O is 0", "acc / l_safe[:, None], mask=q_ok[:, None]", "acc / l_safe[:, None], mask=(q_ok & (l > 0))[:, None]"),
        ("blind rows not stored", "rows that see no key were not stored: their O is 0, their lse −∞", "    l_safe = ", "    q_ok = q_ok & (l > 0)\n    l_safe = "),
        ("every other row not stored", "of your O holds what was there before", "acc / l_safe[:, None], mask=q_ok[:, None]", "acc / l_safe[:, None], mask=(q_ok & (rows % 2 == 0))[:, None]"),
    ),
    *wrong("triton_backward.delta", delta,
        ("last row not stored", "the last row was masked out", "mask=r < N)", "mask=r < N - 1)"),
        ("last column left out", "the last column was masked out", "c[None, :] < dv", "c[None, :] < dv - 1"),
    ),
    *wrong("triton_backward.add_rows", add_rows,
        ("dO for Q in dK", "dK is dSᵀ times Q, not dO", "tl.dot(tl.trans(dS), Q_i)", "tl.dot(tl.trans(dS), dO_i)"),
        ("Q for dO in dV", "dV is Pᵀ times dO, not Q", "tl.dot(tl.trans(P), dO_i)", "tl.dot(tl.trans(P), Q_i)"),
        ("Q for dO in dP", "dP is dO times Vᵀ, not Q", "tl.dot(dO_i, tl.trans(V_j))", "tl.dot(Q_i, tl.trans(V_j))"),
        ("K for V in dP", "dP is dO times Vᵀ, not Kᵀ", "tl.trans(V_j)", "tl.trans(K_j)"),
        ("the tile's maximum for lse", "the tile's own maximum was subtracted", "lse_i[:, None]", "tl.max(S, 1)[:, None]"),
    ),
    *wrong("triton_backward.dQ", dq,
        ("blind rows not stored", "rows that see no key were not stored: their dQ is 0", "acc * scale, mask=real", "acc * scale, mask=real & (lse_i > -float('inf'))[:, None]"),
        ("q for g in dP", "dP is dO times Vᵀ, not Q", "tl.dot(g, v.T)", "tl.dot(q, v.T)"),
    ),
    *wrong("decoding.combine_kernel", combine,
        ("other=0 for lse", "parts past the last must weigh nothing", 'other=-float("inf")', "other=0.0"),
        ("no maximum", "", "tl.exp(part - safe)", "tl.exp(part)", "safe + tl.log", "tl.log"),
        ("no guard", "−∞ − (−∞) is NaN", 'tl.where(m == -float("inf"), 0.0, m)', "m"),
        ("guard maximum(m, -1e4)", "", 'tl.where(m == -float("inf"), 0.0, m)', "tl.maximum(m, -1e4)"),
        ("[rows, S]", "the parts are [S, rows]", "lse_s + s * rows + i", "lse_s + i * S + s"),
        ("no other at O", "", "mask=ok, other=0.0)", "mask=ok)"),
        ("32 columns", "", "(c[None, :] < dv)", "(c[None, :] < tl.minimum(dv, 32))"),
        ("8 parts", "", "tl.exp(part - safe)", "tl.where(s < 8, tl.exp(part - safe), 0.0)"),
        ("an lse of log2", "lse is a natural logarithm", "safe + tl.log(", "safe + tl.log2("),
    ),
    *wrong("triton_forward.bounds", bounds,
        ("one tile masked", "only the last tile was masked", "(least // Bc) * Bc, most", "tl.maximum((most - 1) // Bc * Bc, 0), most"),
        ("first bound at the upper left", "aligned at the upper left, in the first bound", "tl.maximum(i * Br + shift + 1, 0)", "i * Br"),
        ("first bound a tile short", "one tile too many was masked", "(least // Bc) * Bc, most", "tl.maximum(least // Bc * Bc - Bc, 0), most"),
        ("seen rounded down to tiles", "seen was rounded down to whole tiles", "(least // Bc) * Bc, most", "(least // Bc) * Bc, most // Bc * Bc"),
    ),
    *wrong("triton_forward.update", update,
        ("alpha along the columns", "alpha stands for queries", "alpha[:, None]", "alpha[None, :]"),
        ("m along the columns", "m_safe stands for queries", "S - safe[:, None]", "S - safe[None, :]"),
    ),
    *wrong("triton_forward.forward", my_forward,
        ("maximum before the mask", "the maximum was taken before the mask", "        S = tl.where(keep, S, -float(\"inf\"))\n        m_new = tl.maximum(m, tl.max(S, 1))\n", "        m_new = tl.maximum(m, tl.max(S, 1))\n        S = tl.where(keep, S, -float(\"inf\"))\n"),
        ("log2(e) with exp", "log2(e) in the scale goes with tl.exp2", "tl.dot(Q_i, K_j.T) * scale", "tl.dot(Q_i, K_j.T) * scale * 1.4426950408889634"),
        ("V masked by Nq", "Nq and Nk are exchanged", "V_j = tl.load(V + keys[:, None] * d + cols[None, :], mask=k_ok[:, None], other=0.0)", "V_j = tl.load(V + keys[:, None] * d + cols[None, :], mask=(keys < Nq)[:, None], other=0.0)"),
        ("alpha along the columns", "alpha stands for queries", "alpha[:, None]", "alpha[None, :]"),
    ),
    *wrong("triton_forward.heads", heads,
        ("offsets swapped", "the offsets were returned in the wrong order", "(b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)", "(b * Hk + h // shared) * (Nk * d), (b * H + h) * (Nq * d)"),
        ("[B, N, H, d]", "[B, N, H, d] was taken for the order", "(b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)", "b * (Nq * H * d) + h * d, b * (Nk * Hk * d) + h // shared * d"),
    ),
    *wrong("triton_backward.delta", delta,
        ("product of sums", "the sums were multiplied", "tl.sum(o * g, axis=1)", "tl.sum(o, axis=1) * tl.sum(g, axis=1)"),
        ("no row mask at the loads", "the loads do not mask the rows", "(r[:, None] < N) & (c[None, :] < dv)", "(r[:, None] >= 0) & (c[None, :] < dv)"),
        ("stored in the first rows", "every program stored its sums in the first rows", "delta + r,", "delta + tl.arange(0, Br),"),
        ("mask <=", "the mask lets one row too many through", "mask=r < N)", "mask=r <= N)"),
    ),
    *wrong("triton_backward.dQ", dq,
        ("lse as a row", "lse_i stands for queries", "lse_i[:, None]", "lse_i[None, :]"),
        ("V not transposed", "V_j was not transposed", "v.T", "v"),
        ("K masked by Nq", "Nq and Nk are exchanged", "mask=(j < Nk)[:, None], other=0.0)\n        v", "mask=(j < Nq)[:, None], other=0.0)\n        v"),
        ("always causal", "the mask was always causal", "        if causal:\n", "        if True:\n"),
    ),
    *wrong("triton_backward.add_rows", add_rows,
        ("dV of unmasked weights", "P_ij was masked for dS alone", "tl.dot(tl.trans(P), dO_i)", "tl.dot(tl.trans(tl.exp(S - lse_i[:, None])), dO_i)"),
        ("dS of unmasked weights", "P_ij was masked for dV alone", "dS = P *", "dS = tl.exp(S - lse_i[:, None]) *"),
        ("K not transposed", "K_j was not transposed", "tl.trans(K_j)", "K_j"),
    ),
]  # fmt: skip
