"""The tables of ``teach.md``, from the lists of lessons and exercises: `python -m docs.teaching` prints them."""

from flashlab.course.graded import GRADED
from flashlab.course.lessons import LESSONS, duration, notebook, number
from flashlab.course.registry import find

# Numbers of lessons by week. A learner chooses one of the lessons after "or".
ROUTES = {
    6: ("00 01 02", "03 04", "06 07", "08 09", "10 11", "12 14"),
    10: ("00 01 02", "03 04", "05 06", "07 08", "09 10", "11", "12", "13 14", "18 20", "25 26"),
    14: ("00 01", "02 03", "04 05", "06 07", "08 09", "10", "11", "12", "13 14", "15", "16", "17 18", "20", "21"),
}


def exercises() -> list[str]:
    """Return the table of the exercises to grade."""
    rows = [f"| {_lesson(it)} | `{it.exercise}` | {find(it.exercise).minutes} | {it.task} |" for it in GRADED]
    return ["| lesson | exercise | minutes | what it asks |", "|---|---|---|---|", *rows]


def questions() -> list[str]:
    """Return the table of a question per exercise."""
    rows = [f"| `{it.exercise}` | {it.question} | {it.expected} | {it.usual} |" for it in GRADED]
    return ["| exercise | question | answer | usual wrong answer |", "|---|---|---|---|", *rows]


def weeks(route: int) -> list[str]:
    """Return the table of a route of so many weeks: lessons, their time, exercises to hand in, and the sentence."""
    rows = [_week(at, [LESSONS[int(it)] for it in lessons.split()]) for at, lessons in enumerate(ROUTES[route], 1)]
    return ["| week | lessons | time | to hand in | the week's sentence |", "|---|---|---|---|---|", *rows]


def _week(at, lessons):
    links = ", ".join(f"[{number(it):02}](../notebooks/{notebook(it)})" for it in lessons)
    names = [it.exercise.partition(".") for it in GRADED]
    due = ", ".join(f"`{name}`" for lesson, _, name in names if lesson in {it.name for it in lessons})
    return f"| {at} | {links} | {duration(sum(it.minutes for it in lessons))} | {due or '–'} | {lessons[-1].proves} |"


def _lesson(graded):
    return next(f"{number(it):02}" for it in LESSONS if it.name == graded.exercise.partition(".")[0])


if __name__ == "__main__":
    for table in (exercises(), *map(weeks, ROUTES), questions()):
        print(*table, "", sep="\n")
