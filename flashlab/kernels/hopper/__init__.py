"""Attention kernels for Hopper (compute capability 9.0), in Gluon: Triton's dialect in which warps have roles.

``flash_attention(..., kernel="hopper")`` runs them, on a Hopper GPU. ``schedule`` is plain Python and runs anywhere.
``forward``, ``backward`` and the ``rungs``, simpler kernels that lead to ``forward``, are compiled on a Hopper GPU.
With tensors on the CPU, they run in ``kernels.gluon_interpreter``, which reports races and deadlocks.
"""

from flashlab.kernels.hopper import backward, forward, forward_float8, schedule

__all__ = ["backward", "forward", "forward_float8", "schedule"]
