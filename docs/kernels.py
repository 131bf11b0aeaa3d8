"""A Sphinx extension that shows functions with ``@triton.jit`` and ``@gluon.jit`` like other functions.

autodoc ignores them, since each is an object that launches a kernel. While Sphinx reads, the decorated function
replaces that object in its module. A function without a docstring is shown by its signature alone.
"""

import importlib
import inspect
import pkgutil

import flashlab.kernels

KERNELS = {}  # (module, name): the kernel


def setup(app):
    """Exchange the kernels before Sphinx reads, and put them back when it is done."""
    app.connect("builder-inited", take_out)
    app.connect("autodoc-skip-member", skip)
    app.connect("build-finished", put_back)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def take_out(app):
    """Replace each kernel by its function."""
    for found in pkgutil.walk_packages(flashlab.kernels.__path__, "flashlab.kernels."):
        module = importlib.import_module(found.name)
        for name, it in list(vars(module).items()):
            if inspect.isfunction(getattr(it, "fn", None)) and it.fn.__module__ == module.__name__:
                KERNELS[module, name] = it
                setattr(module, name, it.fn)


def put_back(app, exception):
    """Restore what ``take_out`` replaced: figures, which launch kernels, are traced after Sphinx."""
    for (module, name), kernel in KERNELS.items():
        setattr(module, name, kernel)
    KERNELS.clear()


def skip(app, what, name, it, skipped, options):
    """Show public kernels without a docstring, too. Return None to let autodoc decide."""
    ours = any(it is kernel.fn for kernel in KERNELS.values())
    return False if ours and not name.startswith("_") else None
