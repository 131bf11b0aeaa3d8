"""A Sphinx extension: functions under ``@triton.jit`` and ``@gluon.jit`` in the interface, as other functions are.

autodoc passes over them: each is an object that launches. While Sphinx reads, the function that was decorated takes the
place of that object in its module; without a docstring it is shown by its signature alone.
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
    """Restore what ``take_out`` replaced: figures are traced after Sphinx, and launch kernels."""
    for (module, name), kernel in KERNELS.items():
        setattr(module, name, kernel)
    KERNELS.clear()


def skip(app, what, name, it, skipped, options):
    """Show public kernels that have no docstring too. Return None where autodoc decides."""
    ours = any(it is kernel.fn for kernel in KERNELS.values())
    return False if ours and not name.startswith("_") else None
