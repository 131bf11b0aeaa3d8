"""Find the scores that the Hopper forward kernels take in: their own functions, producer and consumers, run in Python.

The interpreter of Gluon computes whole kernels. To know which scores count, less will do: what decides on tiles, blocks
and masks computes with plain numbers. So these functions are called as Python's, the producer first and then each
consumer. What moves or multiplies tiles is replaced by a record of which tiles met. Rings have room for all steps, and
nobody waits.
"""

from dataclasses import dataclass, replace
from types import FunctionType, SimpleNamespace

import numpy as np
import torch
from triton.runtime.jit import JITCallable

from flashlab.kernels import masks
from flashlab.kernels.hopper import arguments, forward, forward_float8, roles, schedule, softmax
from flashlab.kernels.hopper.roles import Shared
from flashlab.kernels.hopper.work import Work
from flashlab.kernels.problem import Problem

KERNELS = {  # name: (a consumer's function, rows of a consumer)
    "forward": (forward.consume, 64),
    "float8": (forward_float8.consume, 64),
}

WITHOUT_EFFECT = (
    "wait_full", "wait_empty", "release", "fence_async_shared", "accumulator", "partial_sums", "update_sums", "total",
    "finish",
)  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """A tile of scores: its first row, its first key, and which of its scores are not hidden, [Br, Bc]."""

    row: int
    key: int
    seen: np.ndarray

    @property
    def shape(self):
        return self.seen.shape

    type = SimpleNamespace(layout=None)


class Numbers(np.ndarray):
    """An array as the kernels have it."""

    type = SimpleNamespace(layout=None)

    def to(self, dtype):
        return self.astype(dtype)


class Output(tuple):
    """The weights that were multiplied with values, in the place of O_i."""

    def __mul__(self, _):
        return self

    def to(self, _):
        return self


@dataclass(frozen=True)
class Pointer:
    """A place in global memory."""

    memory: list | np.ndarray
    at: int = 0

    def __add__(self, steps):
        return replace(self, at=self.at + steps)


class Buffer:
    """The tile that a consumer hands to the copy engine."""

    def store(self, O_i):
        self.O_i = O_i


def nothing(*_, **__):
    """Stand for what moves or computes numbers."""


def in_python(function, instead):
    """Return a Gluon function, and all that it calls, as functions of Python, with some names replaced."""
    made = {}

    def plain(jitted):
        function = jitted.fn
        if function not in made:
            known = function.__globals__ | instead
            defaults, names = tuple(map(plain_or_same, function.__defaults__ or ())), {}
            made[function] = FunctionType(function.__code__, names, None, defaults)
            names |= {name: plain_or_same(known[name]) for name in function.__code__.co_names if name in known}
        return made[function]

    def plain_or_same(value):
        return plain(value) if isinstance(value, JITCallable) else value

    return plain(function)


def substitutes(problem, rows, Bc, arrived, counts):
    """Return a stand-in for the GPU: ``arrived`` holds the start of each tile that was copied."""

    def copy(_, at, __, stage, pred=True):
        if pred:
            arrived[stage] = at[2]

    def product(Q_i, K_j, columns=None):
        keys = np.zeros(Bc, bool) if K_j is None else np.ones(Bc, bool)  # after the last tile, what comes is stale
        return Scores(Q_i, K_j, np.broadcast_to(keys, (rows, Bc)))

    def multiply(P_ij, V_j, O_i, is_async=False):
        assert P_ij.key == V_j, "values of another block"
        return Output([*O_i, P_ij])

    def update(m_i, l_i, O_i, S_ij, V_j, scale_log2):
        return m_i, l_i, multiply(S_ij, V_j, O_i)

    def write(descriptor, at, buffer):
        for P_ij in buffer.O_i:
            assert P_ij.row == at[2], "rows of another tile"
            mine = counts[P_ij.row : min(P_ij.row + rows, descriptor.N), P_ij.key : P_ij.key + Bc]
            mine += P_ij.seen[: len(mine)]

    gl = SimpleNamespace(
        load=lambda pointer: pointer.memory[pointer.at],
        maximum=max,
        minimum=lambda x, y: np.minimum(x, y) if np.ndim(x) else min(x, y),
        to_tensor=lambda x: x,
        cdiv=lambda x, y: int((x + y - 1) / y),  # towards zero, as integers divide on a GPU
        static_assert=nothing,
        static_range=range,
        arange=lambda start, stop, layout: np.arange(start, stop, dtype=np.int32).view(Numbers),
        where=lambda shown, S_ij, hidden: replace(S_ij, seen=S_ij.seen & shown),
        zeros=lambda *_: Output(),
        full=nothing,
        SliceLayout=nothing,
        float32=None,
        uint32=np.uint32,
    )

    of_one = SimpleNamespace(  # ``pieces``, where a tile has one
        ask_for=lambda X, at, barrier, ring, full, g, pred=True: copy(X, at, barrier, (ring.name, g), pred),
        tile=lambda ring, full, g: arrived.get((ring.name, g)),
        product=product,
        add_product=lambda P_ij, V_j, O_i: (multiply(P_ij, V_j, O_i[0]),),
        finished=lambda O_i: O_i,
        zeros=lambda *_: (Output(),),
        rescale=lambda O_i, alpha: O_i,
        bytes_of=lambda *_: 0,
    )
    bounds = SimpleNamespace(Window=masks.Window, bounds=schedule.bounds)
    return {
        "gl": gl,
        "masks": bounds,
        "questions": bounds,
        "pieces": of_one,
        "mbarrier": SimpleNamespace(expect=nothing),
        "tma": SimpleNamespace(async_copy_global_to_shared=copy, async_copy_shared_to_global=write, store_wait=nothing),
        "stage_of": lambda ring, g: (ring.name, g),
        "matrix": lambda buffer: buffer if isinstance(buffer, Buffer) else arrived.get(buffer),
        "product": product,
        "warpgroup_mma": multiply,
        "warpgroup_mma_wait": lambda _, deps: deps[0],
        "operand": lambda P_ij, *_: P_ij,
        "rescale": lambda O_i, alpha: O_i,
        "new_maximum": nothing,
        "weights": lambda m_i, m_new, S_ij, *_: (S_ij, None),
        "update_weights": lambda m_i, S_ij, *_: (None, S_ij, None),
        "update": update,
        "along_rows": lambda *_, **__: np.ones(rows),
    } | dict.fromkeys(WITHOUT_EFFECT, nothing)


def in_float8(instead):
    """Return the stand-in for the kernel in float8: keys are the last coordinate of V, and columns in another order."""

    def copy(K, at, full, stage, pred=True):
        at = (*at[:2], at[3]) if stage[0] == "V" else at
        instead["tma"].async_copy_global_to_shared(K, at, full, stage, pred)

    def ask_for_keys(shared, K, b, hk, start, full, g):
        copy(K, (b, hk, start), full, ("K", g))

    def fours(P_ij):
        seen = np.empty_like(P_ij.seen)
        Bc = seen.shape[1]
        seen[:, forward_float8.key_of.fn(np.arange(Bc), Bc)] = P_ij.seen
        return replace(P_ij, seen=seen)

    def multiply(shared, P_before, O_i, g, p, variant):
        return instead["warpgroup_mma"](P_before, instead["matrix"](("V", g)), O_i[p])

    def store(shared, out, tile, O_i, *others):
        in_python(softmax.store, instead)(shared, out, tile, O_i[:1], *others)

    return (
        instead
        | {
            "tma": SimpleNamespace(async_copy_global_to_shared=copy, store_wait=nothing),
            "float8": SimpleNamespace(scaled=nothing, OF_V=None),
            "of_rows": nothing,
            "of_block": lambda *_: Scores(0, 0, np.empty(0)),  # of which only the layout is asked
            "operand_of_fours": lambda P_ij, _: P_ij,
            "collect": lambda O_i, O_p, *_: (O_p,),
        }
        | {function.__name__: function for function in (ask_for_keys, fours, multiply, store)}
    )


def taken(Nq, Nk, mask, Br, kernel="forward", Bc=128):
    """Return how often each score of a head is taken in, [Nq, Nk].

    Keys that no window reaches, and past the last one, are never taken in, or an assertion fails.
    """
    consume, rows = KERNELS[kernel]
    problem = Problem(1, 1, 1, Nq, Nk, 64, 64, torch.bfloat16, torch.device("cpu"), mask, 1.0, "ieee")
    keys = torch.arange(Nk)[None, None, :, None]
    keys, _, problem = arguments.without_unseen(keys, keys, problem)
    unseen, Nk = Nk - problem.Nk, problem.Nk
    assert isinstance(mask, masks.Rule) or wanted(Nq, Nk, mask).any(0).all(), "keys that no query sees"
    if isinstance(mask, masks.Rule):
        table = schedule.table(problem, Br, Bc, 1)[0].numpy()  # [tiles, 8]
    else:
        table = schedule.ordered_tiles(problem, Br)  # [tiles, 4]
    options = arguments.request_of(problem)
    if options.intervals is not None:
        numbers = options.intervals.table.flatten().numpy().view(Numbers)
        options = options._replace(intervals=options.intervals._replace(table=Pointer(numbers)))
    work = Work(Pointer(table.ravel().tolist()), 0, len(table), 1, Nq, Nk, -(-Nq // Br), 1.0, options)
    heights, buffers = {"Q": rows, "K": Bc, "V": Bc}, [Buffer() for _ in range(Br // rows)]
    rings = {name: SimpleNamespace(name=name, shape=(2, 1, 1, N, 64), dtype=None) for name, N in heights.items()}
    rings["O"] = SimpleNamespace(shape=(Br // rows, 1, 1, rows, 64), dtype=None, index=lambda w: buffers[w])
    others = (name for name in Shared._fields if name not in rings)
    shared = Shared(**rings, **{name: SimpleNamespace(name=name) for name in others})
    counts = np.zeros((Nq, -(-Nk // Bc) * Bc), int)
    instead = substitutes(problem, rows, Bc, {}, counts)
    variant, asking = arguments.variant(problem, rows, Bc), ()
    if kernel == "float8":
        variant, instead = forward_float8.Variant(*variant[:4], True, 1), in_float8(instead)
        asking = instead["ask_for_keys"], in_python(forward_float8.ask_for_values, instead)
    out = softmax.Output(SimpleNamespace(N=Nq), SimpleNamespace(N=Nq - (work.Tr - 1) * Br), None)
    tensor = SimpleNamespace(block_type=SimpleNamespace(nbytes=0), dtype=SimpleNamespace(primitive_bitwidth=0))
    in_python(roles.produce, instead)(shared, tensor, tensor, tensor, work, variant, *asking)
    for w in range(Br // rows):
        in_python(consume, instead)(shared, out, work, w, variant)
    assert not counts[:, Nk:].any(), "keys past the end"
    return np.pad(counts[:, :Nk], ((0, 0), (unseen, 0)))


def wanted(Nq, Nk, mask):
    """Return what ``taken`` should be: each score that the mask leaves, once."""
    i, j = np.ogrid[:Nq, :Nk]
    own = i + Nk - Nq
    left, right = (Nk + Nq if end is None else end for end in mask)
    return ((own - left <= j) & (j <= own + right)).astype(int)
