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


def launch(kernel, Q, K, V, causal):
    Nq, d = Q.shape
    Q, K, V = Q.contiguous(), K.contiguous(), V.contiguous()
    O = torch.zeros(Nq, d, dtype=torch.float32, device=Q.device)
    lse = O.new_zeros(Nq)
    kernel[(triton.cdiv(Nq, 32),)](Q, K, V, O, lse, Nq, len(K), d**-0.5, d, 32, 32, causal)
    return O, lse


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V, causal, kernels):
        Q, K, V = Q.contiguous(), K.contiguous(), V.contiguous()
        O, lse = kernels.forward(Q, K, V, causal)
        ctx.save_for_backward(Q, K, V, O, lse)
        ctx.rest = causal, kernels
        return O

    @staticmethod
    def backward(ctx, dO):
        Q, K, V, O, lse = ctx.saved_tensors
        (causal, kernels), dO = ctx.rest, dO.contiguous()
        args = Q, K, V, dO, lse, kernels.delta(O, dO), causal
        return kernels.query_gradients(*args), *kernels.key_value_gradients(*args), None, None


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
    *wrong("first_triton_kernel.softmax_row", softmax_row,
        ("+ 1e-6", "a small number was added", "    l = tl.where(l == 0, 1.0, l)\n", "    l = l + 1e-6\n"),
        ("0 / 0", "", "    l = tl.where(l == 0, 1.0, l)\n", ""),
        ("loaded twice", "the numbers are right, but a row was read more than once", "tl.exp(S - m)", "tl.exp(tl.load(x + i * x_stride + at, mask=ok, other=-float(\"inf\")) - m)"),
        ("32 bits", "the offsets wrap around", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        ("weights e^-80 dropped", "a weight far below the largest was set to 0", "tl.exp(S - m)", "tl.where(S - m < -80, 0.0, tl.exp(S - m))"),
        ("clip above 1e37", "", "    m = tl.max", "    S = tl.minimum(S, 1.0e37)\n    m = tl.max"),
        ("no maximum in wide blocks", "", "other=-float(\"inf\"))", "other=-float(\"inf\"))", "l = tl.sum(P, 0)", "l = tl.sum(tl.where(Bc >= 64, tl.exp(S), P), 0)"),
    ),
    *wrong("first_triton_kernel.online", online,
        ("+ 1e-9", "a small number was added", "total = tl.where(l == 0, 1.0, l)", "total = l + 1e-9"),
        ("guard maximum(m, -1e6)", "", "safe = tl.where(m_new == -float(\"inf\"), 0.0, m_new)", "safe = tl.maximum(m_new, -1e6)"),
        ("guard on the block", "", "safe = tl.where(m_new == -float(\"inf\"), 0.0, m_new)", "safe = tl.where(tl.max(S, 1) == -float(\"inf\"), 0.0, m_new)"),
        ("the guarded maximum kept in the first loop", "", "        m = m_new", "        m = safe"),
        ("maximum of the block", "", "tl.maximum(m, tl.max(S, 1))", "tl.max(S, 1)"),
        ("0 / 0", "", "tl.where(l == 0, 1.0, l)", "l"),
        ("three passes", "the numbers are right, but rows were read more than twice", "    for start in range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new", "    for start in range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        m = tl.maximum(m, tl.max(tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\")), 1))\n    for start in range(0, N, Bc):\n        at = start + tl.arange(0, Bc)\n        ok = (rows[:, None] < R) & (at[None, :] < N)\n        S = tl.load(x + rows[:, None] * x_stride + at[None, :], mask=ok, other=-float(\"inf\"))\n        m_new"),
        ("32 bits", "the offsets wrap around", "tl.program_id(0).to(tl.int64) * Br", "tl.program_id(0) * Br"),
        ("one maximum for the tile", "", "tl.max(S, 1)", "tl.max(tl.max(S, 1), 0)"),
        ("m from -1e9", "", "tl.full([Br], -float(\"inf\"), tl.float32)", "tl.full([Br], -1e9, tl.float32)"),
        ("2 for Br", "", "tl.program_id(0).to(tl.int64) * Br + tl.arange(0, Br)", "tl.program_id(0).to(tl.int64) * 2 + tl.arange(0, Br)"),
        ("not rescaled where no row of the tile rises much", "", "l * tl.exp(m - safe)", "l * tl.where(tl.min(tl.exp(m - safe)) > 0.999, 1.0, tl.exp(m - safe))"),
        ("not rescaled where the maxima are equal to 1e-5", "", "l * tl.exp(m - safe)", "l * tl.where(tl.abs(m - safe) <= 1e-5 * tl.abs(safe), 1.0, tl.exp(m - safe))"),
        ("blocks far below the maximum skipped", "", "tl.sum(tl.exp(S - safe[:, None]), 1)", "tl.where(tl.max(S, 1) < safe - 14, 0.0, tl.sum(tl.exp(S - safe[:, None]), 1))"),
        ("sums far below the maximum dropped", "", "l * tl.exp(m - safe)", "tl.where(tl.exp(m - safe) < 1e-8, 0.0, l * tl.exp(m - safe))"),
        ("the maximum frozen after 8 blocks", "", "m_new = tl.maximum(m, tl.max(S, 1))", "m_new = tl.where(start >= 8 * Bc, m, tl.maximum(m, tl.max(S, 1)))"),
    ),
    *wrong("triton_forward.update", update,
        ("guard on the tile", "", "tl.where(m == -float(\"inf\"), 0.0, m)", "tl.where(tl.max(S, 1) == -float(\"inf\"), 0.0, m)"),
        ("P never narrowed", "a product was computed in float32", "tl.dot(P.to(V_j.dtype), V_j)", "tl.dot(P, V_j.to(tl.float32))"),
        ("no guard", "You subtracted −∞ from −∞", "tl.where(m == -float(\"inf\"), 0.0, m)", "m"),
        ("guard -1e10", "", "tl.where(m == -float(\"inf\"), 0.0, m)", "tl.maximum(m, -1.0e10)"),
        ("no rescale where the maximum rises by less than 1e-4", "", "tl.exp2(m_i - safe)", "tl.where(m - m_i < 1e-4, 1.0, tl.exp2(m_i - safe))"),
        ("V at most 60,000", "", "P.to(V_j.dtype), V_j", "P.to(V_j.dtype), tl.minimum(V_j, 60000.0).to(V_j.dtype)"),
        ("the first n keys count, where n are visible", "", "    m = ", "    many = tl.sum((S > -float(\"inf\")).to(tl.int32), 1)\n    S = tl.where(tl.arange(0, S.shape[1])[None, :] < many[:, None], S, -float(\"inf\"))\n    m = "),
        ("not rescaled where no row of the tile rises much", "", "tl.exp2(m_i - safe)", "tl.where(tl.min(tl.exp2(m_i - safe)) > 0.999, 1.0, tl.exp2(m_i - safe))"),
        ("not rescaled where the maxima are equal to 1e-5", "", "tl.exp2(m_i - safe)", "tl.where(tl.abs(m_i - safe) <= 1e-5 * tl.abs(safe), 1.0, tl.exp2(m_i - safe))"),
        ("scale_log2 at most 2", "", "    S = S_ij * scale_log2", "    S = S_ij * tl.minimum(scale_log2, 2.0)"),
    ),
    *wrong("triton_forward.forward", my_forward,
        ("+ 1e-9", "a small number was added", "l_safe = tl.where(l == 0, 1, l)", "l_safe = l + 1e-9"),
        ("one key short where Nk - Nq = 1", "", "(i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + Nk - Nq - 1, Nk)"),
        ("end by Bc", "", "(i + 1) * Br + Nk", "(i + 1) * Bc + Nk"),
        ("rows by Bc", "", "i * Br + tl.arange(0, Br)", "i * Bc + tl.arange(0, Br)"),
        ("nothing skipped", "the numbers are right, but it loaded", "tl.minimum((i + 1) * Br + Nk - Nq, Nk)", "Nk"),
        ("no guard", "You subtracted −∞ from −∞", "tl.where(m_new == -float(\"inf\"), 0, m_new)", "m_new"),
        ("a mask left out a key too early", "", "        if causal:\n            keep", "        if causal and start + Bc > i * Br + Nk - Nq + 2:\n            keep"),
        ("end of keys masked in the last tile alone, off by one", "", "keep = k_ok[None, :]\n", "keep = (k_ok | (start + Bc <= Nk + 1))[None, :]\n"),
        ("V in float32", "a product was computed in float32", "tl.dot(P.to(V_j.dtype), V_j)", "tl.dot(P, V_j.to(tl.float32))"),
        ("16 for Br", "", "i * Br + tl.arange(0, Br)", "i * 16 + tl.arange(0, Br)"),
        ("keys past the end recognised by a score of 0 in the last tile", "", "S = tl.where(keep, S,", "S = tl.where(keep & ((S != 0.0) | (start + Bc <= Nk)), S,"),
        ("guard -1e10", "", "tl.where(m_new == -float(\"inf\"), 0, m_new)", "tl.maximum(m_new, -1.0e10)"),
        ("clip above 1e8", "", "        S = tl.where(keep", "        S = tl.minimum(S, 1.0e8)\n        S = tl.where(keep"),
        ("guards only where causal", "", "    l_safe = tl.where(l == 0, 1, l)\n", "    l_safe = l\n    if causal:\n        l_safe = tl.where(l == 0, 1, l)\n"),
        ("O at most 60,000", "", "acc / l_safe[:, None]", "tl.minimum(acc / l_safe[:, None], 60000.0)"),
        ("weights below 1e-8 set to 0", "", "        l = ", "        P = tl.where(P < 1e-8, 0.0, P)\n        l = "),
        ("the past dropped where it is far below", "", "        alpha = tl.exp(m - m_safe)", "        alpha = tl.where(m < m_safe - 18, 0.0, tl.exp(m - m_safe))"),
        ("O not rescaled where no row rises much", "", "acc * alpha[:, None]", "acc * tl.where(tl.min(alpha) > 0.999, 1.0, alpha)[:, None]"),
        ("l not rescaled where no row rises much", "", "alpha * l", "tl.where(tl.min(alpha) > 0.9997, 1.0, alpha) * l"),
        ("not rescaled where the maxima are equal to 1e-4", "", "        alpha = tl.exp(m - m_safe)", "        alpha = tl.where(tl.abs(m - m_safe) <= 1e-4 * tl.abs(m_safe), 1.0, tl.exp(m - m_safe))"),
    ),
    *wrong("triton_backward.delta", delta,
        ("64 columns", "", "(c[None, :] < dv)", "(c[None, :] < tl.minimum(dv, 64))"),
        ("in float16", "", "o = tl.load(O + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(tl.float32)", "o = tl.load(O + r[:, None] * dv + c[None, :], mask=ok, other=0.0)", "g = tl.load(dO + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(tl.float32)", "g = tl.load(dO + r[:, None] * dv + c[None, :], mask=ok, other=0.0)"),
        ("below 1e-8 set to 0", "", "tl.sum(o * g, axis=1)", "tl.where(tl.abs(tl.sum(o * g, axis=1)) < 1e-8, 0.0, tl.sum(o * g, axis=1))"),
        ("atomic", "", "    tl.store(delta + r, tl.sum(o * g, axis=1), mask=r < N)", "    tl.store(delta + r, 0.0 * tl.sum(o * g, axis=1), mask=r < N)\n    tl.atomic_add(delta + r, tl.sum(o * g, axis=1), mask=r < N)"),
        ("program beyond 8", "", "tl.program_id(0) * Br", "tl.minimum(tl.program_id(0), 8) * Br"),
        ("dO narrowed to O's dtype", "", "g = tl.load(dO + r[:, None] * dv + c[None, :], mask=ok, other=0.0)", "g = tl.load(dO + r[:, None] * dv + c[None, :], mask=ok, other=0.0).to(O.dtype.element_ty)"),
        ("zeros not stored", "", "mask=r < N", "mask=(r < N) & (tl.sum(o * g, axis=1) != 0)"),
    ),
    *wrong("triton_forward.heads", heads,
        ("h % Hk", "let every Hk-th query head share its keys", "h // shared", "h % Hk"),
        ("32 bits", "multiplied in 32 bits", "    shared, b = H // Hk, b.to(tl.int64)\n", "    shared = H // Hk\n"),
    ),
    *wrong("triton_backward.dQ", dq,
        ("absent keys not masked", "", "real & (j < Nk)[None, :]", "real & (j >= 0)[None, :]"),
        ("dO loaded in the loop", "the numbers are right, but it loaded", "        ok = real & ", "        g = tl.load(dO + r[:, None] * d + c[None, :], mask=real, other=0.0)\n        ok = real & "),
        ("Bc for Br", "", "(i + 1) * Br", "(i + 1) * Bc"),
        ("max(0, Nk - Nq) in both", "", "r[:, None] + Nk - Nq", "r[:, None] + tl.maximum(0, Nk - Nq)", "(i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + tl.maximum(0, Nk - Nq), Nk)"),
        ("the end a key too early", "", "(i + 1) * Br + Nk - Nq, Nk)", "(i + 1) * Br + Nk - Nq - 1, Nk)"),
        ("a mask left out a key too early", "", "        if causal:\n            ok", "        if causal and start + Bc > i * Br + Nk - Nq + 2:\n            ok"),
        ("rows that see no key recognised by delta = 0", "", "tl.where(ok, tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)", "tl.where(ok & (delta_i != 0.0)[:, None], tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)"),
        ("exponent floored at -20", "", "tl.where(ok, tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)", "tl.where(ok, tl.exp(tl.maximum(tl.dot(q, k.T) * scale - lse_i[:, None], -20.0)), 0.0)"),
        ("nothing stored where a tile sees no key", "", "    for start in", "    if stop <= 0:\n        return\n    for start in"),
        ("dS clipped at 1000", "", "        acc += tl.dot(p * (tl.dot(g, v.T) - delta_i[:, None]), k)", "        ds = p * (tl.dot(g, v.T) - delta_i[:, None])\n        acc += tl.dot(tl.minimum(tl.maximum(ds, -1000.0), 1000.0), k)"),
        ("scale at most 1", "", "acc * scale", "acc * tl.minimum(scale, 1.0)"),
        ("1 where there is one key", "", "acc * scale", "acc * scale + tl.where(Nk == 1, 1.0, 0.0)"),
    ),
    *wrong("triton_backward.function", Attention,
        ("Q as it came", "its method contiguous() returns a copy", "Q.contiguous(), K.contiguous()", "Q, K.contiguous()"),
        ("the mask and the launches in the class", "a second call before the backward pass", "ctx.rest = causal, kernels\n        return O\n\n    @staticmethod\n    def backward(ctx, dO):\n        Q, K, V, O, lse = ctx.saved_tensors\n        (causal, kernels), dO = ctx.rest", "Attention.rest = causal, kernels\n        return O\n\n    @staticmethod\n    def backward(ctx, dO):\n        Q, K, V, O, lse = ctx.saved_tensors\n        (causal, kernels), dO = Attention.rest"),
        ("lse in an attribute", "a tensor is an attribute of ctx", "V, O, lse)\n        ctx.rest = causal, kernels\n        return O\n\n    @staticmethod\n    def backward(ctx, dO):\n        Q, K, V, O, lse = ctx.saved_tensors", "V, O)\n        ctx.lse, ctx.rest = lse, (causal, kernels)\n        return O\n\n    @staticmethod\n    def backward(ctx, dO):\n        (Q, K, V, O), lse = ctx.saved_tensors, ctx.lse"),
    ),
    *wrong("triton_forward.launch", launch,
        ("one program too many", "1 of them had none", "triton.cdiv(Nq, 32)", "Nq // 32 + 1"),
        ("no launch", "not those that `kernel` stores", "    kernel[(triton.cdiv(Nq, 32),)](Q, K, V, O, lse, Nq, len(K), d**-0.5, d, 32, 32, causal)\n", "    S = (Q.float() @ K.float().T) * d**-0.5\n    S = S.masked_fill(torch.ones_like(S).triu(1 + len(K) - Nq) > 0, -torch.inf) if causal else S\n    O, lse = S.softmax(1).nan_to_num() @ V.float(), S.logsumexp(1)\n"),
    ),
    *wrong("attention_in_a_model.forward", forward,
        ("detached", "the numbers are right, but not all of the gradient comes bac", "transpose(1, 2).reshape(B, N, -1)", "detach().transpose(1, 2).reshape(B, N, -1)"),
        ("heads repeated in turn", "", "    O = ", "    k, v = (t.repeat(1, self.num_heads // self.num_kv_heads, 1, 1) for t in (k, v))\n    O = "),
        ("not its own attention", "Call self.attention", "self.attention(", "flash_attention("),
        ("each query head with keys of its own", "self.attention got 4 heads of K and V", "    O = ", "    k, v = (t.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for t in (k, v))\n    O = "),
    ),
    *wrong("first_triton_kernel.add", add,
        ("32 bits", "the offsets wrap around", "tl.program_id(0).to(tl.int64) * Bc", "tl.program_id(0) * Bc"),
        ("x loaded twice", "elements were loaded more than once", "    a = tl.load(x + at, mask=ok, other=0.0)\n", "    a = tl.load(x + at, mask=ok, other=0.0)\n    a = tl.load(x + at, mask=ok, other=0.0)\n"),
        ("nothing stored by wide blocks", "", "    tl.store(z + at, a + b, mask=ok)", "    tl.store(z + at, a + b, mask=ok & (Bc < 32))"),
        ("at most 1e4", "", "a + b", "tl.minimum(a + b, 1e4)"),
        ("small sums to 0", "", "a + b", "tl.where(tl.abs(a + b) < 1e-10, 0.0, a + b)"),
        ("0 where x is 0", "", "a + b", "tl.where(a == 0, 0.0, a + b)"),
        ("programs beyond 9 as the 9th", "", "tl.program_id(0).to(tl.int64)", "tl.minimum(tl.program_id(0), 8).to(tl.int64)"),
    ),
    *wrong("triton_forward.bounds", bounds,
        ("rounded up at whole tiles", "", "(least // Bc) * Bc", "((least + 1) // Bc) * Bc"),
        ("least by the last key", "", "(least // Bc) * Bc, most", "(tl.minimum(least, Nk - 1) // Bc) * Bc, most"),
        ("shift at least -12", "", "shift = Nk - Nq", "shift = tl.maximum(Nk - Nq, -12)"),
    ),
    *wrong("attention_in_a_model.step", step,
        ("the last token's values forgotten", "", "[past_V, V]", "[past_V, V * (Q.shape[2] < 3)]"),
        ("heads repeated in turn", "", "    O = ", "    K_all, V_all = (t.repeat(1, Q.shape[1] // t.shape[1], 1, 1) for t in (K_all, V_all))\n    O = ", "Step(O, K_all, V_all)", "Step(O, torch.cat([past_K, K], dim=2), torch.cat([past_V, V], dim=2))"),
    ),
    *wrong("decoding.combine_kernel", combine,
        ("no guard", "You subtracted −∞ from −∞", "tl.where(m == -float(\"inf\"), 0.0, m)", "m"),
        ("guard maximum(m, -1e4)", "", "tl.where(m == -float(\"inf\"), 0.0, m)", "tl.maximum(m, -1e4)"),
        ("weights below 1e-6 set to 0", "it is small, but many of them", "tl.exp(part - safe)", "tl.where(part - safe < -14, 0.0, tl.exp(part - safe))"),
        ("the rows from the last to the first", "not in the order of their tiles", "i, s, c = tl.program_id(0),", "i, s, c = rows - 1 - tl.program_id(0),"),
        ("8 parts", "", "tl.exp(part - safe)", "tl.where(s < 8, tl.exp(part - safe), 0.0)"),
    ),
    *wrong("triton_backward.add_rows", add_rows,
        ("exponent floored at -20", "", "tl.exp(S - lse_i[:, None])", "tl.exp(tl.maximum(S - lse_i[:, None], -20.0))"),
        ("lse -inf as 0, masked by a product", "", "tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0)", "seen * tl.exp(S - tl.where(lse_i == -float(\"inf\"), 0.0, lse_i)[:, None])"),
        ("rows that see no key recognised by delta = 0", "", "(dP - delta_i[:, None])", "tl.where(delta_i[:, None] == 0.0, 0.0, dP - delta_i[:, None])"),
        ("dS clipped at 1000", "", "    dV_j = ", "    dS = tl.minimum(tl.maximum(dS, -1000.0), 1000.0)\n    dV_j = "),
        ("dP = 0 where lse > 1e4", "", "    dS = ", "    dP = tl.where(lse_i[:, None] > 1.0e4, 0.0, dP)\n    dS = "),
        ("scale at most 1", "", "tl.dot(tl.trans(dS), Q_i) * scale", "tl.dot(tl.trans(dS), Q_i) * tl.minimum(scale, 1.0)"),
        ("the first n keys count, where n are visible", "", "tl.where(seen, ", "tl.where(tl.arange(0, K_j.shape[0])[None, :] < tl.sum(seen.to(tl.int32), 1)[:, None], "),
        ("another factor for a tile that is no square", "", "tl.trans(P), dO_i)", "tl.trans(P), dO_i) * (Q_i.shape[0] / K_j.shape[0])"),
    ),
]  # fmt: skip
