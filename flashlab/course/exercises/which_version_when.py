"""The exercises on which version when: a fallback, the fastest version that can, and the fastest for training."""

import numpy as np

from flashlab.grading import draws
from flashlab.grading.exercise import Case, Exercise, Mistake, Question

__all__ = ["fallback", "choose", "training"]  # in the lesson's order

inf = np.inf


def choose_version(lengths, us, able, N):
    """Return the nearest cell in which an able version was timed, and the fastest able version in it."""
    usable = np.where(able, us, np.inf)  # [cells, versions]
    timed = np.isfinite(usable).any(1)  # [cells]
    apart = np.where(timed, np.abs(np.log2(lengths / N)), np.inf)  # [cells]
    cell = apart.argmin()
    return cell, usable[cell].argmin()


def _draw_cells(rng, size):
    """Draw cells, the times of some versions in them, and a length, to which no two cells are equally near."""
    cells, versions = (int(n) for n in rng.integers(1, size + 1, 2))
    able = rng.random(versions) < 0.7
    able[rng.integers(versions)] = True
    lengths = np.array([draws.whole(rng, size, 10**9) for _ in range(cells)], np.float64)
    if rng.random() < 0.3:  # two lengths that a rounded logarithm makes equal
        lengths[0] = lengths[-1] + rng.integers(1, 9)
    N = int(rng.choice([draws.whole(rng, size, 10**9), lengths[-1]]))
    apart = np.sort(np.abs(np.log2(lengths / N)))  # [cells]
    us = 10 ** rng.uniform(0, 5, (cells, versions))
    us[rng.random((cells, versions)) < rng.choice([0, 0.3, 0.8])] = inf
    valid = np.isfinite(us[:, able]).any() and (np.diff(apart) > 1e-9).all()
    return (lengths, us, able, N) if valid else _draw_cells(rng, size)


LENGTHS = np.array([1024.0, 8192.0])
TIMES = np.array([[12.0, 10, 14], [38, 40, 35]])
ALL = np.array([True, True, True])

choose = Exercise(
    reference=choose_version,
    edges=(
        Case("a length that was measured", (LENGTHS, TIMES, ALL, 8192)),
        Case("the fastest version cannot compute this", (LENGTHS, TIMES, np.array([True, True, False]), 8192)),
        Case("a length that is nearer to 1,024 in tokens and to 8,192 in ratio", (LENGTHS, TIMES, ALL, 4500)),
        Case("the nearest cell has no time of an able version",
             (LENGTHS, np.array([[10, 12, 14], [38, inf, 35]]), np.array([False, True, False]), 8192)),
        Case("the longest cell first, and a shorter length than all", (LENGTHS[::-1].copy(), TIMES, ALL, 17)),
    ),
    draw=_draw_cells,
    level=2,
    minutes=10,
    hints=(
        "Which times may you look at at all? Set all others to ∞ first, and most of the work is done.",
        "A cell counts if any able version has a time there. Among those, the nearest: by the ratio of lengths, "
        "as times grow by ratios.",
        "usable = np.where(able, us, inf); apart = |log2(lengths / N)|, ∞ where no usable time is finite; two argmins.",
    ),
    mistakes=(
        Mistake("chose a version that cannot compute the call.", "Look at the times of able versions only.",
                "np.where(able, us, np.inf)", "us"),
        Mistake("looked at the versions that cannot compute the call.", "Look at the times of able versions only.",
                "np.where(able, us, np.inf)", "np.where(able, np.inf, us)"),
        Mistake("took the nearest cell by the difference of lengths.",
                "Time grows by ratios: compare |log2(length / N)|.",
                "np.abs(np.log2(lengths / N))", "np.abs(lengths - N)"),
        Mistake("took a cell in which no able version has a time.", "Such a cell does not count.",
                "np.where(timed, np.abs(np.log2(lengths / N)), np.inf)", "np.abs(np.log2(lengths / N))"),
        Mistake("compared distances with their signs.", "A shorter cell is not nearer: take the absolute value.",
                "np.abs(np.log2(lengths / N))", "np.log2(lengths / N)"),
        Mistake("chose the version with the least time in any cell.", "It may be slow at this length.",
                "usable[cell].argmin()", "usable.min(0).argmin()"),
    ),
)  # fmt: skip

training = Question(
    answer="neither",
    because="We save 4 % of a forward pass and lose 2 % of a backward pass, which is three times as long: 4 − 3 · 2 = "
    "−2 % of a forward pass. FlashAttention-4 is ahead by half a per cent of the step: rounds differ by more.",
    hints=(
        "A step of training is both passes of one version. Add them up.",
        "Let FlashAttention-4's forward pass take 1, and its backward pass 3. What do ours take?",
        "0.96 and 3.06: 4.02 against 4. Is that more than 3 %?",
    ),
    wrong=(
        (
            "flashlab",
            "Forward it is ahead, but backward it loses more: that pass takes three times as long.",
        ),
        ("FlashAttention-4", "It is ahead, but by half a per cent. Two rounds of one run differ by more."),
    ),
)

fallback = Question(
    answer="math",
    because="The kernel for CPUs has no dropout, so torch takes its plain operations, with an N × N matrix, silently.",
    hints=(
        "What does torch do if the kernel that it likes best cannot compute a call?",
        "It goes down a list of its backends. The last one can do everything.",
        "The last one is written in plain operations: its name in torch is math.",
    ),
    wrong=(
        ("flash", "It would, without dropout. The kernel for CPUs has none."),
        ("cudnn", "cuDNN needs a GPU."),
        ("an error", "That would be better! torch takes the next backend that can do it, and says nothing."),
    ),
)
