"""A first kernel for Blackwell (compute capability 10.0), in Gluon, to be compiled and read.

Nothing here was ever run: the authors had no such card. ``flash_attention`` runs the portable kernels there.
"""
