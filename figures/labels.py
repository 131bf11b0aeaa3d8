"""Labels drawn from memory: to lay out and draw a text takes a millisecond, to draw it a second time a fiftieth.

A label is kept as a mask, how much of each pixel it covers, and put down at whole pixels, the first time as the second.
"""

from collections import OrderedDict

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

KEPT = 2000  # labels, a few kilobytes each
EDGE = 8  # pixels that keep a label clear of the border of the sheet on which it is drawn first


class Labels:
    """The labels of one figure."""

    def __init__(self, width, height, dpi):
        self._sheet = RendererAgg(width, height, dpi)
        self._masks = OrderedDict()

    def knows(self, artist) -> bool:
        """Is this an artist that ``draw`` can draw: a plain text, not clipped and not boxed?"""
        return type(artist) is Text and artist.get_bbox_patch() is None and not artist.get_clip_on()

    def draw(self, text, pixels):
        """Draw the label on ``pixels`` [height, width, 4] of uint8, row 0 on top."""
        if not text.get_visible() or not text.get_text().strip():
            return
        x, y = text.get_transform().transform(text.get_position())
        right, up, mask = self._mask(text)
        left, top = round(x) + right, pixels.shape[0] - round(y) - up
        (height, width), clear = mask.shape, (max(top, 0), max(left, 0))
        under = pixels[clear[0] : max(top + height, 0), clear[1] : max(left + width, 0), :3]  # what lies inside
        cover = mask[max(-top, 0) :, max(-left, 0) :][: under.shape[0], : under.shape[1], None].astype(np.uint16)
        ink = np.array([round(255 * part) for part in to_rgb(text.get_color())], np.uint16)
        under[...] = (under * (255 - cover) + ink * cover + 127) // 255

    def _mask(self, text):
        """Where the label begins, in pixels right of and above its anchor, and its mask [rows, columns]."""
        look = (text.get_text(), text.get_fontsize(), text.get_weight(), text.get_style(), text.get_rotation(),
                text.get_ha(), text.get_va(), text.get_alpha(), text.get_linespacing())  # fmt: skip
        if look not in self._masks:
            self._masks[look] = self._drawn(text)
            if len(self._masks) > KEPT:
                self._masks.popitem(last=False)
        self._masks.move_to_end(look)
        return self._masks[look]

    def _drawn(self, text):
        width, height = self._sheet.width, self._sheet.height
        x = {"left": EDGE, "right": width - EDGE}.get(text.get_ha(), width // 2)
        y = {"top": height - EDGE, "bottom": EDGE}.get(text.get_va(), height // 2)
        position, transform = text.get_position(), text.get_transform()
        self._sheet.clear()
        text.set(position=(x, y), transform=IdentityTransform())
        try:
            text.draw(self._sheet)
        finally:
            text.set(position=position, transform=transform)
        cover = np.asarray(self._sheet.buffer_rgba())[:, :, 3]  # [height, width]
        rows = np.flatnonzero(cover.any(1))
        if not len(rows):
            return 0, 0, cover[:0, :0].copy()
        columns = np.flatnonzero(cover[rows[0] : rows[-1] + 1].any(0))
        top, left = rows[0], columns[0]
        return left - x, height - y - top, cover[top : rows[-1] + 1, left : columns[-1] + 1].copy()
