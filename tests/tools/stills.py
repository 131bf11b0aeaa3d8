"""Photograph every drawn figure's first state: `python -m tests.tools.stills [NAME ...]`. Needs node and Chromium.

A still has the digest of its drawing in it: a test without a browser sees from it whether the still is out of date.
"""

import importlib
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from figures import page
from figures.figure import key, numbers
from tests.browser.lab import chromium
from tests.tools.drawn import WIDTH, digest

COLOURS = 96


def photograph(html: str) -> Image.Image:
    """Return a picture of the one figure in this HTML, light, in few colours."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder) / "figure.html"
        path.write_text(f'<meta charset="utf-8"><body style="margin: 0">{html}', encoding="utf-8")
        window = {"width": WIDTH + 16, "height": 1200}  # 8 pixels of padding on each side
        sheet = browser.new_page(viewport=window, device_scale_factor=2, reduced_motion="reduce")
        sheet.goto(path.as_uri())
        png = sheet.locator(".stage").screenshot()
    return Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


def main(names):
    for name in names or page.drawn():
        figure = importlib.import_module(f"figures.{name}")
        about = PngInfo()
        about.add_text("drawn", digest(figure))
        path = page.HERE / "stills" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        state = figure.State()
        picture = photograph(page.fragment(figure, state, {key(figure, state): numbers(figure, state)}, page=True))
        picture.save(path, "png", optimize=True, pnginfo=about)
        print(f"{path.name}: {picture.width} x {picture.height}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
