"""What the Hopper kernels share: masks, the softmax of one step, layouts.

Gluon is Triton's explicit dialect: who holds which number (layouts), what lies in shared memory, who copies, who waits,
is all written down. The lines of mathematics stay those of ``flashlab.kernels.portable.forward.update``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LAZY = gl.constexpr(8.0)  # in units of log2: see ``weights``


@gluon.jit
def mask(S, first_seen, causal: gl.constexpr):
    """S [Br, Bc] with -inf for keys behind first_seen, the last that the first row sees; causal: one more each row."""
    keys = gl.arange(0, S.shape[1], layout=gl.SliceLayout(0, S.type.layout))  # [Bc]
    rows = gl.arange(0, S.shape[0], layout=gl.SliceLayout(1, S.type.layout))  # [Br]
    last_seen = rows + first_seen if causal else rows * 0 + first_seen  # [Br]
    return gl.where(keys[None, :] <= last_seen[:, None], S, -float("inf"))


@gluon.jit
def weights(S, m_i, scale_log2):
    """P and the running maximum after S, and the factor for what was summed before, all relative to that maximum.

    m_i is in units of log2. The maximum is raised only where it would rise by more than 8: until then P may reach
    2^8, which float32 sums and 16-bit weights hold as precisely as 1, and alpha is exactly 1, so that rescaling can
    be left out (``rescale``). Source: FlashAttention-4, section 3.1.4.
    """
    m_new = gl.maximum(m_i, gl.max(S, 1) * scale_log2)  # [Br]
    m_new = gl.where(m_new > m_i + LAZY, m_new, m_i)  # [Br]
    m_safe = gl.where(m_new == -float("inf"), 0.0, m_new)  # [Br]      a row that has met no key yet
    alpha = gl.exp2(m_i - m_safe)  # [Br]
    P = gl.exp2(S * scale_log2 - m_safe[:, None])  # [Br, Bc]
    return P, m_new, alpha


@gluon.jit
def first_weights(S, first_seen, scale_log2, causal: gl.constexpr, ragged: gl.constexpr):
    """``weights`` of the first block of a tile, and their sums as far as a thread can add."""
    if causal or ragged:
        S = mask(S, first_seen, causal)
    m_i = gl.full([S.shape[0]], -float("inf"), gl.float32, gl.SliceLayout(1, S.type.layout))  # [Br]
    P, m_i, _ = weights(S, m_i, scale_log2)
    return P, m_i, partial_sums(P)


@gluon.jit
def partial_sums(P):
    """Row sums of P [Br, Bc] as far as each thread can add alone, [Br, 4]: four threads share a row.

    The four are added once a tile of queries, not once a block of keys.
    """
    Br: gl.constexpr = P.shape[0]
    Bc: gl.constexpr = P.shape[1]
    return gl.sum(gl.sum(gl.reshape(P, [Br, Bc // 8, 4, 2]), 3), 1)


@gluon.jit
def add_sums(l_i, alpha, P):
    """alpha * l_i + rowsum(P), [Br, 4]."""
    sums = partial_sums(P)  # [Br, 4]
    return l_i * gl.convert_layout(alpha, gl.SliceLayout(1, sums.type.layout))[:, None] + sums


@gluon.jit
def finish(m_i, l_i, lse, rows, Nq):
    """Store lse of a tile's rows, [Br]; return 1 / l."""
    LN2: gl.constexpr = 0.6931471805599453
    l_i = gl.convert_layout(gl.sum(l_i, 1), m_i.type.layout)  # [Br]
    l_safe = gl.where(l_i == 0, 1.0, l_i)  # [Br]      a row that sees no key: O = 0, lse = -inf
    lse_i = gl.where(l_i == 0, -float("inf"), (m_i + gl.log2(l_safe)) * LN2)  # [Br]
    gl.store(lse + rows, lse_i, mask=(rows >= 0) & (rows < Nq))
    return 1.0 / l_safe


@gluon.jit
def operand(P, dtype: gl.constexpr, width: gl.constexpr):
    """P narrowed, as the left operand of a product: the registers stay where they are."""
    left: gl.constexpr = gl.DotOperandLayout(0, accumulator(width, P.shape[0]), 2)
    return gl.convert_layout(P.to(dtype), left, assert_trivial=True)


@gluon.constexpr_function
def accumulator(columns, rows=64):
    """How the sums of a product [rows, columns] lie in registers: 16 rows a warp, so that 64 are a warpgroup's."""
    return gl.NVMMADistributedLayout([3, 0], [rows // 16, 1], [16, columns, 16])


def _rescale(n):
    """PTX that multiplies n numbers a thread by their factors, and jumps over it if no thread of the warp has to.

    Of the factors that come in, one for each number, only two differ: those of the two rows that a thread has part in,
    which the layout puts at 0 and 2.
    """
    products = "\n".join(f"mul.ftz.f32 ${k}, ${k}, ${2 * n + k};" for k in range(n))
    code = f"""{{
.reg .pred first, any;
setp.neu.f32 first, ${2 * n}, 0f3F800000;
setp.neu.or.f32 any, ${2 * n + 2}, 0f3F800000, first;
vote.sync.any.pred any, any, 0xffffffff;
@!any bra.uni KEEP;
{products}
KEEP:
}}"""
    operands = ["=f"] * n + [str(k) for k in range(n)] + ["f"] * n
    return gl.constexpr(code), gl.constexpr(",".join(operands))


RESCALE_32, OPERANDS_32 = _rescale(32)
RESCALE_64, OPERANDS_64 = _rescale(64)


@gluon.jit
def rescale(O, alpha):
    """alpha[:, None] * O for O [64, width] in the registers of four warps; free for a warp whose alphas are all 1."""
    alpha = gl.convert_layout(alpha, gl.SliceLayout(1, O.type.layout), assert_trivial=True)
    O, factors = gl.broadcast(O, alpha[:, None])
    if O.shape[1] == 64:
        O = gl.inline_asm_elementwise(RESCALE_32, OPERANDS_32, [O, factors], dtype=gl.float32, is_pure=True, pack=32)
    else:
        O = gl.inline_asm_elementwise(RESCALE_64, OPERANDS_64, [O, factors], dtype=gl.float32, is_pure=True, pack=64)
    return O
