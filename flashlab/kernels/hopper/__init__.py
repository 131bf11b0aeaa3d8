"""Attention kernels for Hopper (compute capability 9.0), in Gluon: Triton's dialect in which warps have roles.

``flash_attention(..., kernel="hopper")`` runs them. ``schedule`` is plain Python and runs anywhere; ``forward``,
``backward`` and the rungs that lead to them, ``ladder``, are compiled on the GPU that they are written for.
"""

from flashlab.kernels.hopper import backward, forward, forward_float8, schedule

__all__ = ["backward", "forward", "forward_float8", "schedule"]
