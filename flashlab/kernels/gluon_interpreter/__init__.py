"""Run Gluon kernels without a GPU, and report every missing wait or fence, and every wrong phase.

Triton interprets no Gluon. Here the functions behind ``@gluon.jit`` run as functions of Python, on numpy's arrays. The
roles of a program, and several programs, take turns; copies and products are asynchronous, as on a GPU. Read in this
order: ``values``, the registers; ``scheduler``, the order of the agents, and races; ``memory``; ``units``, which work
beside the agents; ``language``, the functions that a kernel calls; ``run``, the start of a launch.

It does not show speed, compiled code, or races between the threads of one role.
"""

from flashlab.kernels.gluon_interpreter.run import interpret, noted, seeded

__all__ = ["interpret", "noted", "seeded"]
