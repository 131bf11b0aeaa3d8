"""start_here: right solutions pass however they are written; its question and its last hint."""

import numpy as np

from flashlab.course.check import check, hint
from tests.course.exercises import right

NAME = "start_here.first"


def by_asking_numpy(N):
    return np.dtype(np.float16).itemsize * N**2


def by_bits(N):
    return N * N * 16 / 8


def row_by_row(N):
    return sum(2 * N for _ in range(N))


RIGHT = {"start_here.first": [by_asking_numpy, by_bits, row_by_row]}
test_right_answers_pass = right.all_pass(RIGHT)


def test_the_question_has_its_answer_and_its_usual_error(capsys):
    for answer in (4, ..., 2):
        check("start_here.twice", answer)
    right, unanswered, wrong, why, _ = capsys.readouterr().out.splitlines()
    assert right.startswith("✓ start_here.twice: 4.") and unanswered.startswith("○ start_here.twice: not answered yet.")
    assert wrong == "✗ start_here.twice: not 2." and why.startswith("Every row gets twice as long")


def test_the_last_hint_is_the_solution(capsys):
    hint(NAME, 3)
    assert "return 2 * N * N" in capsys.readouterr().out
