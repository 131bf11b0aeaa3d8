"""Measure, on one GPU, the time and the DRAM traffic of attention, with the N x N matrices and without.

    python -m flashlab.bench.recomputation --json notebooks/data/h200_recomputation.json

The configuration is that of figure 2 (left) of the FlashAttention paper: forward and backward, batch 64, 16 heads,
N = 1024, d = 64, float16, dropout 0.1, a mask, not causal. The two ways are

- standard: one PyTorch operation per step, as models of that time wrote it: scale folded into the product, an additive
  mask (of zeros: nothing is hidden), softmax, dropout, product;
- flash: PyTorch's scaled_dot_product_attention with its FLASH_ATTENTION backend, which takes no mask.

Time: CUDA events, median and quartiles. Bytes: the DRAM counters of Nsight Compute (``ncu``), read around each kernel
of one pass in a process of its own. Where ncu is missing or cannot read the counters, the file is written without
bytes, with the reason in their place, and the exit status is 1.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashlab.bench import ncu, record
from flashlab.machine.costs import error
from flashlab.machine.timing import round_robin

MODULE = "flashlab.bench.recomputation"
B, H, N, d, DROPOUT = 64, 16, 1024, 64, 0.1
COUNTERS = {"read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum"}


def standard(Q, K, V, mask, dropout: float) -> torch.Tensor:
    """Return O [B * H, N, d], with the result of every step in memory. mask: [B * H, 1, N], added to the scores."""
    S = torch.baddbmm(Q.new_empty(1, 1, 1), Q, K.transpose(1, 2), beta=0, alpha=Q.shape[-1] ** -0.5)  # [B * H, N, N]
    P = torch.softmax(S + mask, -1)  # [B * H, N, N]
    return torch.nn.functional.dropout(P, dropout) @ V


def flash(Q, K, V, mask, dropout: float) -> torch.Tensor:
    """Return the same O, from one kernel."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        heads = [x.unflatten(0, (-1, H)) for x in (Q, K, V)]  # [B, H, N, d]
        O = torch.nn.functional.scaled_dot_product_attention(*heads, dropout_p=dropout)
    return O.flatten(0, 1)


WAYS = {"standard": standard, "flash": flash}


def inputs(batch: int = B) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Make [Q, K, V] and dO, each [batch * H, N, d], and the mask [batch * H, 1, N]."""
    torch.manual_seed(0)
    Q, K, V, dO = (torch.randn(batch * H, N, d, device="cuda", dtype=torch.float16) for _ in range(4))
    return [x.requires_grad_() for x in (Q, K, V)], dO, torch.zeros(batch * H, 1, N, device="cuda", dtype=torch.float16)


def both_passes(way: Callable, QKV, dO, mask, dropout: float = DROPOUT) -> tuple[torch.Tensor, ...]:
    """Return O and the gradients of Q, K, V."""
    O = way(*QKV, mask, dropout)
    return O, *torch.autograd.grad(O, QKV, dO)


def check() -> None:
    """Compare O and gradients of each way, without dropout, with float32. Raises AssertionError if one is wrong."""
    QKV, dO, mask = inputs(batch=1)
    wide = [x.detach().float().requires_grad_() for x in QKV]
    exact = both_passes(standard, wide, dO.float(), mask.float(), 0.0)
    for name, way in WAYS.items():
        pairs = zip(both_passes(way, QKV, dO, mask, 0.0), exact, strict=True)
        errors = [error(*(x.detach().float().cpu().numpy() for x in pair)) for pair in pairs]
        assert all(found < 5e-3 for found in errors), f"{name} is wrong: {errors}"


def milliseconds(repeats: int = 40, warm_up: int = 10) -> dict[str, list[float]]:
    """Return the times of each way, which take turns."""
    tensors, times = inputs(), {name: [] for name in WAYS}
    for name in round_robin(list(WAYS), warm_up + repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        both_passes(WAYS[name], *tensors)
        end.record()
        torch.cuda.synchronize()
        times[name].append(start.elapsed_time(end))
    return {name: ms[warm_up:] for name, ms in times.items()}


def peak_bytes(way: Callable) -> int:
    """Return the most bytes that the allocator held in one pass, beyond the inputs."""
    tensors = inputs()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both_passes(way, *tensors)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def once(name: str) -> None:
    """Run one pass between the marks that ``ncu.count`` looks for."""
    tensors = inputs()
    ncu.marked(lambda: both_passes(WAYS[name], *tensors))


def count(name: str) -> list[dict]:
    """Return the bytes that each kernel of one pass reads from DRAM and writes to it, in the order of the launches."""
    kernels = ncu.count(MODULE, ["--once", name], COUNTERS, options=["--cache-control", "none"])
    return [kernel | {"kernel": short(kernel["kernel"])} for kernel in kernels]


def short(kernel: str) -> str:
    """Return the name of a kernel without return type, unnamed namespaces, template arguments and parameters."""
    kernel = re.sub(r"(<unnamed>|\(anonymous namespace\))::", "", kernel.removeprefix("void "))
    return re.sub(r"[<(].*", "", kernel)


def measure(report: dict) -> dict:
    """Return the report, with the measurements of each way under its name."""
    check()
    times = milliseconds()
    shape = {"B": B, "H": H, "N": N, "d": d, "dtype": "float16", "dropout": DROPOUT, "causal": False}
    report |= {"configuration": shape}
    for name, way in WAYS.items():
        quartiles = statistics.quantiles(times[name], n=4, method="inclusive")
        report[name] = {"ms": quartiles[1], "ms_quartiles": quartiles[::2], "repeats": len(times[name])}
        report[name]["peak_bytes"] = peak_bytes(way)
    torch.cuda.empty_cache()  # the counted passes run in processes of their own, on the same card
    for name in WAYS:
        try:
            kernels = count(name)
        except RuntimeError as error:
            report[name] |= {"bytes": None, "bytes_missing": str(error)}
        else:
            report[name] |= {"bytes": sum(k["read"] + k["written"] for k in kernels), "kernels": kernels}
    return report


def main(argv: list[str]) -> int:
    """Run the command line. Return its exit status, as ``record.conclude``; 1 if bytes are missing, too."""
    parser = record.parser(MODULE, __doc__)
    parser.add_argument("--once", choices=WAYS, help=argparse.SUPPRESS)  # for ncu to watch
    options = parser.parse_args(argv)
    record.need_gpu()
    if options.once:
        once(options.once)
        return 0
    report = measure({"about": record.origin(MODULE, argv)})
    summary = {name: {key: value for key, value in report[name].items() if key != "kernels"} for name in WAYS}
    status = record.conclude(report, options.json, json.dumps(summary, indent=1))
    return status if all(report[name]["bytes"] is not None for name in WAYS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
