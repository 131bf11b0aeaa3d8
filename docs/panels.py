"""The pictures of cards: the part of a figure's still that shows its point, with legible letters, or a stored chart.

A box is (left, top, right, bottom) in pixels of the still, which has two for each pixel of a page. No box cuts a word.
"""

import base64
import io
import re
from pathlib import Path

from PIL import Image

from docs import drawn
from docs.lessons import stored
from figures import page
from flashlab.course.lessons import Lesson

Box = tuple[int, int, int, int]
OF_FIGURE: dict[str, Box] = {
    "memory_hierarchy": (795, 86, 1745, 750),
    "roofline": (0, 120, 920, 790),
    "standard_attention": (0, 128, 860, 624),
    "safe_softmax": (1040, 796, 1952, 1140),
    "online_softmax": (1240, 0, 1952, 572),
    "tiling": (660, 0, 1300, 744),
    "block_size": (0, 108, 900, 580),
    "recomputation": (0, 0, 748, 644),
    "io_complexity": (0, 0, 716, 806),
    "first_triton_kernel": (0, 0, 880, 440),
    "pipeline": (0, 120, 698, 410),
    "layouts": (0, 0, 508, 486),
    "schedules": (0, 116, 856, 578),
    "masks": (0, 0, 1000, 1056),
    "decoding": (0, 0, 632, 494),
    "kv_cache": (0, 0, 822, 250),
    "ring": (0, 0, 490, 646),
    "eight_bits": (0, 0, 700, 388),
    "next_machine": (0, 84, 748, 440),
    "crossover": (992, 90, 1450, 656),
}
# Lessons without a figure of their own: a figure of another lesson, and the box in it that shows their subject.
OF_LESSON: dict[str, tuple[str, Box]] = {
    "start_here": ("tiling", (0, 0, 640, 744)),
    "triton_forward": ("tiling", (1318, 0, 1952, 744)),
    "triton_backward": ("recomputation", (186, 0, 652, 204)),
    "packed_texts_and_dropout": ("standard_attention", (1030, 394, 1490, 602)),
}
# Lessons whose subject no figure shows: the notebook and the cell that stores a chart of it.
CHARTS = {
    "roads_not_taken": ("05_roads_not_taken", "bank-roads"),
    "attention_in_a_model": ("13_attention_in_a_model", "train-both"),
    "measure_and_debug": ("14_measure_and_debug", "sweep"),
    "which_version_when": ("11_triton_forward", "h200"),
}


def of(lesson: Lesson) -> tuple[str, int, int]:
    """Return the file of a lesson's picture in ``figures``, and its width and height on a page."""
    file = f"panel-{lesson.name}.png"
    if lesson.name in CHARTS:
        with Image.open(io.BytesIO(chart(*CHARTS[lesson.name]))) as it:
            return file, it.width // 2, it.height // 2
    if lesson.name in OF_LESSON:
        return file, *_size(OF_LESSON[lesson.name][1])
    return of_figure(drawn.shown_by(lesson)[0])


def of_figure(name: str) -> tuple[str, int, int]:
    """Return the file of a figure's panel in ``figures``, and its width and height on a page."""
    return f"panel-{name}.png", *_size(OF_FIGURE[name])


def write(folder: Path):
    """Write all pictures into ``folder``."""
    pictures = {name: picture(figure, box) for name, figure, box in boxes()}
    pictures |= {name: chart(*place) for name, place in CHARTS.items()}
    for name, png in pictures.items():
        (folder / f"panel-{name}.png").write_bytes(png)


def boxes() -> list[tuple[str, str, Box]]:
    """Return for each panel its name, the figure from whose still it is taken, and the box."""
    parts = [(name, name, box) for name, box in OF_FIGURE.items()]
    return parts + [(name, figure, box) for name, (figure, box) in OF_LESSON.items()]


def picture(figure: str, box: Box) -> bytes:
    """Return a part of a figure's still as PNG."""
    module, png = drawn.figure(figure), io.BytesIO()
    with Image.open(io.BytesIO(page.still(module, module.State()))) as still:
        still.crop(box).save(png, "png", optimize=True)
    return png.getvalue()


def chart(name: str, cell: str) -> bytes:
    """Return the chart that a cell of the notebook ``name`` stores, as PNG."""
    (outputs,) = [it["outputs"] for it in stored(f"{name}.ipynb")["cells"] if it["id"] == cell]
    text = "".join("".join(it.get("data", {}).get("text/html", "")) for it in outputs)
    return base64.b64decode(re.search(r'base64,([^"]*)"', text)[1])


def _size(box):
    left, top, right, bottom = box
    return (right - left) // 2, (bottom - top) // 2
