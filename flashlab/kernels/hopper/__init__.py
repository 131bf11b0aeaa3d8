"""Attention kernels for Hopper (compute capability 9.0), in Gluon: Triton's dialect in which warps have roles.

``flash_attention(..., kernel="hopper")`` runs them on a Hopper GPU. With tensors on the CPU, the kernels run in
``kernels.gluon_interpreter``, which reports races and deadlocks. ``rungs`` has simpler kernels that lead to
``forward``. ``schedule`` is plain Python and runs anywhere.
"""

from flashlab.kernels.hopper import backward, forward, forward_float8, schedule

__all__ = ["backward", "forward", "forward_float8", "schedule"]
