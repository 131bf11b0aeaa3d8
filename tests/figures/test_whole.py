"""The picture of the whole algorithm: where its tile is, and that its words are legible and name the lessons."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from figures import charts, whole
from tests.figures.test_charts import drawing_of


@pytest.fixture
def drawn(monkeypatch):
    """Return the matplotlib figure of the picture, after its layout."""
    pictures = []
    monkeypatch.setattr(whole, "Chart", lambda figure, *more: pictures.append(figure) or charts.Chart(figure, *more))
    whole.picture()
    FigureCanvasAgg(pictures[0]).draw()
    return pictures[0]


def test_the_tile_of_scores_is_in_the_row_of_its_queries_and_the_column_of_its_keys(drawn):
    colors = {"Q": whole.style.Q, "K": whole.style.K, "S": whole.style.S}
    boxes = {}
    for patch in drawn.axes[0].patches:
        for name, color in colors.items():
            if patch.get_facecolor()[:3] == pytest.approx(to_rgb(color)):
                boxes[name] = patch.get_bbox()
    assert (boxes["S"].y0, boxes["S"].y1) == pytest.approx((boxes["Q"].y0, boxes["Q"].y1))
    assert (boxes["S"].x0, boxes["S"].x1) == pytest.approx((boxes["K"].x0, boxes["K"].x1))


def test_no_word_covers_another_or_leaves_the_picture(drawn):
    boxes = [text.get_window_extent() for text in drawn.axes[0].texts if text.get_text()]
    assert len(boxes) > 2 * len(whole.STEPS)
    assert all(drawn.bbox.x0 <= box.x0 and box.x1 <= drawn.bbox.x1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_the_words_have_all_steps_in_order():
    words = repr(whole.picture())
    places = [words.index(f"{number}. ") for number in range(1, len(whole.STEPS) + 1)]
    assert places == sorted(places) and "S and P never do" in words and "$" not in words


def test_every_step_and_every_matrix_says_what_it_is():
    marks = drawing_of(whole.picture())["marks"]
    assert [mark["title"] for mark in marks[:5]] == ["Q", "Kᵀ", "Vᵀ", "O", "S and P"]
    assert [mark["lines"] for mark in marks[5:]] == [[f"lesson: {lesson}"] for lesson, _ in whole.STEPS]
