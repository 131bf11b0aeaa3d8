"""On a Hopper GPU every forward configuration equals dense attention, and always gives the same bits.

A kernel with a wrong barrier may wait forever. So the tests run in another process, which ends if a test takes
too long.
"""

import functools
import itertools
import math

import pytest
import torch

from flashlab.kernels import DEVICE, masks, packed, tiles
from flashlab.kernels import scores as scoring
from flashlab.kernels.attention_float8 import flash_attention_float8
from flashlab.kernels.configurations import Configuration
from flashlab.kernels.hopper import forward
from flashlab.kernels.problem import Problem
from flashlab.reference import masks as reference_masks
from tests.kernels import written_out
from tests.kernels.implementations import HOPPER
from tests.kernels.in_eight_bits import error, in_eight_bits, in_exact_arithmetic, widened
from tests.kernels.inputs import in_bfloat16, laid_out
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.taken_in import in_window

hopper_only = pytest.mark.skipif(not HOPPER, reason="the Hopper kernels need a GPU of compute capability 9.0")
CONFIGURATIONS = {  # name: (width, Configuration)
    "128": (128, Configuration(128, 128, 12, 2)),
    "128, 64 keys": (128, Configuration(128, 64, 12, 4)),
    "64": (64, Configuration(128, 128, 12, 3)),
    "64 three consumers": (64, Configuration(192, 128, 16, 3)),
    "192": (192, Configuration(128, 64, 12, 2)),
    "256": (256, Configuration(128, 64, 12, 2)),
}


def poisoned(q, dv):
    """Return two buffers of NaN, and O and lse in them. The kernel may not write past the ends of O and lse."""
    B, H, Nq, _ = q.shape
    o = torch.full((B, H, Nq + 7, dv), math.nan, dtype=q.dtype, device=DEVICE)
    lse = torch.full((B * H * Nq + 64,), math.nan, device=DEVICE)
    return o, lse, o[:, :, :Nq], lse[:-64].view(B, H, Nq)


def assert_equals_dense(run, q, k, v, causal, scale=None):
    """Compare with run(o, lse, q, k, v, problem), a function such as ``forward.run``."""
    scale = q.shape[3] ** -0.5 if scale is None else scale
    o_buffer, lse_buffer, o, lse = poisoned(q, v.shape[3])
    mask = masks.either(causal, None)
    run(o, lse, *(tiles.ready(x) for x in (q, k, v)), Problem.of(q, k, v, mask, scale))
    seen = in_window(mask, q.shape[2], k.shape[2])
    (exact_o, exact_lse), (plain_o, _), (_, plain_lse) = (
        written_out.attention(*(x.to(t) for x in (q, k, v)), seen, scale=scale)
        for t in (torch.float64, q.dtype, torch.float32)
    )
    assert_as_exact_as_plain(o, plain_o, exact_o)
    assert_as_exact_as_plain(lse, plain_lse, exact_lse, roundings=4)
    assert (o[exact_lse == -math.inf] == 0).all()
    assert o_buffer[:, :, q.shape[2] :].isnan().all() and lse_buffer[-64:].isnan().all()


# cases that are compared with dense attention: name, then q, k, v

LENGTHS = [
    (70, 133), (133, 70), (20, 133), (65, 64), (64, 65), (128, 192), (192, 128), (256, 129), (1000, 777), (300, 1000),
    (1, 1), (1, 133), (133, 1), (700, 64),
]  # fmt: skip
DIMENSIONS = {
    64: [(16, 16), (40, 40), (16, 64)],
    128: [(80, 80), (72, 96), (96, 72), (104, 104), (64, 128), (128, 16)],
    192: [(136, 136), (160, 192), (192, 128), (128, 192), (16, 176)],
    256: [(208, 208), (240, 64), (64, 256)],
}


def lengths(width):
    for Nq, Nk in LENGTHS:
        yield f"{Nq} queries, {Nk} keys", in_bfloat16(2, 3, 3, Nq, Nk, width)


def many_tiles(width):
    """More tiles than multiprocessors: a program computes several."""
    yield "whole tiles", in_bfloat16(3, 16, 16, 1536, 1536, width)
    yield "ragged tiles", in_bfloat16(2, 20, 4, 1000, 1100, width)
    yield "rows that see no key", in_bfloat16(2, 20, 20, 1000, 600, width)


def dimensions(width):
    for d, dv in DIMENSIONS[width]:
        yield f"d = {d}, dv = {dv}", in_bfloat16(2, 2, 1, 300, 200, d, dv)


def groups(width):
    for Hk in (1, 2, 6):
        yield f"6 heads on {Hk}", in_bfloat16(2, 6, Hk, 200, 300, width)


def layouts(width):
    for layout in ("transposed", "sliced", "rows", "expanded"):
        yield layout, [laid_out(x, layout) for x in in_bfloat16(2, 4, 4, 200, 300, width)]


def scores(width):
    q, k, v = in_bfloat16(1, 2, 2, 300, 500, width)
    rising = torch.linspace(-4, 4, 500, device=DEVICE, dtype=k.dtype)[:, None].expand(1, 2, 500, width).contiguous()
    yield "scores of 1e4", [q * 1e4, k, v]
    yield "scores below -1e4", [q.abs() * 2e4, -k.abs(), v]
    yield "equal scores", [q * 0, k, v]
    yield "a maximum that grows with every key", [q.abs(), rising, v]
    yield "a maximum that falls with every key", [q.abs(), -rising, v]
    yield "float16", in_bfloat16(2, 3, 3, 300, 500, width, dtype=torch.float16)


KINDS = (lengths, many_tiles, dimensions, groups, layouts, scores)


def check_kinds(run, kinds, width):
    """Check every case of these kinds, causal and not."""
    for kind in kinds:
        for name, tensors in kind(width):
            for causal in (False, True):
                try:
                    assert_equals_dense(run, *tensors, causal)
                except AssertionError as error:
                    raise AssertionError(f"{name}, causal {causal}") from error


def forward_run(name):
    return functools.partial(forward.run, c=CONFIGURATIONS[name][1])


def forward_equals_dense(name):
    run, width = forward_run(name), CONFIGURATIONS[name][0]
    check_kinds(run, KINDS, width)
    for scale in (0.01, 0.7, 1.0):
        assert_equals_dense(run, *in_bfloat16(1, 2, 1, 200, 300, width), True, scale)


@hopper_only
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_forward_equals_dense(name, in_time):
    in_time(forward_equals_dense, name)


# masks, score functions and sinks


WINDOWS = (0, 0), (1, 0), (63, 0), (64, 0), (130, 0), (500, 0), (5, 70), (130, 129), (64, None), (None, 64)


def assert_equals_written_out(run, q, k, v, mask, seen, score=None, formula=None, sinks=None):
    """Compare with ``written_out.attention`` for seen and formula: the mask and the score function, written out.

    Under a window, keys that no query sees are NaN.
    """
    problem = Problem.of(q, k, v, mask, q.shape[3] ** -0.5, score=scoring.chain(score), sinks=sinks)
    unseen = ~seen.broadcast_to(*q.shape[:3], k.shape[2]).flatten(0, 2).any(0)  # [Nk]
    nothing = math.nan if isinstance(mask, masks.Window) else 0
    k, v = (torch.where(unseen[:, None], nothing, x) for x in (k, v))
    o_buffer, lse_buffer, o, lse = poisoned(q, v.shape[3])
    run(o, lse, q, k, v, problem)
    k, v = (x.nan_to_num(0) for x in (k, v))
    exact_o, exact_lse = written_out.attention(*(x.double() for x in (q, k, v)), seen, formula, sinks)
    assert_as_exact_as_plain(o, written_out.attention(q, k, v, seen, formula, sinks)[0], exact_o)
    narrow = torch.float32 if formula is None else q.dtype  # the hardware's tanh has 11 bits
    plain = written_out.attention(*(x.to(narrow) for x in (q, k, v)), seen, formula, sinks)[1].float()
    assert_as_exact_as_plain(lse, plain, exact_lse, roundings=4)
    assert (o[~seen.broadcast_to(*q.shape[:3], k.shape[2]).any(-1)] == 0).all()
    assert o_buffer[:, :, q.shape[2] :].isnan().all() and lse_buffer[-64:].isnan().all()


def check_masked(run, cases):
    for name, tensors, *rest in cases:
        try:
            assert_equals_written_out(run, *tensors, *rest)
        except AssertionError as error:
            raise AssertionError(name) from error


def windows(width):
    for (Nq, Nk), ends in itertools.product(LENGTHS, WINDOWS):
        mask = masks.Window(*ends)
        yield f"{Nq} queries, {Nk} keys, {mask}", in_bfloat16(2, 3, 1, Nq, Nk, width), mask, in_window(mask, Nq, Nk)
    for (H, Hk, Nq, Nk), ends in itertools.product(
        [(16, 16, 1536, 1536), (20, 4, 1000, 1100), (20, 20, 1000, 600)], [(255, 0), (511, 0), (300, 150), (1, 700)]
    ):
        mask = masks.Window(*ends)
        yield f"{H} heads, {Nq}, {Nk}, {mask}", in_bfloat16(2, H, Hk, Nq, Nk, width), mask, in_window(mask, Nq, Nk)
    mask = masks.window(100)
    for d in DIMENSIONS[width]:
        yield f"d = {d}", in_bfloat16(2, 2, 1, 300, 200, *d), mask, in_window(mask, 300, 200)
    yield "float16", in_bfloat16(2, 3, 3, 300, 500, width, dtype=torch.float16), mask, in_window(mask, 300, 500)


def score_functions(width):
    for (Nq, Nk), mask in itertools.product(
        [(300, 300), (129, 500), (500, 129), (1, 200)],
        [masks.full(), masks.causal(), masks.window(100), masks.Window(70, 90)],
    ):
        own, j = written_out.own(Nq, Nk)
        slopes = torch.rand(2, 4, device=DEVICE)

        def far(S, own=own, j=j, slopes=slopes):
            return S - slopes[:, :, None, None].to(S) * (own - j).abs()

        kinds = {
            "soft cap": (scoring.softcap(3.0), lambda S: 3 * (S / 3).tanh()),
            "alibi": (scoring.alibi(slopes), far),
            "alibi, then a soft cap": (
                (scoring.alibi(slopes), scoring.softcap(5.0)),
                lambda S, far=far: 5 * (far(S) / 5).tanh(),
            ),
        }  # fmt: skip
        for name, (score, formula) in kinds.items():
            for dtype in (torch.bfloat16, torch.float16):
                q, k, v = in_bfloat16(2, 4, 2, Nq, Nk, width, dtype=dtype)
                yield (
                    f"{name}, {Nq}, {Nk}, {mask}, {dtype}",
                    (q * 4, k, v),
                    mask,
                    in_window(mask, Nq, Nk),
                    score,
                    formula,
                )


def sinks(width):
    for (Nq, Nk), mask in itertools.product(
        [(300, 300), (129, 500), (500, 129)], [masks.full(), masks.causal(), masks.window(64)]
    ):
        values = torch.tensor([-math.inf, -3.0, 0.5, 100.0], device=DEVICE)
        for dtype in (torch.float32, torch.bfloat16):
            x = in_bfloat16(2, 4, 2, Nq, Nk, width)
            yield f"sinks {Nq}, {Nk}, {mask}", x, mask, in_window(mask, Nq, Nk), None, None, values.to(dtype)


def rules(width):
    """Masks under which each query sees one interval of keys."""
    for Nq, Nk in [(300, 300), (128, 128), (1000, 1000), (129, 500), (500, 129), (1, 133)]:
        own, j = written_out.own(Nq, Nk)
        ids = torch.randint(0, 4, (2, Nk), generator=torch.Generator().manual_seed(Nq)).sort(-1)[0].to(DEVICE)
        same = ((ids[:, own[:, 0].clamp(0)][:, :, None] == ids[:, None]) & (own >= 0))[:, None]  # [B, 1, Nq, Nk]
        documents, one, causal = masks.documents(ids), masks.documents(ids[0]), masks.causal()
        slopes = torch.rand(4, device=DEVICE)
        far = lambda S, own=own, j=j, slopes=slopes: S - slopes[:, None, None].to(S) * (own - j).abs()  # noqa: E731
        for name, mask, seen, *rest in [
            ("documents", documents, same),
            ("causal documents", documents & causal, same & (j <= own)),
            ("documents in a window", one & masks.Window(50, 9), same[:1] & (j <= own + 9) & (j >= own - 50)),
            ("prefix", masks.prefix(70), ((j <= own) | (j < 70))[None, None]),
            ("documents with sinks", one & causal, same[:1] & (j <= own), None, None, slopes),
            ("documents with ALiBi", one & causal, same[:1] & (j <= own), scoring.alibi(slopes), far),
        ]:
            yield f"{name}, {Nq}, {Nk}", in_bfloat16(2, 4, 2, Nq, Nk, width), mask, seen, *rest
    for (H, Hk), length in itertools.product([(16, 16), (20, 4)], (70, 200, 1000)):
        ids = torch.arange(1536, device=DEVICE) // length
        own, j = written_out.own(1536, 1536)
        mask, seen = masks.documents(ids) & masks.causal(), (ids[:, None] == ids) & (j <= own)
        yield f"{H} heads, documents of {length}", in_bfloat16(3, H, Hk, 1536, 1536, width), mask, seen
    begin = [torch.tensor([0, *torch.tensor(x).cumsum(0)], device=DEVICE) for x in TEXTS]
    text, key_text = (torch.repeat_interleave(torch.tensor(x)).to(DEVICE) for x in TEXTS)
    place, j = (torch.arange(len(x), device=DEVICE) - b[x] for x, b in zip((text, key_text), begin, strict=True))
    own = (place + torch.tensor(TEXTS[1]).to(DEVICE)[text] - torch.tensor(TEXTS[0]).to(DEVICE)[text])[:, None]
    for mask in (masks.full(), masks.causal(), masks.window(40, 5), masks.Window(30, None)):
        left, right = (math.inf if end is None else end for end in mask)
        seen = (text[:, None] == key_text) & (j <= own + right) & (j >= own - left)
        apart = packed.prepared(*begin).apart(mask)
        yield f"texts, {mask}", in_bfloat16(1, 4, 2, len(text), len(key_text), width), apart, seen


TEXTS = (100, 1, 64, 0, 300, 7, 128, 5), (100, 40, 64, 3, 200, 0, 128, 6)  # queries and keys of each
MASKED = (windows, score_functions, sinks, rules)


def masked_equals_written_out(name, kind):
    check_masked(forward_run(name), kind(CONFIGURATIONS[name][0]))


def narrower_values():
    """With at most 128 columns of V, heads of 192 take tiles of 128 keys."""
    run = functools.partial(forward.run, c=Configuration(128, 128, 12, 2))
    for Nq, Nk in LENGTHS:
        for causal in (False, True):
            assert_equals_dense(run, *in_bfloat16(2, 4, 2, Nq, Nk, 192, 128), causal)


@hopper_only
def test_forward_with_narrower_values_equals_dense(in_time):
    in_time(narrower_values)


@hopper_only
@pytest.mark.parametrize("kind", MASKED)
@pytest.mark.parametrize("name", ["128", "64", "64 three consumers", "192", "256"])
def test_masks_and_scores_equal_attention_written_out(in_time, name, kind):
    in_time(masked_equals_written_out, name, kind)


def masked_tiles_give_the_same_bits(name):
    run, width = forward_run(name), CONFIGURATIONS[name][0]
    q, k, v = in_bfloat16(3, 16, 4, 1536, 1536, width)
    documents = masks.documents(torch.arange(1536, device=DEVICE) // 250)
    for mask in (masks.window(300), masks.Window(100, 100), documents & masks.causal()):
        problem = Problem.of(q, k, v, mask, 0.1)
        *_, o, lse = poisoned(q, width)
        run(o, lse, q, k, v, problem)
        for _ in range(200):
            *_, again, lse_again = poisoned(q, width)
            run(again, lse_again, q, k, v, problem)
            assert torch.equal(o, again) and torch.equal(lse, lse_again), mask


@hopper_only
@pytest.mark.parametrize("name", ["128", "64", "64 three consumers", "192", "256"])
def test_masked_tiles_give_the_same_bits(in_time, name):
    in_time(masked_tiles_give_the_same_bits, name)


def same_bits(run, width):
    for kind in (many_tiles, scores):
        for name, (q, k, v) in kind(width):
            for causal in (False, True):
                problem = Problem.of(q, k, v, masks.either(causal, None), 0.1)
                *_, o, lse = poisoned(q, width)
                run(o, lse, q, k, v, problem)
                for _ in range(200):
                    *_, again, lse_again = poisoned(q, width)
                    run(again, lse_again, q, k, v, problem)
                    assert torch.equal(o, again) and torch.equal(lse, lse_again), f"{name}, causal {causal}"


def forward_gives_the_same_bits(name):
    same_bits(forward_run(name), CONFIGURATIONS[name][0])


@hopper_only
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_two_hundred_runs_give_the_same_bits(name, in_time):
    in_time(forward_gives_the_same_bits, name)


# float8: the rule is that of test_float8


def size_of_scores(eight, causal):
    """Return the weighted mean of the absolute scores of each row, [B, H, Nq]; NaN where a row sees no key."""
    q, k, _ = (widened(x) for x in eight)
    own, j = written_out.own(q.shape[2], k.shape[2])
    S = q.shape[3] ** -0.5 * q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT  # [B, H, Nq, Nk]
    P = S.masked_fill(j > own, -math.inf).softmax(-1) if causal else S.softmax(-1)  # [B, H, Nq, Nk]
    return (P * S.abs()).sum(-1)


def float8_is_as_good_as_exact_arithmetic(width):
    for kind in (lengths, groups, dimensions, many_tiles, scores):
        if kind is dimensions and width not in DIMENSIONS:
            continue
        for name, (q, k, v) in kind(width):
            if name.startswith("scores of") or q.shape[1] > 6 and q.shape[2] > 1000:
                continue  # scores that 8 bits cannot tell apart; and cases too slow for the reference on the CPU
            eight = in_eight_bits(q, k, v)
            codes, scales = zip(*eight, strict=True)
            for causal in (False, True):
                O, lse = flash_attention_float8(
                    *codes, scales=scales, causal=causal, dtype=torch.float32 if width < 256 else torch.bfloat16,
                    kernel="hopper", return_lse=True,
                )  # fmt: skip
                ours, ours_lse = in_exact_arithmetic(eight, reference_masks.causal() if causal else None)
                seen = in_window(masks.either(causal, None), q.shape[2], k.shape[2])
                exact, _ = written_out.attention(q.double(), k.double(), v.double(), seen)
                assert error(O, exact) <= 1.1 * error(ours.to(O.dtype), exact), f"{name}, causal {causal}"
                some = ours_lse.isfinite()
                assert torch.equal(lse.isfinite(), some) and (O[~some] == 0).all(), f"{name}, causal {causal}"
                # lse has the errors of its scores: a tensor core keeps 14 bits of their sums, too.
                off = (lse[some] - ours_lse[some]).abs() / (1 + size_of_scores(eight, causal)[some])
                assert (off <= 4e-3).all(), f"{name}, causal {causal}: lse"


@hopper_only
@pytest.mark.parametrize("width", [64, 128, 256])
def test_float8_is_as_good_as_exact_arithmetic(width, in_time):
    in_time(float8_is_as_good_as_exact_arithmetic, width)


def float8_gives_the_same_bits(width):
    q, k, v = in_bfloat16(2, 20, 4, 1000, 1100, width)
    codes, scales = zip(*in_eight_bits(q, k, v), strict=True)
    for causal in (False, True):
        first, *others = (
            flash_attention_float8(*codes, scales=scales, causal=causal, kernel="hopper", return_lse=True)
            for _ in range(200)
        )
        assert all(torch.equal(x, y) for other in others for x, y in zip(first, other, strict=True))


@hopper_only
@pytest.mark.parametrize("width", [64, 128, 256])
def test_two_hundred_runs_of_float8_give_the_same_bits(width, in_time):
    in_time(float8_gives_the_same_bits, width)
