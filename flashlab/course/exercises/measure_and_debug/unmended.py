"""Tell a kernel that the learner has mended from the kernel that the lesson gives."""

import ast
import inspect
import textwrap

from flashlab.grading.kernel_laws import attempted


def changed(kernel, broken):
    """Return a learner's kernel. Raises NotImplementedError if it is the broken one; names and comments may differ."""
    if _code(attempted(kernel)) == _code(broken):
        raise NotImplementedError
    return kernel


def _code(kernel):
    definition = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn))).body[0]
    definition.name, definition.decorator_list = "", []
    return ast.dump(definition)
