"""The properties of GPUs, with the document behind each number, and rates computed from them.

Sizes are in bytes, rates in bytes or operations per second, clocks in Hz, latencies in clock cycles. A number
without a document is None, and ``missing`` says why. NVIDIA's "KB", "MB" and "GB" of memory are KiB, MiB and GiB: the
driver shows 24,576 MiB on a card of "24 GB". Bandwidths are decimal. A source that ends in ``QUOTED`` was not read: the
number is as others quote it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flashlab.machine.arguments import check_arguments

KiB, MiB, GiB, GB = 1024, 1024**2, 1024**3, 10**9
TERA, MHZ = 1e12, 1e6

GUIDE = "NVIDIA, CUDA C++ Programming Guide, section 5.1"
QUOTED = ", as quoted by others"
BANKS = "32 banks of 4 bytes per clock: " + GUIDE
TURING = "half of Ampere's 128 bytes per clock: NVIDIA, Ampere GA102 whitepaper" + QUOTED
DISSECTED = "Luo et al. 2024, arXiv 2402.13499"


class PerSM(NamedTuple):
    """One streaming multiprocessor (SM), by compute capability. Source: ``GUIDE``."""

    sram_bytes: int  # one array, shared between L1 cache and shared memory
    smem_bytes: int  # the most of it that may be shared memory
    block_bytes: int  # the most shared memory that one block of threads may have
    register_bytes: int = 256 * KiB
    exps: int = 16  # exponentials (special function unit) per clock
    smem_bytes_per_clock: int = 128  # source: ``BANKS``
    tensor_memory_bytes: int = 0  # for the results of products, source: ``FA4``


PER_SM = {
    "7.5": PerSM(96 * KiB, 64 * KiB, 64 * KiB, smem_bytes_per_clock=64),  # source of the last: ``TURING``
    "8.0": PerSM(192 * KiB, 164 * KiB, 163 * KiB),
    "8.6": PerSM(128 * KiB, 100 * KiB, 99 * KiB),
    "8.9": PerSM(128 * KiB, 100 * KiB, 99 * KiB),
    "9.0": PerSM(256 * KiB, 228 * KiB, 227 * KiB),
    "10.0": PerSM(256 * KiB, 228 * KiB, 227 * KiB, tensor_memory_bytes=256 * KiB),
}


class Latency(NamedTuple):
    """Clock cycles until a value arrives. Source: ``DISSECTED``."""

    smem: int
    l1: int
    l2: int
    dram: int


@dataclass(frozen=True)
class Card:
    """One GPU. Rates of arithmetic are peaks without sparsity. Those of float16 and float8 are of matrix products on
    tensor cores, which accumulate in float32. That of float32 is of the CUDA cores."""

    name: str
    capability: str
    sms: int
    clock: float
    l2_bytes: int
    dram_kind: str
    dram_bytes: int
    dram_rate: float
    float16: float
    float32: float | None
    source: str  # of every number that ``also`` does not name
    float8: float | None = None
    l2_rate: float | None = None
    host_bytes: int | None = None  # memory of the host, at least
    host_rate: float | None = None
    latency: Latency | None = None
    also: tuple[tuple[str, str], ...] = ()  # (field, its own source)

    @property
    def per_sm(self) -> PerSM:
        """Return the properties of one of its SMs."""
        return PER_SM[self.capability]


A100 = "NVIDIA, A100 Tensor Core GPU Architecture (GA100 whitepaper)"
H100 = "NVIDIA, H100 Tensor Core GPU Architecture (whitepaper)"
FIG1 = "FlashAttention (arXiv 2205.14135), figure 1"
FA3, FA4 = "FlashAttention-3 (arXiv 2407.08608)", "FlashAttention-4 (arXiv 2603.05451), section 2.2"

# fmt: off
A100_L2 = 5120 * 1410 * MHZ  # 5,120 bytes per clock, page 35 of the whitepaper
READ = "read from the driver of one H200, 20 November 2026"
L4 = "NVIDIA, L4 product page" + QUOTED

CARDS = {
    card.name: card
    for card in (
        Card("A100 40 GB", "8.0", 108, 1410 * MHZ, 40 * MiB, "HBM2", 40 * GiB, 1555 * GB, 312 * TERA, 19.5 * TERA, A100,
             l2_rate=A100_L2, host_bytes=1000 * GB, host_rate=12.8 * GB,
             latency=Latency(smem=29, l1=38, l2=262, dram=466),
             also=(("host_bytes", FIG1), ("host_rate", FIG1), ("latency", DISSECTED))),
        Card("A100 80 GB", "8.0", 108, 1410 * MHZ, 40 * MiB, "HBM2e", 80 * GiB, 2039 * GB, 312 * TERA, 19.5 * TERA,
             A100, l2_rate=A100_L2,
             also=tuple((field, "NVIDIA, A100 80 GB datasheet" + QUOTED) for field in ("dram_bytes", "dram_rate"))),
        Card("H100 SXM", "9.0", 132, 1830 * MHZ, 50 * MiB, "HBM3", 80 * GiB, 3350 * GB, 989.4 * TERA, 66.9 * TERA,
             H100 + QUOTED, float8=1979 * TERA, l2_rate=12 * TERA,
             also=tuple((field, f"{FA3}, table 1") for field in ("l2_bytes", "l2_rate", "dram_bytes", "dram_rate"))
             + (("sms", f"{FA3}, appendix B.6"),)),
        Card("H200 SXM", "9.0", 132, 1830 * MHZ, 62_914_560, "HBM3e", 143_771 * MiB, 4800 * GB, 989 * TERA, 67 * TERA,
             "NVIDIA, H200 datasheet" + QUOTED, float8=1979 * TERA,
             also=(("clock", f"that of the H100, the same die: {H100}{QUOTED}"),)
             + tuple((field, READ) for field in ("sms", "l2_bytes", "dram_bytes"))),
        Card("B200", "10.0", 148, 1850 * MHZ, 126 * MiB, "HBM3e", 180 * GiB, 8000 * GB, 2250 * TERA, None, FA4,
             float8=4500 * TERA,
             also=(("dram_bytes", "an eighth of the 1,440 GB of NVIDIA's DGX B200" + QUOTED),
                   ("dram_rate", "an eighth of NVIDIA's DGX B200, 64 TB/s; its HGX B200 datasheet says 7.7" + QUOTED),
                   ("float8", "a sixteenth of the 72 PFLOP/s, with sparsity, of NVIDIA's DGX B200" + QUOTED),
                   ("l2_bytes", "https://chipsandcheese.com/p/nvidias-b200-keeping-the-cuda-juggernaut"))),
        Card("RTX 3090", "8.6", 82, 1695 * MHZ, 6 * MiB, "GDDR6X", 24 * GiB, 936 * GB, 71 * TERA, 35.6 * TERA,
             "NVIDIA, Ampere GA102 whitepaper" + QUOTED),
        Card("RTX 4090", "8.9", 128, 2520 * MHZ, 72 * MiB, "GDDR6X", 24 * GiB, 1008 * GB, 165.2 * TERA, 82.6 * TERA,
             "NVIDIA, Ada whitepaper, appendix A" + QUOTED, float8=330.3 * TERA,
             latency=Latency(smem=30, l1=43, l2=273, dram=542), also=(("latency", DISSECTED),)),
        Card("T4", "7.5", 40, 1590 * MHZ, 4 * MiB, "GDDR6", 16 * GiB, 320 * GB, 65 * TERA, 8.1 * TERA,
             "NVIDIA, T4 datasheet" + QUOTED,
             also=(("dram_rate", "256 bits at 10 Gbit/s each; NVIDIA's T4 datasheet says 300 GB/s" + QUOTED),)),
        Card("L4", "8.9", 58, 2040 * MHZ, 48 * MiB, "GDDR6", 24 * GiB, 300 * GB, 121 * TERA, 30.3 * TERA, L4,
             float8=242.5 * TERA,
             also=(("sms", f"30.3 TFLOP/s / (2 x 128 x 2.04 GHz): {L4}"),)
             + tuple((field, f"half the sparse rate of {L4}") for field in ("float16", "float8"))),
    )
}

NUMBERS = ("sms", "clock", "l2_bytes", "l2_rate", "dram_bytes", "dram_rate", "float16", "float32", "float8",
           "host_bytes", "host_rate", "latency")
# fmt: on


@check_arguments()
def sources(card: Card) -> dict[str, str]:
    """Return the document behind each number of a card, by the number's name. Numbers that are None are left out."""
    documents = {name: card.source for name in NUMBERS if getattr(card, name) is not None} | dict(card.also)
    banks = TURING if card.capability == "7.5" else BANKS
    per_sm = {name: GUIDE for name in PerSM._fields} | {"smem_bytes_per_clock": banks, "tensor_memory_bytes": FA4}
    return documents | per_sm


@check_arguments()
def missing(card: Card, name: str) -> str:
    """Return why a number of a card, by the number's name, is None."""
    if name not in NUMBERS:
        raise ValueError(f"expected one of {', '.join(NUMBERS)}, got {name!r:.40}")
    if name == "float8" and card.capability in ("7.5", "8.0", "8.6"):
        return "its tensor cores have no float8"
    if name == "float32" and card.name == "B200":
        return "NVIDIA's documents disagree: 75 or 80 TFLOP/s"
    return "no document at hand gives it"


@check_arguments()
def smem_rate(card: Card) -> float:
    """Return the bytes per second between the shared memories of all SMs and their arithmetic units."""
    return card.sms * card.per_sm.smem_bytes_per_clock * card.clock


@check_arguments()
def sram_bytes(card: Card) -> int:
    """Return the bytes of L1 and shared memory of all SMs together. No block can use more than one SM's share."""
    return card.sms * card.per_sm.sram_bytes


@check_arguments()
def exp_rate(card: Card) -> float:
    """Return the exponentials per second of all SMs."""
    return card.sms * card.per_sm.exps * card.clock


# By the name of a dtype, a numpy dtype of the same size: numpy has no float8 and no bfloat16.
STORED: dict[str, np.dtype] = {
    "float8": np.dtype(np.int8),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def stored(dtype: str) -> np.dtype:
    """Return a numpy dtype of the same size as the dtype of this name. Raises ValueError for a name not in STORED."""
    if str(dtype) not in STORED:
        raise ValueError(f"expected one of {', '.join(STORED)}, got {dtype}")
    return STORED[str(dtype)]


@check_arguments()
def flop_rate(card: Card, dtype: str = "float16") -> float:
    """Return the peak FLOPs per second of a card for products in this dtype; bfloat16 is as fast as float16.

    Raises: ValueError where no document gives it.
    """
    stored(dtype)
    rate = getattr(card, str(dtype).removeprefix("b"))
    if rate is None:
        raise ValueError(f"no {dtype} rate is known for the {card.name}: {missing(card, str(dtype))}")
    return rate


def flops_per_clock(card: Card, dtype: str = "float16") -> int:
    """Return the FLOPs of products that one SM does per clock, as a power of two: published peaks are rounded.

    Raises: ValueError where no document gives the peak.
    """
    return 2 ** round(np.log2(flop_rate(card, dtype) / card.sms / card.clock))


def ridge(card: Card, dtype: str = "float16") -> float:
    """Return the FLOPs that the card can do while one byte comes from its DRAM."""
    return flop_rate(card, dtype) / card.dram_rate


@check_arguments(cycles=0)
def nanoseconds(card: Card, cycles: float) -> float:
    """Return the duration of ``cycles`` clock cycles of this card, in nanoseconds."""
    return cycles / card.clock * 1e9


class Level(NamedTuple):
    """One level of the memory hierarchy; None where no document gives the number."""

    name: str
    nbytes: int | None
    rate: float | None
    cycles: int | None  # latency


@check_arguments()
def levels(card: Card, *, one_sm: bool = False) -> list[Level]:
    """Return the memories of a card, fastest first. one_sm: registers, L1 and rates are the share of one SM."""
    sms = 1 if one_sm else card.sms  # whose registers and L1 are added up
    sharing = card.sms if one_sm else 1  # SMs among which each rate is divided
    smem, _, l2, dram = card.latency or (None,) * 4

    def share(rate: float | None) -> float | None:
        return rate and rate / sharing

    return [
        Level("registers", sms * card.per_sm.register_bytes, None, None),
        Level("shared memory + L1", sms * card.per_sm.sram_bytes, share(smem_rate(card)), smem),
        Level("L2 cache", card.l2_bytes, share(card.l2_rate), l2),
        Level(card.dram_kind, card.dram_bytes, share(card.dram_rate), dram),
        Level("CPU memory", card.host_bytes, share(card.host_rate), None),
    ]
