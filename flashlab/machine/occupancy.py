"""How many programs are on one SM at a time: whichever resource runs out first decides."""

from flashlab.machine.hardware import PER_SM

THREADS = {"8.0": 2048, "8.6": 1536, "8.9": 1536, "9.0": 2048, "10.0": 2048}  # per SM; source: CUDA C++ guide
RESERVED = 1024  # bytes of shared memory that the system keeps per block of threads
WARP_UNIT = 256  # registers are given to a warp in units of so many


def programs_per_sm(capability: str, registers: int, warps: int, shared: int) -> dict[str, int]:
    """Return how many programs each resource of an SM has room for; the least of them is on the SM at a time.

    registers: per thread; warps: per program; shared: bytes of shared memory per program.
    """
    sm = PER_SM[capability]
    per_warp = -(-registers * 32 // WARP_UNIT) * WARP_UNIT
    return {
        "registers": sm.register_bytes // 4 // (per_warp * warps),
        "shared memory": sm.smem_bytes // (shared + RESERVED),
        "threads": THREADS[capability] // (32 * warps),
    }
