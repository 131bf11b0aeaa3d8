"""Packed texts: texts of different lengths in one row, [T, d], without padding.

``offsets`` say where each text begins, and where the last one ends: text n has the rows offsets[n] to offsets[n + 1].
FlashAttention calls them ``cu_seqlens``. Queries and keys of a text may differ in number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashlab.machine.arguments import check_arguments
from flashlab.machine.memory import Memory
from flashlab.reference.dropout import Dropout
from flashlab.reference.masks import count
from flashlab.reference.rules import PLAIN, Rules
from flashlab.reference.tiling import Output, fa2_forward


@check_arguments(lengths=0)
def offsets(lengths: Sequence[int]) -> np.ndarray:
    """Return the offsets [texts + 1] of texts of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=int)])


@check_arguments()
def forward(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    offsets_q: np.ndarray,
    offsets_k: np.ndarray,
    Br: int,
    Bc: int,
    rules: Rules = PLAIN,
    *,
    memory: Memory | None = None,
) -> Output:
    """Compute attention inside each text: tiles begin where a text begins, and no tile has two texts.

    Args:
        Q: queries [T, d]; K, V: keys and values [Tk, d], [Tk, dv]; offsets_q, offsets_k: as from ``offsets``.
        rules: for every text. Masks and score functions count positions in the text; dropout counts them in the row,
            so texts drop different pairs.
        Br, Bc, memory: as for ``tiling.fa2_forward``.

    Returns O [T, dv] and lse [T]. Raises ValueError for offsets that do not fit the rows.
    """
    check("Q", len(Q), offsets_q)
    check("K", len(K), offsets_k)
    check("V", len(V), offsets_k)
    if len(offsets_q) != len(offsets_k):
        raise ValueError(
            f"expected as many texts of keys as of queries, got {len(offsets_k) - 1}, {len(offsets_q) - 1}"
        )
    memory = Memory(record=False) if memory is None else memory
    parts = []
    for n in range(len(offsets_q) - 1):
        rows, keys = slice(*offsets_q[n : n + 2]), slice(*offsets_k[n : n + 2])
        shifted: Any = None if rules.dropout is None else Shifted(rules.dropout, rows.start, keys.start)
        own = replace(rules, dropout=shifted)
        parts.append(fa2_forward(Q[rows], K[keys], V[keys], Br, Bc, own, memory=memory))
    O, lse = zip(*parts, strict=True)
    return np.concatenate(O), np.concatenate(lse)


def check(name: str, rows: int, offsets: np.ndarray) -> None:
    """Raise ValueError unless these are the offsets of texts in this number of rows."""
    whole = np.ndim(offsets) == 1 and len(offsets) > 0 and np.issubdtype(np.asarray(offsets).dtype, np.integer)
    if not whole or offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 0).any():
        raise ValueError(
            f"offsets of {name} must begin with 0, not decrease, and end with its {rows} rows, got {offsets}"
        )


@dataclass(frozen=True)
class Shifted:
    """The dropout of a text whose queries begin in row ``row`` of the whole matrix, and its keys in column ``col``."""

    dropout: Dropout
    row: int
    col: int

    def tile(self, rows: slice, cols: slice, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """Return the factors [Br, Bc], as ``Dropout.tile`` does, of slices that count from the text's beginning."""
        rows = slice(rows.start + self.row, rows.stop + self.row)
        return self.dropout.tile(rows, slice(cols.start + self.col, cols.stop + self.col), dtype)


@check_arguments()
def work(offsets_q: np.ndarray, Br: int) -> np.ndarray:
    """Return the tiles of queries of all texts [tiles, 3]: the text, and the first row and one past the last in it."""
    check("Q", offsets_q[-1], offsets_q)
    lengths = np.diff(offsets_q)
    return np.array(
        [(n, i * Br, min((i + 1) * Br, N)) for n, N in enumerate(lengths) for i in range(count(int(N), Br))]
    ).reshape(-1, 3)
