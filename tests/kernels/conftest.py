"""Fixtures for tests of kernels. New memory holds NaN. Triton is imported after flashlab.kernels, which sets it up."""

import importlib.util
import math
import os

import pytest

from tests.kernels.compiled import release
from tests.tools.in_time import OneProcess
from tests.tools.once import Once

LONG = "test_hopper", "compiled"
SHARED = "kernels", "on_hopper"  # fixtures whose kernels are compiled ``once``
SECONDS = 300  # for a check in another process, which compiles nearly all the time

if importlib.util.find_spec("triton"):
    from tests.kernels.implementations import HOPPER

    KERNELS = ["portable", "hopper"] if HOPPER else ["portable"]
else:  # macOS, Windows
    collect_ignore_glob, KERNELS = ["test_*.py"], []


def pytest_collection_modifyitems(items):
    """Begin with the files whose tests compile for minutes: at the end, a worker would be alone with one of them.

    Of the tests that use a ``SHARED`` fixture, the first of each file keeps its place. The others come last: earlier,
    they would wait for the kernels that the first one compiles.
    """
    first = set()

    def place(item):
        for name in set(SHARED) & set(getattr(item, "fixturenames", ())):  # a cell of a notebook has none
            if (item.path, name) in first:
                return 2
            first.add((item.path, name))
        return 0 if any(name in item.path.stem for name in LONG) else 1

    items.sort(key=place)


@pytest.fixture
def choose_anew():
    """Return a function that forgets earlier choices of kernels, for tests that change what choices depend on."""
    from tests.kernels import implementations

    implementations.choose_anew()
    yield implementations.choose_anew
    implementations.choose_anew()


@pytest.fixture(params=KERNELS)
def kernel(request, choose_anew, monkeypatch):
    """Run a test with each implementation on this machine. The Hopper kernels take all calls that they can."""
    from flashlab.kernels import configurations

    if request.param == "hopper":
        monkeypatch.setattr(configurations, "slower_on_hopper", lambda *_: None)
    else:
        monkeypatch.setattr(configurations, "against_hopper", lambda *_: "asked for by the test")
    choose_anew()
    return request.param


@pytest.fixture
def stack_at_most():
    """Return how many bytes of stack a thread of a kernel may take: 0; 16, for four registers, up to Triton 3.6."""
    return 16 if release("triton") <= (3, 6) else 0


@pytest.fixture
def interpreter_that_loops():
    """Skip where Triton's interpreter cannot run a loop: up to Triton 3.6 with NumPy from 2.4 on."""
    triton, numpy = release("triton"), release("numpy")
    if triton <= (3, 6) and numpy >= (2, 4):
        pytest.skip(f"Triton {triton[0]}.{triton[1]} cannot interpret loops with NumPy {numpy[0]}.{numpy[1]}")


@pytest.fixture
def default_dtype():
    """Return a function that sets torch's default dtype for the rest of the test."""
    import torch

    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return ``Once``, which calls a function once for all workers."""
    folder = tmp_path_factory.getbasetemp()
    return Once(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture(scope="module")
def in_time():
    """Return a function that runs a function of the test's file in another process, for at most ``SECONDS``."""
    process = OneProcess(SECONDS)
    yield process.run
    process.end()


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """Fill what torch.empty, empty_like and new_empty return with NaN, to show a result that is never written."""
    import torch

    def poisoned(make):
        def filled(*args, **kwargs):
            x = make(*args, **kwargs)
            if x.dtype == torch.uint8:  # memory for parts of other dtypes
                x.fill_(255)  # bytes that are NaN in each of them
            elif x.is_floating_point() and x.device.type != "meta":
                x.detach().fill_(math.nan)  # torch itself makes some that require a gradient
            return x

        return filled

    for owner, name in (torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty"):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
