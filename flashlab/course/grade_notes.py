"""Notes on right answers: whether they run the course's code, and whether they have the text of its solution."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType

from flashlab.course import check
from flashlab.course.registry import find
from flashlab.course.self_contained import NotSelfContained, source_of
from flashlab.grading import forked, outcomes
from flashlab.grading.exercise import Exercise
from flashlab.grading.program import Program

Place = tuple[str, str]  # of a function: its file, and its name with those of the classes around it


def runs_the_course(name: str, program: Program) -> str:
    """Return a note if an answer runs the course's solution, or calls another function that the solution does not run.

    The way to that code does not matter: imported, wrapped, or returned by a function of the course.
    """
    exercise = find(name)
    if not isinstance(exercise, Exercise):
        return ""
    run = forked.run(partial(_calls, exercise, program), check.PATIENCE)
    found = {tuple(place) for place in run.values}
    if found & _solution(exercise.reference):
        return "it runs the course's solution"
    called = sorted(f"{Path(file).stem}.{own}" for file, own in found - _allowed(name) if _is_public(own))
    return f"it calls the course's {', '.join(called)}" if called else ""


def _calls(exercise, program) -> Iterator[Place]:
    """Run an answer and yield the functions of the course that it calls, and those that are part of the solution."""
    attempt, solution = program.run(), _solution(exercise.reference)

    def counts(frame):
        by_learner = frame.f_back is not None and frame.f_back.f_code.co_filename == program.filename
        return by_learner or _place(frame.f_code) in solution

    if (code := _code(attempt)) and code.co_filename.startswith(check.PACKAGE):
        yield _place(code)
    yield from _entered(exercise, attempt, counts)


def _is_public(own):
    return not any(part.startswith(("_", "<")) for part in own.split("."))


@cache
def _allowed(name):
    """Return all functions of the course that the solution of an exercise runs, without the solution itself."""
    exercise = find(name)
    run = forked.run(lambda: _entered(exercise, exercise.reference, lambda frame: True), 60)
    return {tuple(place) for place in run.values} - _solution(exercise.reference)


def _entered(exercise, attempt, counts: Callable) -> Iterator[Place]:
    """Yield the functions of the course that an attempt enters in a few cases, where ``counts(frame)`` is true."""
    *_, last = outcomes.cases(exercise)
    for case in (*exercise.edges, last):
        found = set()

        def note(frame, event, _, found=found):
            if event == "call" and frame.f_code.co_filename.startswith(check.PACKAGE) and counts(frame):
                found.add(_place(frame.f_code))

        sys.setprofile(note)
        try:
            outcomes.outcome_of(exercise, attempt, case.args, laws=False)
        finally:
            sys.setprofile(None)
        yield from found


def _solution(reference) -> set[Place]:
    functions = vars(reference).values() if isinstance(reference, type) else [reference]
    return {_place(code) for it in functions if (code := _code(it))}


def _code(value) -> CodeType | None:
    """Return the code of a function, a method or a Triton kernel; None of another value."""
    function = inspect.getattr_static(value, "fn", value)
    function = getattr(function, "__func__", function) if isinstance(function, staticmethod | classmethod) else function
    function = inspect.unwrap(function) if isinstance(function, FunctionType) else function
    return function.__code__ if isinstance(function, FunctionType) else None


def _place(code) -> Place:
    return code.co_filename, code.co_qualname


def has_the_courses_text(name: str, text: tuple[str, ...]) -> str:
    """Return a note if all lines of an answer are in the course's solution, or all of the solution's in the answer."""
    own = _solutions_text(name)
    if text and own and set(text) <= set(own):
        return f"all of its lines, {len(text)}, are in the course's solution"
    return f"it has all lines, {len(own)}, of the course's solution" if own and set(own) <= set(text) else ""


@cache
def _solutions_text(name):
    try:
        return text_of(source_of(find(name).reference))
    except (AttributeError, NotSelfContained):
        return ()


def text_of(source: str) -> tuple[str, ...]:
    """Return the lines of all functions in a source, without headers, docstrings and comments, with "_" for names.

    Only names that the source itself binds are replaced: of variables, arguments and functions.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    functions = [it for it in ast.walk(tree) if isinstance(it, ast.FunctionDef | ast.Lambda)]
    defining = ast.FunctionDef | ast.ClassDef | ast.Assign
    tree.body = [it for it in tree.body if isinstance(it, defining) and any(part in functions for part in ast.walk(it))]
    names = {it.name for it in functions if isinstance(it, ast.FunctionDef)}
    for function in functions:
        for it in ast.walk(function):
            if isinstance(it, ast.arg):
                names.add(it.arg)
            elif isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store):
                names.add(it.id)
    for it in ast.walk(tree):
        if isinstance(it, ast.Name) and (it.id in names or isinstance(it.ctx, ast.Store)):
            it.id = "_"
        elif isinstance(it, ast.arg):
            it.arg = "_"
    lines = (line.strip() for line in ast.unparse(_without_docstrings(tree)).splitlines())
    return tuple(line for line in lines if line and not line.startswith(("def ", "class ", "@")))


def _without_docstrings(tree):
    for it in ast.walk(tree):
        if isinstance(it, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(it) is not None:
            it.body = it.body[1:] or [ast.Pass()]
    return tree
