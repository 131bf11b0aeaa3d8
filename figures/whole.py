"""The whole algorithm in one still picture: a promise at the beginning of the course, a map at its end.

Kills the belief that the N x N matrix must exist somewhere: it is dotted, and only one tile of it exists at a time.
"""

from typing import Any

from matplotlib.patches import FancyBboxPatch, Rectangle

from figures import style
from figures.charts import Chart, Mark

SIZE = (9.2, 4.9)  # inches
TILES = 4  # to a side
AT = (1, 2)  # the tile that is drawn: i, j
SIDE, THIN, GAP = 2.16, 0.5, 0.3  # of the square, across a thin matrix, and between them, in inches
LEFT, TOP = 0.75, 4.0  # of the square
CENTRED = {"ha": "center", "va": "center", "fontsize": 12}
STEPS = (
    ("tiling", "load a tile of queries, Q_i; then, for every j:"),
    ("tiling", "load the tiles K_j and V_j"),
    ("standard attention", "make one tile of scores, S_ij"),
    ("safe softmax", "make it P_ij: subtract a maximum, take e^s"),
    ("online softmax", "update m, ℓ and O_i; forget the tile"),
    ("online softmax", "at the end divide by ℓ; store O_i, once"),
)


def picture() -> Chart:
    """Draw Q, K, V, O as thin matrices in slow memory, one tile of each in fast memory, and the six steps."""
    fig = style.figure(*SIZE)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, SIZE[0]), ylim=(0, SIZE[1]))
    ax.axis("off")
    right, below = LEFT + SIDE + GAP, TOP - SIDE - GAP - THIN
    marks = [
        _matrix(ax, "Q", style.Q, 0.12, TOP - SIDE, THIN, SIDE, AT[0]),
        _matrix(ax, "Kᵀ", style.K, LEFT, TOP + 0.12, SIDE, THIN, AT[1]),
        _matrix(ax, "Vᵀ", style.V, LEFT, below, SIDE, THIN, AT[1]),
        _matrix(ax, "O", style.O, right, TOP - SIDE, THIN, SIDE, AT[0]),
        _square(ax),
        *_words(ax),
    ]
    return Chart(fig, words(), marks)


def words() -> str:
    """Say what the picture shows."""
    steps = " ".join(f"{number}. {step} ({lesson})." for number, (lesson, step) in enumerate(STEPS, start=1))
    return f"One kernel: Q, K, V and O cross between slow and fast memory in tiles, S and P never do. {steps}"


def _matrix(ax: Any, name: str, color: str, x: float, y: float, width: float, height: float, at: int) -> Mark:
    """Draw a thin matrix in slow memory, cut into tiles; the one numbered ``at`` is in fast memory. Return its mark."""
    ax.add_patch(Rectangle((x, y), width, height, fc=style.PAPER, ec=style.SLOW, lw=1.5))
    upright = height > width
    step = max(width, height) / TILES
    for tile in range(TILES):
        corner = (x, y + height - (tile + 1) * step) if upright else (x + tile * step, y)
        sides = (width, step) if upright else (step, height)
        ax.add_patch(Rectangle(corner, *sides, fc=color if tile == at else "none", ec=style.SLOW, lw=0.8))
        if tile == at:
            middle = (corner[0] + sides[0] / 2, corner[1] + sides[1] / 2)
            ax.text(*middle, _set(f"{name[0]}_{'i' if upright else 'j'}"), **CENTRED, color=style.PAPER)
    place = {"x": x + width / 2, "y": y - 0.17} if upright else {"x": x - 0.22, "y": y + height / 2}
    ax.text(*place.values(), name, **CENTRED, fontweight="bold", color=style.INK)
    moves = "stored once" if name == "O" else "loaded in tiles"
    lines = [f"in slow memory, {moves}", f"in fast memory: tile {'i' if upright else 'j'}"]
    return Mark(ax, (x, x + width), (y, y + height), name, lines)


def _square(ax: Any) -> Mark:
    """Draw the outline of the N x N matrix, of which only one tile exists at a time. Return its mark."""
    step, (i, j) = SIDE / TILES, AT
    ax.add_patch(Rectangle((LEFT, TOP - SIDE), SIDE, SIDE, fc="none", ec=style.STANDARD, lw=1, ls=":"))
    tile = (LEFT + j * step, TOP - (i + 1) * step)
    ax.add_patch(Rectangle(tile, step, step, fc=style.S, ec=style.P, lw=1.5))
    ax.text(tile[0] + step / 2, tile[1] + step / 2, _set("S_ij"), **CENTRED, color=style.INK)
    row = tile[1] + step / 2
    for start, end in (((0.12 + THIN, row), (tile[0], row)), ((tile[0] + step, row), (LEFT + SIDE + GAP, row))):
        ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": style.FAST, "lw": 1.3})
    column = tile[0] + step / 2
    below = TOP - SIDE - GAP
    for start, end in (((column, TOP + 0.12), (column, tile[1] + step)), ((column, below), (column, tile[1]))):
        ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": style.FAST, "lw": 1.3})
    for y, words in ((0.28, "S and P: never"), (0.12, "in slow memory")):
        ax.text(LEFT + 0.1, TOP - SIDE + y, words, fontsize=9, color=style.INK)
    lines = ["in slow memory: nothing", "in fast memory: one tile, made and forgotten"]
    return Mark(ax, (LEFT, LEFT + SIDE), (TOP - SIDE, TOP), "S and P", lines)


def _words(ax: Any) -> list[Mark]:
    """Write the steps beside the picture, with the lesson that builds each. Return their marks."""
    x, y = LEFT + SIDE + GAP + THIN + 0.45, 4.45
    ax.text(x, y, "One kernel, for each tile of queries:", fontsize=11, fontweight="bold", color=style.INK)
    marks = []
    for number, (lesson, step) in enumerate(STEPS, start=1):
        y -= 0.53
        ax.text(x, y, f"{number}", fontsize=10, fontweight="bold", color=style.FAST)
        ax.text(x + 0.25, y, _set(step), fontsize=10, color=style.INK)
        ax.text(x + 0.25, y - 0.2, lesson, fontsize=8.5, color=style.INK, fontstyle="italic")
        place = (x - 0.1, SIZE[0] - 0.1), (y - 0.29, y + 0.22)
        marks.append(Mark(ax, *place, f"{number}. {_set(step)}", [f"lesson: {lesson}"]))
    ax.add_patch(FancyBboxPatch((x, 0.3), 3.75, 0.42, "round,pad=0.05", fc="none", ec=style.FAST, lw=1.3))
    note = "in fast memory: the filled tiles, m and ℓ"
    ax.text(x + 0.12, 0.51, note, fontsize=10, va="center", color=style.FAST)
    return marks


def _set(text: str) -> str:
    """Return words with indices below the line and exponents above it."""
    for plain, written in (("_ij", "ᵢⱼ"), ("_i", "ᵢ"), ("_j", "ⱼ"), ("^s", "ˢ")):
        text = text.replace(plain, written)
    return text
