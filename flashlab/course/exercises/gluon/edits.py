"""Four edits of the second rung, and what happens then."""

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
    "one arrival": ("make_ring", "count=readers", "count=1"),
    "same parity": ("take_turn", "g & 1 if w == 1 else (g & 1) ^ 1", "g & 1"),
    "no early wait": ("step", "    arrived(rings.V, j)  #", "    #"),
}


def run_edits() -> Iterator[tuple[str, str]]:
    """Run the second rung with each edit, in the interpreter; yield the edit's name and what happened, in words."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(1, 1, N, 64, dtype=torch.float32, generator=generator) for N in (128, 512, 512))
    q, k, v = (x.half() for x in drawn)  # [1, 1, N, 64]
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
        "That of step j: its wait comes after the release.",
    ),
    wrong=(
        ("deadlock", "Nobody waits in vain: the producer goes on too soon."),
        ("nothing", "The product that was issued above still reads the tile."),
        ("wrong numbers", "Perhaps, on some days. The interpreter names the cause: a race."),
    ),
)

one_arrival = Question(
    answer="race",
    because="The first consumer's release completes the phase, and the second one may still read.",
    hints=(
        "How many consumers read a tile, and how many release it?",
        "Two. With a count of 1, when does the producer go on?",
        "After the faster one.",
    ),
    wrong=(
        ("deadlock", "A phase that is complete early makes nobody wait."),
        ("nothing", "The slower consumer may still read the tile."),
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
        ("race", "Turns guard no memory."),
        ("nothing", "Then nobody would have the first turn."),
    ),
)

no_early_wait = Question(
    answer="nothing",
    because="The next step waits for the same tile before it reads it. The line is there for the machine code.",
    hints=(
        "Which step reads the tile that this line waits for? Does that step wait itself?",
        "Step j + 1 begins with arrived(rings.V, j).",
        "So no number changes.",
    ),
    wrong=(
        ("race", "The next step waits for the same tile before it reads it."),
        ("deadlock", "One wait less makes nobody wait longer."),
    ),
)
