"""Attention over one sequence that is divided over several processors.

``attention`` computes over a process group of ``torch.distributed`` (gloo on CPUs, NCCL on GPUs): rank r passes the
tokens that a placement of ``machine.ranks`` gives it. ``plan`` computes what each way would send and compute, and
``Team`` starts the processes on one machine.

Nothing here imports Triton before tensors on a GPU need its kernels, so all of it runs on any laptop.
"""

from flashlab.distributed.attention import attention, whole
from flashlab.distributed.shards import positions, shard, unshard
from flashlab.distributed.team import Team

__all__ = ["Team", "attention", "positions", "shard", "unshard", "whole"]
