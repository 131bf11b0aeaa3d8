"""Roles: where a program divides its warps, each part is an agent. The program goes on when all have ended."""

from collections import Counter
from functools import partial

from flashlab.kernels.gluon_interpreter.agents import Agent, me
from flashlab.machine.sm import Race


def warp_specialize(partitions, worker_num_warps, worker_num_regs):
    """Run functions, each with its arguments, side by side; the first one in the calling agent."""
    whole = me()
    agents = [
        Agent(name, whole.program, whole.run, whole.knowledge.copy()) for name in names(partitions, whole.program)
    ]
    alive = list(agents[1:])

    def play(agent, function, arguments):
        function(*arguments)
        end(agent)
        alive.remove(agent)

    for agent, (function, arguments) in zip(agents[1:], partitions[1:], strict=True):
        whole.run.add(agent, partial(play, agent, function, arguments))
    function, arguments = partitions[0]
    name, whole.name = whole.name, agents[0].name
    function(*arguments)
    end(whole)
    whole.pause(lambda: not alive, "the other roles to end")
    whole.name = name
    for agent in agents[1:]:
        whole.knowledge.learn(agent.knowledge)


def names(partitions, program):
    """Name the roles by their functions, or those that these take; with a number where several have the same."""
    roles = [(arguments[0] if callable(arguments[0]) else function).__name__ for function, arguments in partitions]
    count, seen = Counter(roles), Counter()
    for role in roles:
        number = f" {seen[role]}" if count[role] > 1 else ""
        seen[role] += 1
        yield f"{role}{number}{program}"


def end(agent):
    """Raise Race if a role ends while copies or products of its own still use shared memory."""
    if agent.stores:
        raise Race(f"{agent.name} ends before a store_wait for the copies that still read shared memory")
    if agent.products:
        raise Race(f"{agent.name} ends before a warpgroup_mma_wait for its products")
