"""Which tiles, warps and pipeline stages a kernel is launched with: looked up in configs.json, and never searched for.

For cards that were measured, the file says what was fastest, and how and when that was found. For all others it has a
list for each kernel and width of a head, and the first entry that fits the card's shared memory is taken. What fits is
computed before the launch (``shared_bytes``), so there is none that fails for want of it, from 64 KB on.
"""

import functools
import json
from importlib import resources
from typing import NamedTuple

import torch
import triton

from flashlab.kernels import tiles

INTERPRETED_ROWS = 64  # of a tile in the interpreter, where any tile fits and few large ones are quickest
CONFIGS = json.loads(resources.files("flashlab.kernels").joinpath("configs.json").read_text(encoding="utf-8"))


class Card(NamedTuple):
    """What of a GPU decides what runs on it."""

    capability: tuple[int, int]
    shared_bytes: int  # the most that one program may have


class Configuration(NamedTuple):
    """One launch: rows and columns of a tile of scores, warps a program, stages of the pipeline that loads tiles."""

    Br: int
    Bc: int
    warps: int
    stages: int
    implementation: str = "portable"  # or "hopper"
    why: str = ""


def configuration(kernel, q, k, v, causal, implementation=None):
    """The ``Configuration`` that a kernel runs with on these tensors, with the reason in its field ``why``.

    Args:
        kernel: "forward"; "backward", whose Br is 0 if three portable kernels do it; or one of those three,
            "row_constants", "key_value_gradients" and "query_gradients".
        q, k, v: as for ``flash_attention``; only device, dtype and shapes are looked at. causal: bool.
        implementation: "portable", "hopper", or None for what is faster here.

    Raises:
        ValueError: implementation "hopper" for what it cannot take.
    """
    if kernel == "row_constants":
        return Configuration(64, 0, 4, 1, why="it only streams: any tile will do")
    if kernel in ("forward", "backward"):
        against = against_hopper(q, v)
        if implementation == "hopper" and against:
            raise ValueError(f"the Hopper kernels cannot do this: {against}")
        if implementation is None:
            against = against or undetermined(kernel) or slower_on_hopper(kernel, q, k, v)
        elif implementation != "hopper":
            against = against or "asked for"
        if not against:
            return choose_hopper(kernel, q.shape[3], v.shape[3], causal, k.shape[2])
        if kernel == "backward":
            return Configuration(0, 0, 0, 0, why=f"portable: {against}")
    if not q.is_cuda:
        return Configuration(INTERPRETED_ROWS, INTERPRETED_ROWS, 4, 1, why="in the interpreter any tile fits")
    true_float32 = tiles.precision_of(q) == "ieee"
    return choose(kernel, card(q.device), q.dtype, true_float32, q.shape[3], v.shape[3], causal, k.shape[2])


def hopper_width(d, dv):
    """Columns of the Hopper kernels' tiles: 64 or 128."""
    return max(64, tiles.width_of(max(d, dv)))


def against_hopper(q, v):
    """Why the Hopper kernels cannot take these tensors, in words; None if they can."""
    hopper = CONFIGS["hopper"]
    if not q.is_cuda or card(q.device).capability != tuple(hopper["capability"]):
        return "they need a GPU of compute capability 9.0"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"they multiply float16 and bfloat16, got {q.dtype}"
    if max(q.shape[3], v.shape[3]) > 128:
        return f"they hold heads of up to 128 columns, got d = {q.shape[3]} and dv = {v.shape[3]}"
    if not any(triton.__version__.startswith(version + ".") for version in hopper["compilers"]):
        return f"they were compiled with Triton {' and '.join(hopper['compilers'])}, this is {triton.__version__}"
    return None


def undetermined(kernel):
    """Why torch's switch forbids the Hopper kernel, in words; None if it does not."""
    if kernel == "backward" and torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms is on, and the Hopper kernel's dQ varies in its last bits"
    return None


def slower_on_hopper(kernel, q, k, v):
    """Why the Hopper kernels, which can, were measured to be slower at something as small; None where they are not."""
    least = CONFIGS["hopper"]["least"]
    B, H, rows, _ = (q if kernel == "forward" else k).shape  # a program owns rows of these
    work = B * H * tiles.count(rows, 128)
    if max(q.shape[3], v.shape[3]) < least["columns"]:
        return f"heads of fewer than {least['columns']} columns gain nothing there"
    if rows < least[f"{kernel}_rows"]:
        return f"sequences shorter than {least[f'{kernel}_rows']} do not fill their tiles"
    if work < least["tiles"]:
        return f"{work} tiles of 128 rows are too few to keep it busy: {least['tiles']} and more were faster"
    return None


@functools.lru_cache(maxsize=4096)
def choose_hopper(kernel, d, dv, causal, Nk):
    """The ``Configuration`` of a Hopper kernel; Br is 64 for each consumer in the forward pass."""
    hopper, width = CONFIGS["hopper"], hopper_width(d, dv)
    for row in hopper["rows"]:
        if (row["kernel"], row["width"], row["causal"]) == (kernel, width, causal) and Nk >= row["N_from"]:
            why = f"chosen by measurement for N >= {row['N_from']} on {hopper['device']}, {hopper['date']}"
            consumers = row["Br"] // 64 if kernel == "forward" else row["Bc"] // 64
            return Configuration(row["Br"], row["Bc"], 4 * (consumers + 1), row["stages"], "hopper", why)


@functools.cache
def card(device):
    """The ``Card`` behind a torch device."""
    properties = torch.cuda.get_device_properties(device)
    return Card((properties.major, properties.minor), properties.shared_memory_per_block_optin)


@functools.lru_cache(maxsize=4096)
def choose(kernel, card, dtype, true_float32, d, dv, causal, Nk):
    """As ``configuration``, from plain values: so that it can be asked for a card that is not here."""
    width = max(tiles.width_of(d), tiles.width_of(dv))
    for measured in CONFIGS["measured"]:
        if tuple(measured["capability"]) != card.capability or str(dtype) not in measured["dtypes"]:
            continue
        for row in measured["rows"]:
            fits = row["kernel"] == kernel and row["width"] == width and row["causal"] == causal and Nk >= row["N_from"]
            if row.get("whole_tiles") and Nk % row["Bc"]:  # a tile that hangs over the end costs it more registers
                continue
            if fits:
                why = f"chosen by measurement for N >= {row['N_from']} on {measured['device']}, {measured['date']}"
                return Configuration(*_launch(row), why=why)
    products = "plain" if true_float32 or card.capability < (8, 0) else "tensor"
    itemsize = 4 if products == "plain" else dtype.itemsize  # without tensor cores, operands are widened
    for row in CONFIGS["unmeasured"]["rows"]:
        fits = (row["kernel"], row["products"], row["bytes"]) == (kernel, products, itemsize) and width <= row["width"]
        c = Configuration(*_launch(row))
        needed = shared_bytes(kernel, c, width, itemsize)
        if fits and row.get("major", card.capability[0]) == card.capability[0] and needed <= card.shared_bytes:
            return c._replace(why=f"not measured: the first listed that fits, {needed} of {card.shared_bytes} bytes")
    raise ValueError(f"no configuration of {kernel} for heads of {width} columns fits {card.shared_bytes} bytes")


def shared_bytes(kernel, c, width, itemsize):
    """The most shared memory that a kernel takes with tiles of this width, as a bound; the tests compile and compare.

    Two tiles stay for the whole program (Q alone in the forward pass), and two stream past, each stages times; without
    a pipeline they come one after the other. On top come barriers, and scratch for turning tiles over.
    """
    streamed, kept = (c.Br, c.Bc) if kernel == "key_value_gradients" else (c.Bc, c.Br)
    tiles_kept = 1 if kernel == "forward" else 2
    tiles_streamed = 1 if c.stages == 1 else 2 * c.stages
    return itemsize * width * (tiles_kept * kept + tiles_streamed * streamed) + 8 * c.stages * c.Br + 2048


def _launch(row):
    return row["Br"], row["Bc"], row["warps"], row["stages"]
