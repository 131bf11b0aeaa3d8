"""Decoding in Triton: attention of new tokens to a long past, in parts that are merged, from pages that texts share."""

from flashlab.kernels.decode.cache import Cache, dequantise, quantise
from flashlab.kernels.decode.operator import decode
from flashlab.kernels.decode.paged import PagedCache, Pool, PoolFull

__all__ = ["Cache", "PagedCache", "Pool", "PoolFull", "decode", "dequantise", "quantise"]
