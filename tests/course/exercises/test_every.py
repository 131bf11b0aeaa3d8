"""In every exercise the reference is right, each known mistake is named, and answers are explained."""

import itertools

import pytest

from flashlab.course.check import check
from flashlab.course.registry import every
from flashlab.grading import forked, outcomes
from flashlab.grading.exercise import Exercise
from flashlab.kernels import INTERPRETED, triton
from tests.tools.copied import copied
from tests.tools.long import long_except

# Cases have the largest floats, and a wrong answer may divide by zero.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
EXERCISES = {name: it for name, it in every().items() if isinstance(it, Exercise)}
QUESTIONS = {name: it for name, it in every().items() if name not in EXERCISES}
LONG = {  # seconds of CPU each; all other kernels together take about as long as these
    "first_triton_kernel.online", "triton_forward.bounds", "triton_forward.update", "triton_forward.forward",
    "triton_forward.heads", "triton_backward.add_rows", "triton_backward.dQ", "triton_backward.delta",
    "first_triton_kernel.softmax_row",
}  # fmt: skip
KERNELS = [name for name, it in EXERCISES.items() if it.launch]
NUMPY = [name for name in EXERCISES if name not in KERNELS]
# Mistakes per exercise in `make test`: a kernel takes seconds to interpret.
QUICK = {"kernel": 1, "numpy": 2}


def printed(capsys, name, attempt):
    check(name, attempt)
    return capsys.readouterr().out


def fail_of(faults):
    """Fail with the messages of all faults, if there are any."""
    if messages := "\n".join(itertools.chain(*faults)):
        pytest.fail(messages, pytrace=False)


@pytest.fixture
def without_forks(monkeypatch):
    """Check in this process, as on macOS: a fork takes longer than such a check."""
    monkeypatch.setattr(forked, "forks", lambda: False)


@pytest.fixture
def laws_may_not_raise(monkeypatch):
    """Report an exception in a law (a property of answers) as an error; normally such a law counts as satisfied."""
    monkeypatch.setattr(outcomes, "LEFT_TO_CASES", ())


def rejected(capsys, name):
    """Return what the check prints on a copy of the reference, in a list; an empty one if it is right."""
    text = printed(capsys, name, copied(EXERCISES[name].reference))
    return [] if text.startswith(f"✓ {name}: right in all ") else [text]


def test_the_references_in_numpy_are_right(capsys, without_forks, laws_may_not_raise):
    fail_of(rejected(capsys, name) for name in NUMPY)


@pytest.mark.exhaustive
def test_the_references_in_numpy_are_right_in_a_fork_too(capsys):
    fail_of(rejected(capsys, name) for name in NUMPY)


@pytest.mark.parametrize("name", long_except(set(KERNELS) - LONG, KERNELS))
def test_the_reference_of_a_kernel_is_right(name, capsys, laws_may_not_raise):
    fail_of([rejected(capsys, name)])


def stub(*args):
    raise NotImplementedError


def test_a_stub_is_not_attempted(capsys, without_forks):
    def judged(name):
        reference = EXERCISES[name].reference
        attempt = triton.jit(stub) if hasattr(reference, "fn") else stub  # a kernel
        if isinstance(reference, type):
            attempt = type("Stub", reference.__bases__, {"forward": staticmethod(stub)})
        text = printed(capsys, name, attempt)
        return [] if text.startswith(f"○ {name}: not attempted") else [text]

    fail_of(map(judged, EXERCISES))


def not_recognised(capsys, name, mistakes):
    """Yield a message for each mistake that is not rejected with its own sentence."""
    for mistake in mistakes:
        text = printed(capsys, name, mistake.function(EXERCISES[name].reference))
        if not (text.startswith(f"✗ {name} fails for ") and mistake.message in text):
            yield f"expected: {mistake.message}\n{text}"


def test_mistakes_in_numpy_are_rejected_with_their_own_sentences(capsys, without_forks):
    fail_of(not_recognised(capsys, name, EXERCISES[name].mistakes[: QUICK["numpy"]]) for name in NUMPY)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NUMPY)
def test_the_other_mistakes_in_numpy_are_rejected_with_their_own_sentences(name, capsys, without_forks):
    fail_of([not_recognised(capsys, name, EXERCISES[name].mistakes[QUICK["numpy"] :])])


@pytest.mark.parametrize("name", long_except(set(KERNELS) - LONG, KERNELS))
def test_a_mistake_in_a_kernel_is_rejected_with_its_own_sentence(name, capsys, interpreted):
    fail_of([not_recognised(capsys, name, EXERCISES[name].mistakes[: QUICK["kernel"]])])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name, at", [(name, at) for name in KERNELS for at in range(QUICK["kernel"], len(EXERCISES[name].mistakes))]
)
def test_another_mistake_in_a_kernel_is_rejected_with_its_own_sentence(name, at, capsys, interpreted):
    fail_of([not_recognised(capsys, name, [EXERCISES[name].mistakes[at]])])


@pytest.fixture
def interpreted():
    if not INTERPRETED:
        pytest.skip("a GPU does not stop a kernel that reads past the end")


@pytest.mark.exhaustive
def test_the_first_mistake_in_numpy_is_rejected_in_a_fork_too(capsys):
    fail_of(not_recognised(capsys, name, EXERCISES[name].mistakes[:1]) for name in NUMPY)


def test_right_answers_are_explained_and_wrong_ones_too(capsys):
    def misjudged(name):
        question = QUESTIONS[name]
        for answer, message in (
            (..., f"○ {name}: not answered"),
            (question.answer, f"✓ {name}: {question.answer}. {question.because}"),
            *((wrong, f"✗ {name}: not {wrong}.\n{why}\n") for wrong, why in question.wrong),
            ("no idea at all", f"✗ {name}: not 'no idea at all'"),
        ):
            if not (text := printed(capsys, name, answer)).startswith(message):
                yield f"expected: {message}\n{text}"

    fail_of(map(misjudged, QUESTIONS))
