"""Wrong answers to the exercises in numpy of the lessons on memory, Hopper, models, and what is beyond."""

import math

import numpy as np

from flashlab.reference.block_size import working_set
from flashlab.reference.eight_bits import TensorCore, to_e4m3
from flashlab.reference.online_softmax import State
from tests.mutants.answers import wrong


def matrix_bytes(N):
    return N * N * 2


def seconds(flops, nbytes, flop_rate, byte_rate):
    arithmetic = flops / flop_rate
    traffic = nbytes / byte_rate
    return arithmetic if arithmetic > traffic else traffic


def intensity(N, d):
    entries = N * d + N * d + N * N
    return 2 * N * N * d / (entries * 2)


def bytes_moved(N, d, itemsize, mask, dropout):
    passes = 4
    if mask:
        passes += 2
    if dropout:
        passes += 2
    total = passes * N * N + 4 * N * d
    return total * itemsize + (N * N if dropout else 0)


def reach(start, stop, w, N):
    first = max(0, start - w)
    last = min(N - 1, stop - 1 + w)
    return first, last + 1


def formula(M, d):
    Bc = math.ceil(M / (4 * d))
    return min(Bc, d), Bc


def elements(N, d, M):
    Bc = math.ceil(M / (4 * d))
    Tc = math.ceil(N / Bc)
    return (2 + Tc + Tc + Tc - 1) * N * d


def phase(it, stages):
    used, stage = divmod(it, stages)
    return stage, used % 2


def thread(i, j):
    warp, row = divmod(i, 16)
    return warp * 32 + (row % 8) * 4 + (j // 2) % 4


def registers(consumers, producer):
    launch = 65536 // ((consumers + 1) * 128)
    launch -= launch % 8
    mine = launch + (launch - producer) // consumers
    return mine - mine % 8


def longest_first(work, programs):
    lists, loads = [[] for _ in range(programs)], [0] * programs
    for t in np.argsort(-np.array(work), kind="stable").tolist():
        p = int(np.argmin(loads))
        lists[p].append(t)
        loads[p] += work[t]
    return lists


def window(rows, Nq, Nk, left, right):
    shift = Nk - Nq
    first, last = rows.start + shift, rows.stop - 1 + shift
    return max(0, first - left), min(Nk - 1, last + right) + 1


def documents(S_ij, i, j, ids):
    hidden = (ids[i] != ids[j]) | (j > i)
    S = S_ij.copy()
    S[hidden] = -np.inf
    return S


def softcap(S_ij, seen, cap):
    S = np.tanh(S_ij / cap) * cap
    S[~seen] = -np.inf
    return S


def cap_slope(S_ij, cap):
    t = np.tanh(S_ij / cap)
    return 1 - t * t


def sink(s, Br, dv):
    m = np.zeros(Br) + s
    return State(m, np.ones(Br), np.zeros((Br, dv)))


def positions(offsets):
    parts = [np.arange(b - a) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    return np.concatenate(parts)


def work(offsets, Br):
    tiles = []
    for text in range(len(offsets) - 1):
        N = int(offsets[text + 1] - offsets[text])
        for start in range(0, N, Br):
            tiles.append((text, start, min(start + Br, N)))
    return tiles


def with_dropout(state, S_ij, V_j, Z_ij):
    m_i, l_i, O_i = state
    m = np.maximum(m_i, S_ij.max(1))
    safe = np.where(np.isneginf(m), 0, m)
    alpha, P = np.exp(m_i - safe), np.exp(S_ij - safe[:, None])
    l = l_i * alpha + P.sum(1)
    return State(m, l, O_i * alpha[:, None] + (P * Z_ij) @ V_j)


def bits(i, j, words):
    word = words[(i // 8 % 2) * 2 + j // 8 % 2]
    return word // 65536 if j % 2 else word % 65536


def merged(O_s, lse_s):
    m = np.max(lse_s)
    if np.isneginf(m):
        return np.zeros(O_s.shape[1]), -np.inf
    w = np.exp(lse_s - m)
    return (w[:, None] * O_s).sum(0) / w.sum(), m + np.log(w.sum())


def parts(programs, tiles, slots):
    def share(S):
        w = programs * S / slots
        return w / math.ceil(w)

    best = max(share(S) for S in range(1, tiles + 1))
    S = 1
    while share(S) < 0.95 * best:
        S += 1
    return S


def packed(Q, Hk):
    H, n, d = Q.shape
    groups = np.split(Q, Hk)
    return np.stack([group.swapaxes(0, 1).reshape(n * H // Hk, d) for group in groups])


def look_up(K, table, N):
    page = K.shape[1]
    pages = -(-N // page)
    return K[table[:pages]].reshape(-1, K.shape[2])[:N]


def needed(length, n, page, shared):
    room = -length % page
    new = max(0, -(-(n - room) // page))
    return new + (1 if shared and room and n else 0)


def eight_bits(X):
    top = np.abs(X).max(axis=1)
    scale = np.where(top == 0, 1, top / 127)
    return np.rint(X / scale[:, None]), scale


def absorb(q, q_rope, C, R, W_K, W_V, scale):
    latent = np.stack([q[h] @ W_K[h] for h in range(len(q))])
    S = (latent @ C.T + q_rope @ R.T) * scale
    e = np.exp(S - S.max(axis=1)[:, None])
    O = (e / e.sum(axis=1)[:, None]) @ C
    return np.stack([W_V[h] @ O[h] for h in range(len(q))])


def turn(rank, step, P):
    ahead = (rank + 1) % P
    behind = (rank + P - 1) % P
    return (rank + P - step % P) % P, ahead, behind


def zigzag(rank, P, N):
    stretches = np.split(np.arange(N), 2 * P)
    return np.concatenate((stretches[rank], stretches[-1 - rank]))


def merge_finished(O, lse, O_b, lse_b):
    m = np.maximum(lse, lse_b)
    safe = np.where(np.isneginf(m), 0, m)
    a, b = np.exp(lse - safe), np.exp(lse_b - safe)
    total = a + b
    guarded = np.where(total == 0, 1, total)
    with np.errstate(divide="ignore"):
        return (a[:, None] * O + b[:, None] * O_b) / guarded[:, None], safe + np.log(total)


def overlap(H, Hk, itemsize, flop_rate, wire_rate):
    flops, nbytes = 4 * H, 2 * Hk * itemsize
    return (nbytes / wire_rate) / (flops / flop_rate)


def largest(sram_bytes, d, step):
    B = 0
    while sum(working_set(B + step, B + step, d).values()) <= sram_bytes:
        B += step
    return B


def choose(lengths, us, able, N):
    best = None
    for cell, length in enumerate(lengths):
        apart = abs(math.log2(length / N))
        for version, time in enumerate(us[cell]):
            if able[version] and math.isfinite(time) and (best is None or (apart, time) < best[0]):
                best = (apart, time), cell, version
    return best[1], best[2]


def merge_states(shrink, KV, shrink_b, KV_b):
    faded = KV * shrink_b
    return shrink * shrink_b, faded + KV_b


def chunk(KV, Q_i, K_i, V_i):
    O_i = np.zeros_like(V_i)
    for t in range(len(Q_i)):
        inside = Q_i[t] @ K_i[: t + 1].T
        O_i[t] = inside @ V_i[: t + 1] + Q_i[t] @ KV
    return O_i, KV + K_i.T @ V_i


def decayed(KV, Q_i, K_i, V_i, decay):
    O_i = np.zeros_like(V_i)
    for t in range(len(Q_i)):
        KV = decay * KV
        KV = KV + np.outer(K_i[t], V_i[t])
        O_i[t] = Q_i[t] @ KV
    return O_i, KV.astype(V_i.dtype)


def nearest(x):
    x = np.clip(x, -448, 448)
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**-6)))
    step = 2.0 ** (exponent - 3)
    return (np.round(x / step) * step).astype(np.float32)


def hadamard(X):
    d = X.shape[1]
    H = np.ones((1, 1))
    while len(H) < d:
        H = np.block([[H, H], [H, -H]])
    return X @ H.astype(X.dtype) / X.dtype.type(math.sqrt(d))


def without_mean(Q, K, scale):
    mean = K.sum(axis=0) / len(K)
    return K - mean[None, :], Q @ mean * scale


def rounded_weights(S, V, largest):
    top = S.max(axis=1, keepdims=True) - np.float32(math.log(largest))
    P = np.exp(S - top)
    total = P.sum(axis=1, keepdims=True)
    return (to_e4m3(P) @ V) / total, (top + np.log(total))[:, 0]


def two_level(P, V, flush):
    parts = [slice(at, at + flush) for at in range(0, len(V), flush)]
    zeros = np.zeros((P.shape[0], V.shape[1]), P.dtype)
    return sum((TensorCore()(zeros, P[:, part], V[part]) for part in parts), start=zeros)


def cycles(Br, Bc, d):
    tiles = Br / 128
    K_and_V = tiles * 2 * Bc * d
    return 4 * Br * Bc * d / 8192, (Br * d + K_and_V) * 2 / 128, Br * Bc / 16


def exp2(x, coefficients):
    low = np.clip(x, -127, None)
    whole = np.floor(low)
    rest = low - whole
    value = 0 * rest
    for c in reversed(coefficients):
        value = value * rest + c
    return np.ldexp(value, whole.astype(int))


def lazy(state, S_ij, V_j, threshold):
    top = np.maximum(state.m, S_ij.max(axis=1))
    high = top > state.m + threshold * np.log(2)
    m = np.where(high, top, state.m)
    safe = np.where(np.isneginf(m), 0, m)
    factor = np.exp(state.m - safe)
    P = np.exp(S_ij - safe[:, None])
    return State(m, factor * state.l + P.sum(axis=1), factor[:, None] * state.O + P @ V_j)


def order(program, T, causal):
    up = np.arange(program, T)
    return up if causal else np.append(up, np.arange(program))


ANSWERS = [
    *wrong("start_here.first", matrix_bytes,
        ("half of the matrix", "", "* 2", "+ N"),
    ),
    *wrong("memory_hierarchy.seconds", seconds,
        ("whole seconds", "dropped the fraction with //", "flops / flop_rate", "flops // flop_rate", "nbytes / byte_rate", "nbytes // byte_rate"),
        ("nothing without arithmetic", "", "    return", "    traffic *= flops > 0\n    return"),
    ),
    *wrong("memory_hierarchy.intensity", intensity,
        ("float32", "counted half of the FLOPs", "entries * 2", "entries * 4"),
    ),
    *wrong("standard_attention.bytes_moved", bytes_moved,
        ("either mask or dropout", "", "    if dropout:\n", "    elif dropout:\n"),
    ),
    *wrong("roads_not_taken.reach", reach,
        ("not below 1", "", "max(0,", "max(1,"),
        ("counted in float16", "", "stop - 1 + w", "int(np.float16(stop - 1 + w))"),
    ),
    *wrong("block_size.largest", largest,
        ("up to 1,024", "", "    while", "    while B + step <= 1024 and"),
    ),
    *wrong("block_size.formula", formula,
        ("one more", "one too many", "math.ceil(M / (4 * d))", "M // (4 * d) + 1"),
        ("rounded", "", "math.ceil(M / (4 * d))", "round(M / (4 * d))"),
        ("0.999 added", "", "math.ceil(M / (4 * d))", "int(M / (4 * d) + 0.999)"),
    ),
    *wrong("io_complexity.elements", elements,
        ("whole tiles alone", "dropped the last tile of keys", "math.ceil(N / Bc)", "N // Bc"),
        ("Bc rounded down", "rounded Bc down", "math.ceil(M / (4 * d))", "M // (4 * d)"),
    ),
    *wrong("barriers.phase", phase,
        ("a mask for the stage", "took the remainder with a bit mask", "return stage", "return it & stages - 1"),
        ("the count modulo the stages", "", "used % 2", "used % stages % 2"),
        ("the bit of the step", "flipped the bit with every step", "used % 2", "it % 2"),
        ("at most two phases", "", "used % 2", "min(used, 1)"),
    ),
    *wrong("gluon.thread", thread,
        ("the first 64 columns", "", "(j // 2) % 4", "(j // 2) % 4 * (j < 64)"),
    ),
    *wrong("gluon.registers", registers,
        ("no rounding at the launch", "did not round down what the launch gives", "    launch -= launch % 8\n", ""),
    ),
    *wrong("schedules.longest_first", longest_first,
        ("work emptied", "it changed its inputs", "        loads[p] += work[t]\n", "        loads[p] += work[t]\n        work[t] = 0\n"),
        ("in order", "took the tiles in their order", "np.argsort(-np.array(work), kind=\"stable\").tolist()", "range(len(work))"),
    ),
    *wrong("masks_and_scores.bounds", window,
        ("max(shift, 0)", "more queries than keys", "Nk - Nq", "max(Nk - Nq, 0)"),
        ("left on both sides", "", "last + right", "last + min(left, right)"),
    ),
    *wrong("masks_and_scores.documents", documents,
        ("a NaN that is seen is hidden", "a NaN that is seen was replaced", "S_ij.copy()", "np.where(S_ij == S_ij, S_ij, -np.inf)"),
        ("neighbours in number", "", "ids[i] != ids[j]", "abs(ids[i] - ids[j]) > 1"),
        ("the own key", "hid the query's own key", "j > i", "j >= i"),
        ("numbers in 8 bits", "", "ids[i] != ids[j]", "ids.astype(np.int8)[i] != ids.astype(np.int8)[j]"),
        ("hidden by a sum", "a hidden score that is NaN stays NaN", "    S[hidden] = -np.inf\n", "    S = S + np.where(hidden, -np.inf, 0)\n"),
    ),
    *wrong("masks_and_scores.softcap", softcap,
        ("small scores as they are", "", "np.tanh(S_ij / cap) * cap", "np.where(abs(S_ij) < 0.1 * cap, S_ij, np.tanh(S_ij / cap) * cap)"),
        ("-1e9", "with a large negative number", "-np.inf", "-1e9"),
    ),
    *wrong("masks_and_scores.cap_slope", cap_slope,
        ("flat beyond the cap", "", "1 - t * t", "(1 - t * t) * (abs(S_ij) < cap)"),
        ("the slope of clipped scores", "\nNone", "1 - t * t", "1.0 * (abs(S_ij) < cap)"),
    ),
    *wrong("masks_and_scores.sink", sink,
        ("not below 0", "", "np.zeros(Br) + s", "np.zeros(Br) + max(s, 0)"),
        ("0 from 700 on", "", "np.zeros(Br) + s", "np.zeros(Br) + s * (abs(s) < 700)"),
        ("in float16", "", "np.zeros(Br) + s", "np.zeros(Br) + np.float16(s)"),
    ),
    *wrong("packed_texts_and_dropout.positions", positions,
        ("in int16", "", "np.concatenate(parts)", "np.concatenate(parts).astype(np.int16)"),
        ("goes on after an empty text", "", "strict=True)]", "strict=True) if b > a] if offsets[1] else [np.arange(offsets[-1])]"),
    ),
    *wrong("packed_texts_and_dropout.work", work,
        ("cut at Br", "the last tile of a text reach into the next one", "min(start + Br, N)", "start + Br"),
        ("a tile for an empty text", "", "range(0, N, Br)", "range(0, max(N, 1), Br)"),
        ("the last row alone is left out", "left out a last tile of one row", "range(0, N, Br)", "range(0, N - 1, Br)"),
    ),
    *wrong("packed_texts_and_dropout.update", with_dropout,
        ("p = 0.5 always", "", "P * Z_ij", "P * 2 * (Z_ij > 0)"),
        ("maximum of what is kept", "", "S_ij.max(1)", "np.where(Z_ij > 0, S_ij, -np.inf).max(1)"),
        ("alpha clipped", "", "np.exp(m_i - safe)", "np.exp(np.maximum(m_i - safe, -20)) * (m_i > -np.inf)"),
    ),
    *wrong("packed_texts_and_dropout.bits", bits,
        ("bits 2", "took bit 2", "i // 8", "i // 4", "j // 8", "j // 4"),
        ("the first 16 rows", "", "i // 8 % 2", "min(i // 8, 1)"),
    ),
    *wrong("decoding.merge", merged,
        ("an lse of 0 counts as empty", "", "    w = np.exp(lse_s - m)", "    w = np.exp(np.where(lse_s == 0, -np.inf, lse_s) - m)"),
        ("a part of output 0 counts as empty", "", "    m = np.max(lse_s)", "    lse_s = np.where(O_s.any(1), lse_s, -np.inf)\n    m = np.max(lse_s)"),
        ("the first eight parts alone", "", "    m = np.max(lse_s)", "    O_s, lse_s = O_s[:8], lse_s[:8]\n    m = np.max(lse_s)"),
        ("empty below -1e6", "", "np.isneginf(m)", "m < -1e6"),
        ("weights below 1e-6 set to 0", "it is small, but many of them", "w = np.exp(lse_s - m)", "w = np.exp(lse_s - m)\n    w[w < 1e-6] = 0"),
    ),
    *wrong("decoding.parts", parts,
        ("more than 0.95", "", "<", "<="),
        ("0.95 of all", "You required a share of 0.95.", "0.95 * best", "min(0.95, best)"),
        ("of 128 parts at most", "", "range(1, tiles + 1)", "range(1, min(tiles, 128) + 1)"),
    ),
    *wrong("decoding.packed", packed,
        ("head first", "You let rows run over heads first.", "group.swapaxes(0, 1)", "group"),
        ("in float16", "", "np.split(Q, Hk)", "np.split(np.float32(np.float16(Q)), Hk)"),
        ("heads in turn", "You took every Hk-th head for a group.", "np.split(Q, Hk)", "[Q[h::Hk] for h in range(Hk)]"),
    ),
    *wrong("the_cache.look_up", look_up,
        ("a page too few", "", "-(-N // page)", "N // page"),
        ("each page once", "", "table[:pages]", "list(dict.fromkeys(table[:pages].tolist()))"),
        ("the whole table", "You used entries past the text's last page.", "table[:pages]", "table"),
    ),
    *wrong("the_cache.needed", needed,
        ("copied though nothing comes", "You copied a page though n is 0.", "room and n", "room"),
        ("a copy for every shared text", "You copied a full page.", "shared and room and n", "shared and n"),
        ("copied only where it fits", "", "shared and room and n", "shared and room >= n > 0"),
        ("two tokens at least", "", "room and n", "room and n > 1"),
    ),
    *wrong("the_cache.eight_bits", eight_bits,
        ("tiny rows are zeros", "", "top == 0", "top < 1e-8"),
    ),
    *wrong("the_cache.absorb", absorb,
        ("no maximum", "You did not subtract the maximum of each head's scores.", "S - S.max(axis=1)[:, None]", "S"),
        ("weights below 1e-6 set to 0", "it is small, but many of them", "    O = ", "    e[e < 1e-6] = 0\n    O = "),
        ("the position unscaled", "You scaled only a part of the score.", "(latent @ C.T + q_rope @ R.T) * scale", "latent @ C.T * scale + q_rope @ R.T"),
    ),
    *wrong("many_gpus.turn", turn,
        ("the ring closed at 4 ranks, not at P", "", "(rank + P - step % P) % P", "rank - step if rank >= step else rank - step + 4"),
    ),
    *wrong("many_gpus.zigzag", zigzag,
        ("contiguous", "You returned one stretch per rank", "stretches[rank], stretches[-1 - rank]", "stretches[2 * rank], stretches[2 * rank + 1]"),
    ),
    *wrong("many_gpus.merge", merge_finished,
        ("m of a", "", "np.maximum(lse, lse_b)", "lse"),
        ("a side of output 0 counts as empty", "", "    m = ", "    lse, lse_b = np.where(O.any(1), lse, -np.inf), np.where(O_b.any(1), lse_b, -np.inf)\n    m = "),
        ("a side 14 below dropped", "it is small, but many of them", "np.exp(lse_b - safe)", "np.where(lse_b < safe - 14, 0, np.exp(lse_b - safe))"),
        ("guard below -1e6", "", "np.isneginf(m)", "(m < -1e6)"),
        ("no guard", "", "np.where(np.isneginf(m), 0, m)", "m"),
    ),
    *wrong("eight_bits.nearest", nearest,
        ("480", "You took 480 for the largest number.", "np.clip(x, -448, 448)", "np.clip(x, -480, 480)"),
        ("rounded to float16 first", "", "np.clip(x, -448, 448)", "np.float32(np.float16(np.clip(x, -448, 448)))"),
        ("no subnormals", "", "    return", "    x = np.where(np.abs(x) < 2.0**-7, 0, x)\n    return"),
        ("ties up", "You rounded ties up.", "np.round(x / step)", "np.floor(x / step + 0.5)"),
        ("negative numbers cut off", "", "np.round(x / step)", "np.where(x < 0, np.trunc(x / step), np.round(x / step))"),
    ),
    *wrong("eight_bits.hadamard", hadamard,
        ("at most 128 columns are mixed", "", "len(H) < d:\n        H = np.block([[H, H], [H, -H]])", "len(H) < d:\n        H = np.block([[H, H], [H, -H]]) if len(H) < 128 else np.kron(np.eye(2), H)"),
        ("at most 32 columns are mixed", "", "len(H) < d:\n        H = np.block([[H, H], [H, -H]])", "len(H) < d:\n        H = np.block([[H, H], [H, -H]]) if len(H) < 32 else np.kron(np.eye(2), H)"),
    ),
    *wrong("eight_bits.without_mean", without_mean,
        ("1/√d for the scale", "\nNone", "Q @ mean * scale", "Q @ mean * Q.shape[1] ** -0.5"),
        ("the sum over a key less", "\nNone", "    return", "    mean = K.sum(axis=0) / max(1, len(K) - 1)\n    return"),
    ),
    *wrong("eight_bits.weights", rounded_weights,
        ("256 for the largest", "", "math.log(largest)", "math.log(256)"),
        ("no maximum below 0", "", "S.max(axis=1, keepdims=True)", "np.maximum(S.max(axis=1, keepdims=True), 0)"),
    ),
    *wrong("eight_bits.two_level", two_level,
        ("the short part dropped", "You left out the last part.", "range(0, len(V), flush)", "range(0, len(V) - flush + 1, flush)"),
        ("128 always", "", "slice(at, at + flush) for at in range(0, len(V), flush)", "slice(at, at + 128) for at in range(0, len(V), 128)"),
    ),
    *wrong("many_gpus.overlap", overlap,
        ("all heads", "You sent all H heads.", "2 * Hk * itemsize", "2 * H * itemsize"),
    ),
    *wrong("which_version_when.choose", choose,
        ("difference", "took the nearest cell by the difference of lengths", "abs(math.log2(length / N))", "abs(length - N)"),
        ("the first version", "\nNone", "(apart, time) < best[0]", "(apart, version) < best[0]", "best = (apart, time)", "best = (apart, version)"),
        ("longer cells only", "", "abs(math.log2(length / N))", "math.log2(length / N) % 99"),
    ),
    *wrong("linear_attention.merge", merge_states,
        ("no decay", "did not shrink the earlier state", "KV * shrink_b", "KV"),
        ("factor of the second", "", "return shrink * shrink_b,", "return shrink_b,"),
    ),
    *wrong("linear_attention.chunk", chunk,
        ("all of the chunk", "let a query see later tokens of its chunk", "K_i[: t + 1].T\n        O_i[t] = inside @ V_i[: t + 1]", "K_i.T\n        O_i[t] = inside @ V_i"),
        ("no past", "left the past out of the output", " + Q_i[t] @ KV", ""),
    ),
    *wrong("linear_attention.decayed", decayed,
        ("no decay", "", "decay * KV", "KV"),
        ("64 tokens, where nothing decays", "", "    O_i = ", "    if decay == 1:\n        Q_i, K_i, V_i = Q_i[:64], K_i[:64], V_i[:64]\n    O_i = "),
        ("quotients of powers", "", "    O_i = ", "    up = decay ** np.arange(1.0, len(Q_i) + 1)[:, None]\n    return up * (Q_i @ KV + np.tril(Q_i @ (K_i / up).T) @ V_i), up[-1] * (KV + (K_i / up).T @ V_i)\n    O_i = "),
    ),
    *wrong("next_machine.cycles", cycles,
        ("K and V once", "read K and V once", "tiles * 2", "2"),
    ),
    *wrong("next_machine.exp2", exp2,
        ("truncated", "rounded n towards 0", "np.floor", "np.fix"),
        ("in half precision", "rounds more coarsely", "np.ldexp(value,", "np.ldexp(value.astype(np.float16),"),
        ("in float64", "return float32, like x", "np.ldexp(value,", "np.ldexp(value.astype(float),"),
        ("x raised to -126", "raise x to −127, no further", "-127", "-126"),
    ),
    *wrong("next_machine.lazy", lazy,
        ("natural threshold", "compared scores with the threshold as it is", "threshold * np.log(2)", "threshold"),
        ("never raised", "\nNone", "np.where(high, top, state.m)", "np.where(np.isneginf(state.m), top, state.m)"),
        ("raised for all rows", "raised all rows for one", "np.where(high, top, state.m)", "top if high.any() else state.m"),
        ("guard below -1e6", "", "np.isneginf(m)", "(m < -1e6)"),
        ("no guard", "subtracted −∞ from −∞", "np.where(np.isneginf(m), 0, m)", "m"),
        ("a threshold of 8", "took 8 for the threshold", "threshold * np.log(2)", "8 * np.log(2)"),
    ),
    *wrong("next_machine.order", order,
        ("from 0", "all programs begin at the first tile", "up if causal else np.append(up, np.arange(program))", "up if causal else np.arange(T)"),
        ("all in causal", "visited tiles that do not see the keys", "up if causal else np.append(up, np.arange(program))", "np.append(up, np.arange(program))"),
    ),
]  # fmt: skip
