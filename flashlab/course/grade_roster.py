"""Read the list of a class, and find the hand-in of each learner.

The list is a CSV file with a header, as a learning platform exports it. A learner is a row; the name is in the columns
of the first and the last name, or in one column. The other columns, such as an ID and an e-mail address, go to the
tables. A file of names alone, one in a line, needs no header.
"""

import csv
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from flashlab.course.grade_files import HandIn

FIRST, LAST = ("first name",), ("last name", "surname")
WHOLE = "full name", "name", "learner"
UNDECIDED = "the name does not decide whose entry it is"


class Learner(NamedTuple):
    """A learner: the name, and the other columns of the list of the class."""

    name: str
    columns: tuple[str, ...] = ()


class Roster(NamedTuple):
    """The list of a class."""

    heads: tuple[str, ...] = ()  # of each learner's columns
    learners: tuple[Learner, ...] = ()


class Member(NamedTuple):
    """A learner with the hand-in, None if there is none, and a note where a name does not decide whose it is."""

    learner: Learner
    hand_in: HandIn | None
    note: str = ""


def roster(file: Path) -> Roster:
    """Return the list in a CSV file. Raises OSError or ValueError if it cannot be read, or has no column of names."""
    text = file.read_text(encoding="utf-8-sig")
    separator = max(",;\t", key=text.partition("\n")[0].count)  # a spreadsheet may write semicolons
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), delimiter=separator) if any(row)]
    heads = [head.casefold() for head in rows[0]] if rows else []
    if len(heads) < 2:
        return Roster((), tuple(Learner(row[0]) for row in rows[any(head in WHOLE for head in heads) :]))
    names = [_column(heads, FIRST), _column(heads, LAST)]
    names = names if None not in names else [_column(heads, WHOLE)]
    if names == [None]:
        raise ValueError(f"{file} needs the columns First name and Last name, or Full name, got: {', '.join(rows[0])}")
    others = [at for at in range(len(heads)) if at not in names]
    padded = [row + [""] * (len(heads) - len(row)) for row in rows]
    learners = [Learner(" ".join(row[at] for at in names), tuple(row[at] for at in others)) for row in padded[1:]]
    return Roster(tuple(rows[0][at] for at in others), tuple(dict.fromkeys(learners)))


def members(hand_ins: list[HandIn], learners: Iterable[Learner]) -> list[Member]:
    """Return the learners of the list, each with the hand-in, then the owners of all other hand-ins.

    An entry belongs to the learner of its name, or to the one that has the entry's whole name in another column. Where
    entries or learners share a name, the number in an entry's name decides, if a column has it.
    """
    learners = tuple(learners)
    named, sharing = defaultdict(list), Counter(_words(it.name) for it in learners)
    for it in hand_ins:
        named[_words(it.learner)].append(it)
    result, assigned = [], []
    for learner in learners:
        key = _words(learner.name)
        own = [it for it in hand_ins if it.learner in learner.columns] or named[key]
        if len(named[key]) > 1 or sharing[key] > 1:
            cells = {*learner.columns, *(word for cell in learner.columns for word in cell.split())}
            own = [it for it in own if not cells.isdisjoint((it.learner, it.number))]
        if len(own) == 1:
            assigned += own
            result.append(Member(learner, own[0]))
        else:
            result.append(Member(learner, None, UNDECIDED if named[key] else "nothing handed in"))
    for it in (it for it in hand_ins if it not in assigned):
        key = _words(it.learner)
        learner = Learner(f"{it.learner} {it.number}".rstrip() if len(named[key]) > 1 else it.learner)
        note = UNDECIDED if sharing[key] else "not in the list of the class" if learners else ""
        result.append(Member(learner, it, note))
    return result


def _column(heads, names):
    return next((heads.index(name) for name in names if name in heads), None)


def _words(name):
    """Return the words of a name, sorted, letters and digits only: file names lack apostrophes, lists have commas."""
    words = re.split(r"[\s,_]+", unicodedata.normalize("NFC", name).casefold())
    return tuple(sorted(filter(None, ("".join(filter(str.isalnum, word)) for word in words))))
