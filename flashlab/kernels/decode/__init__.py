"""Decoding in Triton: attention of new tokens to a long past, in parts that are merged, from pages that texts share."""

from flashlab.kernels.decode.cache import Cache
from flashlab.kernels.decode.operator import decode
from flashlab.kernels.decode.paged import PagedCache
from flashlab.kernels.decode.pool import Pool, PoolFull
from flashlab.kernels.decode.shared import Prefix, decode_shared

__all__ = ["Cache", "PagedCache", "Pool", "PoolFull", "Prefix", "decode", "decode_shared"]
