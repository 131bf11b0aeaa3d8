"""A first kernel for Blackwell (compute capability 10.0), in Gluon, to be compiled and read.

No such card was at hand: nothing here was ever run. ``flash_attention`` runs the portable kernels there.
"""
