"""A pool of pages, shared by texts that grow, fork and end. It knows who holds which page; it holds no numbers.

A text of N tokens takes ceil(N / page) pages, wherever they are, so at most one page per text is not full. A fork holds
the same pages as the text it comes from; a page is copied when one of its holders writes to it.

Source: Kwon et al. 2023, arXiv 2309.06180 (PagedAttention), section 4.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Integral
from typing import NamedTuple


class PoolFull(MemoryError):
    """There are fewer free pages than are asked for. Nothing has changed."""


@dataclass
class Text:
    """The pages of one text, in order, and how many tokens it has."""

    pages: list[int] = field(default_factory=list)
    length: int = 0


class Room(NamedTuple):
    """Room for new tokens that a pool has and did not give away yet."""

    texts: dict[int, Text]  # the texts as they will be
    pages: list[int]  # free pages that they will take
    copies: list[tuple[int, int]]  # pairs (from, to) of pages: copies to make first


class Pool:
    """Pages of ``page`` tokens each, and the texts that hold them.

    Attributes:
        free: list of the pages that nobody holds; the last one is given out next.
        holders: how many texts hold each page.
        texts: dict of each ``Text`` by its number.
    """

    def __init__(self, pages: int, page: int):
        whole = isinstance(pages, Integral) and isinstance(page, Integral)
        if not whole or pages < 0 or not 1 <= page <= 256:
            raise ValueError(f"a pool has 0 or more pages of 1 to 256 tokens, got {pages!r:.40} of {page!r:.40}")
        self.page = page
        self.free = list(range(pages))[::-1]
        self.holders = [0] * pages
        self.texts: dict[int, Text] = {}
        self._next = 0

    def add(self) -> int:
        """Begin an empty text, which takes no page yet, and return its number."""
        self._next += 1
        self.texts[self._next] = Text()
        return self._next

    def fork(self, text: int) -> int:
        """Return the number of a new text that begins as this one is now, with the same pages."""
        self.known([text])
        new = self.add()
        self.texts[new] = Text(list(self.texts[text].pages), self.texts[text].length)
        for page in self.texts[text].pages:
            self.holders[page] += 1
        return new

    def drop(self, text: int) -> None:
        """End a text. Pages that no other text holds are free again."""
        self.known([text])
        for page in self.texts.pop(text).pages:
            self.holders[page] -= 1
            if self.holders[page] == 0:
                self.free.append(page)

    def extend(self, texts: Sequence[int], n: int) -> list[tuple[int, int]]:
        """Make room for n more tokens in each of these texts, all different.

        Returns the copies to make first: pairs (from, to) of pages. A text that shares its last page, if that is not
        full, gets a page of its own in its place.

        Raises:
            KeyError, ValueError: a text that does not exist or is named twice, or n is negative.
            PoolFull: the pages do not suffice. Nothing has changed then.
        """
        room = self.room(texts, n)
        self.take(room)
        return room.copies

    def room(self, texts: Sequence[int], n: int) -> Room:
        """Return the room that ``extend`` makes, and change nothing. Raises the errors of ``extend``."""
        self.known(texts)
        if len(set(texts)) < len(texts) or n < 0:
            raise ValueError(f"expected different texts and 0 or more tokens, got texts {list(texts)} and n = {n}")
        room, free, left, missing = Room({}, [], []), reversed(self.free), Counter(), 0
        for number in texts:
            pages, length = list(self.texts[number].pages), self.texts[number].length
            copied = n and length % self.page and self.holders[pages[-1]] - left[pages[-1]] > 1
            needed = -(-(length + n) // self.page) - len(pages) + bool(copied)
            taken = list(islice(free, needed))
            missing += needed - len(taken)
            if copied:
                left[pages[-1]] += 1
                room.copies.extend((pages[-1], page) for page in taken[:1])
                pages.pop()
            room.texts[number] = Text(pages + taken, length + n)
            room.pages.extend(taken)
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

    def known(self, texts: Sequence[int]) -> None:
        """Raise KeyError if one of these texts does not exist."""
        for text in texts:
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
