"""Writing with a model, one token after another: each text is read once, and kept in pages that forks share."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flashlab.kernels.decode import PagedCache, decode
from flashlab.machine.arguments import check_arguments
from flashlab.models.modules import FlashAttention


class Writer:
    """Texts that a model has read and continues to write.

    Args:
        model: (tokens [B, n], positions [B, n]) -> scores [B, n, alphabet]. It attends in ``FlashAttention`` modules
            only, all causal; while it reads and writes here, each module attends to a ``PagedCache`` of its own.
        pages, page: how many pages each cache has, and tokens per page.
        longest: the largest number of tokens of a text; None: the pages are the limit.
    """

    @check_arguments(pages=0)
    def __init__(self, model: nn.Module, *, pages: int, page: int = 16, longest: int | None = None):
        self.model, self.longest = model, longest
        self.layers = [module for module in model.modules() if isinstance(module, FlashAttention)]
        if not self.layers or not all(layer.causal for layer in self.layers):
            found = [layer.causal for layer in self.layers]
            raise ValueError(f"model must have FlashAttention modules, all with causal=True, got {found}")
        self.caches = [_cache(layer, pages, page) for layer in self.layers]
        self.pool = self.caches[0].pool  # the other pools are equal
        self.following = {}  # text -> scores [alphabet] of its next token

    @check_arguments()
    @torch.no_grad()
    def read(self, tokens: Tensor) -> int:
        """Read a text, tokens [n], n >= 1, and return its number.

        Raises:
            ValueError: it is empty, or too long for the model.
            PoolFull: it is too long for the pages. In both cases nothing has changed.
        """
        if tokens.ndim != 1 or len(tokens) == 0 or tokens.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"expected int32 or int64 tokens [n] with n >= 1, got {tokens.dtype} {list(tokens.shape)}")
        text = self._each("add")
        try:
            self._check([text], len(tokens))
            self._step([text], tokens[None])
        except Exception:
            self._each("drop", text)
            raise
        return text

    def fork(self, text: int) -> int:
        """Return the number of a new text that begins as this one does, in the same pages."""
        new = self._each("fork", text)
        self.following[new] = self.following[text]
        return new

    def drop(self, text: int) -> None:
        """Forget a text, and free the pages that it does not share."""
        self._each("drop", text)
        del self.following[text]

    @check_arguments(n=0, temperature=0, seed=0)
    @torch.no_grad()
    def write(self, texts: Sequence[int], n: int, *, temperature: float = 0.0, seed: int = 0) -> Tensor:
        """Write n more tokens of each of B texts, all in one batch, and return them, [B, n].

        temperature: 0 takes the token with the highest score; otherwise tokens are drawn with probabilities
        softmax(scores / temperature). The same seed draws the same tokens.

        Raises:
            KeyError, ValueError: an unknown text, one named twice, or one that becomes too long for the model.
            PoolFull: the pages are full; the tokens so far are in the texts.
        """
        self._check(texts, n)
        generator = torch.Generator().manual_seed(seed)
        written = []
        for _ in range(n):
            scores = torch.stack([self.following[text] for text in texts])  # [B, alphabet]
            if temperature == 0:
                token = scores.argmax(-1, keepdim=True)  # [B, 1]
            else:
                weights = torch.softmax(scores.float().cpu() / temperature, -1)  # [B, alphabet]
                token = torch.multinomial(weights, 1, generator=generator).to(scores.device)  # [B, 1]
            self._step(texts, token)
            written.append(token)
        return torch.cat(written, 1) if written else torch.empty(len(texts), 0, dtype=torch.int64)

    def _check(self, texts: Sequence[int], n: int) -> None:
        self.pool.check(texts)
        if not texts:
            raise ValueError("texts must have at least one text, got []")
        for text in texts:
            length = self.pool.texts[text].length + n
            if self.longest is not None and length > self.longest:
                raise ValueError(f"text {text} would have {length} tokens, and the model takes {self.longest}")

    def _step(self, texts: Sequence[int], tokens: Tensor) -> None:
        """Let the model read tokens [B, n] as the next ones of B texts, for which ``_check`` found room."""
        lengths = torch.tensor([self.pool.texts[text].length for text in texts], dtype=torch.int64)  # [B]
        positions = lengths[:, None] + torch.arange(tokens.shape[1])  # [B, n]
        before = [layer.attention for layer in self.layers]
        try:
            for layer, cache in zip(self.layers, self.caches, strict=True):
                layer.attention = _Attending(cache, texts)
            scores = self.model(tokens, positions.to(tokens.device))  # [B, n, alphabet]
        finally:
            for layer, attention in zip(self.layers, before, strict=True):
                layer.attention = attention
        self.following.update(zip(texts, scores[:, -1], strict=True))

    def _each(self, method: str, *arguments: Any) -> Any:
        """Call a method of every cache; all return the same."""
        return [getattr(cache, method)(*arguments) for cache in self.caches][0]


class _Attending:
    """The attention of one module to the cache of some texts, to which new keys and values are appended first."""

    def __init__(self, cache: PagedCache, texts: Sequence[int]) -> None:
        self.cache, self.texts = cache, texts

    def __call__(self, Q: Tensor, K: Tensor, V: Tensor, *, causal: bool) -> Tensor:
        self.cache.append(self.texts, K, V)
        return decode(Q, self.cache.view(self.texts))


def _cache(layer: FlashAttention, pages: int, page: int) -> PagedCache:
    weight = layer.k_proj.weight
    Hk = layer.num_kv_heads
    return PagedCache(pages, page, Hk, len(weight) // Hk, dtype=weight.dtype, device=weight.device)
