"""Track who knows of which access to memory. This finds a race whether or not it does harm in the run at hand.

Every access has a number. A role knows of its own accesses. Where it arrives at a barrier, it leaves what it knows, and
a role that waits there learns it: so a role knows of all accesses that happened before. Two accesses to the same bytes,
of which one writes, race if the role that makes the later one does not know of the other. That holds in whatever order
the roles happen to run, so a single run finds it.

The copy engine and the tensor cores reach shared memory another way, through the asynchronous proxy. They see what
a role has written only after a fence. So we keep apart what is known, and what is known and fenced.

Sets of accesses are Python's integers, one bit per access.

Source: L. Lamport, Time, clocks, and the ordering of events, 1978; NVIDIA, PTX ISA, "Memory Consistency Model".
"""

from typing import NamedTuple

import numpy as np

READ, WRITE, ADD = "read", "write", "add"


class Knowledge:
    """The accesses of which a role knows, or which it has left at a barrier."""

    def __init__(self, known=0, fenced=0):
        self.known, self.fenced = known, fenced

    def learn(self, other):
        """Take in what somebody else knows."""
        self.known |= other.known
        self.fenced |= other.fenced

    def fence(self):
        """Let the asynchronous proxy see what is known."""
        self.fenced |= self.known

    def copy(self):
        """Return the same, for somebody who begins with it."""
        return Knowledge(self.known, self.fenced)


class Access(NamedTuple):
    """An access to memory. A role that knows of one knows of all earlier ones of its lane."""

    number: int
    lane: tuple
    kind: str
    asynchronous: bool
    who: str
    does: str
    place: str  # in the source


class Shadow:
    """The last accesses to each cell of a memory, and the rule for the next one."""

    def __init__(self, cells, begins_unwritten):
        self.begins_unwritten = begins_unwritten
        self.writes = np.full(cells, -1, np.int32)  # [cells]      the number of the last access that wrote
        self.others = {}  # (kind, lane): the same of those that read, or add, [cells]

    def note(self, access, cells, region, knowledge, accesses):
        """Remember an access to these cells of a region, made with this knowledge. Return its races, a sentence each.

        accesses: all earlier ones, by number.
        """
        writes = self.writes[cells]
        races = []
        # What a product takes in may be unused, so only its result is NaN.
        if self.begins_unwritten and access.kind != WRITE and not access.asynchronous and writes.min() < 0:
            races.append(f"{access.who} {access.does} {region}{access.place}, where nobody has written yet")
        others = [x[cells] for (kind, _), x in self.others.items() if access.kind == WRITE or kind != access.kind]
        between = (race(access, accesses[n], region, knowledge) for n in distinct([writes, *others]))
        races += [sentence for sentence in between if sentence]
        if access.kind == WRITE:
            self.writes[cells] = access.number
            for numbers in self.others.values():
                numbers[cells] = -1  # a role that knows of this access knows of them
        else:
            key = access.kind, access.lane
            if key not in self.others:
                self.others[key] = np.full(len(self.writes), -1, np.int32)
            self.others[key][cells] = access.number
        return races


def race(access, earlier, region, knowledge):
    """Return what an access does without the knowledge that it needs of an earlier one; None if it has it."""
    what = f"{access.who} {access.does} {region}{access.place}, and {earlier.who} {earlier.does} it{earlier.place}"
    if not knowledge.known >> earlier.number & 1:
        return f"{what}: no barrier keeps the two apart"
    needs_a_fence = access.asynchronous and not earlier.asynchronous and earlier.kind != READ
    if needs_a_fence and not knowledge.fenced >> earlier.number & 1:
        return f"{what}: there is no fence between the two"
    return None


def distinct(arrays):
    """Return the numbers from 0 on in arrays, each once."""
    found = set()
    for numbers in arrays:
        most = int(numbers.max())
        found |= {most} if numbers.min() == most else set(numbers.tolist())
    return sorted(found - {-1})
