"""Grade the answers of a class: ``python -m flashlab.course.grade FOLDER --csv grades.csv``.

Every file and folder in FOLDER belongs to one learner, whose name it has: a notebook, or a folder with notebooks and
perhaps the learner's ``progress.json``. The table has a row per learner and exercise: the verdict ("right", "wrong",
"not judged", "not attempted"), the first case that fails with its inputs, what was wrong, and a note.

Neither the output of a notebook counts, nor a check that it defines. The lines that an answer needs are taken from its
source and run in a process of their own. That process may crash, hang or print: only the results of the answer come
back, and they are judged here. It may read and write files as you may, so grade on a machine, or in a container, where
that does no harm.
"""

import argparse
import ast
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

from flashlab.course import check
from flashlab.course.registry import UnknownExercise, every, find
from flashlab.course.self_contained import NotSelfContained, source_of
from flashlab.grading import forked
from flashlab.grading.defaults import defaults
from flashlab.grading.exercise import Question
from flashlab.grading.program import Program

MARKS = {"✓": "right", "✗": "wrong", "○": "not judged"}
COLUMNS = ("learner", "exercise", "verdict", "fails for", "input", "reason", "note")


class Row(NamedTuple):
    """One line of the table, as ``COLUMNS``."""

    learner: str
    exercise: str
    verdict: str
    fails_for: str = ""
    input: str = ""
    reason: str = ""
    note: str = ""


def answers(path: Path) -> dict[str, Program]:
    """Return a learner's answers by exercise, those of notebooks before those of ``progress.json``.

    Files that cannot be read are left out; ``unreadable`` names them.
    """
    found = {}
    for file in sorted(path.rglob("progress.json")) if path.is_dir() else ():
        for name, entry in _json(file).items():
            source = entry.get("answer") if isinstance(entry, dict) else None
            if isinstance(source, str) and source and (last := _last_definition(source)):
                found[name] = Program(source, last, f"<{path.stem}: {name}>")
    for file in _notebooks(path):
        found |= dict(_in_notebook(_json(file), path.stem, found))
    return found


def unreadable(path: Path) -> list[str]:
    """Return the names of a learner's files that are no valid notebooks."""
    return [file.name for file in _notebooks(path) if not isinstance(_json(file).get("cells"), list)]


def _notebooks(path):
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*.ipynb") if ".ipynb_checkpoints" not in file.parts)


@cache
def _json(file):
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_notebook(notebook, learner, stored):
    """Yield the name and the ``Program`` of each answer that a notebook checks; no stub of a ``stored`` answer."""
    earlier = []
    for cell in notebook.get("cells") or ():
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        statements, error = _parsed("".join(cell.get("source") or ""))
        checks = [answer for it in statements if (answer := _asked(it))]
        own = [it for it in statements if not _asked(it)]
        for name, value in checks:
            if name in stored and any("NotImplementedError" in ast.unparse(it) for it in own):
                continue
            needed = _needed(earlier, own, value)
            yield name, Program(_written(needed), ast.unparse(value), f"<{learner}: {name}>")
        if any(_calls_check(it) for it in own):
            yield from _asked_in_a_loop(_needed(earlier, own, ast.Constant(None)), learner)
        if error and (name := _name_in("".join(cell["source"]))):
            yield name, Program(f"raise SyntaxError({error!r})\n", "None", f"<{learner}: {name}>")
        earlier += own


def _parsed(source):
    """Return the statements of a cell without lines of IPython, and its syntax error, if any."""
    lines = ["pass" if line.startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        return ast.parse("\n".join(lines)).body, ""
    except (SyntaxError, ValueError, RecursionError) as error:
        return [], str(error)


def _asked(statement):
    """Return the name and the answer of a statement check("name", answer); None for another one."""
    match statement:
        case ast.Expr(ast.Call(func=ast.Name("check"), args=[ast.Constant(str(name)), value, *_])):
            return name, value
    return None


def _calls_check(statement):
    return any(isinstance(it, ast.Call) and ast.unparse(it.func) == "check" for it in ast.walk(statement))


def _asked_in_a_loop(needed, learner):
    """Yield the answers of a cell without literal names of exercises: it runs with a check that records them."""
    noting = "_asked = {}\ndef check(name, answer=..., **_): _asked[name] = answer\n"
    source = noting + _written(it for it in needed if "check" not in _bound(it)) + "\n"
    program = Program(source, "tuple(map(str, _asked))", f"<{learner}>")
    for names in forked.run(lambda: iter([program.run()]), check.PATIENCE).values:
        yield from ((name, program._replace(value=f"_asked[{name!r}]")) for name in names)


def _written(statements):
    return "\n".join(map(ast.unparse, statements)) + "\n"


def _name_in(source):
    """Return the exercise that an unparsable cell checks; "" if none."""
    before, _, after = source.partition('check("')
    return after.partition('"')[0] if before != source else ""


def _needed(earlier, own, value):
    """Return the statements of a cell, with all earlier statements that bind the names it uses, directly or not."""
    names = _used([value, *own])
    bindings = []
    for statement in reversed(earlier):
        if _bound(statement) & names:
            bindings.append(statement)
            names |= _used([statement])
    return [*reversed(bindings), *own]


def _used(nodes):
    return {it.id for node in nodes for it in ast.walk(node) if isinstance(it, ast.Name)}


def _bound(statement):
    """Return the names that a statement may bind for an answer: imports, definitions and constants."""
    match statement:
        case ast.Import(names) | ast.ImportFrom(names=names):
            return {(it.asname or it.name).partition(".")[0] for it in names}
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return {name}
        case ast.Assign(targets, value) if all(isinstance(it, ast.Name) for it in targets) and _is_simple(value):
            return {it.id for it in targets}
    return set()


def _is_simple(value):
    """Return whether an assigned value calls nothing: a literal, another name, arithmetic of these."""
    return not any(isinstance(it, ast.Call) for it in ast.walk(value))


def _last_definition(source):
    try:
        last = ast.parse(source).body[-1]
    except (SyntaxError, ValueError, RecursionError, IndexError):
        return ""
    return getattr(last, "name", "")


def graded(learner: str, name: str, program: Program) -> Row:
    """Judge one answer."""
    try:
        exercise = find(name)
    except UnknownExercise:
        return Row(learner, name[:60], "not judged", note="there is no such exercise")
    attempt: object = program
    if isinstance(exercise, Question):
        run = forked.run(lambda: iter([_plain(program.run())]), check.PATIENCE)
        if not run.values:
            return Row(learner, name, "wrong", reason=f"it gave no answer: {run.end or 'nothing'}")
        attempt = run.values[0]
        if attempt is None:
            return Row(learner, name, "not attempted")
    with defaults():
        verdict = check.judged(name, exercise, attempt, compiled=False)
    if verdict.line.startswith(("not attempted", "not answered")):
        return Row(learner, name, "not attempted")
    fails_for = verdict.line.removeprefix("fails for ") if verdict.line.startswith("fails for ") else ""
    inputs = "; ".join(f"{key} = {value}" for key, value in verdict.inputs)
    reason = verdict.did or verdict.says or ("" if fails_for else verdict.line)
    reason = "" if verdict.mark == "✓" else reason
    return Row(learner, name, MARKS[verdict.mark], fails_for, inputs, reason, _note(name, program))


def _plain(value):
    """Return an answer to a question as ``records`` can send it; None for the ellipsis of a stub."""
    if value is ... or isinstance(value, bool | int | float | str):
        return None if value is ... else value
    return value.item() if hasattr(value, "item") else str(value)


def _note(name, program):
    """Return a note if an answer is the course's own solution, but for names and comments."""
    try:
        own = _shape(source_of(find(name).reference))
    except (AttributeError, NotSelfContained):
        return ""
    return "the course's solution" if own and _shape(program.source) == own else ""


def _shape(source):
    """Return the last function of a source without its name, docstring and decorators; "" without a function."""
    try:
        functions = [it for it in ast.walk(ast.parse(source)) if isinstance(it, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    if not functions:
        return ""
    last = functions[-1]
    last.name, last.decorator_list, last.returns = "", [], None
    if ast.get_docstring(last):
        last.body = last.body[1:]
    return ast.dump(last)


def grade(
    folder: Path,
    names: Iterable[str] | None = None,
    on_learner: Callable[[int, int, str], None] = lambda done, of, learner: None,
) -> Iterator[Row]:
    """Yield the rows of all learners in a folder.

    names: the exercises that count; by default those with an answer of some learner. Raises ValueError for a name that
    is no exercise, and for a folder that does not exist.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    for name in names or ():
        find(name)
    paths = sorted(it for it in folder.iterdir() if it.is_dir() or it.suffix == ".ipynb")
    everything = {path: answers(path) for path in paths}
    order = list(every())
    handed_in = {name for found in everything.values() for name in found}
    exercises = list(names) if names else [it for it in order if it in handed_in]
    first: dict[tuple[str, str], str] = {}
    for done, (path, found) in enumerate(everything.items()):
        on_learner(done, len(paths), path.stem)
        for file in unreadable(path):
            yield Row(path.stem, "", "not judged", note=f"{file} is no notebook")
        for name in [*exercises, *sorted(set(found) - set(order))]:
            if name not in found:
                yield Row(path.stem, name, "not attempted", note="not handed in")
                continue
            row = graded(path.stem, name, found[name])
            shape = _shape(found[name].source)
            other = first.setdefault((name, shape), path.stem)
            if shape and other != path.stem and row.verdict != "not attempted":
                row = row._replace(note="; ".join(filter(None, (row.note, f"the same text as {other}"))))
            yield row
    on_learner(len(paths), len(paths), "")


def _cell(text):
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def main(argv: list[str]) -> int:
    """Run the command line. Return the exit status: 0, or 1 if the folder or an exercise does not exist."""
    parser = argparse.ArgumentParser("python -m flashlab.course.grade", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, help="file for the table; standard output without it")
    parser.add_argument("--exercises", nargs="+", help="those that count, such as online_softmax.merge")
    options = parser.parse_args(argv)

    def tell(done, of, learner):
        print(f"{done} of {of} learners {learner}", file=sys.stderr, flush=True)

    try:
        rows = list(grade(options.folder, options.exercises, tell))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    with options.csv.open("w", newline="", encoding="utf-8") if options.csv else nullcontext(sys.stdout) as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(_cell, row) for row in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
