"""A check reports a kernel that the interpreter accepts and a GPU's compiler refuses, and no other."""

from functools import partial

import pytest

pytest.importorskip("flashlab.kernels")  # which needs Triton
from flashlab.course.check import check  # noqa: E402
from flashlab.course.registry import every, find  # noqa: E402
from flashlab.course.self_contained import source_of  # noqa: E402
from flashlab.grading import forked, outcomes  # noqa: E402
from flashlab.grading.exercise import edited  # noqa: E402
from flashlab.kernels import INTERPRETED, compiles, tl, triton  # noqa: E402
from tests.tools.long import long_except  # noqa: E402

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="what runs on a GPU has been compiled")
KERNELS = [
    name for name, it in every().items() if type(getattr(it, "reference", None)).__name__ == "InterpretedFunction"
]
FULL = 'tl.full([Br], -float("inf"), tl.float32)'
IN_RUNGS = [name for name, it in every().items() if getattr(it, "rung", None)]
QUICK = {"first_triton_kernel.add"}
REFUSED = {
    "a maximum that becomes a block": (FULL, '-float("inf")', "Loop-carried variable m_i has initial type fp32"),
    "a sum that becomes a block": ("tl.zeros([Br], tl.float32)", "0.0", "Loop-carried variable l_i"),
    "a way out of the loop": ("        m_i = m_new\n",
                              "        m_i = m_new\n        if start > 999:\n            break\n", "Break"),
    "a way out of the loop, where it is causal": ("        if causal:\n            S_ij",
        "        if causal:\n            if start > 999:\n                break\n            S_ij", "Break"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Wait for the compiler, however busy the machine is."""
    monkeypatch.setattr(compiles, "PATIENCE", 600)


def refusal(name, attempt):
    run = forked.run(partial(outcomes.launches, find(name), attempt), 600)
    assert run.end == "", run.printed[-1]
    return compiles.refusal(run.values[0])


@pytest.mark.parametrize("name", long_except(QUICK, KERNELS))
def test_the_kernels_of_the_course_compile(name):
    assert set(KERNELS) >= QUICK
    assert refusal(name, find(name).reference) is None


@pytest.mark.parametrize("what", long_except(list(REFUSED)[:1], REFUSED))
def test_a_refusal_of_the_compiler_is_reported(what):
    old, new, message = REFUSED[what]
    assert message in refusal("triton_forward.forward", edited(find("triton_forward.forward").reference, old, new))


def in_its_rung(name, attempt):
    return compiles.refusal(compiles.in_rung(*find(name).rung, source_of(attempt)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", IN_RUNGS)
def test_the_functions_of_the_rungs_compile(name):
    assert in_its_rung(name, find(name).reference) is None


def test_layouts_that_do_not_match_are_reported():
    attempt = edited(find("gluon.step").reference, "return m_i, l_i, O_i", "return m_i, l_i, O_i + 0 * l_i[:, None]")
    assert "Layout mismatch" in in_its_rung("gluon.step", attempt)


def test_a_choice_by_a_block_is_refused_before_a_compiler_is_asked():
    exercise, edit = find("triton_forward.forward"), "if causal else Nk\n    if m_i == 3:\n        seen = Nk\n"
    attempt = edited(exercise.reference, "if causal else Nk\n", edit)
    assert "has no truth value" in next(outcomes.outcomes(exercise, attempt)).error


LARGE = 1.0


@triton.jit
def add_with_a_global(x, y, z, N, Bc: tl.constexpr):
    columns = tl.program_id(0).to(tl.int64) * Bc + tl.arange(0, Bc)
    inside = columns < N
    tl.store(z + columns, LARGE * tl.load(x + columns, inside) + tl.load(y + N - 1 - columns, inside), inside)


def test_a_right_kernel_that_does_not_compile_is_right_and_gets_a_warning(capsys):
    check("first_triton_kernel.add", add_with_a_global)
    printed = capsys.readouterr().out
    assert (
        printed.startswith("✓ first_triton_kernel.add: right in all ")
        and "\nBut for a GPU it does not compile: " in printed
    )
    assert "LARGE" in printed
