"""Asks a GPU for tiles of several sizes, and writes down what Triton asks for and what the driver answers.

python flashlab/bench/shared_memory.py > notebooks/data/shared_memory.json
"""

import json
from datetime import date

import torch

from flashlab.kernels import tl, triton


@triton.jit
def forward(Q, K, V, O, N, scale, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr):
    rows, cols, c = tl.program_id(0) * Br + tl.arange(0, Br), tl.arange(0, Bc), tl.arange(0, d)
    Q_i = tl.load(Q + rows[:, None] * d + c)  # [Br, d]
    m_i = tl.full([Br], -float("inf"), tl.float32)
    l_i = tl.zeros([Br], tl.float32)
    O_i = tl.zeros([Br, d], tl.float32)
    for start in range(0, N, Bc):
        K_j = tl.load(K + (start + cols)[:, None] * d + c)  # [Bc, d]
        S_ij = tl.dot(Q_i, K_j.T) * scale  # [Br, Bc]
        m_new = tl.maximum(m_i, tl.max(S_ij, 1))  # [Br]
        alpha = tl.exp(m_i - m_new)  # [Br]
        P_ij = tl.exp(S_ij - m_new[:, None])  # [Br, Bc]
        l_i = alpha * l_i + tl.sum(P_ij, 1)
        V_j = tl.load(V + (start + cols)[:, None] * d + c)  # [Bc, d]
        O_i = tl.dot(P_ij.to(V_j.dtype), V_j, alpha[:, None] * O_i)
        m_i = m_new
    tl.store(O + rows[:, None] * d + c, O_i / l_i[:, None])


def ask(Br, Bc, d, stages, warps, N=2048):
    """One launch in float16: the bytes of shared memory that it took, or why it was refused."""
    Q, K, V = (torch.randn(N, d, device="cuda", dtype=torch.float16) for _ in range(3))
    asked = {"Br": Br, "Bc": Bc, "d": d, "stages": stages, "warps": warps}
    try:
        O = torch.empty(N, d, device="cuda")
        kernel = forward[(N // Br,)](Q, K, V, O, N, d**-0.5, d, Br, Bc, num_stages=stages, num_warps=warps)
    except triton.runtime.errors.OutOfResources as error:
        return {**asked, "refused": str(error)}
    return {**asked, "shared": kernel.metadata.shared}


if __name__ == "__main__":
    shapes = [(128, 64, 64, 3, 4), (128, 128, 64, 2, 8), (128, 64, 128, 2, 8), (128, 128, 128, 2, 8),
              (128, 128, 128, 3, 8), (128, 256, 128, 2, 8), (128, 64, 256, 2, 8), (128, 128, 256, 2, 8)]  # fmt: skip
    about = {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "date": str(date.today()),
        "command": "python flashlab/bench/shared_memory.py > notebooks/data/shared_memory.json",
        "kernel": "forward in that file, float16, N = 2048",
    }
    print(json.dumps({"about": about, "launches": [ask(*shape) for shape in shapes]}, indent=1))
