"""Splits, pages and special steps of decoding. ``drawn_cases`` has all options together, in short texts."""

import math

import numpy as np
import pytest
import torch

from flashlab.kernels import DEVICE, INTERPRETED, configurations, flash_attention, masks, scores
from flashlab.kernels.decode import Cache, decode, operator, quantise, tiles
from flashlab.kernels.decode.request import reach
from flashlab.kernels.problem import Problem
from flashlab.kernels.shared_prefix import Prefix, decode_shared
from flashlab.reference import decoding
from flashlab.reference import masks as plain_masks
from flashlab.reference.attention import attention
from tests.kernels.implementations import HOPPER
from tests.kernels.inputs import randn
from tests.tools.bounds import assert_as_exact_as_plain
from tests.tools.long import long

ABSURD = 2147480000  # an entry of a table that no kernel may read


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def inputs(lengths, H=4, Hk=2, n=1, d=16, dv=24, N=None, dtype=torch.float32, seed=0):
    """Return q, K and V, with NaN past the length of each text, and the lengths."""
    B, N = len(lengths), max(lengths) if N is None else N
    shapes = (B, H, n, d), (B, Hk, N, d), (B, Hk, N, dv)
    q, K, V = (randn(*shape, dtype=dtype, seed=seed + i) for i, shape in enumerate(shapes))
    for b, length in enumerate(lengths):
        K[b, :, length:], V[b, :, length:] = math.nan, math.nan
    return q, K, V, torch.tensor(lengths, dtype=torch.int32, device=DEVICE)


def dense(q, K, V, lengths, mask, dtype, scale=None):
    """Return O [B, H, n, dv] and lse [B, H, n], computed text by text in this dtype."""
    K, V = K.nan_to_num(0.0), V.nan_to_num(0.0)
    results, group = [], q.shape[1] // K.shape[1]
    for b, length in enumerate(lengths.tolist()):
        whole = (q[b], *(x[b, :, :length].repeat_interleave(group, 0) for x in (K, V)))
        results.append(attention(*(x.cpu().to(dtype).numpy() for x in whole), mask=mask, scale=scale, return_lse=True))
    return [torch.stack([torch.from_numpy(x) for x in parts]) for parts in zip(*results, strict=True)]


def assert_right(results, q, K, V, lengths, mask, scale=None, roundings=2):
    """Compare O and lse with float64; ``plain`` is numpy in float32, rounded to the dtype of the result."""
    plain, exact = (dense(q, K, V, lengths, mask, dtype, scale) for dtype in (torch.float32, torch.float64))
    for ours, theirs, true in zip(results, plain, exact, strict=True):
        assert_as_exact_as_plain(ours, theirs.to(ours.dtype), true, roundings)


def paged(K, V, lengths, page, seed=0):
    """Return a ``Cache`` with the same keys and values in pages in random order, and NaN or ``ABSURD`` elsewhere."""
    B, Hk, N, _ = K.shape
    T = -(-N // page) + 1
    numbers = torch.randperm(B * T, generator=torch.Generator().manual_seed(seed)).reshape(B, T).to(DEVICE, torch.int32)
    pages = [torch.full((B * T, Hk, page, x.shape[3]), math.nan, device=DEVICE, dtype=x.dtype) for x in (K, V)]
    for b, length in enumerate(lengths.tolist()):
        for j in range(-(-length // page)):
            for x, into in zip((K, V), pages, strict=True):
                rows = x[b, :, j * page : min((j + 1) * page, length)]
                into[numbers[b, j], :, : rows.shape[1]] = rows
        numbers[b, -(-length // page) :] = ABSURD
    return Cache(*pages, numbers, lengths)


def run(q, cache, mask=None, **options):
    """Return O and lse for scale 0.25. options: tiles and splits, as for ``Step.of``."""
    problem = operator.problem_of(q, cache, masks.causal() if mask is None else mask, 0.25)
    return operator.run(q, cache, operator.Step.of(q, cache, problem, **options))


@pytest.mark.parametrize("S", [3, long(1), long(2), long(5), long(17), 40])  # 16 are merged at once
def test_any_number_of_splits_gives_the_same_answer(S):
    q, K, V, lengths = inputs([0, 65, 300], n=2)
    results = run(q, Cache(K, V, lengths=lengths), S=S, choice=tiles.Launch(16, 16, 4, 1, 1))
    assert_right(results, q, K, V, lengths, plain_masks.causal(), 0.25)


def test_splits_are_those_of_a_texts_own_length(monkeypatch):
    q, K, V, lengths = inputs([64, 200])
    lse_s = []  # lse of the splits [S, B, H, n]
    launch = operator.launch
    monkeypatch.setattr(operator, "launch", lambda *args, **kwargs: lse_s.append(args[2][4]) or launch(*args, **kwargs))
    run(q, Cache(K, V, lengths=lengths), choice=tiles.Launch(16, 16, 4, 1, 1), S=4)
    assert lse_s[0].isfinite().all()  # 64 keys in four splits, too, although the longest text has 200


@pytest.mark.parametrize("page", [5, 64, long(1), long(16), long(3), long(100), long(128), long(256)])
@pytest.mark.parametrize("mask", [masks.causal(), long(masks.window(40))])
def test_pages_equal_a_tensor_bit_for_bit(page, mask):
    q, K, V, lengths = inputs([0, 1, 130, 257], n=2)
    caches = Cache(K, V, lengths=lengths), paged(K, V, lengths, page)
    whole, in_pages = (run(q, cache, mask, fixed_split=128, choice=tiles.Launch(16, 64, 4, 5, 2)) for cache in caches)
    assert all(map(torch.equal, in_pages, whole))


def test_fixed_splits_give_the_same_bits_whatever_else_is_in_the_batch():
    q, K, V, lengths = inputs([300, 20, 511, 128], dtype=torch.bfloat16)
    together = decode(q, (K, V), lengths=lengths, fixed_split=128)
    for b in range(4):
        alone = slice(b, b + 1)
        K_b, V_b = K[alone, :, : lengths[b]], V[alone, :, : lengths[b]]
        assert torch.equal(decode(q[alone], (K_b, V_b), fixed_split=128), together[alone])


def test_values_that_are_columns_of_the_keys_are_latent():
    _, K, V, _ = inputs([9], d=48, dv=32)
    assert Cache(K, K[..., :32]).latent and not Cache(K, V).latent


@pytest.mark.skipif(not HOPPER, reason="the kernel for latents needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("H", [16, 70, 128])
@pytest.mark.parametrize("page", [None, 128])
def test_latents_on_hopper_equal_those_of_the_portable_kernel(H, page):
    q, K, _, lengths = inputs([1000, 0, 64, 257, 1], H=H, Hk=1, d=576, dv=1, N=1024, dtype=torch.bfloat16)
    cache = Cache(K, K[..., :512], lengths=lengths)
    if page:
        cache = paged(K, K, lengths, page)
        cache = cache._replace(V=cache.K[..., :512])
    problem = operator.problem_of(q, cache, masks.causal(), 0.07)
    assert operator.for_hopper(q, cache, problem)
    for options in ({}, {"fixed_split": 128}):
        ours = operator.run(q, cache, operator.Step.of(q, cache, problem, **options))
        other = operator.Step.of(q, cache, problem, choice=tiles.Launch(16, 32, 4, 3, 2), **options)
        theirs = operator.run(q, cache, other)
        torch.testing.assert_close(ours[0], theirs[0], rtol=0.02, atol=0.002)
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-5)


def test_which_latents_go_to_hopper(monkeypatch):
    monkeypatch.setattr(operator, "card", lambda device: configurations.Card((9, 0), 227 * 1024))
    K = torch.zeros(4, 1, 64, 576, dtype=torch.bfloat16)
    table = torch.zeros(1, 4, dtype=torch.int32)

    def on_hopper(n=1, dtype=torch.bfloat16, mask=masks.causal(), page=64, dv=512, **options):  # noqa: B008
        X = K[:, :, :page].to(dtype)
        q, cache = torch.zeros(1, 16, n, 576, dtype=dtype), Cache(X, X[..., :dv], table)
        return operator.for_hopper(q, cache, operator.problem_of(q, cache, mask, 0.1, **options))

    assert on_hopper() and on_hopper(dtype=torch.float16) and on_hopper(mask=masks.full())
    assert not on_hopper(n=2) and not on_hopper(dtype=torch.float32) and not on_hopper(mask=masks.window(9))
    assert not on_hopper(page=48) and not on_hopper(dv=528) and not on_hopper(sinks=torch.zeros(16))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dv", [24, 25])
def test_an_even_number_of_columns_of_eight_bits_is_read_in_pairs(dtype, dv):
    V8, _ = quantise(randn(1, 2, 9, dv), dtype)
    assert operator.in_pairs(V8) == (dv % 2 == 0)


def test_scores_of_ten_thousands_and_a_rising_maximum():
    q, K, V, lengths = inputs([250])
    for factor in (1e4, 1.0):
        rising = K + 10 * torch.linspace(0, 1, 250, device=DEVICE)[:, None]
        results = decode(factor * q, (rising, V), return_lse=True)
        assert_right(results, factor * q, rising, V, lengths, plain_masks.causal())


@pytest.mark.exhaustive
def test_a_long_past():
    q, K, V, lengths = inputs([128 * 1024], H=2, Hk=1)
    assert_right(decode(q, (K, V), return_lse=True), q, K, V, lengths, plain_masks.causal())


@pytest.mark.parametrize("apart, rows", [("pages", 16), ("pages", 128), ("heads", 16)])  # 128: a page is a tile
def test_offsets_past_2_to_the_31(apart, rows):
    """Pages and heads so far apart that the number of elements between them does not fit in 32 bits."""
    far = 2**30
    try:
        storage = torch.empty(2 * far + 16 * rows, dtype=torch.int8, device=DEVICE)  # only a few pages are ever touched
    except RuntimeError:
        pytest.skip("2^31 bytes of address space are too many here")
    q = randn(1, 1, 1, 16, dtype=torch.float16)
    K8, scale = quantise(randn(rows, 16), torch.int8)
    X, ones = storage.as_strided((3, rows, 16), (far, 16, 1)), torch.ones(2, 3, rows, device=DEVICE)  # 3 pages or heads
    X[2] = K8
    expected = decode(q, Cache(K8[None, None], K8[None, None], None, None, ones[:, None, :1]))
    if apart == "pages":
        assert torch.equal(decode(q, Cache(X[:, None], X[:, None], int32(2)[None], None, ones[:, :, None])), expected)
    else:
        O = decode(q.expand(1, 3, 1, 16), Cache(X[None], X[None], None, None, ones[:, None]))
        assert torch.equal(O[:, 2:], expected)


def test_queries_that_are_not_contiguous():
    q, K, V, lengths = inputs([100], n=3)
    spread = q.transpose(1, 2).contiguous().transpose(1, 2)
    layouts = K.transpose(1, 2).contiguous().transpose(1, 2), V.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(decode(spread, layouts), decode(q, (K, V)))
    wide = torch.cat([q, q], 3)[..., ::2]
    assert torch.equal(decode(wide, (K, V)), decode(wide.clone(), (K, V)))


def test_the_number_of_splits_is_the_references():
    for programs in (1, 8, 128, 300, 512):
        for most in (1, 100, 8192):
            launch = tiles.Launch(16, 64, 4, 3, 2)
            assert tiles.splits_for(programs, most, launch, 132) == decoding.splits(programs, most, slots=264, Bc=64)


def test_nothing_to_do():
    q, K, V, _ = inputs([10])
    O, lse = decode(q, (K[:, :, :0], V[:, :, :0]), return_lse=True)
    assert not O.any() and (lse == -math.inf).all()
    assert decode(q[:0], (K[:0], V[:0])).shape == (0, 4, 1, 24)


@pytest.mark.skipif(INTERPRETED, reason="on the CPU the lengths are checked")
def test_an_impossible_length_gives_nan():
    q, K, V, lengths = inputs([10, 10, 10])
    O = decode(q, (K, V), lengths=lengths + int32(0, 1, -11))
    assert O[0].isfinite().all() and O[1:].isnan().all()


def test_flash_attention_divides_the_keys_of_few_queries():
    card = configurations.Card((8, 0), 160_000)
    for Nq, Nk, mask, expected in (
        (1, 8192, masks.causal(), "decode"), (16, 512, masks.full(), "decode"), (17, 8192, masks.causal(), "portable"),
        (1, 511, masks.causal(), "portable"), (1, 8192, masks.documents(torch.zeros(1, 8192).int()), "portable"),
    ):  # fmt: skip
        q, k = (torch.empty(1, 4, N, 64, dtype=torch.float16) for N in (Nq, Nk))
        problem = Problem.of(q, k, k, mask, 1.0).kind
        assert configurations.choose_for(card, "forward", problem, None, False).implementation == expected
        assert configurations.choose_for(card, "backward", problem, None, False).implementation == "portable"


def test_flash_attention_in_splits_is_right_and_has_gradients():
    q, K, V, lengths = inputs([300], n=3)
    q.requires_grad_()
    results = flash_attention(q, K, V, causal=True, return_lse=True, kernel="decode")
    assert_right(results, q.detach(), K, V, lengths, plain_masks.causal())
    (gradient,) = torch.autograd.grad((results[0] ** 2).sum() + results[1].sum(), q)
    others = flash_attention(q, K, V, causal=True, return_lse=True, kernel="portable")
    torch.testing.assert_close(gradient, torch.autograd.grad((others[0] ** 2).sum() + others[1].sum(), q)[0])


SLOPES, SINKS = randn(4, seed=6).abs() / 16, randn(4, seed=9)


def test_the_keys_that_decoding_reads_are_those_that_the_mask_may_show():
    streaming = masks.causal() & (masks.sinks(4) | masks.window(9))
    for mask, expected in (
        (masks.window(9, 2), (9, 2, None)), (masks.causal(), (None, 0, None)), (streaming, (9, None, 4)),
        (masks.sinks(4), (None, None, None)), (masks.sinks(0), (None, None, None)),
        (masks.prefix(7), (None, None, None)),
        (masks.dense(randn(4, 3, 140) > 0) & masks.window(3), (3, 0, None)),
    ):  # fmt: skip
        assert reach(mask) == expected


def test_keys_between_the_first_ones_and_the_window_may_be_missing():
    q, K, V, lengths = inputs([400], n=2)
    mask = masks.causal() & (masks.sinks(5) | masks.window(37))
    whole = decode(q, (K, V), lengths=lengths, mask=mask)
    K[:, :, 5 : 400 - 2 - 37], V[:, :, 5 : 400 - 2 - 37] = math.nan, math.nan
    cache = paged(K, V, lengths, 16)
    cache.table[:, 1:22] = ABSURD  # pages whose keys no token sees
    for paged_or_not in Cache(K, V, lengths=lengths), cache:
        assert torch.equal(decode(q, paged_or_not, mask=mask), whole)


BAD = {
    "dtypes": (lambda q, K, V: (q, (K.half(), V)), TypeError, "q's dtype"),
    "heads": (lambda q, K, V: (q[:, :3], (K, V)), ValueError, "multiple of Hk"),
    "batch": (lambda q, K, V: (q[:1], (K, V)), ValueError, "page for each"),
    "rank": (lambda q, K, V: (q[0], (K, V)), ValueError, "four dimensions"),
    "no scales": (lambda q, K, V: (q, (K.to(torch.int8), V.to(torch.int8))), ValueError, "needs scales"),
    "columns": (lambda q, K, V: (q, (K.mT.contiguous().mT, V)), ValueError, "side by side"),
    "scales apart": (
        lambda q, K, V: (q, Cache(K.char(), V.char(), None, None, randn(2, 2, 2, 1).expand(-1, -1, -1, 9))),
        ValueError, "the scales of a page must be side by side in memory",
    ),
    "table": (lambda q, K, V: (q, Cache(K, V, torch.zeros(2, 1, device=DEVICE))), ValueError, "table must be int32"),
    "not tensors": (lambda q, K, V: (q, (K, 3)), TypeError, "V must be a torch tensor"),
    "no columns": (lambda q, K, V: (q[..., :0], (K[..., :0], V)), ValueError, "heads have 1 to 256 columns"),
    "a tensor": (lambda q, K, V: (q, K), TypeError, r"a cache must be a Cache or a pair \(K, V\), got Tensor"),
    "nested": (lambda q, K, V: (torch.nested.nested_tensor(list(q)), (K, V)), TypeError, "q must be .* nested"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_gets_a_sentence(bad):
    q, K, V, _ = inputs([9, 9])
    make, error, says = BAD[bad]
    with pytest.raises(error, match=says):
        decode(*make(q, K, V))


def test_bad_options_get_a_sentence():
    q, K, V, lengths = inputs([9, 9])
    for options, says in (
        ({"fixed_split": 0}, "multiple of 128"),
        ({"fixed_split": 100}, "multiple of 128"), ({"scale": math.nan}, "scale"), ({"scale": -1.0}, "scale"),
        ({"lengths": lengths.long()}, "lengths must be int32"), ({"lengths": lengths[:1]}, "a row for each"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            decode(q, (K, V), **options)
    with pytest.raises(ValueError, match="give lengths once"):
        decode(q, Cache(K, V, lengths=lengths), lengths=lengths)
    if INTERPRETED:
        with pytest.raises(ValueError, match="from 0 to 9"):
            decode(q, (K, V), lengths=lengths + 1)


LEARNED = {  # arguments of decode that may require a gradient
    "q": lambda x, q, K, V: ((x(q), (K, V)), {}),
    "K": lambda x, q, K, V: ((q, (x(K), V)), {}),
    "V": lambda x, q, K, V: ((q, Cache(K, x(V))), {}),
    "sinks": lambda x, q, K, V: ((q, (K, V)), {"sinks": x(torch.ones(4, device=DEVICE))}),
    "score": lambda x, q, K, V: ((q, (K, V)), {"score": (scores.softcap(2), scores.alibi(x(SLOPES.clone())))}),
}


@pytest.mark.parametrize("name", LEARNED)
def test_no_gradient_is_dropped(name):
    q, K, V, _ = inputs([9, 9])
    arguments, options = LEARNED[name](lambda x: x, q, K, V)
    expected = decode(*arguments, **options)
    arguments, options = LEARNED[name](lambda x: x.clone().requires_grad_(), q, K, V)
    with pytest.raises(NotImplementedError, match=f"decode has no backward pass, and {name} requires a gradient"):
        decode(*arguments, **options)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            assert torch.equal(decode(*arguments, **options), expected)
            if not options:
                q, cache = arguments
                O = decode_shared(q, [Prefix(tuple(x[:1] for x in cache[:2]), int32(1))], cache)
                assert torch.equal(O[0], expected[0]) and not torch.equal(O[1], expected[1])


WRONG_PREFIXES = {  # of q [2, 4, 1, 16], K [2, 2, 33, 16], V [2, 2, 33, 8]
    "other heads": (lambda K, V: Prefix(Cache(randn(1, 4, 9, 16), randn(1, 4, 9, 8))), ValueError, r"got \(4, 8\)"),
    "wide keys": (lambda K, V: Prefix(Cache(randn(1, 2, 9, 32), randn(1, 2, 9, 8))), ValueError, "expected q"),
    "two texts": (lambda K, V: Prefix(Cache(K, V)), ValueError, "a page for each of the 1 texts, got 2"),
    "halves": (lambda K, V: Prefix((K[:1].half(), V[:1].half())), TypeError, "q's dtype, or 8 bits both"),
    "too long": (lambda K, V: Prefix(Cache(K[:1], V[:1], lengths=int32(34))), ValueError, "from 0 to 33, got"),
    "no Prefix": (lambda K, V: (K[:1], V[:1]), TypeError, "expected a Prefix, got tuple"),
    "a text twice": (lambda K, V: Prefix((K[:1], V[:1]), int32(0, 0)), ValueError, r"from 0 to 1, got \[0, 0\]"),
    "no such text": (lambda K, V: Prefix((K[:1], V[:1]), int32(2)), ValueError, r"from 0 to 1, got \[2\]"),
    "a list of texts": (lambda K, V: Prefix((K[:1], V[:1]), [0]), TypeError, "texts must be a torch tensor, got list"),
}  # fmt: skip
READ_ON_THE_HOST = "too long", "a text twice", "no such text"


@pytest.mark.parametrize("layout", [lambda x: x.repeat_interleave(2)[::2], lambda x: x[:1].expand(4)])
def test_sinks_that_are_apart_in_memory(layout):
    q, K, V, _ = inputs([9, 9])
    sinks = layout(SINKS)
    for attend in (lambda sinks: decode(q, (K, V), sinks=sinks), lambda sinks: flash_attention(q, K, V, sinks=sinks)):
        assert torch.equal(attend(sinks), attend(sinks.clone(memory_format=torch.contiguous_format)))


@pytest.mark.parametrize("wrong", WRONG_PREFIXES)
def test_an_invalid_prefix_gets_a_sentence(wrong):
    if wrong in READ_ON_THE_HOST and not INTERPRETED:
        pytest.skip("on a GPU, the host reads neither lengths nor texts")
    q, K, V, _ = inputs([33, 33], d=16, dv=8)
    make, error, says = WRONG_PREFIXES[wrong]
    right = Prefix((K[:1].clone(), V[:1].clone()))
    with pytest.raises(error, match=rf"^prefixes\[1\]: .*{says}") as refused:
        decode_shared(q, [right, make(K, V)], (K.clone(), V))
    assert "\n" not in str(refused.value)


def test_prefixes_must_be_a_list():
    q, K, V, _ = inputs([9, 9])
    for prefixes in (None, torch.empty(0).numpy(), Prefix((K[:1], V[:1]))):
        with pytest.raises(TypeError, match="prefixes must be a list of Prefix, got (NoneType|ndarray|Prefix)"):
            decode_shared(q, prefixes, (K, V))


def test_texts_of_a_prefix_that_are_not_side_by_side_in_memory():
    q, K, V, _ = inputs([9, 9, 9])
    texts = int32(0, 1, 2, 1)[::2]
    results = (decode_shared(q, [Prefix((K[:1], V[:1]), x)], (K, V)) for x in (texts, texts.clone()))
    assert torch.equal(*results)


def test_a_fixed_split_may_be_a_whole_number_of_numpy():
    q, K, V, _ = inputs([300])
    assert torch.equal(*(decode(q, (K, V), fixed_split=keys) for keys in (128, np.int64(128))))
