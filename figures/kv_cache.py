"""A pool of pages, and conversations that grow, fork and end in it: who holds which page, and how much is wasted.

Kills the belief that the cache of a text is one long tensor: it is wherever there is room, and some of it is shared.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from figures.explore import explorer
from figures.figure import Scrub, Slide, Toggle, line
from figures.style import times
from flashlab.kernels.decode.paged import Pool
from flashlab.reference import the_cache

TOKENS, LONGEST = 64, 24  # tokens of the pool, and of the longest text that might come
SCRIPT = (  # what happens, to which text, with how many tokens
    ("begins", "A", 7), ("begins", "B", 5), ("grows", "A", 6), ("forks from A", "C", 0), ("grows", "C", 3),
    ("grows", "A", 2), ("grows", "B", 9), ("ends", "B", 0), ("begins", "D", 11), ("grows", "C", 4), ("ends", "A", 0),
    ("grows", "D", 5),
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """The pool after ``step`` events, in pages of ``page`` tokens; ``sharing``: a fork shares its pages."""

    step: int = 4
    page: int = 4
    sharing: bool = True


@cache
def _trace(page: int, sharing: bool) -> dict[str, Any]:
    pool, numbers, steps = Pool(TOKENS // page, page), {}, []
    moments = [("the pool is empty", "", 0), *SCRIPT]
    for what, name, n in moments:
        copies, before = [], pool.tokens
        if what == "begins":
            numbers[name] = pool.add()
            pool.extend([numbers[name]], n)
        elif what == "grows":
            copies = pool.extend([numbers[name]], n)
        elif what == "ends":
            pool.drop(numbers.pop(name))
        elif name:
            numbers[name] = pool.fork(numbers["A"]) if sharing else pool.add()
            if not sharing:
                pool.extend([numbers[name]], pool.texts[numbers["A"]].length)
        texts = {name: pool.texts[number] for name, number in numbers.items()}
        steps.append(
            {
                "what": f"{name} {what}" + (f" by {n}" if what == "grows" else "") if name else what,
                "texts": [{"name": name, "length": it.length, "pages": list(it.pages)} for name, it in texts.items()],
                "copies": [list(pair) for pair in copies],
                "copied": pool.tokens - before - n if copies else 0,
                "free": len(pool.free),
                "tokens": pool.tokens,
                "held": (len(pool.holders) - len(pool.free)) * page,
                "rooms": the_cache.reserved([it.length for it in texts.values()], longest=LONGEST),
            }
        )
    code = line(Pool.room, "room.copies.extend(")
    return {"page": page, "pages": TOKENS // page, "sharing": sharing, "longest": LONGEST, "steps": steps, "code": code}


def trace(state: State) -> dict:
    """Return the pool after each event: the pages of each text, pages copied, and tokens kept and reserved.

    ``copied``: the tokens in the pages copied; ``tokens``: those in held pages, each page counted once; ``held``: the
    room of these pages; ``rooms``: the room of the same texts without pages, ``LONGEST`` tokens each.
    """
    return _trace(state.page, state.sharing)


def describe(state: State) -> str:
    """Say what happened, how many tokens are kept, the room for them with and without pages, and the free pages."""
    numbers = trace(state)
    now = numbers["steps"][state.step]
    copied = "".join(
        f" Page {source} is copied to {to} first, with {times(now['copied'], 'token')}." for source, to in now["copies"]
    )
    rooms = f"{now['rooms']} without pages" + (", more than there is" if now["rooms"] > TOKENS else "")
    return (
        f"{now['what'][0].upper()}{now['what'][1:]}.{copied} {now['tokens']} tokens take room for {now['held']} in "
        f"pages of {state.page}{'' if state.sharing else ' that are not shared'}, {rooms}; {now['free']} pages "
        "are free."
    )


CONTROLS = {
    "step": Scrub(lambda state: len(SCRIPT), "event"),
    "page": Slide((1, 2, 4, 8, 16), "tokens per page"),
    "sharing": Toggle("forks share pages"),
}
explore = explorer(__name__)
