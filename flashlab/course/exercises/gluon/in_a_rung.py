"""Run a rung in the interpreter, with a learner's function in place of one of its own; and the cases for that."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from flashlab.grading.exercise import Case, edited
from flashlab.grading.kernel_laws import attempted
from flashlab.kernels.gluon_interpreter import language
from flashlab.kernels.gluon_interpreter.memory import View
from flashlab.kernels.gluon_interpreter.scheduler import READ, me
from flashlab.kernels.launch import launch
from flashlab.reference import masks
from flashlab.reference.attention import attention

EXPONENTIAL = "exponential"
NOT_READ = (
    "the numbers are right, but a role gives back a stage whose tile it has not read since it last gave it back: "
    "release the stage of the tile that the finished product has read."
)
TWICE = "the numbers are right, but a role multiplies a tile twice: one product with each tile is enough."


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


class Event(NamedTuple):
    """What a role did: an access to shared memory, or an exponential."""

    kind: str  # READ or another kind of the scheduler's, or EXPONENTIAL
    does: str = ""  # "waits at", "arrives at", …
    place: str = ""  # "K.tiles[1]", "V.empty[0]", "turn[1]", …
    under_way: int = 0  # of an exponential: products of the role that no wait has covered


def is_product(event: Event) -> bool:
    """Return whether a product reads a tile of K or V."""
    return event.kind == READ and event.place.startswith(("K.tiles", "V.tiles"))


Rule = Callable[[dict[str, list[Event]]], str | None]


def watched(rung: ModuleType, name: str, *rules: Rule) -> Callable[..., str | None]:
    """Build a law: a run of a rung, as ``attend`` does it, obeys these rules.

    A rule gets the events of each role in order, by the role's name. It returns a sentence where they break it.
    """

    def law(function, *args):
        events = _events(rung, name, function, *args)
        return next(filter(None, (rule(events) for rule in rules)), None)

    return law


def _events(rung, name, function, *args):
    """Run a rung, and return the events of each role."""
    found, access = defaultdict(list), View.access

    def note_and_access(view, kind, does, engine=""):
        found[me().name].append(Event(kind, does, str(view)))
        return access(view, kind, does, engine)

    def noting(exp):
        def note_and_call(x):
            found[me().name].append(Event(EXPONENTIAL, under_way=len(me().products)))
            return exp(x)

        return note_and_call

    exponentials = {name: noting(getattr(language, name)) for name in ("exp", "exp2")}  # a step may call either
    with mock.patch.object(View, "access", note_and_access), mock.patch.multiple(language, **exponentials):
        attend(rung, name, function, *args)
    return found


def arrives_before_the_softmax(barriers: str, message: str) -> Rule:
    """Build a rule: after its last exponential, no role arrives at a barrier whose name begins with ``barriers``."""

    def rule(events):
        for done in events.values():
            late = False
            for it in done:
                if it.kind == EXPONENTIAL:
                    late = False
                elif it.does == "arrives at" and it.place.startswith(barriers):
                    late = True
            if late:
                return message
        return None

    return rule


def reads_once_and_gives_back(events: dict[str, list[Event]]) -> str | None:
    """Rule: each time that a role gives a stage back, it has read the tile of that stage once since the last time."""
    for done in events.values():
        read = set()
        for it in done:
            if is_product(it):
                stage = it.place.replace("tiles", "empty")
                if stage in read:
                    return TWICE
                read.add(stage)
            elif it.does == "arrives at" and ".empty" in it.place:
                if it.place not in read:
                    return NOT_READ
                read.remove(it.place)
    return None


def in_place_of(rung: ModuleType, name: str) -> dict:
    """Return the fields of an exercise whose attempts take the place of the function ``name`` of a rung."""
    run = partial(attend, rung, name)
    return {"launch": run, "rung": (rung.__name__, name), "exact": _exact, "draw": _draw, "draws": 6, "sways": True}


def _exact(Q, K, V, causal, stages_of_V=2):
    """Compute the results of ``attend`` in numpy."""
    return Attended(*attention(Q, K, V, mask=masks.causal() if causal else None, return_lse=True))


def case(property: str, Nq: int, Nk: int, causal: bool = False, stages_of_V: int = 2, d: int = 64) -> Case:
    """Return a case with queries, keys and values of these lengths and width, and with this number of stages for V."""
    return Case(property, (*_tensors(np.random.default_rng(Nk), Nq, Nk, d), causal, stages_of_V))


def _draw(rng, size):
    """Draw one head of 64 or 128 columns, up to two tiles of queries and seven blocks, a mask, and the stages of V."""
    Nq, Nk = rng.integers(1, 25 * size + 1), rng.integers(1, 88 * size + 1)
    return *_tensors(rng, Nq, Nk, int(rng.choice([64, 128]))), bool(rng.integers(2)), int(rng.integers(2, 4))


def _tensors(rng, Nq, Nk, d):
    return tuple(rng.normal(size=(N, d)).astype(np.float16) for N in (Nq, Nk, Nk))
