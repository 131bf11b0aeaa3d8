"""Compile the kernels of float8 for a GPU that is not here: ``python -m tests.tools.compile_float8 9.0 [LIMIT]``.

With ``hopper`` in place of the capability, compile the kernel in Gluon, for each of its rows of hopper.json.

Print one JSON object per launch, as ``compile_for`` does, with the numbers of its tensor-core instructions. LIMIT: the
largest number of cases to compile. Needs TRITON_INTERPRET=0, and so a process of its own.
"""

import sys
import tempfile
from unittest import mock

import torch

from flashlab.kernels import configurations, float8, masks, tables, tiles
from flashlab.kernels.attention_float8 import run
from flashlab.kernels.hopper import forward_float8
from flashlab.kernels.portable import forward
from flashlab.kernels.problem import Problem, Tile
from tests.tools.compile_for import SHARED, compiled_instead, output, print_lines, print_reports, resources
from tests.tools.compile_hopper import counts, instructions, launched


def attention(d, mask, dtype=torch.bfloat16, N=1000, two_level=True, kernel="portable", configuration=None):
    """Return a call of the attention kernel on one head, with scales per block."""
    q = torch.empty(1, 1, N, d, dtype=float8.E4M3)
    v = torch.empty(1, 1, d, tiles.count(N, 16) * 16, dtype=float8.E4M3)[..., :N].mT
    scale = torch.ones(1, 1, tiles.count(N, 128))
    scales = float8.Scales(scale, scale, scale[..., :1], two_level)
    problem = Problem.of(q, q, v, mask, d**-0.5, scales=scales)
    return lambda: run(q, q, v, problem, dtype, kernel, configuration)


def quantise(d, dtype, **options):
    """Return a call that quantises one head, rotated or transposed."""
    signs = float8.random_signs(d, 0) if options.pop("rotated", False) else None
    return lambda: float8.quantise(torch.empty(1, 1, 1000, d, dtype=dtype), signs=signs, **options)


def cases(capability):
    """Yield a name and a call for each case: heads of all widths, the masks, and each way to quantise."""
    documents = masks.documents(torch.arange(1000, dtype=torch.int32) // 300) & masks.causal()
    for d in (64, 128, 256):
        yield f"d = {d}, one level", attention(d, masks.full(), two_level=False)
        for name, mask in {
            "full": masks.full(),
            "causal": masks.causal(),
            "window": masks.window(200),
            "documents": documents,
        }.items():
            yield f"d = {d}, {name}", attention(d, mask)
        yield f"d = {d}, whole tiles, O in float32", attention(d, masks.full(), torch.float32, 1024)
        yield f"d = {d}, rotated", quantise(d, torch.bfloat16, rotated=True)
        yield f"d = {d}, transposed", quantise(d, torch.bfloat16, per="head", transposed=True)
    yield "float32, rotated", quantise(128, torch.float32, rotated=True)


def on_hopper():
    """Yield N, two_level, a call and its ``Row`` for each row of the kernel in hopper.json: ragged and whole tiles."""
    for row in tables.ON_HOPPER.rows:
        if row.kernel == "forward_float8":
            mask = masks.causal() if row.causal else masks.full()
            launch = configurations.Configuration(*row.launch)
            for N, two_level in ((1000, True), (1024, False)):
                yield N, two_level, attention(row.width, mask, torch.bfloat16, N, two_level, "hopper", launch), row


def compile_on_hopper(N, two_level, call, row):
    """Compile the kernel in Gluon for one case. Returns a dict: its resources, and its loops."""
    card = configurations.Card((9, 0), SHARED[9, 0] * 1024)
    with mock.patch.object(configurations, "card", lambda device: card):
        return {"N": N, "two_level": two_level, **row._asdict()} | launched(forward_float8, call)


def compile_for(capability, case):
    """Compile the kernels of one case. Yields a dict per launch."""
    name, call = case
    card = configurations.Card(capability, SHARED.get(capability, 99) * 1024)
    here = mock.patch.object(configurations, "card", lambda device: card)
    with here, mock.patch.object(float8, "_check"), compiled_instead(capability, float8, forward) as kernels:
        call()
    for compiled in kernels:
        tile, warps, stages = tile_of(compiled), compiled.metadata.num_warps, compiled.metadata.num_stages
        launch = {"Br": tile.Br, "Bc": tile.Bc, "flush": tile.flush, "warps": warps, "stages": stages} if tile else {}
        c = configurations.Configuration(tile.Br, tile.Bc, warps, stages) if tile else None
        yield {
            "kernel": compiled.metadata.name, "case": name, **launch,
            "shared": compiled.metadata.shared, "available": card.shared_bytes,
            "bound": configurations.shared_bytes("forward", c, max(tile.width, tile.width_v), 1) if tile else None,
            **resources(compiled.asm["cubin"]), "products": products(compiled.asm["cubin"]),
        }  # fmt: skip


def tile_of(compiled):
    """Return the ``Tile`` among the constants of a kernel, or None."""
    return next((x for x in compiled.src.constants.values() if isinstance(x, Tile)), None)


def products(cubin):
    """Count the tensor-core instructions, multiplications and additions in the machine code, by name."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = output("cuobjdump", "-sass", file.name).stdout
    all_counts = counts(text for _, text in instructions(sass))
    return {name: all_counts[name] for name in ("QGMMA", "HGMMA", "QMMA", "HMMA", "FFMA", "FMUL", "FADD")}


if __name__ == "__main__":
    if sys.argv[1] == "hopper":
        print_lines(compile_on_hopper(*case) for case in on_hopper())
    else:
        print_reports(cases, compile_for)
