"""tiling: right solutions pass however they are written."""

import numpy as np
import torch

from flashlab.reference import online_softmax
from flashlab.reference.attention import attention
from tests.course.exercises import right


def mask_by_loops(S_ij, rows, cols, Nq, Nk):
    S_ij = S_ij.copy()
    for i in range(rows.start, rows.stop):
        for j in range(cols.start, cols.stop):
            if Nq - i > Nk - j:
                S_ij[i - rows.start, j - cols.start] = -np.inf
    return S_ij


def mask_by_cutting(S_ij, rows, cols, Nq, Nk):
    return np.where(np.tri(Nq, Nk, Nk - Nq, dtype=bool)[rows, cols], S_ij, -np.inf)


def mask_in_torch(S_ij, rows, cols, Nq, Nk):
    hidden = torch.ones(Nq, Nk).triu(1 + Nk - Nq)[rows, cols].bool()
    return torch.tensor(S_ij).masked_fill(hidden, -torch.inf)


def inside_by_merging(Q_i, K, V, Bc):
    state = online_softmax.identity(len(Q_i), V.shape[1])
    for cut in range(0, len(K), Bc):
        S_ij = (Q_i @ K[cut : cut + Bc].T) / np.float32(np.sqrt(Q_i.shape[1]))
        part = online_softmax.update(online_softmax.identity(len(Q_i), V.shape[1]), S_ij, V[cut : cut + Bc])
        state = online_softmax.merge(part, state)
    return online_softmax.finish(state)


def inside_in_torch(Q_i, K, V, Bc):
    Q, K, V = (torch.tensor(tensor) for tensor in (Q_i, K, V))
    lse, O = torch.full((len(Q),), -torch.inf), torch.zeros(len(Q), V.shape[1])
    for K_j, V_j in zip(K.split(Bc), V.split(Bc), strict=True):
        S = Q @ K_j.T / Q.shape[1] ** 0.5
        total = torch.logaddexp(lse, S.logsumexp(1))
        O = (lse - total).exp()[:, None] * O + (S - total[:, None]).exp() @ V_j
        lse = total
    return O, lse


def inside_of_views(Q_i, K, V, Bc):
    cuts = range(Bc, np.shape(K)[0], Bc)
    return _met(Q_i, zip(np.split(K, cuts), np.split(V, cuts), strict=True), np.zeros_like(V[:1]).shape[1])


def inside_of_chosen_rows(Q_i, K, V, Bc):
    places = [np.arange(cut, min(cut + Bc, len(K))) for cut in range(0, len(K), Bc)]
    return _met(Q_i, [(K[at], np.take(V, at, axis=0)) for at in places], V.shape[1])


def inside_from_the_last_tile(Q_i, K, V, Bc):
    return _met(Q_i, [(K[at : at + Bc], V[at : at + Bc]) for at in reversed(range(0, len(K), Bc))], V.shape[1])


def inside_with_the_short_tile_first(Q_i, K, V, Bc):
    cuts = [0, *range(len(K) % Bc, len(K) + 1, Bc)]
    return _met(Q_i, [(K[a:b], V[a:b]) for a, b in zip(cuts[:-1], cuts[1:], strict=True) if a < b], V.shape[1])


def inside_of_tiles_of_like_size(Q_i, K, V, Bc):
    tiles = -(-len(K) // Bc)
    return _met(Q_i, zip(np.array_split(K, tiles), np.array_split(V, tiles), strict=True), V.shape[1])


def inside_padded(Q_i, K, V, Bc):
    """Zeros appended, and their scores masked."""
    N, more = len(K), -len(K) % Bc
    K, V = (np.vstack([X, np.zeros((more, X.shape[1]), X.dtype)]) for X in (K, V))
    state = online_softmax.identity(len(Q_i), V.shape[1])
    for cut in range(0, len(K), Bc):
        S_ij = Q_i @ K[cut : cut + Bc].T / np.float32(np.sqrt(Q_i.shape[1]))
        S_ij = np.where(np.arange(cut, cut + Bc) < N, S_ij, -np.inf).astype(np.float32)
        state = online_softmax.update(state, S_ij, V[cut : cut + Bc])
    return online_softmax.finish(state)


def inside_by_loops(Q_i, K, V, Bc):
    """Score by score within a tile, and its values one by one."""
    scale = np.float32(Q_i.shape[1] ** -0.5)
    m, l, O = online_softmax.identity(len(Q_i), V.shape[1])
    for cut in range(0, len(K), Bc):
        keys = range(cut, min(cut + Bc, len(K)))
        S = np.array([[scale * np.dot(q, K[j]) for j in keys] for q in Q_i])
        m, old = np.maximum(m, S.max(1)), m
        l, O = l * np.exp(old - m), O * np.exp(old - m)[:, None]
        for j in keys:
            P = np.exp(S[:, j - cut] - m)
            l, O = l + P, O + np.outer(P, V[j])
    return O / l[:, None], m + np.log(l)


def inside_in_float64(Q_i, K, V, Bc):
    Q_i, K, V = np.float64(Q_i), K.astype(float), np.asarray(V, np.float64)
    return _met(Q_i, [(K.T[:, at : at + Bc].T, V[at : at + Bc]) for at in range(0, len(K), Bc)], V.shape[1])


def _met(Q_i, tiles, dv):
    """Return O and lse after these tiles."""
    m, l, O = online_softmax.identity(len(Q_i), dv)
    for K_j, V_j in tiles:
        S = np.einsum("id,jd->ij", Q_i, K_j) / np.sqrt(Q_i.shape[1])
        m, old = np.maximum(m, S.max(1)), m
        P, alpha = np.exp(S - m[:, None]), np.exp(old - m)
        l, O = alpha * l + P.sum(1), alpha[:, None] * O + P @ V_j
    return O / l[:, None], m + np.log(l)


def inside_with_the_first_tile_before_the_loop(Q_i, K, V, Bc):
    Q_i = Q_i / np.sqrt(Q_i.shape[1])
    S_ij = Q_i @ K[:Bc].T
    m = S_ij.max(-1)
    P_ij = np.exp(S_ij - m[:, None])
    state = online_softmax.State(m, P_ij.sum(-1), P_ij @ V[:Bc])
    for cut in range(Bc, len(K), Bc):
        state = online_softmax.update(state, Q_i @ K[cut : cut + Bc].T, V[cut : cut + Bc])
    return online_softmax.finish(state)


def meet_by_logaddexp(Q_i, K_j, V_j, O_i, lse_i):
    S_ij = Q_i @ K_j.T / np.sqrt(Q_i.shape[1])
    m = S_ij.max(-1)
    lse = np.logaddexp(lse_i, m + np.log(np.exp(S_ij - m[:, None]).sum(-1)))
    return np.exp(lse_i - lse)[:, None] * O_i + np.exp(S_ij - lse[:, None]) @ V_j, lse


def meet_by_mixing(Q_i, K_j, V_j, O_i, lse_i):
    """The outputs of both parts, weighted."""
    O_j, lse_j = attention(Q_i, K_j, V_j, return_lse=True)
    lse = np.logaddexp(lse_i, lse_j)
    share = np.exp(lse_i - np.maximum(lse, -3.4e38))[:, None]
    return share * O_i + np.exp(lse_j - np.maximum(lse, -3.4e38))[:, None] * O_j, lse


def meet_by_merging(Q_i, K_j, V_j, O_i, lse_i):
    S_ij = (Q_i @ K_j.T) / np.float32(np.sqrt(Q_i.shape[1]))
    part = online_softmax.update(online_softmax.identity(len(Q_i), V_j.shape[1]), S_ij, V_j)
    return online_softmax.finish(online_softmax.merge(part, online_softmax.State(lse_i, 1 + 0 * O_i[:, 0], O_i)))


def meet_with_one_more_key(Q_i, K_j, V_j, O_i, lse_i):
    """A finished row is a key with score lse and value O."""
    rows = []
    for q, o, lse in zip(Q_i, O_i, lse_i, strict=True):
        s = np.append(K_j @ q / np.sqrt(len(q)), lse)
        p = np.exp(s - max(s.max(), -3.4e38))
        rows.append((p @ np.vstack([V_j, o]) / max(p.sum(), 1e-30), s.max() + np.log(p.sum())))
    return tuple(np.array(part) for part in zip(*rows, strict=True))


def forward_around(inside):
    """Return the loop over tiles of queries around an ``inside``."""

    def forward(Q, K, V, Br, Bc):
        parts = [inside(Q[at : at + Br], K, V, Bc) for at in range(0, len(Q), Br)]
        return tuple(np.concatenate([np.asarray(part[i]) for part in parts]) for i in (0, 1))

    return forward


def forward_by_cuts(Q, K, V, Br, Bc):
    """Tiles of queries of nearly equal size, and the product of K and Qᵀ, transposed."""
    tiles = np.array_split(Q, -(-len(Q) // Br))
    states = [online_softmax.identity(len(Q_i), V.shape[1]) for Q_i in tiles]
    for i, Q_i in enumerate(tiles):
        for at in range(0, len(K), Bc):
            S = (K[at : at + Bc] @ Q_i.T).T / np.sqrt(Q.shape[1])
            states[i] = online_softmax.update(states[i], S, V[at : at + Bc])
    O, lse = zip(*map(online_softmax.finish, states), strict=True)
    return np.vstack(O), np.hstack(lse)


RIGHT = {
    "tiling.mask": [mask_by_loops, mask_by_cutting, mask_in_torch],
    "tiling.inside": [
        inside_by_merging,
        inside_in_torch,
        inside_with_the_first_tile_before_the_loop,
        inside_of_views,
        inside_of_chosen_rows,
        inside_from_the_last_tile,
        inside_with_the_short_tile_first,
        inside_padded,
        inside_of_tiles_of_like_size,
        inside_by_loops,
        inside_in_float64,
    ],
    "tiling.forward": [
        forward_by_cuts,
        forward_around(inside_by_merging),
        forward_around(inside_by_loops),
        forward_around(inside_padded),
        forward_around(inside_of_chosen_rows),
    ],
    "tiling.meet": [meet_by_logaddexp, meet_by_mixing, meet_by_merging, meet_with_one_more_key],
}

test_right_answers_pass = right.all_pass(RIGHT)
