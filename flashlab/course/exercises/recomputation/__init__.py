"""The exercises on recomputation."""

from flashlab.course.exercises.recomputation.one_tile import delta, gradients, rebuild
from flashlab.course.exercises.recomputation.questions import kept, passes, products
from flashlab.course.exercises.recomputation.whole_pass import backward

__all__ = ["kept", "rebuild", "delta", "gradients", "backward", "passes", "products"]
