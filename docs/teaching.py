"""The tables of ``teach.md``, from the lists of lessons and exercises: `python -m docs.teaching` prints them."""

from flashlab.course.graded import GRADED
from flashlab.course.lessons import LESSONS, notebook, number
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
    rows = [f"| {_lesson(it)} | {_short(it)} | {it.question} | {it.expected} | {it.usual} |" for it in GRADED]
    return ["| lesson | exercise | question | answer | usual wrong answer |", "|---|---|---|---|---|", *rows]


def weeks(route: int) -> list[str]:
    """Return the table of a route of so many weeks: lessons, their minutes, exercises to hand in, and the sentence."""
    rows = [_week(at, [LESSONS[int(it)] for it in lessons.split()]) for at, lessons in enumerate(ROUTES[route], 1)]
    return ["| week | lessons | minutes | to hand in | the week's sentence |", "|---|---|---|---|---|", *rows]


def _week(at, lessons):
    links = ", ".join(f"[{number(it):02}](../notebooks/{notebook(it)})" for it in lessons)
    due = ", ".join(f"`{_short(it)}`" for it in GRADED if _lesson(it) in {f"{number(lesson):02}" for lesson in lessons})
    return f"| {at} | {links} | {sum(it.minutes for it in lessons)} | {due or '–'} | {lessons[-1].proves} |"


def _lesson(graded):
    return next(f"{number(it):02}" for it in LESSONS if it.name == graded.exercise.partition(".")[0])


def _short(graded):
    return graded.exercise.partition(".")[2]


if __name__ == "__main__":
    for table in (exercises(), *map(weeks, ROUTES), questions()):
        print(*table, "", sep="\n")
