"""The exercises on first_triton_kernel. An attempt is a kernel; ``launch`` runs it on a case's arrays."""

from flashlab.course.exercises.first_triton_kernel.questions import accesses, programs
from flashlab.course.exercises.first_triton_kernel.rows import online, softmax_row
from flashlab.course.exercises.first_triton_kernel.vectors import add

__all__ = ["programs", "add", "softmax_row", "accesses", "online"]
