"""Launches of the backward pass on Hopper, for tests that choose no tiles."""

from flashlab.kernels.configurations import STREAMED, Configuration
from flashlab.kernels.tables import TWO_PASSES

LAUNCHES = {"backward": Configuration(64, 128, 12, 3), "row_constants": STREAMED}


def in_two_passes(stages):
    launches = Configuration(64, 64, 12, stages), Configuration(128, 64, 12, stages)
    return dict(zip(TWO_PASSES, launches, strict=True)) | {"row_constants": STREAMED}


def launches_of(width):
    """Return launches for heads of this many columns. The number of stages decides the order of the products."""
    return LAUNCHES if width <= 128 else in_two_passes(3 if width <= 192 else 2)
