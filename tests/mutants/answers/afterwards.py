"""Wrong answers written after the checks were finished, to try them.

Of those before ``LATER``, four were accepted at first; all 31 in ``LATER`` were, of 538 that a reader wrote.
"""

from tests.mutants.answers import in_triton, wrong
from tests.mutants.answers.in_numpy import finish, gradients, inside, lse, merge, rebuild, row, rows, sums, update


def afterwards(exercise, right, *lines):
    """Return answers that need not be told by name, from lines (what, old, new)."""
    return wrong(exercise, right, *((what, "", *edits) for what, *edits in lines))


FIRST = [
    *afterwards("safe_softmax.row",row,
        ("max of abs where far","np.max(x)","x[np.argmax(np.abs(x))]"),
        ("sum in float16","np.sum(e)","np.float32(np.sum(e.astype(np.float16)))"),
        ("60 less than the maximum","np.max(x)","np.max(x) - 60"),
        ("percentile","np.max(x)","np.percentile(x, 90)")),
    *afterwards("safe_softmax.rows",rows,
        ("guard minimum finite","    top[np.isneginf(top)] = 0\n","    top = np.maximum(top, np.finfo(np.float16).min)\n"),
        ("isinf of x zeroed","e = np.exp(x - top)","e = np.exp(np.nan_to_num(x, neginf=-700) - np.nan_to_num(top, neginf=-700))"),
        ("1 row softmax flattened","e.sum(axis=1, keepdims=True)","e.sum(axis=1, keepdims=True).max()"),
        ("masked row 1/N guard","total[total == 0] = 1","total[total == 0] = x.shape[1]; e[total[:, 0] == x.shape[1]] = 1")),
    *afterwards("safe_softmax.lse",lse,
        ("max of all","x.max(axis=1)","np.full(len(x), x.max())"),
        ("log of a sum that is never 0","np.log(total)","np.log(np.maximum(total, 1e-30))"),
        ("clip total","np.log(total)","np.log(np.maximum(total, 1))")),
    *afterwards("online_softmax.update",update,
        ("alpha of l only when m rises over block 1","np.exp(m_i - safe)","np.where(m_i < m, np.exp(m_i - safe), 0)"),
        ("alpha from block max","np.exp(m_i - safe)","np.exp(m_i - np.maximum(S_ij.max(1), -1e30))"),
        ("l counts keys","P.sum(axis=1)","(S_ij > -np.inf).sum(axis=1)"),
        ("O uses first row alpha","O_i * alpha.reshape(-1, 1)","O_i * alpha[0]"),
        ("mean of P","P.sum(axis=1)","P.mean(axis=1)"),
        ("in-place l","l = l_i * alpha","l_i *= alpha; l = l_i")),
    *afterwards("online_softmax.merge",merge,
        ("mean m","np.maximum(a.m, b.m)","(a.m + b.m) / 2"),
        ("logaddexp m","State(m,","State(np.logaddexp(a.m, b.m),"),
        ("l max","wa * a.l + wb * b.l,","np.maximum(wa * a.l, wb * b.l),"),
        ("a only if b empty","wb[:, None] * b.O","b.O * (wb > 0)[:, None]")),
    *afterwards("tiling.inside",inside,
        ("skip tile whose max is lower","        state = online","        if (S.max(initial=-np.inf) < state.m.min(initial=np.inf) - 5) and start: start = stop; continue\n        state = online"),
        ("overlap of one","start = stop","start = max(stop - 1, start + 1)"),
        ("two tiles at once","stop = start + Bc","stop = start + 2 * Bc"),
        ("keys reversed values not","V[start:stop]","V[start:stop][::-1]")),
    *afterwards("recomputation.rebuild",rebuild,
        ("weights never 0","np.exp(S_ij - safe)","np.maximum(np.exp(S_ij - safe), 1e-5)"),
        ("lse of next row","lse_i.reshape(-1, 1)","np.roll(lse_i, 1).reshape(-1, 1)"),
        ("row max instead","np.exp(S_ij - safe)","np.exp(S_ij - safe) / np.exp(S_ij - safe).max(initial=1e-30)")),
    *afterwards("recomputation.gradients",gradients,
        ("dP scaled","dO_i @ V_j.T","dO_i @ V_j.T * scale"),
        ("delta mean","delta_i.reshape(-1, 1)","delta_i.mean()"),
        ("dK from dQ","dS.T @ Q_i * scale","dS.T @ dO_i[:, :1] * Q_i.mean()")),
    *afterwards("first_triton_kernel.add",in_triton.add,
        ("i times N","tl.program_id(0).to(tl.int64) * Bc","tl.program_id(0).to(tl.int64) * N")),
    *afterwards("first_triton_kernel.online",in_triton.online,
        ("store in loop 2 own max","tl.exp(S - safe[:, None]) / total","tl.exp(S - tl.max(S, 1)[:, None]) / total"),
        ("m from -1e4","tl.full([Br], -float(\"inf\"), tl.float32)","tl.full([Br], -1e4, tl.float32)")),
    *afterwards("triton_forward.forward",in_triton.my_forward,
        ("maximum too large by 1e-2",'tl.max(S, 1))\n','tl.max(S, 1) + 1e-2)\n'),
        ("lse with scale","m + tl.log(l_safe)","(m + tl.log(l_safe)) * scale"),
        ("Q_i scaled in half","S = tl.dot(Q_i, K_j.T) * scale","S = tl.dot((Q_i * scale).to(tl.float16), K_j.T)"),
        ("start i*Br","range(0, end, Bc)","range(0, tl.cdiv(Nk, Br) * Bc, Bc)"),
        ("bf16 P","P.to(V_j.dtype)","P.to(tl.bfloat16).to(V_j.dtype)"),
        ("mask rows by Nk","rows[:, None] + Nk - Nq","rows[:, None] + tl.maximum(Nk - Nq, 0)"),
        ("acc never zero rows","acc / l_safe[:, None]","acc / (l_safe + 1e-3)[:, None]")),
    *afterwards("triton_backward.delta",in_triton.delta,
        ("row program id Br - 1","tl.program_id(0) * Br","tl.program_id(0) * (Br - 1)")),
    *afterwards("triton_backward.add_rows",in_triton.add_rows,
        ("P of dtype fp16","tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0)","tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0).to(tl.float16).to(tl.float32)"),
        ("mask -1e9","tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0)","tl.exp(tl.where(seen, S, -1e9) - lse_i[:, None])"),
        ("delta of key","delta_i[:, None]","tl.sum(tl.where(seen, delta_i[:, None], 0.0), 1)[:, None]")),
]  # fmt: skip

LATER = [
    *afterwards("safe_softmax.row",row,
        ("clipped at -1e9","    top = np.max(x)","    x = np.maximum(x, -1e9)\n    top = np.max(x)")),
    *afterwards("safe_softmax.rows",rows, *(
        (f"{bound}, then masked weights set to 0","    e = np.exp(x - top)",f"    z = np.maximum(x, {bound})\n    e = np.where(x == -np.inf, 0, np.exp(z - z.max(1, keepdims=True)))")
        for bound in (-1e9, -1e30))),
    *afterwards("online_softmax.sums",sums,
        ("maximum clamped at -1e30 inside","np.where(np.isneginf(m), 0, m)","np.maximum(m, -1e30)")),
    *afterwards("online_softmax.update",update,
        ("past O narrowed to V's dtype","O_i * alpha.reshape(-1, 1)","(O_i * alpha.reshape(-1, 1)).astype(V_j.dtype)"),
        ("past l narrowed to V's dtype","l_i * alpha","(l_i * alpha).astype(V_j.dtype)"),
        ("alpha narrowed to V's dtype","np.exp(m_i - safe)","np.exp(m_i - safe).astype(V_j.dtype)"),
        ("scores clamped at -1e9","np.exp(S_ij - safe.reshape(-1, 1))","np.where(S_ij == -np.inf, 0, np.exp(np.maximum(S_ij, -1e9) - np.maximum(safe, -1e9)[:, None]))")),
    *afterwards("online_softmax.merge",merge,
        ("empty parts told by O being 0","    m = np","    if not a.O.any(): return b\n    if not b.O.any(): return a\n    m = np")),
    *afterwards("online_softmax.finish",finish,
        ("empty told by the output being 0","    total = ","    l = np.where((O == 0).all(1), 0, l)\n    total = ")),
    *afterwards("recomputation.rebuild",rebuild,
        ("scores and lse clamped at -1e9","np.exp(S_ij - safe)","np.where(S_ij == -np.inf, 0, np.exp(np.maximum(S_ij, -1e9) - np.maximum(column, -1e9)))")),
    *afterwards("recomputation.gradients",gradients,
        ("blind rows told by delta = 0","    dQ = ","    dS = np.where(delta_i[:, None] == 0, 0, dS)\n    dQ = ")),
    *afterwards("first_triton_kernel.softmax_row",in_triton.softmax_row,
        ("maximum clamped at -1e30",'tl.where(m == -float("inf"), 0.0, m)',"tl.maximum(m, -1.0e30)")),
    *afterwards("first_triton_kernel.online",in_triton.online,
        ("m begins at -1e30",'tl.full([Br], -float("inf"), tl.float32)',"tl.full([Br], -1.0e30, tl.float32)"),
        ("the guarded maximum kept","        m = m_new","        m = safe"),
        ("other = -1e30",'other=-float("inf"))\n        m_new',"other=-1.0e30)\n        m_new")),
    *afterwards("triton_forward.heads",in_triton.heads,
        ("text widened, head not","(b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)","b * H * Nq * d + h * Nq * d, b * Hk * Nk * d + h // shared * Nk * d"),
        ("size of a text in 32 bits","(b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)","b * (H * Nq * d) + h.to(tl.int64) * Nq * d, b * (Hk * Nk * d) + (h // shared).to(tl.int64) * Nk * d"),
        ("sizes of texts and heads in 32 bits","(b * H + h) * (Nq * d), (b * Hk + h // shared) * (Nk * d)","b * (H * Nq * d) + h * (Nq * d), b * (Hk * Nk * d) + h // shared * (Nk * d)")),
    *afterwards("triton_backward.add_rows",in_triton.add_rows,
        ("exponent floored at -20","tl.exp(S - lse_i[:, None])","tl.exp(tl.maximum(S - lse_i[:, None], -20.0))"),
        ("lse -inf as 0, masked by a product","tl.where(seen, tl.exp(S - lse_i[:, None]), 0.0)",'seen * tl.exp(S - tl.where(lse_i == -float("inf"), 0.0, lse_i)[:, None])'),
        ("scores clipped","tl.exp(S - ","tl.exp(tl.minimum(tl.maximum(S, -80.0), 80.0) - "),
        ("lse clamped at -1e9","tl.exp(S - lse_i[:, None])","tl.exp(S - tl.maximum(lse_i, -1.0e9)[:, None])"),
        ("lse clamped at -1e4","tl.exp(S - lse_i[:, None])","tl.exp(S - tl.maximum(lse_i, -1.0e4)[:, None])"),
        ("blind rows told by delta = 0","(dP - delta_i[:, None])","tl.where(delta_i[:, None] == 0.0, 0.0, dP - delta_i[:, None])")),
    *afterwards("triton_backward.dQ",in_triton.dq, *(
        (what,"tl.where(ok, tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)",P)
        for what, P in (
            *((f"masked by {bound}, lse guarded",f'tl.exp(tl.where(ok, tl.dot(q, k.T) * scale, {bound}) - tl.where(lse_i == -float("inf"), 0.0, lse_i)[:, None])') for bound in (-1e9, -1e30)),
            ("rows with lse < -1e4 skipped","tl.where(ok & (lse_i > -1.0e4)[:, None], tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)"),
            ("lse clamped at -1e9","tl.where(ok, tl.exp(tl.dot(q, k.T) * scale - tl.maximum(lse_i, -1.0e9)[:, None]), 0.0)"),
            ("blind rows told by delta = 0","tl.where(ok & (delta_i != 0.0)[:, None], tl.exp(tl.dot(q, k.T) * scale - lse_i[:, None]), 0.0)"),
            ("exponent floored at -20","tl.where(ok, tl.exp(tl.maximum(tl.dot(q, k.T) * scale - lse_i[:, None], -20.0)), 0.0)"),
        ))),
]  # fmt: skip

ANSWERS = FIRST + LATER
