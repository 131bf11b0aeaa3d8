"""One sequence over several processors: each keeps its queries, keys and values travel, states merge by lse.

``ring_attention``, ``gather_attention`` and ``ulysses_attention`` compute the same over a process group of
``torch.distributed`` (gloo on CPUs, NCCL on GPUs): in each, rank r passes the tokens that ``machine.ranks`` gives it.
``plan`` says what each would send and compute, and ``Team`` starts the processes on one machine.

Nothing here imports Triton before tensors on a GPU ask for its kernels, so all of it runs on any laptop.
"""

from flashlab.distributed.gather import gather_attention
from flashlab.distributed.ring import ring_attention
from flashlab.distributed.shards import positions, shard, unshard
from flashlab.distributed.team import Team
from flashlab.distributed.ulysses import ulysses_attention

__all__ = ["Team", "gather_attention", "positions", "ring_attention", "shard", "ulysses_attention", "unshard"]
