"""The producer asks for one tile: ``fetch`` of the first rung."""

import re
from collections import defaultdict

from flashlab.course.exercises.gluon.in_a_rung import case, in_place_of, watched
from flashlab.grading.exercise import Exercise, Mistake
from flashlab.kernels.hopper.rungs import one_consumer

NOT_FREE = (
    "the numbers are right, but something comes before the stage is free: wait at `empty` first, then announce the "
    "bytes and ask for the copy."
)
WAITS = (
    "the numbers are right, but the producer waits for its own tile, and nothing is on its way while the consumer "
    "computes: ask for the tile, and do not wait at `full`."
)
LETTERS = {
    ("empty", "waits at"): "w",  # until the stage is free
    ("full", "arrives at"): "e",  # ``expect``
    ("full", "has the copy engine arrive at"): "c",
    ("full", "waits at"): "f",
}


def _in_order(events):
    """Rule: for each tile, the producer waits until its stage is free, announces the bytes and asks for the copy."""
    stages = defaultdict(str)  # of each stage: ``LETTERS`` in order
    for role, done in events.items():
        for it in done if role.startswith("produce") else ():
            of, stage = it.place.split("[", 1)  # such as "K.full" and "1]"
            ring, part = of.split(".")
            stages[role, ring, stage] += LETTERS.get((part, it.does), "")
    if any("f" in text for text in stages.values()):
        return WAITS
    return None if all(re.fullmatch("(w*(ec|ce))*", text) for text in stages.values()) else NOT_FREE


fetch = Exercise(
    reference=one_consumer.fetch,
    **in_place_of(one_consumer, "fetch"),
    edges=(
        case("one block of keys: every stage is new", 128, 128),
        case("three blocks of 128 columns in two stages: one is used again", 128, 384, d=128),
        case("five blocks: one is used a third time", 128, 640),
        case("a ring of three stages for V, and of two for K", 128, 512, stages_of_V=3),
    ),
    laws=(watched(one_consumer, "fetch", _in_order),),
    level=2,
    minutes=12,
    hints=(
        "Three things, in this order: wait until the stage is free, announce the bytes, ask for the copy.",
        "The stage is number g % stages. It is free when the phase before that of step g is over at `empty`: the phase "
        "of step g has the parity g // stages & 1, and the one before has the other parity.",
        "mbarrier.wait(ring.empty.index(g % stages), (g // stages & 1) ^ 1); mbarrier.expect(full, "
        "X.block_type.nbytes); tma.async_copy_global_to_shared(X, place, full, ring.tiles.index(g % stages)).",
    ),
    mistakes=(
        Mistake("waited for the phase of step g itself.", "Step g ends it. Wait for the one before: ^ 1.",
                "(g // stages & 1) ^ 1", "g // stages & 1"),
        Mistake("did not wait for the stage.", "A consumer may still read it: wait at `empty` first.",
                "    mbarrier.wait(ring.empty.index(g % stages), (g // stages & 1) ^ 1)\n", ""),
        Mistake("announced no bytes.", "`expect` is also the arrival at `full`: without it the phase never ends.",
                "    mbarrier.expect(full, X.block_type.nbytes)\n", ""),
        Mistake("let the phase change with every step.", "It changes when the same stage comes up again.",
                "(g // stages & 1) ^ 1", "(g & 1) ^ 1"),
        Mistake("waited for the tile's arrival.", "The producer waits for readers, at `empty`; they wait at `full`.",
                "ring.empty.index", "ring.full.index"),
        Mistake("used the same stage each time.", "Step g has stage g % stages.",
                "ring.tiles.index(g % stages)", "ring.tiles.index(0)"),
    ),
)  # fmt: skip
