"""Film the README's picture, figures/tiling as it plays: `python -m tests.tools.moving`. Needs node and Chromium.

The file has the digest of the figure's drawing in it, as still pictures do.
"""

import io
import tempfile
from pathlib import Path

from PIL import Image

from figures import page, tiling
from figures.figure import steps
from tests.browser.lab import ROOT, chromium
from tests.tools.drawn import digest

EVERY, MS, COLOURS = 3, 160, 40  # steps per picture, ms per picture, colours of the film
FILM = ROOT / ".github" / "tiling.gif"
CLOCK = "input[type=range][data-field]"


def main():
    state = tiling.State()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder) / "tiling.html"
        path.write_text(page.page(tiling), encoding="utf-8")
        sheet = browser.new_page(viewport={"width": 976, "height": 1200}, reduced_motion="reduce")
        sheet.goto(path.as_uri())
        clock, stage = sheet.locator(CLOCK).last, sheet.locator(".stage svg")
        last = len(list(steps(tiling, state))) - 1
        pictures = []
        for step in [*range(0, last, EVERY), last]:
            clock.fill(str(step))
            pictures.append(Image.open(io.BytesIO(stage.screenshot())).convert("RGB"))
    colours = pictures[len(pictures) // 2].quantize(COLOURS)
    first, *rest = (picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in pictures)
    durations = [MS] * len(rest) + [3000]  # the last picture stays
    about = {"comment": digest(tiling), "loop": 0, "optimize": True}
    first.save(FILM, save_all=True, append_images=rest, duration=durations, **about)
    print(f"{FILM.name}: {len(pictures)} pictures, {FILM.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
