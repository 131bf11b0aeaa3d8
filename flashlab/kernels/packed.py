"""Packed texts: texts of different lengths, one after another without padding, and attention inside each.

All texts are one row for the kernels, and a mask keeps them apart: tiles in which no query and key share a text are
never visited. Masks and score functions count places from the first token of a text. Dropout counts them from
the first token of the row, so that the weights of one thread share a call of Philox wherever texts begin.
"""

import functools
import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashlab.kernels import masks, scores, tiles
from flashlab.kernels.attention import attend
from flashlab.kernels.device import stepped_around
from flashlab.kernels.masks import kinds, questions
from flashlab.kernels.masks.part import FARTHEST, Part
from flashlab.kernels.problem import whole_groups
from flashlab.machine.arguments import check_flag, shown

CACHED = 8  # texts whose preparation is cached
OWN = 128  # tokens: a multiple of all tiles that a packed call may have
_prepared = []  # (offsets_q, offsets_k, their versions, ``Texts``), the latest last


@stepped_around("flash_attention_packed")
def flash_attention_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    offsets_q: Tensor,
    offsets_k: Tensor | None = None,
    causal: bool = False,
    mask: masks.Window | masks.Rule | None = None,
    score: scores.Score | tuple[scores.Score, ...] | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    batch_invariant: bool = False,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention inside each of several texts. Without dropout, the results are those of a call per text.

    Args:
        q: queries [Tq, H, d] of all texts, one after another; k: keys [Tk, Hk, d]; v: values [Tk, Hk, dv].
        offsets_q: integers [texts + 1] from 0 to Tq that never decrease: text t has the queries offsets_q[t] to
            offsets_q[t + 1] - 1. offsets_k: the same for keys and values, offsets_q if None. A text may be empty.
        causal, mask, score, dropout, seed, sinks, scale, return_lse, kernel: as for ``flash_attention``. Tensors of
            masks and score functions have a batch per text, and their last dimensions are as long as the longest text.
        batch_invariant: O and lse of a text have the same bits whatever other texts are in the call. Each text then
            begins where a tile begins, after up to 127 zeros; masks are windows, scores soft caps, and there is no
            dropout. With offsets_k the default kernel is the portable one.

    Returns:
        O [Tq, H, dv], and with return_lse also lse [H, Tq].

    Raises:
        TypeError, ValueError: an argument is not as described.

    A NaN or an infinity in a text does not reach the others. The CPU reads offsets once and remembers them: in the next
    layer the same tensors cost nothing. They are read again after a change in place that torch counts. torch does not
    count changes through NumPy, ``.data``, a kernel of your own or a CUDA graph: after such a change, pass new tensors.
    """
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise ValueError(f"{name} must be a tensor [tokens, heads, width], got {shown(x)}")
    (_, H, d), (Tk, Hk, _) = q.shape, v.shape
    if k.shape != (Tk, Hk, d) or not whole_groups(H, Hk):
        expected = "q [Tq, H, d], k [Tk, Hk, d] and v [Tk, Hk, dv] with H a multiple of Hk"
        raise ValueError(f"expected {expected}, got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}")
    check_flag("return_lse", return_lse)
    check_flag("batch_invariant", batch_invariant)
    texts = prepared(offsets_q, offsets_q if offsets_k is None else offsets_k)
    of_keys = "offsets_q" if offsets_k is None else "offsets_k"
    for name, x, offsets, end in (("q", q, "offsets_q", texts.ends[0]), ("k", k, of_keys, texts.ends[1])):
        if len(x) != end:
            raise ValueError(f"{offsets} must end at {len(x)}, the number of tokens in {name}, got {end}")
        if x.device != offsets_q.device:
            raise ValueError(f"{name} must be on the device of its offsets, {offsets_q.device}, got {x.device}")
    if batch_invariant:
        check_own_tiles(mask, score)
        kernel = kernel if kernel or offsets_k is None else "portable"  # Hopper's needs a query for every key
        texts, places_q, places_k = texts.in_own_tiles
        q, k, v = (
            x.new_zeros(texts.ends[n], *x.shape[1:]).index_copy(0, places, x)
            for n, places, x in ((0, places_q, q), (1, places_k, k), (1, places_k, v))
        )
    O, lse = attend(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), texts=texts, causal=causal, mask=mask, score=score,
        dropout=dropout, seed=seed, sinks=sinks, scale=scale, return_lse=True, batch_invariant=batch_invariant,
        kernel=kernel,
    )  # fmt: skip
    O, lse = O[0].transpose(0, 1), lse[0]
    if batch_invariant:
        O, lse = O[places_q], lse[:, places_q]
    return (O, lse) if return_lse else O


def check_own_tiles(mask, score):
    """Raise ValueError if a batch-invariant call has a mask or a score function with a batch per text."""
    if not (mask is None or isinstance(mask, masks.Window)) or not (score is None or isinstance(score, scores.Softcap)):
        raise ValueError("batch_invariant=True takes windows as masks and a soft cap as score in packed calls")


def prepared(offsets_q, offsets_k):
    """Return the ``Texts`` of these offsets, the same object for the same tensors until they change."""
    for name, x in {"offsets_q": offsets_q, "offsets_k": offsets_k}.items():
        kinds.integers(x, name, (1,))
    if offsets_q.is_inference() or offsets_k.is_inference():
        return Texts(offsets_q, offsets_k)  # torch does not count the changes of such tensors
    versions = offsets_q._version, offsets_k._version
    for q, k, of, texts in _prepared:
        if q is offsets_q and k is offsets_k and of == versions:
            return texts
    texts = Texts(offsets_q, offsets_k)
    _prepared.append((offsets_q, offsets_k, versions, texts))
    del _prepared[:-CACHED]
    return texts


class Texts:
    """The begins and ends of texts, and the masks that keep texts apart."""

    def __init__(self, offsets_q, offsets_k):
        both = kinds.starts(offsets_q, "offsets_q"), kinds.starts(offsets_k, "offsets_k")
        if len(both[0]) != len(both[1]):
            found = " and ".join(str(len(x) - 1) for x in both)
            raise ValueError(f"offsets_q and offsets_k must have the same number of texts, got {found}")
        self.starts = both
        self.ends = both[0][-1], both[1][-1]
        self.count = len(both[0]) - 1
        self.longest = tuple(max((b - a for a, b in zip(x, x[1:], strict=False)), default=0) for x in both)
        self.square = both[0] == both[1]
        self.first = tuple(x.to(torch.int32, copy=True) for x in (offsets_q, offsets_k))  # [texts + 1] each
        of = (kinds.owners(x, end).int() for x, end in zip((offsets_q, offsets_k), self.ends, strict=True))
        self.of = tuple(of)  # [Tq], [Tk]: the text of each token
        self._masks = {}

    @property
    def kernel_args(self):
        """The kernel arguments of the texts."""
        return *self.of, *self.first

    @functools.cached_property
    def in_own_tiles(self):
        """These texts, each with a text of zeros after it up to a multiple of OWN tokens, and where tokens go.

        Returns the ``Texts``, and the new places of the queries [Tq] and of the keys [Tk].
        """
        offsets, places = [], []
        for starts, of, first in zip(self.starts, self.of, self.first, strict=True):
            begins = [0, *itertools.accumulate(tiles.count(b - a, OWN) * OWN for a, b in itertools.pairwise(starts))]
            ends = [begin + b - a for begin, (a, b) in zip(begins, itertools.pairwise(starts), strict=False)]
            both = [0, *itertools.chain.from_iterable(zip(ends, begins[1:], strict=True))]
            offsets.append(torch.tensor(both, dtype=torch.int32, device=first.device))
            moved = torch.tensor(begins, device=first.device) - first  # [texts + 1]
            places.append(torch.arange(len(of), device=of.device) + moved[of.long()])
        return Texts(*offsets), *places

    def apart(self, mask):
        """Return the mask by which a query sees the keys of its own text that ``mask`` shows inside this text."""
        key = mask if isinstance(mask, masks.Window) else id(mask)
        if key not in self._masks:
            if len(self._masks) >= CACHED:
                self._masks.clear()
            self._masks[key] = mask, masks.Rule(((InTexts(self, mask),),))  # the mask too, so that its id is not reused
        return self._masks[key][1]


class InTexts(Part):
    """Keys of the query's own text that a mask shows inside this text."""

    keeps_apart = True

    def __init__(self, texts, mask):
        self.texts, self.mask = texts, mask
        self.tensors = mask.tensors
        self.shows_own_key = texts.square and mask.shows_own_key

    def alone(self, problem):
        """Return the problem with texts as batches, for the mask inside texts."""
        return problem._replace(B=self.texts.count, Nq=self.texts.longest[0], Nk=self.texts.longest[1], texts=None)

    def check(self, problem):
        self.mask.check(self.alone(problem))

    def tiles(self, grid):
        of_q, of_k = self.texts.of
        first_q, first_k = self.texts.first
        low, high = (x[:, None] for x in kinds.extremes(of_q, grid.Br))  # [Tr, 1] each
        first, last = kinds.extremes(of_k, grid.Bc)  # [Tc] each
        met = (low <= last) & (first <= high)  # [Tr, Tc]
        whole = (low == high) & (first == last) & (low == first)
        if not self._in_window:
            return met, whole & False
        of_q = of_q.long()
        own = torch.arange(len(of_q), device=of_q.device) + first_k[of_q + 1] - first_q[of_q + 1]  # [Tq]
        least, most = (x[:, None] for x in kinds.extremes(own, grid.Br))  # [Tr, 1]
        left, right = (FARTHEST if end is None else end for end in self.mask)
        met = met & (grid.j + grid.Bc > least - left) & (grid.j <= most + right)
        return met, whole & (grid.j >= most - left) & (grid.j + grid.Bc - 1 <= least + right)

    def interval(self, problem):
        return self._ends(self.texts.of[1], *self.texts.first[::-1], *self.mask[::-1]) if self._in_window else None

    def keys(self, problem):
        return self._ends(self.texts.of[0], *self.texts.first, *self.mask) if self._in_window else None

    @property
    def _in_window(self):
        return isinstance(self.mask, masks.Window)

    def _ends(self, of, first, first_other, before, after):
        """Return the first and the last token of the other kind that each token sees, or is seen by: [1, tokens] each.

        of: the text of each token. first, first_other: where texts begin, among tokens of its kind and of the other.
        before, after: the largest distances from its own place; None: up to the ends of the text.
        """
        text = of.long()  # [tokens]
        own = torch.arange(len(text), device=text.device) + first_other[text + 1] - first[text + 1]  # [tokens]
        before, after = (FARTHEST if end is None else end for end in (before, after))
        begin = torch.maximum(own - before, first_other[text])  # [tokens]
        return begin[None], torch.minimum(own + after, first_other[text + 1] - 1)[None]

    def function(self, problem):
        return in_text, self.texts.kernel_args, self.mask.functions(self.alone(problem))


@triton.jit
def in_text(b, h, i, j, Nq, Nk, texts, rules):
    """Return whether query i and key j belong to one text, and the rules let i see j there."""
    same = tl.load(texts[0] + i) == tl.load(texts[1] + j)
    t, i, j, Nq, Nk = scores.places(texts, b, i, j, Nq, Nk)
    return same & questions.obeyed(rules, t, h, i, tl.minimum(j, tl.maximum(Nk - 1, 0)), Nq, Nk)
