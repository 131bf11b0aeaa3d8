"""The bytes and events that ``count`` returns for a call, here and in another process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flashlab import kernels
from flashlab.kernels import first_triton_kernel, interpreter
from flashlab.kernels.count import count


def test_a_bill_is_what_the_interpreter_counts():
    memory = count(first_triton_kernel.add, torch.arange(13.0), torch.ones(13), block=4)
    assert memory.bytes == {("load", "x"): 52, ("load", "y"): 52, ("store", "z"): 52}
    assert sum(event.kind == "kernel" for event in memory.events) == 4


@pytest.mark.exhaustive
def test_another_process_draws_up_the_same_bill(monkeypatch, interpreter_that_loops):
    call = first_triton_kernel.softmax_online, torch.randn(3, 10)
    here = count(*call, rows=2, block=4)
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    there = count(*call, rows=2, block=4)
    assert there.bytes == here.bytes and there.events == here.events


@pytest.mark.exhaustive
def test_an_error_in_the_other_process_is_raised_here(monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    with pytest.raises(RuntimeError, match="x and y must be vectors of one length"):
        count(first_triton_kernel.add, torch.ones(3), torch.ones(4))


def test_nothing_is_counted_after_a_bill():
    memory = count(first_triton_kernel.add, torch.ones(3), torch.ones(3))
    before = memory.moved
    first_triton_kernel.add(*torch.ones(2, 3, device=kernels.DEVICE))
    assert memory.moved == before


@pytest.mark.skipif(not kernels.INTERPRETED, reason="threads count separately in the interpreter")
def test_threads_count_separately():
    """All threads count at the same time, each with another number of launches."""
    x = torch.ones(8)
    all_open = threading.Barrier(3)

    def counted(launches):
        with interpreter.count() as memory:
            all_open.wait(60)
            for _ in range(launches):
                first_triton_kernel.add(x, x)
            all_open.wait(60)
        return memory.stored

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(counted, (1, 2, 3))) == [32, 64, 96]
