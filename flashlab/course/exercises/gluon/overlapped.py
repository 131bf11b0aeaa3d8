"""A step whose softmax runs beside a product: ``step`` of the second rung."""

import re
from functools import partial

from flashlab.course.exercises.gluon.in_a_rung import (
    accesses,
    arrives_before_the_softmax,
    attend,
    before_exponentials,
    case,
    draw,
    exact,
    gives_back_what_it_read,
)
from flashlab.grading.exercise import Exercise, Mistake
from flashlab.kernels.gluon_interpreter.scheduler import READ, me
from flashlab.kernels.hopper.rungs import two_consumers

TURN_KEPT = (
    "the numbers are right, but the other consumer waits for its turn during your softmax, and the tensor cores wait "
    "with it: pass the turn when both products are issued."
)
KEPT = (
    "the numbers are right, but the stage of K is not free during the softmax, although nobody reads it: release it "
    "once the wait for the scores is over, so that the next keys can arrive."
)
OUT_OF_TURN = (
    "the numbers are right, but a product is issued out of turn: take the turn before both products, and pass it after "
    "both."
)


def _in_turn(function, *args):
    """Law: a consumer issues its products between taking the turn and passing it, except for the last product."""
    for done in accesses(two_consumers, "step", function, *args).values():
        events = "".join(_event(it) for it in done)
        if events and not re.fullmatch("(tm+p)*", "".join(events.rsplit("m", 1))):
            return OUT_OF_TURN
    return None


def _event(access):
    """Return "t" for taking the turn, "p" for passing it, "m" for a product, which reads a tile of K or V, else ""."""
    if access.place.startswith("turn"):
        return "t" if access.does == "waits at" else "p" if access.does == "arrives at" else ""
    return "m" if access.kind == READ and access.place.startswith(("K.tiles", "V.tiles")) else ""


def _beside(function, Q, K, V, causal, stages_of_V):
    """Law: the product with V is under way while exponentials are taken."""
    if len(K) <= 128 or (causal and len(K) - len(Q) < 1):
        return None
    under_way = []
    with before_exponentials(lambda: under_way.append(len(me().products))):
        attend(two_consumers, "step", function, Q, K, V, causal, stages_of_V)
    if not any(under_way):
        return (
            "the numbers are right, but nothing runs beside the softmax. Wait until one product is left, that with V: "
            "warpgroup_mma_wait(1, …). Wait for that one after `weights`."
        )
    return None


overlapped = Exercise(
    reference=two_consumers.step,
    launch=partial(attend, two_consumers, "step"),
    exact=exact,
    edges=(
        case("two blocks of keys: one step", 128, 256),
        case("five blocks: stages are used again", 128, 640),
        case("a block that is not full", 128, 200),
        case("a causal mask", 128, 256, True),
        case("a ring of three stages for V, and of two for K", 128, 640, stages_of_V=3),
    ),
    draw=draw,
    draws=6,
    laws=(
        _in_turn,
        _beside,
        arrives_before_the_softmax(two_consumers, "step", "turn", TURN_KEPT),
        arrives_before_the_softmax(two_consumers, "step", "K.empty", KEPT),
        gives_back_what_it_read(two_consumers, "step"),
    ),
    sways=True,
    level=3,
    minutes=20,
    hints=(
        "Issue both products, wait for the older one, take the softmax, wait for the newer one. Which tile is not read "
        "any more at which of the two waits?",
        "After warpgroup_mma_wait(1, deps=(S_ij,)) nobody reads K_j: release it. After warpgroup_mma_wait(0, "
        "deps=(O_i,)) nobody reads V_(j-1). O_i is rescaled after its product: the product's weights have the old "
        "maximum.",
        "take_turn(turn, j, w); S_ij = issue_scores(Q_i, K_j); O_i = warpgroup_mma(P_before, V_before, O_i, "
        "is_async=True); pass_turn(turn, w); S_ij = warpgroup_mma_wait(1, deps=(S_ij,)); release(rings.K, j); "
        "S_ij = hide(…); m_i, l_i, P_ij, alpha = weights(…); O_i = warpgroup_mma_wait(0, deps=(O_i,)); "
        "release(rings.V, j - 1); return m_i, l_i, alpha[:, None] * O_i, P_ij.",
    ),
    mistakes=(
        Mistake("gave the stage of V back while its product runs.", "Release it after warpgroup_mma_wait(0, …).",
                "    pass_turn(turn, w)\n", "    pass_turn(turn, w)\n    release(rings.V, j - 1)\n"),
        Mistake("never gave the stage of V back.", "The producer waits for it once all stages are filled.",
                "    release(rings.V, j - 1)\n", ""),
        Mistake("never gave the stage of K back.", "The producer waits for it once all stages are filled.",
                "    release(rings.K, j)\n", ""),
        Mistake("kept the turn.", "The other consumer waits for it: pass_turn once your products are issued.",
                "    pass_turn(turn, w)\n", ""),
        Mistake("did not rescale O_i.", "Its sums have the old maximum: multiply by alpha.",
                "alpha[:, None] * O_i", "O_i"),
        Mistake("multiplied the weights with the values of block j.", "P_before belongs to block j - 1.",
                "warpgroup_mma(P_before, V_before, O_i", "warpgroup_mma(P_before, arrived(rings.V, j), O_i"),
    ),
)  # fmt: skip
