"""Measure, on one GPU, the bytes that one forward pass moves: standard attention and flashlab's kernel.

    python flashlab/bench/traffic.py --out notebooks/data/h200_traffic.json

16 heads, N = 4096, d = 64, bfloat16, not causal. Read are, by Nsight Compute (``ncu``), the counters of DRAM and those
between the L2 cache and the multiprocessors: what a program asks for crosses the second line, what the cache cannot
keep crosses the first. Beside them: what ``tiling.fa2_traffic`` foretells for the tiles that were launched, and what
lesson 06's counting memory books for the same tiles. Where ncu is missing, the exit status is 1 and nothing is written.
"""

import argparse
import csv
import datetime
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from flashlab.kernels import flash_attention, triton
from flashlab.kernels.configurations import configuration
from flashlab.machine.memory import Memory
from flashlab.reference import tiling

H, N, d = 16, 4096, 64
COUNTERS = {
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "read": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "written": "l1tex__m_l1tex2xbar_write_bytes.sum",
}


def standard(q, k, v):
    """softmax(scale * Q K^T) V, an operation a step."""
    return torch.softmax(q @ k.mT * d**-0.5, -1) @ v


WAYS = {"standard": standard, "flashlab": flash_attention}


def inputs():
    torch.manual_seed(0)
    return [torch.randn(1, H, N, d, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def once(name):
    """One pass between the marks that ncu looks for."""
    given = inputs()
    WAYS[name](*given)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    WAYS[name](*given)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def measured(name):
    """The bytes of one pass, by counter, summed over its kernels."""
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--print-units", "base"]
    command += ["--metrics", ",".join(COUNTERS.values()), sys.executable, __file__, "--once", name]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = run.stdout.splitlines()
    table = [at for at, line in enumerate(lines) if line.startswith('"ID"')]
    if run.returncode or not table:
        sys.exit("ncu counted nothing: " + " ".join((run.stdout + run.stderr).split())[-400:])
    rows = list(csv.DictReader(lines[table[0] :]))
    return {
        counter: sum(float(row["Metric Value"].replace(",", "")) for row in rows if row["Metric Name"] == metric)
        for counter, metric in COUNTERS.items()
    } | {"kernels": len({row["ID"] for row in rows})}


def foretold(c):
    """The bill of one head by closed form and by the counting memory, times the heads, in bfloat16's two bytes."""
    formula = tiling.fa2_traffic(N, N, d, c.Br, c.Bc, dtype=np.float16)  # two bytes, as bfloat16
    memory = Memory(record=False)
    Q, K, V = np.random.default_rng(0).normal(size=(3, N, d)).astype(np.float16)
    tiling.fa2_forward(Q, K, V, c.Br, c.Bc, memory=memory)
    return {
        way: {side: H * sum(n for (kind, _), n in bill.items() if kind == side) for side in ("load", "store")}
        for way, bill in {"formula": formula, "counting_memory": memory.bytes}.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--once", choices=WAYS)
    asked = parser.parse_args()
    if asked.once:
        return once(asked.once)
    c = configuration("forward", *inputs(), False)
    report = {
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda},
        "date": str(datetime.date.today()),
        "command": "python flashlab/bench/traffic.py --out FILE",
        "configuration": {"H": H, "N": N, "d": d, "dtype": "bfloat16", "causal": False, "Br": c.Br, "Bc": c.Bc},
        "predicted": foretold(c),
        "measured": {name: measured(name) for name in WAYS},
    }
    text = json.dumps(report, indent=1)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
