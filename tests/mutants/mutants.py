"""Wrong implementations, each one small edit of a right one. Adding one is adding a line."""

from typing import NamedTuple

from flashlab import dropout, online, recompute, tiling
from flashlab.kernels import backward, forward
from tests.mutants import acceptance


class Mutant(NamedTuple):
    """``function`` of ``module`` with ``old`` replaced by ``new``; ``check`` of acceptance.py must reject it."""

    mistake: str
    module: object
    function: str
    old: str
    new: str
    check: object


def _of(module, check, *edits):
    return [Mutant(mistake, module, function, old, new, check) for mistake, function, old, new in edits]


MUTANTS = [
    *_of(online, acceptance.tiled_forward,
        ("no rescale of l", "update", "alpha * l_i +", "l_i +"),
        ("no rescale of O", "update", "alpha[:, None] * O_i +", "O_i +"),
        ("no rescale of either", "update", "np.exp(m_i - m_safe)", "np.ones_like(m_i)"),
        ("rescale by the inverse", "update", "np.exp(m_i - m_safe)", "np.exp(np.where(m_i == -np.inf, -np.inf, m_safe - m_i))"),
        ("maximum of the tile only", "update", "np.maximum(m_i, S_ij.max(-1, initial=-np.inf))", "S_ij.max(-1, initial=-np.inf)"),
        ("no maximum subtracted", "update", "S_ij - m_safe[:, None]", "S_ij"),
        ("−∞ unguarded", "update", "np.where(m_new == -np.inf, 0, m_new)", "m_new"),
        ("m starts at 0 and l at 1, as if there were a key before the first", "identity", "np.full(Br, -np.inf, dtype), np.zeros(Br, dtype)", "np.zeros(Br, dtype), np.ones(Br, dtype)"),
        ("m starts at 0", "identity", "np.full(Br, -np.inf, dtype)", "np.zeros(Br, dtype)"),
        ("output not divided by l", "finish", "state.O / l_safe[:, None]", "state.O"),
        ("lse without the maximum", "finish", "state.m + np.log(l_safe)", "np.log(l_safe)"),
        ("lse in log2", "finish", "np.log(l_safe)", "np.log2(l_safe)"),
        ("0 / 0 in a row that sees no key", "finish", "np.where(state.l == 0, 1, state.l)", "state.l"),
        ("O accumulated in half precision", "update", "O_i = alpha[:, None] * O_i + P_ij @ V_j", "O_i = (alpha[:, None] * O_i + P_ij @ V_j).astype(np.float16).astype(O_i.dtype)"),
        ("l accumulated in half precision", "update", "l_i = alpha * l_i + P_ij.sum(-1)", "l_i = (alpha * l_i + P_ij.sum(-1)).astype(np.float16).astype(l_i.dtype)"),
    ),
    *_of(tiling, acceptance.tiled_forward,
        ("last tile dropped", "tiles", "range(0, N, B)", "range(0, N - N % B or N, B)"),
        ("last tile doubled", "tiles", "for start in range(0, N, B)]", "for start in [*range(0, N, B), *range(0, N, B)[-1:]]]"),
        ("mask off by one, one key too many", "scores", "np.where(j <= i + shift", "np.where(j <= i + shift + 1"),
        ("mask off by one, own key unseen", "scores", "np.where(j <= i + shift", "np.where(j < i + shift"),
        ("mask aligned at the upper left", "scores", "np.where(j <= i + shift", "np.where(j <= i"),
        ("mask counted within the tile", "scores", "np.ogrid[rows, cols]", "np.ogrid[: len(Q_i), : len(K_j)]"),
        ("a large negative number for −∞", "scores", "-np.inf)", "S_ij.dtype.type(-1e9))"),
        ("diagonal tiles not masked", "scores", "cols.stop - 1 > rows.start + shift", "False"),
        ("tiles on the diagonal skipped", "meet", "rows.stop - 1 + shift", "rows.start - 1 + shift"),
        ("scale forgotten", "scores", "scale * (Q_i @ K_j.T)", "Q_i @ K_j.T"),
        ("scale applied twice", "scores", "scale * (Q_i @ K_j.T)", "scale * scale * (Q_i @ K_j.T)"),
        ("scale 1 % off", "scores", "scale * (Q_i @ K_j.T)", "1.01 * scale * (Q_i @ K_j.T)"),
        ("√d of the value dimension", "prepare", "Q.shape[1] ** -0.5", "V.shape[1] ** -0.5"),
        ("fully masked rows never written", "fa1_forward", "if j > 0 and not meet", "if not meet"),
        ("state reloaded with l = 0", "fa1_forward", "np.ones_like(lse_i)", "np.zeros_like(lse_i)"),
        ("values of the first tile for every tile", "fa2_forward", 'memory.load("V", cols)', 'memory.load("V", keys[0])[: len(memory.tensors["K"][cols])]'),
    ),
    *_of(tiling, acceptance.tiled_traffic,
        ("tiles behind the diagonal loaded", "fa2_forward", "                    break\n", "                    memory.load(\"K\", cols)\n                    break\n"),
        ("lse not counted", "fa1_traffic", '("load", "lse"): again * stat', '("load", "lse"): 0'),
        ("keys counted for whole rows of tiles", "fa2_traffic", "min(_round_up(n, Bc), Nk)", "Nk"),
    ),
    *_of(recompute, acceptance.tiled_backward,
        ("delta forgotten", "gradients", "(dP_ij - delta_i[:, None])", "dP_ij"),
        ("delta of the tile only", "gradients", "delta_i[:, None]", "(P_ij * dP_ij).sum(-1, keepdims=True)"),
        ("delta of P instead of O", "delta", "return (dO_i * O_i)", "return (dO_i * np.sign(O_i))"),
        ("delta added", "gradients", "dP_ij - delta_i", "dP_ij + delta_i"),
        ("dQ unscaled", "gradients", "scale * (dS_ij @ K_j)", "dS_ij @ K_j"),
        ("dK unscaled", "gradients", "scale * (dS_ij.T @ Q_i)", "dS_ij.T @ Q_i"),
        ("dS not multiplied by P", "gradients", "P_ij * (dP_ij", "(dP_ij"),
        ("dV from dP instead of P", "gradients", "(Z_ij * P_ij).T @ dO_i", "(Z_ij * (P_ij - 1)).T @ dO_i"),
        ("weights not normalised: lse forgotten", "rebuild", "S_ij - lse_safe[:, None]", "S_ij"),
        ("−∞ unguarded", "rebuild", "np.where(lse_i == -np.inf, 0, lse_i)", "lse_i"),
        ("dQ not accumulated", "backward", "dQ_i + part.dQ", "part.dQ"),
        ("dK not accumulated", "backward", "dK_j += part.dK", "dK_j[:] = part.dK"),
        ("dK and dV swapped", "gradients", "Gradients(dQ_i, dK_j, dV_j)", "Gradients(dQ_i, dV_j, dK_j)"),
        ("tiles of the diagonal skipped", "backward", "not meet(rows, cols, shift)", "cols.stop > rows.start + shift"),
    ),
    *_of(dropout, acceptance.tiled_dropout,
        ("kept weights not divided by 1 − p", "Dropout.tile", "dtype(1 / (1 - self.p))", "dtype(1)"),
        ("mask counted within the tile", "Dropout.tile", "np.ogrid[rows, cols]", "np.ogrid[: rows.stop - rows.start, : cols.stop - cols.start]"),
    ),
    *_of(recompute, acceptance.tiled_dropout,
        ("dropout redrawn in the backward", "backward", "dropout.tile(rows, cols", "type(dropout)(dropout.p, dropout.seed + 1).tile(rows, cols"),
        ("denominator of the kept weights only", "_dropped", "P_ij.sum(-1)", "(np.sign(Z_ij) * P_ij).sum(-1)"),
        ("dropout forgotten in dP", "gradients", "Z_ij * (dO_i @ V_j.T)", "dO_i @ V_j.T"),
        ("dropout forgotten in dV", "gradients", "(Z_ij * P_ij).T", "P_ij.T"),
    ),
    *_of(forward, acceptance.kernel_forward,
        ("kernel: no rescale of l", "update", "alpha * l_i +", "l_i +"),
        ("kernel: no rescale of O", "update", "alpha[:, None] * O_i", "O_i"),
        ("kernel: no rescale of either", "update", "tl.exp2(m_i - m_safe)", "tl.exp2((m_i - m_safe) * 0)"),
        ("kernel: maximum of the tile only", "update", "tl.maximum(m_i, tl.max(S_ij, 1) * scale_log2)", "tl.max(S_ij, 1) * scale_log2"),
        ("kernel: no maximum subtracted", "update", "S_ij * scale_log2 - m_safe[:, None]", "S_ij * scale_log2"),
        ("kernel: −∞ unguarded", "update", 'tl.where(m_new == -float("inf"), 0, m_new)', "m_new"),
        ("kernel: e for 2", "update", "tl.exp2(S_ij * scale_log2", "tl.exp(S_ij * scale_log2"),
        ("kernel: mask off by one", "update", "<= last_seen", "< last_seen"),
        ("kernel: a large negative number for −∞", "update", 'S_ij, -float("inf"))', "S_ij, -1.0e6)"),
        ("kernel: keys padded with zeros", "update", "if masked:", "if False:"),
        ("kernel: weights in half precision", "update", "P_ij.to(V_j.dtype)", "P_ij.to(tl.float16).to(V_j.dtype)"),
        ("kernel: m starts at 0", "attention_forward", 'tl.full([Br], -float("inf"), tl.float32)', "tl.zeros([Br], tl.float32)"),
        ("kernel: lse in log2", "attention_forward", "(m_i + tl.log2(l_safe)) * LN2", "(m_i + tl.log2(l_safe))"),
        ("kernel: lse without the maximum", "attention_forward", "(m_i + tl.log2(l_safe))", "(tl.log2(l_safe))"),
        ("kernel: not divided by l", "attention_forward", "O_i * (1 / l_safe)[:, None]", "O_i"),
        ("kernel: mask aligned at the upper left", "attention_forward", "last_seen = rows + Nk - Nq", "last_seen = rows"),
        ("kernel: last tile dropped", "attention_forward", "        seen = Nk\n", "        seen = Nk // Bc * Bc\n"),
        ("kernel: diagonal tiles not masked", "attention_forward", "tl.maximum(tl.minimum(i * Br + Nk - Nq + 1, Nk), 0) // Bc * Bc", "tl.cdiv(tl.maximum(tl.minimum((i + 1) * Br + Nk - Nq, Nk), 0), Bc) * Bc"),
        ("kernel: heads of a group interleaved", "attention_forward", "hk = h // group", "hk = h % (tl.num_programs(1) // group)"),
    ),
    *_of(backward, acceptance.kernel_backward,
        ("kernel: delta forgotten in dK", "add_rows", "(dPt_ij - delta_i[None, :])", "dPt_ij"),
        ("kernel: delta forgotten in dQ", "add_columns", "(dP_ij - delta_i[:, None])", "dP_ij"),
        ("kernel: dK unscaled", "key_value_gradients", "dK_j * scale", "dK_j"),
        ("kernel: dQ unscaled", "query_gradients", "dQ_i * scale", "dQ_i"),
        ("kernel: mask forgotten in dK and dV", "add_rows", "if masked:", "if False:"),
        ("kernel: mask off by one in dK and dV", "add_rows", ">= first_row", "> first_row"),
        ("kernel: keys past the end count in dQ", "add_columns", "if masked:", "if False:"),
        ("kernel: lse taken for log2 already", "row_constants", "lse_i * LOG2_E", "lse_i"),
        ("kernel: group not summed", "key_value_gradients", "for member in range(group)", "for member in range(1)"),
        ("kernel: dV of the last tile only", "add_rows", "dO_i, dV_j, input_precision", "dO_i, dV_j * 0, input_precision"),
        ("kernel: dS not multiplied by P", "add_columns", "P_ij * (dP_ij", "(dP_ij"),
        ("kernel: tiles before the diagonal skipped", "key_value_gradients", "Nq - Nk, 0) // Br * Br", "Nq - Nk + Br, 0) // Br * Br"),
        ("kernel: delta of the sum of O", "row_constants", "tl.sum(dO_i * O_i, 1)", "tl.sum(O_i, 1)"),
    ),
]  # fmt: skip
