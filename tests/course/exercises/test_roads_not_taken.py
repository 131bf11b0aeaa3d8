"""roads_not_taken: right solutions pass however they are written; answers are what the memory counts."""

import numpy as np

from flashlab.course import data
from flashlab.course.registry import find
from flashlab.machine import costs
from flashlab.reference import roads_not_taken, standard_attention
from flashlab.reference.attention import attention
from tests.course.exercises import right


def reach_key_by_key(start, stop, w, N):
    seen = [j for j in range(N) if any(abs(i - j) <= w for i in range(start, stop))]
    return seen[0], seen[-1] + 1


def reach_by_clipping(start, stop, w, N):
    return tuple(np.clip([start - w, stop + w], 0, N))


def reach_in_branches(start, stop, w, N):
    first = start - w if start > w else 0
    last = stop + w if stop < N - w else N
    return first, last


RIGHT = {
    "roads_not_taken.reach": [reach_key_by_key, reach_by_clipping, reach_in_branches],
}

test_right_answers_pass = right.all_pass(RIGHT)


def test_answers_are_what_the_memory_counts():
    Q, K, V = data.captured("alice").head()
    exact = attention(Q, K, V)
    standard = costs.measure(standard_attention.forward, Q, K, V, Br=32, exact=exact)
    rows = costs.measure(roads_not_taken.row_by_row, Q, K, V, Bc=64, exact=exact)
    near = costs.measure(roads_not_taken.gathered, Q, K, V, roads_not_taken.window(16), exact=exact)
    assert round(rows.moved / standard.moved) == find("roads_not_taken.rows").answer
    assert round(near.moved / standard.moved, 2) == find("roads_not_taken.share").answer
