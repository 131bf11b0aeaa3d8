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
        ("the last score", "the last score was subtracted", "np.max(x)", "x[-1]"),
        ("exponents clipped at -30", "an exponent was clipped", "x - top", "np.clip(x - top, -30, 0)"),
        ("exp without a maximum", "no maximum was subtracted", "x - top", "x"),
        ("the logarithm of a sum without a maximum", "overflows before its logarithm is taken", "e / np.sum(e)", "np.exp(x - np.log(np.sum(np.exp(x))))"),
        ("50 subtracted", "a constant was subtracted", "np.max(x)", "50"),
        ("exp in float64, without a maximum", "float64 only moves the limit", "np.exp(x - top)", "np.exp(np.float64(x))"),
        ("scores clipped at 80", "scores were clipped", "np.exp(x - top)", "np.exp(np.clip(x, -80, 80))"),
        ("exponents clipped at -20", "exponents were clipped", "x - top", "np.maximum(x - top, -20)"),
        ("nan_to_num", "nan_to_num hides what overflowed", "np.exp(x - top)", "np.exp(x)", "e / np.sum(e)", "np.nan_to_num(e / np.sum(e))"),
        ("the mean subtracted", "the mean was subtracted", "np.max(x)", "x.mean()"),
        ("the median subtracted", "the median was subtracted", "np.max(x)", "np.median(x)"),
        ("a percentile subtracted", "a percentile was subtracted", "np.max(x)", "np.percentile(x, 90)"),
        ("the maximum only where it is above 80", "0 was subtracted where the maximum is negative", "np.max(x)", "x.max() * (x.max() > 80)"),
        ("the minimum", "the smallest score was subtracted", "np.max(x)", "x.min()"),
        ("the largest magnitude", "the largest magnitude was subtracted", "np.max(x)", "abs(x).max()"),
        ("the first score", "the first score was subtracted", "np.max(x)", "x[0]"),
        ("guard maximum(m, 0)", "0 was subtracted where the maximum is negative", "np.max(x)", "max(x.max(), 0)"),
        ("+ 1e-9", "a small number was added, to the denominator or under the lo", "np.sum(e)", "(np.sum(e) + 1e-9)"),
        ("+ 1e-6", "a small number was added, to the denominator or under the lo", "np.sum(e)", "(np.sum(e) + 1e-6)"),
        ("rounded to 6 digits", "weights were rounded", "e / np.sum(e)", "np.round(e / np.sum(e), 6)"),
        ("not divided", "the exponentials were not divided by their sum", "e / np.sum(e)", "e"),
        ("divided by the largest", "the exponentials were not divided by their sum", "np.sum(e)", "np.max(e)"),
        ("divided by N", "the exponentials were divided by N", "np.sum(e)", "len(e)"),
        ("exp(x - lse)", "exp(x − lse) loses digits", "e / np.sum(e)", "np.exp(x - (top + np.log(np.sum(e))))"),
        ("softmax of -x", "the sign is inverted", "x - top", "top - x"),
        ("log instead of weights", "those are the logarithms of the weights", "e / np.sum(e)", "x - top - np.log(np.sum(e))"),
    ),
    *wrong("safe_softmax.rows", rows,
        ("guard maximum(m, -1e6)", "a finite number guards −∞", "    top[np.isneginf(top)] = 0\n", "    top = np.maximum(top, -1e6)\n"),
        ("exponents clipped at -30", "an exponent was clipped", "np.exp(x - top)", "np.exp(np.maximum(x - top, -30)) * (x > -np.inf)"),
        ("no guard", "NaN comes of −∞ − (−∞) and of 0 / 0", "    top[np.isneginf(top)] = 0\n", ""),
        ("no guard against 0 / 0", "NaN comes of −∞ − (−∞) and of 0 / 0", "    total[total == 0] = 1\n", ""),
        ("guard maximum(m, 0)", "0 was subtracted wherever the maximum is negative, and such ", "    top[np.isneginf(top)] = 0\n", "    top = np.maximum(top, 0)\n"),
        ("guard maximum(m, -1e4)", "a finite number guards −∞, but scores may lie below it, and ", "    top[np.isneginf(top)] = 0\n", "    top = np.maximum(top, -1e4)\n"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "    top[np.isneginf(top)] = 0\n", "", "e / total", "np.nan_to_num(e / total)"),
        ("where isnan", "the numbers are right, but a NaN came up on the way and was ", "    top[np.isneginf(top)] = 0\n", "", "e / total", "np.where(np.isnan(e / total), 0, e / total)"),
        ("+ 1e-9", "a small number was added, to the denominator or under the lo", "    total[total == 0] = 1\n", "    total = total + 1e-9\n"),
        ("one maximum for all rows", "one maximum for all rows", "x.max(axis=1, keepdims=True)", "np.full((len(x), 1), x.max())"),
        ("one sum for all rows", "one sum for all rows", "e.sum(axis=1, keepdims=True)", "e.sum(keepdims=True)"),
        ("columns", "rows and columns are swapped", "x.max(axis=1", "x.max(axis=0", "e.sum(axis=1", "e.sum(axis=0"),
        ("no maximum", "no maximum was subtracted from the scores", "x - top", "x"),
        ("-1e9 for masked scores", "a row of masked scores came out uniform", "e = np.exp(x - top)", "x = np.where(np.isneginf(x), -1e9, x); e = np.exp(x - x.max(1, keepdims=True))"),
        ("0 for masked scores in the maximum", "a masked score counted as 0 in the maximum", "x.max(axis=1, keepdims=True)", "np.where(x == -np.inf, 0, x).max(axis=1, keepdims=True)"),
        ("0 for masked scores", "masked scores were taken for 0", "e = np.exp(x - top)", "x = np.where(np.isneginf(x), 0, x); e = np.exp(x - x.max(1, keepdims=True))"),
        ("a masked row is uniform", "a row of masked scores came out uniform", "total[total == 0] = 1", "e[total[:, 0] == 0] = 1; total = e.sum(axis=1, keepdims=True)"),
        ("exp(x - lse)", "exp(x − lse) loses digits", "e / total", "np.exp(x - (top + np.log(total)))"),
    ),
    *wrong("safe_softmax.lse", lse,
        ("log1p", "log(1 + l) was taken", "np.log(total)", "np.log1p(total)"),
        ("guard maximum(m, -1e6)", "a finite number guards −∞", "np.where(np.isneginf(top), 0, top)", "np.maximum(top, -1e6)"),
        ("log forgotten", "the logarithm is missing", "safe + np.log(total)", "safe + total"),
        ("the maximum not added back", "the maximum was not added back", "safe + np.log(total)", "np.log(total)"),
        ("sign", "the logarithm was subtracted", "safe + np.log(total)", "safe - np.log(total)"),
        ("m · log l", "m and log l were multiplied", "safe + np.log(total)", "safe * np.log(total)"),
        ("+ eps under the logarithm", "a small number was added, to the denominator or under the lo", "np.log(total)", "np.log(total + 1e-9)"),
        ("max(..., initial=0)", "0 was subtracted wherever the maximum is negative, and such ", "x.max(axis=1)", "x.max(axis=1, initial=0)"),
        ("no maximum", "no maximum was subtracted", "x - safe[:, None]", "x", "safe + np", "np"),
        ("log2", "this is in units of log₂", "np.log(", "np.log2("),
        ("no guard", "−∞ − (−∞) is NaN", "np.where(np.isneginf(top), 0, top)", "top"),
        ("the sum", "that is the sum relative to the maximum", "safe + np.log(total)", "total"),
        ("the maximum alone", "that is the maximum alone", "safe + np.log(total)", "safe"),
        ("0 for a masked row", "a row of nothing but masked scores has lse −∞", "np.log(total)", "np.log(np.where(total == 0, 1, total))"),
        ("mean for the sum", "that is the mean of the exponentials", ".sum(axis=1)", ".mean(axis=1)"),
        ("guard maximum(m, 0)", "0 was subtracted wherever the maximum is negative, and such ", "np.where(np.isneginf(top), 0, top)", "np.maximum(top, 0)"),
        ("a column", "a column came back", "safe + np.log(total)", "(safe + np.log(total))[:, None]"),
        ("squeezed", "squeeze removes every axis of length 1", "safe + np.log(total)", "(safe + np.log(total)).squeeze()"),
        ("0 for masked scores in the maximum", "a masked score counted as 0 in the maximum", "x.max(axis=1)", "np.where(x == -np.inf, 0, x).max(axis=1)"),
    ),
    *wrong("online_softmax.sums", sums,
        ("guard on a", "0 was subtracted wherever one part has met no key", "np.where(np.isneginf(m), 0, m)", "np.where(m_a == -np.inf, 0, m)"),
        ("guard on b", "0 was subtracted wherever one part has met no key", "np.where(np.isneginf(m), 0, m)", "np.where(m_b == -np.inf, 0, m)"),
        ("guard on either", "0 was subtracted wherever one part has met no key", "np.where(np.isneginf(m), 0, m)", "np.where((m_a == -np.inf) | (m_b == -np.inf), 0, m)"),
        ("guard maximum(m, -1e6)", "a finite number guards −∞", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, -1e6)"),
        ("exponents clipped at -20", "exponents were clipped", "np.exp(m_a - safe)", "np.exp(np.maximum(m_a - safe, -20)) * (m_a > -np.inf)"),
    ),
    *wrong("online_softmax.merge", merge,
        ("guard on a", "0 was subtracted wherever one part has met no key", "np.where(np.isneginf(m), 0, m)", "np.where(a.m == -np.inf, 0, m)"),
        ("guard on b", "0 was subtracted wherever one part has met no key", "np.where(np.isneginf(m), 0, m)", "np.where(b.m == -np.inf, 0, m)"),
        ("guard on either", "0 was subtracted wherever one part has met no key", "np.where(np.isneginf(m), 0, m)", "np.where((a.m == -np.inf) | (b.m == -np.inf), 0, m)"),
        ("exponents clipped at -20", "an exponent was clipped", "np.exp(a.m - safe)", "np.exp(np.maximum(a.m - safe, -20)) * (a.m > -np.inf)"),
        ("b.O not rescaled", "one of the outputs was not rescaled", "wb[:, None] * b.O", "b.O"),
        ("outputs exchanged", "the factors of the outputs are exchanged", "wa[:, None] * a.O + wb[:, None] * b.O", "wb[:, None] * a.O + wa[:, None] * b.O"),
        ("guard maximum(m, -1e6)", "a finite number guards −∞", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, -1e6)"),
        ("guard maximum(m, 0)", "0 was subtracted wherever the maximum is negative, and such ", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, 0)"),
        ("guard maximum(m, -1e4)", "a finite number guards −∞, but scores may lie below it, and ", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, -1e4)"),
        ("guarded m returned", "the guarded maximum was returned", "State(m,", "State(safe,"),
        ("m of a", "the maximum of the first part was returned", "State(m,", "State(a.m,"),
        ("m of a alone as the reference", "the maximum of the first part alone was used", "np.maximum(a.m, b.m)", "a.m"),
        ("O as if normalised", "O was taken for a finished output", "wa[:, None] * a.O + wb[:, None] * b.O)", "((wa * a.l)[:, None] * a.O + (wb * b.l)[:, None] * b.O) / (wa * a.l + wb * b.l)[:, None])"),
        ("O weighted with l", "O was weighted with l", "wa[:, None] * a.O + wb[:, None] * b.O)", "(wa * a.l)[:, None] * a.O + (wb * b.l)[:, None] * b.O)"),
        ("O divided by l", "O was divided by l", "wa[:, None] * a.O + wb[:, None] * b.O)", "(wa[:, None] * a.O + wb[:, None] * b.O) / (wa * a.l + wb * b.l)[:, None])"),
        ("neither rescaled", "neither side was rescaled", "np.exp(a.m - safe)", "1 + 0 * m", "np.exp(b.m - safe)", "1 + 0 * m"),
        ("inverse", "rescaled by the inverse", "np.exp(a.m - safe)", "np.exp(safe - a.m)", "np.exp(b.m - safe)", "np.exp(safe - b.m)"),
        ("one side", "the second side was not rescaled", "np.exp(b.m - safe)", "np.ones_like(m)"),
        ("O not rescaled", "the outputs were not rescaled", "wa[:, None] * a.O + wb[:, None] * b.O", "a.O + b.O"),
        ("no guard", "−∞ − (−∞) is NaN", "np.where(np.isneginf(m), 0, m)", "m"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "np.where(np.isneginf(m), 0, m)", "m", "np.exp(a.m - safe)", "np.nan_to_num(np.exp(a.m - safe))", "np.exp(b.m - safe)", "np.nan_to_num(np.exp(b.m - safe))"),
        ("factors swapped", "the factors are exchanged", "wa * a.l + wb * b.l", "wb * a.l + wa * b.l", "wa[:, None] * a.O + wb[:, None] * b.O", "wb[:, None] * a.O + wa[:, None] * b.O"),
        ("minimum", "the smaller maximum was kept", "np.maximum(a.m, b.m)", "np.minimum(a.m, b.m)"),
        ("no columns", "alpha is [Br] and O is [Br, dv]", "wa[:, None] * a.O + wb[:, None] * b.O", "wa * a.O + wb * b.O"),
    ),
    *wrong("online_softmax.update", update,
        ("the block's output normalised", "the block's output was divided by the block's sum", "P @ V_j", "(P / P.sum(1, keepdims=True)) @ V_j"),
        ("guard on the block", "0 was subtracted wherever the block is masked", "np.where(np.isneginf(m), 0, m)", "np.where(S_ij.max(axis=1) == -np.inf, 0, m)"),
        ("scores clipped at -30", "an exponent was clipped", "np.exp(S_ij - safe.reshape(-1, 1))", "np.exp(np.maximum(S_ij - safe.reshape(-1, 1), -30)) * (S_ij > -np.inf)"),
        ("alpha clipped at -20", "an exponent was clipped", "np.exp(m_i - safe)", "np.exp(np.maximum(m_i - safe, -20)) * (m_i > -np.inf)"),
        ("guard maximum(m, -1e6)", "a finite number guards −∞", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, -1e6)"),
        ("P normalised in the block", "the weights were divided by the block's sum", "l = l_i", "P = P / P.sum(1, keepdims=True); l = l_i"),
        ("alpha on both parts", "alpha rescales what came before, not the block", "l_i * alpha + P.sum(axis=1)", "(l_i + P.sum(axis=1)) * alpha", "O_i * alpha.reshape(-1, 1) + P @ V_j", "(O_i + P @ V_j) * alpha.reshape(-1, 1)"),
        ("guarded m returned", "the guarded maximum was returned", "State(m,", "State(safe,"),
        ("guard maximum(m, 0)", "0 was subtracted wherever the maximum is negative, and such ", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, 0)"),
        ("guard maximum(m, -1e4)", "a finite number guards −∞, but scores may lie below it, and ", "np.where(np.isneginf(m), 0, m)", "np.maximum(m, -1e4)"),
        ("l not rescaled", "the old sum was not rescaled", "l_i * alpha +", "l_i +"),
        ("O not rescaled", "the old output was not rescaled", "O_i * alpha.reshape(-1, 1) +", "O_i +"),
        ("alpha inverse", "rescaled by the inverse", "m_i - safe)", "np.where(np.isneginf(m_i), -np.inf, safe - m_i))"),
        ("maximum of the block", "the maximum of the block alone was used", "np.maximum(m_i, np.max(S_ij, axis=1))", "np.max(S_ij, axis=1)"),
        ("one maximum for all rows", "one maximum for all rows", "np.max(S_ij, axis=1)", "np.max(S_ij)"),
        ("finish inside", "O was divided by l", "State(m, l, O)", "State(m, l, O / l[:, None])"),
        ("the block's own maximum", "the block was measured by its own maximum, the past by m_new", "S_ij - safe.reshape(-1, 1)", "S_ij - S_ij.max(1, keepdims=True)"),
        ("no guard", "−∞ − (−∞) is NaN", "np.where(np.isneginf(m), 0, m)", "m"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "np.where(np.isneginf(m), 0, m)", "m", "np.exp(m_i - safe)", "np.nan_to_num(np.exp(m_i - safe))", "np.exp(S_ij - safe.reshape(-1, 1))", "np.nan_to_num(np.exp(S_ij - safe.reshape(-1, 1)))"),
        ("scores weigh the values", "the values were weighted with scores", "P @ V_j", "S_ij @ V_j"),
        ("maximum frozen once it is finite", "the maximum was frozen at the first block", "np.maximum(m_i, np.max(S_ij, axis=1))", "np.where(np.isneginf(m_i), np.max(S_ij, axis=1), m_i)"),
        ("no maximum", "no maximum was subtracted from the scores", "S_ij - safe.reshape(-1, 1)", "S_ij"),
    ),
    *wrong("online_softmax.finish", finish,
        ("+ 1e-9", "a small number was added, to the denominator or under the lo", "total = np.where(l == 0, 1, l)", "total = l + 1e-9"),
        ("+ 1e-6", "a small number was added, to the denominator or under the lo", "total = np.where(l == 0, 1, l)", "total = l + 1e-6"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "O / total[:, None]", "np.nan_to_num(O / l[:, None])"),
        ("0 / 0", "0 / 0 is NaN: where l is 0, divide by 1", "np.where(l == 0, 1, l)", "l"),
        ("m for lse", "m was returned in the place of lse = m + log l", "m + np.log(l)", "m"),
        ("l for lse", "l was returned instead of lse = m + log l", "m + np.log(l)", "l"),
        ("log l", "the maximum is missing from lse", "m + np.log(l)", "np.log(l)"),
        ("log2", "lse is in units of log₂", "np.log(l)", "np.log2(l)"),
        ("log of total", "a row that met no key has lse −∞, not 0", "m + np.log(l)", "np.where(l == 0, 0, m + np.log(total))"),
        ("not divided", "the output was not divided by l", "O / total[:, None]", "O"),
        ("multiplied", "O was multiplied by l", "O / total[:, None]", "O * total[:, None]"),
        ("m · log l", "m and log l were multiplied", "m + np.log(l)", "m * np.log(l)"),
    ),
    *wrong("tiling.mask", mask,
        ("<", "the mask is off by one", "> q[:, None] + shift", ">= q[:, None] + shift"),
        ("one key of the future", "the mask is off by one", "> q[:, None] + shift", "> q[:, None] + shift + 1"),
        ("upper left", "aligned at the upper left", "Nk - Nq", "0"),
        ("max(0, shift)", "with fewer keys than queries the difference is negative, and", "Nk - Nq", "max(0, Nk - Nq)"),
        ("abs(shift)", "with fewer keys than queries the difference is negative, and", "Nk - Nq", "abs(Nk - Nq)"),
        ("shift reversed", "the difference is inverted", "Nk - Nq", "Nq - Nk"),
        ("within the tile", "places within the tile were compared", "np.arange(rows.start, rows.stop)", "np.arange(len(S))", "np.arange(cols.start, cols.stop)", "np.arange(S.shape[1])"),
        ("whole tile or nothing", "a tile was masked as a whole or not at all", "S[k[None, :] > q[:, None] + shift] = -np.inf", "S[:] = -np.inf if cols.start > rows.stop - 1 + shift else S"),
        ("whole tile masked where any of it is", "a tile was masked as a whole or not at all", "S[k[None, :] > q[:, None] + shift] = -np.inf", "S[:] = -np.inf if (k[None, :] > q[:, None] + shift).any() else S"),
        ("-1e9", "a large negative number is not −∞", "-np.inf", "-1e9"),
        ("0", "masked scores were set to 0", "-np.inf", "0"),
        ("the wrong half", "the wrong half is masked", "k[None, :] > q[:, None]", "k[None, :] < q[:, None]"),
        ("the wrong half, with the diagonal", "the wrong half is masked", "k[None, :] > q[:, None]", "k[None, :] <= q[:, None]"),
        ("0 times infinity", "0 · (−∞) is NaN", "S[k[None, :] > q[:, None] + shift] = -np.inf", "S += (k[None, :] > q[:, None] + shift) * -np.inf"),
        ("in place", "it changed its inputs; make new arrays instead", "S_ij.copy()", "S_ij"),
        ("rows and columns swapped", "the wrong half is masked", "k[None, :] > q[:, None] + shift", "(q[:, None] > k[None, :] + shift)"),
        ("no return", "expected 1 result, got None", "return S", "S"),
    ),
    *wrong("tiling.inside", inside,
        ("√Br", "divided by √Br", "np.float32(d**0.5)", "np.float32(len(Q_i)**0.5)"),
        ("√Nk", "divided by √Nk", "np.float32(d**0.5)", "np.float32(max(len(K), 1)**0.5)"),
        ("all keys at once behind asarray", "it took more than Bc keys at once", "    start = 0\n", "    K, V = np.asarray(K), np.array(V)\n    Bc = max(len(K), 1)\n    start = 0\n"),
        ("finish inside the loop", "the state was finished inside the loop", "        start = stop\n", "        start = stop\n        O, _ = online.finish(state)\n        state = state._replace(O=O)\n"),
        ("mean of block outputs", "that is the mean of what each tile gives by itself, but tile", "    return online.finish(state)", "    parts = [attention(Q_i, K[s : s + Bc], V[s : s + Bc]) for s in range(0, len(K), Bc)]\n    return (np.mean(parts, 0) if parts else state.O), online.finish(state)[1]"),
        ("sum of block outputs", "that is the sum of what each tile gives by itself, each with", "    return online.finish(state)", "    parts = [attention(Q_i, K[s : s + Bc], V[s : s + Bc]) for s in range(0, len(K), Bc)]\n    return (np.sum(parts, 0) if parts else state.O), online.finish(state)[1]"),
        ("all at once", "the numbers are right, but it took more than Bc keys at once", "stop = start + Bc", "stop = len(K)"),
        ("dense", "the numbers are right, but it took more than Bc keys at once", "    return online.finish(state)", "    return attention(Q_i, K, V, return_lse=True)"),
        ("no scale", "the scale was forgotten", " / np.float32(d**0.5)", ""),
        ("/ d", "divided by d: scores are divided by √d", "d**0.5", "d"),
        ("dv for d", "divided by √dv", "Q_i.shape[-1]", "V.shape[-1]"),
        ("the last tile dropped", "the last, shorter tile of keys was dropped", "while start < len(K)", "while start + Bc <= len(K)"),
        ("the last key dropped", "a last tile of one key was dropped", "while start < len(K)", "while start < len(K) - 1"),
        ("state not kept", "online_softmax.update returns a new state and leaves the old", "state = online.update(", "online.update("),
        ("fresh state for each tile", "every tile starts afresh", "online.update(state,", "online.update(online.identity(len(Q_i), V.shape[1]),"),
        ("not divided", "the output was not divided by l", "return online.finish(state)", "return state.O, online.finish(state)[1]"),
        ("m for lse", "m was returned instead of lse = m + log l", "return online.finish(state)", "return online.finish(state)[0], state.m"),
        ("V of the first tile", "the values of the first tile were used for every tile", "V[start:stop]", "V[: len(S[0])]"),
        ("state returned", "the state was returned", "return online.finish(state)", "return state"),
        ("K not transposed", "K_j was not transposed", "K[start:stop].T", "K[start:stop]"),
    ),
    *wrong("tiling.meet", meet,
        ("√dv", "divided by √dv", "Q_i.shape[1] ** -0.5", "V_j.shape[1] ** -0.5"),
        ("guard maximum(m, 0)", "0 was subtracted where all scores are negative, and rows far", "np.where(np.isneginf(top), 0, top)", "np.maximum(top, 0)"),
        *((f"guard maximum(m, {bound})", "a finite number guards −∞", "np.where(np.isneginf(top), 0, top)", f"np.maximum(top, {bound})") for bound in (-1e4, -1e6, -1e9)),
        ("m = 0, exp(lse) overflows", "e^lse overflows", "np.where(np.isneginf(top), 0, top)", "0 * lse_i.clip(0, 0)"),
        ("mean of the outputs", "that is the mean of the past and this tile", "    l = past", "    O_j = attention(Q_i, K_j, V_j)\n    l = past", "(past[:, None] * O_i + P @ V_j) / np.where(l == 0, 1, l)[:, None]", "(O_i + O_j) / 2"),
        ("the past dropped", "what came before was dropped", "past + P.sum(axis=1)", "P.sum(axis=1)", "past[:, None] * O_i + ", ""),
        ("not divided", "the output was not divided by l", " / np.where(l == 0, 1, l)[:, None]", ""),
        ("m for lse", "m was returned in the place of lse = m + log l", "safe + np.log(l)", "safe"),
        ("no scale", "the scale was forgotten", " * Q_i.shape[1] ** -0.5", ""),
        ("past not rescaled", "the past was not rescaled when the maximum rose", "np.exp(lse_i - safe)", "1 + 0 * lse_i.clip(0, 0)"),
        ("the new lse without the past", "lse leaves out what came before", "safe + np.log(l)", "safe + np.log(P.sum(axis=1))"),
        ("O_i weighted, l not", "l = 0 forgets the past", "past + P.sum(axis=1)", "P.sum(axis=1)"),
    ),
    *wrong("tiling.meet", meet_by_update,
        ("l = 0", "l = 0 forgets the past", "np.ones(len(Q_i), S.dtype)", "np.zeros(len(Q_i), S.dtype)"),
        ("l = lse", "l = lse is no sum of exponentials", "np.ones(len(Q_i), S.dtype)", "lse_i"),
        ("l = exp(lse)", "l = e^lse counts lse twice", "np.ones(len(Q_i), S.dtype)", "np.exp(lse_i)"),
        ("O times exp(lse)", "O was multiplied by e^lse", "O_i)", "O_i * np.exp(lse_i)[:, None])"),
        ("m = 0", "m = 0 is a score like any other", "State(lse_i,", "State(0 * lse_i.clip(0, 0),"),
        ("m = 0, l = exp(lse), O times exp(lse)", "e^lse overflows", "State(lse_i,", "State(0 * lse_i.clip(0, 0),", "np.ones(len(Q_i), S.dtype)", "np.exp(lse_i)", "O_i)", "O_i * np.exp(lse_i)[:, None])"),
        ("from the identity", "what came before was dropped", "online.State(lse_i, np.ones(len(Q_i), S.dtype), O_i)", "online.identity(len(Q_i), V_j.shape[1])"),
    ),
    *wrong("recomputation.rebuild", rebuild,
        ("lse as a row", "lse_i belongs to the rows of the tile", "lse_i.reshape(-1, 1)", "lse_i[None, :]"),
        ("guard maximum(lse, -1e6)", "a finite number guards −∞", "np.where(np.isneginf(column), 0, column)", "np.maximum(column, -1e6)"),
        ("exponents clipped at -20", "an exponent was clipped", "np.exp(S_ij - safe)", "np.exp(np.maximum(S_ij - safe, -20)) * (S_ij > -np.inf)"),
        ("guard maximum(lse, 0)", "0 was subtracted wherever the lse is negative, and such a ro", "np.where(np.isneginf(column), 0, column)", "np.maximum(column, 0)"),
        ("guard maximum(lse, -1e4)", "a finite number guards −∞, but scores may lie below it, and ", "np.where(np.isneginf(column), 0, column)", "np.maximum(column, -1e4)"),
        ("no guard", "−∞ − (−∞) is NaN", "np.where(np.isneginf(column), 0, column)", "column"),
        ("nan_to_num over everything", "the numbers are right, but a NaN came up on the way and was ", "np.where(np.isneginf(column), 0, column)", "column", "np.exp(S_ij - safe)", "np.nan_to_num(np.exp(S_ij - safe))"),
        ("divided by lse", "divided by lse, which is a logarithm", "np.exp(S_ij - safe)", "np.exp(S_ij) / safe"),
        ("divided by exp(lse)", "exponentiated first and divided after", "np.exp(S_ij - safe)", "np.exp(S_ij) / np.exp(safe)"),
        ("sign", "the sign is inverted", "S_ij - safe", "safe - S_ij"),
        ("added", "lse was added", "S_ij - safe", "S_ij + safe"),
        ("exp2", "2^x where e^x is meant", "np.exp(", "np.exp2("),
        ("the tile's maximum and lse", "the maximum of the tile was subtracted, then divided by lse", "np.exp(S_ij - safe)", "np.exp(S_ij - np.maximum(S_ij.max(1, keepdims=True), -1e30)) / np.where(safe == 0, 1, safe)"),
        ("a row instead of a column", "lse_i belongs to the rows of the tile", "lse_i.reshape(-1, 1)", "lse_i"),
        ("softmax of the tile", "this tile was normalised by itself", "np.exp(S_ij - safe)", "rows(S_ij.copy())"),
        ("not exponentiated", "those are the logarithms of the weights", "np.exp(S_ij - safe)", "S_ij - safe"),
    ),
    *wrong("recomputation.delta", delta,
        ("64 columns", "columns from 64 on were left out", "dO_i * O_i", "dO_i[:, :64] * O_i[:, :64]"),
        ("summed over rows", "summed over the queries", "axis=1", "axis=0"),
        ("one number", "all rows were added together", ", axis=1", ""),
        ("keepdims", "a column came back", "axis=1", "axis=1, keepdims=True"),
        ("squeezed", "squeeze removes every axis of length 1", "np.sum(dO_i * O_i, axis=1)", "np.sum(dO_i * O_i, axis=1, keepdims=True).squeeze()"),
        ("mean", "that is the mean", "np.sum(", "np.mean("),
        ("matrix product", "that is the matrix product, every query with every other", "np.sum(dO_i * O_i, axis=1)", "dO_i @ O_i.T"),
        ("dO alone", "that is the sum of dO alone", "dO_i * O_i", "dO_i"),
        ("O squared", "O was multiplied with itself", "dO_i * O_i", "O_i * O_i"),
        ("sign", "the sign is inverted", "np.sum(", "-np.sum("),
    ),
    *wrong("recomputation.gradients", gradients,
        ("P not transposed", "P was not transposed", "P_ij.T @ dO_i", "P_ij @ dO_i"),
        ("dS not transposed", "dS was not transposed", "dS.T @ Q_i", "dS @ Q_i"),
        ("dS transposed in dQ", "dS was transposed in dQ", "dS @ K_j", "dS.T @ K_j"),
        ("scale twice", "the scale was applied twice", "(dP - delta_i.reshape(-1, 1))", "(dP - delta_i.reshape(-1, 1)) * scale"),
        ("P · dP − delta", "delta is subtracted from dP before P is multiplied with it", "P_ij * (dP - delta_i.reshape(-1, 1))", "P_ij * dP - delta_i.reshape(-1, 1)"),
        ("P (1 − P) dP", "P (1 − P) is a weight's slope by its own score", "P_ij * (dP - delta_i.reshape(-1, 1))", "P_ij * (1 - P_ij) * dP"),
        ("own 1/√d", "1/√d was used for the scale", "dS @ K_j * scale", "dS @ K_j / Q_i.shape[1] ** 0.5", "dS.T @ Q_i * scale", "dS.T @ Q_i / Q_i.shape[1] ** 0.5"),
        ("delta missing", "delta is missing", "(dP - delta_i.reshape(-1, 1))", "dP"),
        ("row sum of the tile", "the row sum was taken over this tile only", "delta_i.reshape(-1, 1)", "(P_ij * dP).sum(1, keepdims=True)"),
        ("delta as a row", "delta_i belongs to the rows of the tile", "delta_i.reshape(-1, 1)", "delta_i"),
        ("delta added", "delta was added", "dP - delta", "dP + delta"),
        ("no P in dS", "dS must be multiplied with P", "P_ij * (dP - delta_i.reshape(-1, 1))", "dP - delta_i.reshape(-1, 1)"),
        ("no scale", "the scale is missing from dQ and from dK", "dS @ K_j * scale", "dS @ K_j", "dS.T @ Q_i * scale", "dS.T @ Q_i"),
        ("no scale in dK", "the scale is missing from dK", "dS.T @ Q_i * scale", "dS.T @ Q_i"),
        ("scale on dV", "dV was scaled", "P_ij.T @ dO_i", "P_ij.T @ dO_i * scale"),
        ("wrong order", "the gradients are in the wrong order", "Gradients(dQ, dK, dV)", "Gradients(dV, dK, dQ)"),
        ("dV from dS", "dV was taken from dS", "dV = P_ij.T @ dO_i", "dV = (P_ij * (dO_i @ V_j.T - delta_i[:, None])).T @ dO_i"),
        ("V not transposed", "V_j was not transposed", "V_j.T", "V_j"),
        ("dQ and dK swapped", "the gradients are in the wrong order", "Gradients(dQ, dK, dV)", "Gradients(dK, dQ, dV)"),
    ),
    *wrong("safe_softmax.row", row,
        ("added one by one, in float16", "a sum stalls at 2,048", "np.sum(e)", "np.cumsum(e.astype(x.dtype))[-1]"),
    ),
    *wrong("safe_softmax.rows", rows,
        ("added one by one, in float16", "a sum stalls at 2,048", "e.sum(axis=1, keepdims=True)", "np.cumsum(e.astype(x.dtype), axis=1)[:, -1:]"),
        ("weights below 1e-12 dropped", "a weight far below the largest was set to 0", "e / total", "np.where(e < 1e-12 * total, 0, e / total)"),
    ),
    *wrong("safe_softmax.lse", lse,
        ("added one by one, in float16", "a sum stalls at 2,048", ".sum(axis=1)", ".astype(x.dtype).cumsum(axis=1)[:, -1]"),
        ("scores 20 below the maximum left out", "a weight far below the largest was set to 0", "np.exp(x - safe[:, None])", "np.where(x - safe[:, None] < -20, 0, np.exp(x - safe[:, None]))"),
    ),
    *wrong("online_softmax.sums", sums,
        ("one maximum for all rows, divided out afterwards", "rows that lie 200 apart", "np.where(np.isneginf(m), 0, m)", "np.where(np.isneginf(m.max()), 0, m.max())", "return m, l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)", "l = l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)\n    return m, l * np.exp(safe - np.where(np.isneginf(m), safe, m))"),
    ),
    *wrong("online_softmax.update", update,
        ("rescaled only where the maximum rises by more than 0.01", "the past was rescaled only where the maximum rises much", "np.exp(m_i - safe)", "np.where(safe - m_i > 0.01, np.exp(m_i - safe), 1).astype(m.dtype)"),
        ("a block 20 below skipped", "a weight far below the largest was set to 0", "    m = np.max", "    if (S_ij.max(1) < m_i - 20).all():\n        return state\n    m = np.max"),
        ("exponents below -30 to 0", "a weight far below the largest was set to 0", "np.exp(S_ij - safe.reshape(-1, 1))", "np.where(S_ij - safe.reshape(-1, 1) < -30, 0, np.exp(S_ij - safe.reshape(-1, 1)))"),
        ("alpha twice", "the past was rescaled twice", "np.exp(m_i - safe)", "np.exp(2 * (m_i - safe))"),
    ),
    *wrong("online_softmax.merge", merge,
        ("a part 20 below dropped", "a weight far below the largest was set to 0", "np.exp(a.m - safe)", "np.where(a.m - safe < -20, 0, np.exp(a.m - safe))"),
        ("a row of factors where rows are as many as columns", "as many rows as keys and columns", "wa[:, None] * a.O + wb[:, None] * b.O", "(wa * a.O + wb * b.O if a.O.shape[0] == a.O.shape[1] else wa[:, None] * a.O + wb[:, None] * b.O)"),
    ),
    *wrong("online_softmax.finish", finish,
        ("a row of sums where rows are as many as columns", "as many rows as keys and columns", "O / total[:, None]", "O / (total if O.shape[0] == O.shape[1] else total[:, None])"),
    ),
    *wrong("tiling.meet", meet_by_update,
        ("all rows begin anew where one does", "all rows began anew", "    state =", "    if np.isneginf(lse_i).any():\n        lse_i = np.full_like(lse_i, -np.inf)\n    state ="),
        ("all rows begin anew where the first does", "all rows began anew", "    state =", "    if np.isneginf(lse_i[0]):\n        lse_i = np.full_like(lse_i, -np.inf)\n    state ="),
        ("an output of zeros for the first meeting", "the first meeting is the one with lse = −∞", "    state =", "    if not O_i.any():\n        lse_i = np.full_like(lse_i, -np.inf)\n    state ="),
    ),
    *wrong("recomputation.rebuild", rebuild,
        ("lse along the keys where the tile is square", "as many rows as keys and columns", "lse_i.reshape(-1, 1)", "lse_i if S_ij.shape[0] == S_ij.shape[1] else lse_i.reshape(-1, 1)"),
    ),
    *wrong("recomputation.gradients", gradients,
        ("each from its own factor", "a factor's gradient takes the other factor", "dS @ K_j", "dS @ Q_i", "dS.T @ Q_i", "dS.T @ K_j"),
        ("dK and dV swapped", "the gradients are in the wrong order", "Gradients(dQ, dK, dV)", "Gradients(dQ, dV, dK)"),
    ),
    *wrong("safe_softmax.row", row,
        ("the maximum only beyond 80", "ten thousand scores whose exponentials fit", "np.max(x)", "x.max() * (abs(x.max()) > 80)"),
        ("the maximum only beyond 88.5", "", "np.max(x)", "x.max() * (abs(x.max()) > 88.5)"),
        ("the maximum only below -100", "", "np.max(x)", "(x.max() if x.max() > 0 or x.max() < -100 else 0)"),
        ("weights below e^-80 dropped", "a weight far below the largest was set to 0", "np.exp(x - top)", "np.where(x - top < -80, 0, np.exp(x - top))"),
    ),
    *wrong("safe_softmax.rows", rows,
        ("the maximum only beyond 88.5", "", "    top[np.isneginf(top)] = 0\n", "    top[abs(top) < 88.5] = 0; top[np.isneginf(top)] = 0\n"),
        ("all rows are zeros where one is masked", "", "e / total", "e / total * (x.max(1) > -np.inf).all()"),
    ),
    *wrong("safe_softmax.lse", lse,
        ("along the columns", "rows and columns are swapped", "    top = ", "    x = x.T\n    top = "),
        ("exponents clipped at -20", "an exponent was clipped", "np.exp(x - safe[:, None])", "np.where(np.isneginf(x), 0, np.exp(np.maximum(x - safe[:, None], -20)))"),
        ("the maximum alone where it is far above", "a weight far below the largest was set to 0", "np.log(total)", "np.log(np.where(total < 1 + 1e-9, np.minimum(total, 1), total))"),
        ("the maximum only beyond 88.5", "", "np.where(np.isneginf(top), 0, top)", "np.where(np.isneginf(top) | (abs(top) < 88.5), 0, top)"),
    ),
    *wrong("online_softmax.sums", sums,
        ("a part 75 below dropped", "a first part far below, of more keys still", "np.exp(m_a - safe)", "np.where(m_a - safe < -75, 0, np.exp(m_a - safe))"),
        ("the other part 75 below dropped", "a second part far below, of more keys still", "np.exp(m_b - safe)", "np.where(m_b - safe < -75, 0, np.exp(m_b - safe))"),
        ("in place", "it changed its inputs", "return m, l_a *", "l_a *= 1 + 0 * l_a.size; l_a += 0.5 - 0.25; l_a -= 0\n    return m, l_a *"),
        ("one number where there is one row", "expected shape", "return m, l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe)", "return np.squeeze(m), np.squeeze(l_a * np.exp(m_a - safe) + l_b * np.exp(m_b - safe))"),
    ),
    *wrong("online_softmax.update", update,
        ("P in the values' dtype", "the weights were rounded to the values' float16", "P @ V_j", "P.astype(V_j.dtype) @ V_j"),
        ("scores in the values' dtype", "", "P = np.exp(S_ij - safe.reshape(-1, 1))", "P = np.exp((S_ij - safe.reshape(-1, 1)).astype(V_j.dtype)).astype(m.dtype)"),
        ("the past 75 below dropped", "a weight far below the largest was set to 0", "np.exp(m_i - safe)", "np.where(m_i - safe < -80, 0, np.exp(m_i - safe))"),
        ("a block that is masked anywhere is skipped", "", "    m = np.max", "    if np.isneginf(S_ij).any():\n        return state\n    m = np.max"),
        ("a block is skipped where a row of it is masked", "", "    m = np.max", "    if np.isneginf(S_ij.max(1)).any():\n        return state\n    m = np.max"),
        ("maximum of the lagging block", "", "np.maximum(m_i, np.max(S_ij, axis=1))", "np.where(np.isneginf(m_i), np.max(S_ij, axis=1), np.maximum(m_i, S_ij[:, 0]))"),
    ),
    *wrong("online_softmax.merge", merge,
        ("a part 75 below dropped", "a weight far below the largest was set to 0", "np.exp(b.m - safe)", "np.where(b.m - safe < -80, 0, np.exp(b.m - safe))"),
        ("the larger part alone where far above", "", "    m = ", "    if (a.m > b.m + 60).all():\n        return a\n    m = "),
        ("an empty part gives the other, for all rows", "", "    m = ", "    if np.isneginf(a.m).any():\n        return b\n    m = "),
    ),
    *wrong("online_softmax.finish", finish,
        ("all rows are empty where one is", "", "    total = ", "    l = l * (l > 0).all()\n    total = "),
        ("lse 0 where l is 1", "", "m + np.log(l)", "np.where(l == 1, 0, m + np.log(l))"),
        ("a row whose maximum is below -1e5 is empty", "", "    total = ", "    l = np.where(m < -1e5, 0, l)\n    total = "),
    ),
    *wrong("tiling.mask", mask,
        ("tril, and zeros are masked", "scores of 0, which are scores like any other", "    S = S_ij.copy()\n", "    S = np.tril(S_ij, rows.start + Nk - Nq - cols.start)\n    S[S == 0] = -np.inf\n    return S\n"),
        ("places in float16", "a tile far down a long text", "np.arange(rows.start, rows.stop)", "np.arange(rows.start, rows.stop).astype(np.float16)"),
        ("aligned where there are more keys alone", "with fewer keys than queries the difference is negative", "shift = Nk - Nq", "shift = Nk - Nq if Nk > Nq else 0"),
        ("aligned for one query alone", "", "shift = Nk - Nq", "shift = Nk - Nq if Nq == 1 or Nk < Nq else 0"),
    ),
    *wrong("tiling.inside", inside,
        ("tiles 20 below skipped", "keys far below, of large values", "        state = ", "        if (S.max(1, initial=-np.inf) < state.m - 20).all():\n            start = stop\n            continue\n        state = "),
        ("tiles 30 below skipped", "keys very far below, of very large values", "        state = ", "        if (S.max(1, initial=-np.inf) < state.m - 30).all():\n            start = stop\n            continue\n        state = "),
        ("keys as one list", "it took more than Bc keys at once", "    start = 0\n", "    K = np.array(K.tolist(), np.float32).reshape(-1, d)\n    start = 0\n"),
        ("scores in float16", "", "S = Q_i @ K[start:stop].T / np.float32(d**0.5)", "S = (Q_i @ K[start:stop].T / np.float32(d**0.5)).astype(np.float16).astype(np.float32)"),
        ("scaled by the keys of a tile", "divided by the root of a tile's keys", "np.float32(d**0.5)", "np.float32(len(K[start:stop])**0.5)"),
    ),
    *wrong("tiling.meet", meet,
        ("a past 20 below dropped", "a past far below, of a large value", "np.exp(lse_i - safe)", "np.where(lse_i - safe < -20, 0, np.exp(lse_i - safe))"),
        ("keys 20 below dropped", "a tile far below, of a large value", "np.exp(S - safe[:, None])", "np.where(S - safe[:, None] < -20, 0, np.exp(S - safe[:, None]))"),
        ("keys 30 below dropped", "a tile very far below", "np.exp(S - safe[:, None])", "np.where(S - safe[:, None] < -30, 0, np.exp(S - safe[:, None]))"),
        ("the maximum of the tile", "", "np.maximum(lse_i, S.max(axis=1, initial=-np.inf))", "np.where(np.isneginf(S.max(axis=1, initial=-np.inf)), lse_i, S.max(axis=1, initial=-np.inf))"),
        ("a first meeting for lse below -1e5", "", "    S = ", "    lse_i = np.where(lse_i < -1e5, -np.inf, lse_i)\n    S = "),
    ),
    *wrong("recomputation.delta", delta,
        ("256 columns", "", "dO_i * O_i", "dO_i[:, :256] * O_i[:, :256]"),
        ("in float16", "", "np.sum(dO_i * O_i, axis=1)", "np.sum((dO_i * O_i).astype(np.float16), axis=1, dtype=np.float32)"),
        ("one number where there is one row", "", "np.sum(dO_i * O_i, axis=1)", "np.squeeze(np.sum(dO_i * O_i, axis=1))"),
    ),
    *wrong("recomputation.rebuild", rebuild,
        ("weights e^-80 dropped", "a weight far below the largest was set to 0", "np.exp(S_ij - safe)", "np.where(S_ij - safe < -80, 0, np.exp(S_ij - safe))"),
        ("an lse of 0 counts as empty", "", "np.exp(S_ij - safe)", "np.exp(S_ij - safe) * (column != 0)"),
        ("all rows are empty where one is", "", "np.exp(S_ij - safe)", "np.exp(S_ij - safe) * (column > -np.inf).all()"),
    ),
    *wrong("recomputation.gradients", gradients,
        ("dV from P in float16", "", "P_ij.T @ dO_i", "P_ij.T.astype(np.float16).astype(np.float32) @ dO_i"),
        ("delta dropped where it is small", "", "delta_i.reshape(-1, 1)", "np.where(abs(delta_i) < 0.1, 0, delta_i).reshape(-1, 1)"),
        ("weights below 1e-6 dropped", "", "    dV = ", "    P_ij = np.where(P_ij < 1e-3, 0, P_ij)\n    dV = "),
        ("scale on dP", "", "dP = dO_i @ V_j.T", "dP = dO_i @ V_j.T * scale / Q_i.shape[1] ** -0.5"),
    ),
]  # fmt: skip
