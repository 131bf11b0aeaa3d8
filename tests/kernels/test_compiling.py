"""Functions that torch's compiler steps around: compiled code calls them as they are; only it imports the compiler."""

import subprocess
import sys

import pytest
import torch

from flashlab.kernels.compiling import stepped_around

pytestmark = pytest.mark.exhaustive  # seconds of compiling; test_float8 compiles a real one


@stepped_around
def in_numpy(x, *, times=1):
    """Return x times a number, and note whether it is being compiled."""
    in_numpy.compiled.append(torch.compiler.is_compiling())
    return torch.from_numpy(x.numpy() * times)


def test_compiled_code_calls_it_as_it_is():
    in_numpy.compiled = []

    @torch.compile(backend="eager")
    def compiled(x, times):
        return in_numpy(x + 1, times=times) * 2

    for size in range(1, 5):  # other shapes and arguments, which compile anew
        for times in (2, 3.0):
            x = torch.arange(float(size))
            assert torch.equal(compiled(x, times), (x + 1) * times * 2)
    assert in_numpy.compiled == [False] * 8


def test_calls_that_are_not_compiled_do_without_the_compiler():
    program = (
        "import sys; from flashlab.kernels import flash_attention, device; import torch;"
        "q = torch.ones(1, 1, 3, 16, device=device.DEVICE);"
        "flash_attention(q, q, q, dropout=0.5, seed=1); assert 'torch._dynamo' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
