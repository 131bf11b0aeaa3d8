"""Run Gluon kernels without a GPU, and tell every missing wait or fence, and every wrong phase.

Triton interprets no Gluon. Here the functions behind ``@gluon.jit`` run as functions of Python, on numpy's arrays. The
roles of a program, and several programs, take turns; copies and products are asynchronous, as on a GPU. Read in this
order: ``numbers`` and ``values``, what a role has in registers; ``agents``, who runs when; ``knowledge``, what a race
is; ``shared_memory``, ``barriers``, ``copies``, ``products``, ``global_memory``, one part of a multiprocessor each;
``roles``, ``language`` and ``assembly``, what a kernel calls; ``functions`` and ``run``, how a launch begins.

It cannot tell speed, what the compiler makes of a kernel, or races between the threads of one role.
"""

from flashlab.kernels.gluon_interpreter.run import interpret, noted, seeded

__all__ = ["interpret", "noted", "seeded"]
