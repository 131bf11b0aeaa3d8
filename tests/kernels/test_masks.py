"""The tiles that are loaded for each mask; ``drawn_cases`` compares the results with attention written out."""

import copy
import inspect
import pickle
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flashlab.kernels import (
    DEVICE,
    INTERPRETED,
    checks,
    configuration,
    flash_attention,
    flash_attention_packed,
    interpreter,
    masks,
    tl,
    triton,
)
from flashlab.kernels.decode import decode
from flashlab.kernels.masks import algebra, kinds, questions
from flashlab.kernels.problem import Problem
from flashlab.reference import masks as reference_masks
from tests.kernels import written_out
from tests.kernels.inputs import randn
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.taken_in import in_window

B, H, Hk, Nq, Nk, d = 2, 4, 2, 70, 133, 16
LENGTHS = [(1, 1), (64, 128), (239, 1), (113, 203), (128, 217), (108, 256), (256, 113), (127, 128)]  # FlashAttention's


def draw(*shape, high=2, seed=1):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@triton.jit
def every_third(b, h, i, j, Nq, Nk, shift, step):
    return (i + j + tl.load(shift + h)) % step == 0


@triton.jit
def of_table(b, h, i, j, Nq, Nk, table):
    return tl.load(table + i * Nk + j)


@triton.jit
def of_one_batch(b, h, i, j, Nq, Nk, n):
    return b == n


@triton.jit
def without_exception(b, h, i, j, Nq, Nk):
    return True


@triton.jit
def with_a_wrong_name(b, h, i, j, Nq, Nk):
    return i < not_there  # noqa: F821


@triton.jit
def nothing(b, h, i, j, Nq, Nk):
    i + j


@triton.jit
def causal_and_near(b, h, i, j, Nq, Nk):
    return (j <= i) and (i - j < 3)


def cases(Nq, Nk):
    """Yield masks by name, and the same as boolean tensors."""
    own, j = written_out.own(Nq, Nk)
    causal, near = j <= own, (own - 20 <= j) & (j <= own)
    ids = draw(B, Nk, high=5).sort(-1).values
    same = (ids.gather(1, own.clamp(0).mT.expand(B, -1))[:, None, :, None] == ids[:, None, None]) & (own >= 0)
    mixed = draw(Nk, high=3)
    lengths = draw(B, high=Nk + 1)
    blocks = draw(H, -(-Nq // 16), -(-Nk // 48)) == 0
    large = blocks.repeat_interleave(16, 1).repeat_interleave(48, 2)[:, :Nq, :Nk]
    seen = draw(B, 1, Nq, Nk) == 0
    shift = draw(H, high=3)
    third = (torch.arange(Nq, device=DEVICE)[:, None] + j + shift[:, None, None]) % 3 == 0
    yield "documents", masks.documents(ids), same
    yield "documents, causal", masks.documents(ids) & masks.causal(), same & causal
    yield "documents in any order", masks.documents(mixed), (mixed[own.clamp(0)] == mixed) & (own >= 0)
    yield "a prefix", masks.prefix(90), causal | (j < 90)
    yield "sinks and a window", masks.causal() & (masks.sinks(4) | masks.window(20)), near | (causal & (j < 4))
    yield "padding", masks.padding(lengths) & masks.causal(), causal & (j < lengths[:, None, None, None])
    yield "blocks", masks.blocks(blocks, 16, 48), large
    yield "dense", masks.dense(seen), seen
    yield "a row of a dense mask", masks.dense(seen[:, :, :1]) & masks.causal(), seen[:, :, :1] & causal
    yield (
        "one's own",
        masks.custom(every_third, shift, 3) & masks.window(50, 9),
        third & (own - 50 <= j) & (j <= own + 9),
    )
    yield "two unions", (masks.dense(seen) | masks.blocks(blocks, 16, 48)) & (masks.documents(ids) | masks.sinks(7)), (
        (seen | large) & (same | (j < 7))
    )  # fmt: skip


NAMES = [name for name, *_ in cases(Nq, Nk)]


@triton.jit
def ranges_of(window, Nq, Nk, ends, Br: tl.constexpr, Bc: tl.constexpr, ragged: tl.constexpr):
    i = tl.program_id(0)
    limits = questions.ranges(window, 0, 0, i * Br, Br, Bc, Nq, Nk, ragged)
    for n in tl.static_range(4):
        tl.store(ends + 4 * i + n, limits[n])


@pytest.mark.parametrize("Br, Bc", [(64, 128), (128, 64), (16, 32)])
@pytest.mark.parametrize("left, right", [(20, 0), (None, 0), (0, None), (3, 70), (0, 0)])
def test_the_ranges_of_a_window_are_of_existing_tiles_and_the_middle_ones_are_whole(left, right, Br, Bc):
    for Nq, Nk in [*LENGTHS, (211, 113), (700, 64), (300, 300)]:
        ends = torch.full((-(-Nq // Br), 4), -1, dtype=torch.int32, device=DEVICE)
        ranges_of[(len(ends),)](questions.KernelArgs(left, right), Nq, Nk, ends, Br, Bc, Nk % Bc != 0)
        seen = in_window((left, right), Nq, Nk)
        for i, (a, b, c, d) in enumerate(ends.tolist()):
            first, whole, last = (list(range(*ends, Bc)) for ends in ((a, b), (b, c), (c, d)))
            rows, starts = seen[i * Br : (i + 1) * Br], [*first, *whole, *last]
            assert all(start in range(0, Nk, Bc) for start in starts), (Nq, Nk, i, starts)
            seen_starts = {start for start in range(0, Nk, Bc) if rows[:, start : start + Bc].any()}
            assert seen_starts <= set(starts) and len(starts) == len(set(starts)), (Nq, Nk, i, starts)
            assert all(rows[:, start : start + Bc].all() and start + Bc <= Nk for start in whole), (Nq, Nk, i, whole)


def test_masks_of_windows_stay_windows():
    assert masks.causal() & masks.window(7, 3) == masks.window(7, 0)
    assert masks.window(7, 3) & masks.window(2, 9) == masks.window(2, 3)
    assert masks.full() | masks.documents(draw(5)) == masks.full()
    assert isinstance(masks.causal() & masks.full(), masks.Window)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_a_mask_of_ones_own_returns_booleans_or_the_integers_0_and_1(dtype):
    q, k, v = (randn(1, 2, 40, 16, seed=seed) for seed in range(3))
    table = draw(40, 40)
    mask = masks.custom(of_table, table.to(dtype)) | masks.window(0)
    assert torch.equal(
        flash_attention(q, k, v, mask=mask),
        flash_attention(q, k, v, mask=masks.dense(table == 1) | masks.window(0)),
    )


def test_a_mask_of_ones_own_may_return_one_number_for_all_pairs():
    q, k, v = (randn(2, 2, 40, 16, seed=seed) for seed in range(3))
    full = flash_attention(q, k, v)
    assert torch.equal(flash_attention(q, k, v, mask=masks.custom(without_exception)), full)
    some = flash_attention(q, k, v, mask=masks.custom(of_one_batch, 1))
    assert torch.equal(some[1], full[1]) and not some[0].any()


@pytest.mark.parametrize("left, right", [(-2, 7), (9, -4), (-1, None), (None, -1)])
def test_a_shifted_window_may_leave_out_the_own_keys(left, right):
    q, k, v = randn(1, 2, Nq, 16), randn(1, 2, Nk, 16, seed=1), randn(1, 2, Nk, 16, seed=2)
    seen = in_window((left, right), Nq, Nk)
    O = flash_attention(q, k, v, mask=algebra.Shifted(left, right))
    plain, exact = (
        written_out.attention(*(x.to(t) for x in (q, k, v)), seen)[0] for t in (torch.float32, torch.double)
    )
    assert_as_exact_as_plain(O, plain, exact, 16)


MASKS = [masks.full(), masks.causal(), masks.prefix(3), masks.sinks(4) & masks.causal()]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_a_mask_has_no_truth_value(mask):
    for use in (bool, lambda mask: mask and masks.causal(), lambda mask: mask or None, lambda mask: not mask):
        with pytest.raises(TypeError, match=r"truth value.*&.*\|"):
            use(mask)


@pytest.mark.parametrize("mask", [mask for mask in MASKS if isinstance(mask, masks.Rule)], ids=repr)
def test_a_mask_caches_tensors_per_device(mask):
    here = Problem(B, H, Hk, Nq, Nk, d, d, torch.float32, DEVICE, mask, 1.0, "ieee")
    for device in (DEVICE, torch.device("meta"), DEVICE):
        there = here._replace(device=device)
        assert {mask.lists(there, 32, 32, transposed).device.type for transposed in (False, True)} == {device.type}
    for device in (torch.device("meta"), DEVICE):
        problem = here._replace(device=device, mask=masks.sinks(4))
        assert {x.device.type for x in problem.mask.keys(problem)} == {device.type}


def tiles_loaded(mask, Nq, Nk, **options):
    q, k, v = randn(1, 1, Nq, 16), randn(1, 1, Nk, 16), randn(1, 1, Nk, 16)
    with interpreter.count() as memory:
        flash_attention(q, k, v, mask=mask, **options)
    return sorted((e.region[2].start // 64) for e in memory.events if (e.kind, e.name) == ("load", "K"))


@pytest.mark.skipif(not INTERPRETED, reason="the interpreter counts")
def test_tiles_that_nobody_sees_are_not_loaded():
    ids = torch.tensor([0] * 64 + [1] * 128 + [2] * 64, device=DEVICE)
    assert tiles_loaded(masks.documents(ids), 256, 256) == [0, 1, 1, 2, 2, 3]
    assert tiles_loaded(masks.documents(ids) & masks.causal(), 256, 256) == [0, 1, 1, 2, 3]
    offsets = torch.tensor([0, 64, 192, 256], device=DEVICE)
    assert tiles_loaded(masks.documents(offsets=offsets), 256, 256) == [0, 1, 1, 2, 2, 3]
    assert tiles_loaded(masks.sinks(3) | masks.window(0), 64, 256) == [0, 3]
    assert tiles_loaded(masks.padding(torch.tensor([65], device=DEVICE)), 64, 256) == [0, 1]
    diagonal = masks.blocks(torch.eye(2, dtype=torch.bool, device=DEVICE), 128, 128)
    assert tiles_loaded(diagonal, 256, 256) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert tiles_loaded(masks.dense(torch.zeros(64, 256, dtype=torch.bool, device=DEVICE)), 64, 256) == []


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_tile_with_a_visible_pair_is_listed_and_whole_ones_are_whole(name, transposed):
    mask, seen = next(rest for which, *rest in cases(Nq, Nk) if which == name)
    problem = Problem(B, H, Hk, Nq, Nk, d, d, torch.float32, DEVICE, mask, 1.0, "ieee")
    lists = mask.lists(problem, 32, 32, transposed).expand(B, H, -1, -1)
    padded = F.pad(seen.expand(B, H, Nq, Nk), (0, -Nk % 32, 0, -Nq % 32))
    padded[:, :, Nq:] = True  # rows past the end do not matter
    tiles = padded.unflatten(3, (-1, 32)).unflatten(2, (-1, 32)).transpose(3, 4)  # [B, H, Tr, Tc, 32, 32]
    tiles = tiles.transpose(2, 3) if transposed else tiles
    cut, count, order = lists[..., :1], lists[..., 1:2], lists[..., 2:].long()
    place = torch.arange(order.shape[-1], device=DEVICE)
    listed = torch.zeros(tiles.shape[:4], dtype=torch.bool, device=DEVICE).scatter(3, order, place < count)
    whole = torch.zeros_like(listed).scatter(3, order, (cut <= place) & (place < count))
    padded[:, :, Nq:] = False
    assert listed[tiles.any((4, 5))].all()
    padded[:, :, Nq:] = True
    assert tiles[whole].all()


def test_a_mask_whose_tensor_changes_gets_new_lists():
    q, k, v = randn(1, 1, 64, 16), randn(1, 1, 64, 16, seed=1), randn(1, 1, 64, 16, seed=2)
    ids = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    mask = masks.documents(ids)
    assert torch.equal(flash_attention(q, k, v, mask=mask), flash_attention(q, k, v))
    ids[32:] = 1
    halves = [flash_attention(*(x[:, :, part] for x in (q, k, v))) for part in (slice(0, 32), slice(32, 64))]
    torch.testing.assert_close(flash_attention(q, k, v, mask=mask), torch.cat(halves, 2))


def test_changes_of_inference_tensors_are_seen_although_torch_does_not_count_them():
    """Also, a mask whose lists were made in inference mode works in training."""
    q, k, v = (randn(1, 1, 64, 16, seed=seed) for seed in range(3))
    ids = torch.arange(64, device=DEVICE) // 32
    once = masks.documents(ids)
    with torch.inference_mode():
        expected, other = flash_attention(q, k, v, mask=once), torch.zeros_like(ids)
        mask = masks.documents(other)
        assert torch.equal(flash_attention(q, k, v, mask=mask), flash_attention(q, k, v))
        other[32:] = 1
        assert torch.equal(flash_attention(q, k, v, mask=mask), expected)
        packed = (x[0].transpose(0, 1) for x in (q, k, v))
        apart = flash_attention_packed(*packed, offsets_q=torch.tensor([0, 32, 64], device=DEVICE))
        assert torch.equal(apart.transpose(0, 1), expected[0])
    q.requires_grad_()
    flash_attention(q, k, v, mask=once).sum().backward()
    assert q.grad.isfinite().all()


BAD = [
    (TypeError, "ids must be a tensor of integers", lambda: masks.documents(torch.zeros(3))),
    (ValueError, "1 or 2 dimensions", lambda: masks.documents(draw(1, 1, 3))),
    (TypeError, "either ids or offsets", lambda: masks.documents()),
    (TypeError, "got torch.uint16", lambda: masks.documents(torch.zeros(3, dtype=torch.uint16))),
    (TypeError, "got torch.uint64", lambda: masks.padding(torch.zeros(3, dtype=torch.uint64))),
    (ValueError, "offsets must begin with 0 and not decrease", lambda: masks.documents(offsets=torch.tensor([1, 3]))),
    (ValueError, "and not decrease, got [0, 2, 1, 3]", lambda: masks.documents(offsets=torch.tensor([0, 2, 1, 3]))),
    (ValueError, "and not decrease, got [-1, 3]", lambda: masks.documents(offsets=torch.tensor([-1, 3]))),
    (ValueError, "and not decrease, got []", lambda: masks.documents(offsets=torch.ones(0).int())),
    (ValueError, "offsets must have values", lambda: masks.documents(offsets=torch.ones(3, device="meta").int())),
    (ValueError, "n must be a whole number", lambda: masks.sinks(-1)),
    (TypeError, "n must be a whole number from 0 on, got tensor(2.7", lambda: masks.sinks(torch.tensor(2.7))),
    (TypeError, "n must be a whole number from 0 on, got tensor(True", lambda: masks.prefix(torch.tensor(True))),
    (ValueError, "n must be a whole number", lambda: masks.prefix(2.5)),
    (TypeError, "lengths must be a tensor of integers", lambda: masks.padding([3])),
    (TypeError, "must be a boolean tensor", lambda: masks.dense(torch.zeros(3, 3))),
    (TypeError, "boolean tensor, got ndarray", lambda: masks.dense(np.ones((3, 3), bool))),
    (TypeError, "int64), got ndarray", lambda: masks.documents(np.zeros(3, int))),
    (ValueError, "must end at 2147483647 tokens at most", lambda: masks.documents(offsets=torch.tensor([0, 2**33]))),
    (ValueError, "2 to 4 dimensions", lambda: masks.dense(torch.ones(3, dtype=torch.bool))),
    (ValueError, "Br must be a whole number", lambda: masks.blocks(torch.ones(1, 1, dtype=torch.bool), 0, 16)),
    (TypeError, "Br must be a whole number", lambda: masks.blocks(draw(1, 1) == 0, True, True)),
    (TypeError, "@triton.jit", lambda: masks.custom(lambda b, h, i, j: i == j)),
    (TypeError, "every_third(b, h, i, j, Nq, Nk, ", lambda: masks.custom(every_third)),
    (TypeError, "Nk) and then 3 arguments, which do not fit", lambda: masks.custom(every_third, 1, 2, 3)),
    (TypeError, "are tensors and numbers, got 'shift'", lambda: masks.custom(every_third, "shift", 3)),
    (TypeError, "are tensors and numbers, got [1]", lambda: masks.custom(every_third, [1], 3)),
    (ValueError, "your own mask must be on", lambda: call(masks.custom(every_third, torch.ones(2, device="meta"), 3))),
    (TypeError, "a mask combines with a mask", lambda: masks.causal() & True),
    (TypeError, "a mask combines with a mask", lambda: masks.causal() & np.ones((3, 3), bool)),
    (TypeError, "a mask combines with a mask", lambda: np.ones((3, 3), bool) | masks.sinks(2)),
    (TypeError, "a mask combines with a mask", lambda: torch.ones(3, 3, dtype=torch.bool) & masks.causal()),
    (TypeError, "a mask combines with a mask", lambda: masks.sinks(2) | reference_masks.causal()),
    (TypeError, "at least one term", lambda: masks.Rule(())),
    (TypeError, "parts of a mask, got ((3,),)", lambda: masks.Rule(((3,),))),
    (ValueError, "n must be a whole number", lambda: kinds.First(-1)),
    (TypeError, "n must be a whole number", lambda: kinds.First(True)),
    (TypeError, "ids must be a tensor of integers", lambda: kinds.Documents([0, 1])),
    (TypeError, "lengths must be a tensor of integers", lambda: kinds.Padding(torch.ones(2))),
    (TypeError, "must be a boolean tensor", lambda: kinds.Pattern(draw(3, 3), 16, 16)),
    (ValueError, "Bc must be a whole number", lambda: kinds.Pattern(draw(3, 3) == 0, 16, 0)),
    (TypeError, "@triton.jit", lambda: kinds.Custom(max, ())),
    (ValueError, "got left = -3, right = 0", lambda: call(masks.Window(-3, 0))),
    (ValueError, "got left = 2, right = -1", lambda: call(masks.Window(2, -1))),
    (ValueError, "got left = None, right = -1", lambda: call(masks.Window(None, -1))),
    (ValueError, "got left = 2.5, right = 0", lambda: call(masks.Window(2.5, 0))),
    (ValueError, "got left = True, right = None", lambda: call(masks.Window(True))),
    (ValueError, "got left = None, right = '1'", lambda: call(masks.Window(right="1"))),
    (ValueError, "got left = 3, right = -4", lambda: call(masks.Window(3, 0)._replace(right=-4))),
    (ValueError, "got left = -3, right = 0", lambda: call(masks.Window(-3, 0) & masks.documents(draw(3)))),
    (ValueError, "got left = -3, right = 0", lambda: configuration("forward", *qkv(), mask=masks.Window(-3, 0))),
    (ValueError, "ids must be [Nk] or [B, Nk] = [1, 3]", lambda: call(masks.documents(draw(4)))),
    (ValueError, "lengths must be [B] = [1]", lambda: call(masks.padding(draw(2)))),
    (ValueError, "lengths must be [B] = [1]", lambda: configuration("forward", *qkv(), mask=masks.padding(draw(2)))),
    (ValueError, "broadcastable to [1, 1, 3, 3]", lambda: call(masks.dense(draw(2, 3) == 0))),
    (ValueError, "broadcastable to [1, 1, 1, 1]", lambda: call(masks.blocks(draw(2, 2) == 0, 16, 16))),
]  # fmt: skip


IN_THE_INTERPRETER = [
    (TypeError, "causal_and_near, line", lambda: call(masks.custom(causal_and_near))),
    (TypeError, f"{checks.place_of(of_table)}: a mask returns booleans", lambda: call(own(2 * draw(3, 3)))),
    (TypeError, "integers 0 and 1, got -1", lambda: call(own(-draw(3, 3)))),
    (TypeError, "integers 0 and 1, got fp32", lambda: call(own(draw(3, 3).float()))),
    (TypeError, "with_a_wrong_name, line", lambda: call(masks.custom(with_a_wrong_name))),
    (TypeError, "integers 0 and 1, got NoneType", lambda: call(masks.custom(nothing))),
    (TypeError, "integers 0 and 1, got 2", lambda: decode(qkv()[0], qkv()[1:], mask=own(2 * draw(3, 3)))),
    (ValueError, "lengths must be from 0 to Nk = 3, got 4", lambda: call(masks.padding(torch.tensor([4])))),
    (ValueError, "lengths must be from 0 to Nk = 3, got -1", lambda: call(masks.padding(torch.tensor([-1])))),
    (ValueError, "to Nk = 3, got 200", lambda: call(masks.padding(torch.tensor([200]).byte()) & masks.causal())),
    (ValueError, "got 4", lambda: decode(qkv()[0], qkv()[1:], mask=masks.padding(torch.tensor([4])))),
    (ValueError, "got 4", lambda: packed(masks.padding(torch.tensor([4])))),
]  # fmt: skip


def test_the_sentence_names_the_function_and_its_line():
    lines, first = inspect.getsourcelines(of_table.fn)
    at = first + next(n for n, line in enumerate(lines) if line.startswith("def "))
    assert checks.place_of(of_table) == f"of_table, line {at}"


def own(table):
    return masks.custom(of_table, table)


def qkv():
    return [randn(1, 1, 3, 16) for _ in range(3)]


def call(mask):
    return flash_attention(*qkv(), mask=mask)


def packed(mask):
    offsets = torch.tensor([0, 3], device=DEVICE)
    return flash_attention_packed(*(x[0].transpose(0, 1) for x in qkv()), offsets_q=offsets, mask=mask)


@pytest.mark.skipif(not INTERPRETED, reason="values are not checked on a GPU")
@pytest.mark.parametrize("error, message, make", IN_THE_INTERPRETER, ids=[it[1] for it in IN_THE_INTERPRETER])
def test_invalid_values_of_a_mask_get_a_sentence(error, message, make):
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize("error, message, make", BAD, ids=[message for _, message, _ in BAD])
def test_an_invalid_mask_gets_a_sentence(error, message, make):
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))])
def test_a_copy_has_no_lists_of_earlier_values(copied):
    """The tensors of a copy count their changes anew, and these counts may be those of earlier lists."""
    q = torch.randn(1, 1, 200, 16, device=DEVICE)
    ids = torch.zeros(200, dtype=torch.int64, device=DEVICE)
    mask = masks.documents(ids) & masks.causal()
    for size in (200, 100, 50):  # lists of tiles for each count from 0 to 2
        flash_attention(q, q, q, mask=mask)
        ids[:] = torch.arange(200, device=DEVICE) // size
    assert torch.equal(flash_attention(q, q, q, mask=copied(mask)), flash_attention(q, q, q, mask=mask))
