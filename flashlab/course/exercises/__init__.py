"""The exercises of the course: one module a lesson, one name an exercise."""

LESSONS = (
    "start_here",
    "memory_hierarchy",
    "standard_attention",
    "safe_softmax",
    "online_softmax",
    "roads_not_taken",
    "tiling",
    "block_size",
    "recomputation",
    "io_complexity",
    "first_triton_kernel",
    "triton_forward",
    "triton_backward",
    "attention_in_a_model",
    "hopper",
)
