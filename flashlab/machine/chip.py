"""Programs and threads on an SM: how many programs fit, and which thread of a warpgroup holds which number.

Sources: NVIDIA, CUDA C++ Programming Guide, for ``MAX_THREADS``; NVIDIA, PTX ISA, section "wgmma", register fragments
of D for m64nNk16, for ``owners``.
"""

import numpy as np

from flashlab.machine.arguments import check_arguments
from flashlab.machine.hardware import PER_SM

MAX_THREADS = {"8.0": 2048, "8.6": 1536, "8.9": 1536, "9.0": 2048, "10.0": 2048}  # per SM, by compute capability
RESERVED = 1024  # bytes of shared memory that the system reserves per block of threads
WARP_UNIT = 256  # registers are allocated to a warp in units of this size


@check_arguments(shared=0)
def programs_per_sm(capability: str, registers: int, warps: int, shared: int) -> dict[str, int]:
    """Return the number of programs for which each resource of an SM has room; the smallest number is the occupancy.

    registers: per thread; warps: per program; shared: bytes of shared memory per program.
    """
    if capability not in MAX_THREADS:
        raise ValueError(f"expected a compute capability out of {', '.join(MAX_THREADS)}, got {capability!r:.40}")
    sm = PER_SM[capability]
    per_warp = -(-registers * 32 // WARP_UNIT) * WARP_UNIT
    return {
        "registers": sm.register_bytes // 4 // (per_warp * warps),
        "shared memory": sm.smem_bytes // (shared + RESERVED),
        "threads": MAX_THREADS[capability] // (32 * warps),
    }


@check_arguments(rows=(1, 64), columns=0)
def owners(rows: int, columns: int) -> np.ndarray:
    """Return the thread (0 to 127) of a warpgroup that holds each number of a wgmma product [rows, columns]."""
    i, j = np.indices((rows, columns))  # [rows, columns] each
    return i // 16 * 32 + i % 8 * 4 + j % 8 // 2  # [rows, columns]
