"""The paged cache holds what a list of arrays would hold, whatever is done to texts. A refused call changes nothing."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashlab.kernels import DEVICE, masks
from flashlab.kernels.decode import Cache, PagedCache, Pool, PoolFull, decode, dequantise, paged, quantise

HK, D, DV = 2, 4, 3


def gathered(cache: Cache):
    """Return the keys and values of each text, [Hk, length, ...], read through the table."""
    texts, page = [], cache.K.shape[2]
    for row, length in zip(cache.table.tolist(), cache.lengths.tolist(), strict=True):
        places = [(row[j // page], j % page) for j in range(length)]
        texts.append(
            [torch.stack([X[p, :, r] for p, r in places], 1) if places else X[0, :, :0] for X in (cache.K, cache.V)]
        )
    return texts


class Both:
    """A paged cache, and the same texts as a dict of plain tensors."""

    def __init__(self, pages, page):
        self.cache, self.plain, self.count = PagedCache(pages, page, HK, D, DV, dtype=torch.float32), {}, 0

    def act(self, kind, choice, n):
        """Do the same to both. Appending goes to two texts at once where there are two."""
        texts = list(self.plain)
        if kind == "add" or not texts:
            self.plain[self.cache.add()] = [torch.zeros(HK, 0, D), torch.zeros(HK, 0, DV)]
            return
        text = texts[choice % len(texts)]
        if kind == "fork":
            self.plain[self.cache.fork(text)] = list(self.plain[text])
        elif kind == "drop":
            self.cache.drop(text)
            del self.plain[text]
        else:
            self.append(list(dict.fromkeys([text, texts[(choice + 1) % len(texts)]])), n)

    def append(self, texts, n):
        self.count += 1
        new = [
            torch.randn(len(texts), HK, n, width, generator=torch.Generator().manual_seed(self.count))
            for width in (D, DV)
        ]
        before = copy.deepcopy(vars(self.cache.pool))
        try:
            self.cache.append(texts, *(x.to(DEVICE) for x in new))
        except PoolFull:
            assert vars(self.cache.pool) == before
            pages = {p for t in self.cache.pool.texts.values() for p in t.pages}
            assert len(pages) + len(self.cache.pool.free) == len(self.cache.pool.holders)
            return
        for i, text in enumerate(texts):
            self.plain[text] = [torch.cat([old, x[i]], 1) for old, x in zip(self.plain[text], new, strict=True)]

    def check(self):
        pool = self.cache.pool
        for page, holders in enumerate(pool.holders):
            assert holders == sum(text.pages.count(page) for text in pool.texts.values())
            assert (holders == 0) == (page in pool.free)
        for ours, theirs in zip(gathered(self.cache.view(list(self.plain))), self.plain.values(), strict=True):
            for x, y in zip(ours, theirs, strict=True):
                assert torch.equal(x.cpu(), y)


ACTIONS = st.tuples(
    st.sampled_from(["add", "fork", "drop", "append", "append", "append"]), st.integers(0, 9), st.integers(0, 7)
)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.lists(ACTIONS, max_size=25))
def test_pages_hold_what_a_list_of_arrays_would_hold(page, actions):
    both = Both(8, page)
    for action in actions:
        both.act(*action)
    both.check()


def test_a_fork_copies_one_page_when_it_writes_and_none_before():
    cache = PagedCache(8, 4, 1, 4, dtype=torch.float32)
    text = cache.add()
    cache.append([text], torch.ones(1, 1, 6, 4, device=DEVICE), torch.ones(1, 1, 6, 4, device=DEVICE))
    other = cache.fork(text)
    assert len(cache.pool.free) == 6 and cache.pool.tokens == 6
    cache.append([other], torch.zeros(1, 1, 1, 4, device=DEVICE), torch.zeros(1, 1, 1, 4, device=DEVICE))
    assert len(cache.pool.free) == 5  # a copy of the last page; the full page is still shared
    assert cache.pool.texts[text].pages[0] == cache.pool.texts[other].pages[0]
    assert gathered(cache.view([text]))[0][0].eq(1).all()


def test_decode_reads_what_was_appended():
    q, K, V = (torch.randn(1, heads, 40, 16, device=DEVICE) for heads in (4, 2, 2))
    cache = PagedCache(8, 8, 2, 16, dtype=torch.float32)
    text = cache.add()
    for start, stop in (0, 13), (13, 14), (14, 40):
        cache.append([text], K[:, :, start:stop], V[:, :, start:stop])
        ours = decode(q[:, :, start:stop], cache.view([text]), fixed_split=128)
        torch.testing.assert_close(ours, decode(q[:, :, start:stop], (K[:, :, :stop], V[:, :, :stop]), fixed_split=128))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("latent", [False, True])
def test_eight_bits_are_rounded_per_token_and_head(dtype, latent):
    K, V = (
        torch.randn(2, 2, 3, 5, 32, device=DEVICE) * torch.logspace(-3, 3, 5, device=DEVICE)[:, None]
    )  # [B, Hk, n, d]
    cache = PagedCache(8, 2, 3, 32, dtype=dtype, latent=latent)
    texts = [cache.add(), cache.add()]
    cache.append(texts, K, None if latent else V)
    view = cache.view(texts)
    for i, (X, x) in enumerate(((view.K, K), (view.V, K if latent else V))):
        codes, scale = quantise(x, dtype)
        for b in range(2):
            for j in range(5):
                page, row = int(view.table[b, j // 2]), j % 2
                assert torch.equal(X[page, :, row].float(), codes[b, :, j].float())
                assert torch.equal(view.scales[i, page, :, row], scale[b, :, j])
    assert (dequantise(*quantise(K, dtype)) - K).abs().amax((0, 1, 3)).div(K.abs().amax((0, 1, 3))).max() < 0.04


def test_a_refused_call_changes_nothing():
    cache = PagedCache(3, 4, 1, 4, dtype=torch.float32)
    a, b = cache.add(), cache.add()
    new = torch.ones(2, 1, 3, 4, device=DEVICE)
    cache.append([a, b], new, new)
    before, K = copy.deepcopy(vars(cache.pool)), cache.K.clone()
    for error, says, act in (
        (PoolFull, "1 more pages of 4", lambda: cache.append([a, b], new, new)),
        (ValueError, "texts must be different", lambda: cache.append([a, a], new, new)),
        (KeyError, "no text 9", lambda: cache.append([a, 9], new, new)),
        (KeyError, "no text 9", lambda: cache.fork(9)),
        (KeyError, "no text 9", lambda: cache.drop(9)),
        (KeyError, "no text 9", lambda: cache.view([9])),
        (ValueError, r"expected V \[2, 1, 3, 4\]", lambda: cache.append([a, b], new, new[:, :, :1])),
        (ValueError, r"expected K \[1, 1, 3, 4\]", lambda: cache.append([a], new, new)),
        (TypeError, "stores torch.float32", lambda: cache.append([a, b], new.half(), new.half())),
        (TypeError, "V must be a torch tensor", lambda: cache.append([a, b], new, None)),
        (TypeError, "K must be a dense tensor, got torch.sparse", lambda: cache.append([a], new[:1].to_sparse(), new)),
        (NotImplementedError, "V requires a gradient", lambda: cache.append([a, b], new, new.clone().requires_grad_())),
        (
            ValueError,
            "K must be on .*, got meta",
            lambda: cache.append([a, b], new.to("meta"), new),
        ),
    ):
        with pytest.raises(error, match=says):
            act()
        assert vars(cache.pool) == before and torch.equal(cache.K, K)


def test_an_append_that_fails_halfway_changes_nothing(monkeypatch):
    """A fork needs a copy of its page, and the text beside it a new page. Then torch fails."""
    cache = PagedCache(6, 4, 1, 4, dtype=torch.int8)
    a, b, new = cache.add(), cache.add(), torch.ones(2, 1, 3, 4, device=DEVICE)
    cache.append([a, b], new, new)
    texts = [cache.fork(a), b]
    before, expected = copy.deepcopy(vars(cache.pool)), gathered(cache.view([a, *texts]))

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(paged, "quantise", fails)
        with pytest.raises(MemoryError):
            cache.append(texts, new, new)
    assert vars(cache.pool) == before
    for text, same in zip(gathered(cache.view([a, *texts])), expected, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(text, same, strict=True))
    cache.append(texts, new, new)
    assert len(gathered(cache.view(texts))[0][0][0]) == 6


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool], ids=str)
def test_numbers_that_eight_bits_cannot_hold_are_refused(dtype):
    cache = PagedCache(3, 4, 1, 4, dtype=torch.int8)
    text, new = cache.add(), torch.ones(1, 1, 3, 4, dtype=dtype, device=DEVICE)
    with pytest.raises(TypeError, match=f"K must be a floating-point tensor, got {dtype}"):
        cache.append([text], new, new)
    assert cache.pool.texts[text].length == 0


def test_a_cache_is_never_part_of_an_autograd_graph():
    """A model that decodes has parameters: under no_grad and inference_mode its keys go into the cache as they are."""
    cache, layer = PagedCache(3, 4, 1, 4, dtype=torch.float32), torch.nn.Linear(4, 4, device=DEVICE)
    text, x = cache.add(), torch.ones(1, 1, 3, 4, device=DEVICE)
    with pytest.raises(NotImplementedError, match="PagedCache.append has no backward pass, and K requires a gradient"):
        cache.append([text], layer(x), x)
    for n, without in enumerate((torch.no_grad, torch.inference_mode), 1):
        with without():
            cache.append([text], layer(x), x)
            assert torch.equal(gathered(cache.view([text]))[0][0][:, -3:], layer(x)[0])
        assert not cache.K.requires_grad and cache.pool.texts[text].length == 3 * n


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_the_default_dtype_changes_nothing(default, default_dtype):
    K = torch.randn(1, 2, 3, 16, dtype=torch.float32, device=DEVICE)
    expected = quantise(K, torch.int8)[1]
    default_dtype(default)
    cache = PagedCache(4, 16, 2, 16, dtype=torch.int8)
    text = cache.add()
    cache.append([text], K, K)
    assert cache.scales.dtype == torch.float32 and torch.equal(cache.scales[0, 0, :, :3], expected[0])


@pytest.mark.parametrize("sizes, error, says", [
    ({"dtype": torch.int32}, TypeError, "dtype must be one of float16, .*, int8, got torch.int32"),
    ({"dtype": torch.float64}, TypeError, "got torch.float64"), ({"dtype": "int8"}, TypeError, "got 'int8'"),
    ({"d": 0}, ValueError, "d must be a whole number from 1 on, got 0"),
    ({"Hk": True}, TypeError, "Hk must .*, got True"), ({"dv": 0}, ValueError, "dv must .*, got 0"),
    ({"Hk": 0}, ValueError, "Hk must .*, got 0"),
    ({"dv": 2.5}, ValueError, "dv must .*, got 2.5"), ({"pages": 2**31}, ValueError, "pages must .*, got 2147483648"),
    ({"d": 300}, ValueError, "1 to 256 columns, .* got d = 300 and dv = 300"),
    ({"d": 575, "dv": 512, "latent": True}, ValueError, "got d = 575 and dv = 512"),
    ({"d": 70, "dv": 64, "latent": True}, ValueError, "16, 32 or 64 columns more than the values they hold, got 6"),
    ({"device": "gpu"}, ValueError, "device must be a device of torch, .* got 'gpu'"),
    ({"device": 0}, TypeError, "device must be a torch.device or its name, got 0"),
    ({"dv": 16, "latent": True}, ValueError, "dv is at most d = 8, got 16"),
])  # fmt: skip
def test_an_invalid_cache_is_refused(sizes, error, says):
    with pytest.raises(error, match=says):
        PagedCache(**{"pages": 4, "page": 16, "Hk": 2, "d": 8} | sizes)


@pytest.mark.parametrize(
    "pages, page",
    [(-1, 16), (4, 0), (4, 257), (4, 2.5), (4.0, 2), (4, "2"), (True, True), (4, True), (False, 2), (None, 2)],
)
def test_an_invalid_pool_is_refused(pages, page):
    with pytest.raises((TypeError, ValueError), match="pages? must be a whole number from .* to .*, got"):
        Pool(pages, page)


@pytest.mark.parametrize("n", [-1, True, 2.0, None])
def test_room_for_an_invalid_number_of_tokens_is_refused(n):
    pool = Pool(4, 2)
    with pytest.raises((TypeError, ValueError), match=f"n must be a whole number from 0 on, got {n}"):
        pool.extend([pool.add()], n)


def test_codes_of_another_dtype_are_refused():
    with pytest.raises(TypeError, match="float8_e4m3fn or int8, got torch.int16"):
        quantise(torch.ones(2, 16), torch.int16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_what_an_earlier_text_left_in_a_page_reaches_no_other_text(dtype):
    """A new text gets a page of NaN and does not fill it."""
    cache = PagedCache(2, 16, HK, 16, dtype=dtype)
    first = cache.add()
    cache.append([first], *[torch.full((1, HK, 32, 16), torch.nan, device=DEVICE)] * 2)
    cache.drop(first)
    second = cache.add()
    K, V = (torch.ones(1, HK, 5, 16, device=DEVICE) for _ in "KV")
    cache.append([second], K, V)
    O = decode(torch.ones(1, HK, 1, 16, device=DEVICE), cache.view([cache.fork(second)]))
    torch.testing.assert_close(O, torch.ones_like(O), rtol=0, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_value_that_is_nan_reaches_all_columns_of_its_document_and_no_other(dtype):
    """With 8 bits the scale is NaN, and kernels keep even and odd columns apart."""
    cache = PagedCache(2, 16, HK, 32, dtype=dtype)
    text = cache.add()
    K, V = (torch.ones(1, HK, 6, 32, device=DEVICE) for _ in "KV")
    V[:, :, 2] = torch.nan
    cache.append([text], K, V)
    ids = torch.tensor([0, 1] * 8, device=DEVICE)
    O = decode(K[:, :, :2], cache.view([text]), mask=masks.documents(ids) & masks.causal())
    assert O[:, :, 0].isnan().all()
    torch.testing.assert_close(O[:, :, 1], K[:, :, 0], rtol=0, atol=1e-2)


def test_a_document_does_not_reach_the_tokens_of_another():
    """Two new tokens belong to two documents: each sees what the other does not."""
    ids = torch.tensor([0, 1] * 20, device=DEVICE)
    q, K, V = (torch.ones(1, HK, n, 16, device=DEVICE) for n in (2, 40, 40))
    K[:, :, 6], V[:, :, 4, 3] = torch.nan, torch.inf
    O = decode(q, (K, V), mask=masks.documents(ids) & masks.causal())
    assert (O[:, :, 0].isnan()).all() and torch.equal(O[:, :, 1], q[:, :, 1])


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU gives NaN: its lengths are not read on the host")
@pytest.mark.parametrize("length", [-1, 9, 2**30])
def test_a_length_that_the_table_has_no_pages_for_is_refused(length):
    cache = PagedCache(4, 4, HK, D, DV, dtype=torch.float32)
    text = cache.add()
    cache.append([text], torch.ones(1, HK, 5, D), torch.ones(1, HK, 5, DV))
    view = cache.view([text])  # two pages of 4
    with pytest.raises(ValueError, match="lengths must be from 0 to 8, got"):
        decode(torch.ones(1, HK, 1, D), view._replace(lengths=torch.tensor([length], dtype=torch.int32)))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="on a GPU the table is not read on the host")
def test_a_page_that_is_not_there_is_refused_where_the_text_reaches_it():
    K, V, q = torch.ones(3, HK, 4, D), torch.ones(3, HK, 4, DV), torch.ones(1, HK, 1, D)
    cache = Cache(K, V, torch.tensor([[0, 7]], dtype=torch.int32), torch.tensor([4], dtype=torch.int32))
    decode(q, cache)
    with pytest.raises(ValueError, match="names pages from 0 to 2, got .0, 7."):
        decode(q, cache._replace(lengths=torch.tensor([5], dtype=torch.int32)))
