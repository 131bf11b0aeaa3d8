"""Which lines of a given kernel a learner has changed. Comments and the kernel's name do not count."""

import ast
import inspect
import re
import textwrap

from flashlab.grading.kernel_laws import attempted


def changed(kernel, broken, elsewhere=()):
    """Return a learner's kernel. Raises NotImplementedError if it is ``broken``.

    elsewhere: names. Lines that set one of them, or loop up to it, do not count.
    """
    new, old = ([line for line in lines(it) if not any(sets(line, name) for name in elsewhere)]
                for it in (attempted(kernel), broken))  # fmt: skip
    if new == old:
        raise NotImplementedError
    return kernel


def untouched(kernel, broken, name):
    """Return whether the lines that set a name, or loop up to it, are those of the broken kernel."""
    new, old = ([line for line in lines(it) if sets(line, name)] for it in (kernel, broken))
    return new == old


def sets(line, name):
    return re.match(rf"\s*({name}\b[^=]*=(?!=)|for\b.*\b{name}\b)", line) is not None


def lines(kernel):
    definition = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn))).body[0]
    definition.name, definition.decorator_list = "", []
    return ast.unparse(definition).splitlines()
