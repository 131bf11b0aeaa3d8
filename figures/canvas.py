"""A picture that is kept: on a new state only the artists that change are drawn again."""

import base64
import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from figures import style
from figures.labels import Labels


class Canvas:
    """One figure, redrawn for state after state.

    Args:
        figure: an empty ``matplotlib.figure.Figure``.
        build: makes the frame on it and returns the artists that change, by name.
        update: sets those artists for a state.
    """

    def __init__(self, figure, build, update):
        self.figure = figure
        self.canvas = FigureCanvasAgg(figure)
        self.artists = build(figure)
        self.update = update
        self._labels = Labels(*map(int, figure.bbox.size), figure.dpi)
        self._frame = None
        for artist in self._moving():
            artist.set_animated(True)

    def png(self, state) -> bytes:
        """The picture of this state, to keep."""
        return _encoded(self._drawn(state).convert("RGB"), format="png", compress_level=6)

    def jpeg(self, state) -> bytes:
        """The picture of this state, to look at while it lasts: encoded in a tenth of the time."""
        return _encoded(self._drawn(state), format="jpeg", quality=92, subsampling=0)

    def mime(self, state) -> str:
        """The picture of this state as a notebook's output carries it: PNG in base64."""
        return base64.b64encode(self.png(state)).decode()

    def _drawn(self, state) -> Image.Image:
        with style.quick_text():
            self.update(self.artists, state)
            frame = self._frame_now()
            if frame != self._frame:
                self._frame = frame
                self.canvas.draw()  # leaves the animated artists out
                self._background = self.canvas.copy_from_bbox(self.figure.bbox)
            self.canvas.restore_region(self._background)
            renderer, pixels = self.canvas.get_renderer(), np.asarray(self.canvas.buffer_rgba())
            for artist in sorted(self._moving(), key=lambda artist: artist.zorder):
                if self._labels.knows(artist):
                    self._labels.draw(artist, pixels)
                else:
                    artist.draw(renderer)
        return Image.frombuffer("RGBX", pixels.shape[1::-1], pixels, "raw", "RGBX", 0, 1)  # our paper is opaque

    def _moving(self):
        for artist in self.artists.values():
            yield from artist if isinstance(artist, (list, tuple)) else [artist]

    def _frame_now(self):
        """What the background depends on: limits, titles and labels of the axes."""
        return [
            (ax.get_xlim(), ax.get_ylim(), *map(ax.get_title, ("left", "center", "right")),
             ax.get_xlabel(), ax.get_ylabel(), ax.get_visible())
            for ax in self.figure.axes
        ]  # fmt: skip


def _encoded(image, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()
