"""The exercises on triton_backward. An attempt is a kernel, or a function that a kernel calls for each tile."""

from flashlab.course.exercises.triton_backward.keys_and_values import (
    add_rows,
    add_tile,
    key_value_gradients,
    loop_over_queries,
    steps_that_run,
)
from flashlab.course.exercises.triton_backward.own_function import function, kernels_of_one_head, of_all_heads
from flashlab.course.exercises.triton_backward.queries import dQ, query_gradients
from flashlab.course.exercises.triton_backward.questions import passes, products, unharmed
from flashlab.course.exercises.triton_backward.rowsums import delta

__all__ = [
    "products",
    "add_rows",
    "unharmed",
    "delta",
    "dQ",
    "function",
    "passes",
    "add_tile",
    "key_value_gradients",
    "kernels_of_one_head",
    "loop_over_queries",
    "of_all_heads",
    "query_gradients",
    "steps_that_run",
]
