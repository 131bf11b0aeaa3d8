"""The kernel of one head: how an attempt is launched, and what it moves."""

import inspect
import linecache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from flashlab.course import data
from flashlab.grading.exercise import Broken
from flashlab.grading.kernel_laws import attempted, factors_are_wide, inside_margins, launched
from flashlab.kernels import DEVICE, tl, triton
from flashlab.kernels.count import count
from flashlab.machine.timing import gpu_timer
from flashlab.reference import masks, tiling

TILE = 16  # rows, columns and width of the tiles in the cases: the smallest that the GPU's matrix unit takes


class Output(NamedTuple):
    """The results of attention for some rows of queries."""

    O: np.ndarray  # [Nq, d]
    lse: np.ndarray  # [Nq]


@triton.jit
def attention_one_head(
    Q, K, V, O, lse, Nq, Nk, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr, causal: tl.constexpr
):
    i, columns = tl.program_id(0), tl.arange(0, d)
    rows = i * Br + tl.arange(0, Br)  # [Br]
    Q_i = tl.load(Q + rows[:, None] * d + columns, mask=rows[:, None] < Nq, other=0.0)  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)  # [Br]
    l_i = tl.zeros([Br], tl.float32)  # [Br]
    O_i = tl.zeros([Br, d], tl.float32)  # [Br, d]
    seen = tl.minimum((i + 1) * Br + Nk - Nq, Nk) if causal else Nk
    for start in range(0, seen, Bc):
        keys = start + tl.arange(0, Bc)  # [Bc]
        inside = keys < Nk  # [Bc]
        K_j = tl.load(K + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)  # [Bc, d]
        V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None], other=0.0)  # [Bc, d]
        S_ij = tl.dot(Q_i, K_j.T) * scale  # [Br, Bc]
        S_ij = tl.where(inside[None, :], S_ij, -float("inf"))
        if causal:
            S_ij = tl.where(keys[None, :] <= rows[:, None] + Nk - Nq, S_ij, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(S_ij, 1))  # [Br]
        m_safe = tl.where(m_new == -float("inf"), 0, m_new)  # [Br]
        alpha = tl.exp(m_i - m_safe)  # [Br]
        P_ij = tl.exp(S_ij - m_safe[:, None])  # [Br, Bc]
        l_i = alpha * l_i + tl.sum(P_ij, 1)  # [Br]
        O_i = tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i)  # [Br, d]
        m_i = m_new
    l_safe = tl.where(l_i == 0, 1, l_i)  # [Br]
    tl.store(O + rows[:, None] * d + columns, O_i / l_safe[:, None], mask=rows[:, None] < Nq)
    lse_i = tl.where(l_i == 0, -float("inf"), m_i + tl.log(l_safe))  # [Br]
    tl.store(lse + rows, lse_i, mask=rows < Nq)


def attend(kernel, Q, K, V, causal=False, Br=TILE, Bc=TILE):
    """Launch a kernel of one head, with the capstone's parameters, on arrays Q [Nq, d], K and V [Nk, d] of float16.

    Return O and lse in float32. Columns of zeros fill the inputs up to a tile's width, which changes no score. Past the
    last rows of the inputs there is NaN, and around the outputs there are margins that must not change.
    """
    (Nq, d), width = Q.shape, max(16, triton.next_power_of_2(Q.shape[1]))
    q, k, v = (_followed_by_nan(x, width) for x in (Q, K, V))
    O, output = inside_margins(1, Nq * width, "O")  # rows side by side
    lse, lse_output = inside_margins(1, Nq, "lse")
    grid = (triton.cdiv(Nq, Br),)
    launched(kernel, grid, q, k, v, O, lse, Nq, len(K), d**-0.5, width, Br, Bc, causal)
    return Output(output().reshape(Nq, width)[:, :d], lse_output()[0])


def narrow_factors(launch, *zeros):
    """Build a law with inputs of its own: ``tl.dot`` multiplies in float16, the dtype of the inputs."""

    def law(kernel):
        if factors_are_wide(launch, kernel, *zeros):
            return Broken(
                "inputs that are all 0",
                "the numbers are right, but a product was computed in float32, which takes a GPU several times as "
                "long: narrow P_ij to V_j.dtype, and leave Q_i, K_j and V_j as they come.",
                if_right=True,
            )

    return law


def _followed_by_nan(x, width):
    """Return x [N, d] as a tensor [N, width], followed in memory by NaN, which no kernel may read."""
    whole = np.full((len(x) + 64, width), np.nan, x.dtype)
    whole[: len(x)] = np.pad(x, ((0, 0), (0, width - x.shape[1])))
    return torch.from_numpy(whole).to(DEVICE)[: len(x)]


def _from_source(source, name, *args):
    """Run ``attend`` for a kernel given by its source, which can travel to an interpreter in another process."""
    filename = f"<{name} as it was written>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = {"tl": tl, "triton": triton}
    exec(compile(source, filename, "exec"), namespace)
    return attend(namespace[name], *args)


def _source(kernel):
    """Return the source of a kernel, after that of the numbers and kernels that it uses."""
    used = {name: kernel.fn.__globals__.get(name) for name in kernel.fn.__code__.co_names}
    numbers = {
        name: getattr(it, "value", it) for name, it in used.items() if isinstance(it, int | float | tl.constexpr)
    }
    kernels = [_source(it) for it in used.values() if isinstance(it, type(kernel))]
    return "\n".join([*(f"{name} = {it!r}" for name, it in numbers.items()), *kernels, inspect.getsource(kernel.fn)])


def measure(kernel, tile=64):
    """Print what a capstone's kernel moves, tiling's closed form, and a verdict; on a GPU also its time and torch's."""
    try:
        attempted(kernel)
    except NotImplementedError:
        print("○ nothing to measure yet")
        return
    head = [x.astype(np.float16) for x in data.captured("alice").head()]
    N, d = head[0].shape
    for causal in (False, True):
        memory = count(_from_source, _source(kernel), kernel.fn.__name__, *head, causal, tile, tile)
        expected = tiling.fa2_traffic(N, N, d, tile, tile, mask=masks.causal() if causal else None, dtype=np.float16)
        expected["store", "O"] *= 2  # O is in float32
        print(
            f"{'causal' if causal else 'full'}: {memory.moved:,} B moved; tiling's closed form: {expected.total():,} B"
        )
        print(f"  {_verdict(memory.bytes, expected)}")
    if DEVICE.type == "cuda":
        _race(kernel)
    else:
        print("no GPU here, so no time: the interpreter's would say nothing")


def _verdict(moved, expected):
    """Say which tensor crosses more often than the closed form says, if one does: bytes by (direction, tensor)."""
    more = {
        key: nbytes / expected[key] if expected[key] else np.inf
        for key, nbytes in moved.items()
        if nbytes > expected[key]
    }
    if not more:
        return "✓ not a byte too many"
    (direction, name), times = max(more.items(), key=lambda it: it[1])
    did = {"load": "loaded", "store": "stored"}[direction]
    return f"✗ {name} is {did} {times:.1f} times as often as needed: twice, or in tiles that no query sees?"


def _race(kernel, N=16384, d=64, tile=64):
    """Print the times of a kernel and of torch's attention for one long head."""
    q, k, v = torch.randn(3, N, d, device=DEVICE, dtype=torch.float16)
    O, lse = (torch.empty(*shape, dtype=torch.float32, device=DEVICE) for shape in ((N, d), (N,)))
    grid, numbers = (triton.cdiv(N, tile),), (N, N, d**-0.5, d, tile, tile, False)
    yours = gpu_timer(lambda: kernel[grid](q, k, v, O, lse, *numbers))
    torchs = gpu_timer(lambda: F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None]))
    print(f"one head of {N:,} tokens, d = {d}: yours {yours:.2f} ms, torch's {torchs:.2f} ms")
