"""Edits of the second rung, and questions on four of them. The lesson says what the fifth causes."""

from collections.abc import Iterator
from unittest import mock

import torch

from flashlab.grading.exercise import Question, edited
from flashlab.kernels.hopper.rungs import two_consumers
from flashlab.kernels.launch import launch
from flashlab.machine.sm import Deadlock, Race

EDITS = {  # name: function, old lines, new lines
    "early release": (
        "step",
        "    O_i = warpgroup_mma_wait(0, deps=(O_i,))\n    release(rings.V, j - 1)\n",
        "    release(rings.V, j - 1)\n    O_i = warpgroup_mma_wait(0, deps=(O_i,))\n",
    ),
    "swapped": (
        "step",
        "    S_ij = issue_scores(Q_i, K_j)  # [Br, Bc]\n"
        "    O_i = warpgroup_mma(P_before, V_before, O_i, is_async=True)  # [Br, d]\n",
        "    O_i = warpgroup_mma(P_before, V_before, O_i, is_async=True)  # [Br, d]\n"
        "    S_ij = issue_scores(Q_i, K_j)  # [Br, Bc]\n",
    ),
    "same parity": ("take_turn", "g & 1 if w == 1 else (g & 1) ^ 1", "g & 1"),
    "no turns": ("take_turn", "    mbarrier.wait(turn.index(w), g & 1 if w == 1 else (g & 1) ^ 1)\n", "    pass\n"),
    "no early wait": ("step", "    arrived(rings.V, j)  #", "    #"),
}


def run_edits() -> Iterator[tuple[str, str]]:
    """Run the second rung with each edit, in the interpreter; yield the edit's name and what happened, in words."""
    generator = torch.Generator().manual_seed(0)
    normal = (torch.randn(1, 1, N, 64, dtype=torch.float32, generator=generator) for N in (128, 512, 512))
    q, k, v = (x.half() for x in normal)  # [1, 1, N, 64]
    expected, _ = two_consumers.attend(q, k, v, launch=launch)
    for name, (function, old, new) in EDITS.items():
        with mock.patch.object(two_consumers, function, edited(getattr(two_consumers, function), old, new)):
            try:
                o, _ = two_consumers.attend(q, k, v, launch=launch)
                yield name, "nothing" if torch.equal(o, expected) else "wrong numbers"
            except (Race, Deadlock) as error:
                yield name, f"{type(error).__name__.lower()}: {error}"


early_release = Question(
    answer="race",
    because="The producer may overwrite the values while the product with them runs.",
    hints=(
        "Who waits for the stage that is given back, and what does it do then?",
        "The producer copies the next values there. Which product may still read the old ones?",
        "The product with V that step j issues: its wait comes after the release.",
    ),
    wrong=(
        ("deadlock", "Nobody waits in vain: the producer goes on too soon."),
        ("nothing", "The product that was issued above still reads the tile."),
        ("wrong numbers", "Perhaps, on some days. The interpreter names the cause: a race."),
    ),
)

swapped = Question(
    answer="race",
    because="Then the scores are the newest product, and warpgroup_mma_wait(1, …) lets the newest one run on.",
    hints=(
        "What does warpgroup_mma_wait(1, …) wait for: which products may still run after it?",
        "The newest one may. Which is it after the swap?",
        "The scores. And hide reads them two lines later.",
    ),
    wrong=(
        ("deadlock", "Products end by themselves, in the order in which they were issued."),
        ("nothing", "The wait covers all products but the newest. Which one is that?"),
        ("wrong numbers", "Perhaps, on some days. The interpreter names the cause: a race."),
    ),
)

same_parity = Question(
    answer="deadlock",
    because="At step 0 both wait for phase 0 of their barrier, which the other one's arrival would complete.",
    hints=(
        "Who has the first turn? What does that consumer wait for?",
        "Consumer 0 must pass at once: at step 0 it asks for the phase before, of parity 1.",
        "With the same parity for both, both ask for phase 0.",
    ),
    wrong=(
        ("race", "Nobody reads or writes a tile earlier than before."),
        ("nothing", "With the same parity for both, who has the first turn?"),
    ),
)

no_turns = Question(
    answer="nothing",
    because="Turns order the products in time. They guard no memory: `full` and `empty` do.",
    hints=(
        "Which tile may be read or overwritten too early, if a consumer does not wait for its turn?",
        "Tiles have barriers of their own: consumers wait at `full`, the producer at `empty`.",
        "Turns only choose who issues products first.",
    ),
    wrong=(
        ("race", "Who reads a tile still waits at its `full`, and who overwrites it, at its `empty`."),
        ("deadlock", "One wait less makes nobody wait longer. The arrivals at `turn` go unused."),
        ("wrong numbers", "Each consumer has rows of its own, and their products in either order are the same."),
    ),
)
