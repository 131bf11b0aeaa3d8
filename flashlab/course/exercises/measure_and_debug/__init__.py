"""The exercises on measure_and_debug: predict the occupancy, and mend four kernels.

The lesson shows what ``first``, ``second`` and ``third`` do wrong before the learner mends them.
"""

from flashlab.course.exercises.measure_and_debug.no_key import mend_4
from flashlab.course.exercises.measure_and_debug.one_wrong_line import first, mend_1, mend_2, mend_3, second, third
from flashlab.course.exercises.measure_and_debug.questions import occupancy

__all__ = ["occupancy", "first", "second", "third", "mend_1", "mend_2", "mend_3", "mend_4"]
