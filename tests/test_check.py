"""A check survives whatever it is given, and says what is wrong in words."""

from pathlib import Path

import numpy as np
import pytest

from flashlab import exercises, judge, online, progress
from flashlab.check import check, edited, find, hint, overview, solution
from flashlab.exercise import every


def said(capsys, attempt, name="online.merge"):
    check(name, attempt)
    return capsys.readouterr().out


def stub(a, b):
    raise NotImplementedError


def mutating(a, b):
    a.l[:] = 0
    return online.merge(a, b)


def printing(a, b):
    print("noise")
    return online.merge(a, b)


def nan(a, b):
    return online.State(*(np.full_like(part, np.nan) for part in a))


def leaving(a, b):
    raise SystemExit("goodbye")


BROKEN = {
    "not a function": (3, "expected a function, got a int"),
    "returns nothing": (lambda a, b: None, "got None: does it return its result?"),
    "returns a list": (lambda a, b: [a.m, a.l, a.O], "got a list"),
    "raises": (lambda a, b: a.m / {}, "it raised TypeError"),
    "leaves Python": (leaving, "it raised SystemExit: goodbye"),
    "changes its inputs": (mutating, "it changed its inputs"),
    "returns NaN": (nan, "your m = [nan]"),
    "returns words": (lambda a, b: ("m", "l", "O"), "expected shape"),
    "wrong shape": (lambda a, b: online.merge(a, b)._replace(O=a.O[:, :0]), "your O has (1, 0)"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_try_gets_a_sentence(what, capsys):
    attempt, sentence = BROKEN[what]
    assert sentence in said(capsys, attempt)


def test_a_stub_is_not_attempted(capsys):
    assert said(capsys, stub).startswith("○ online.merge: not attempted yet")


def test_what_a_try_prints_is_swallowed(capsys):
    assert said(capsys, printing) == "✓ online.merge: right in all 7 cases.\n"


def test_a_loop_that_never_ends_is_stopped(capsys, monkeypatch):
    monkeypatch.setattr(judge, "PATIENCE", 0.3)

    def forever(a, b):
        while True:
            pass

    assert "still running after" in said(capsys, forever)


def test_the_smallest_failing_input_is_printed(capsys):
    text = said(capsys, lambda a, b: online.State(np.maximum(a.m, b.m), a.l + b.l, a.O + b.O))
    assert "fails for a second part with the larger maximum" in text
    assert "a = m = [0.], l = [1.], O = [[2.]]" in text and "expected l = [2.3679]" in text and "your l = [3.]" in text


def test_a_question_says_why(capsys):
    assert said(capsys, ..., "online.keep").startswith("○")
    assert said(capsys, 2, "online.keep").startswith("✓ online.keep: 2. The block's maximum")
    assert "cannot be added" in said(capsys, 1, "online.keep")
    assert said(capsys, 17, "online.keep").startswith("✗")
    assert said(capsys, None, "online.keep").startswith("✗")


def test_an_answer_of_another_kind_is_told_what_is_wanted(capsys):
    assert "A number is wanted." in said(capsys, "4", "start_here.twice")
    assert "Choose one of falls, rises, stays." in said(capsys, "Stays", "memory_hierarchy.longer")


def test_a_try_that_returns_no_number_is_told_so(capsys):
    assert "expected 1 result, got None: does it return its result?" in said(capsys, print, "start_here.first")
    assert "your result is '2 bytes'" in said(capsys, lambda N: f"{2 * N * N} bytes", "start_here.first")


def test_tiny_numbers_are_told_apart(capsys):
    """Half a microsecond is not zero: the bytes were not left out, all fractions were."""
    text = said(capsys, lambda F, n, f, b: max(F // f, n // b), "memory_hierarchy.seconds")
    assert "It looks like this: // drops the fraction" in text


def test_hints_come_in_three_layers(capsys):
    hint("online.merge", 3)
    assert capsys.readouterr().out.startswith("Hint 3 of 3")
    with pytest.raises(ValueError, match="three layers, 1 to 3, got 4"):
        hint("online.merge", 4)


def test_the_solution_asks_back_and_then_shows_the_modules_own_source(capsys):
    solution("online.merge")
    assert 'solution("online.merge", sure=True)' in capsys.readouterr().out
    solution("online.merge", sure=True)
    assert "def merge(a, b)" in capsys.readouterr().out


def test_an_unknown_exercise_is_named():
    for name in ("online.nonsense", "nonsense.merge", ""):
        with pytest.raises(ValueError, match="there is no exercise"):
            find(name)


def test_an_edit_must_hit_exactly_once():
    with pytest.raises(ValueError, match="found it 0 times"):
        edited(online.merge, "not there", "anything")
    assert edited(online.merge, "alpha * a.l", "a.l") is not online.merge


def test_progress_remembers_what_was_solved_and_how_the_last_try_failed(capsys):
    check("online.merge", stub)
    assert progress.read() == {}
    check("online.merge", nan)
    assert not progress.read()["online.merge"]["solved"] and "your m = [nan]" in progress.read()["online.merge"]["said"]
    check("online.merge", online.merge)
    check("online.merge", nan)
    assert progress.read()["online.merge"]["solved"]
    overview()
    assert "✓ online.merge" in capsys.readouterr().out


@pytest.mark.parametrize("broken", ["", "{", "[1]", '{"online.merge": 3}', '{"online.merge": {}}'])
def test_a_broken_progress_file_is_as_good_as_none(broken):
    progress.FILE.write_text(broken)
    assert progress.read() == {}
    progress.note("online.merge", True, "")
    assert progress.read()["online.merge"]["solved"]


def test_a_write_that_breaks_off_leaves_the_old_progress(monkeypatch):
    progress.note("online.merge", True, "")
    monkeypatch.setattr(type(progress.FILE), "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    progress.note("online.update", True, "")
    assert list(progress.read()) == ["online.merge"] and not list(progress.FILE.parent.glob("*.tmp"))


def test_every_exercise_module_has_its_place_in_the_course():
    modules = {path.stem for path in Path(exercises.__file__).parent.glob("[!_]*.py")}
    assert modules == set(exercises.LESSONS)


@pytest.mark.parametrize("name", every())
def test_every_exercise_has_three_hints_a_level_and_a_time(name):
    exercise = find(name)
    assert len(exercise.hints) == 3 and all(exercise.hints) and exercise.level in (1, 2, 3) and exercise.minutes > 0
