"""Numbers that papers and released kernels state, each with its source. Nothing here is computed."""

from typing import NamedTuple


class Published(NamedTuple):
    """The numbers that a paper reports for one run."""

    flops: float
    nbytes: float  # read from and written to HBM
    milliseconds: float


# FlashAttention, figure 2, left: forward and backward of GPT-2 medium's attention on an A100
# (N = 1024, d = 64, 16 heads, batch 64).
RUNS = {"standard": Published(66.6e9, 40.3e9, 41.7), "fused": Published(75.2e9, 4.4e9, 7.3)}

# FlashAttention, table 21: MB in use, forward and backward, batch 16, 8 heads, A100. From N = 8192 on PyTorch ran out
# of memory; its forward pass alone still ran at 8192 (table 18).
MEMORY_N = tuple(2**n for n in range(7, 17))
MEMORY_MB = {
    "PyTorch": (36, 104, 336, 1184, 4416, 17024),
    "FlashAttention": (22, 44, 104, 209, 418, 836, 1672, 3344, 6688, 13376),
}


class Shipped(NamedTuple):
    """The tile of a released kernel's forward pass in float16."""

    kernel: str
    capability: str
    d: int
    Br: int
    Bc: int
    source: str  # file of github.com/Dao-AILab/flash-attention


FA1, FA2 = "csrc/flash_attn at 9dbc491a, May 2022", "csrc/flash_attn/src/flash_fwd_launch_template.h"
FA3 = "hopper/tile_size.h"
SHIPPED = (
    Shipped("FlashAttention", "8.0", 64, 16, 256, FA1),
    Shipped("FlashAttention-2", "8.0", 64, 128, 128, FA2),
    Shipped("FlashAttention-2", "8.0", 128, 128, 64, FA2),
    Shipped("FlashAttention-2", "8.9", 128, 128, 32, FA2),
    Shipped("FlashAttention-2, causal", "8.9", 128, 64, 64, FA2),
    Shipped("FlashAttention-3", "9.0", 128, 128, 176, FA3),
    Shipped("FlashAttention-3, causal", "9.0", 128, 128, 128, FA3),
    Shipped("FlashAttention-3", "9.0", 256, 128, 80, FA3),
)
