"""The keys and values of the past as the kernels of decoding see them: pages, a table of them, lengths, scales."""

from typing import NamedTuple

from torch import Tensor


class Cache(NamedTuple):
    """Keys and values of B texts. Key j of text b is row j % page of page table[b, j // page].

    Without a table, text b is page b: K and V are ordinary tensors [B, Hk, N, d]. Where V is a view of the first
    columns of K (``K[..., :dv]``), as in latent attention, they are read once for both.
    """

    K: Tensor  # [pages, Hk, page, d]
    V: Tensor  # [pages, Hk, page, dv]
    table: Tensor | None = None  # [B, T] int32; entries past a text's last page are never read
    lengths: Tensor | None = None  # [B] int32: keys of each text; None: as many as there is room for
    scales: Tensor | None = None  # [2, pages, Hk, page] float32: of each key and of each value of 8 bits

    @classmethod
    def of(cls, cache) -> "Cache":
        """Return a ``Cache``, or a pair (K, V) as one. Raises TypeError for anything else."""
        if isinstance(cache, cls):
            return cache
        if not isinstance(cache, (tuple, list)) or len(cache) != 2:
            raise TypeError(f"a cache must be a Cache or a pair (K, V), got {type(cache).__name__}")
        return cls(*cache)

    @property
    def most(self) -> int:
        """The most keys that a text can have."""
        page = self.K.shape[2]
        return page if self.table is None else page * self.table.shape[1]

    @property
    def latent(self) -> bool:
        """Whether V is the first columns of K."""
        same = self.K.data_ptr() == self.V.data_ptr() and self.K.stride() == self.V.stride()
        return same and self.K.shape[3] >= self.V.shape[3]
