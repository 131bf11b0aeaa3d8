"""The public doors are annotated, with types that exist; the package says so with ``py.typed``."""

import importlib
import inspect
import typing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TYPED = ("figures/*.py", "flashlab/machine/*.py", "flashlab/models/*.py", "flashlab/reference/*.py")
DOORS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for pattern in TYPED for path in ROOT.glob(pattern) if path.stem != "__init__"
) + ["flashlab.course.check"]  # fmt: skip


def functions(module):
    """Yield the public functions that a module defines, and the public methods of its public classes."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            methods = {key: it for key, it in vars(value).items() if key == "__init__" or not key.startswith("_")}
            yield from (
                (f"{name}.{key}", it) for key, it in methods.items() if inspect.isfunction(it) and it.__name__ == key
            )


def test_every_argument_and_every_result_has_a_type():
    missing = []
    for door in DOORS:
        for name, function in functions(importlib.import_module(door)):
            signature = inspect.signature(function)
            hints = typing.get_type_hints(function)  # fails where a type does not exist
            expected = {*signature.parameters, *([] if name.endswith("__init__") else ["return"])} - {"self"}
            missing += [f"{door}.{name}: {argument}" for argument in sorted(expected - hints.keys())]
    assert missing == []


def test_the_package_says_that_it_is_typed():
    import flashlab

    assert (Path(flashlab.__file__).parent / "py.typed").exists()
