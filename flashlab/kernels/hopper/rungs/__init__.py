"""The rungs: a forward pass for compute capability 9.0, one idea at a time, in files without imports from flashlab.

1. ``one_consumer``: a warp copies, eight warps compute, with each softmax after its product.
2. ``two_consumers``: two groups of four warps issue products in turn, and each runs its softmax beside a product.
3. ``persistent``: as many programs as multiprocessors, each with a list of tiles; consumers take no turns.

All have ``attend(q, k, v, causal)``, which takes ``launch=flashlab.kernels.launch.launch`` to run without a GPU.
"""
