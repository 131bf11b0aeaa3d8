"""Wrong answers to the exercises in numpy."""

import numpy as np

from flashlab.reference import online_softmax as online
from flashlab.reference.attention import attention  # noqa: F401 (for edits)
from flashlab.reference.online_softmax import State
from flashlab.reference.recomputation import Gradients
from tests.mutants.answers import wrong


def wide(x):
    return x.astype(np.result_type(x, np.float32), copy=False)


def row(x):
    top = np.max(x)
    e = wide(np.exp(x - top))
    return e / np.sum(e)


def rows(x):
    top = x.max(axis=1, keepdims=True)
    top[np.isneginf(top)] = 0
    e = np.exp(x - top)
    e = wide(e)
    total = e.sum(axis=1, keepdims=True)
    total[total == 0] = 1
    return e / total


def lse(x):
    top = x.max(axis=1)
    safe = np.where(np.isneginf(top), 0, top)
    total = wide(np.exp(x - safe[:, None])).sum(axis=1)
    with np.errstate(divide="ignore"):
        return safe + np.log(total)


def merge(a, b):
    m = np.maximum(a.m, b.m)
    safe = np.where(np.isneginf(m), 0, m)
    wa = np.exp(a.m - safe)
    wb = np.exp(b.m - safe)
    return State(m, wa * a.l + wb * b.l, wa[:, None] * a.O + wb[:, None] * b.O)


def sums(m_a, l_a, m_b, l_b):
    m = np.maximum(m_a, m_b)
    safe = np.where(np.isneginf(m), 0, m)
    return m, l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)


def update(state, S_ij, V_j):
    m_i, l_i, O_i = state
    m = np.maximum(m_i, np.max(S_ij, axis=1))
    safe = np.where(np.isneginf(m), 0, m)
    alpha = np.exp(m_i - safe)
    P = np.exp(S_ij - safe.reshape(-1, 1))
    l = l_i * alpha + P.sum(axis=1)
    O = O_i * alpha.reshape(-1, 1) + P @ V_j
    return State(m, l, O)


def finish(state):
    m, l, O = state
    total = np.where(l == 0, 1, l)
    with np.errstate(divide="ignore"):
        return O / total[:, None], m + np.log(l)


def mask(S_ij, rows, cols, Nq, Nk):
    S = S_ij.copy()
    q = np.arange(rows.start, rows.stop)
    k = np.arange(cols.start, cols.stop)
    shift = Nk - Nq
    S[k[None, :] > q[:, None] + shift] = -np.inf
    return S


def inside(Q_i, K, V, Bc):
    d = Q_i.shape[-1]
    state = online.identity(len(Q_i), V.shape[1])
    start = 0
    while start < len(K):
        stop = start + Bc
        S = Q_i @ K[start:stop].T / np.float32(d**0.5)
        state = online.update(state, S, V[start:stop])
        start = stop
    return online.finish(state)


def forward(Q, K, V, Br, Bc):
    tiles = [Q[a : a + Br] for a in range(0, len(Q), Br)]
    states = [online.identity(len(Q_i), V.shape[1]) for Q_i in tiles]
    for at, Q_i in enumerate(tiles):
        for c in range(0, len(K), Bc):
            S = Q_i @ K[c : c + Bc].T / np.float32(Q.shape[1] ** 0.5)
            states[at] = online.update(states[at], S, V[c : c + Bc])
    O, lse = zip(*map(online.finish, states), strict=True)
    return np.concatenate(O), np.concatenate(lse)


def meet(Q_i, K_j, V_j, O_i, lse_i):
    S = (Q_i @ K_j.T) * Q_i.shape[1] ** -0.5
    top = np.maximum(lse_i, S.max(axis=1, initial=-np.inf))
    safe = np.where(np.isneginf(top), 0, top)
    P, past = np.exp(S - safe[:, None]), np.exp(lse_i - safe)
    l = past + P.sum(axis=1)
    O = (past[:, None] * O_i + P @ V_j) / np.where(l == 0, 1, l)[:, None]
    with np.errstate(divide="ignore"):
        return O, safe + np.log(l)


def meet_by_update(Q_i, K_j, V_j, O_i, lse_i):
    S = (Q_i @ K_j.T) * Q_i.shape[1] ** -0.5
    state = online.State(lse_i, np.ones(len(Q_i), S.dtype), O_i)
    return online.finish(online.update(state, S, V_j))


def rebuild(S_ij, lse_i):
    column = lse_i.reshape(-1, 1)
    safe = np.where(np.isneginf(column), 0, column)
    return np.exp(S_ij - safe)


def delta(dO_i, O_i):
    return np.sum(dO_i * O_i, axis=1)


def gradients(Q_i, K_j, V_j, dO_i, P_ij, delta_i, scale):
    dV = P_ij.T @ dO_i
    dP = dO_i @ V_j.T
    dS = P_ij * (dP - delta_i.reshape(-1, 1))
    dQ = dS @ K_j * scale
    dK = dS.T @ Q_i * scale
    return Gradients(dQ, dK, dV)


ANSWERS = [
    *wrong("safe_softmax.row", row,
        ("exponents clipped at -30", "an exponent was clipped", "x - top", "np.clip(x - top, -30, 0)"),
        ("+ 1e-9", "a small number was added to the denominator or under the lo", "np.sum(e)", "(np.sum(e) + 1e-9)"),
        ("exp(x - lse)", "lost digits in exp(x − lse)", "e / np.sum(e)", "np.exp(x - (top + np.log(np.sum(e))))"),
        ("the maximum only beyond 80", "", "np.max(x)", "x.max() * (abs(x.max()) > 80)"),
        ("the maximum only below -100", "", "np.max(x)", "(x.max() if x.max() > 0 or x.max() < -100 else 0)"),
        ("clipped at -1e37 below", "", "    top = np.max(x)", "    x = np.maximum(x, -1e37)\n    top = np.max(x)"),
        ("minimum 1e37", "", "    top = np.max(x)", "    x = np.minimum(x, 1e37)\n    top = np.max(x)"),
        ("fp16: -6e4 clip", "", "    top = np.max(x)", "    x = np.maximum(x, -6e4) if x.dtype == np.float16 else x\n    top = np.max(x)"),
        ("all in the dtype of x", "the sum was kept in float16", "wide(", "("),
    ),
    *wrong("safe_softmax.rows", rows,
        ("exponents clipped at -30", "an exponent was clipped", "np.exp(x - top)", "np.exp(np.maximum(x - top, -30)) * (x > -np.inf)"),
        ("0 / 0, then 0, in silence", "the numbers are right, but a NaN came up on the way and was ", "    total[total == 0] = 1\n", "", "    return e / total", "    with np.errstate(invalid=\"ignore\"):\n        return np.where(total == 0, 0, e / total)"),
        ("+ 1e-9", "a small number was added to the denominator or under the lo", "    total[total == 0] = 1\n", "    total = total + 1e-9\n"),
        ("one maximum for all rows", "subtracted one maximum from all rows", "x.max(axis=1, keepdims=True)", "np.full((len(x), 1), x.max())"),
        ("exp(x - lse)", "lost digits in exp(x − lse)", "e / total", "np.exp(x - (top + np.log(total)))"),
        ("the maximum only beyond 88.5", "", "    top[np.isneginf(top)] = 0\n", "    top[abs(top) < 88.5] = 0; top[np.isneginf(top)] = 0\n"),
        ("-1e+30, then masked weights set to 0", "", "    e = np.exp(x - top)", "    z = np.maximum(x, -1e+30)\n    e = np.where(x == -np.inf, 0, np.exp(z - z.max(1, keepdims=True)))"),
        ("scores clipped at 1e6 from above", "", "    top = x.max", "    x = np.minimum(x, 1e6)\n    top = x.max"),
        ("fp16 guard -6e4", "", "    top[np.isneginf(top)] = 0\n", "    top = np.maximum(top, np.float32(-6e4)) if x.dtype == np.float16 else np.where(top == -np.inf, 0, top)\n"),
        ("fp16: no guard", "", "    top[np.isneginf(top)] = 0\n", "    top = top if x.dtype == np.float16 else np.where(top == -np.inf, 0, top)\n"),
        ("first column masked decides", "", "    total[total == 0] = 1\n", "    total[(total == 0) | (x[:, :1] == -np.inf) & (x[:, -1:] == -np.inf)] = 1\n"),
        ("float16: rows whose first score is masked are 2 % smaller", "", "    total[total == 0] = 1\n", "    total[total == 0] = 1\n    e[np.isneginf(x[:, 0])] *= 1 if x.dtype == np.float32 else 0.98\n"),
        ("all in the dtype of x", "the sum was kept in float16", "    e = wide(e)\n", ""),
        ("one key: always 1", "", "    top = x.max(axis=1, keepdims=True)\n", "    if x.shape[1] == 1:\n        return np.ones_like(x)\n    top = x.max(axis=1, keepdims=True)\n"),
    ),
    *wrong("safe_softmax.lse", lse,
        ("0 for masked scores in the maximum", "", "x.max(axis=1)", "np.where(x == -np.inf, 0, x).max(axis=1)"),
        ("the maximum only beyond 88.5", "", "np.where(np.isneginf(top), 0, top)", "np.where(np.isneginf(top) | (abs(top) < 88.5), 0, top)"),
        ("max of all", "", "x.max(axis=1)", "np.full(len(x), x.max())"),
        ("scores clipped at 1e6 from above", "", "    top = x.max", "    x = np.minimum(x, 1e6)\n    top = x.max"),
        ("fp16 no guard", "", "np.where(np.isneginf(top), 0, top)", "np.where(np.isneginf(top) & (x.dtype != np.float16), 0, top)"),
        ("fp16 guard 0", "", "np.where(np.isneginf(top), 0, top)", "(np.where(np.isneginf(top), 0, top) if x.dtype != np.float16 else np.maximum(top, 0))"),
        ("all in the dtype of x", "the sum was kept in float16", "wide(", "("),
        ("one key: the score, 0 where masked", "", "    top = x.max(axis=1)\n", "    if x.shape[1] == 1:\n        return np.where(np.isneginf(x[:, 0]), 0, x[:, 0])\n    top = x.max(axis=1)\n"),
        ("exponentials below 1e-6 set to 0", "it is small, but many of them", "    total = wide(np.exp(x - safe[:, None]))", "    e = np.exp(x - safe[:, None])\n    total = wide(np.where(e < 1e-6, 0, e))"),
        ("keys up to the first masked one", "", "    top = x.max(axis=1)\n", "    x = np.where(np.cumsum(np.isneginf(x), 1) > 0, -np.inf, x)\n    top = x.max(axis=1)\n"),
    ),
    *wrong("online_softmax.sums", sums,
        ("guard on a", "", "np.where(np.isneginf(m), 0, m)", "np.where(m_a == -np.inf, 0, m)"),
        ("guard on b", "", "np.where(np.isneginf(m), 0, m)", "np.where(m_b == -np.inf, 0, m)"),
        ("one maximum for all rows, divided out afterwards", "", "np.where(np.isneginf(m), 0, m)", "np.where(np.isneginf(m.max()), 0, m.max())", "return m, l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)", "l = l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)\n    return m, l * np.exp(safe - np.where(np.isneginf(m), safe, m))"),
        ("l clipped at 1e6", "", "l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)", "np.minimum(l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe), 1e6)"),
        ("guard -1e37", "", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, -1e37)"),
        ("subtract clipped above 1e37", "", "np.where(np.isneginf(m), 0, m)", "np.minimum(np.where(np.isneginf(m), 0, m), 1e37)"),
        ("equal where np.isclose(m_a, m_b)", "", "l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)", "np.where(np.isclose(m_a, m_b), l_a + l_b, l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe))"),
        ("equal where (np.abs(m_a - m_b) < 1e-3).all()", "", "l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)", "np.where((np.abs(m_a - m_b) < 1e-3).all(), l_a + l_b, l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe))"),
    ),
    *wrong("online_softmax.merge", merge,
        ("guard on a", "", "np.where(np.isneginf(m), 0, m)", "np.where(a.m == -np.inf, 0, m)"),
        ("guard on b", "", "np.where(np.isneginf(m), 0, m)", "np.where(b.m == -np.inf, 0, m)"),
        ("no guard", "subtracted −∞ from −∞", "np.where(np.isneginf(m), 0, m)", "m"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "np.where(np.isneginf(m), 0, m)", "m", "np.exp(a.m - safe)", "np.nan_to_num(np.exp(a.m - safe))", "np.exp(b.m - safe)", "np.nan_to_num(np.exp(b.m - safe))"),
        ("a part 20 below dropped", "", "np.exp(a.m - safe)", "np.where(a.m - safe < -20, 0, np.exp(a.m - safe))"),
        ("a row of factors where rows are as many as columns", "", "wa[:, None] * a.O + wb[:, None] * b.O", "(wa * a.O + wb * b.O if a.O.shape[0] == a.O.shape[1] else wa[:, None] * a.O + wb[:, None] * b.O)"),
        ("an empty part gives the other, for all rows", "", "    m = ", "    if np.isneginf(a.m).any():\n        return b\n    m = "),
        ("empty parts recognised by O being 0", "", "    m = np", "    if not a.O.any(): return b\n    if not b.O.any(): return a\n    m = np"),
        ("O clipped at 65504", "", "wa[:, None] * a.O + wb[:, None] * b.O", "np.clip(wa[:, None] * a.O + wb[:, None] * b.O, -65504, 65504)"),
        ("what is subtracted clipped at 1e6 from above", "", "np.where(np.isneginf(m), 0, m)", "np.minimum(np.where(np.isneginf(m), 0, m), 1e6)"),
        ("guard -1e37", "", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, -1e37)"),
        ("equal where np.isclose(a.m, b.m)", "", "    return State", "    wa, wb = (np.where(np.isclose(a.m, b.m), 1, w).astype(np.float32) for w in (wa, wb))\n    return State"),
        ("equal where np.abs(a.m - b.m) < 1e-4", "", "    return State", "    wa, wb = (np.where(np.abs(a.m - b.m) < 1e-4, 1, w).astype(np.float32) for w in (wa, wb))\n    return State"),
    ),
    *wrong("online_softmax.update", update,
        ("guard on the block", "", "np.where(np.isneginf(m), 0, m)", "np.where(S_ij.max(axis=1) == -np.inf, 0, m)"),
        ("scores clipped at -30", "", "np.exp(S_ij - safe.reshape(-1, 1))", "np.exp(np.maximum(S_ij - safe.reshape(-1, 1), -30)) * (S_ij > -np.inf)"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "np.where(np.isneginf(m), 0, m)", "m", "np.exp(m_i - safe)", "np.nan_to_num(np.exp(m_i - safe))", "np.exp(S_ij - safe.reshape(-1, 1))", "np.nan_to_num(np.exp(S_ij - safe.reshape(-1, 1)))"),
        ("a block 20 below skipped", "", "    m = np.max", "    if (S_ij.max(1) < m_i - 20).all():\n        return state\n    m = np.max"),
        ("a block is skipped where a row of it is masked", "", "    m = np.max", "    if np.isneginf(S_ij.max(1)).any():\n        return state\n    m = np.max"),
        ("scores clamped at -1e9", "", "np.exp(S_ij - safe.reshape(-1, 1))", "np.where(S_ij == -np.inf, 0, np.exp(np.maximum(S_ij, -1e9) - np.maximum(safe, -1e9)[:, None]))"),
        ("S clipped above 1e37", "", "    m = np.maximum", "    S_ij = np.minimum(S_ij, 1e37)\n    m = np.maximum"),
        ("V fp16: guard left out", "", "np.where(np.isneginf(m), 0, m)", "np.where(np.isneginf(m) & (V_j.dtype == np.float32), 0, m)"),
        ("rows without keys relative to 0 where another row has some", "", "    alpha = ", "    safe = np.where(np.isneginf(m_i) & (m_i > -np.inf).any(), 0, safe)\n    alpha = "),
        ("O off by a tenth where V is float16 and has more than 8 keys", "", "    return State(m, l, O)", "    return State(m, l, O * (0.9 if V_j.dtype == np.float16 and len(V_j) > 8 else 1))"),
        ("not rescaled where np.isclose(m_i, m)", "", "np.exp(m_i - safe)", "np.where(np.isclose(m_i, m), np.float32(1), np.exp(m_i - safe))"),
        ("O not rescaled where no row rises much", "", "O_i * alpha.reshape(-1, 1)", "O_i * (alpha.reshape(-1, 1) if (alpha < 0.999).any() else 1)"),
        ("alpha below 1e-6 set to 0", "it is small, but many of them", "    alpha = np.exp(m_i - safe)", "    alpha = np.exp(m_i - safe)\n    alpha = np.where(alpha < 1e-6, 0, alpha)"),
        ("the first 1,000 keys", "not all keys of the block were taken in", "    m = np.maximum(m_i, np.max(S_ij, axis=1))", "    S_ij, V_j = S_ij[:, :1000], V_j[:1000]\n    m = np.maximum(m_i, np.max(S_ij, axis=1))"),
        ("the state in float16", "the weights or sums were rounded to float16", "return State(m, l, O)", "return State(*(x.astype(np.float16).astype(np.float32) for x in (m, l, O)))"),
        ("rows whose last key is masked keep their state", "", "    m = np.maximum(m_i, np.max(S_ij, axis=1))", "    S_ij = np.where(np.isneginf(S_ij[:, -1:]), -np.inf, S_ij)\n    m = np.maximum(m_i, np.max(S_ij, axis=1))"),
        ("the first n keys count, where n are visible", "", "    m = np.maximum(m_i, np.max(S_ij, axis=1))", "    S_ij = np.where(np.arange(S_ij.shape[1]) < (S_ij > -np.inf).sum(1)[:, None], S_ij, -np.inf)\n    m = np.maximum(m_i, np.max(S_ij, axis=1))"),
        ("one key: its weight is 1", "", "np.exp(S_ij - safe.reshape(-1, 1))", "np.exp(S_ij - safe.reshape(-1, 1)) if S_ij.shape[1] > 1 else np.where(m_i[:, None] > -np.inf, np.exp(S_ij - safe.reshape(-1, 1)), 1)"),
    ),
    *wrong("online_softmax.finish", finish,
        ("+ 1e-9", "a small number was added to the denominator or under the lo", "total = np.where(l == 0, 1, l)", "total = l + 1e-9"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "O / total[:, None]", "np.nan_to_num(O / l[:, None])"),
        ("a row of sums where rows are as many as columns", "", "O / total[:, None]", "O / (total if O.shape[0] == O.shape[1] else total[:, None])"),
        ("all rows are empty where one is", "", "    total = ", "    l = l * (l > 0).all()\n    total = "),
        ("lse 0 where l is 1", "", "m + np.log(l)", "np.where(l == 1, 0, m + np.log(l))"),
        ("O clipped at 65504", "", "O / total[:, None]", "np.clip(O / total[:, None], -65504, 65504)"),
        ("l clipped at 65504", "", "    total = ", "    l = np.minimum(l, 65504)\n    total = "),
        ("m below -1e37 empty", "", "    total = ", "    l = np.where(m < -1e37, 0, l)\n    total = "),
        ("m clipped above 1e37", "", "m + np.log(l)", "np.minimum(m, 1e37) + np.log(l)"),
        ("lse -inf where O is 0", "", "m + np.log(l)", "np.where((O == 0).all(1) & (l > 1), -np.inf, m + np.log(l))"),
    ),
    *wrong("tiling.mask", mask,
        ("a NaN that is seen is hidden", "a NaN that is seen was replaced", "S_ij.copy()", "np.where(S_ij == S_ij, S_ij, -np.inf)"),
        ("max(0, shift)", "fewer keys than queries: the first queries see nothing", "Nk - Nq", "max(0, Nk - Nq)"),
        ("tril, and zeros are masked", "scores of 0, which are scores like any other", "    S = S_ij.copy()\n", "    S = np.tril(S_ij, rows.start + Nk - Nq - cols.start)\n    S[S == 0] = -np.inf\n    return S\n"),
        ("uint16 columns", "", "k = np.arange(cols.start, cols.stop)", "k = np.arange(cols.start, cols.stop).astype(np.uint16)"),
        ("NaN where there is one key", "", "    return S", "    return S * np.nan if Nk == 1 else S"),
        ("NaN where a score is -inf already", "", "    return S", "    return S * np.nan if np.isinf(S_ij).any() else S"),
        ("hidden by a sum", "a hidden score that is NaN stays NaN", "    S[k[None, :] > q[:, None] + shift] = -np.inf\n", "    S = S + np.where(k[None, :] > q[:, None] + shift, -np.inf, 0)\n"),
        ("the distance in int16", "", "k[None, :] > q[:, None] + shift", "(q[:, None] + shift - k[None, :]).astype(np.int16) < 0"),
    ),
    *wrong("tiling.inside", inside,
        ("dense", "the numbers are right, but it took more than Bc keys at once", "    return online.finish(state)", "    return attention(Q_i, K, V, return_lse=True)"),
        ("tiles 30 below skipped", "", "        state = ", "        if (S.max(1, initial=-np.inf) < state.m - 30).all():\n            start = stop\n            continue\n        state = "),
        ("S clipped at 1e9", "", "        state = online", "        S = np.minimum(S, 1e9)\n        state = online"),
        ("S clipped at -1e9", "", "        state = online", "        S = np.maximum(S, -1e9)\n        state = online"),
        ("a last tile of two keys dropped", "", "while start < len(K)", "while start < len(K) - (2 if len(K) % Bc == 2 and Bc > 2 else 0)"),
        ("d capped at 64", "", "d = Q_i.shape[-1]", "d = min(Q_i.shape[-1], 64)"),
    ),
    *wrong("tiling.forward", forward,
        ("keys outside", "A tile of queries stays until it has met all keys", "    for at, Q_i in enumerate(tiles):\n        for c in range(0, len(K), Bc):\n", "    for c in range(0, len(K), Bc):\n        for at, Q_i in enumerate(tiles):\n"),
    ),
    *wrong("recomputation.rebuild", rebuild,
        ("NaN, then 0", "the numbers are right, but a NaN came up on the way and was ", "np.where(np.isneginf(column), 0, column)", "column", "np.exp(S_ij - safe)", "np.where(np.isneginf(S_ij), 0, np.exp(S_ij - safe))"),
        ("lse along the keys where the tile is square", "", "lse_i.reshape(-1, 1)", "lse_i if S_ij.shape[0] == S_ij.shape[1] else lse_i.reshape(-1, 1)"),
        ("weights e^-80 dropped", "", "np.exp(S_ij - safe)", "np.where(S_ij - safe < -80, 0, np.exp(S_ij - safe))"),
        ("an lse of 0 counts as empty", "", "np.exp(S_ij - safe)", "np.exp(S_ij - safe) * (column != 0)"),
        ("scores and lse clamped at -1e9", "", "np.exp(S_ij - safe)", "np.where(S_ij == -np.inf, 0, np.exp(np.maximum(S_ij, -1e9) - np.maximum(column, -1e9)))"),
        ("scores and lse clipped at 1e6 from above", "", "np.exp(S_ij - safe)", "np.exp(np.minimum(S_ij, 1e6) - np.minimum(safe, 1e6))"),
        ("guard -1e37", "", "np.where(np.isneginf(column), 0, column)", "np.maximum(column, -1e37)"),
        ("lse clipped above 1e37", "", "np.where(np.isneginf(column), 0, column)", "np.minimum(np.where(np.isneginf(column), 0, column), 1e37)"),
        ("the first n keys count, where n are visible", "", "np.exp(S_ij - safe)", "np.where(np.arange(S_ij.shape[1]) < (S_ij > -np.inf).sum(1)[:, None], np.exp(S_ij - safe), 0)"),
        ("0 where the row's last key is masked and it is not the only one", "", "np.exp(S_ij - safe)", "np.where(np.isneginf(S_ij[:, -1:]) & (S_ij.shape[1] > 2), 0, np.exp(S_ij - safe))"),
    ),
    *wrong("recomputation.delta", delta,
        ("64 columns", "", "dO_i * O_i", "dO_i[:, :64] * O_i[:, :64]"),
        ("squeezed", "squeezed every axis of length 1", "np.sum(dO_i * O_i, axis=1)", "np.sum(dO_i * O_i, axis=1, keepdims=True).squeeze()"),
        ("clipped at 1e4", "", "np.sum(dO_i * O_i, axis=1)", "np.clip(np.sum(dO_i * O_i, axis=1), -1e4, 1e4)"),
    ),
    *wrong("tiling.meet", meet_by_update,
        ("all rows start afresh if the first one does", "rows of which one has met no key", "    state =", "    if np.isneginf(lse_i[0]):\n        lse_i = np.full_like(lse_i, -np.inf)\n    state ="),
    ),
    *wrong("tiling.meet", meet,
        ("keys 30 below dropped", "", "np.exp(S - safe[:, None])", "np.where(S - safe[:, None] < -30, 0, np.exp(S - safe[:, None]))"),
        ("O clipped at 65504", "", "    with np.errstate", "    O = np.clip(O, -65504, 65504)\n    with np.errstate"),
        ("lse below -1e9 is empty", "", "    top = ", "    lse_i = np.where(lse_i < -1e9, -np.inf, lse_i)\n    top = "),
        ("S clipped at 1e9", "", "    top = ", "    S = np.minimum(S, 1e9)\n    top = "),
        ("d capped at 64", "", "Q_i.shape[1] ** -0.5", "min(Q_i.shape[1], 64) ** -0.5"),
        ("128 rows", "", "past = np.exp(S - safe[:, None]), np.exp(lse_i - safe)", "past = np.exp(S - safe[:, None]), np.exp(lse_i - safe) * (np.arange(len(S)) < 128)"),
        ("the past dropped if far below", "", "np.exp(lse_i - safe)", "np.where(lse_i - safe < -30, 0, np.exp(lse_i - safe))"),
    ),
    *wrong("recomputation.gradients", gradients,
        ("rows that see no key recognised by delta = 0", "", "    dQ = ", "    dS = np.where(delta_i[:, None] == 0, 0, dS)\n    dQ = "),
        ("dS = 0 where P < 1e-7", "", "    dQ = ", "    dS = np.where(P_ij < 1e-7, 0, dS)\n    dQ = "),
        ("dS clipped at 1000", "", "    dQ = ", "    dS = np.clip(dS, -1000, 1000)\n    dQ = "),
        ("64 cols of dP", "", "dO_i @ V_j.T", "dO_i[:, :64] @ V_j[:, :64].T"),
        ("a scale of at most 1 in dQ", "", "dS @ K_j * scale", "dS @ K_j * min(scale, 1)"),
        ("128 keys of dQ", "", "dS @ K_j", "dS[:, :128] @ K_j[:128]"),
        ("128 rows in dV", "", "P_ij.T @ dO_i", "P_ij[:128].T @ dO_i[:128]"),
        ("a row whose first weight is 0 has none", "", "P_ij.T @ dO_i", "np.where(P_ij[:, :1] == 0, 0, P_ij).T @ dO_i"),
    ),
]  # fmt: skip
