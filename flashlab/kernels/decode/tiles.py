"""Choose tiles and splits for a step of decoding by a table and a formula, without a search at run time."""

import functools
import math
from typing import NamedTuple

import torch
import triton.language as tl

from flashlab.kernels import tiles
from flashlab.kernels.configurations import card

MOST_SPLITS = 1024
WORTH = 0.95  # a number of splits is good enough if it keeps this fraction of the best number's SMs busy


class Launch(NamedTuple):
    """One launch of ``attention_split``: rows and columns of a tile of scores, warps, stages, programs per SM."""

    Br: int
    Bc: int
    warps: int
    stages: int
    per_sm: int  # programs that are on one SM at a time


class Tile(NamedTuple):
    """The compile-time arguments of a launch."""

    d: int
    dv: int
    page: int | None  # keys per page; None: no table
    Br: int
    Bc: int
    width: int  # columns of tiles of Q and K, without ``rope``
    width_v: int  # of V and O
    rope: int | None  # columns of K after those that are its values, too; None: V is a tensor of its own
    precision: str  # of float32 products
    early: bool  # whether ``combine`` is launched before the splits are written, and waits for them
    pairs: tl.dtype | None  # the 8-bit dtype of K and V that are read as pairs; None: they are read one by one
    unit: float  # as in ``Problem``
    apart: bool  # keys may be read that some tokens do not see; there NaN must not reach these tokens


# By rows of a tile and its columns: the fastest of the sweep in notebooks/data/h200_decoding.json, or within 4 % of it,
# where the sweep has them (16 rows of 128 and 512, 64 rows of 512; one H200, 2026-11-22), otherwise like their
# neighbours. 64 rows are for Hopper's matrix instruction; all other tiles have 16.
LAUNCHES = {
    16: ((64, Launch(16, 128, 4, 3, 2)), (128, Launch(16, 128, 8, 3, 1)), (256, Launch(16, 64, 4, 3, 1)),
         (512, Launch(16, 32, 4, 3, 2))),
    64: ((64, Launch(64, 64, 4, 4, 3)), (128, Launch(64, 64, 4, 3, 2)), (256, Launch(64, 32, 8, 3, 1)),
         (512, Launch(64, 64, 8, 2, 1))),
}  # fmt: skip
# Some caches have launches of their own in place of those of 16 rows above. Those for 64 and 256 columns were the
# fastest of twelve for texts of 1,024 to 8,192 keys on one H200, 2026-11-30: in pages, with 256 columns, they take 0.71
# to 0.79 of the time of those above.
SHORT = 4096  # keys: texts with fewer have several small programs per SM; measured at 1,024 and 8,192
OF_SHORT = (64, Launch(16, 128, 4, 2, 4)), (128, Launch(16, 64, 4, 2, 4))  # and for fixed splits, which are short, too
OF_BYTES = ((128, Launch(16, 128, 4, 3, 2)),)  # numbers of 8 bits
# The pipeline of pages spends two stages on waiting for the table's entries.
PAGED = (64, Launch(16, 64, 4, 4, 4)), (128, Launch(16, 64, 4, 5, 2)), (256, Launch(16, 32, 4, 5, 2))
LATENT = Launch(64, 64, 12, 2, 1)  # ``hopper.latent``


@functools.cache
def launch_for(device: torch.device, rows: int, width: int, itemsize: int, paged: bool, short: bool = False) -> Launch:
    """Return the ``Launch`` for this number of rows (tokens times heads of a group) and tiles of this width.

    itemsize: bytes of a number in the cache; paged: there is a table; short: all texts have fewer than ``SHORT`` keys.
    Stages, and then Bc, are reduced until the tiles fit the shared memory of a program.
    """
    here = card(device)
    height = 64 if rows > 16 and (here is None or here.capability >= (9, 0)) else 16
    kinds = PAGED if paged else OF_BYTES if itemsize == 1 else OF_SHORT if short else ()
    table = (*(kinds if height == 16 else ()), *LAUNCHES[height])
    choice = next(launch for widest, launch in table if width <= widest)
    choice = choice._replace(Bc=choice.Bc if itemsize <= 2 else choice.Bc // 2)
    while here and shared_bytes(choice, width, itemsize) > here.shared_bytes:
        choice = choice._replace(stages=choice.stages - 1) if choice.stages > 1 else choice._replace(Bc=choice.Bc // 2)
    return choice


def shared_bytes(launch: Launch, width: int, itemsize: int) -> int:
    """Return a bound on the shared memory of a program: tiles of K and V in flight, one of Q and one of P."""
    in_flight = launch.stages if launch.Br == 64 else max(launch.stages - 1, 1)
    queries = width + 64 if width > 256 else width  # a latent's keys have up to 64 columns that are no values
    streamed = queries if width > 256 else 2 * width  # and the others are the values, too
    return in_flight * launch.Bc * streamed * itemsize + max(itemsize, 2) * launch.Br * (queries + launch.Bc) + 1024


@functools.lru_cache(maxsize=4096)
def splits_for(programs: int, most: int, launch: Launch, sms: int) -> int:
    """Return the number of splits of the keys: the fewest that keep the card nearly as busy as possible.

    programs: without splits; most: keys of the longest text. The card runs ``slots`` programs at once, so S splits take
    w = programs * S / slots waves. The rule takes the smallest S with w / ceil(w) of at least ``WORTH`` times the best.
    ``reference.decoding.splits`` has the same rule. FlashAttention has 0.85, and two exceptions. On the H200 0.95 was
    never slower, and 3 % faster in the shortest step.
    """
    slots = sms * launch.per_sm
    limit = max(1, min(tiles.count(most, launch.Bc), MOST_SPLITS))
    shares = [programs * S / slots / math.ceil(programs * S / slots) for S in range(1, limit + 1)]
    return next(S for S, share in enumerate(shares, 1) if share >= WORTH * max(shares))


@functools.cache
def sms_of(device: torch.device) -> int:
    """Return the number of SMs of a device; 4 in the interpreter, where splits only cost time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
