"""Agents, the roles of all programs, and the baton: one runs at a time, and a seeded draw says who goes on.

Each agent is a thread that runs until it pauses. Then it draws who goes on: an agent that need not wait, or a
copy that is under way, which then lands. So the same seed always gives the same run, and another seed another order.
"""

import os
import random
import sys
import threading

import numpy as np

from flashlab.kernels.gluon_interpreter.knowledge import Access, Knowledge
from flashlab.machine.sm import Deadlock, Race

HERE = os.path.dirname(__file__)
_here = threading.local()  # .agent: whose thread this is


def me():
    """Return the agent that calls."""
    return _here.agent


class Stopped(BaseException):
    """Another agent has failed, and this one ends."""


class Agent:
    """One role of a program, or a program before its warps have roles."""

    def __init__(self, name, program, run, knowledge=None):
        self.name, self.program, self.run = name, program, run
        self.knowledge = knowledge or Knowledge()
        self.baton = threading.Semaphore(0)
        self.ready, self.waits_for = None, ""  # None: it can go on
        self.products, self.stores = [], []  # not waited for, the oldest first
        self.polled = None  # (memory, offset, value) of a counter read by adding 0; None: the agent did something since

    def pause(self, ready=None, waits_for=""):
        """Let others go on, and oneself when ``ready()``."""
        self.ready, self.waits_for = ready, waits_for
        self.run.hand_on(self)
        self.ready = None

    def access(self, shadow, cells, region, kind, does, engine=""):
        """Note an access to cells of a memory; engine: the unit that makes it for the agent. Return its number."""
        self.polled = None
        access = Access(len(self.run.accesses), (self.name, engine), kind, bool(engine), self.name, does, place())
        if len(cells):  # else the tile is past the ends of its tensor
            for race in shadow.note(access, cells, region, self.knowledge, self.run.accesses):
                self.run.tell(race)
        self.run.accesses.append(access)
        if not engine:
            self.know(access.number)
        return access.number

    def know(self, number):
        """Let the agent know of an access that is over."""
        self.knowledge.known |= 1 << number


class Run:
    """A launch: its agents, its copies under way, all accesses to memory, and races, where these are only noted."""

    def __init__(self, seed, races=None):
        self.random, self.races = random.Random(seed), races
        self.agents, self.flights, self.accesses = [], [], []
        self.error, self.over = None, threading.Event()

    def tell(self, race):
        """Raise a race, or note it."""
        if self.races is None:
            raise Race(race)
        self.races.append(race)

    def add(self, agent, function):
        """Let an agent begin, when it is drawn, with ``function()``."""
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
        """Run all agents to their ends. Raises what one of them raised."""
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
        """Let somebody go on, perhaps the agent itself; return when it is the agent's turn again."""
        if agent.ready is None and self.random.random() < 0.5:
            return
        chosen = self._drawn()
        if chosen is not agent:
            chosen.baton.release()
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
        """Return an agent that can go on; copies may land before."""
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
        """Let a copy land: any load, or the first store of an agent."""
        flight = self.random.choice([f for f in self.flights if f.before is None or f.before not in self.flights])
        self.flights.remove(flight)
        flight.land()


def place():
    """Return where in the kernel's source an access is made, and from which file it is asked for; for a sentence."""
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
