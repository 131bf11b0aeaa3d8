"""A team of processes on this machine that form a process group and run functions.

    with Team(4) as team:
        team.run(function, *args)  # function(*args) in each process; the results, by rank

It is for tests, lessons and measurements on one host. A training job starts its processes with ``torchrun``.
"""

import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from flashlab.distributed.wire import GroupError
from flashlab.machine.arguments import check_arguments

GRACE = 5.0  # seconds to wait for a process that has closed its pipe


class Team:
    """P processes, each with one thread, and on GPUs one GPU each.

    Args:
        P: number of processes.
        backend: of torch.distributed, "gloo" for CPUs and "nccl" for GPUs.
        timeout: seconds that a process waits for the others, and the team for its processes.

    Raises:
        GroupError: the backend is missing, or the machine has fewer GPUs than processes.
    """

    @check_arguments()
    def __init__(self, P: int, *, backend: str = "gloo", timeout: float = 60.0):
        if backend not in ("gloo", "nccl") or not getattr(dist, f"is_{backend}_available", bool)():
            raise GroupError(f"this build of torch has no backend {backend!r}: gloo is for CPUs, nccl for NVIDIA GPUs")
        if backend == "nccl" and torch.cuda.device_count() < P:
            raise GroupError(f"{P} processes need a GPU each, there are {torch.cuda.device_count()}")
        self.P, self.timeout = P, timeout
        # A server that has imported torch forks processes fast. After the start of CUDA, no process may be forked.
        forks = "forkserver" in multiprocessing.get_all_start_methods() and not torch.cuda.is_available()
        context = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload(["flashlab.distributed"])
        self.folder = tempfile.TemporaryDirectory()
        self.pipes, self.processes = [], []
        for rank in range(P):
            here, there = context.Pipe()
            place = Path(self.folder.name, "store")
            process = context.Process(target=_serve, args=(there, rank, P, backend, place, timeout), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    @check_arguments()
    def run(self, function: Callable, *args, timeout: float | None = None) -> list[Any]:
        """Return ``function(*args)`` of each process, by rank. The function must be importable from a module.

        timeout: seconds to wait for the results; that of the team if None.

        Raises:
            GroupError: processes failed, ended or did not answer in time. The error has the message of each, and the
                team is closed.
        """
        outcomes = self.outcomes(function, *args, timeout=timeout)
        faults = [f"rank {rank}: {it}" for rank, it in enumerate(outcomes) if isinstance(it, Exception)]
        if faults:
            raise GroupError("\n".join(faults))
        return outcomes

    @check_arguments()
    def outcomes(self, function: Callable, *args, timeout: float | None = None) -> list[Any]:
        """Return the results of ``run``, with an exception in place of the result of a process that failed."""
        if not self.processes:
            raise GroupError("this team is closed: start another one")
        for pipe in self.pipes:
            try:
                pipe.send((function, args))
            except OSError:
                pass  # the process has ended; the loop below reports it
            except (AttributeError, pickle.PicklingError):  # at the first pipe, before anything is sent
                raise TypeError(f"the function must be importable, from a module, got {function!r:.60}") from None
        timeout = self.timeout if timeout is None else timeout
        outcomes = [GroupError(f"no answer within {timeout:g} s")] * self.P
        waiting, end = dict(zip(self.pipes, range(self.P), strict=True)), time.monotonic() + timeout
        while waiting and (ready := wait(list(waiting), max(end - time.monotonic(), 0))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    outcomes[rank] = pipe.recv()
                except (EOFError, OSError):
                    self.processes[rank].join(GRACE)
                    outcomes[rank] = GroupError(f"the process ended, exit status {self.processes[rank].exitcode}")
        if any(isinstance(it, Exception) for it in outcomes):
            self.close()
        return outcomes

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.processes = []
        self.folder.cleanup()

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _serve(pipe, rank, P, backend, place, timeout):
    """Run one process of a team: join the group, then run the functions from the pipe until it closes."""
    torch.set_num_threads(1)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    # A kernel that keeps every multiprocessor busy leaves no room for the kernels of NCCL, unless they have priority.
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
    if backend == "nccl":
        torch.cuda.set_device(rank)
    store = None
    while True:
        try:
            function, args = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if store is None:
                store = dist.FileStore(str(place), P)
                options = {"rank": rank, "world_size": P, "timeout": timedelta(seconds=timeout)}
                dist.init_process_group(backend, store=store, **options)
            answer = function(*args)
        except Exception as error:
            can_be_sent = type(error).__module__ in ("builtins", GroupError.__module__)
            answer = error if can_be_sent else RuntimeError(str(error))
        pipe.send(answer)
