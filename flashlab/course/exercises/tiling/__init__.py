"""The exercises on tiling."""

from flashlab.course.exercises.tiling.hidden_scores import mask
from flashlab.course.exercises.tiling.meetings import inside, meet
from flashlab.course.exercises.tiling.questions import k_bytes, o_bytes
from flashlab.course.exercises.tiling.whole_pass import forward

__all__ = ["inside", "forward", "k_bytes", "meet", "o_bytes", "mask"]
