"""Attention of one tile of queries to one tile of keys, on Blackwell: a kernel to read, small enough for one screen.

The results of both products are in tensor memory, and so are the weights, which take the place of their scores. One
thread has one row of scores, so the maximum and the sum of a row need no other thread. It was compiled, never run.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    get_tmem_reg_layout,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)

ROUND = gl.constexpr(1.5 * 2**23)  # float32 numbers of this size are whole; their lowest bits are those of the addend


@gluon.jit
def one_tile(Q, K, V, O, scale_log2, c_1, c_2, c_3, polynomial: gl.constexpr):
    """Compute O [Br, d], float32, of Q [Br, d], K [Bc, d] and V [Bc, d], one tile of 128 rows each.

    polynomial: whether ``exp2`` computes 2^(n + f) from bits and 1 + c_1 f + c_2 f^2 + c_3 f^3, 0 <= f < 1, or asks the
    exponential unit.
    """
    Br: gl.constexpr = Q.block_type.shape[0]
    Bc: gl.constexpr = K.block_type.shape[0]
    d: gl.constexpr = Q.block_type.shape[1]
    Q_i = gl.allocate_shared_memory(Q.dtype, Q.block_type.shape, Q.layout)  # [Br, d]
    K_j = gl.allocate_shared_memory(K.dtype, K.block_type.shape, K.layout)  # [Bc, d]
    V_j = gl.allocate_shared_memory(V.dtype, V.block_type.shape, V.layout)  # [Bc, d]
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    fence_async_shared()
    mbarrier.expect(full, Q.block_type.nbytes + K.block_type.nbytes + V.block_type.nbytes)
    tma.async_copy_global_to_shared(Q, [0, 0], full, Q_i)
    tma.async_copy_global_to_shared(K, [0, 0], full, K_j)
    tma.async_copy_global_to_shared(V, [0, 0], full, V_j)
    mbarrier.wait(full, 0)

    s_layout: gl.constexpr = TensorMemoryLayout([Br, Bc], col_stride=1)
    o_layout: gl.constexpr = TensorMemoryLayout([Br, d], col_stride=1)
    S = allocate_tensor_memory(gl.float32, [Br, Bc], s_layout)
    sums = allocate_tensor_memory(gl.float32, [Br, d], o_layout)
    tcgen05_mma(Q_i, K_j.permute((1, 0)), S, use_acc=False)
    tcgen05_commit(done)
    mbarrier.wait(done, 0)

    S_ij = S.load(get_tmem_reg_layout(gl.float32, [Br, Bc], s_layout, gl.num_warps()))  # [Br, Bc]
    m_i = gl.max(S_ij, 1) * scale_log2  # [Br]
    P_ij = exp2(S_ij * scale_log2 - m_i[:, None], c_1, c_2, c_3, polynomial)  # [Br, Bc]
    l_i = gl.sum(P_ij, 1)  # [Br]
    P = S._reinterpret(Q.dtype, [Br, Bc], TensorMemoryLayout([Br, Bc], col_stride=1))  # half of the columns of S
    P.store(P_ij.to(Q.dtype))
    tcgen05_mma(P, V_j, sums, use_acc=False)
    tcgen05_commit(done)
    mbarrier.wait(done, 1)

    registers: gl.constexpr = get_tmem_reg_layout(gl.float32, [Br, d], o_layout, gl.num_warps())
    O_i = sums.load(registers) / gl.convert_layout(l_i, gl.SliceLayout(1, registers))[:, None]  # [Br, d]
    rows = gl.arange(0, Br, layout=gl.SliceLayout(1, registers))  # [Br]
    columns = gl.arange(0, d, layout=gl.SliceLayout(0, registers))  # [d]
    gl.store(O + rows[:, None] * d + columns[None, :], O_i)


@gluon.jit
def exp2(x, c_1, c_2, c_3, polynomial: gl.constexpr):
    """Return 2^x for x up to 127, as ``reference.next_machine.exp2`` does, or from the exponential unit."""
    if polynomial:
        x = gl.maximum(x, -127.0)
        rounded = _one("add.rm.ftz.f32 $0, $1, 0f4B400000;", x)  # ROUND + n, rounded down
        f = x - (rounded - ROUND)
        p = 1.0 + f * (c_1 + f * (c_2 + f * c_3))
        bits = p.to(gl.int32, bitcast=True) + (rounded.to(gl.int32, bitcast=True) << 23)
        return bits.to(gl.float32, bitcast=True)
    else:
        return _one("ex2.approx.ftz.f32 $0, $1;", x)


@gluon.jit
def _one(code: gl.constexpr, x):
    return gl.inline_asm_elementwise(code, "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)
