"""Compile the Hopper forward kernel with masks and scores, without a Hopper GPU.

``python -m tests.tools.compile_hopper_forward`` prints one JSON object per line, as ``compile_hopper`` does, for each
kind of mask and score function and each width of heads. The arguments are those of a real launch: the kernel is run on
tensors of the CPU, and ``launch`` compiles instead. Needs TRITON_INTERPRET=0, and so a process of its own.
"""

import json

import torch

from flashlab.kernels import masks, scores
from flashlab.kernels.configurations import on_hopper
from flashlab.kernels.hopper import forward
from flashlab.kernels.problem import Problem
from tests.tools.compile_for import tensors_of
from tests.tools.compile_hopper import launched

H, EVEN, RAGGED = 2, 4096, 4000


def kinds():
    """Yield the name of each kind of problem, its mask, its score function, its sinks, and a number of keys."""
    causal, slopes = masks.causal(), torch.ones(H)
    yield "window", masks.window(300), None, None, EVEN
    yield "ragged window", masks.Window(300, 20), None, None, RAGGED
    yield "sinks", causal, None, torch.zeros(H), EVEN
    yield "soft cap", causal, scores.softcap(30.0), None, EVEN
    yield "ALiBi", causal, scores.alibi(slopes), None, EVEN
    yield "documents", masks.documents(torch.arange(RAGGED) // 300) & causal, None, torch.zeros(H), RAGGED
    yield "all", masks.window(300), (scores.alibi(slopes), scores.softcap(30.0)), torch.zeros(H), RAGGED


def compile_kind(kind, width):
    """Return what the kernel takes and contains for a problem of this kind, as a dict."""
    name, mask, score, sinks, N = kind
    sizes = 1, H, H, N, N, width, width, torch.bfloat16, torch.device("cpu"), mask, 0.1, "tf32"
    problem = Problem(*sizes, score=scores.chain(score), sinks=sinks)
    c = on_hopper("forward", problem.kind)
    q, k, v, o, lse, rest = tensors_of(problem)
    said = {"kind": name, "width": width, "Br": c.Br, "Bc": c.Bc}
    return said | launched(forward, lambda: forward.run(o, lse, q, k, v, problem, c))


if __name__ == "__main__":
    for kind in kinds():
        for width in (64, 128, 192, 256):
            print(json.dumps(compile_kind(kind, width)), flush=True)
