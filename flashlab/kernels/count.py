"""Count the loads and stores of a call of kernels on any machine, in the interpreter."""

import os
import pickle
import subprocess
import sys

import torch

from flashlab import kernels
from flashlab.kernels import interpreter
from flashlab.kernels.checks import function_at
from flashlab.machine.arguments import shown
from flashlab.machine.memory import Memory


def count(function, *args, **kwargs) -> Memory:
    """Return the bytes and events of ``function(*args, **kwargs)``, a function of flashlab that launches kernels.

    Tensors are booked under the names of the kernels' parameters; see ``interpreter.count``. A GPU counts nothing. So
    where kernels are compiled, an interpreter repeats the call in a process of its own. A function that chooses kernel
    and tiles by ``configurations``, as ``flash_attention`` does, takes those of the interpreter there, not the GPU's.

    Raises:
        TypeError: function is not at the top level of a module, where another process finds it.
        RuntimeError: that process failed; the message has the end of its output.
    """
    address = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or None in address or not callable(function_at(*address)):
        raise TypeError(f"function must be one at the top level of a module, got {shown(function)}")
    call = *address, _on_cpu(args), _on_cpu(kwargs)
    if kernels.INTERPRETED:
        return _run(call)
    done = subprocess.run(
        [sys.executable, "-m", "flashlab.kernels.count"],
        input=pickle.dumps(call),
        capture_output=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode:
        raise RuntimeError(f"the interpreter's process failed: {done.stderr.decode().strip()[-500:]}")
    return pickle.loads(done.stdout)


def _run(call):
    module, name, args, kwargs = call
    function = function_at(module, name)
    with interpreter.count() as memory:
        function(*args, **kwargs)
    return memory


def _on_cpu(tree):
    """Return nested containers with every tensor, and every name of a device, moved to the CPU."""
    if isinstance(tree, dict):
        return {name: _on_cpu(leaf) for name, leaf in tree.items()}
    if hasattr(tree, "_fields"):
        return type(tree)(*map(_on_cpu, tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_on_cpu(leaf) for leaf in tree)
    if isinstance(tree, torch.device):
        return torch.device("cpu")
    return tree.cpu() if isinstance(tree, torch.Tensor) else tree


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(_run(pickle.loads(sys.stdin.buffer.read()))))
