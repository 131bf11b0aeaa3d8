"""The exercises on measure_and_debug: predict the occupancy, and fix four bugs.

The lesson shows what ``broken``, a kernel with three wrong lines, computes before the learner fixes it.
"""

from flashlab.course.exercises.measure_and_debug.no_key import fix_4
from flashlab.course.exercises.measure_and_debug.questions import occupancy
from flashlab.course.exercises.measure_and_debug.three_wrong_lines import broken, fix_1, fix_2, fix_3

__all__ = ["occupancy", "broken", "fix_1", "fix_2", "fix_3", "fix_4"]
