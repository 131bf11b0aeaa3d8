"""A label from memory is the label that matplotlib draws, to within the half pixel of its anchor."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from figures import style
from figures.labels import Labels

LOOKS = [
    {"s": "m = 4.932", "ha": "left", "va": "top"},
    {"s": "two\nlines", "ha": "right", "va": "bottom", "weight": "bold"},
    {"s": "across", "ha": "center", "va": "center", "rotation": 60, "fontsize": 14},
]


def drawn(look, x=0.5, y=0.5):
    """The same text from memory and by matplotlib, as pixels."""
    figure = style.figure(4.0, 2.0)
    canvas = FigureCanvasAgg(figure)
    text = figure.text(x, y, color=style.O, **look)
    text.set_animated(True)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    labels = Labels(*map(int, figure.bbox.size), figure.dpi)
    labels.draw(text, pixels)
    ours = pixels.copy()
    canvas.draw()
    labels.draw(text, pixels)
    assert np.array_equal(ours, pixels)  # the second time as the first
    canvas.draw()
    text.draw(canvas.get_renderer())
    return ours[:, :, :3].astype(float), pixels[:, :, :3].astype(float)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look["s"])
def test_a_label_from_memory_is_matplotlibs(look):
    ours, theirs = drawn(look)
    inked = [np.argwhere((pixels < 200).any(2)) for pixels in (ours, theirs)]
    assert np.abs(inked[0].mean(0) - inked[1].mean(0)).max() < 1  # at the same place
    assert abs((255 - ours).sum() / (255 - theirs).sum() - 1) < 0.02  # as much ink


@pytest.mark.parametrize("x, y", [(0, 0), (1, 1), (-0.2, 0.5), (0.5, 1.2), (3, 3)])
def test_a_label_beyond_the_edge_is_cut_off(x, y):
    ours, theirs = drawn(LOOKS[0], x, y)
    assert abs((255 - ours).sum() - (255 - theirs).sum()) < 0.02 * (255 - drawn(LOOKS[0])[0]).sum() + 3000
