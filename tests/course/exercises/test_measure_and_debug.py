"""measure_and_debug: a fixed kernel passes however it is fixed; an unchanged one counts as not attempted."""

import pytest

from flashlab.course.check import check, edited
from flashlab.course.exercises.measure_and_debug import no_key, three_wrong_lines
from flashlab.course.exercises.triton_forward import attention_one_head
from flashlab.course.registry import find
from flashlab.grading.poison import poisoned
from flashlab.grading.verdict import first_failure
from flashlab.kernels import INTERPRETED, tl, triton

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="a GPU's undefined memory cannot be filled with NaN")

BROKEN = {
    **{
        f"fix_{number}": edited(attention_one_head, bug.right, bug.wrong)
        for number, bug in enumerate(three_wrong_lines.BUGS, 1)
    },
    "fix_4": no_key.broken,
}

ONE_HEAD = {  # what a person may write in place of the wrong line
    "fix_1": (
        ("tl.minimum(i * Br + Nk - Nq + 1, Nk) if causal else Nk",
         "tl.minimum(tl.max(rows, 0) + 1 + Nk - Nq, Nk) if causal else Nk"),
        ("range(0, seen, Bc)", "range(0, tl.minimum(seen + Br - 1, Nk), Bc)"),
    ),
    "fix_2": (
        ("l_i = l_i + tl.sum(P_ij, 1)", "l_i *= alpha\n        l_i += tl.sum(P_ij, axis=1)"),
        ("l_i = l_i + tl.sum(P_ij, 1)", "l_i = tl.sum(P_ij, 1) + tl.exp(m_i - m_safe) * l_i"),
    ),
    "fix_3": (
        ("V_j = tl.load(V + keys[:, None] * d + columns, mask=inside[:, None])",
         "V_j = tl.load(V + keys[:, None] * d + columns, inside[:, None], 0)"),
        ("        S_ij = tl.dot", "        V_j = tl.where(inside[:, None], V_j, 0.0)\n        S_ij = tl.dot"),
    ),
}  # fmt: skip


@triton.jit
def whole_tiles_by_an_if(begin, whole, end, Bc: tl.constexpr):
    first = tl.cdiv(begin, Bc) * Bc
    last = whole // Bc * Bc
    if end <= 0:
        first = 0
        last = 0
    return first, last


@triton.jit
def whole_tiles_from_the_end(begin, whole, end, Bc: tl.constexpr):
    last = tl.where(whole < 0, 0, whole - whole % Bc)
    first = (begin + Bc - 1) // Bc * Bc
    return first, last


def fault_of(name, kernel):
    """Return what is wrong with a kernel, None if it is right; undefined memory holds NaN, as in a check."""
    with poisoned():
        return first_failure(find(f"measure_and_debug.{name}"), kernel)


RIGHT = [
    *((name, edited(BROKEN[name], *fix)) for name, fixes in ONE_HEAD.items() for fix in fixes),
    ("fix_4", whole_tiles_by_an_if),
    ("fix_4", whole_tiles_from_the_end),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, kernel", RIGHT)
def test_a_fixed_kernel_passes_however_it_is_fixed(name, kernel):
    assert fault_of(name, kernel) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("name, fix", [(name, fix) for name, fixes in ONE_HEAD.items() for fix in fixes])
def test_one_bug_can_be_fixed_before_the_others(name, fix):
    """The check of a bug does not see the two others as long as their lines are those of the lesson."""
    attempt = edited(three_wrong_lines.broken, *fix)
    assert fault_of(name, attempt) is None
    for other in ONE_HEAD.keys() - {name}:
        with pytest.raises(NotImplementedError):
            fault_of(other, attempt)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ONE_HEAD)
def test_bugs_are_fixed_one_after_the_other(name):
    attempt = three_wrong_lines.broken
    for fixes in ONE_HEAD.values():
        attempt = edited(attempt, *fixes[0])
    assert fault_of(name, attempt) is None


@pytest.mark.parametrize("name", ONE_HEAD)
def test_a_bug_that_stays_is_rejected_beside_the_others(name):
    other_line = "m_safe = tl.where("
    attempt = edited(three_wrong_lines.broken, other_line, f"tl.static_assert(True)\n        {other_line}")
    assert fault_of(name, attempt) is not None


@pytest.mark.parametrize("name", BROKEN)
def test_a_kernel_with_other_names_and_comments_is_not_attempted(name):
    broken = BROKEN[name]
    written = edited(broken, "Bc: tl.constexpr", "\n    Bc: tl.constexpr  # of keys\n")
    with pytest.raises(NotImplementedError):
        fault_of(name, written)


@pytest.mark.parametrize("name", ONE_HEAD)
def test_a_kernel_whose_bug_stays_is_rejected(name):
    other_line = "S_ij = tl.dot(Q_i, K_j.T) * scale"
    attempt = edited(BROKEN[name], other_line, "S_ij = scale * tl.dot(Q_i, K_j.T)")
    assert fault_of(name, attempt) is not None


def test_a_nan_that_is_replaced_is_named():
    before = "        S_ij = tl.dot"
    replaced = edited(BROKEN["fix_3"], before, f"        V_j = tl.where(V_j == V_j, V_j, 0.0)\n{before}")
    fault = fault_of("fix_3", replaced)
    assert fault.on == "a value that is NaN" and fault.message.startswith(
        "the numbers are right, but a NaN was replaced"
    )


def test_tiles_that_a_gpu_would_visit_before_the_first_key_are_counted(capsys):
    check("measure_and_debug.fix_4", edited(no_key.broken, "whole // Bc", "(whole + 0) // Bc"))
    printed = capsys.readouterr().out
    assert "You let the loop start before the first key." in printed
    assert "expected tiles = 0" in printed and "your tiles = 1" in printed
