"""``PagedCache``: keys and values of many texts in pages of one ``Pool``, as ``decode`` reads them.

A text of N tokens takes ceil(N / page) pages, wherever they are, so at most one page per text is not full. A fork holds
the same pages as the text it comes from; a page is copied when one of its holders writes to it.

Source: Kwon et al. 2023, arXiv 2309.06180 (PagedAttention), section 4.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from flashlab.kernels.checks import check_dense, check_local, check_no_gradient, check_place
from flashlab.kernels.decode.cache import LARGEST, Cache, check_widths, quantise
from flashlab.kernels.device import DEVICE
from flashlab.kernels.problem import DTYPES
from flashlab.machine.arguments import check_flag, check_whole, shown
from flashlab.machine.numbers import whole_number

MOST_PAGES, LONGEST_PAGE = 2**31 - 1, 256  # tables number pages in int32


class PoolFull(MemoryError):
    """There are too few free pages. Nothing has changed."""


@dataclass
class Text:
    """The pages of one text, in order, and how many tokens it has."""

    pages: list[int] = field(default_factory=list)
    length: int = 0


class Room(NamedTuple):
    """Room for new tokens in a pool, not yet taken."""

    texts: dict[int, Text]  # the texts as they will be
    pages: list[int]  # free pages that they will take
    copies: list[tuple[int, int]]  # pairs (from, to) of pages: copies to make first


class Pool:
    """Pages of ``page`` tokens each, and the texts that hold them.

    Attributes:
        free: list of the pages that no text holds; the last page is handed out next.
        holders: how many texts hold each page.
        texts: dict of each ``Text`` by its number.
    """

    def __init__(self, pages: int, page: int):
        count, self.page = check_whole("pages", pages, 0, MOST_PAGES), check_whole("page", page, 1, LONGEST_PAGE)
        self.free = list(range(count))[::-1]
        self.holders = [0] * count
        self.texts: dict[int, Text] = {}
        self._next = 0

    def add(self) -> int:
        """Begin an empty text, which takes no page yet, and return its number."""
        self._next += 1
        self.texts[self._next] = Text()
        return self._next

    def fork(self, text: int) -> int:
        """Return the number of a new text that begins as this one is now, with the same pages."""
        self.check([text])
        new = self.add()
        self.texts[new] = Text(list(self.texts[text].pages), self.texts[text].length)
        for page in self.texts[text].pages:
            self.holders[page] += 1
        return new

    def drop(self, text: int) -> None:
        """End a text. Pages that no other text holds are free again."""
        self.check([text])
        for page in self.texts.pop(text).pages:
            self.holders[page] -= 1
            if self.holders[page] == 0:
                self.free.append(page)

    def extend(self, texts: Sequence[int], n: int) -> list[tuple[int, int]]:
        """Make room for n more tokens in each of these texts, all different.

        Returns the copies to make first: pairs (from, to) of pages. A text that shares its last page, if that is not
        full, gets a page of its own in its place.

        Raises:
            KeyError, ValueError: a text that does not exist or is named twice, or n is not a whole number from 0 on.
            PoolFull: the pages do not suffice. Nothing has changed then.
        """
        room = self.room(texts, n)
        self.take(room)
        return room.copies

    def room(self, texts: Sequence[int], n: int) -> Room:
        """Return the room that ``extend`` makes, and change nothing. Raises the errors of ``extend``."""
        self.check(texts)
        check_whole("n", n, 0)
        if len(set(texts)) < len(texts):
            raise ValueError(f"texts must be different, got {list(texts)}")
        room, free, left, missing = Room({}, [], []), reversed(self.free), Counter(), 0
        for number in texts:
            pages, length = list(self.texts[number].pages), self.texts[number].length
            copied = n and length % self.page and self.holders[pages[-1]] - left[pages[-1]] > 1
            needed = -(-(length + n) // self.page) - len(pages) + bool(copied)
            fresh = list(islice(free, needed))
            missing += needed - len(fresh)
            if copied:
                left[pages[-1]] += 1
                room.copies.extend((pages[-1], page) for page in fresh[:1])
                pages.pop()
            room.texts[number] = Text(pages + fresh, length + n)
            room.pages.extend(fresh)
        if missing > 0:
            raise PoolFull(
                f"{n} more tokens in {len(texts)} texts need {missing} more pages of {self.page} than are free"
            )
        return room

    def take(self, room: Room) -> None:
        """Give the texts the room that ``room`` returned, if the pool has not changed since."""
        for old, _ in room.copies:
            self.holders[old] -= 1  # another text still holds it
        for page in room.pages:
            self.free.pop()
            self.holders[page] = 1
        self.texts.update(room.texts)

    def places(self, text: Text, n: int) -> list[tuple[int, int]]:
        """Return (page, row) of each of the last n tokens of a text."""
        return [(text.pages[j // self.page], j % self.page) for j in range(text.length - n, text.length)]

    def check(self, texts: Sequence[int]) -> None:
        """Raise TypeError if this is no list of numbers of texts, KeyError if one of these texts does not exist."""
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise TypeError(f"texts must be a list of numbers of texts, got {type(texts).__name__}")
        for text in texts:
            if whole_number(text) is None:
                raise TypeError(f"texts have whole numbers, which add returns, got {shown(text)}")
            if text not in self.texts:
                raise KeyError(f"there is no text {text!r:.40}: it was never added, or it has ended")

    @property
    def tokens(self) -> int:
        """Tokens in the pages that are held, each page counted once."""
        filled: dict[int, int] = {}
        for text in self.texts.values():
            for i, page in enumerate(text.pages):
                filled[page] = min(text.length - i * self.page, self.page)
        return sum(filled.values())


class PagedCache:
    """Keys and values of one layer, in pages of 1 to 256 tokens.

    Args:
        pages, page: how many pages there are, and tokens per page.
        Hk: key/value heads; d, dv: columns of a key and of a value, dv = d if None.
        dtype: of the stored numbers: float16, bfloat16 or float32; or float8_e4m3fn or int8, to which they are rounded
            with a scale per token and head.
        latent: store no values: they are the first dv columns of the keys.
        device: of the pages; the device of the kernels if None.

    The attribute ``pool``, a ``Pool``, does the bookkeeping: ``add``, ``fork`` and ``drop`` are its methods.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """

    def __init__(
        self,
        pages: int,
        page: int,
        Hk: int,
        d: int,
        dv: int | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        latent: bool = False,
        device: torch.device | None = None,
    ):
        check_flag("latent", latent)
        dv = d if dv is None else dv
        Hk, d, dv = check_whole("Hk", Hk), check_whole("d", d), check_whole("dv", dv)
        if latent and dv > d:
            raise ValueError(f"the values of a latent cache are columns of its keys: dv is at most d = {d}, got {dv}")
        check_widths(d, dv, latent)
        if dtype not in (*DTYPES, *LARGEST):
            expected = ", ".join(str(it).removeprefix("torch.") for it in (*DTYPES, *LARGEST))
            raise TypeError(f"dtype must be one of {expected}, got {shown(dtype)}")
        device = DEVICE if device is None else check_place(device)
        self.pool = Pool(pages, page)
        self.K = torch.zeros(pages, Hk, page, d, dtype=dtype, device=device)
        self.V = self.K[..., :dv] if latent else torch.zeros(pages, Hk, page, dv, dtype=dtype, device=device)
        scales = 2, pages, Hk, page
        self.scales = torch.zeros(scales, dtype=torch.float32, device=device) if dtype in LARGEST else None
        self.latent = latent
        self.add, self.fork, self.drop = self.pool.add, self.pool.fork, self.pool.drop

    def append(self, texts: Sequence[int], K: Tensor, V: Tensor | None = None) -> None:
        """Append n tokens to each of B texts.

        Args:
            texts: numbers of texts, all different.
            K: keys of the new tokens [B, Hk, n, d]; V: their values [B, Hk, n, dv], None in a latent cache.

        Raises:
            KeyError, TypeError, ValueError: an unknown text, one named twice, or tensors of another shape or kind.
            NotImplementedError: a tensor requires a gradient, which the cache does not pass on.
            PoolFull: the pages do not suffice. In all cases the cache is as it was.
        """
        self.pool.check(texts)
        self._check(len(texts), K, V)
        n = K.shape[2]
        room = self.pool.room(texts, n)  # taken at the end: an error before that changes no text
        for old, new in room.copies:
            for saved, dim in self._saved():
                saved.select(dim, new).copy_(saved.select(dim, old))
        places = torch.tensor([self.pool.places(text, n) for text in room.texts.values()], dtype=torch.int64)
        places = places.to(self.K.device).reshape(-1, 2)
        numbers, rows = places.unbind(1)  # [B n], [B n]
        for i, (x, saved) in enumerate([(K, self.K)] if self.latent else [(K, self.K), (V, self.V)]):
            x = x.transpose(1, 2).flatten(0, 1)  # [B n, Hk, d]
            if self.scales is not None:
                x, scale = quantise(x, saved.dtype)  # [B n, Hk, d], [B n, Hk]
                x, saved = x.view(torch.uint8), saved.view(torch.uint8)  # torch cannot scatter every dtype of 8 bits
                for j in (0, 1) if self.latent else (i,):
                    self.scales[j, numbers, :, rows] = scale
            saved[numbers, :, rows] = x
        self.pool.take(room)

    def view(self, texts: Sequence[int]) -> Cache:
        """Return the ``Cache`` of these texts for ``decode``: the pages themselves, a table and lengths. No copy.

        A view is valid until one of its texts is dropped: then the pages go to other texts, and show the keys of these.

        Raises KeyError for a text that does not exist.
        """
        self.pool.check(texts)
        lists = [self.pool.texts[text].pages for text in texts]
        widest = max(map(len, lists), default=0)
        table = [pages + [0] * (widest - len(pages)) for pages in lists]  # the zeros are never read
        lengths = [self.pool.texts[text].length for text in texts]
        table, lengths = (torch.tensor(it, dtype=torch.int32, device=self.K.device) for it in (table, lengths))
        return Cache(self.K, self.V, table.reshape(len(lists), widest), lengths, self.scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, and of scales."""
        return sum(saved.nbytes for saved, _ in self._saved())

    def _check(self, B, K, V):
        """Raise TypeError or ValueError if these cannot be keys and values of new tokens in B texts."""
        if self.latent and V is not None:
            raise ValueError("a latent cache keeps keys only: their first columns are the values")
        named = {"K": (K, self.K)} if self.latent else {"K": (K, self.K), "V": (V, self.V)}
        tensors = {name: x for name, (x, _) in named.items()}
        check_dense(**tensors)
        check_local(**tensors)
        check_no_gradient("PagedCache.append", **tensors)
        for name, (x, saved) in named.items():
            if x.device != saved.device:
                raise ValueError(f"{name} must be on {saved.device}, where the pages are, got {x.device}")
            if self.scales is None and x.dtype != saved.dtype:
                raise TypeError(f"the cache stores {saved.dtype}, got {name} in {x.dtype}")
            if not x.is_floating_point():
                raise TypeError(f"{name} must be a floating-point tensor, got {x.dtype}")
            n = K.shape[2] if K.ndim == 4 else "n"
            if x.shape != (B, saved.shape[1], n, saved.shape[3]):
                expected = f"[{B}, {saved.shape[1]}, {n}, {saved.shape[3]}]"
                raise ValueError(f"expected {name} {expected}, got {list(x.shape)}")

    def _saved(self):
        """Return each tensor that pages have a part of, with the dimension that counts the pages."""
        parts = [(self.K, 0), (None if self.latent else self.V, 0), (self.scales, 1)]
        return [(saved, dim) for saved, dim in parts if saved is not None]
