"""The exercises on triton_forward: the bounds of the two loops, one step of the loop, a whole kernel, and its heads."""

from flashlab.course.exercises.triton_forward.grouped_heads import heads
from flashlab.course.exercises.triton_forward.loop_bounds import bounds
from flashlab.course.exercises.triton_forward.one_head import attend, attention_one_head, measure
from flashlab.course.exercises.triton_forward.one_step import update
from flashlab.course.exercises.triton_forward.own_launch import launch
from flashlab.course.exercises.triton_forward.questions import grouped_keys, masked_tiles
from flashlab.course.exercises.triton_forward.whole_kernel import forward

__all__ = [
    "masked_tiles",
    "bounds",
    "grouped_keys",
    "heads",
    "update",
    "forward",
    "launch",
    "attend",
    "attention_one_head",
    "measure",
]
