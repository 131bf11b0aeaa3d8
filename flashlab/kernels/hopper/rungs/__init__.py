"""The rungs: a forward pass for compute capability 9.0, one idea at a time, in files without imports from flashlab.

1. ``one_consumer``: a warp copies, eight warps compute, everything in turn.
2. ``two_consumers``: two groups of four warps, which multiply in turn, and in each the softmax beside a product.
3. ``persistent``: as many programs as multiprocessors, each with a list of tiles.

All take ``attend(q, k, v, causal)``, and ``launch=flashlab.kernels.launch.launch`` to run without a GPU.
"""
