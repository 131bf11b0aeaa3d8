"""Grade the answers of a class: ``python -m flashlab.course.grade FOLDER --csv grades.csv``.

Every entry of FOLDER is a folder, a zip or a notebook with the name of one learner, as a learning platform writes
them. The table has a row per learner and exercise: the verdict ("right", "wrong", "not judged", "not
attempted"), the first case that fails with its inputs, what was wrong, and a note. With ``--wide`` it has a row per
learner, with sums of minutes. With ``--roster`` it has the columns of the list of the class, too.

Neither the output of a notebook counts, nor a check that it defines. The lines that an answer needs are taken from
the notebook's source and run in a process of their own. That process may crash, hang or print: only the results of the
answer come back, and they are judged here. It may read and write your files, so grade on a machine, or in a container,
where that does no harm.
"""

import argparse
import csv
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from flashlab.course import check, progress
from flashlab.course.grade_answers import Answer, answers
from flashlab.course.grade_files import hand_ins
from flashlab.course.grade_notes import has_the_courses_text, runs_the_course, text_of
from flashlab.course.grade_roster import UNDECIDED, Learner, Roster, members, roster
from flashlab.course.graded import GRADED
from flashlab.course.lessons import LESSONS
from flashlab.course.registry import UnknownExercise, every, find
from flashlab.grading import forked
from flashlab.grading.defaults import defaults
from flashlab.grading.exercise import Question
from flashlab.grading.words import shortened

MARKS = {"✓": "right", "✗": "wrong", "○": "not judged"}
VERDICTS = *MARKS.values(), "not attempted"
COLUMNS = ("learner", "exercise", "verdict", "fails for", "input", "reason", "note")
UNDEFINED = re.compile(r"NameError: name '(\w+)' is not defined")


class Row(NamedTuple):
    """One line of the table, as ``COLUMNS``."""

    learner: str
    exercise: str
    verdict: str
    fails_for: str = ""
    input: str = ""
    reason: str = ""
    note: str = ""
    columns: tuple[str, ...] = ()  # the learner's other columns in the list of the class


def graded(learner: str, name: str, answer: Answer) -> Row:
    """Judge one answer."""
    try:
        exercise = find(name)
    except UnknownExercise:
        return Row(learner, name[:60], "not judged", note="there is no such exercise")
    attempt: object = answer.program
    if answer.unchecked:
        return Row(learner, name, "not judged", note="its check line is missing")
    if isinstance(exercise, Question):
        run = forked.run(lambda: iter([_plain(answer.program.run())]), check.PATIENCE)
        if not run.values:
            return _excused(Row(learner, name, "wrong", reason=f"it gave no answer: {_end(run)}"), answer)
        attempt = run.values[0]
        if attempt is None:
            return Row(learner, name, "not attempted")
    with defaults():
        verdict = check.judged(name, exercise, attempt, compiled=False)
    if verdict.line.startswith(("not attempted", "not answered")):
        return Row(learner, name, "not attempted")
    fails_for = verdict.line.removeprefix("fails for ") if verdict.line.startswith("fails for ") else ""
    inputs = "; ".join(f"{key} = {value}" for key, value in verdict.inputs)
    reason = verdict.did or verdict.message or ("" if fails_for else verdict.line)
    reason = "" if verdict.mark == "✓" else reason
    return _excused(Row(learner, name, MARKS[verdict.mark], fails_for, inputs, reason), answer)


def _plain(value):
    """Return an answer to a question as ``records`` can send it; None for the ellipsis of a stub."""
    if value is ... or isinstance(value, bool | int | float | str):
        return None if value is ... else value
    return value.item() if hasattr(value, "item") else str(value)


def _end(run):
    return (run.printed[-1].splitlines() or [run.end or "nothing"])[-1]


def _excused(row, answer):
    """Return a row as it is, or "not judged" if a name is missing that the learner's notebook does bind."""
    missing = UNDEFINED.search(row.reason)
    if row.verdict != "wrong" or missing is None or missing[1] not in answer.names:
        return row
    return Row(row.learner, row.exercise, "not judged", note=f"the grader did not find {missing[1]} in the notebook")


def grade(
    folder: Path,
    names: Iterable[str] | None = None,
    on_learner: Callable[[int, int, str], None] = lambda done, of, learner: None,
    learners: Iterable[Learner] = (),
) -> Iterator[Row]:
    """Yield the rows of all learners of the list of the class, and of all others with a hand-in in a folder.

    names: the exercises that count; by default those with an answer of some learner. Raises ValueError for a name that
    is no exercise, and for a folder that does not exist.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    for name in names or ():
        find(name)
    everybody = [(it, answers(it.hand_in) if it.hand_in else {}) for it in members(hand_ins(folder), learners)]
    order = list(every())
    exercises = list(names or (it for it in order if any(it in own for _, own in everybody)))
    texts = Counter((name, text) for _, own in everybody for name, text in _texts(own))
    for done, (member, own) in enumerate(everybody):
        learner, columns = member.learner
        on_learner(done, len(everybody), learner)
        if notes := list(filter(None, [member.note, _ignored(member.hand_in) if member.hand_in else ""])):
            verdict = "not judged" if member.hand_in or member.note == UNDECIDED else "not attempted"
            yield Row(learner, "", verdict, note="; ".join(notes), columns=columns)
        for name in [*exercises, *sorted(set(own) - set(order))]:
            row = Row(learner, name, "not attempted", note="not handed in")
            if name in own:
                with _nothing_stored():
                    row = graded(learner, name, own[name])
                    row = row._replace(note="; ".join(filter(None, [row.note, *_notes(row, own[name], texts)])))
            yield row._replace(columns=columns)
    on_learner(len(everybody), len(everybody), "")


@contextmanager
def _nothing_stored():
    """Let ``mine`` return the course's solution, and not an answer of the teacher's."""
    before, progress.FILE = progress.FILE, Path(os.devnull)
    try:
        yield
    finally:
        progress.FILE = before


def _ignored(hand_in):
    """Return a note on files that were not read: archives and damaged notebooks, or all where there is no notebook."""
    nothing = not (hand_in.notebooks or hand_in.progress)
    suffixes = (".ipynb", "progress.json", ".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".xz")
    names = [it for it in hand_in.ignored if nothing or it.lower().endswith(suffixes)]
    if names:
        return shortened(f"not read: {', '.join(names)}", 300)
    return "no notebook" if nothing else ""


def _texts(of_one):
    """Yield the exercise and the text of each answer of a learner that is no stub."""
    yield from ((name, text) for name, it in of_one.items() if not it.stub and (text := text_of(it.program.source)))


def _notes(row, answer, texts):
    """Yield notes on an answer: it has the course's code or text, or others' text; other notebooks answer, too."""
    text = text_of(answer.program.source)
    if row.verdict == "right":
        yield runs_the_course(row.exercise, answer.program) or has_the_courses_text(row.exercise, text)
    if (same := texts[row.exercise, text]) > 1:
        all_of_them = sum(count for (name, _), count in texts.items() if name == row.exercise)
        yield f"{same} of {all_of_them} answers have this text"
    if answer.others:
        yield f"also answered in {', '.join(answer.others)}"


def tall(rows: Iterable[Row], heads: tuple[str, ...] = ()) -> Iterator[tuple]:
    """Yield a head and a line per learner and exercise, with the columns of the list of the class."""
    yield (COLUMNS[0], *heads, *COLUMNS[1:])
    for learner, *values, columns in rows:
        yield (learner, *_filled(columns, heads), *values)


def wide(rows: Iterable[Row], heads: tuple[str, ...] = ()) -> Iterator[tuple]:
    """Yield a head and a line per learner: the verdicts, with * for a note, and sums of minutes.

    The sums are of exercises that are right, right with a note, and not judged, and of all.
    """
    table: dict[Learner, dict[str, Row]] = {}
    for row in rows:
        table.setdefault(Learner(row.learner, row.columns), {})[row.exercise] = row
    exercises = list(dict.fromkeys(name for of_one in table.values() for name in of_one if name in every()))
    minutes = {name: find(name).minutes for name in exercises}
    yield ("learner", *heads, *exercises, "right", "right with a note", "not judged", "of", "note")
    for learner, of_one in table.items():
        own = {name: of_one[name] for name in exercises if name in of_one}
        sums = Counter()
        for name, row in own.items():
            sums[row.verdict, _noted(row)] += minutes[name]
        marks = [f"{own[name].verdict}{'*' * _noted(own[name])}" if name in own else "" for name in exercises]
        first = (learner.name, *_filled(learner.columns, heads), *marks)
        undecided = sums["not judged", False] + sums["not judged", True]
        note = of_one[""].note if "" in of_one else ""
        yield (*first, sums["right", False], sums["right", True], undecided, sum(minutes.values()), note)


def _filled(columns, heads):
    """Return the columns of a learner, empty ones where the list lacks the learner."""
    return columns or ("",) * len(heads)


def _noted(row):
    return bool(row.note) and row.verdict != "not attempted"


def counts(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line per exercise: how many answers got each verdict, and the commonest mistake."""
    by_exercise: dict[str, list[Row]] = {}
    for row in rows:
        by_exercise.setdefault(row.exercise, []).append(row)
    by_exercise.pop("", None)  # rows about files, not about an exercise
    for name, own in by_exercise.items():
        verdicts, reasons = Counter(row.verdict for row in own), Counter(_mistake(row) for row in own)
        del reasons[""]
        numbers = ", ".join(f"{verdicts[it]} {it}" for it in VERDICTS if verdicts[it])
        common = "".join(f"; {count} times: {shortened(it, 100)}" for it, count in reasons.most_common(1))
        yield f"{name}: {numbers}{common}"


def _mistake(row):
    return (row.reason or f"fails for {row.fails_for}") if row.verdict == "wrong" else ""


def of_lessons(numbers: Iterable[str], names: Iterable[str] | None = None) -> list[str]:
    """Return the exercises of some lessons, of ``names`` or of all. Raises ValueError for a number of no lesson."""
    numbered = {f"{at:02}": lesson.name for at, lesson in enumerate(LESSONS)}
    if unknown := [it for it in numbers if it.zfill(2) not in numbered]:
        raise ValueError(f"there is no lesson {', '.join(unknown)}; lessons have numbers from 00 to {max(numbered)}")
    lessons = {numbered[it.zfill(2)] for it in numbers}
    found = [it for it in names or every() if it.partition(".")[0] in lessons]
    if not found:
        raise ValueError(f"none of the exercises is in lesson {', '.join(numbers)}")
    return found


def _cell(text):
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if str(text).startswith(("=", "+", "-", "@")) else text


def main(argv: list[str]) -> int:
    """Run the command line. Return the exit status: 0, or 1 if a file, the folder or an exercise does not exist."""
    parser = argparse.ArgumentParser("python -m flashlab.course.grade", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, help="file for the table; standard output without it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--exercises", nargs="+", help="the exercises that count, such as online_softmax.merge")
    which.add_argument("--graded", action="store_true", help="only the exercises of the page for teachers count")
    parser.add_argument("--lessons", nargs="+", metavar="04", help="only exercises of these lessons count")
    parser.add_argument("--roster", type=Path, help="the class: a CSV file with a header, a learner per row")
    parser.add_argument("--wide", action="store_true", help="a line per learner, with sums of minutes")
    options = parser.parse_args(argv)

    def tell(done, of, learner):
        print(f"{done} of {of} learners {learner}", file=sys.stderr, flush=True)

    try:
        heads, learners = roster(options.roster) if options.roster else Roster()
        names = [it.exercise for it in GRADED] if options.graded else options.exercises
        names = of_lessons(options.lessons, names) if options.lessons else names
        with redirect_stdout(sys.stderr):  # a slow check prints its progress; the table may go to standard output
            rows = list(grade(options.folder, names, tell, learners))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for line in counts(rows):
        print(line, file=sys.stderr)
    if strangers := sorted({row.learner for row in rows} - {it.name for it in learners}) if learners else []:
        print(f"Not in {options.roster}: {', '.join(strangers)}", file=sys.stderr)
    with options.csv.open("w", newline="", encoding="utf-8") if options.csv else nullcontext(sys.stdout) as file:
        writer = csv.writer(file)
        table = wide(rows, heads) if options.wide else tall(rows, heads)
        writer.writerows(map(_cell, row) for row in table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
