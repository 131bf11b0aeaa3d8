"""Choose tiles and parts for a step of decoding: looked up and computed, never searched for at run time."""

import functools
import math
from typing import NamedTuple

import torch

from flashlab.kernels import tiles
from flashlab.kernels.configurations import card

MOST_PARTS = 1024
WORTH = 0.85  # of the best share of the card's time


class Launch(NamedTuple):
    """One launch of ``attention_split``: rows and columns of a tile of scores, warps, stages, programs per SM."""

    Br: int
    Bc: int
    warps: int
    stages: int
    per_sm: int  # programs that are on one SM at a time


# By the columns of a tile of values and the bytes of a row of K and V together; not measured yet.
LAUNCHES = {
    16: ((64, Launch(16, 64, 4, 4, 4)), (128, Launch(16, 64, 4, 3, 2)), (256, Launch(16, 32, 4, 3, 2)),
         (512, Launch(16, 64, 4, 2, 2))),
    64: ((64, Launch(64, 64, 4, 4, 3)), (128, Launch(64, 64, 4, 3, 2)), (256, Launch(64, 32, 8, 3, 2)),
         (512, Launch(64, 64, 8, 2, 1))),
}  # fmt: skip


@functools.cache
def launch_for(device: torch.device, rows: int, width: int, itemsize: int) -> Launch:
    """Return the ``Launch`` for so many rows (tokens times heads of a group) and tiles of so many columns.

    Stages, and then columns, are halved until two tiles per stage fit into what a program may have of the card's
    shared memory. itemsize: bytes of a number in the cache.
    """
    height = 16 if rows <= 16 else 64
    chosen = next(launch for widest, launch in LAUNCHES[height] if width <= widest)
    chosen = chosen._replace(Bc=chosen.Bc if itemsize <= 2 else chosen.Bc // 2)
    here = card(device)
    while here and shared_bytes(chosen, width, itemsize) > here.shared_bytes:
        chosen = chosen._replace(stages=chosen.stages - 1) if chosen.stages > 1 else chosen._replace(Bc=chosen.Bc // 2)
    return chosen


def shared_bytes(launch: Launch, width: int, itemsize: int) -> int:
    """Return a bound on the shared memory of a program: tiles of K and V in flight, and one of Q."""
    in_flight = max(launch.stages - 1, 1) * (1 if width > 256 else 2)
    return width * (in_flight * launch.Bc * itemsize + 2 * launch.Br) + launch.Br * launch.Bc * 4 + 8192


def parts_for(programs: int, most: int, launch: Launch, sms: int) -> int:
    """Return how many parts the keys are divided into: the fewest that keep the card nearly as busy as possible.

    programs: without a division; most: keys of the longest text. With S parts there are w = programs * S / slots waves,
    where slots is how many programs the card runs at once; the rule takes the least S whose w / ceil(w) reaches
    ``WORTH`` of the best. ``reference.decoding.splits`` is the same rule.
    """
    slots = sms * launch.per_sm
    limit = max(1, min(tiles.count(most, launch.Bc), MOST_PARTS))
    shares = [programs * S / slots / math.ceil(programs * S / slots) for S in range(1, limit + 1)]
    return next(S for S, share in enumerate(shares, 1) if share >= WORTH * max(shares))


@functools.cache
def sms_of(device: torch.device) -> int:
    """Return the number of SMs of a device; 4 in the interpreter, where parts only cost time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
