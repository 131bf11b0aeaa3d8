"""Which thread of a warpgroup holds which number of a product: the layout that Hopper's wgmma writes.

Source: NVIDIA, PTX ISA, section "wgmma", register fragments of D for m64nNk16.
"""

import numpy as np

THREADS = 128  # of a warpgroup: four warps


def owners(rows: int, columns: int) -> np.ndarray:
    """Return the thread, 0 to 127, that holds each number of a product [rows, columns], rows at most 64."""
    if not 0 < rows <= 64:
        raise ValueError(f"a warpgroup holds 64 rows, got {rows}")
    i, j = np.indices((rows, columns))  # [rows, columns] each
    return i // 16 * 32 + i % 8 * 4 + j % 8 // 2  # [rows, columns]
