"""Measure, on one GPU, what lesson 08 counts: time and bytes of attention, with the N x N matrices and without.

    python flashlab/bench/recomputation.py --out notebooks/data/h200_recomputation.json

The configuration is that of figure 2 (left) of the FlashAttention paper: forward and backward, batch 64, 16 heads,
N = 1024, d = 64, float16, dropout 0.1, a mask, not causal. Compared are

- standard: one PyTorch operation a step, as models of that time wrote it: scale folded into the product, an additive
  mask (of zeros: nothing is hidden), softmax, dropout, product;
- flash: PyTorch's scaled_dot_product_attention with its FLASH_ATTENTION backend, which takes no mask.

Time: CUDA events, median and quartiles. Bytes: the DRAM counters of Nsight Compute (``ncu``), read around each kernel
of one pass in a process of its own. Where ncu is missing or cannot read the counters, the file is written without
bytes, with what ncu said in their place, and the exit status is 1.
"""

import argparse
import csv
import datetime
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

B, H, N, d, DROPOUT = 64, 16, 1024, 64, 0.1
COUNTERS = {"read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum"}


def standard(Q, K, V, mask, dropout):
    """O [B * H, N, d], every step's result in memory. mask: [B * H, 1, N], added to the scores."""
    S = torch.baddbmm(Q.new_empty(1, 1, 1), Q, K.transpose(1, 2), beta=0, alpha=Q.shape[-1] ** -0.5)
    P = torch.softmax(S + mask, -1)
    return torch.nn.functional.dropout(P, dropout) @ V


def flash(Q, K, V, mask, dropout):
    """The same in one kernel forward."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        heads = [x.unflatten(0, (-1, H)) for x in (Q, K, V)]  # [B, H, N, d]
        O = torch.nn.functional.scaled_dot_product_attention(*heads, dropout_p=dropout)
    return O.flatten(0, 1)


WAYS = {"standard": standard, "flash": flash}


def inputs(batch=B):
    torch.manual_seed(0)
    Q, K, V, dO = (torch.randn(batch * H, N, d, device="cuda", dtype=torch.float16) for _ in range(4))
    return [x.requires_grad_() for x in (Q, K, V)], dO, torch.zeros(batch * H, 1, N, device="cuda", dtype=torch.float16)


def both_ways(way, QKV, dO, mask, dropout=DROPOUT):
    """O and the gradients of Q, K, V."""
    O = way(*QKV, mask, dropout)
    return O, *torch.autograd.grad(O, QKV, dO)


def check():
    """Without dropout both must compute the same: relative error of O, dQ, dK, dV against float32."""
    QKV, dO, mask = inputs(batch=1)
    wide = [x.detach().float().requires_grad_() for x in QKV]
    exact = both_ways(standard, wide, dO.float(), mask.float(), 0.0)
    for name, way in WAYS.items():
        pairs = zip(both_ways(way, QKV, dO, mask, 0.0), exact, strict=True)
        errors = [float((ours.float() - true).norm() / true.norm()) for ours, true in pairs]
        assert all(error < 5e-3 for error in errors), f"{name} is wrong: {errors}"


def milliseconds(repeats=40, warm_up=10):
    """Times of each way, in turns."""
    given, times = inputs(), {name: [] for name in WAYS}
    for turn in range(warm_up + repeats):
        for name, way in WAYS.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            both_ways(way, *given)
            end.record()
            torch.cuda.synchronize()
            if turn >= warm_up:
                times[name].append(start.elapsed_time(end))
    return times


def peak_bytes(way):
    """The most that the allocator held in one pass, beyond the inputs."""
    given = inputs()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both_ways(way, *given)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def once(name):
    """One pass between the marks that ncu looks for."""
    given = inputs()
    both_ways(WAYS[name], *given)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    both_ways(WAYS[name], *given)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def count(name):
    """Bytes that each kernel of one pass reads from DRAM and writes to it, in the order of the launches."""
    command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    command += ["--csv", "--print-units", "base", "--metrics", ",".join(COUNTERS.values())]
    command += [sys.executable, __file__, "--once", name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    lines = run.stdout.splitlines()
    table = [at for at, line in enumerate(lines) if line.startswith('"ID"')]
    if run.returncode or not table:
        raise RuntimeError(" ".join((run.stdout + run.stderr).split())[-400:])
    kernels = {}
    for row in csv.DictReader(lines[table[0] :]):
        said = re.sub(r"(<unnamed>|\(anonymous namespace\))::", "", row["Kernel Name"].removeprefix("void "))
        said = re.sub(r"[<(].*", "", said)
        kernel = kernels.setdefault(row["ID"], {"kernel": said})
        for counter, metric in COUNTERS.items():
            if row["Metric Name"] == metric:
                kernel[counter] = int(float(row["Metric Value"].replace(",", "")))
    return list(kernels.values())


def versions():
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "device": torch.cuda.get_device_name(),
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "command": "python flashlab/bench/recomputation.py --out FILE",
    }


def measure():
    """All of it, and whether the bytes are there."""
    check()
    times = milliseconds()
    configuration = {"B": B, "H": H, "N": N, "d": d, "dtype": "float16", "dropout": DROPOUT, "causal": False}
    result = {"about": versions(), "configuration": configuration}
    for name, way in WAYS.items():
        quartiles = torch.tensor(times[name]).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        result[name] = {"ms": quartiles[1], "ms_quartiles": quartiles[::2], "repeats": len(times[name])}
        result[name]["peak_bytes"] = peak_bytes(way)
    torch.cuda.empty_cache()
    for name in WAYS:
        try:
            kernels = count(name)
        except RuntimeError as error:
            result[name] |= {"bytes": None, "bytes_missing": str(error)}
        else:
            result[name] |= {"bytes": sum(k["read"] + k["written"] for k in kernels), "kernels": kernels}
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--once", choices=WAYS, help="one pass, for ncu to watch")
    arguments = parser.parse_args()
    if arguments.once:
        once(arguments.once)
    elif arguments.out:
        result = measure()
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps({name: {k: v for k, v in result[name].items() if k != "kernels"} for name in WAYS}, indent=1))
        sys.exit(any(result[name]["bytes"] is None for name in WAYS))
    else:
        parser.error("expected --out FILE")
