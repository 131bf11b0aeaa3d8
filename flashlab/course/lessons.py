"""The lessons of the course, in order. This is the only list: a lesson's number is its place here.

The README, the map in the first notebook, the site, the doctor, the registry of exercises and the tests follow it. So a
new lesson is a new line, and `python -m tests.tools.renumber` writes the numbers. Code names lessons, not numbers.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Needs = Literal["numpy", "triton", "hopper"]


class Lesson(NamedTuple):
    """One idea: a notebook, and the module, figure, exercises and test of the same name."""

    name: str  # of its notebook without the number, and of its modules
    title: str
    part: str
    minutes: int  # of the whole lesson, with its exercises
    proves: str  # the sentence that it proves
    needs: Needs = "numpy"  # triton: a GPU or Triton's interpreter; hopper: a Hopper GPU or the course's interpreter
    prerequisites: tuple[str, ...] = ()  # of an elective; a core lesson builds on all earlier core lessons


LESSONS = (
    Lesson("start_here", "Start here", "The problem", 35, "what this machine is, how a lesson works, the map"),
    Lesson("memory_hierarchy", "Memory hierarchy", "The problem", 60,
           "the fast memory is small, and arithmetic waits for bytes"),
    Lesson("standard_attention", "Standard attention", "The problem", 60,
           "three kernels carry an N×N matrix back and forth"),
    Lesson("safe_softmax", "Safe softmax", "The problem", 60,
           "subtracting the maximum changes no weight, and no exponential overflows"),
    Lesson("online_softmax", "Online softmax", "The problem", 75,
           "(m, ℓ) of a whole is computable from (m, ℓ) of its parts"),
    Lesson("roads_not_taken", "Roads not taken", "The problem", 45,
           "windows, low rank, sampling, checkpointing: what each gives up",
           prerequisites=("standard_attention", "online_softmax")),
    Lesson("tiling", "Tiling", "The algorithm", 75,
           "the same six lines, one tile at a time; two loop orders, two bills"),
    Lesson("block_size", "Block size", "The algorithm", 50, "the widest block that fits, and what fitting means"),
    Lesson("recomputation", "Recomputation", "The algorithm", 80,
           "more arithmetic, less time: rebuild P from lse, never store it"),
    Lesson("io_complexity", "IO complexity", "The algorithm", 60,
           "Θ(N²d²/M) counted; time stays quadratic, extra memory is linear"),
    Lesson("first_triton_kernel", "First Triton kernel", "Kernels", 80,
           "programs, blocks, masks: a softmax that reads each row once", "triton"),
    Lesson("triton_forward", "Triton forward", "Kernels", 150, "the six lines of the tile loop, in Triton", "triton"),
    Lesson("triton_backward", "Triton backward", "Kernels", 120,
           "every gradient has one owner: the backward pass, in Triton", "triton"),
    Lesson("attention_in_a_model", "Attention in a model", "Kernels", 75,
           "exact, not approximate: the same loss curve, step for step", "triton"),
    Lesson("measure_and_debug", "Measure and debug", "Kernels", 60,
           "a time needs a clock, a launch is measured, a bug has a pattern", "triton"),
    Lesson("barriers", "Barriers and phases", "Hopper", 120,
           "copies, products and exponentials at once, and barriers that keep them in order",
           prerequisites=("triton_forward",)),
    Lesson("gluon", "Gluon", "Hopper", 150,
           "who holds which number, and who waits for whom: the same lines, on the chip", "hopper",
           prerequisites=("barriers",)),
    Lesson("schedules", "Schedules", "Hopper", 60,
           "the same kernel, longest tile first: who computes what, and when", "hopper", prerequisites=("gluon",)),
    Lesson("masks_and_scores", "Masks and scores", "What models ask for", 70,
           "a mask is a schedule: tiles that nobody sees cost nothing", prerequisites=("recomputation",)),
    Lesson("packed_texts_and_dropout", "Packed texts and dropout", "What models ask for", 60,
           "no padding: texts in one row, and chance as a function of place", prerequisites=("masks_and_scores",)),
    Lesson("decoding", "Decoding", "What models ask for", 90,
           "one query keeps a whole card busy, in parts that merge", "triton",
           prerequisites=("triton_forward", "attention_in_a_model")),
    Lesson("the_cache", "The cache", "What models ask for", 90,
           "the past in pages that texts share, and in fewer bytes: exact attention to what is kept", "triton",
           prerequisites=("decoding",)),
    Lesson("many_gpus", "Many GPUs", "Beyond", 90,
           "keys travel, states merge: one text over many machines, and who waits for whom",
           prerequisites=("recomputation", "decoding")),
    Lesson("eight_bits", "Eight bits", "Beyond", 105,
           "a few hundred numbers suffice: where each error comes from, and what spares it",
           prerequisites=("safe_softmax", "the_cache")),
    Lesson("next_machine", "The next machine", "Beyond", 105,
           "twice the products, as many exponentials as before: the schedule changes, not the mathematics",
           prerequisites=("schedules",)),
    Lesson("which_version_when", "Which version when", "Beyond", 50,
           "each version removed a bottleneck; look up which one is the fastest for your call",
           prerequisites=("masks_and_scores", "decoding")),
    Lesson("linear_attention", "Linear attention", "Beyond", 60,
           "without exp the past is one matrix: what that saves, and what it forgets", "triton",
           prerequisites=("tiling",)),
)  # fmt: skip
_NAMED = {lesson.name: lesson for lesson in LESSONS}
CORE = tuple(lesson for lesson in LESSONS if not lesson.prerequisites)


class Way(NamedTuple):
    """Some lessons in the order of the course. Each opening names what a lesson needs from those left out."""

    name: str
    end: str  # what the learner has at the end
    lessons: tuple[Lesson, ...]

    @property
    def minutes(self) -> int:
        """The sum of the lessons' minutes."""
        return sum(lesson.minutes for lesson in self.lessons)


WAYS = (
    Way("An evening", "a FlashAttention of your own, in numpy",
        tuple(_NAMED[name] for name in ("start_here", "online_softmax", "tiling"))),
    Way("A weekend", "a FlashAttention kernel of your own, in Triton",
        tuple(_NAMED[name] for name in (
            "start_here", "memory_hierarchy", "standard_attention", "safe_softmax", "online_softmax", "tiling",
            "first_triton_kernel", "triton_forward"))),
    Way("The core", "both passes in numpy and in Triton, and a model that they train", CORE),
    Way("All of it", "kernels for training and for writing, and measurements to choose by", LESSONS),
)  # fmt: skip


def number(lesson: Lesson) -> int:
    """Return the number of a lesson: its place in ``LESSONS``, from 0."""
    return LESSONS.index(lesson)


def notebook(lesson: Lesson) -> str:
    """Return the file name of a lesson's notebook, such as "06_tiling.ipynb"."""
    return f"{number(lesson):02}_{lesson.name}.ipynb"


def duration(minutes: int) -> str:
    """Return minutes in words, such as "35 min" or "3 h 15 min"; from 20 hours on in whole hours."""
    hours, rest = divmod(minutes, 60)
    if hours >= 20:
        return f"{round(minutes / 60)} h"
    return " ".join([f"{hours} h"] * (hours > 0) + [f"{rest} min"] * (rest > 0)) or "0 min"


def builds_on(lesson: Lesson) -> str:
    """Return "core" for a lesson of the core, and for an elective the lessons that it builds on, such as "02, 04"."""
    return ", ".join(f"{number(_NAMED[name]):02}" for name in lesson.prerequisites) or "core"


def rows(folder: str = "") -> list[str]:
    """Return the table of lessons in Markdown: number, title linked into ``folder``, time, ``builds_on``, sentence."""
    return [
        f"| {number(it):02} | [{it.title}]({folder}{notebook(it)}) | {duration(it.minutes)} | {builds_on(it)} "
        f"| {it.proves} |"
        for it in LESSONS
    ]


def ways() -> list[str]:
    """Return the table of the ways in Markdown, a row each: name, time, lessons, what the learner has at the end."""
    return [f"| {way.name} | {duration(way.minutes)} | {spans(way.lessons)} | {way.end} |" for way in WAYS]


def runs(needs: Needs) -> str:
    """Return the numbers of the lessons with these needs, in words."""
    return spans([it for it in LESSONS if it.needs == needs])


def spans(lessons: Sequence[Lesson]) -> str:
    """Return the numbers of lessons, in words: "lessons 00 to 09, 15 and 16" or "lesson 15"."""
    numbers = [number(it) for it in lessons]
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    runs = []
    for a, b in zip(starts, ends, strict=True):
        runs += [f"{a:02} to {b:02}"] if b - a > 1 else [f"{n:02}" for n in range(a, b + 1)]
    words = " and ".join(filter(None, (", ".join(runs[:-1]), runs[-1])))
    return f"lesson{'s' * (len(numbers) > 1)} {words}"
