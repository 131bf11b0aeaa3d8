"""Attention inside models: torch modules, an adapter for Hugging Face transformers, and caches, on top of the kernels.

================  ===================================================================================
``modules``       ``scaled_dot_product_attention`` with torch's signature, and ``FlashAttention``, a module
``transformers``  ``register`` makes ``flash_attention`` an ``attn_implementation``
``kv_cache``      a step of decoding; the cache grows by a copy
``writing``       ``Writer``: texts that a model continues, in pages that forks share
``plain``         attention in torch's own operations, to compare with
``saved``         the memory that autograd saves for the backward pass
``needle``        a needle in a haystack: softmax beside linear attention
================  ===================================================================================
"""
