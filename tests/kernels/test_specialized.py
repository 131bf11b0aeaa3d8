"""The persistent kernels: every tile has its turn, and their results are those of the others.

In the interpreter any tile will do. On a GPU the compiler divides the work between warps, and there the tests are about
what it may get wrong: the same inputs give the same bits.
"""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from flashlab.kernels import DEVICE, INTERPRETED, attention, flash_attention
from flashlab.kernels.configurations import STREAMED, Choice, Configuration
from flashlab.kernels.portable import turns
from tests.kernels import written_out
from tests.kernels.test_hopper import hopper_only
from tests.tools.bounds import assert_as_exact_as_plain


@triton.jit
def list_turns(places, counts, tiles, longest, together: tl.constexpr):
    p = tl.program_id(0)
    n = turns.count(tiles, together)
    tl.store(counts + p, n)
    for turn in range(n):
        tl.store(places + p * longest + turn, turns.place(turn, together))


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("programs, tiles", [(4, 23), (4, 24), (3, 3), (5, 3), (1, 7)])
def test_every_tile_has_one_turn(programs, tiles, together):
    places = torch.full((programs, tiles), -1, dtype=torch.int32, device=DEVICE)
    counts = torch.empty(programs, dtype=torch.int32, device=DEVICE)
    list_turns[(programs,)](places, counts, tiles, tiles, together)
    assert sorted(places[places >= 0].tolist()) == list(range(tiles))
    assert counts.clamp(min=0).sum() == tiles


@triton.jit
def list_tiles(heads, numbers, Tr, alternating: tl.constexpr):
    place = tl.program_id(0)
    head, i = turns.tile(place, Tr, alternating)
    tl.store(heads + place, head)
    tl.store(numbers + place, i)


@pytest.mark.parametrize("Tr", [1, 4, 5])
def test_two_neighbours_see_as_many_keys_as_any_other_two(Tr):
    heads, numbers = torch.empty(2, 3 * Tr, dtype=torch.int32, device=DEVICE)
    list_tiles[(3 * Tr,)](heads, numbers, Tr, True)
    order = list(zip(heads.tolist(), numbers.tolist(), strict=True))
    assert sorted(order) == list(itertools.product(range(3), range(Tr)))
    assert order[: Tr - 1 : 2] == [(0, Tr - 1 - n) for n in range(Tr // 2)]
    pairs = [sum(numbers[n : n + 2].tolist()) for n in range(0, Tr - 1, 2)]
    assert set(pairs) <= {Tr - 1}


def choose_specialized(specialized, rows=16, keys=(16, 16), stages=1):
    """Return what chooses the persistent kernels, or those with a program per tile; keys: for O, and for gradients."""
    of_o, of_gradients = (Configuration(rows, n, 4, stages, specialized=specialized) for n in keys)
    launches = {"forward": of_o, "row_constants": STREAMED}
    launches |= {"key_value_gradients": of_gradients._replace(Br=keys[1]), "query_gradients": of_gradients}
    return lambda *_, **__: Choice("portable", launches, "")


def run(inputs, dO, causal):
    O, lse = flash_attention(*inputs, causal=causal, return_lse=True)
    return O, lse, *torch.autograd.grad(O, inputs, dO)


def draw(B, H, Hk, Nq, Nk, d, dv, dtype):
    """Return q, k, v and dO, whose rows are side by side."""
    generator = torch.Generator().manual_seed(0)
    shapes = (B, Nq, H, d), (B, Nk, Hk, d), (B, Nk, Hk, dv), (B, Nq, H, dv)
    q, k, v, dO = (torch.randn(s, generator=generator).to(DEVICE, dtype).transpose(1, 2) for s in shapes)
    return [x.requires_grad_() for x in (q, k, v)], dO


@pytest.mark.skipif(not INTERPRETED, reason="for small tiles, which the compiler does not divide")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("B, H, Hk, Nq, Nk, d, dv", [(1, 3, 1, 50, 37, 32, 16), (2, 2, 2, 33, 64, 16, 32)])
def test_results_are_those_of_the_others(B, H, Hk, Nq, Nk, d, dv, causal, monkeypatch):
    inputs, dO = draw(B, H, Hk, Nq, Nk, d, dv, torch.float16)
    found = []
    for specialized in (False, True):
        monkeypatch.setattr(attention, "choose", choose_specialized(specialized))
        found.append(run(inputs, dO, causal))
        with torch.no_grad():  # lse is not asked for
            assert torch.equal(flash_attention(*inputs, causal=causal), found[-1][0])
    for x, expected in zip(found[1], found[0], strict=True):
        assert torch.equal(x, expected)


@hopper_only
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("B, H, Hk, Nq, Nk", [(1, 2, 2, 2048, 2048), (1, 40, 8, 333, 333), (2, 3, 1, 1500, 1100)])
def test_compiled_kernels_are_exact_and_give_the_same_bits_each_time(B, H, Hk, Nq, Nk, causal, monkeypatch):
    """Few tiles, so that nothing slows loads down: that is where barriers under a tile were seen to spoil it."""
    inputs, dO = draw(B, H, Hk, Nq, Nk, 128, 128, torch.bfloat16)
    monkeypatch.setattr(attention, "choose", choose_specialized(True, 128, (128, 64), 2))
    monkeypatch.setattr(attention, "_plans", {})
    found = run(inputs, dO, causal)
    for _ in range(30):
        for x, expected in zip(run(inputs, dO, causal), found, strict=True):
            assert torch.equal(x, expected)
        with torch.no_grad():
            assert torch.equal(flash_attention(*inputs, causal=causal), found[0])
    i, j = torch.arange(Nq, device=DEVICE)[:, None], torch.arange(Nk, device=DEVICE)
    seen = j <= i + Nk - Nq if causal else i + j >= 0
    exact, plain = (dense(inputs, dO, seen, dtype) for dtype in (torch.float64, torch.bfloat16))
    for ours, theirs, truth in zip((found[0], *found[2:]), plain, exact, strict=True):
        assert_as_exact_as_plain(ours, theirs, truth)


def dense(inputs, dO, seen, dtype):
    """Return O and the gradients of q, k and v, with all scores in memory."""
    x = [t.detach().to(dtype).requires_grad_() for t in inputs]
    O, _ = written_out.attention(*x, seen)
    return O, *torch.autograd.grad(O, x, dO.to(dtype))
