"""The panel of each figure that stands for it in small: a part of its still that shows its point, in letters to read.

A box is (left, top, right, bottom) in pixels of the still, which has two for each pixel of a page. It cuts no word.
"""

import io
from pathlib import Path

from PIL import Image

from docs import drawn
from figures import page
from flashlab.course.lessons import Lesson

Box = tuple[int, int, int, int]
OF_FIGURE: dict[str, Box] = {
    "memory_hierarchy": (222, 87, 1110, 692),
    "roofline": (456, 186, 1010, 740),
    "standard_attention": (0, 128, 860, 624),
    "safe_softmax": (0, 756, 890, 1138),
    "online_softmax": (1296, 0, 1952, 540),
    "tiling": (660, 0, 1300, 744),
    "block_size": (0, 836, 640, 1026),
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
# Lessons without a figure, or with the one of another lesson: a figure, and the panel of it that shows their subject.
OF_LESSON: dict[str, tuple[str, Box]] = {
    "start_here": ("tiling", (0, 0, 640, 744)),
    "roads_not_taken": ("masks", (58, 88, 548, 548)),
    "triton_forward": ("tiling", (1318, 0, 1952, 744)),
    "triton_backward": ("recomputation", (186, 0, 652, 204)),
    "packed_texts_and_dropout": ("standard_attention", (1030, 394, 1490, 602)),
}


def of(lesson: Lesson) -> tuple[str, int, int] | None:
    """Return the file of a lesson's panel in ``figures`` and its width and height on a page; None without one."""
    if lesson.name in OF_LESSON:
        return f"panel-{lesson.name}.png", *_size(OF_LESSON[lesson.name][1])
    shown = drawn.shown_by(lesson)
    return of_figure(shown[0]) if shown else None


def of_figure(name: str) -> tuple[str, int, int]:
    """Return the file of a figure's panel in ``figures``, and its width and height on a page."""
    return f"panel-{name}.png", *_size(OF_FIGURE[name])


def write(folder: Path):
    """Write all panels into ``folder``."""
    for name, figure, box in boxes():
        (folder / f"panel-{name}.png").write_bytes(picture(figure, box))


def boxes() -> list[tuple[str, str, Box]]:
    """Return for each panel its name, the figure from whose still it is taken, and the box."""
    parts = [(name, name, box) for name, box in OF_FIGURE.items()]
    return parts + [(name, figure, box) for name, (figure, box) in OF_LESSON.items()]


def picture(figure: str, box: Box) -> bytes:
    """Return a part of a figure's still as PNG."""
    shown, made = drawn.figure(figure), io.BytesIO()
    with Image.open(io.BytesIO(page.still(shown, shown.State()))) as still:
        still.crop(box).save(made, "png", optimize=True)
    return made.getvalue()


def _size(box):
    left, top, right, bottom = box
    return (right - left) // 2, (bottom - top) // 2
