"""The exercises on schedules: who computes which tile, in which order, and what shares the cache."""

from typing import NamedTuple

import numpy as np

from flashlab.grading.draws import whole
from flashlab.grading.exercise import Case, Exercise, Mistake, Question

__all__ = ["rounds", "last_tile", "longest_first", "time_of", "megabytes"]  # in the lesson's order

rounds = Question(
    answer=16,
    because="15.5 cannot be: after 15 full rounds, 68 tiles are left, and 64 of the multiprocessors wait.",
    hints=(
        "Each multiprocessor computes one tile at a time. How many are computed at once?",
        "132 at once. Divide, and ask what happens with the rest.",
        "2048 / 132, rounded up.",
    ),
    wrong=(
        (15.5, "There is no half tile: some multiprocessors compute a last one while the others wait."),
        (15, "That leaves 68 tiles."),
    ),
    minutes=2,
)

last_tile = Question(
    answer=32,
    because="Its last query sees all 4,096 keys, in blocks of 128. The first tile of the head meets a single block.",
    hints=(
        "Which keys does the last query of a head see?",
        "All 4,096. A block has 128.",
        "4096 / 128",
    ),
    wrong=((16, "That is about the average. The last tile meets all keys."), (1, "That is the first tile."),
           (31, "Count the block on the diagonal, too."), (4096, "Those are keys; a block has 128 of them.")),
    minutes=1,
)  # fmt: skip

megabytes = Question(
    answer=69.2,
    unit="MB",
    because="K and V need more than the 63 MB of the cache, so they come from DRAM again.",
    hints=(
        "How many bytes are the keys of one head? Then the values, and all heads.",
        "1,024 keys of 128 numbers of 2 bytes, for K and for V: 0.52 MB per head.",
        "132 * 2 * 2 * 1024 * 128 / 1e6",
    ),
    wrong=(
        (34.6, "That is K or V alone, or 1 byte per number. Both are needed, with 2 bytes per number."),
        (0.524, "That is one head. There are 132."),
        (138.4, "bfloat16 has 2 bytes."),
        (66, "MB are decimal here: 10^6 bytes."),
    ),
    minutes=3,
)


class Blocks(NamedTuple):
    """The number of blocks of each program, sorted: which program has which number does not matter."""

    blocks: np.ndarray  # [programs]


def assign_longest_first(work, programs):
    """Return the tiles of each program: the longest comes first, and goes to the program that has the fewest blocks."""
    tiles = [[] for _ in range(programs)]
    blocks = [0] * programs
    for tile in sorted(range(len(work)), key=lambda tile: -work[tile]):
        least = blocks.index(min(blocks))
        tiles[least].append(tile)
        blocks[least] += work[tile]
    return tiles


def _blocks(assign, work, programs):
    """Run a learner's function, and count each program's blocks.

    Raises:
        ValueError: programs are missing, or not each tile has one.
    """
    blocks = list(work)  # a learner's function may change work: then the check says so
    tiles = assign(work, programs)
    if not isinstance(tiles, list | tuple) or len(tiles) != programs:
        raise ValueError(f"expected a list of {programs} lists, one per program, got {tiles!r:.60}")
    found = sorted(int(tile) for own in tiles for tile in own)
    if found != list(range(len(blocks))):
        raise ValueError(f"expected each of the tiles 0 to {len(blocks) - 1} once, got {found!r:.60}")
    return Blocks(np.sort([sum(blocks[tile] for tile in own) for own in tiles]))


def _draw(rng, size):
    """Draw lengths of tiles, those of causal heads or any, and a number of programs, perhaps more than tiles."""
    n = int(rng.integers(1, 4 * size + 1))
    causal = np.arange(n) % rng.integers(1, n + 1) + 1  # [tiles]
    work = causal.tolist() if rng.random() < 0.5 else [whole(rng, size, 100) for _ in range(n)]
    return work, int(rng.integers(1, size + 2))


longest_first = Exercise(
    reference=assign_longest_first,
    launch=_blocks,
    exact=lambda work, programs: _blocks(assign_longest_first, work, programs),
    edges=(
        Case("two tiles of equal length", ([3, 3], 2)),
        Case("the longest tile lies last", ([1, 1, 2], 2)),
        Case("one head under a causal mask", ([1, 2, 3, 4], 2)),
        Case("more programs than tiles", ([2], 3)),
        Case("a few long tiles and many short ones", ([9, 1, 1, 1, 1, 1, 7, 1, 1, 1], 3)),
    ),
    draw=_draw,
    level=2,
    minutes=10,
    hints=(
        "Two questions, one after the other: which tile comes next, and who has least to do?",
        "sorted(range(len(work)), key=lambda tile: -work[tile]) are the tiles, longest first. Keep a list of what each "
        "program has to do so far: blocks.index(min(blocks)) is the one with least.",
        "for each tile, longest first: least = blocks.index(min(blocks)); tiles[least].append(tile); "
        "blocks[least] += work[tile].",
    ),
    mistakes=(
        Mistake("took the shortest tile first, or did not compare the programs' blocks, which gives the same result.",
                "The longest tile comes first, and goes to the program that has the fewest blocks.",
                "-work[tile]", "work[tile]"),
        Mistake("took the tiles in their order.", "Sort them, the longest first.",
                "sorted(range(len(work)), key=lambda tile: -work[tile])", "range(len(work))"),
        Mistake("let the programs take turns.", "The next tile goes to the program that has the fewest blocks.",
                "for tile in sorted(range(len(work)), key=lambda tile: -work[tile]):\n"
                "        least = blocks.index(min(blocks))",
                "for tile in range(len(work)):\n        least = tile % programs"),
        Mistake("gave the tile to the program that has the most blocks.", "It goes to the one that has the fewest.",
                "min(blocks)", "max(blocks)"),
        Mistake("returned numbers of blocks.", "The lists hold tiles: their places in work.",
                "append(tile)", "append(work[tile])"),
        Mistake("left tiles out.", "A program may have several.", "return tiles", "return [own[:1] for own in tiles]"),
    ),
)  # fmt: skip


def latest(lists, work, t_b, t_o):
    """Return when the last program has computed its tiles."""
    return max(sum(work[tile] * t_b + t_o for tile in tiles) for tiles in lists)


def _draw_lists(rng, size):
    """Draw tiles and the programs that have them; a program may have none."""
    work = rng.integers(1, 100, int(rng.integers(4 * size + 1))).tolist()
    owners = rng.integers(0, size, len(work))  # [tiles]
    lists = [np.flatnonzero(owners == program).tolist() for program in range(size)]
    return lists, work, float(rng.uniform(0.1, 5)), float(rng.uniform(0, 20))


time_of = Exercise(
    reference=latest,
    edges=(
        Case("one program, one tile", ([[0]], [3], 2.0, 1.0)),
        Case("two programs: the later one decides", ([[0, 1], [2]], [1, 1, 4], 2.0, 1.0)),
        Case("many short tiles take longer than a long one", ([[0, 1, 2], [3]], [1, 1, 1, 4], 1.0, 2.0)),
        Case("a program without a tile", ([[0], []], [2], 1.0, 1.0)),
    ),
    draw=_draw_lists,
    level=1,
    minutes=8,
    hints=(
        "How long does one program take for its own list? And which program decides when all are done?",
        "A program takes the sum of its tiles' times. The kernel is done with the latest program.",
        "max(sum(work[tile] * t_b + t_o for tile in tiles) for tiles in lists)",
    ),
    mistakes=(
        Mistake("added up all programs.", "They run side by side: the latest decides.", "max(sum", "sum(sum"),
        Mistake("left out what a tile costs besides its blocks.", "Each tile adds t_o.", " + t_o", ""),
        Mistake("added t_o once per program.", "Each tile costs t_o, for its beginning and its end.",
                "max(sum(work[tile] * t_b + t_o for tile in tiles)",
                "max(t_o + sum(work[tile] * t_b for tile in tiles)"),
        Mistake("took the number of a tile for its blocks.", "work[tile] are its blocks.", "work[tile]", "tile"),
        Mistake("averaged over the programs.", "The kernel is done when the last one is.",
                "max(sum(work[tile] * t_b + t_o for tile in tiles) for tiles in lists)",
                "sum(sum(work[tile] * t_b + t_o for tile in tiles) for tiles in lists) / len(lists)"),
    ),
)  # fmt: skip
