"""What an implementation must pass to count as right: a handful of tiny cases, each there because a mistake hides from
the others. They take the tile sizes 16 x 16 (kernels: no smaller ones exist) or 4 x 4."""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from flashlab import kernels
from flashlab.kernels import float8, interpreter
from flashlab.kernels import masks as triton_masks
from flashlab.kernels import scores as triton_scores
from flashlab.kernels.attention_float8 import flash_attention_float8
from flashlab.kernels.configurations import PORTABLE, STREAMED, Choice, Configuration
from flashlab.kernels.decode import Cache, Prefix, decode_shared, operator
from flashlab.kernels.decode import eight_bits as kept_in_eight_bits
from flashlab.kernels.hopper import schedule
from flashlab.kernels.linear_attention import linear_attention
from flashlab.kernels.problem import Problem
from flashlab.machine import layouts, sm
from flashlab.machine.memory import Memory
from flashlab.models import plain
from flashlab.reference import (
    dropout,
    eight_bits,
    masks,
    next_machine,
    online_softmax,
    pipeline,
    recomputation,
    ring,
    roles,
    safe_softmax,
    scores,
    tiling,
)
from flashlab.reference import linear_attention as linear
from flashlab.reference.attention import attention, attention_backward
from tests.kernels.in_eight_bits import error as relative_error
from tests.kernels.in_eight_bits import in_eight_bits as codes_of
from tests.kernels.in_eight_bits import in_exact_arithmetic
from tests.tools import hopper_scores
from tests.tools.bounds import assert_as_exact_as_plain


class Case(NamedTuple):
    """Inputs of one head: lengths in tiles and a rest, head dimensions, a factor on the scores."""

    shows: str
    Nq: int
    Nk: int
    d: int
    dv: int
    causal: bool
    spread: float = 1.0
    rising: bool = False  # later keys have ever larger scores
    shift: float = 0.0  # added to every score


def cases(B):
    """The cases for tiles of B x B."""
    return [
        Case("tiles that fit exactly", 2 * B, 2 * B, 16, 16, False),
        Case("lengths that no tile divides", B + 3, 2 * B + 5, 8, 8, False),
        Case("a causal mask over ragged lengths", 2 * B + 1, 2 * B + 1, 8, 8, True),
        Case("more keys than queries, causal", B - 1, 3 * B - 2, 8, 8, True),
        Case("more queries than keys: rows that see no key", 2 * B + 2, B + 1, 8, 8, True),
        Case("a maximum that rises from tile to tile", B, 4 * B, 8, 8, False, 4.0, True),
        Case("scores that cannot be exponentiated", B, 2 * B, 8, 8, False, 1.0, False, 200.0),
        Case("scores so low that a padded key would win", B, B + 1, 8, 8, False, 1.0, False, -200.0),
        Case("one query, three keys", 1, 3, 4, 4, True),
        Case("values of another width than keys", B, B + 2, 8, 24, False),
    ]


def inputs(case, seed=0):
    """Q [Nq, d], K [Nk, d], V [Nk, dv], dO [Nq, dv] in float32."""
    rng = np.random.default_rng(seed)
    shapes = (case.Nq, case.d), (case.Nk, case.d), (case.Nk, case.dv), (case.Nq, case.dv)
    Q, K, V, dO = (rng.normal(size=shape) for shape in shapes)
    if case.rising or case.shift:
        Q[:, 0] = np.sqrt(case.d)  # so that the first column of K is added to the scores
        K[:, 0] = case.shift + (np.linspace(0, case.spread, case.Nk) * 4 if case.rising else 0)
    return [array.astype(np.float32) for array in (Q, K, V, dO)]


def mask_if(causal):
    return masks.causal() if causal else None


def forward(run, B):
    """run(Q, K, V, causal) -> O, lse is right in every case."""
    for case in cases(B):
        Q, K, V, _ = inputs(case)
        plain, exact = (attention(*(a.astype(t) for a in (Q, K, V)), mask=mask_if(case.causal), return_lse=True)
                        for t in (np.float32, np.float64))  # fmt: skip
        for ours, theirs, true in zip(run(Q, K, V, case.causal), plain, exact, strict=True):
            _hold(case, ours, theirs, true)


def backward(run, B):
    """run(Q, K, V, O, lse, dO, causal) -> dQ, dK, dV is right in every case but those whose keys are huge."""
    for case in cases(B):
        if case.shift:  # dQ would be a small difference of large numbers
            continue
        Q, K, V, dO = inputs(case)
        O, lse = attention(Q, K, V, mask=mask_if(case.causal), return_lse=True)
        plain, exact = (attention_backward(*(a.astype(t) for a in (Q, K, V, dO)), mask=mask_if(case.causal))
                        for t in (np.float32, np.float64))  # fmt: skip
        for ours, theirs, true in zip(run(Q, K, V, O, lse, dO, causal=case.causal), plain, exact, strict=True):
            _hold(case, ours, theirs, true, roundings=16)


def _hold(case, ours, theirs, true, roundings=4):
    try:
        assert_as_exact_as_plain(ours, theirs, true, roundings)
    except AssertionError as error:
        raise AssertionError(f"{case.shows}: {error}") from None


def tiled_forward():
    for order in ("fa1_forward", "fa2_forward"):
        forward(lambda Q, K, V, causal, f=order: getattr(tiling, f)(Q, K, V, 4, 4, mask=mask_if(causal)), 4)


def torch_forward():
    def run(Q, K, V, causal):
        O, lse = plain.tiled(*(torch.from_numpy(x) for x in (Q, K, V)), 4, 4, causal=causal)
        return O.numpy(), lse.numpy()

    forward(run, 4)


def masked_forward():
    """Windows and blocks in both orders, against the dense computation under the mask written out key by key."""
    for case in cases(4)[:5]:
        Q, K, V, _ = (x.astype(float) for x in inputs(case))
        Nq, Nk = case.Nq, case.Nk
        kept = np.random.default_rng(Nq).random((-(-Nq // 3), -(-Nk // 5))) < 0.6  # [Tr, Tc] for tiles of 3 x 5
        seen = {
            masks.window(2): [[0 <= i + Nk - Nq - j <= 2 for j in range(Nk)] for i in range(Nq)],
            masks.window(5, 1): [[-1 <= i + Nk - Nq - j <= 5 for j in range(Nk)] for i in range(Nq)],
            masks.blocks(kept, 3, 5): [[kept[i // 3, j // 5] for j in range(Nk)] for i in range(Nq)],
            masks.documents(np.arange(Nk) // 3): [[0 <= i + Nk - Nq and (i + Nk - Nq) // 3 == j // 3
                                                   for j in range(Nk)] for i in range(Nq)],
            masks.padding(3): [[j < 3 for j in range(Nk)] for i in range(Nq)],
            masks.prefix(5): [[j < 5 or j <= i + Nk - Nq for j in range(Nk)] for i in range(Nq)],
            masks.window(2) & masks.documents(np.arange(Nk) // 4): [
                [0 <= i + Nk - Nq - j <= 2 and (i + Nk - Nq) // 4 == j // 4 for j in range(Nk)] for i in range(Nq)],
        }  # fmt: skip
        for mask, pairs in seen.items():
            pairs = np.array(pairs)  # [Nq, Nk]
            exact = attention(Q, K, V, mask=pairs, return_lse=True)
            for order in ("fa1", "fa2"):
                memory = Memory()
                result = getattr(tiling, f"{order}_forward")(Q, K, V, 4, 4, mask=mask, memory=memory)
                for ours, theirs in zip(result, exact, strict=True):
                    np.testing.assert_allclose(ours, theirs, 1e-12, 1e-14, err_msg=f"{case.shows}, {mask}")
            met = sum(pairs[rows, cols].any() * (cols.stop - cols.start)
                      for rows in tiling.tiles(Nq, 4) for cols in tiling.tiles(Nk, 4))  # fmt: skip
            assert memory.bytes["load", "K"] == 8 * met * case.d, f"{case.shows}, {mask}: tiles that nobody sees"


def tiled_backward():
    def run(*tensors, causal):
        return recomputation.backward(*tensors, 4, 4, mask=mask_if(causal))

    backward(run, 4)


def tiled_dropout():
    """Dropout forward and backward, against the same weights dropped from the dense ones."""
    Q, K, V, dO = (a.astype(float) for a in inputs(cases(4)[1]))
    drop, scale = dropout.Dropout(0.4, 7), Q.shape[1] ** -0.5
    O, lse = tiling.fa2_forward(Q, K, V, 4, 4, dropout=drop)
    S = scale * Q @ K.T
    P, Z = safe_softmax.safe(S), drop.tile(slice(0, len(Q)), slice(0, len(K)), np.float64)
    np.testing.assert_allclose(O, (Z * P) @ V, 1e-9, 1e-12)
    dP = Z * (dO @ V.T)
    dS = P * (dP - (P * dP).sum(1, keepdims=True))
    dense = scale * dS @ K, scale * dS.T @ Q, (Z * P).T @ dO
    for ours, theirs in zip(recomputation.backward(Q, K, V, O, lse, dO, 3, 5, dropout=drop), dense, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)
    np.testing.assert_allclose(np.unique(Z), [0, 1 / 0.6], 1e-4)
    whole, other_head = (type(drop)(0.4, 7, h).tile(slice(0, 64), slice(0, 64)) > 0 for h in (0, 1))
    assert abs(whole.mean() - 0.6) < 0.05, "another share is kept"
    for other in (other_head, np.roll(whole, 1, 1)):
        equal = (whole == other).mean()
        assert abs(equal - 0.52) < 0.05, "heads or neighbours share their bits"  # 0.6 * 0.6 + 0.4 * 0.4


def scored():
    """Soft caps, ALiBi and sinks, forward and backward in float32, against the same written out."""
    for case in cases(4)[:3]:
        Q, K, V, dO = inputs(case)
        Nq, Nk, scale = case.Nq, case.Nk, case.d**-0.5
        distance = np.abs(np.arange(Nq)[:, None] + Nk - Nq - np.arange(Nk))  # [Nq, Nk]
        seen = distance == np.arange(Nq)[:, None] + Nk - Nq - np.arange(Nk)
        raw = scale * Q.astype(float) @ K.T.astype(float)
        written = {
            (scores.softcap(0.5),): (0.5 * np.tanh(2 * raw), 1 - np.tanh(2 * raw) ** 2),
            (scores.alibi(scores.slopes(4)[1]),): (raw - distance / 16, 1),
        }
        for functions, (S, slope) in written.items():
            for sink in (-1.0, 100.0):
                given = dict(mask=masks.causal(), score=functions, sink=sink)
                S = np.where(seen, S, -np.inf)
                lse = np.logaddexp(np.logaddexp.reduce(S, 1), sink)  # [Nq]
                P = np.exp(S - lse[:, None])
                dS = slope * P * (dO @ V.T - (dO * (P @ V)).sum(1, keepdims=True))
                ours = tiling.fa2_forward(Q, K, V, 4, 4, **given)
                gradients = recomputation.backward(Q, K, V, *ours, dO, 4, 4, **given)
                exact = P @ V, lse, scale * dS @ K, scale * dS.T @ Q, P.T @ dO
                for mine, true in zip((*ours, *gradients), exact, strict=True):
                    np.testing.assert_allclose(mine, true, 2e-4, 2e-5, err_msg=f"{case.shows}, {functions}, {sink}")


def tiled_traffic():
    """The bill in closed form is the bill of the run."""
    for case in cases(4):
        Q, K, V, _ = inputs(case)
        for order in ("fa1", "fa2"):
            memory = Memory()
            getattr(tiling, f"{order}_forward")(Q, K, V, 4, 4, mask=mask_if(case.causal), memory=memory)
            predicted = getattr(tiling, f"{order}_traffic")(
                case.Nq, case.Nk, case.d, 4, 4, dv=case.dv, mask=mask_if(case.causal)
            )
            predicted, counted = ({key: n for key, n in bill.items() if n} for bill in (predicted, memory.bytes))
            assert predicted == counted, f"{case.shows}: predicted {predicted}, counted {counted}"


def simulated_pipeline():
    """Exact however it is built, in the cycles of its budget; wrong phases are noticed, each as what it is."""
    small, quick = pipeline.Budget(d=64), pipeline.Budget(softmax_of_64=64)
    locked, three = pipeline.Design(3, overlap=False, consumers=1), pipeline.Design(3)
    designs = pipeline.Design(1, ping_pong=False), pipeline.Design(whole_q=False), locked, pipeline.Design(budget=quick)
    for design in designs:

        def run(Q, K, V, causal, design=design):
            return _ran(pipeline.forward(Q, K, V, design, Br=4, Bc=4, mask=mask_if(causal)))

        forward(run, 4)
    Q, K, V = np.random.default_rng(0).normal(size=(3, 32, 4)).astype(np.float32)
    for cycles, design in ((3904, locked), (2048, three), (1792, replace(three, budget=small))):
        run = pipeline.forward(Q[:2], K, V, design, Br=2, Bc=1)  # 32 blocks
        assert run.steady == cycles, f"a block takes {run.steady} cycles, not {cycles}"
    for error, says, mistake in (
        (sm.Deadlock, "phase 0 of empty[0]", {"empty_phase": lambda n: n & 1}),
        (sm.Race, "is on its way", {"full_phase": lambda n: 0}),
        (sm.Race, "copied into K[1] while consumer 1 reads", {"empty_count": 1}),
        (sm.Race, "all arrivals of the open phase are in", {"empty_phase": lambda n: 1}),
    ):
        try:
            pipeline.forward(Q[:2], K[:4], V[:4], pipeline.Design(**mistake), Br=2, Bc=1)
        except error as noticed:
            assert says in str(noticed), f"{noticed} does not say: {says}"
        else:
            raise AssertionError(f"nobody noticed {mistake}")


def _ran(run):
    """The results of a run in which softmaxes waited for their scores."""
    done = {(e.by, e.kind, e.j): e for e in run.events}  # the last of its kind: of the last tile of queries
    for (by, kind, j), event in done.items():
        assert kind != "softmax" or event.start >= done[by, "S", j].end, (
            f"{by} took a softmax of scores that were not done"
        )
    return run.O, run.lse


def hopper_schedule():
    """Every tile once; longest first among heads that share the cache; nobody late, and nobody without work."""
    for B, H, Hk, Nq, Nk, causal, programs in (
        (2, 6, 2, 700, 200, True, 7), (1, 12, 3, 384, 90000, True, 5), (3, 2, 1, 300, 200, False, 100),
        (1, 16, 16, 4096, 16384, True, 32),
    ):  # fmt: skip
        Tr, group = -(-Nq // 128), H // Hk
        together = max(1, 16 * 2**20 // (4 * Nk * 64)) * group  # heads: K and V of 2 bytes in 16 MiB
        schedule._longest_first.cache_clear(), schedule._in_turn.cache_clear()
        mask = triton_masks.causal() if causal else triton_masks.full()
        problem = Problem(B, H, Hk, Nq, Nk, 64, 64, torch.bfloat16, torch.device("cpu"), mask, 1.0, "ieee")
        tiles, starts, used = schedule.table(problem, 128, 128, programs)
        tiles, starts = tiles.numpy(), starts.numpy()
        i, b, h, hk = tiles.T
        assert sorted(zip(b, h, i, strict=True)) == list(np.ndindex(B, H, Tr)), "not every tile once"
        assert (hk == h // group).all(), "keys of another head"
        assert used >= min(programs, len(tiles)), "a program without work"
        assert used == len(starts) - 1 and (np.diff(starts) > 0).all() and starts[-1] == len(tiles), "no work"
        assert used >= min(programs, len(tiles)), "a program is idle"
        last = Nq - 1 - (Tr - 1 - i) * 128
        seen = np.clip(last + 1 + Nk - Nq, 1, Nk) if causal else np.full_like(i, Nk)  # keys
        n = -(-seen // 128)
        assert (schedule.blocks(i, 128, 128, problem) == n).all(), "wrong number of blocks"
        times = np.add.reduceat(n, starts[:-1])
        assert times.max() <= times.mean() + n.max(), "a program is late"
        turn = (b * H + h) // together if causal else np.zeros_like(n)
        for mine in np.split(np.arange(len(tiles)), starts[1:-1]):
            assert (np.diff(n[mine])[np.diff(turn[mine]) == 0] <= 0).all(), "not the longest first"
        _, b, h, _ = schedule.ordered_tiles(problem, 128, schedule.blocks(np.arange(Tr), 128, 128, problem)).T
        assert (np.diff((b * H + h) // together) >= 0).all(), "too many keys and values at a time"
    _, starts = schedule.schedule(np.zeros((3, 4)), np.array([8, 1, 1]), 1, parts=5)  # the first takes up four parts
    assert (np.diff(starts) > 0).all(), "no work"
    for Nq, Nk, mask in (
        (200, 200, triton_masks.causal()), (200, 300, triton_masks.full()), (300, 77, triton_masks.causal()),
        (128, 192, triton_masks.causal()), (256, 320, triton_masks.causal()), (300, 420, triton_masks.window(130)),
        (300, 300, triton_masks.window(60, 50)), (200, 140, triton_masks.window(70)),
        (200, 500, triton_masks.window(70)),
    ):  # fmt: skip
        for Br in (128, 192):
            if isinstance(mask, triton_masks.Window) and mask.left is not None:
                problem = Problem(1, 1, 1, Nq, Nk, 64, 64, torch.bfloat16, torch.device("cpu"), mask, 1.0, "ieee")
                met = schedule.blocks(np.arange(-(-Nq // Br)), Br, 128, problem)
                assert met.max() <= (mask.left + mask.right + Br - 1) // 128 + 2, "wrong number of blocks"
            counts = hopper_scores.taken(Nq, Nk, mask, Br)
            assert (counts == hopper_scores.wanted(Nq, Nk, mask)).all(), "not these scores, once"
    ids = np.arange(333) // 150
    i, j = np.ogrid[:333, :333]
    for mask, seen in (
        (triton_masks.documents(torch.tensor(ids)), ids[:, None] == ids),
        (triton_masks.documents(torch.tensor(ids)) & triton_masks.window(40, 1),
         (ids[:, None] == ids) & (j >= i - 40) & (j <= i + 1)),
    ):  # fmt: skip
        assert (hopper_scores.taken(333, 333, mask, 128) == seen).all(), "not these scores of documents, once"


def kernel_decoding():
    """A step of three tokens in two key heads of three query heads, its past in parts, in pages, and in 8 bits."""
    rng, lengths = np.random.default_rng(0), (0, 5, 70)
    q, K, V = (torch.tensor(rng.normal(size=(3, *shape)), dtype=torch.float32)
               for shape in ((6, 3, 18), (2, 70, 18), (2, 70, 20)))  # fmt: skip
    table = torch.tensor([[7, 7, 7], [2, 9, 9], [4, 0, 3]], dtype=torch.int32)  # of pages of 24 tokens
    paged = [torch.full((5, 2, 24, width), np.nan) for width in (18, 20)]
    for b, j in ((1, 0), (2, 0), (2, 1), (2, 2)):
        for X, x in zip(paged, (K, V), strict=True):
            X[table[b, j], :, : max(0, min(24, lengths[b] - 24 * j))] = x[b, :, 24 * j : min(24 * j + 24, lengths[b])]
    codes, scales = zip(*(kept_in_eight_bits.rounded(x, torch.int8) for x in (K, V)), strict=True)
    held = torch.tensor(lengths, dtype=torch.int32)
    caches = {"pages": Cache(*paged, table, held), "8 bits": Cache(*codes, None, held, torch.stack(scales))}
    rounded = [kept_in_eight_bits.widened(*it) for it in zip(codes, scales, strict=True)]
    for name, cache in caches.items():
        keys, values = (K, V) if name == "pages" else rounded
        queries = q if name == "pages" else q.half()
        for window, S in ((triton_masks.causal(), 3), (triton_masks.window(20), 2), (triton_masks.causal(), 1)):
            case = Case(f"{name}, {window}, {S} parts", 3, 70, 18, 20, True)
            chosen = operator.Launch(16, 16, 4, 1, 1)
            problem = operator.problem_of(queries, cache, window, 0.4)
            O, lse = operator.run(queries, cache, problem, chosen=chosen, S=S)
            mask = masks.causal() if window.left is None else masks.window(20)
            for b, N in enumerate(lengths):
                inputs = [queries[b], *(x[b, :, :N].repeat_interleave(3, 0) for x in (keys, values))]
                wide, narrow = ([x.to(t).numpy() for x in inputs] for t in (torch.float64, torch.float32))
                plain, exact = (attention(*x, mask=mask, scale=0.4, return_lse=True) for x in (narrow, wide))
                half = O.dtype == torch.float16
                _hold(case, O[b].numpy(), plain[0].astype(O[b].numpy().dtype), exact[0], roundings=8 if half else 4)
                _hold(case, lse[b].numpy(), plain[1], exact[1], roundings=16)
    O, lse = decode_shared(q, [Prefix((K[2:, :, :9], V[2:, :, :9]))], (K, V), lengths=held, return_lse=True)
    for b, N in enumerate(lengths[1:], 1):
        whole = [torch.cat([x[2, :, :9], x[b, :, :N]], 1).repeat_interleave(3, 0).double().numpy() for x in (K, V)]
        exact = attention(q[b].double().numpy(), *whole, mask=masks.causal(), return_lse=True)
        for mine, true in zip((O[b], lse[b]), exact, strict=True):
            np.testing.assert_allclose(mine.numpy(), true, 1e-4, 1e-5, err_msg="a shared prefix")
    mask = triton_masks.causal() & (triton_masks.sinks(3) | triton_masks.window(20))
    score, sinks = (triton_scores.alibi(torch.arange(6) / 8), triton_scores.softcap(1.0)), torch.arange(6.0)
    problem = operator.checked(q, Cache(K, V, None, held), None, mask, 0.4, None, score, sinks)[1]
    results = operator.run(q, Cache(K, V, None, held), problem, chosen=operator.Launch(16, 16, 4, 1, 1), S=2)
    for b, N in enumerate(lengths[1:], 1):
        alone = [q[b : b + 1], *(x[b : b + 1, :, :N] for x in (K, V))]
        options = {"mask": mask, "score": score, "sinks": sinks, "scale": 0.4, "kernel": "portable"}
        for mine, true in zip(results, kernels.flash_attention(*alone, **options, return_lse=True), strict=True):
            np.testing.assert_allclose(mine[b], true[0], 1e-4, 1e-5, err_msg="mask, scores and sinks")


def small_tiles(*_, **__):
    """Choose tiles in which the cases have several."""
    return Choice("portable", {"row_constants": STREAMED} | dict.fromkeys(PORTABLE, Configuration(16, 16, 4, 1)), "")


def kernel_forward():
    forward(lambda Q, K, V, causal: _one_head(Q, K, V, causal), 16)
    _groups(kernels.flash_attention)


def kernel_backward():
    def run(Q, K, V, O, lse, dO, causal):
        q, k, v = (_head(array).requires_grad_() for array in (Q, K, V))
        kernels.flash_attention(q, k, v, causal=causal).backward(_head(dO))
        return [x.grad[0, 0].cpu().numpy() for x in (q, k, v)]

    backward(run, 16)
    _groups(kernels.flash_attention, gradients=True)


def kernel_masks():
    """Windows, to the left, to the right and to both sides, narrower and wider than a tile; and no tile too many."""
    for case in cases(16)[:5]:
        Q, K, V, dO = inputs(case)
        for ends in (1, 0), (2, 0), (5, 1), (17, 20), (40, 0), (np.inf, 3), (3, np.inf):
            mask = masks.window(*ends)
            wide, narrow = ([a.astype(t) for a in (Q, K, V, dO)] for t in (np.float64, np.float32))
            plain, exact = ((attention(*x[:3], mask=mask), *attention_backward(*x, mask=mask)) for x in (narrow, wide))
            q, k, v = (_head(array).requires_grad_() for array in (Q, K, V))
            with interpreter.count() as memory:
                o = kernels.flash_attention(q, k, v, mask=kernels.masks.window(*ends))
            o.backward(_head(dO))
            ours = [x.detach()[0, 0].cpu().numpy() for x in (o, q.grad, k.grad, v.grad)]
            for mine, theirs, true in zip(ours, plain, exact, strict=True):
                _hold(case, mine, theirs, true, roundings=16)
            expected = tiling.fa2_traffic(case.Nq, case.Nk, case.d, 16, 16, dv=case.dv, mask=mask)
            expected["store", "lse"] *= 2  # in training it is in float64
            assert {key: n for key, n in expected.items() if n} == memory.bytes, f"{case.shows}: other tiles loaded"


def kernel_float8():
    """Codes, scales and rotations are the reference's, and attention of them as a tensor core of 14 bits adds up."""
    made = {name: torch.randn(1, heads, N, 32, generator=torch.Generator().manual_seed(N)) for name, heads, N in
            (("q", 2, 140), ("k", 1, 300), ("v", 1, 301))}  # fmt: skip
    q, k, v = made["q"] * torch.linspace(1, 3, 140)[:, None], made["k"], made["v"][:, :, 1:].abs()
    q[..., 3], k[:, :, 130:] = 9 * q[..., 3], 2 * k[:, :, 130:]  # a column and a block of larger numbers
    k[:, :, 200, 3], v[:, :, 150:] = 6.0, 3 * v[:, :, 150:]
    v = torch.cat([v, 2 * v], 1)[:, 1:]
    signs = float8.random_signs(32, 5)
    for x, given, per in ((q, signs, "block"), (k * 0, None, "block"), (-k.abs(), None, "block"), (v, None, "head")):
        codes, scale = float8.quantise(x, signs=given, per=per)
        true = x.double().numpy() if given is None else eight_bits.rotate(x.double().numpy(), signs.numpy())
        expected = eight_bits.quantise(true, per=per)
        np.testing.assert_allclose(scale[..., 0], expected.scale[:, :, 0, 0] if x.any() else 2.0**-126, rtol=1e-5)
        assert np.mean(codes.double().numpy() != expected.numbers) < 2e-3, "other codes"
    for three, mask, theirs in (
        (codes_of(q, k, v), None, None),
        (codes_of(q, k, v, signs), triton_masks.causal(), masks.causal()),
        (codes_of(q * 0, k * 0, v), triton_masks.causal(), masks.causal()),
    ):
        _compare_in_eight_bits(three, mask, theirs, 4e-3)
    q, k, v = (torch.randn(1, 1, N, 16, generator=torch.Generator().manual_seed(N)) for N in (8, 3000, 3001))
    _compare_in_eight_bits(codes_of(q, k, v[:, :, 1:].abs()), None, None, 1e-3)
    q[..., 0], k[:, :, 0], v[:, :, 1] = 4, 0, 0  # a score of 7, and a value of 0
    k[:, :, 0, 0] = 7
    _compare_in_eight_bits(codes_of(q[:, :, :2], k[:, :, :600], v[:, :, 1:601]), None, None, 1e-2)


def _compare_in_eight_bits(three, mask, theirs, limit):
    """Compare with the reference, whose sums are exact. A weight between two codes may go either way."""
    codes, scales = zip(*three, strict=True)
    with interpreter.tensor_core():
        O, lse = flash_attention_float8(*codes, scales=scales, mask=mask, dtype=torch.float32, return_lse=True)
    exact, exact_lse = in_exact_arithmetic(three, theirs)
    assert (found := relative_error(O, exact)) <= limit, f"O is {found:.2g} off exact arithmetic on the same codes"
    torch.testing.assert_close(lse.double(), exact_lse, rtol=3e-4, atol=2e-3)


def kernel_rules():
    """Documents, sinks, padding, patterns and their unions, with NaN in all keys and values that nobody sees."""
    rng, B, H = np.random.default_rng(2), 2, 2
    for Nq, Nk in (20, 45), (45, 45), (37, 20):
        i, j = np.ogrid[:Nq, :Nk]
        own = i + Nk - Nq
        ids, lengths = np.sort(rng.integers(0, 4, (B, Nk)), 1), np.array([Nk // 2 - 1, Nk - 3])
        kept, seen = rng.random((B, H, -(-Nq // 8), -(-Nk // 24))) > 0.5, rng.random((H, Nq, Nk)) > 0.7
        same = (ids[:, np.maximum(own[:, 0], 0), None] == ids[:, None]) & (own >= 0)  # [B, Nq, Nk]
        large = kept.repeat(8, 2).repeat(24, 3)[:, :, :Nq, :Nk]
        on = {name: torch.tensor(x, device=kernels.DEVICE) for name, x in locals().items() if isinstance(x, np.ndarray)}
        first = (j < 19) & (i >= 0)
        written = {
            "documents": (kernels.masks.documents(on["ids"]) & kernels.masks.causal(), same[:, None] & (j <= own)),
            "sinks": (kernels.masks.sinks(19) | kernels.masks.window(3), first | ((own - 3 <= j) & (j <= own))),
            "padding": (kernels.masks.padding(on["lengths"]), (j < lengths[:, None, None, None]) & (i >= 0)),
            "blocks": (kernels.masks.blocks(on["kept"], 8, 24), large),
            "dense": (kernels.masks.dense(on["seen"]) & kernels.masks.documents(on["ids"]), seen & same[:, None]),
        }
        for name, (mask, pairs) in written.items():
            pairs = torch.tensor(np.broadcast_to(pairs, (B, H, Nq, Nk)).copy())
            _compare_with_dense(f"{name}, Nq = {Nq}, Nk = {Nk}", B, H, pairs, mask=mask)


def kernel_scores():
    """Caps, slopes and biases in both orders, sinks and dropout; values and all gradients."""
    B, H, Nq, Nk = 2, 2, 20, 45
    i, j = torch.arange(Nq)[:, None], torch.arange(Nk)
    pairs = (j <= i + Nk - Nq).expand(B, H, Nq, Nk)
    slopes, added, sinks = torch.tensor([0.1, 0.6]), torch.randn(1, H, Nq, Nk), torch.tensor([0.5, -0.3])
    away = (i + Nk - Nq - j).abs()

    def capped(S, slopes, added):
        return 1.5 * torch.tanh((S - slopes[:, None, None] * away + added) / 1.5)

    def lowered(S, slopes, added):
        return 1.5 * torch.tanh(S / 1.5) + added - slopes[:, None, None] * away

    made = kernels.scores
    for name, written, steps in (
        ("ALiBi, bias, cap", capped, lambda x, y: (made.alibi(x), made.bias(y), made.softcap(1.5))),
        ("cap, bias, ALiBi", lowered, lambda x, y: (made.softcap(1.5), made.bias(y), made.alibi(x))),
    ):
        _compare_with_dense(name, B, H, pairs, written, steps, (slopes, added), mask=kernels.masks.causal())
    _compare_with_dense("sinks", B, H, pairs, sinks=sinks, mask=kernels.masks.causal())
    Z = torch.tensor(np.stack([np.stack([
        dropout.Dropout(0.3, 9, h, b).tile(slice(0, Nq), slice(0, Nk), np.float64) for h in range(H)
    ]) for b in range(B)]))  # fmt: skip
    _compare_with_dense("dropout", B, H, pairs, Z=Z, mask=kernels.masks.causal(), dropout=0.3, seed=9)


def _compare_with_dense(name, B, H, pairs, written=None, steps=None, learned=(), sinks=None, Z=None, **options):
    """Compare O, lse and all gradients with attention written out in float64; unseen keys and values are NaN."""
    Nq, Nk = pairs.shape[2:]
    rng = np.random.default_rng(3)
    shapes = (B, H, Nq, 8), (B, H, Nk, 8), (B, H, Nk, 8)
    tensors = [*(torch.tensor(rng.normal(size=shape)) for shape in shapes), *(x.double() for x in learned)]
    tensors += [] if sinks is None else [sinks.double()]
    weights = torch.tensor(rng.normal(size=(B, H, Nq, 8))), torch.tensor(rng.normal(size=(B, H, Nq)))
    unseen = ~pairs.any(2)[..., None]

    def run(dtype, attention):
        leaves = [x.to(kernels.DEVICE, dtype).requires_grad_() for x in tensors]
        q, k, v, *others = leaves
        o, lse = attention(q, k, v, *others)
        seen = lse.isfinite()
        loss = (o.cpu() * weights[0]).sum() + (lse[seen].cpu() * weights[1][seen.cpu()]).sum()
        return [x.detach().cpu().double() for x in (o, lse, *torch.autograd.grad(loss, leaves))]

    def ours(q, k, v, *others):
        k, v = (torch.where(unseen.to(x.device), torch.nan, x) for x in (k, v))
        score = steps(*others[: len(learned)]) if steps else None
        given = None if sinks is None else others[-1]
        return kernels.flash_attention(q, k, v, score=score, sinks=given, return_lse=True, **options)

    def dense(q, k, v, *others):
        S = q @ k.mT * 8**-0.5
        S = (written(S, *others[: len(learned)]) if written else S).masked_fill(~pairs, -torch.inf)
        if sinks is not None:
            S = torch.cat([S, others[-1][:, None, None].expand(B, H, Nq, 1)], 3)
        lse = S.logsumexp(-1)
        P = (S - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()[..., :Nk]
        return (P if Z is None else P * Z) @ v, lse

    for mine, true in zip(run(torch.float32, ours), run(torch.float64, dense), strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-5, atol=2e-5, msg=lambda text: f"{name}: {text}")


def _head(array):
    return torch.tensor(array[None, None], device=kernels.DEVICE)


def _one_head(Q, K, V, causal):
    o, lse = kernels.flash_attention(_head(Q), _head(K), _head(V), causal=causal, return_lse=True)
    return o[0, 0].cpu().numpy(), lse[0, 0].cpu().numpy()


def _groups(run, gradients=False):
    """Four query heads on two key/value heads, two batches: compared with heads that were repeated by hand."""
    rng = np.random.default_rng(1)
    leaves = [torch.tensor(rng.normal(size=(2, H, 17, 8)), dtype=torch.float64, requires_grad=True) for H in (4, 2, 2)]
    q, k, v = leaves
    dense = torch.nn.functional.scaled_dot_product_attention(q, *(x.repeat_interleave(2, 1) for x in (k, v)))
    ours = [x.detach().to(kernels.DEVICE, torch.float32).requires_grad_() for x in leaves]
    o = run(*ours)
    torch.testing.assert_close(o.cpu().double(), dense, rtol=1e-4, atol=1e-5)
    if gradients:
        weight = torch.tensor(rng.normal(size=dense.shape))
        dense.backward(weight)
        o.backward(weight.to(o))
        for mine, theirs in zip(ours, leaves, strict=True):
            torch.testing.assert_close(mine.grad.cpu().double(), theirs.grad, rtol=1e-4, atol=1e-5)


def ring_of_three():
    """Three ranks in every layout, forward and backward, against one."""
    Q, K, V, dO = (np.random.default_rng(seed).normal(size=(11, width)) for seed, width in enumerate((4, 4, 6, 6)))
    for name in layouts.LAYOUTS:
        for mask in (None, masks.causal()):
            layout = layouts.layout_of(name, len(Q), 3)
            O, lse = ring.forward(Q, K, V, layout, mask=mask)
            ours = O, *ring.backward(dO, Q, K, V, O, lse, layout, mask=mask)
            theirs = attention(Q, K, V, mask=mask), *attention_backward(Q, K, V, dO, mask=mask)
            for x, y in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    nothing = np.zeros((1, 6)), np.full(1, -np.inf)
    np.testing.assert_equal(ring.merge(*nothing, *nothing), nothing)


def in_eight_bits():
    """Rounding is exact, rotations keep scores, sums lose what they must, and tiles agree with one dense product."""
    x = np.array([0.3, -1e6, 470, 2.0**-9, 1.4 * 2.0**-8, 1.0625, 17, 0])
    np.testing.assert_equal(eight_bits.to_e4m3(x), [0.3125, -448, 448, 2.0**-9, 1.5 * 2.0**-8, 1, 16, 0])
    Q, K, V = (np.random.default_rng(seed).normal(size=(96, 8)) for seed in range(3))
    s = eight_bits.signs(8)
    rotated = eight_bits.rotate(Q, s)
    np.testing.assert_allclose(rotated @ eight_bits.rotate(K, s).T, Q @ K.T)
    np.testing.assert_allclose(eight_bits.hadamard(rotated) * s, Q)
    np.testing.assert_allclose(eight_bits.without_mean(K)[0].mean(0), 0, atol=1e-12)
    Q, K, V = 3 * Q, K * np.repeat([3, 1, 2], 32)[:, None], V * np.repeat([1, 9, 0], 32)[:, None]
    Q[0] = -100 * np.abs(Q[0])
    inputs = [eight_bits.quantise(X, per="block", block=32) for X in (Q, K, V)]
    widened = [x.widened() for x in inputs]
    for x, X in zip(inputs, (Q, K, V), strict=True):
        near = np.abs(x.widened() - X) <= np.maximum(2.0**-4 * np.abs(X), 2.0**-10 * x.scale)
        assert near.all(), "further than half a step away"
    O, lse = eight_bits.attention(*inputs, Bc=32)
    exact, lse_exact = attention(*widened, return_lse=True)
    np.testing.assert_allclose(lse, lse_exact, rtol=1e-9)
    assert np.linalg.norm(O - exact) <= 0.03 * np.linalg.norm(exact), "more than the rounding of weights"
    far = [eight_bits.Quantised(X, np.ones((len(X), 1))) for X in (np.ones((1, 1)), np.array([[8.0], *127 * [[0.0]]]))]
    O, _ = eight_bits.attention(*far, eight_bits.Quantised(1 - far[1].numbers / 8, np.ones((128, 1))))
    np.testing.assert_allclose(O, 127 * np.exp(-8) / (1 + 127 * np.exp(-8)), rtol=0.07)  # small weights count
    ones, total = np.ones((1, 32 * 1025)), 0.0
    for _ in range(1025):
        step = 2.0 ** (np.floor(np.log2(total + 32.125)) - 13)
        total = (total + 32.125) // step * step  # a sum of 32 terms of 1 + 2^-8
    np.testing.assert_equal(eight_bits.TensorCore(13)(np.zeros((1, 1)), ones, ones.T + 2.0**-8), total)
    two_level = eight_bits.TensorCore(13, flush=64)(np.zeros((1, 1)), ones, ones.T + 2.0**-8)
    np.testing.assert_equal(two_level, 32.125 * 1025)
    np.testing.assert_equal(eight_bits.cut(np.array([1.9, -1.9, 3.99]), 1), [1.5, -1.5, 3])


def blocks_of_layouts():
    """The blocks of two ranks hold what is seen, once, and zigzag leaves all ranks the same."""
    layouts.blocks.cache_clear()
    try:
        for name, (left, right) in product(layouts.LAYOUTS, ((None, None), (None, 0), (5, 0), (1, 2))):
            layout = layouts.layout_of(name, 24, 3)
            everything = [(range(24),)] if name != "striped" else []
            for queries, keys in product(layout, [*layout, *everything]):
                i, j = (np.array([position for run in runs for position in run]) for runs in (queries, keys))
                distance = j[None, :] - i[:, None]
                seen = (distance >= -(24 if left is None else left)) & (distance <= (24 if right is None else right))
                found = np.zeros(seen.shape, int)
                for rows, cols, before, after in layouts.blocks(queries, keys, left, right):
                    own = np.arange(*rows)[:, None] - rows[1] + cols[1]
                    after, before = (99 if end is None else end for end in (after, before))
                    k = np.arange(*cols)
                    found[slice(*rows), slice(*cols)] += (k >= own - before) & (k <= own + after)
                np.testing.assert_array_equal(found, seen)
                assert layouts.pairs(queries, keys, left, right) == seen.sum()
        for step in layouts.schedule(layouts.zigzag(24, 3), None, 0):
            assert len({count for _, count in step}) == 1, "zigzag: some ranks have more to do than others"
    finally:
        layouts.blocks.cache_clear()


def linear_chunks():
    """Chunks of every size compute the definition, key by key, and states of stretches merge to that of the whole."""
    Q, K, V = (np.random.default_rng(seed).normal(size=(11, width)) for seed, width in enumerate((4, 4, 6)))
    for decay in (1.0, 0.7):
        far = [[decay ** (i - j) if j <= i else 0 for j in range(11)] for i in range(11)]
        exact = (np.array(far) * (Q @ K.T)) @ V
        whole = sum(decay ** (10 - j) * np.outer(K[j], V[j]) for j in range(11))
        np.testing.assert_allclose(linear.quadratic(Q, K, V, decay=decay), exact, 1e-9, 1e-12)
        for C in (1, 4, 11):
            for ours, theirs in zip(linear.chunked(Q, K, V, C, decay=decay), (exact, whole), strict=True):
                np.testing.assert_allclose(ours, theirs, 1e-9, 1e-12)
        parts = [linear.state(K[part], V[part], decay=decay) for part in np.split(np.arange(11), [3, 7])]
        for merged in (
            linear.merge(linear.merge(*parts[:2]), parts[2]),
            linear.merge(parts[0], linear.merge(*parts[1:])),
        ):
            np.testing.assert_allclose(merged.KV, whole, 1e-9, 1e-12)


def kernel_linear():
    """The Triton kernel computes what the chunks in numpy do, two heads with decays of their own, and their states."""
    Q, K, V = (np.random.default_rng(seed).normal(size=(44, width)) for seed, width in enumerate((4, 4, 6)))
    decays = torch.tensor([0.7, 1.0])
    given = (torch.from_numpy(X).float()[None, None].repeat(1, 2, 1, 1).to(kernels.DEVICE) for X in (Q, K, V))
    O, state = linear_attention(*given, decay=decays.to(kernels.DEVICE), return_state=True, chunk=16)
    for h, factor in enumerate(decays.tolist()):
        due, last = linear.chunked(Q, K, V, 44, decay=factor)
        np.testing.assert_allclose(O[0, h].cpu(), due, 1e-3, 1e-3)
        np.testing.assert_allclose(state[0, h].cpu(), last, 1e-3, 1e-3)


def late_maximum():
    """A lazy maximum is exact, and no weight exceeds the threshold: the maximum may rise by 5, 6 and 20."""
    S = np.array([0.0, 5.0, 6.0, 26.0, 20.0])[None, :] + np.zeros((2, 1))
    S[1, :2] = -np.inf
    V = np.random.default_rng(0).normal(size=(5, 3))
    state = online_softmax.identity(2, 3, S.dtype)
    for j in range(5):
        state = next_machine.lazy_update(state, S[:, j : j + 1], V[j : j + 1])
        seen = S[:, j] > -np.inf
        assert np.exp(S[seen, j] - state.m[seen]).max() <= 2**8, "a weight is larger than the threshold allows"
        assert j != 1 or state.m[0] == 0, "a rise of 5 natural units is 7.2 of log2: m stays"
    weights = np.exp(S - 26)
    np.testing.assert_allclose(online_softmax.finish(state)[0], weights @ V / weights.sum(1, keepdims=True), 1e-12)


def powers_of_two():
    """2^x by polynomial is near 2^x over the whole range, exact at whole numbers, 0 far below."""
    c = next_machine.minimax.__wrapped__(3)  # not from its cache
    x = np.linspace(-126, 126, 4001, dtype=np.float32)
    np.testing.assert_allclose(next_machine.exp2(x, c), np.exp2(x.astype(np.float64)), 9e-5)
    whole = np.float32([0, -1, -126, 7, -200, -np.inf])
    np.testing.assert_array_equal(next_machine.exp2(whole, c), [1, 0.5, 2.0**-126, 128, 0, 0])
    survey = next_machine.survey(c, 4096)
    assert abs(survey.largest - 8.56e-5) < 5e-7 and survey.apart <= 1, "not the least error"
    bits = next_machine.bfloat16(np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7 - 2**-20]))
    np.testing.assert_array_equal(bits - bits[0], [0, 0, 2, 1])


def cycles_of_the_next_machine():
    """Tables 1 and 3 of FlashAttention-4, and the cycles of both units at the balanced share."""
    assert next_machine.forward_cycles(128, 128, 128) == (1024, 768, 1024), "table 1"
    assert next_machine.forward_cycles(256, 128, 64) == (1024, 768, 2048), "table 1, two tiles, half the head"
    assert next_machine.backward_cycles() == (2560, 3328, 1024), "table 3"
    assert next_machine.backward_cycles(pair=True) == (2560, 2688, 1024), "table 3, a pair"
    rates = next_machine.Rates()
    share = rates.balanced()
    ends = rates.lane_cycles(9, share), rates.exponential_cycles(9, share)
    assert abs(ends[0] - ends[1]) < 1e-9 < share, "the units are not balanced"
    assert rates.lane_cycles(128 * 128, 1) == 1792, "instructions per score"
    assert rates.exponential_cycles(128 * 128, 0.25) == 768, "three quarters of the exponentials"


def order_of_additions():
    """Each program visits each tile that it sees once, and nobody waits; pairs have the same work."""
    for causal in (False, True):
        assert next_machine.finished(5, causal) == (25, 0), "somebody waits"
        visits = next_machine.visits(5, causal)
        assert [sorted(queue) for queue in visits] == [list(range(j if causal else 0, 5)) for j in range(5)], "visits"
    pairs = next_machine.pairs(6)
    assert len({i + j for i, j in pairs}) == 1 and len(set(sum(pairs, ()))) == 6, "unequal pairs"


def roles_of_the_next_machine():
    """The roles compute attention of two tiles, with maxima that rise by little and by much, and meet no race."""
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(n, d)) for n, d in ((6, 4), (20, 4), (20, 3)))
    K *= np.linspace(0.5, 40, 20)[:, None]
    for design in (roles.Design(), roles.Design(stages=2, d=64, threshold=0)):
        run = roles.forward(Q, K, V, design, Bc=4)
        np.testing.assert_allclose(run.O, attention(Q, K, V), 1e-9, 1e-12)
    plain = roles.forward(Q.astype(np.float32), K.astype(np.float32), V.astype(np.float32), roles.Design(share=1), Bc=4)
    np.testing.assert_allclose(plain.O, attention(Q, K, V), 2e-3, 2e-3)
