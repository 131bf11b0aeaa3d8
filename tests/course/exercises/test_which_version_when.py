"""which_version_when: right solutions pass however they are written; answers agree with the measurements."""

import math

import torch

from flashlab.course.check import check
from flashlab.course.registry import find
from flashlab.course.versions import Call, ran
from flashlab.course.which_version_when import which
from flashlab.grading.exercise import edited
from tests.course.exercises import right


def choose_with_loops(lengths, us, able, N):
    found = {}
    for cell, length in enumerate(lengths):
        for version, time in enumerate(us[cell]):
            if able[version] and math.isfinite(time):
                found[max(length / N, N / length), time] = cell, version
    return found[min(found)]


RIGHT = {"which_version_when.choose": [choose_with_loops]}
test_right_answers_pass = right.all_pass(RIGHT)


def test_rounded_logarithms_are_not_taken_for_differences_of_lengths(capsys):
    ratio = "np.abs(np.log2(lengths / N))"
    check("which_version_when.choose", edited(find("which_version_when.choose").reference, ratio, f"{ratio}.round()"))
    shown = capsys.readouterr().out
    assert "fails for" in shown and "difference of lengths" not in shown


def test_the_answers_are_those_of_measurements():
    call = Call(1, 16, 16384, 128, 16384, 16, mask="causal", direction="both")
    answer = which(call)
    assert {answer.version, *answer.ties} == {"FlashAttention-4", "flashlab Hopper"}
    assert find("which_version_when.training").answer == "neither"
    q = torch.randn(1, 1, 16, 16)
    (version,) = ran(torch.nn.functional.scaled_dot_product_attention, q, q, q, dropout_p=0.1)
    assert version == f"SDPA {find('which_version_when.fallback').answer}"
