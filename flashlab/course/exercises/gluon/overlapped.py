"""A step whose softmax runs beside a product: ``step`` of the second rung."""

import re

from flashlab.course.exercises.gluon.in_a_rung import (
    arrives_before_the_softmax,
    case,
    in_place_of,
    is_product,
    reads_once_and_gives_back,
    watched,
)
from flashlab.grading.exercise import Exercise, Mistake
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
NOTHING_BESIDE = (
    "the numbers are right, but nothing runs beside the softmax. Wait until one product is left, that with V: "
    "warpgroup_mma_wait(1, …). Wait for that one after `weights`."
)


def _in_turn(events):
    """Rule: a consumer issues its products between taking the turn and passing it, except for the last product."""
    for done in events.values():
        text = _as_text(done)
        if text and not re.fullmatch("(tm+p)*", "".join(text.rsplit("m", 1))):
            return OUT_OF_TURN
    return None


def _beside(events):
    """Rule: the product with V is under way at an exponential. A consumer without steps, of two products, has none."""
    steps = [done for done in events.values() if _as_text(done).count("m") > 2]
    return NOTHING_BESIDE if steps and not any(it.under_way for done in steps for it in done) else None


def _as_text(done):
    """Return "t" for taking the turn, "p" for passing it, and "m" for a product, which reads a tile of K or V."""
    return "".join(map(_letter, done))


def _letter(event):
    if event.place.startswith("turn"):
        return {"waits at": "t", "arrives at": "p"}.get(event.does, "")
    return "m" if is_product(event) else ""


overlapped = Exercise(
    reference=two_consumers.step,
    **in_place_of(two_consumers, "step"),
    edges=(
        case("two blocks of keys: one step", 128, 256),
        case("five blocks: stages are used again", 128, 640),
        case("a block that is not full", 128, 200),
        case("a causal mask", 128, 256, True),
        case("a ring of three stages for V, and of two for K", 128, 640, stages_of_V=3),
    ),
    laws=(
        watched(
            two_consumers,
            "step",
            _in_turn,
            _beside,
            arrives_before_the_softmax("turn", TURN_KEPT),
            arrives_before_the_softmax("K.empty", KEPT),
            reads_once_and_gives_back,
        ),
    ),
    level=3,
    minutes=20,
    hints=(
        "Issue both products, wait for the older one, take the softmax, wait for the newer one. After each of the "
        "two waits, which tile is no longer read?",
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
