"""``PagedCache``: keys and values of many texts in pages of one pool, as ``decode`` reads them."""

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from flashlab.kernels.checks import check_dense, check_no_gradient
from flashlab.kernels.decode import eight_bits
from flashlab.kernels.decode.cache import Cache
from flashlab.kernels.decode.pool import Pool
from flashlab.kernels.device import DEVICE
from flashlab.kernels.problem import DTYPES


class PagedCache:
    """Keys and values of one layer, in pages of 1 to 256 tokens.

    Args:
        pages, page: how many pages there are, and tokens per page.
        Hk: key/value heads; d, dv: columns of a key and of a value, dv = d if None.
        dtype: of the numbers as they are kept: float16, bfloat16, float32; or float8_e4m3fn or int8, which are rounded
            with a scale per token and head.
        latent: keep no values: they are the first dv columns of the keys.
        device: where the pages are; that of the kernels if None.

    The bookkeeping is that of ``Pool``, in ``pool``: ``add``, ``fork`` and ``drop`` are its methods.

    Raises:
        TypeError, ValueError: an argument is not as described.
    """

    def __init__(
        self,
        pages: int,
        page: int,
        Hk: int,
        d: int,
        dv: int | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        latent: bool = False,
        device: torch.device | None = None,
    ):
        dv = d if dv is None else dv
        if not all(isinstance(size, Integral) and size >= 1 for size in (Hk, d, dv)):
            raise ValueError(f"Hk, d and dv are whole numbers from 1 on, got {Hk!r:.40}, {d!r:.40} and {dv!r:.40}")
        if latent and dv > d:
            raise ValueError(f"the values of a latent cache are columns of its keys: dv is at most d = {d}, got {dv}")
        if dtype not in (*DTYPES, *eight_bits.LARGEST):
            expected = ", ".join(str(it).removeprefix("torch.") for it in (*DTYPES, *eight_bits.LARGEST))
            raise TypeError(f"dtype must be one of {expected}, got {dtype!r:.40}")
        device = DEVICE if device is None else device
        self.pool = Pool(pages, page)
        self.K = torch.zeros(pages, Hk, page, d, dtype=dtype, device=device)
        self.V = self.K[..., :dv] if latent else torch.zeros(pages, Hk, page, dv, dtype=dtype, device=device)
        scales = 2, pages, Hk, page
        self.scales = torch.zeros(scales, dtype=torch.float32, device=device) if dtype in eight_bits.LARGEST else None
        self.latent = latent
        self.add, self.fork, self.drop = self.pool.add, self.pool.fork, self.pool.drop

    def append(self, texts: Sequence[int], K: Tensor, V: Tensor | None = None) -> None:
        """Append n tokens to each of B texts.

        Args:
            texts: numbers of texts, all different.
            K: keys of the new tokens [B, Hk, n, d]; V: their values [B, Hk, n, dv], None in a latent cache.

        Raises:
            KeyError, TypeError, ValueError: an unknown text, one named twice, or tensors of another shape or kind.
            NotImplementedError: a tensor requires a gradient, which the cache does not pass on.
            PoolFull: the pages do not suffice. In all cases the cache is as it was.
        """
        self._check(len(texts), K, V)
        n = K.shape[2]
        room = self.pool.room(texts, n)  # taken at the end: what fails before changes no text
        for old, new in room.copies:
            for kept, dim in self._kept():
                kept.select(dim, new).copy_(kept.select(dim, old))
        places = torch.tensor([self.pool.places(text, n) for text in room.texts.values()], dtype=torch.int64)
        places = places.to(self.K.device).reshape(-1, 2)
        numbers, rows = places.unbind(1)  # [B n], [B n]
        for i, (x, kept) in enumerate([(K, self.K)] if self.latent else [(K, self.K), (V, self.V)]):
            x = x.transpose(1, 2).flatten(0, 1)  # [B n, Hk, d]
            if self.scales is not None:
                x, scale = eight_bits.rounded(x, kept.dtype)  # [B n, Hk, d], [B n, Hk]
                x, kept = x.view(torch.uint8), kept.view(torch.uint8)  # torch cannot scatter every dtype of 8 bits
                for j in (0, 1) if self.latent else (i,):
                    self.scales[j, numbers, :, rows] = scale
            kept[numbers, :, rows] = x
        self.pool.take(room)

    def view(self, texts: Sequence[int]) -> Cache:
        """Return the ``Cache`` of these texts for ``decode``: the pages themselves, a table and lengths. No copy.

        Raises KeyError for a text that does not exist.
        """
        self.pool.known(texts)
        lists = [self.pool.texts[text].pages for text in texts]
        widest = max(map(len, lists), default=0)
        table = [pages + [0] * (widest - len(pages)) for pages in lists]  # nobody reads the zeros
        lengths = [self.pool.texts[text].length for text in texts]
        table, lengths = (torch.tensor(it, dtype=torch.int32, device=self.K.device) for it in (table, lengths))
        return Cache(self.K, self.V, table.reshape(len(lists), widest), lengths, self.scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, and of scales."""
        return sum(kept.nbytes for kept, _ in self._kept())

    def _check(self, B, K, V):
        """Raise TypeError or ValueError if these cannot be keys and values of new tokens in B texts."""
        if self.latent and V is not None:
            raise ValueError("a latent cache keeps keys only: their first columns are the values")
        named = {"K": (K, self.K)} if self.latent else {"K": (K, self.K), "V": (V, self.V)}
        tensors = {name: x for name, (x, _) in named.items()}
        check_dense(**tensors)
        check_no_gradient("PagedCache.append", **tensors)
        for name, (x, kept) in named.items():
            if x.device != kept.device:
                raise ValueError(f"{name} must be on {kept.device}, where the pages are, got {x.device}")
            if self.scales is None and x.dtype != kept.dtype:
                raise TypeError(f"the cache keeps {kept.dtype}, got {name} in {x.dtype}")
            if not x.is_floating_point():
                raise TypeError(f"{name} must be a floating-point tensor, got {x.dtype}")
            expected = [B, kept.shape[1], K.shape[2] if K.ndim == 4 else "n", kept.shape[3]]
            if list(x.shape) != expected:
                raise ValueError(f"expected {name} {expected}, got {list(x.shape)}")

    def _kept(self):
        """Return each tensor that pages have a part of, with the dimension that counts the pages."""
        parts = [(self.K, 0), (None if self.latent else self.V, 0), (self.scales, 1)]
        return [(kept, dim) for kept, dim in parts if kept is not None]
