"""The learner's four calls: ``check`` an attempt, ask for a ``hint``, see the ``solution``, ``show`` source.

A check never raises. It shows a ``Verdict``: in a notebook as a ``card``, elsewhere as text. An attempt is run on each
case of its exercise, small ones first, in a process of its own. The name of a case is the property that a wrong answer
breaks. If the attempt matches a known mistake, the check names it. An attempt that times out or is interrupted is
neither right nor wrong, and is not stored. A function of the course is not judged. The settings of the learner's
process do not reach a check: ``grading.defaults``.

``python -m flashlab.course.check`` prints your progress.
"""

import argparse
import dataclasses
import inspect
import os
import sys
import textwrap
import time
from functools import partial
from itertools import islice
from pathlib import Path
from types import FunctionType

from flashlab.course import card, expressions, progress, self_contained
from flashlab.course.card import Verdict
from flashlab.course.lessons import LESSONS, duration
from flashlab.course.registry import UnknownExercise, every, find
from flashlab.course.source import WIDTH, show
from flashlab.grading import draws, forked, mistakes, outcomes, verdict
from flashlab.grading.defaults import defaults
from flashlab.grading.exercise import Exercise, Question, edited
from flashlab.grading.words import described, message_of, shortened
from flashlab.machine.numbers import whole_number

__all__ = ["check", "edited", "hint", "overview", "show", "solution"]

PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
PATIENCE = 8.0  # seconds of computing that an attempt may take for all cases, or more where the reference is slow
LONGEST = 2000  # characters of a message
AROUND = " \t\n=:;.,'\"`"  # characters to strip from a text answer
NOT_JUDGED = "patience", "memory", "killed"  # ends of a process whose attempt may be right
ROUNDING = 1e-9  # relative, of an integer that was computed in floats
SLOW = 2.0  # seconds before a progress message appears
COMPILES = 3.0  # seconds that it takes to compile a kernel


def check(name: str, attempt: object, *, note: bool = True) -> None:
    """Show whether ``attempt`` (a function, or the answer to a question) solves the exercise ``name``.

    note: store the result, for ``overview``.
    """
    try:
        exercise = find(name)
        with defaults():
            result = judged(name, exercise, attempt)
        text = shortened(card.text(name, result), LONGEST)
        if result.mark == "○" or not card.display(name, result, text):
            _say(text)
        if note and result.mark != "○":
            _store(name, result, attempt)
    except KeyboardInterrupt:
        _say(f"○ {name}: interrupted, so not judged.")
    except UnknownExercise as error:
        _say(f"○ {error}")
    except BaseException as error:  # inspecting an attempt may raise SystemExit
        _say(shortened(f"○ {name}: this could not be judged: {message_of(error)}", LONGEST))


def hint(name: str, layer: int = 1) -> None:
    """Print one of three hints for the exercise ``name``: 1 is a nudge, 3 is nearly the answer."""
    hints = find(name).hints
    if whole_number(layer) not in (1, 2, 3):
        raise ValueError(f"hints have three layers, 1 to 3, got {layer!r}")
    _say(_wrapped(f"Hint {layer} of 3: {hints[layer - 1]}"))
    if layer < 3:
        _say(f'  next: hint("{name}", {layer + 1})')


def solution(name: str, *, sure: bool = False) -> None:
    """Print the reference for the exercise ``name`` if you are ``sure``; never with FLASHLAB_SOLUTIONS=hidden."""
    exercise = find(name)
    if os.environ.get("FLASHLAB_SOLUTIONS") == "hidden":
        _say("Solutions are hidden in your class (FLASHLAB_SOLUTIONS=hidden).")
    elif sure is not True:
        _say(f'Have you read hint("{name}", 3)? If you still want to see it:\n  next: solution("{name}", sure=True)')
    elif isinstance(exercise, Question):
        _say(_wrapped(f"{exercise.answer}: {exercise.because}"))
    else:
        show(exercise.reference)


def overview() -> None:
    """Print how much of the course is solved and how long the rest takes, and a line per lesson.

    The lesson of this notebook, or the first one that is not done, shows its exercises and how the last attempts ended.
    """
    entries, lessons = progress.read(), {}
    for name, exercise in every().items():
        entry = entries.get(name, {"solved": False, "said": ""})
        lessons.setdefault(name.split(".")[0], []).append((name, exercise, entry))
    left = {lesson.name: _left(lesson, lessons[lesson.name]) for lesson in LESSONS if lesson.name in lessons}
    solved = sum(entry["solved"] for rows in lessons.values() for *_, entry in rows)
    _say(f"{solved} of {sum(map(len, lessons.values()))} solved, {duration(sum(left.values()))} left")
    open_one = _lesson_of_this_notebook()
    if open_one not in lessons:
        open_one = next((lesson for lesson, time_left in left.items() if time_left), None)
    for number, lesson in enumerate(LESSONS):
        if rows := lessons.get(lesson.name):
            done = f"{sum(entry['solved'] for *_, entry in rows)} of {len(rows)}"
            time_left = f"{duration(left[lesson.name])} left" if left[lesson.name] else "done"
            _say(f"{number:02} {lesson.title:28} {done:>8}   {time_left}")
        for name, exercise, entry in rows if rows and lesson.name == open_one else ():
            mark = "✓" if entry["solved"] else "✗" if entry["said"] else "○"
            message = "" if entry["solved"] else shortened(entry["said"].split("\n")[0], 60)
            _say(f"   {mark} {name:40} {'*' * exercise.level:4} {exercise.minutes:3} min   {message}".rstrip())


def _left(lesson, rows):
    """Return how many minutes a lesson takes from now on: 0 once all is solved, else all but the solved exercises."""
    solved = [exercise.minutes for _, exercise, entry in rows if entry["solved"]]
    return lesson.minutes - sum(solved) if len(solved) < len(rows) else 0


def _lesson_of_this_notebook():
    """Return the name of the lesson in whose notebook this runs; "" elsewhere. Jupyter gives the path."""
    return Path(os.environ.get("JPY_SESSION_NAME", "")).stem.partition("_")[2]


def _wrapped(text):
    """Break the lines of a text between words: a notebook would break them anywhere."""
    return "\n".join(textwrap.fill(line, WIDTH, break_long_words=False) for line in text.splitlines())


def _say(text, end="\n"):
    """Print a text at once, with "?" for each sign that the encoding of standard output lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), end=end, flush=True)


def _store(name, result, attempt):
    answer, right = "", result.mark == "✓"
    if right and callable(attempt):
        try:
            answer = self_contained.source_of(attempt)
        except self_contained.NotSelfContained as error:
            _say(f"Later lessons cannot use this answer: {error}.")
    try:
        progress.note(name, right, shortened(card.body(result), LONGEST), answer)
    except OSError as error:
        reason = error.strerror or error
        _say(f"Your progress could not be stored in {progress.FILE}: {reason}. Set FLASHLAB_PROGRESS to another file.")


def judged(name: str, exercise: Exercise | Question, attempt: object, *, compiled: bool = True) -> Verdict:
    """Return the verdict on an attempt at an exercise.

    compiled: also compile a kernel that is right in the interpreter, as for a GPU.
    """
    if attempt is ...:
        return Verdict("○", f'not answered yet.   (hint("{name}") helps)')
    if isinstance(exercise, Question):
        return _answered(name, exercise, attempt)
    return _attempted(name, exercise, attempt, compiled)


# Attempts


def _attempted(name, exercise, attempt, compiled):
    if not callable(attempt):
        return Verdict("✗", f"expected a function, got {described(attempt)}.")
    if _is_ours(attempt):
        return Verdict("○", "this function is the course's own, so it is not judged. Check one that you wrote.")
    with _Waiting(name, len(outcomes.cases(exercise))) as waiting:
        if _is_stub(exercise, attempt, waiting):
            return _not_attempted(name)
        expected, patience = _expected(exercise)
        run = forked.run(partial(outcomes.outcomes, exercise, attempt), patience, waiting)
        first = verdict.first_wrong(exercise, run.values, expected)
        if first is None and run.end and run.end not in NOT_JUDGED:  # run it once more: the machine may be the cause
            run = forked.run(partial(outcomes.outcomes, exercise, attempt), patience, waiting)
            first = verdict.first_wrong(exercise, run.values, expected)
        if first is not None:
            at, fault = first
            fault = _smaller(exercise, attempt, at, fault, patience, waiting)
            mistake = forked.run(partial(mistakes.recognise, exercise, run.values, at, expected), 3 * patience, waiting)
            return _wrong(name, fault, next(iter(mistake.values), None), _printed(run, at))
    if any(outcome.missing for outcome in run.values):
        return _not_attempted(name)
    if run.end == "patience":
        return Verdict("○", f"still running after {run.waited:.1f} s, so it was stopped and is not judged. "
                            "Does a loop never end?")  # fmt: skip
    if run.end == "memory":
        return Verdict("○", "the machine ran out of memory and stopped it, so it is not judged.")
    if run.end == "killed":
        return Verdict("○", "its process was killed (SIGKILL), so it is not judged. What killed it is unknown.")
    cases = outcomes.cases(exercise)
    if run.end or len(run.values) < len(cases):
        at = min(len(run.values), len(cases) - 1)
        fault = verdict.on(verdict.Fault(f"it ended Python: {run.end or 'too early'}."), exercise, at)
        return _wrong(name, fault, None, _printed(run, -1))
    refused = _refused(name, exercise, attempt, patience) if compiled else ""
    return Verdict("✓", f"right in all {len(run.values)} cases.", refused)


def _smaller(exercise, attempt, at, fault, patience, waiting):
    """Return a fault on the smallest drawn inputs that show one; ``fault`` if none do, or case ``at`` is not drawn."""
    if fault.on != draws.PROPERTY:
        return fault
    edges = draws.smaller(exercise, at - len(exercise.edges))
    smaller = dataclasses.replace(exercise, edges=edges, draws=0, once=())  # laws in ``once`` ran on the first case
    run = forked.run(partial(outcomes.outcomes, smaller, attempt), patience, waiting)
    found = verdict.first_wrong(smaller, run.values, outcomes.expected_of(smaller))
    return fault if found is None else found[1]


def _wrong(name, fault, mistake, printed):
    """Return the verdict on a fault; mistake: what the learner did and should do, or None."""
    return Verdict(
        "✗", f"fails for {fault.on}", mistake or "", fault.message, fault.inputs, fault.results, printed, _next(name)
    )


def _next(name):
    return f'hint("{name}")'


def _not_attempted(name):
    return Verdict("○", f'not attempted yet.   (hint("{name}") helps)')


def _is_ours(attempt):
    """Return whether a function or kernel was defined in this package, and not by the learner or by ``edited``."""
    function = inspect.getattr_static(attempt, "fn", attempt)  # of a kernel; without a call of its __getattr__
    return type(function) is FunctionType and function.__code__.co_filename.startswith(PACKAGE)


def _is_stub(exercise, attempt, waiting):
    """Return whether the attempt is an unfilled stub, so that the reference need not run."""
    function = inspect.getattr_static(attempt, "fn", attempt)  # of a kernel; without a call of its __getattr__
    if type(function) is not FunctionType or "NotImplementedError" not in function.__code__.co_names:
        return False
    run = forked.run(lambda: islice(outcomes.outcomes(exercise, attempt), 1), PATIENCE, waiting)
    return any(outcome.missing for outcome in run.values)


def _refused(name, exercise, attempt, patience):
    """Return the objection of a GPU's compiler to a kernel that is right in an interpreter; "" if it has none."""
    if exercise.launch is None:
        return ""
    from flashlab.kernels import compiles  # imported here, since it needs Triton

    with _Waiting(name, 0) as waiting:
        noted = _for_the_compiler(exercise, attempt, patience)
        if noted and COMPILES > SLOW:
            waiting.say("right in the interpreter; now it is compiled for a GPU")
        reason = compiles.refusal(noted) if noted else None
    return f"But for a GPU it does not compile: {reason}" if reason else ""


def _for_the_compiler(exercise, attempt, patience):
    """Return as JSON what the interpreter runs of an attempt; "" if that is nothing that a GPU might run."""
    from flashlab.kernels import INTERPRETED, compiles

    if exercise.rung:  # the interpreter runs it beside a GPU, too
        try:
            return compiles.in_rung(*exercise.rung, self_contained.source_of(attempt))
        except self_contained.NotSelfContained:
            return ""
    launches = forked.run(partial(outcomes.launches, exercise, attempt), patience).values if INTERPRETED else []
    return launches[0] if launches else ""


_CACHED: dict[Exercise, tuple] = {}  # the reference's results, and its seconds times 10


def _expected(exercise):
    """Return the reference's answer to each case, and the time limit of an attempt. Computed once."""
    if exercise not in _CACHED:
        found = forked.run(partial(outcomes.expected, exercise), 60 * max(1, PATIENCE))
        if found.end:
            raise RuntimeError(f"the reference did not finish here ({found.end} {found.printed[-1]})".strip())
        _CACHED[exercise] = tuple(found.values), 10 * found.seconds
    expected, seconds = _CACHED[exercise]
    return expected, max(PATIENCE, seconds)


def _printed(run, at):
    """Return the output that an attempt printed in a case, shortened."""
    lines = run.printed[at].strip().splitlines()
    return "\n".join([shortened(line, 100) for line in lines[:8]] + ["…"] * (len(lines) > 8))


class _Waiting:
    """A progress line, shown while a check is slow and erased when it is done."""

    def __init__(self, name, cases):
        self.name, self.cases, self.next, self.line = name, cases, time.monotonic() + SLOW, ""

    def __enter__(self):
        return self

    def __call__(self, done=0):
        if time.monotonic() > self.next:
            self.say(f"at work, {done} of {self.cases} cases")

    def say(self, words):
        """Show what the check is doing."""
        line = f"… {self.name}: {words}"
        _say(f"\r{line:{len(self.line)}}", end="")
        self.line, self.next = line, time.monotonic() + 1

    def __exit__(self, *_):
        if self.line:
            _say("\r" + " " * len(self.line) + "\r", end="")


# Answers


def _answered(name, question, answer):
    if _same(question, answer, question.answer):
        return Verdict("✓", f"{question.answer}. {question.because}")
    for wrong, why in question.wrong:
        if _same(question, answer, wrong):
            return Verdict("✗", f"not {shortened(answer, 60)}.", why, next=_next(name))
    return Verdict("✗", f"not {shortened(_repr(answer), 60)}.", _kind_of_answer(question, answer), next=_next(name))


def _kind_of_answer(question, answer):
    """Return a hint about the expected kind of answer, or "" if the answer is of that kind."""
    if isinstance(question.answer, str):
        choices = question.answer, *(wrong for wrong, _ in question.wrong)
        offered = any(_same(question, answer, choice) for choice in choices)
        return "" if offered else f"Choose one of {', '.join(sorted(set(choices)))}."
    return "" if _number(answer, question.unit) is not None else "A number is wanted."


def _same(question, answer, expected):
    """Return whether an answer equals ``expected``: the right answer, or a wrong one that the question explains."""
    if isinstance(expected, str):
        return isinstance(answer, str) and _same_text(answer.strip(AROUND), expected.strip(AROUND))
    if isinstance(expected, bool):
        return answer is expected
    number, rel = _number(answer, question.unit), question.rel
    if rel is None:
        rel = ROUNDING if isinstance(expected, int) else 0.01
    return number is not None and bool(abs(number - expected) <= rel * abs(expected))


def _same_text(answer, expected):
    if answer.casefold() == expected.casefold():
        return True
    return expressions.is_formula(expected) and expressions.same_formula(answer, expected)


def _number(answer, unit):
    """Return an answer as a number, or None. An array of one number and "2" count as numbers; True does not."""
    if isinstance(answer, bool | bytes):
        return None
    try:
        if isinstance(answer, str):
            return expressions.number(answer, unit)
        return float(answer.item() if hasattr(answer, "item") else answer)
    except OverflowError:
        return float("inf")
    except (Exception, SystemExit):  # whatever it raises, it is no number
        return None


def _repr(answer):
    try:
        return repr(answer)
    except (Exception, SystemExit):
        return described(answer)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m flashlab.course.check", description=overview.__doc__).parse_args()
    overview()
