"""Compile the Hopper backward kernels without a Hopper GPU: ``python -m tests.tools.compile_hopper_backward``.

Prints one JSON object per line, as ``compile_hopper`` does, for each configuration in use and each kind of mask and
score function. The arguments are those of a real launch: the functions get CPU tensors, and their ``launch`` only
compiles. Needs TRITON_INTERPRET=0, and so a process of its own.
"""

from unittest import mock

import torch

from flashlab.kernels import masks, portable, scores
from flashlab.kernels.configurations import STREAMED, Card, Configuration, divided, hopper_width
from flashlab.kernels.hopper import backward, two_passes
from flashlab.kernels.portable import rows
from flashlab.kernels.problem import Problem
from flashlab.kernels.tables import ON_HOPPER, TWO_PASSES
from tests.tools.compile_for import compiled_instead, print_lines, tensors_of
from tests.tools.compile_hopper import NAMES, assembled

H, EVEN, RAGGED = 4, 1024, 1000


def kinds():
    """Yield the name, mask, score function and number of keys of each kind of problem."""
    yield "full", masks.full(), None, EVEN
    yield "causal", masks.causal(), None, RAGGED
    yield "window", masks.window(300, 20), None, RAGGED
    yield "sink", masks.causal(), None, EVEN
    yield "soft cap", masks.causal(), scores.softcap(30.0), EVEN
    yield "ALiBi", masks.causal(), scores.alibi(torch.ones(H)), EVEN
    yield "soft cap in a window", masks.window(300), scores.softcap(30.0), RAGGED
    documents = masks.documents(torch.arange(RAGGED) // 300) & masks.causal()
    yield "documents", documents, None, RAGGED
    yield "soft cap in documents", documents, scores.softcap(30.0), RAGGED
    yield "group in parts", masks.causal(), None, EVEN


def problem_of(name, mask, score, N, d, dtype):
    """Return the problem of this kind, with heads of d columns."""
    q = torch.empty(1, H, N, d, dtype=dtype)
    k = q[:, :1] if name == "group in parts" else q
    sinks = torch.zeros(H) if name == "sink" else None
    return Problem.of(q, k, k, mask, 0.1, score=scores.chain(score), sinks=sinks)


def compile_kernels(problem, launches):
    """Return the two kernels of a problem's backward pass beside ``row_constants``."""
    q, k, v, o, lse, rest = tensors_of(problem)
    launches = divided(launches | {"row_constants": STREAMED}, Card((9, 0), 227 * 1024), problem)
    no_constants = mock.patch.object(rows, "launch", lambda *_, **__: None)
    of_an_h200 = mock.patch.object(backward, "multiprocessors", lambda device: 132)
    with no_constants, of_an_h200, compiled_instead((9, 0), backward, two_passes, portable.backward) as kernels:
        backward.run((q, k, v), (o, None), (q, k, v, o, lse), problem, launches, rest)
    return kernels


def cases():
    """Yield each kind of problem with the columns and dtype of its heads, and the kernels of its backward pass."""
    for kind in kinds():
        for d in (64, 80, 128) if kind[0] == "causal" else (64, 128):
            for dtype in (torch.bfloat16, torch.float16) if (kind[0], d) == ("full", 128) else (torch.bfloat16,):
                yield kind, d, dtype, ("backward",)
        widths = {"causal": (128, 192, 256), "full": (256,), "soft cap in a window": (256,), "documents": (256,)}
        for d in widths.get(kind[0], ()):
            yield kind, d, torch.bfloat16, TWO_PASSES


def reports():
    """Yield a dict for each kernel of each case."""
    table = {(row.kernel, row.width, row.causal): row for row in ON_HOPPER.rows}
    for kind, d, dtype, names in cases():
        width = hopper_width(d, d)
        some = [table[name, width, kind[1] != masks.full()] for name in names]
        problem = problem_of(*kind, d, dtype)
        launches = {row.kernel: Configuration(*row.launch) for row in some}
        kernels = zip((*names, "narrow")[:2], compile_kernels(problem, launches), strict=True)
        for (name, compiled), row in zip(kernels, (some * 2)[:2], strict=True):
            if name != "narrow" or kind[0] in ("full", "causal"):
                sizes = {"width": width, "d": d, "Br": row.Br, "Bc": row.Bc, "stages": row.stages}
                more = {"kind": kind[0], "causal": row.causal, "ragged": problem.Nk % row.Bc != 0}
                yield {"kernel": name, "dtype": NAMES[dtype]} | sizes | more | assembled(compiled)


if __name__ == "__main__":
    print_lines(reports())
