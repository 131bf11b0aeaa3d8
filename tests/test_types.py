"""The functions that users call have types. In figures, machine, models and reference, mypy demands them everywhere."""

import inspect
import typing

import pytest

MODULES = "kernels", "kernels.decode", "kernels.masks", "kernels.scores", "distributed", "course.check"


@pytest.mark.parametrize("name", MODULES)
def test_every_argument_and_every_result_has_a_type(name):
    module = pytest.importorskip(f"flashlab.{name}", reason="the kernels need triton, which is for Linux")
    public = getattr(module, "__all__", None) or [it for it in vars(module) if not it.startswith("_")]
    for function in filter(inspect.isfunction, (getattr(module, it) for it in public)):
        if function.__module__.startswith(module.__name__):
            hints = typing.get_type_hints(function)  # fails where a type does not exist
            assert hints.keys() == {*inspect.signature(function).parameters, "return"}, function.__qualname__
