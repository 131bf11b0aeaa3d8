"""On a Hopper GPU the backward kernel equals dense attention, with every mask and score function that it takes.

As in ``test_hopper``, a kernel with a wrong barrier may wait forever, so these tests run in another process. The tests
that need no GPU come last.
"""

import itertools
import math
from unittest import mock

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashlab.distributed.kernel_gradients import KernelGradients
from flashlab.kernels import DEVICE, masks, packed, scores
from flashlab.kernels.configurations import STREAMED
from flashlab.kernels.gluon_interpreter import seeded
from flashlab.kernels.hopper import backward, stages
from flashlab.kernels.hopper.arguments import last_heads
from flashlab.kernels.hopper.sums import lag_of, ring_of, size_of, transposed
from flashlab.kernels.launch import launch
from flashlab.kernels.portable import rows
from flashlab.kernels.problem import LOG2_E, Problem
from flashlab.machine.ranks import Block
from tests.kernels import written_out
from tests.kernels.inputs import randn
from tests.kernels.test_hopper import hopper_only
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.launches import LAUNCHES, in_two_passes, launches_of
from tests.tools.taken_in import in_window

LENGTHS = [(128, 128), (70, 133), (133, 70), (65, 64), (256, 129), (300, 700), (1, 133), (133, 1), (1000, 1000)]
WINDOWS = [(2, 0), (63, 0), (300, 0), (130, 70), (0, 20), (math.inf, 5), (90, math.inf), (math.inf, 0)]


def in_document(ids, Nq, Nk):
    i, j = written_out.own(Nq, Nk)
    return (ids[i.clamp(0)] == ids[j]) & (i >= 0)


def dense(q, k, v, do, dlse, *rest):
    """Return the gradients of q, k and v, with all scores in memory. rest: as for ``written_out.attention``."""
    x = [t.detach().requires_grad_() for t in (q, k, v)]
    o, lse = written_out.attention(*x, *rest)
    total = (o * do).sum() + (lse.masked_fill(lse == -math.inf, 0) * dlse.to(lse)).sum()
    return torch.autograd.grad(total, x)


def assert_gradients(
    name, sizes, mask, seen, score=None, plain_score=None, sinks=None, texts=None, dtype=None, roundings=1, programs=5,
    launches=None,
):  # fmt: skip
    """Compare with float64. Keys and values that no query sees are NaN, and so is the memory for the gradients.

    programs: the number of multiprocessors of the GPU; if few, each program takes several turns. launches: without
    them, those of ``launches_of``.
    """
    B, H, Hk, Nq, Nk, d, *dv = sizes
    dv, dtype = dv[0] if dv else d, dtype or torch.bfloat16
    shapes = (B, H, Nq, d), (B, Hk, Nk, d), (B, Hk, Nk, dv), (B, H, Nq, dv)
    q, k, v, do = (randn(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))
    dlse = randn(B, H, Nq, seed=9)
    hidden = ~seen.expand(B, H, Nq, Nk).any(2).any(1)  # [B, Nk]
    poisoned = [x.masked_fill(hidden[:, None, :, None], math.nan) for x in (k, v)]
    problem = Problem.of(q, k, v, mask, d**-0.5, score=scores.chain(score), sinks=sinks, texts=texts)
    o, lse = written_out.attention(q.double(), k.double(), v.double(), seen, plain_score, sinks)
    gradients = [torch.full_like(x, math.nan) for x in (q, k, v)]
    launches = launches or launches_of(max(d, dv))
    with mock.patch.object(backward, "multiprocessors", lambda device: programs):
        backward.run(gradients, (do, dlse), (q, *poisoned, o.to(dtype), lse.float()), problem, launches)
    exact = dense(*(x.double() for x in (q, k, v, do)), dlse, seen, plain_score, sinks)
    plain = dense(q, k, v, do, dlse, seen, plain_score, sinks)
    for ours, theirs, truth in zip(gradients, plain, exact, strict=True):
        try:
            assert_as_exact_as_plain(ours, theirs, truth, roundings)
        except AssertionError as error:
            raise AssertionError(f"{name}, {sizes}") from error


def windows(d):
    for left, right in WINDOWS:
        for Nq, Nk in LENGTHS:
            mask = masks.window(left, right)
            assert_gradients(f"{mask}", (2, 2, 2, Nq, Nk, d), mask, in_window(mask, Nq, Nk))
    for Hk, dv in ((1, d), (2, d // 2), (4, d)):
        mask = masks.window(90, 9)
        seen = in_window(mask, 460, 460)
        assert_gradients("groups", (2, 4, Hk, 460, 460, d, dv), mask, seen, dtype=torch.float16)


def with_sinks(d):
    sinks = torch.tensor([0.3, -2.0, 4.0, -math.inf], device=DEVICE)
    for Nq, Nk in LENGTHS:
        for left in (100, math.inf):
            mask = masks.window(left)
            seen = in_window(mask, Nq, Nk)
            # With one key, dP - delta is small. delta = rowsum(dO * O) has the rounded O; plain autograd has not.
            roundings = 2 if Nk == 1 else 1
            sizes = 1, 4, 2, Nq, Nk, d
            assert_gradients("sinks", sizes, mask, seen, sinks=sinks, roundings=roundings)


def functions(H, Nq, Nk):
    """Yield score functions by name: ours, and the same written out."""
    slopes = 2.0 ** -torch.arange(1, H + 1, device=DEVICE, dtype=torch.float32)
    added = randn(1, H, Nq, Nk, seed=77)
    i, j = written_out.own(Nq, Nk)

    def cap(s):
        return 2 * torch.tanh(s / 2)

    def alibi(s):
        return s - slopes.to(s)[:, None, None] * (i - j).abs().to(s)

    yield "soft cap", scores.softcap(2.0), cap
    yield "ALiBi", scores.alibi(slopes), alibi
    yield "bias", scores.bias(added), lambda s: s + added.to(s)
    # A soft cap, whose slope varies, before each kind of step: with a slope in Gluon, and with one in Triton.
    in_turn = scores.softcap(2.0), scores.bias(added), scores.softcap(2.0), scores.alibi(slopes)
    yield "in turn", in_turn, lambda s: alibi(cap(cap(s) + added.to(s)))


def with_scores(d):
    for Nq, Nk in ((128, 128), (200, 133), (500, 500), (70, 133)):
        for left, right in ((math.inf, math.inf), (math.inf, 0), (100, 0)):
            mask = masks.window(left, right)
            if Nk - Nq > left:
                continue
            for name, score, plain in functions(4, Nq, Nk):
                seen = in_window(mask, Nq, Nk)
                assert_gradients(name, (2, 4, 2, Nq, Nk, d), mask, seen, score, plain)


def rules(d):
    for N in (128, 500):
        i, j = written_out.own(N, N)
        causal = j <= i
        ids, pieces = torch.arange(N, device=DEVICE) // 130, torch.arange(N, device=DEVICE) // 40 % 3
        two = torch.stack([ids, torch.arange(N, device=DEVICE) // 77])
        blocks = torch.rand(4, 16, 16, generator=torch.Generator().manual_seed(5)).to(DEVICE) < 0.3
        blocks = blocks[:, : -(-N // 32), : -(-N // 32)]
        large = blocks.repeat_interleave(32, 1).repeat_interleave(32, 2)[:, :N, :N]
        near = in_window(masks.window(10, 3), N, N)
        for name, mask, seen in (
            ("documents", masks.documents(ids), in_document(ids, N, N)),
            ("causal documents", masks.documents(ids) & masks.causal(), in_document(ids, N, N) & causal),
            ("documents in pieces", masks.documents(pieces) & masks.causal(), in_document(pieces, N, N) & causal),
            ("documents per batch", masks.documents(two), torch.stack([in_document(x, N, N) for x in two])[:, None]),
            ("prefix", masks.prefix(70), (j < 70) | causal),
            ("tiles per head", masks.blocks(blocks, 32, 32) | masks.window(10, 3), large | near),
        ):
            for score, plain in ((None, None), (scores.softcap(5.0), lambda s: 5 * torch.tanh(s / 5))):
                assert_gradients(name, (2, 4, 2, N, N, d), mask, seen, score, plain)


def texts(d):
    offsets = torch.tensor([0, 100, 101, 165, 365, 365, 372, 500], device=DEVICE)
    packed_texts, T = packed.prepared(offsets, offsets), 500
    own = packed_texts.of[0]
    for left, right in ((math.inf, math.inf), (math.inf, 0), (30, 5)):
        window = masks.window(left, right)
        mask, seen = packed_texts.apart(window), in_window(window, T, T) & (own[:, None] == own[None])
        for name, score, plain in (("none", None, None), *functions(4, T, T)):
            if name in ("none", "soft cap", "ALiBi"):
                assert_gradients(name, (1, 4, 2, T, T, d), mask, seen, score, plain, texts=packed_texts)


def in_turn(lag):
    """More heads than the sums of dQ have room for: each waits for an earlier one, and narrows its sums."""
    d, programs = 64, 132 if lag > 1 else 7
    with mock.patch.object(backward, "lag_of", lambda *_: lag):
        for sizes in ((3, 8, 8, 300, 300), (2, 8, 4, 500, 133), (2, 6, 3, 70, 700), (5, 4, 4, 1000, 1000)):
            Nq, Nk = sizes[3:]
            for left, right in ((math.inf, math.inf), (math.inf, 0), (90, 9)):
                mask = masks.window(left, right)
                assert_gradients(f"lag {lag}", (*sizes, d), mask, in_window(mask, Nq, Nk), programs=programs)
        seen = in_window(masks.causal(), 300, 300)
        assert_gradients(f"lag {lag}", (2, 9, 3, 300, 300, d - 8, d - 16), masks.causal(), seen)


def in_parts(d):
    """Early keys meet all queries, late keys those from ``cut`` on.

    If ``cut`` is inside a tile, the late part adds to ``shares.dQ``, not to the sums of the Hopper kernel.
    """
    for B, Hk, N, cut in ((1, 2, 512, 256), (2, 1, 500, 192), (1, 4, 500, 200), (3, 2, 1000, 448)):
        shapes = (B, 4, N, d), (B, Hk, N, d), (B, Hk, N, d), (B, 4, N, d)
        q, k, v, do = (randn(*shape, dtype=torch.bfloat16, seed=seed) for seed, shape in enumerate(shapes))
        seen = in_window(masks.causal(), N, N)
        o, lse = written_out.attention(q.double(), k.double(), v.double(), seen, None, None)
        shares = KernelGradients(do, q, o.to(q.dtype), lse.float(), d**-0.5, "hopper")
        early = shares.of_block(k[:, :, :cut], v[:, :, :cut], Block((0, N), (0, cut), None, N - cut))
        late = shares.of_block(k[:, :, cut:], v[:, :, cut:], Block((cut, N), (cut, N), None, 0))
        assert (shares.dQ is None) == (cut % 64 == 0)
        dlse = torch.zeros(B, 4, N, device=DEVICE)
        exact = dense(*(x.double() for x in (q, k, v, do)), dlse, seen)
        plain = dense(q, k, v, do, dlse, seen)
        gradients = shares.finish(), *(torch.cat(pair, 2) for pair in zip(early, late, strict=True))
        for ours, theirs, truth in zip(gradients, plain, exact, strict=True):
            assert_as_exact_as_plain(ours, theirs, truth, roundings=2)


@hopper_only
@pytest.mark.parametrize("d", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("kind", [windows, with_sinks, with_scores, rules, texts])
def test_gradients_equal_dense_ones(kind, d, in_time):
    in_time(kind, d)


@hopper_only
@pytest.mark.parametrize("d", [64, 96, 128])
def test_gradients_in_parts_equal_dense_ones(d, in_time):
    in_time(in_parts, d)


def twice(launches):
    """The gradients are right for heads of 128 columns, and of 72 and 96; the same inputs give the same bits."""
    for d, dv in ((128, 128), (72, 96)):
        seen = in_window(masks.causal(), 1000, 1000)
        assert_gradients("two passes", (2, 4, 2, 1000, 1000, d, dv), masks.causal(), seen, launches=launches)
    q, k, v, do = (randn(2, 4, 1000, 128, dtype=torch.bfloat16, seed=seed) for seed in range(4))
    problem = Problem.of(q, k, v, masks.causal(), 0.1)
    lse, both = torch.zeros(2, 4, 1000, device=DEVICE), []
    for _ in range(2):
        both.append([torch.empty_like(x) for x in (q, k, v)])
        backward.run(both[-1], (do, None), (q, k, v, v, lse), problem, launches)
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


@hopper_only
def test_two_passes_give_the_same_bits_twice(in_time):
    in_time(twice, in_two_passes(3))


@hopper_only
@pytest.mark.parametrize("lag", [1, 3])
def test_heads_take_turns(lag, in_time):
    in_time(in_turn, lag)


# without a GPU


def launched(problem, monkeypatch, launches=LAUNCHES):
    """Return the gradients of keys and values after ``backward.run``, the turns, and the arguments of its kernel."""
    args = []
    monkeypatch.setattr(backward, "multiprocessors", lambda device: 4)
    monkeypatch.setattr(rows, "launch", lambda *_, **__: None)
    monkeypatch.setattr(backward, "launch", lambda _, grid, __, numbers, **___: args.append((grid, numbers)))
    B, H, Hk, Nq, Nk, d, dv = problem[:7]
    q, o, k, v = (torch.ones(shape) for shape in ((B, H, Nq, d), (B, H, Nq, dv), (B, Hk, Nk, d), (B, Hk, Nk, dv)))
    gradients = [torch.full_like(x, math.nan) for x in (q, k, v)]
    backward.run(gradients, (o, None), (q, k, v, o, torch.zeros(B, H, Nq)), problem, launches)
    (grid, (turns, of_problem, *_)), _ = args
    assert grid == (min(4, turns.all), 1, 1) and turns.all == turns.tiles * turns.heads * B
    return gradients[1:], turns, of_problem


def test_a_part_of_the_queries_adds_to_its_own_sums(monkeypatch):
    """Queries from 64 on: the kernel gets the addresses of their constants and sums."""
    args = []
    monkeypatch.setattr(rows, "launch", lambda *_, **__: None)
    monkeypatch.setattr(backward, "multiprocessors", lambda device: 4)
    monkeypatch.setattr(backward, "launch", lambda _, __, tensors, numbers, **___: args.append((tensors, numbers)))
    q, lse = torch.ones(2, 4, 200, 64), torch.zeros(2, 4, 200)
    sums, part = backward.Sums(q, None, q, lse, 64, 1, STREAMED), q[:, :, 64:]
    problem = Problem.of(part, part, part, masks.full(), 0.1)
    gradients = torch.empty_like(part), torch.empty_like(part)
    sums.add((part, part), (part, part), gradients, problem, LAUNCHES["backward"], 64)
    (*_, of_lse, delta, rest, dQ, counters, parts, narrowed), numbers = args[0]
    assert rest is None
    for flat, whole in ((of_lse.base, sums.constants.lse), (delta.base, sums.constants.delta)):
        assert flat.data_ptr() == whole.data_ptr() + 4 * 64 and flat.numel() == whole.numel() - 64
    assert dQ.data_ptr() == sums.dQ.data_ptr() + 4 * 64 * 64 and numbers[0].Nq_padded == 256
    assert counters is sums.counters and parts is narrowed is None


def test_sums_start_at_zero():
    """The sums were NaN; constants of rows past the end are set, too."""
    q = torch.ones(2, 3, 70, 64, dtype=torch.bfloat16, device=DEVICE)
    dlse = torch.full((2, 3, 70), 4.0, device=DEVICE)
    constants, sums = rows.constants_for(dlse), torch.full((30_001,), math.nan, device=DEVICE)
    lse_log2, delta, rest = constants
    assert lse_log2.shape == delta.shape == (2, 3, 128)
    rows.start_rows(q, q, dlse, None, dlse, constants, sums, 1, STREAMED, {})
    assert rest is None and (sums == 0).all() and (delta[:, :, :70] == 60).all() and (delta[:, :, 70:] == 0).all()
    log2_e = torch.tensor(LOG2_E.value, dtype=torch.float32, device=DEVICE)
    assert (lse_log2[:, :, :70] == 4 * log2_e).all() and lse_log2[:, :, 70:].isposinf().all()


def in_order(dQ, width):
    """Return tiles dQ [..., 64, width] in the order of ``sums.add``, [..., 64 * width].

    Both halves of a ``transposed`` tile have 32 columns of a product; otherwise the first half has 64, the second the
    rest.
    """
    parts = dQ.mT if transposed(width) else dQ  # [..., 64 rows of a product, columns]
    at = torch.empty(dQ.shape[-2:], dtype=torch.long)
    first = 32 if transposed(width) else 64
    for row, column in itertools.product(range(parts.shape[-2]), range(parts.shape[-1])):
        w, c = divmod(column, first)
        warp, r = divmod(row, 16)
        place = ((c // 8 * 4 + warp) * 8 + r % 8) * 16 + c % 8 // 2 * 4 + r // 8 * 2 + c % 2
        at[(column, row) if transposed(width) else (row, column)] = w * 64 * first + place
    at = at.flatten().to(dQ.device).expand_as(dQ.flatten(-2))
    return torch.empty_like(dQ).flatten(-2).scatter(-1, at, dQ.flatten(-2))


@pytest.mark.parametrize("width", [64, 80, 96, 128])
def test_the_last_heads_are_narrowed_from_where_they_are(width):
    """Seven heads of 70 queries. The last three are left to narrow; the sums have room for four."""
    exact = randn(7, 128, width, seed=1)
    ring = torch.full((4, 128, width), math.nan, device=DEVICE)
    for head in (4, 5, 6):
        ring[head % 4] = in_order(exact[head].view(2, 64, width), width).view(128, width)
    dq = torch.full((1, 7, 70, width - 8), math.nan, dtype=torch.bfloat16, device=DEVICE)
    backward.start_narrow(dq, ring, 0.5, 3, {})
    assert dq[:, :4].isnan().all()
    assert torch.equal(dq[0, 4:], (exact[4:, :70, : width - 8] * 0.5).bfloat16())


def test_the_sums_have_room_for_twice_as_many_heads_as_the_lag():
    """There is room for ``2 * lag`` heads, or for all if they are fewer, and a counter for each head."""
    for heads, lag, room in ((7, 2, 4), (7, 3, 6), (7, 4, 7), (1, 5, 1), (7, None, 7)):
        numbers = torch.zeros(size_of(heads, lag, 128, 64, 3))
        ring, counters = ring_of(numbers, heads, 128, 64)
        assert ring.shape == (room * 3, 128, 64) and counters.shape == (1 + heads,) and counters.dtype == torch.int32
    few, many = problem_of(100, 100, masks.full()), problem_of(100, 100_000, masks.full())
    assert lag_of(few, 128, 64) > lag_of(many, 128, 64) >= 2  # with many keys, few heads run at a time
    assert lag_of(few._replace(mask=masks.causal()), 128, 64) > lag_of(few, 128, 64) and lag_of(few, 128, 128) is None


@gluon.jit
def take_all(counter, times, turns):
    """Take turns until none are left, and count how often each was taken."""
    turn = stages.take(counter)
    while turn < turns.all:
        gl.atomic_add(times + turn, 1)
        turn = stages.take(counter)
    stages.finish(counter, turn, turns)


def test_each_turn_is_taken_once_and_the_counter_is_reset():
    """Three programs take five turns, in any order."""
    counter, times = torch.zeros(1, dtype=torch.int32, device=DEVICE), torch.zeros(5, dtype=torch.int32, device=DEVICE)
    for seed in range(8):
        with seeded(seed):
            launch(take_all, (3, 1, 1), (counter, times), (stages.Turns(5, 1, 5, 64, None),), warps=4)
        assert (times == seed + 1).all() and counter == 0


@gluon.jit
def list_places(heads, tiles, of_head, count, last):
    """Write the head and the tile of each turn."""
    for turn in range(count):
        head, tile = stages.place_of(turn, of_head, count, last)
        gl.store(heads + turn, head)
        gl.store(tiles + turn, tile)


@pytest.mark.parametrize("last", [None, 2, 5])
def test_the_last_heads_are_processed_together(last):
    """Five heads of three tiles."""
    turns = torch.arange(15).view(5, 3)
    apart = turns if last is None else turns[: 5 - last]
    together = turns[len(apart) :].mT
    heads, tiles = (torch.full((15,), -1, dtype=torch.int32, device=DEVICE) for _ in range(2))
    launch(list_places, (1, 1, 1), (heads, tiles), (3, 15, last), warps=4)
    assert (heads * 3 + tiles).tolist() == [*apart.flatten().tolist(), *together.flatten().tolist()]


def test_the_last_heads_have_a_tile_for_each_program():
    """In the interpreter there are three programs."""
    causal = problem_of(100, 100, masks.causal())
    assert [last_heads(causal, n, 8) for n in (1, 2, 4)] == [3, None, None] and last_heads(causal, 1, 2) == 2
    assert last_heads(causal._replace(mask=masks.full()), 1, 8) is None


def problem_of(Nq, Nk, mask, **options):
    q, k = torch.empty(1, 2, Nq, 64, dtype=torch.bfloat16), torch.empty(1, 2, Nk, 64, dtype=torch.bfloat16)
    return Problem.of(q, k, k, mask, 0.25, **options)


def test_keys_that_no_query_sees_are_left_out(monkeypatch):
    of_keys, of_all, args = launched(problem_of(100, 1000, masks.window(50)), monkeypatch)
    assert args.Nk == 150 and of_all[:2] == (2, 2)
    for x in of_keys:
        assert (x[:, :, :850] == 0).all() and x[:, :, 850:].isnan().all()
    of_keys, of_all, args = launched(problem_of(1000, 100, masks.window(50)), monkeypatch)
    assert args.Nk == 100 and all(x.isnan().all() for x in of_keys)


def test_each_part_of_a_group_is_a_head_of_its_own(monkeypatch):
    q, k = torch.empty(3, 12, 100, 64, dtype=torch.bfloat16), torch.empty(3, 2, 300, 64, dtype=torch.bfloat16)
    problem = Problem.of(q, k, k, masks.full(), 0.25)
    for parts, group in ((1, 6), (2, 3), (6, 1)):
        launches = LAUNCHES | {"backward": LAUNCHES["backward"]._replace(parts=parts)}
        _, of_all, args = launched(problem, monkeypatch, launches)
        assert of_all == (3, 2 * parts, 18 * parts, 128, None) and (args.group, args.parts) == (group, parts)


def test_the_scale_goes_before_score_functions_and_otherwise_into_the_exponent(monkeypatch):
    *_, args = launched(problem_of(64, 64, masks.causal()), monkeypatch)
    assert args.factor == 0.25 * LOG2_E.value and args.score is None
    *_, args = launched(problem_of(64, 64, masks.causal(), score=scores.chain(scores.softcap(3.0))), monkeypatch)
    assert args.scale == 0.25 and args.factor == LOG2_E.value and len(args.score) == 1
