"""The tables of ``teach.md``, from the lists of lessons and exercises: `python -m docs.teaching` prints them."""

from flashlab.course.graded import GRADED
from flashlab.course.lessons import LESSONS, notebook, number
from flashlab.course.registry import every, find
from flashlab.grading.exercise import Question

KINDS = "functions", "kernels", "answers"
# The lessons of each week, by the names in ``flashlab.course.lessons``.
ROUTES = {
    6: (
        "start_here memory_hierarchy standard_attention", "safe_softmax online_softmax", "tiling block_size",
        "recomputation io_complexity", "first_triton_kernel triton_forward", "triton_backward measure_and_debug",
    ),
    10: (
        "start_here memory_hierarchy standard_attention", "safe_softmax online_softmax", "roads_not_taken tiling",
        "block_size recomputation", "io_complexity first_triton_kernel", "triton_forward", "triton_backward",
        "attention_in_a_model measure_and_debug", "masks_and_scores decoding", "which_version_when linear_attention",
    ),
    14: (
        "start_here memory_hierarchy", "standard_attention safe_softmax", "online_softmax roads_not_taken",
        "tiling block_size", "recomputation io_complexity", "first_triton_kernel", "triton_forward", "triton_backward",
        "attention_in_a_model measure_and_debug", "barriers", "gluon", "schedules masks_and_scores", "decoding",
        "the_cache",
    ),
}  # fmt: skip


def checked() -> list[str]:
    """Return the table of all exercises: names and minutes of functions and kernels, and the number of answers."""
    rows = []
    for lesson in LESSONS:
        functions, kernels, answers = (_of(lesson, kind) for kind in KINDS)
        names = [_timed(functions)] * bool(functions) + [f"kernels: {_timed(kernels)}"] * bool(kernels)
        rows.append(f"| {number(lesson):02} | {'; '.join(names)} | {len(answers)} ({_minutes(answers)} min) |")
    return ["| lesson | functions, each with its minutes | answers |", "|---|---|---|", *rows]


def exercises() -> list[str]:
    """Return the table of the exercises to grade."""
    rows = [f"| {_lesson(it)} | `{it.exercise}` | {find(it.exercise).minutes} | {it.task} |" for it in GRADED]
    return ["| lesson | exercise | minutes | what it asks |", "|---|---|---|---|", *rows]


def questions() -> list[str]:
    """Return the table of a question per exercise."""
    rows = [f"| {_lesson(it)} | {_short(it)} | {it.question} | {it.expected} | {it.usual} |" for it in GRADED]
    return ["| lesson | exercise | question | answer | usual wrong answer |", "|---|---|---|---|---|", *rows]


def weeks(route: int) -> list[str]:
    """Return the table of a route of this many weeks: lessons, their minutes, what to hand in, and the sentence.

    Learners hand in all exercises of the week's lessons; the column has the option of the grader that chooses them.
    """
    by_name = {it.name: it for it in LESSONS}
    rows = [_week(at, [by_name[it] for it in names.split()]) for at, names in enumerate(ROUTES[route], 1)]
    return ["| week | lessons | minutes | to hand in | the week's sentence |", "|---|---|---|---|---|", *rows]


def _week(at, lessons):
    links = ", ".join(f"[{number(it):02}](../notebooks/{notebook(it)})" for it in lessons)
    functions = [name for it in lessons for kind in KINDS[:2] for name in _of(it, kind)]
    answers = [name for it in lessons for name in _of(it, "answers")]
    option = f"`--lessons {' '.join(f'{number(it):02}' for it in lessons)}`"
    work = f"{option}: {_sum(functions, 'function')}; {_sum(answers, 'answer')}"
    return f"| {at} | {links} | {sum(it.minutes for it in lessons)} | {work} | {lessons[-1].proves} |"


def _of(lesson, kind):
    """Return the names of a lesson's exercises of a kind."""
    return [name for name, it in every().items() if name.partition(".")[0] == lesson.name and _kind(it) == kind]


def _kind(exercise):
    if isinstance(exercise, Question):
        return "answers"
    return "kernels" if hasattr(exercise.reference, "fn") else "functions"


def _timed(names):
    return ", ".join(f"`{name}` {find(name).minutes}" for name in names)


def _minutes(names):
    return sum(find(name).minutes for name in names)


def _sum(names, noun):
    return f"{len(names)} {noun}{'s' * (len(names) != 1)}, {_minutes(names)} min"


def _lesson(graded):
    return next(f"{number(it):02}" for it in LESSONS if it.name == graded.exercise.partition(".")[0])


def _short(graded):
    return graded.exercise.partition(".")[2]


if __name__ == "__main__":
    for table in (checked(), exercises(), *map(weeks, ROUTES), questions()):
        print(*table, "", sep="\n")
