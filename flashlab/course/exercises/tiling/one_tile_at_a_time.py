"""Laws: keys are met Bc at a time, once, and each tile's values before the next tile; queries Br at a time."""

import numpy as np

from flashlab.grading.watch import Reads

RIGHT_BUT = "the numbers are right, but it "
TOO_MANY = RIGHT_BUT + "took more than Bc keys at once: fast memory holds one tile of K. Take Bc at a time."
THEIR_VALUES = (
    RIGHT_BUT + "took the values of more than Bc keys at once: fast memory holds one tile of V. A tile's values are "
    "taken in with its scores."
)
ALL_SCORES = (
    RIGHT_BUT + "computed the scores of more than Bc keys before it took in their values: fast memory holds the scores "
    "of one tile. Take a tile's values in with its scores: only the state is kept."
)
AGAIN = (
    RIGHT_BUT
    + "read keys or values more than once: the tile of queries stays, all its rows meet a tile of keys while that tile "
    "is in fast memory, and only the state is kept."
)
MORE_QUERIES = RIGHT_BUT + "took more than Br queries at once: fast memory holds one tile of Q."
KEYS_OUTSIDE = (
    RIGHT_BUT
    + "came back to queries of an earlier tile, as if the keys were outside or a tile were computed twice. A tile of "
    "queries stays until it has met all keys, and is finished then."
)
OTHER_TILES = RIGHT_BUT + "met the keys in {} tiles: Bc at a time, they are {}."


def bc_at_a_time(inside, Q_i, K, V, Bc):
    """Return what is wrong if keys are not met Bc at a time, once, each tile's values before the next tile; else None.

    The rows of K and V are numbered for it, from 1 on, so that the numbers in an operand tell which keys it takes.
    """
    reads = Reads()
    K, V = (reads.watch(name, _numbered(X)) for name, X in (("K", K), ("V", V)))
    with reads.through_copies():
        inside(Q_i, K, V, Bc)
    return _objection(_uses(reads), len(K), Bc)


def tile_by_tile(forward, Q, K, V, Br, Bc):
    """Return what is wrong if Br queries at a time do not stay while keys pass as in ``bc_at_a_time``; else None."""
    reads = Reads()
    Q, K, V = (reads.watch(name, _numbered(X)) for name, X in (("Q", Q), ("K", K), ("V", V)))
    with reads.through_copies():
        forward(Q, K, V, Br, Bc)
    if reads.largest("Q") > Br * Q.shape[1]:
        return MORE_QUERIES
    uses = _uses(reads)
    if _comes_back([places for name, places in uses if name == "Q"], Br):
        return KEYS_OUTSIDE
    return next(filter(None, (_objection(some, len(K), Bc) for some in _by_tile(uses, Br))), None)


def _uses(reads):
    """Return (name, places) for each operand: the numbers of the rows that it takes."""
    return [(name, {row for row in np.unique(operand) if row >= 1}) for name, operand in reads.log]


def _by_tile(uses, Br):
    """Return the uses of K and V for the first Br queries, for the next Br, and so on."""
    tiles, queries = [[]], set()
    for name, places in uses:
        if name == "Q" and len(queries | places) > Br:
            in_one_product = bool(tiles[-1]) and tiles[-1][-1][0] == "K"  # K_j @ Q_i.T takes K_j first
            tiles.append([tiles[-1].pop()] if in_one_product else [])
            queries = set()
        if name == "Q":
            queries |= places
        else:
            tiles[-1].append((name, places))
    return tiles


def _comes_back(uses, Br):
    """Return whether queries of an earlier tile are used after those of a later one."""
    left, tile = set(), set()  # queries of earlier tiles, and of this one
    for places in uses:
        if len(tile | places) > Br:
            left, tile = left | tile, set()
        tile |= places
        if left & tile:
            return True
    return False


def _numbered(X):
    return np.broadcast_to(1 + np.arange(len(X))[:, None], X.shape).astype(X.dtype)


def _objection(uses, Nk, Bc):
    """Return a fault in the order of uses (name, places) of K and V; None if there is none, or if rows are missing."""
    keys, values = ([places for name, places in uses if name == tensor] for tensor in "KV")
    if max(map(len, keys), default=0) > Bc:
        return TOO_MANY
    if max(map(len, values), default=0) > Bc:
        return THEIR_VALUES
    if len(set().union(*keys)) < Nk or len(set().union(*values)) < Nk or uses[0][0] == "V":
        return None
    tiles, again = [], False  # the tiles of keys, and whether values of an earlier tile were used again
    has_values = True  # were values used since the last keys?
    for name, places in uses:
        if name == "V":
            has_values = True
            again |= any(places & tile for tile in tiles[:-1])
        elif has_values and not (tiles and places <= tiles[-1]):
            tiles.append(places)
            has_values = False
        else:
            tiles[-1] = tiles[-1] | places
    sizes = [len(tile) for tile in tiles]
    if max(sizes) > Bc and sum(map(len, keys)) == Nk:
        return ALL_SCORES
    if again or max(sizes) > Bc or sum(sizes) > Nk:
        return AGAIN
    fewest = -(-Nk // Bc)
    return OTHER_TILES.format(len(sizes), fewest) if len(sizes) > fewest else None
