"""What holds for every exercise: the reference is right, each mistake is told by name, answers are explained."""

import os

import pytest

from flashlab.course.check import check
from flashlab.course.registry import every
from flashlab.grading import forked
from flashlab.grading.exercise import Exercise
from flashlab.kernels import INTERPRETED, triton

EXERCISES = {name: it for name, it in every().items() if isinstance(it, Exercise)}
QUESTIONS = {name: it for name, it in every().items() if name not in EXERCISES}
LONG = {  # seconds of CPU each; the others take as long in all
    "first_triton_kernel.online", "triton_forward.bounds", "triton_forward.update", "triton_forward.forward",
    "triton_backward.add_rows", "triton_backward.dQ",
}  # fmt: skip
MISTAKES = [  # of a kernel, which takes seconds to interpret, `make test` tries the first
    pytest.param(
        name,
        mistake,
        id=f"{name}: {mistake.says}",
        marks=[pytest.mark.exhaustive] if name in LONG or it.launch and at else [],
    )
    for name, it in EXERCISES.items()
    for at, mistake in enumerate(it.mistakes)
]
SLOWEST = {"numpy": 1.0, "kernel": 12.0}  # seconds of CPU that a check of a right answer may take


def said(capsys, name, attempt):
    check(name, attempt)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] if name in LONG else []) for name in EXERCISES]
)
def test_the_reference_is_right_and_quickly_checked(name, capsys):
    slowest = SLOWEST["kernel" if EXERCISES[name].launch else "numpy"]
    # What earlier tests left behind may end, and be counted, during a check: not during three of them.
    assert any(seconds_of_a_right_answer(name, capsys) < slowest for _ in range(3))


def seconds_of_a_right_answer(name, capsys):
    """Return the seconds of CPU that a check takes, in this process and those that end meanwhile: attempts have one."""
    begun = sum(os.times()[:4])
    assert said(capsys, name, EXERCISES[name].reference).startswith(f"✓ {name}: right in all ")
    return sum(os.times()[:4]) - begun


def stub(*args):
    raise NotImplementedError


@pytest.fixture
def without_forks(monkeypatch):
    """Check as on macOS: forks take longer than these checks."""
    monkeypatch.setattr(forked, "forks", lambda: False)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_is_not_attempted(name, capsys, without_forks):
    attempt = triton.jit(stub) if hasattr(EXERCISES[name].reference, "fn") else stub  # a kernel
    assert said(capsys, name, attempt).startswith(f"○ {name}: not attempted")


def assert_rejected_with_its_own_sentence(name, mistake, capsys):
    text = said(capsys, name, mistake.function(EXERCISES[name].reference))
    assert text.startswith(f"✗ {name} fails for ") and f"It looks like this: {mistake.says}" in text


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a wrong answer may divide by zero
@pytest.mark.parametrize("name, mistake", MISTAKES)
def test_each_mistake_is_rejected_with_its_own_sentence(name, mistake, capsys, request):
    if not EXERCISES[name].launch:
        request.getfixturevalue("without_forks")
    elif not INTERPRETED:
        pytest.skip("a GPU does not stop a kernel that reads past the end")
    assert_rejected_with_its_own_sentence(name, mistake, capsys)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, it in EXERCISES.items() if not it.launch])
def test_the_first_mistake_is_rejected_in_a_fork_too(name, capsys):
    assert_rejected_with_its_own_sentence(name, EXERCISES[name].mistakes[0], capsys)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_right_answer_is_explained_and_a_wrong_one_too(name, capsys):
    question = QUESTIONS[name]
    assert said(capsys, name, ...).startswith(f"○ {name}: not answered")
    assert said(capsys, name, question.answer).startswith(f"✓ {name}: {question.answer}. {question.because}")
    for wrong, why in question.wrong:
        assert said(capsys, name, wrong) == f"✗ {name}: not {wrong}. {why}\n"
    assert said(capsys, name, "no idea at all").startswith(f"✗ {name}: not 'no idea at all'")
