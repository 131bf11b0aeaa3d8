"""Scores arrive block by block; (m, l, O) is all that is kept.

Kills the belief that a softmax needs the whole row before it can begin: after each block the kept numbers already are
the softmax of what has come, and a larger maximum costs one factor, not a second look at the past.
"""

from dataclasses import dataclass

import numpy as np

from figures import controls, style
from figures.controls import Choose, Scrub, Slide
from flashlab import captured, online
from flashlab.attention import attention

ROW = 16  # scores on the picture


@dataclass(frozen=True)
class State:
    """``step`` blocks of ``block`` scores have come, of ``blocks`` in all, from ``source``."""

    step: int = 2
    blocks: int = 4
    block: int = 4
    source: str = "real"


def scores(state):
    """The row of scores [n] and a value for each [n, 1]: a real query on a real sentence, or a made-up row."""
    n = state.blocks * state.block
    if state.source == "real":
        Q, K, V = captured.load("bank").head()
        row = (Q[captured.BANK] @ K.T / np.sqrt(Q.shape[1]))[:n]  # [n]
        return row.astype(np.float32), V[:n, :1].astype(np.float32)
    if state.source == "rising":
        row = np.linspace(-2, 4, n)  # [n]
    elif state.source == "falling":
        row = np.linspace(4, -2, n)  # [n]
    else:  # "masked first block"
        row = np.linspace(-2, 4, n)
        row[: state.block] = -np.inf
    return row.astype(np.float32), np.linspace(-1, 1, n, dtype=np.float32)[:, None]
