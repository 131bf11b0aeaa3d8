"""The consumer takes in one block: ``step`` of the first rung."""

from flashlab.course.exercises.gluon.in_a_rung import (
    arrives_before_the_softmax,
    case,
    in_place_of,
    reads_once_and_gives_back,
    watched,
)
from flashlab.grading.exercise import Exercise, Mistake
from flashlab.kernels.hopper.rungs import one_consumer

KEPT = (
    "the numbers are right, but the stage of K is not free during the softmax, although nobody reads it: release it "
    "after `scores` and before `update`, so that the next keys can arrive."
)

step = Exercise(
    reference=one_consumer.step,
    **in_place_of(one_consumer, "step"),
    edges=(
        case("one block of keys", 128, 128),
        case("five blocks: stages are used again", 128, 640),
        case("a block that is not full", 128, 100),
        case("a causal mask: the block on the diagonal", 128, 128, True),
        case("a causal mask, and queries that see no key", 128, 64, True),
    ),
    laws=(
        watched(one_consumer, "step", arrives_before_the_softmax("K.empty", KEPT), reads_once_and_gives_back),
    ),
    level=2,
    minutes=15,
    hints=(
        "Keys: wait for them, multiply, give their stage back. Then hide. Values: wait for them, update, give their "
        "stage back.",
        "arrived(rings.K, j) waits and returns the tile. release(rings.K, j) gives its stage back at once: call it "
        "after the product that reads the tile. The block's first key is number j * Bc.",
        "K_j = arrived(rings.K, j); S_ij = scores(Q_i, K_j); release(rings.K, j); S_ij = hide(S_ij, row, j * Bc, Nq, "
        "Nk, causal); m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, arrived(rings.V, j), factor); release(rings.V, j).",
    ),
    mistakes=(
        Mistake("did not give back every stage of K.", "The producer waits for it once all stages are filled.",
                "    release(rings.K, j)\n", ""),
        Mistake("did not give back every stage of V.", "The producer waits for it once all stages are filled.",
                "    release(rings.V, j)\n", ""),
        Mistake("read a tile of V after its stage was given back.", "Wait for block j, and release it after `update`.",
                "    m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, arrived(rings.V, j), factor)\n"
                "    release(rings.V, j)\n",
                "    V_j = arrived(rings.V, j)\n    release(rings.V, j)\n"
                "    m_i, l_i, O_i = update(m_i, l_i, O_i, S_ij, V_j, factor)\n"),
        Mistake("read a tile of K after its stage was given back.", "Wait for block j, and release it after `scores`.",
                "    S_ij = scores(Q_i, K_j)  # [Br, Bc]\n    release(rings.K, j)\n",
                "    release(rings.K, j)\n    S_ij = scores(Q_i, K_j)\n"),
        Mistake("hid no key.", "Past the last key, and above the diagonal, scores become −∞: `hide`.",
                "    S_ij = hide(S_ij, row, j * Bc, Nq, Nk, causal)\n", ""),
        Mistake("passed another first key than the block's.", "Block j begins at key j * Bc.", "row, j * Bc", "row, j"),
    ),
)  # fmt: skip
