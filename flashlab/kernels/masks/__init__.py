"""Masks: which queries see which keys. A mask answers three questions, the only ones that a loop over tiles has.

met      Which tiles does some query of a tile see? All other tiles are never loaded.
whole    Which of these tiles does every query see in full? They need no mask.
visible  Which scores of the remaining tiles count? This is the definition.

A ``Window`` answers by arithmetic: a tile of queries sees one interval of keys. Every other mask is a ``Rule``: a
function in Triton decides on each pair of a query and a key, and the visible tiles are listed before the launch.
``&`` and ``|`` combine masks: they apply ``&`` and ``|`` to the answers to each question. A mask has no truth value, so
``and`` and ``or`` raise a TypeError.

The names and the convention are those of ``reference.masks``. Masks are aligned at the lower right: query i is at the
position i + Nk - Nq among the keys. Both ends of a window are inclusive, and a query's own key counts: Hugging Face's
"window of W" is ``window(W - 1)``, FlashAttention's ``window_size`` is ``window(left, right)``.
"""

import math

import torch
from triton import JITFunction

from flashlab.kernels.masks.algebra import EXPECTED, Rule, Window, outside_graphs
from flashlab.kernels.masks.kinds import Custom, Documents, First, Padding, Pattern, owners, starts
from flashlab.kernels.masks.part import FARTHEST
from flashlab.machine.arguments import shown
from flashlab.machine.numbers import whole_number

__all__ = [
    "Rule",
    "Window",
    "blocks",
    "causal",
    "custom",
    "dense",
    "documents",
    "either",
    "full",
    "padding",
    "prefix",
    "sinks",
    "window",
]


def full() -> Window:
    """Return the mask that hides nothing."""
    return Window()


def causal() -> Window:
    """Return the mask by which query i sees the keys j <= i + Nk - Nq: its own key and all keys before it."""
    return Window(right=0)


def window(left: float, right: float = 0) -> Window:
    """Return the mask by which a query sees ``left`` keys before its own key, that key, and ``right`` keys after it.

    left, right: whole numbers from 0 on, or ``math.inf`` for no end.

    Raises:
        ValueError: an end is neither.
    """
    return Window(_end("left", left), _end("right", right))


@outside_graphs
def documents(ids: torch.Tensor | None = None, *, offsets: torch.Tensor | None = None) -> Rule:
    """Return the mask by which a query sees the keys of its own document.

    ids: integers [Nk] or [B, Nk], the document of each key; or else offsets, integers [documents + 1]: document n has
    the keys offsets[n] to offsets[n + 1] - 1. Offsets begin with 0, never decrease, and are read once. Query i is in
    the document of the key at its position. Documents are usually combined: ``documents(ids) & causal()``.

    Raises:
        TypeError, ValueError: both or neither are passed, they are not integers, or the offsets are not as described.
    """
    if (ids is None) == (offsets is None):
        raise TypeError(f"documents takes either ids or offsets, got {'neither' if ids is None else 'both'}")
    if ids is None:
        return _rule(Documents(owners(offsets, starts(offsets, "offsets")[-1]), of_offsets=True))  # [Nk]
    return _rule(Documents(ids))


@outside_graphs
def sinks(n: int) -> Rule:
    """Return the mask by which every query sees the first n keys and no others, to combine by ``|`` and ``&``.

    ``causal() & (window(W - 1) | sinks(4))`` is the mask of StreamingLLM.
    """
    return _rule(First(n))


@outside_graphs
def prefix(n: int) -> Rule:
    """Return the mask of a prefix language model: every query sees the first n keys; all else is causal."""
    return _rule(First(n)) | causal()


@outside_graphs
def padding(lengths: torch.Tensor) -> Rule:
    """Return the mask by which the queries of batch b see the first lengths[b] keys.

    lengths: integers [B] from 0 to Nk. A call on the CPU raises ValueError for any others. A call on a GPU does not
    read them before it starts: there a negative length counts as 0, and one above Nk as Nk.
    """
    return _rule(Padding(lengths))


@outside_graphs
def blocks(kept: torch.Tensor, Br: int, Bc: int) -> Rule:
    """Return the mask that keeps or hides whole tiles of Br x Bc scores (block-sparse attention).

    kept: boolean [.., Tr, Tc], True where the tile counts; dimensions before these are heads, and batches. The kernels'
    tiles may have other sizes.

    Source: FlashAttention, section 3.3.
    """
    return _rule(Pattern(kept, Br, Bc))


@outside_graphs
def dense(seen: torch.Tensor) -> Rule:
    """Return the mask of a whole matrix: boolean, broadcastable to [B, H, Nq, Nk], True where a key is seen."""
    return _rule(Pattern(seen, 1, 1))


@outside_graphs
def custom(visible: JITFunction, *arguments: torch.Tensor | float) -> Rule:
    """Return a mask of your own.

    visible: a ``@triton.jit`` function (b, h, i, j, Nq, Nk, *arguments) that returns whether query i sees key j, where
        i and j are blocks of places that broadcast, such as [Br, 1] and [1, Bc], always below Nq and Nk; b is a number,
        and so is h, but in ``decode`` h is a block as i is. It returns booleans, or the integers 0 and 1. Floats raise
        TypeError, and so do other integers in the interpreter; on a GPU all integers but 0 count as visible.
    arguments: tensors, which the function receives as pointers, and numbers.

    No tile is skipped unless another mask says so: ``custom(...) & window(100)``.
    """
    return _rule(Custom(visible, arguments))


def either(causal_mask: bool, mask: Window | Rule | None) -> Window | Rule:
    """Return the mask of the arguments ``causal`` and ``mask`` of a call.

    Raises:
        TypeError, ValueError: causal is not a bool, mask is not of this module, or both are passed.
    """
    if not isinstance(causal_mask, bool):
        raise TypeError(f"causal must be True or False, got {shown(causal_mask)}")
    if mask is None:
        return causal() if causal_mask else full()
    if not isinstance(mask, (Window, Rule)):
        raise TypeError(f"mask must be None or {EXPECTED}, got {shown(mask)}")
    if causal_mask:
        raise ValueError("causal=True is short for mask=masks.causal(): give one of the two, or masks.causal() & mask")
    return mask


def _rule(part):
    return Rule(((part,),))


def _end(name, end):
    if isinstance(end, float) and end == math.inf:
        return None
    n = whole_number(end)
    if n is None or n < 0:
        raise ValueError(f"{name} must be a whole number from 0 on, or math.inf, got {shown(end)}")
    return min(n, FARTHEST)
