"""Measure, on one Hopper GPU, the kernels of lesson 14 beside the production ones.

    python flashlab/bench/hopper.py --json notebooks/data/h200_hopper.json

Forward and backward, as ``flashlab.bench`` does it: 16,384 tokens in sequences of N, 2,048 columns in heads of d,
bfloat16; all implementations take turns in one process, in three rounds. Compared are the Hopper kernels ("hopper"),
the portable ones, cuDNN and FlashAttention-4 (the package flash-attn-4, on its path for compute capability 9.0); at
d = 128, forward, also the rungs 1 to 4 of the lesson's ladder, and the fifth with ping-pong.
"""

import argparse
import json

import torch

from flashlab.bench import round_robin
from flashlab.kernels import configuration
from flashlab.kernels.hopper import forward, ladder

ALL = ("hopper", "portable", "cudnn", "fa4")


def rung(number):
    return lambda q, k, v, causal: ladder.attend(number, q, k, v, causal)


def pingpong(q, k, v, causal):
    """The forward pass as it is chosen, but for the turns that its consumers take."""
    o, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    c = configuration("forward", q, k, v, causal, "hopper")
    forward.run(o, lse, q, k, v, causal, q.shape[3] ** -0.5, c, pingpong=True)
    return o


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", required=True, help="where the result goes")
    parser.add_argument("--impls", nargs="+", default=ALL, help="without FlashAttention-4, if it is not there")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    production = {name: round_robin.implementation(name) for name in options.impls}
    own = {f"rung {number}": rung(number) for number in (1, 2, 3, 4)} | {"ping-pong": pingpong}
    rows, left_out = [], {}
    for direction in ("forward", "backward"):
        for d in (64, 128):
            functions = production | (own if (direction, d) == ("forward", 128) else {})
            cells = [
                round_robin.Cell(direction, d, causal, N, 16384, 2048)
                for causal in (False, True)
                for N in (1024, 4096, 16384)
            ]
            found, missing = round_robin.measure(
                cells, functions, rounds=options.rounds, gap=0.3, timer=round_robin.gpu_timer, device="cuda",
                dtype=torch.bfloat16, tell=round_robin.progress,
            )  # fmt: skip
            rows, left_out = rows + found, left_out | missing
    report = round_robin.environment([]) | {
        "command": "python flashlab/bench/hopper.py --json notebooks/data/h200_hopper.json"
    }
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(report | {"rows": rows, "left_out": left_out}, file, indent=1)
    print(round_robin.table(rows))
    print(left_out)


if __name__ == "__main__":
    main()
