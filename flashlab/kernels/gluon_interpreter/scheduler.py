"""Run the agents, the roles of all programs, one at a time, and record which accesses to memory happened before others.

Each agent is a thread that runs until it pauses. Then a seeded draw chooses the next one: an agent that need not wait,
or a copy that is under way, which then lands. The same seed gives the same run, and another seed another order.

Every access to memory has a number, and each agent has the set of the accesses that happened before: its own, and those
of every agent that arrived at a barrier at which this one waited. Two accesses to the same bytes, of which one writes,
race if the first is not in the set of the agent that makes the second. That holds in every order of the agents, so one
run finds a race, with or without harm.

The copy engine and the tensor cores access shared memory through the asynchronous proxy. They see what a role has
written only after a fence. So each agent has two sets: the accesses that happened before, and those with a fence after
them. A set is an integer of Python, one bit per access.

Source: L. Lamport, Time, clocks, and the ordering of events, 1978; NVIDIA, PTX ISA, "Memory Consistency Model".
"""

import os
import random
import sys
import threading
from typing import NamedTuple

import numpy as np

from flashlab.machine.sm import Deadlock, Race

READ, WRITE, ADD = "read", "write", "add"


class History:
    """The accesses that happened before a moment of a role, or before a phase of a barrier."""

    def __init__(self, before=0, fenced=0):
        self.before, self.fenced = before, fenced

    def include(self, other):
        """Include another history."""
        self.before |= other.before
        self.fenced |= other.fenced

    def fence(self):
        """Let the asynchronous proxy see all earlier accesses."""
        self.fenced |= self.before

    def copy(self):
        """Return a copy, with which another role begins."""
        return History(self.before, self.fenced)


class Access(NamedTuple):
    """An access to memory. A history that has one access of a lane has all earlier accesses of that lane, too."""

    number: int
    lane: tuple  # the agent, and the unit that makes the access for it, such as "copies"; "": the agent itself
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
        self.others = {}  # (kind, lane): [cells]      the number of the last access that read, or added

    def note(self, access, cells, region, history, accesses):
        """Record an access with this history to cells of a region. Return its races, a sentence each.

        accesses: all earlier ones, by number.
        """
        writes = self.writes[cells]
        races = []
        # The inputs of a product may be unused, so only its result is NaN.
        if self.begins_unwritten and access.kind != WRITE and not access.asynchronous and writes.min() < 0:
            races.append(f"{access.who} {access.does} {region}{access.place}, where nobody has written yet")
        others = [x[cells] for (kind, _), x in self.others.items() if access.kind == WRITE or kind != access.kind]
        between = (race(access, accesses[n], region, history) for n in distinct([writes, *others]))
        races += [sentence for sentence in between if sentence]
        if access.kind == WRITE:
            self.writes[cells] = access.number
            for numbers in self.others.values():
                numbers[cells] = -1  # a history with this access has them, too
        else:
            key = access.kind, access.lane
            if key not in self.others:
                self.others[key] = np.full(len(self.writes), -1, np.int32)
            self.others[key][cells] = access.number
        return races


def race(access, earlier, region, history):
    """Return a sentence if an access races with an earlier one, because its history lacks that one; else None."""
    what = f"{access.who} {access.does} {region}{access.place}, and {earlier.who} {earlier.does} it{earlier.place}"
    if not history.before >> earlier.number & 1:
        return f"{what}: no barrier keeps the two apart"
    needs_a_fence = access.asynchronous and not earlier.asynchronous and earlier.kind != READ
    if needs_a_fence and not history.fenced >> earlier.number & 1:
        return f"{what}: there is no fence between the two"
    return None


def distinct(arrays):
    """Return the numbers from 0 on in arrays, each once."""
    found = set()
    for numbers in arrays:
        most = int(numbers.max())
        found |= {most} if numbers.min() == most else set(numbers.tolist())
    return sorted(found - {-1})


HERE = os.path.dirname(__file__)
_here = threading.local()  # .agent: whose thread this is


def me():
    """Return the agent of the running thread."""
    return _here.agent


class Stopped(BaseException):
    """Another agent has failed, and this one ends."""


class Agent:
    """One role of a program, or a program before its warps have roles."""

    def __init__(self, name, program, run, history=None):
        self.name, self.program, self.run = name, program, run
        self.history = History() if history is None else history
        self.baton = threading.Semaphore(0)
        self.ready, self.waits_for = None, ""  # None: it can go on
        self.products, self.stores = [], []  # not waited for, the oldest first
        self.polled = None  # (memory, offset, value) of a counter read by adding 0; None: the agent did something since

    def pause(self, ready=None, waits_for=""):
        """Let other agents run, and continue when ``ready()``."""
        self.ready, self.waits_for = ready, waits_for
        self.run.hand_on(self)
        self.ready = None

    def access(self, shadow, cells, region, kind, does, engine=""):
        """Note an access to cells of a memory; engine: the unit that makes it for the agent. Return its number."""
        self.polled = None
        access = Access(len(self.run.accesses), (self.name, engine), kind, bool(engine), self.name, does, place())
        if len(cells):  # else the tile is past the ends of its tensor
            for race in shadow.note(access, cells, region, self.history, self.run.accesses):
                self.run.tell(race)
        self.run.accesses.append(access)
        if not engine:
            self.record(access.number)
        return access.number

    def record(self, number):
        """Add a finished access to the agent's history."""
        self.history.before |= 1 << number


class Run:
    """A launch: its agents, copies under way, accesses to memory, and the list for races, if there is one."""

    def __init__(self, seed, races=None):
        self.random, self.races = random.Random(seed), races
        self.agents, self.flights, self.accesses = [], [], []
        self.error, self.over = None, threading.Event()

    def tell(self, race):
        """Raise a race, or add it to the list."""
        if self.races is None:
            raise Race(race)
        self.races.append(race)

    def add(self, agent, function):
        """Add an agent, which runs ``function()`` when it is drawn."""
        self.agents.append(agent)
        threading.Thread(target=self._live, args=(agent, function), daemon=True).start()

    def _live(self, agent, function):
        _here.agent = agent
        agent.baton.acquire()
        try:
            if self.error is None:
                with np.errstate(all="ignore"):
                    function()
                self.agents.remove(agent)
                self._pass_on()
        except Stopped:
            pass
        except BaseException as error:
            self.fail(error)

    def go(self):
        """Run all agents until they end. Raise the error of an agent."""
        self._pass_on()
        try:
            self.over.wait()
        except BaseException as error:
            self.fail(error)
        if self.error is not None:
            raise self.error

    def fail(self, error):
        """End all agents."""
        if self.error is None:
            self.error = error
        for agent in self.agents:
            agent.baton.release()
        self.over.set()

    def hand_on(self, agent):
        """Let a drawn agent run, perhaps this one; return when this one is drawn again."""
        if agent.ready is None and self.random.random() < 0.5:
            return
        following = self._drawn()
        if following is not agent:
            following.baton.release()
            agent.baton.acquire()
        if self.error is not None:
            raise Stopped

    def _pass_on(self):
        if self.agents:
            self._drawn().baton.release()
            return
        while self.flights:
            self._land()
        self.over.set()

    def _drawn(self):
        """Draw an agent that can run; copies may land before."""
        while True:
            able = [agent for agent in self.agents if agent.ready is None or agent.ready()]
            at = self.random.randrange(len(able) + len(self.flights)) if able or self.flights else None
            if at is None:
                waits = sorted(f"{agent.name} waits for {agent.waits_for}" for agent in self.agents)
                raise Deadlock(f"nothing is under way, and {'; '.join(waits)}")
            if at < len(able):
                return able[at]
            self._land()

    def _land(self):
        """Complete a drawn copy: any load, or the first store of an agent."""
        flight = self.random.choice([f for f in self.flights if f.before is None or f.before not in self.flights])
        self.flights.remove(flight)
        flight.land()


def place():
    """Return the line of the running access in the kernel's source and the file that calls it, for a sentence."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    inner = outer = frame
    while outer and outer.f_code.co_filename == inner.f_code.co_filename:
        outer = outer.f_back
    if outer is None or outer.f_code.co_filename.startswith(HERE):
        return f" ({line(inner)})"
    return f" ({line(inner)}, from {line(outer)})"


def line(frame):
    """Return the place of a frame as "file.py:line", or in a function that was edited, "function:line"."""
    code = frame.f_code
    edited = code.co_filename.startswith("<")
    return f"{code.co_name if edited else os.path.basename(code.co_filename)}:{frame.f_lineno}"
