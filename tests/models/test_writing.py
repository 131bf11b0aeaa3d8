"""A model with a paged cache writes the tokens that it writes when it reads the whole text again for each token."""

import pytest
import torch

pytest.importorskip("flashlab.kernels", reason="the kernels need triton, which is for Linux")
from flashlab.course.character_model import CharacterModel  # noqa: E402
from flashlab.kernels import DEVICE  # noqa: E402
from flashlab.kernels.decode import PoolFull  # noqa: E402
from flashlab.models import plain  # noqa: E402
from flashlab.models.modules import FlashAttention  # noqa: E402
from flashlab.models.writing import Writer  # noqa: E402

LONG, SHORT = torch.arange(9) % 7, torch.tensor([3, 1])


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return CharacterModel(7, plain.dense, d_model=32, blocks=2).to(DEVICE)


def without_cache(model, text, n):
    """Write the likeliest token n times, reading the whole text each time; return the tokens and the last scores."""
    for _ in range(n):
        with torch.no_grad():
            following = model(text[None])[0, -1]
        text = torch.cat([text, following.argmax()[None]])
    return text[-n:], following


def test_tokens_and_scores_are_those_without_a_cache(model):
    writer = Writer(model, pages=8, page=4)
    texts = [writer.read(x.to(DEVICE)) for x in (LONG, SHORT)]
    written = writer.write(texts, 4)
    for text, start, mine in zip(texts, (LONG, SHORT), written, strict=True):
        theirs, _ = without_cache(model, start.to(DEVICE), 4)
        assert torch.equal(mine, theirs)
        _, scores = without_cache(model, torch.cat([start.to(DEVICE), theirs]), 1)
        torch.testing.assert_close(writer.following[text], scores, rtol=1e-4, atol=1e-5)
    assert all(module.attention is plain.dense for module in model.modules() if isinstance(module, FlashAttention))


def test_forks_share_pages_and_are_continued_independently(model):
    writer = Writer(model, pages=6, page=4)
    first = writer.read(LONG.to(DEVICE))  # 9 tokens: 3 pages
    second = writer.fork(first)
    assert all(len(cache.pool.free) == 3 for cache in writer.caches)
    alone = Writer(model, pages=6, page=4)
    expected = alone.write([alone.read(LONG.to(DEVICE))], 3)[0]
    drawn = writer.write([second], 3, temperature=50.0)  # copies the third page
    assert all(len(cache.pool.free) == 2 for cache in writer.caches)
    assert torch.equal(writer.write([first], 3)[0], expected) and not torch.equal(drawn[0], expected)
    writer.drop(second)
    assert len(writer.pool.free) == 3 and second not in writer.following


@pytest.mark.exhaustive
def test_the_same_seed_draws_the_same_tokens(model):
    writer = Writer(model, pages=8, page=4)
    a, b, c = (writer.read(SHORT.to(DEVICE)) for _ in range(3))
    first, second, third = (
        writer.write([text], 5, temperature=5.0, seed=seed) for text, seed in ((a, 1), (b, 1), (c, 2))
    )
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_what_does_not_fit_is_refused_and_changes_nothing(model):
    writer = Writer(model, pages=2, page=4, longest=7)
    with pytest.raises(ValueError, match="would have 9 tokens, and the model takes 7"):
        writer.read(LONG.to(DEVICE))
    with pytest.raises(ValueError, match="n >= 1"):
        writer.read(LONG[:0].to(DEVICE))
    text = writer.read(LONG[:6].to(DEVICE))
    with pytest.raises(PoolFull):
        writer.read(SHORT.to(DEVICE))
    assert list(writer.pool.texts) == [text] and writer.pool.free == []
    with pytest.raises(ValueError, match="would have 8 tokens"):
        writer.write([text], 2)
    with pytest.raises(KeyError):
        writer.write([text + 1], 1)
    with pytest.raises(ValueError, match="causal"):
        Writer(torch.nn.Linear(2, 2), pages=1)
