"""The lessons of the course, in order. This is the only list: a lesson's number is its place here.

The README, the map in the first notebook, the doctor, the registry of exercises and the tests read it, so a lesson is
inserted by inserting a line. Code names a lesson and never numbers it.
"""

from typing import Literal, NamedTuple

Needs = Literal["numpy", "triton", "hopper"]


class Lesson(NamedTuple):
    """One idea: a notebook, and whatever else bears its name (a module, a figure, exercises, a test)."""

    name: str  # of its notebook without the number, and of its modules
    title: str
    part: str
    proves: str  # the sentence that it proves
    needs: Needs = "numpy"  # triton: a GPU or Triton's interpreter; hopper: shown as measured elsewhere


LESSONS = (
    Lesson("start_here", "Start here", "The problem", "what this machine is, how a lesson works, the map"),
    Lesson("memory_hierarchy", "Memory hierarchy", "The problem",
           "the fast memory is small, and arithmetic waits for bytes"),
    Lesson("standard_attention", "Standard attention", "The problem",
           "three kernels carry an N×N matrix back and forth"),
    Lesson("safe_softmax", "Safe softmax", "The problem",
           "subtracting the maximum changes no weight, and no exponential overflows"),
    Lesson("online_softmax", "Online softmax", "The problem",
           "(m, ℓ) of a whole is computable from (m, ℓ) of its parts"),
    Lesson("roads_not_taken", "Roads not taken", "The problem",
           "windows, low rank, sampling, checkpointing: what each gives up"),
    Lesson("tiling", "Tiling", "The algorithm", "the same six lines, one tile at a time; two loop orders, two bills"),
    Lesson("block_size", "Block size", "The algorithm", "the widest block that fits, and what fitting means"),
    Lesson("recomputation", "Recomputation", "The algorithm",
           "more arithmetic, less time: rebuild P from lse, never store it"),
    Lesson("io_complexity", "IO complexity", "The algorithm",
           "Θ(N²d²/M) counted; time stays quadratic, extra memory is linear"),
    Lesson("first_triton_kernel", "First Triton kernel", "Kernels",
           "programs, blocks, masks: a softmax that reads each row once", "triton"),
    Lesson("triton_forward", "Triton forward", "Kernels", "the six lines of the tile loop, in Triton", "triton"),
    Lesson("triton_backward", "Triton backward", "Kernels",
           "every gradient has one owner: the backward pass, in Triton", "triton"),
    Lesson("attention_in_a_model", "Attention in a model", "Kernels",
           "exact, not approximate: the same loss curve, step for step", "triton"),
    Lesson("measure_and_debug", "Measure and debug", "Kernels",
           "a time needs a clock, a launch is measured, a bug has a pattern", "triton"),
    Lesson("barriers", "Barriers and phases", "Hopper",
           "copies, products and exponentials at once, and barriers that keep them in order"),
    Lesson("gluon", "Gluon", "Hopper",
           "who holds which number, and who waits for whom: the same lines, on the chip", "hopper"),
    Lesson("schedules", "Schedules", "Hopper",
           "the same kernel, longest tile first: who computes what, and when", "hopper"),
    Lesson("masks_and_scores", "Masks and scores", "What models ask for",
           "a mask is a schedule: tiles that nobody sees cost nothing"),
    Lesson("packed_texts_and_dropout", "Packed texts and dropout", "What models ask for",
           "no padding: texts in one row, and chance as a function of place"),
    Lesson("decoding", "Decoding", "What models ask for",
           "one query keeps a whole card busy, in parts that merge", "triton"),
    Lesson("the_cache", "The cache", "What models ask for",
           "the past in pages that texts share, and in fewer bytes: exact attention to what is kept", "triton"),
    Lesson("many_gpus", "Many GPUs", "Beyond",
           "keys travel, states merge: one text over many machines, and who waits for whom"),
    Lesson("eight_bits", "Eight bits", "Beyond",
           "a few hundred numbers suffice: where each error comes from, and what spares it"),
    Lesson("next_machine", "The next machine", "Beyond",
           "twice the products, as many exponentials as before: the schedule changes, not the mathematics"),
    Lesson("which_version_when", "Which version when", "Beyond",
           "the fastest that can is looked up, or that of a named neighbour; and what attention gives up without exp",
           "triton"),
)  # fmt: skip


def number(lesson: Lesson) -> int:
    """Return the number of a lesson: its place in ``LESSONS``, from 0."""
    return LESSONS.index(lesson)


def notebook(lesson: Lesson) -> str:
    """Return the file name of a lesson's notebook, such as "06_tiling.ipynb"."""
    return f"{number(lesson):02}_{lesson.name}.ipynb"


def rows(folder: str = "") -> list[str]:
    """Return the table of lessons in Markdown, one row each: number, title with a link into ``folder``, sentence."""
    return [f"| {number(it):02} | [{it.title}]({folder}{notebook(it)}) | {it.proves} |" for it in LESSONS]


def runs(needs: Needs) -> str:
    """Return the numbers of the lessons with these needs, in words: "lessons 00 to 09, 15 and 16" or "lesson 15"."""
    numbers = [number(it) for it in LESSONS if it.needs == needs]
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    runs = []
    for a, b in zip(starts, ends, strict=True):
        runs += [f"{a:02} to {b:02}"] if b - a > 1 else [f"{n:02}" for n in range(a, b + 1)]
    words = " and ".join(filter(None, (", ".join(runs[:-1]), runs[-1])))
    return f"lesson{'s' * (len(numbers) > 1)} {words}"
