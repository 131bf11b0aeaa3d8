"""Compile the kernels of decoding for a GPU that is not here: ``python -m tests.tools.compile_decode 9.0 [LIMIT]``.

With ``latent`` in place of the capability, compile the Hopper kernel for latents.

Print one JSON object per launch, as ``tests.tools.compile_for``. LIMIT: the largest number of caches to compile. Needs
TRITON_INTERPRET=0, and so a process of its own.
"""

import sys
from unittest import mock

import torch

from flashlab.kernels import configurations, masks, scores, shared_prefix, tiles
from flashlab.kernels.decode import Cache, operator
from flashlab.kernels.decode import tiles as decode_tiles
from flashlab.kernels.hopper import latent
from tests.tools.compile_for import SHARED, compiled_instead, print_lines, print_reports, resources
from tests.tools.compile_hopper import launched

BF16, FP16 = torch.bfloat16, torch.float16


def cases(capability):
    """Yield a name, queries q [B, H, n, d], a cache with lengths, and options, for each kind of cache."""
    lengths = torch.zeros(2, dtype=torch.int32)
    table = torch.zeros(2, 128, dtype=torch.int32)
    for d, dtype in (128, BF16), (64, FP16), (256, BF16), (64, torch.float32):
        K = torch.empty(2, 8, 8192, d, dtype=dtype)
        yield f"d = {d}", torch.empty(2, 32, 1, d, dtype=dtype), Cache(K, K.clone(), None, lengths), {}
    K = torch.empty(2, 1, 8192, 128, dtype=BF16)
    yield "64 rows", torch.empty(2, 16, 4, 128, dtype=BF16), Cache(K, K.clone(), None, lengths), {}
    for page in (16, 128):
        K = torch.empty(64, 8, page, 128, dtype=BF16)
        yield f"pages of {page}", torch.empty(2, 32, 1, 128, dtype=BF16), Cache(K, K.clone(), table, lengths), {}
    for dtype in (torch.int8, torch.float8_e4m3fn)[: 2 if capability >= (8, 9) else 1]:
        K = torch.empty(64, 8, 64, 128, dtype=dtype)
        cache = Cache(K, K.clone(), table, lengths, torch.empty(2, 64, 8, 64))
        yield str(dtype), torch.empty(2, 32, 1, 128, dtype=BF16), cache, {}
    for H in (16, 128):
        K = torch.empty(64, 1, 64, 576, dtype=BF16)
        yield f"latent, {H} heads", torch.empty(2, H, 1, 576, dtype=BF16), Cache(K, K[..., :512], table, lengths), {}
    K = torch.empty(64, 8, 64, 128, dtype=BF16)
    options = {"score": scores.chain((scores.alibi(torch.ones(32)), scores.softcap(30.0))), "sinks": torch.ones(32)}
    for mask in (masks.window(1023), masks.causal() & (masks.sinks(4) | masks.window(1023))):
        cache = Cache(K, K.clone(), table, lengths)
        yield repr(mask), torch.empty(2, 32, 1, 128, dtype=BF16), cache, options | {"mask": mask}


def compile_for(capability, case):
    """Compile the kernels of decoding for one case. Yields a dict per kernel."""
    name, q, cache, options = case
    card = configurations.Card(capability, SHARED[capability] * 1024)
    decode_tiles.launch_for.cache_clear()
    here = mock.patch.object(decode_tiles, "card", lambda device: card)
    with here, compiled_instead(capability, operator, shared_prefix) as kernels:
        options = {"mask": masks.causal(), "scale": 0.1} | options
        problem = operator.problem_of(q, cache, **options)
        operator.run(q, cache, operator.Step.of(q, cache, problem, S=8))
        rows, (d, dv) = q.shape[1] * q.shape[2] // cache.K.shape[1], (cache.K.shape[3], cache.V.shape[3])
        width = tiles.width_of(dv if cache.latent else max(d, dv))
        size, paged = cache.K.element_size(), cache.table is not None
        short = cache.most < decode_tiles.SHORT
        launch = decode_tiles.launch_for(q.device, rows, width, size, paged, short)
        if name == "d = 128":
            O, lse = torch.empty(2, 32, 1, 128), torch.empty(2, 32, 1)
            shared_prefix.merge(O, lse, torch.empty(1, 8, 8, 128), torch.empty(1, 8, 8))
    for compiled in kernels:
        yield {
            "kernel": compiled.metadata.name, "capability": capability, "case": name, "launch": launch,
            "shared": compiled.metadata.shared, "available": card.shared_bytes,
            "bound": decode_tiles.shared_bytes(launch, width, size), **resources(compiled.asm["cubin"]),
        }  # fmt: skip


def compile_latent(paged):
    """Compile the kernel for latents on compute capability 9.0. Returns a dict."""
    lengths, table = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 128, dtype=torch.int32)
    q, C = (torch.empty(*shape, 576, dtype=BF16) for shape in ((2, 128, 1), (64, 1, 64) if paged else (2, 1, 8192)))
    cache = Cache(C, C[..., :512], *((table, lengths) if paged else ()))
    O_s, lse_s = torch.empty(8, 2, 128, 512), torch.empty(8, 2, 128)
    return {"kernel": "attention_latent"} | launched(latent, lambda: latent.run(q, cache, O_s, lse_s, (8, 0), 0.1))


if __name__ == "__main__":
    if sys.argv[1] == "latent":
        print_lines(compile_latent(paged) for paged in (False, True))
    else:
        print_reports(cases, compile_for)
