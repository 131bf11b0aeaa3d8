"""The transport of one rank: it sends to and receives from the other ranks of its group, with a time limit.

The transport is ``torch.distributed``. On a CPU every wait ends after ``timeout`` seconds at the latest; on a GPU
the stream waits, not the host, and NCCL's own watchdog ends the wait after the timeout of the group.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flashlab.machine.arguments import check_arguments

FACTS = 1024  # bytes in which a rank describes its task
_agreed = {}  # on a GPU: (group, own number and facts) -> the numbers of all ranks


class GroupError(RuntimeError):
    """The processes of a group cannot go on together."""


class Event(NamedTuple):
    """One action of a rank, in a recording."""

    kind: str  # "compute" or "send"
    what: str  # "forward" or "backward"; of a transfer followed by "KV", "dKV", "QKV", "O", ...
    step: int  # of the ring, from 0
    owner: int  # rank that owns the tokens
    amount: int  # visible scores, or bytes


class Wire:
    """The transfers of rank ``rank`` of ``size``. record: a list to which ``log`` appends events."""

    @check_arguments()
    def __init__(self, group=None, *, timeout: float = 60.0, record: list | None = None):
        if not (dist.is_available() and dist.is_initialized()):
            raise GroupError(
                "there is no process group: call torch.distributed.init_process_group in every process first, "
                "or start the processes with flashlab.distributed.Team"
            )
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.timeout, self.record = timeout, record
        if self.rank < 0:
            raise GroupError("this process is not in the group")

    def check(self, x: Tensor) -> None:
        """Raise GroupError if the group's backend cannot send this tensor."""
        backends = dist.get_backend(self.group)
        if x.is_cuda != ("nccl" in backends) and self.size > 1:
            needed = "nccl" if x.is_cuda else "gloo"
            raise GroupError(f"tensors on {x.device.type} need {needed}, but the backend of the group is {backends}")

    def log(self, *event) -> None:
        """Record one event."""
        if self.record is not None:
            self.record.append(Event(*event))

    def pass_on(self, tensors: Sequence[Tensor], tokens: int, *, hops: int = 1) -> Callable[[], list[Tensor]]:
        """Send contiguous tensors [B, heads, n, width] to the rank ``hops`` ahead, and receive from that behind.

        The received tensors have ``tokens`` in place of n. Return at once, with a function that waits for them and
        returns them. The sent tensors must not change until then.
        """
        received = [x.new_empty(*x.shape[:2], tokens, x.shape[3]) for x in tensors]
        to, source = (dist.get_global_rank(self.group, (self.rank + by) % self.size) for by in (hops, -hops))
        with self._together():
            jobs = [dist.P2POp(dist.isend, x, to, self.group) for x in tensors if x.numel()]
            jobs += [dist.P2POp(dist.irecv, x, source, self.group) for x in received if x.numel()]
            works = dist.batch_isend_irecv(jobs) if jobs else []

        def wait():
            self._wait(works)
            assert tensors is not None  # this reference keeps them until they are sent
            return received

        return wait

    def exchange(self, parts: Sequence[Tensor], elements: Sequence[int]) -> list[Tensor]:
        """Send ``parts[r]``, flat, to rank r, and return ``elements[r]`` numbers from each rank r."""
        received = parts[0].new_empty(sum(elements))
        sent = torch.cat([part.reshape(-1) for part in parts])
        with self._together():
            sizes = list(elements), [x.numel() for x in parts]
            works = [dist.all_to_all_single(received, sent, *sizes, self.group, True)]
        self._wait(works)
        return list(received.split(list(elements)))

    def agree(self, facts: dict, own: int, device: torch.device) -> list[int]:
        """Return the number ``own`` of every rank. Raises GroupError, on every rank, if the facts are not the same."""
        words = json.dumps([own, facts]).encode()
        if len(words) > FACTS:
            raise GroupError(f"the description of the task takes {len(words)} bytes, and the limit is {FACTS}")
        key = self.group, words
        if device.type == "cuda" and key in _agreed:  # another exchange would make the host wait for the GPU
            return _agreed[key]
        mine = torch.tensor(list(words.ljust(FACTS)), dtype=torch.uint8, device=device)  # [FACTS]
        all_words = [torch.empty_like(mine) for _ in range(self.size)]
        with self._together():
            works = [dist.all_gather(all_words, mine, self.group, True)]
        self._wait(works)
        answers = [json.loads(bytes(row.tolist())) for row in all_words]
        for rank, (_, theirs) in enumerate(answers):
            for name, value in theirs.items():
                if value != answers[0][1][name]:
                    raise GroupError(
                        f"the processes disagree on {name}: rank 0 has {answers[0][1][name]}, rank {rank} has {value}"
                    )
        counts = [number for number, _ in answers]
        if device.type == "cuda":
            _agreed[key] = counts
        return counts

    def _wait(self, works):
        with self._together():
            for work in works:
                if dist.get_backend(self.group) == "gloo":
                    work.wait(timedelta(seconds=self.timeout))
                else:
                    work.wait()

    @contextmanager
    def _together(self):
        """Replace the various errors of the transport by one ``GroupError``."""
        try:
            yield
        except RuntimeError as error:
            raise GroupError(
                f"rank {self.rank} of {self.size} lost the others: a process has ended, failed, or not answered within "
                f"{self.timeout:g} s"
            ) from error
