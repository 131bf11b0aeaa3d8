"""Run a rung in the interpreter, with a learner's function in place of one of its own; and the cases for that."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from flashlab.grading.exercise import Case, edited
from flashlab.grading.kernel_laws import attempted
from flashlab.kernels.gluon_interpreter import language, units
from flashlab.kernels.gluon_interpreter.memory import View
from flashlab.kernels.gluon_interpreter.scheduler import READ, me
from flashlab.kernels.launch import launch
from flashlab.reference import masks
from flashlab.reference.attention import attention

d = 64
NOT_READ = (
    "the numbers are right, but a role gives back a stage whose tile it has not read since it last gave it back: "
    "release the stage of the tile that the finished product has read."
)


class Attended(NamedTuple):
    """What a rung returns."""

    O: np.ndarray  # [Nq, d]
    lse: np.ndarray  # [Nq]


def attend(rung: ModuleType, name: str, function, Q, K, V, causal, stages_of_V=2) -> Attended:
    """Run a rung on one head, with a learner's function in place of the rung's function ``name``.

    stages_of_V: the number of stages of the ring of V; the ring of K has two.
    """
    q, k, v = (torch.from_numpy(X)[None, None] for X in (Q, K, V))  # [1, 1, N, d]
    kernel = edited(rung.attention_forward, "make_ring(V, STAGES", f"make_ring(V, {stages_of_V}")
    with mock.patch.multiple(rung, attention_forward=kernel, **{name: attempted(function)}):
        o, lse = rung.attend(q, k, v, causal, launch=launch)
    return Attended(o[0, 0].numpy(), lse[0, 0].numpy())


@contextmanager
def before_exponentials(note: Callable[[], None]) -> Iterator[None]:
    """Call ``note()`` before each exponential that a role takes."""

    def noting(exp):
        def note_and_call(x):
            note()
            return exp(x)

        return note_and_call

    patches = {name: noting(getattr(language, name)) for name in ("exp", "exp2")}  # a step may call either
    with mock.patch.multiple(language, **patches):
        yield


def arrives_before_the_softmax(rung: ModuleType, name: str, barriers: str, message: str) -> Callable[..., str | None]:
    """Build a law: after its last exponential, no role arrives at a barrier whose name begins with ``barriers``."""

    def law(function, *args):
        late, arrive = {}, units.Barrier.arrive  # role: whether its last arrival came after its last exponential

        def note_and_arrive(barrier, nbytes=0):
            if str(barrier.view).startswith(barriers):
                late[me().name] = True
            return arrive(barrier, nbytes)

        patch = mock.patch.object(units.Barrier, "arrive", note_and_arrive)
        with patch, before_exponentials(lambda: late.update({me().name: False})):
            attend(rung, name, function, *args)
        return message if any(late.values()) else None

    return law


class Access(NamedTuple):
    """An access of a role to shared memory."""

    kind: str  # READ, or another kind of the scheduler's
    does: str  # "waits at", "arrives at", …
    place: str  # "K.tiles[1]", "V.empty[0]", "turn[1]", …


def accesses(rung: ModuleType, name: str, function, *args) -> dict[str, list[Access]]:
    """Run a rung as ``attend`` does, and return what each of its roles did in shared memory, in order."""
    found, access = defaultdict(list), View.access

    def note_and_access(view, kind, does, engine=""):
        found[me().name].append(Access(kind, does, str(view)))
        return access(view, kind, does, engine)

    with mock.patch.object(View, "access", note_and_access):
        attend(rung, name, function, *args)
    return found


def gives_back_what_it_read(rung: ModuleType, name: str) -> Callable[..., str | None]:
    """Build a law: each time that a role gives a stage back, it has read the tile of that stage since the last time."""

    def law(function, *args):
        for done in accesses(rung, name, function, *args).values():
            read = set()
            for it in done:
                if it.kind == READ and ".tiles" in it.place:
                    read.add(it.place.replace("tiles", "empty"))
                elif it.does == "arrives at" and ".empty" in it.place:
                    if it.place not in read:
                        return NOT_READ
                    read.remove(it.place)
        return None

    return law


def exact(Q, K, V, causal, stages_of_V=2) -> Attended:
    """Compute the results of ``attend`` in numpy."""
    return Attended(*attention(Q, K, V, mask=masks.causal() if causal else None, return_lse=True))


def case(property: str, Nq: int, Nk: int, causal: bool = False, stages_of_V: int = 2) -> Case:
    """Return a case with queries, keys and values of these lengths, and with so many stages for V."""
    return Case(property, (*_tensors(np.random.default_rng(Nk), Nq, Nk), causal, stages_of_V))


def draw(rng, size):
    """Draw one head, of up to two tiles of queries and seven blocks of keys, a mask, and the stages of V."""
    Nq, Nk = rng.integers(1, 25 * size + 1), rng.integers(1, 88 * size + 1)
    return *_tensors(rng, Nq, Nk), bool(rng.integers(2)), int(rng.integers(2, 4))


def _tensors(rng, Nq, Nk):
    return tuple(rng.normal(size=(N, d)).astype(np.float16) for N in (Nq, Nk, Nk))
