"""The checks that kernels must pass, in tiles of 16 x 16: they have no smaller ones."""

import numpy as np
import torch

from flashlab import kernels
from flashlab.kernels import float8, interpreter
from flashlab.kernels import masks as triton_masks
from flashlab.kernels import scores as triton_scores
from flashlab.kernels.attention_float8 import flash_attention_float8
from flashlab.kernels.configurations import STREAMED, Choice, Configuration
from flashlab.kernels.decode import Cache, dequantise, operator, quantise
from flashlab.kernels.linear_attention import linear_attention
from flashlab.kernels.shared_prefix import Prefix, decode_shared
from flashlab.kernels.tables import PORTABLE
from flashlab.reference import dropout, eight_bits, masks, tiling
from flashlab.reference import linear_attention as linear
from flashlab.reference.attention import attention, attention_backward
from tests.kernels.in_eight_bits import error as relative_error
from tests.kernels.in_eight_bits import in_eight_bits as codes_of
from tests.kernels.in_eight_bits import in_exact_arithmetic
from tests.mutants.acceptance.cases import Case, backward, cases, forward, hold, inputs


def small_tiles(*_, **__):
    """Choose tiles so small that the cases have several."""
    return Choice("portable", {"row_constants": STREAMED} | dict.fromkeys(PORTABLE, Configuration(16, 16, 4, 1)), "")


def kernel_forward():
    forward(_one_head, 16)
    _groups(kernels.flash_attention)


def kernel_backward():
    def run(Q, K, V, O, lse, dO, causal):
        q, k, v = (_head(array).requires_grad_() for array in (Q, K, V))
        kernels.flash_attention(q, k, v, causal=causal).backward(_head(dO))
        return [x.grad[0, 0].cpu().numpy() for x in (q, k, v)]

    backward(run, 16)
    _groups(kernels.flash_attention, gradients=True)


def kernel_pieces():
    """Heads that are three pieces wide, the last of them not filled."""
    _groups(kernels.flash_attention, gradients=True, d=136)


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
                hold(case, mine, theirs, true, roundings=16)
            expected = tiling.fa2_traffic(case.Nq, case.Nk, case.d, 16, 16, dv=case.dv, mask=mask)
            expected["store", "rest"] = expected["store", "lse"]  # in training, of float32
            assert {key: n for key, n in expected.items() if n} == memory.bytes, f"{case.shows}: other tiles loaded"


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
    slopes, sinks = torch.tensor([0.1, 0.6]), torch.tensor([100.0, -0.3])
    added = torch.randn(1, H, Nq, Nk, generator=torch.Generator().manual_seed(0))
    away = (i + Nk - Nq - j).abs()

    def capped(S, slopes, added):
        return 1.5 * torch.tanh((S - slopes[:, None, None] * away + added) / 1.5)

    def lowered(S, slopes, added):
        return 1.5 * torch.tanh(S / 1.5) + added - slopes[:, None, None] * away

    kinds = kernels.scores
    for name, written, steps in (
        ("ALiBi, bias, cap", capped, lambda x, y: (kinds.alibi(x), kinds.bias(y), kinds.softcap(1.5))),
        ("cap, bias, ALiBi", lowered, lambda x, y: (kinds.softcap(1.5), kinds.bias(y), kinds.alibi(x))),
    ):
        _compare_with_dense(name, B, H, pairs, written, steps, (slopes, added), mask=kernels.masks.causal())
    _compare_with_dense("sinks", B, H, pairs, sinks=sinks, mask=kernels.masks.causal())
    Z = torch.tensor(np.stack([np.stack([
        dropout.Dropout(0.3, 9, h, b).tile(slice(0, Nq), slice(0, Nk), np.float64) for h in range(H)
    ]) for b in range(B)]))  # fmt: skip
    _compare_with_dense("dropout", B, H, pairs, Z=Z, mask=kernels.masks.causal(), dropout=0.3, seed=9)


def kernel_float8():
    """Codes, scales and rotations are those of the reference; attention adds as a tensor core with sums of 14 bits."""
    tensors = {name: torch.randn(1, heads, N, 32, generator=torch.Generator().manual_seed(N)) for name, heads, N in
            (("q", 2, 140), ("k", 1, 300), ("v", 1, 301))}  # fmt: skip
    q, k, v = tensors["q"] * torch.linspace(1, 3, 140)[:, None], tensors["k"], tensors["v"][:, :, 1:].abs()
    q[..., 3], k[:, :, 130:] = 9 * q[..., 3], 2 * k[:, :, 130:]  # a column and a block of larger numbers
    k[:, :, 200, 3], v[:, :, 150:] = 6.0, 3 * v[:, :, 150:]
    v = torch.cat([v, 2 * v], 1)[:, 1:]
    signs = float8.random_signs(32, 5)
    for x, rotation, per in ((q, signs, "block"), (k * 0, None, "block"), (-k.abs(), None, "block"), (v, None, "head")):
        codes, scale = float8.quantise(x, signs=rotation, per=per)
        true = x.double().numpy() if rotation is None else eight_bits.rotate(x.double().numpy(), rotation.numpy())
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
    codes, scales = zip(*(quantise(x, torch.int8) for x in (K, V)), strict=True)
    held = torch.tensor(lengths, dtype=torch.int32)
    caches = {"pages": Cache(*paged, table, held), "8 bits": Cache(*codes, None, held, torch.stack(scales))}
    rounded = [dequantise(*it) for it in zip(codes, scales, strict=True)]
    for name, cache in caches.items():
        keys, values = (K, V) if name == "pages" else rounded
        queries = q if name == "pages" else q.half()
        for window, S in ((triton_masks.causal(), 3), (triton_masks.window(20), 2), (triton_masks.causal(), 1)):
            case = Case(f"{name}, {window}, {S} parts", 3, 70, 18, 20, True)
            launch = operator.Launch(16, 16, 4, 1, 1)
            problem = operator.problem_of(queries, cache, window, 0.4)
            O, lse = operator.run(queries, cache, operator.Step.of(queries, cache, problem, choice=launch, S=S))
            mask = masks.causal() if window.left is None else masks.window(20)
            for b, N in enumerate(lengths):
                inputs = [queries[b], *(x[b, :, :N].repeat_interleave(3, 0) for x in (keys, values))]
                wide, narrow = ([x.to(t).numpy() for x in inputs] for t in (torch.float64, torch.float32))
                plain, exact = (attention(*x, mask=mask, scale=0.4, return_lse=True) for x in (narrow, wide))
                half = O.dtype == torch.float16
                hold(case, O[b].numpy(), plain[0].astype(O[b].numpy().dtype), exact[0], roundings=8 if half else 4)
                hold(case, lse[b].numpy(), plain[1], exact[1], roundings=16)
    O, lse = decode_shared(q, [Prefix((K[2:, :, :9], V[2:, :, :9]))], (K, V), lengths=held, return_lse=True)
    for b, N in enumerate(lengths[1:], 1):
        whole = [torch.cat([x[2, :, :9], x[b, :, :N]], 1).repeat_interleave(3, 0).double().numpy() for x in (K, V)]
        exact = attention(q[b].double().numpy(), *whole, mask=masks.causal(), return_lse=True)
        for mine, true in zip((O[b], lse[b]), exact, strict=True):
            np.testing.assert_allclose(mine.numpy(), true, 1e-4, 1e-5, err_msg="a shared prefix")
    mask = triton_masks.causal() & (triton_masks.sinks(3) | triton_masks.window(20))
    score, sinks = (triton_scores.alibi(torch.arange(6) / 8), triton_scores.softcap(1.0)), torch.arange(6.0)
    cache = Cache(K, V, None, held)
    problem = operator.checked(q, cache, mask, 0.4, None, score, sinks)
    step = operator.Step.of(q, cache, problem, choice=operator.Launch(16, 16, 4, 1, 1), S=2)
    results = operator.run(q, cache, step)
    for b, N in enumerate(lengths[1:], 1):
        alone = [q[b : b + 1], *(x[b : b + 1, :, :N] for x in (K, V))]
        options = {"mask": mask, "score": score, "sinks": sinks, "scale": 0.4, "kernel": "portable"}
        for mine, true in zip(results, kernels.flash_attention(*alone, **options, return_lse=True), strict=True):
            np.testing.assert_allclose(mine[b], true[0], 1e-4, 1e-5, err_msg="mask, scores and sinks")


def kernel_linear():
    """The Triton kernel agrees with the chunks in numpy for two heads with different decays, and so do their states."""
    rng, decays = np.random.default_rng(0), [0.7, 1.0]
    Q, K, V = (rng.normal(size=(2, 2, 44, width)) for width in (4, 4, 70))  # V: two tiles of columns
    inputs = (torch.tensor(X, dtype=torch.float32, device=kernels.DEVICE) for X in (Q, K, V))
    O, state = linear_attention(*inputs, decay=torch.tensor(decays, device=kernels.DEVICE), return_state=True, chunk=16)
    for b, h in np.ndindex(2, 2):
        expected, last = linear.chunked(Q[b, h], K[b, h], V[b, h], 44, decay=decays[h])
        np.testing.assert_allclose(O[b, h].cpu(), expected, 1e-3, 1e-3)
        np.testing.assert_allclose(state[b, h].cpu(), last, 1e-3, 1e-3)


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
        theirs = None if sinks is None else others[-1]
        return kernels.flash_attention(q, k, v, score=score, sinks=theirs, return_lse=True, **options)

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


def _compare_in_eight_bits(three, mask, theirs, limit):
    """Compare with the reference, whose sums are exact. A weight between two codes may go either way."""
    codes, scales = zip(*three, strict=True)
    with interpreter.tensor_core():
        O, lse = flash_attention_float8(*codes, scales=scales, mask=mask, dtype=torch.float32, return_lse=True)
    exact, exact_lse = in_exact_arithmetic(three, theirs)
    error = relative_error(O, exact)
    assert error <= limit, f"O is {error:.2g} off exact arithmetic on the same codes"
    torch.testing.assert_close(lse.double(), exact_lse, rtol=3e-4, atol=2e-3)


def _head(array):
    return torch.tensor(array[None, None], device=kernels.DEVICE)


def _one_head(Q, K, V, causal):
    o, lse = kernels.flash_attention(_head(Q), _head(K), _head(V), causal=causal, return_lse=True)
    return o[0, 0].cpu().numpy(), lse[0, 0].cpu().numpy()


def _groups(run, gradients=False, d=8):
    """Compare four query heads on two key/value heads, in two batches, with heads that were repeated by hand."""
    rng = np.random.default_rng(1)
    leaves = [torch.tensor(rng.normal(size=(2, H, 17, d)), dtype=torch.float64, requires_grad=True) for H in (4, 2, 2)]
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
