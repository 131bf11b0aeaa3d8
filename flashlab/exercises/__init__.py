"""The exercises of the course: one module a lesson, one name an exercise."""

LESSONS = (
    "start_here",
    "memory_hierarchy",
    "standard_attention",
    "softmax",
    "online",
    "alternatives",
    "tiling",
    "block_size",
    "recompute",
    "io_complexity",
    "first_triton_kernel",
    "triton_forward",
    "triton_backward",
    "attention_in_a_model",
    "hopper",
)
