"""The source of a function or Triton kernel with all that it uses: a text that defines it again in another notebook."""

import ast
import inspect
import linecache
import math
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType

from flashlab.grading.program import Program


class NotSelfContained(ValueError):
    """A function's source cannot be defined elsewhere. The message has the reason."""


def source_of(function: Callable) -> str:
    """Return imports, constants, helpers and the function itself, as Python source.

    Helpers are the functions and classes of the same notebook that it uses, and what these use. Raises NotSelfContained
    for a function without a ``def``, and for one that uses an array or another object that no literal writes.
    """
    parts: dict[str, str] = {}
    _collect(_plain(function), parts)
    return "\n\n".join(parts.values()) + "\n"


def loaded(source: str, filename: str) -> Callable:
    """Return the last function that a source defines. Raises what the source raises.

    filename: the name in tracebacks; Triton and ``show`` find the source under this name.
    """
    return Program(source, ast.parse(source).body[-1].name, filename).run()


def _collect(function, parts):
    """Add the source of a function to ``parts``, after the source of each global name that it uses."""
    source = _source(function)
    scope = _function_of(function).__globals__
    parts[function.__name__] = ""  # a function may call itself
    for name in sorted(names_of_module(symtable.symtable(source, "<answer>", "exec"))):
        if name not in parts and name in scope:
            _collect_value(name, scope[name], parts)
    del parts[function.__name__]
    parts[function.__name__] = source


def _collect_value(name, value, parts):
    plain = _plain(value)
    module, own = sys.modules.get(getattr(plain, "__module__", None) or ""), getattr(plain, "__name__", None)
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif module and own and module.__name__ != "__main__" and getattr(module, own, None) is value:
        parts[name] = f"from {module.__name__} import {own} as {name}"
    elif isinstance(plain, FunctionType | type):
        _collect(plain, parts)
        if name != plain.__name__:
            parts[name] = f"{name} = {plain.__name__}"
    elif literal := _literal(value):
        parts[name] = f"{name} = {literal}"
    elif type(value).__name__ == "constexpr" and (literal := _literal(value.value)):  # a constant that kernels may use
        parts[name] = f"from flashlab.kernels import tl\n{name} = tl.constexpr({literal})"
    else:
        raise NotSelfContained(f"it uses {name}, an object of type {type(value).__name__}")


def _plain(value):
    """Return the function below a Triton kernel; anything else as it is."""
    return inspect.getattr_static(value, "fn", value)


def _source(function):
    try:
        source = _lines_of_class(function) if isinstance(function, type) else inspect.getsource(function)
        statement = ast.parse(source := textwrap.dedent(source)).body[0]
    except (OSError, TypeError, SyntaxError, StopIteration):
        name = getattr(function, "__name__", f"an object of type {type(function).__name__}")
        raise NotSelfContained(f"the source of {name} is not known") from None
    if getattr(statement, "name", None) != function.__name__:
        raise NotSelfContained(f"{function.__name__} is not written with def or class")
    return source.rstrip()


def _function_of(function):
    """Return a function as it is; of a class, its first method."""
    if isinstance(function, FunctionType):
        return function
    methods = (inspect.unwrap(getattr(it, "__func__", it)) for it in vars(function).values())
    return next(it for it in methods if isinstance(it, FunctionType))


def _lines_of_class(cls):
    """Return the class statement around a class's first method: ``inspect`` does not find it in a notebook."""
    method = _function_of(cls).__code__
    lines = linecache.getlines(method.co_filename)
    classes = (it for it in ast.walk(ast.parse("".join(lines))) if isinstance(it, ast.ClassDef))
    around = next(
        it for it in classes if it.name == cls.__name__ and it.lineno <= method.co_firstlineno <= it.end_lineno
    )
    return "".join(lines[around.lineno - 1 : around.end_lineno])


def names_of_module(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that a source takes from its module, in its body and in functions within it."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or top):
            yield symbol.get_name()
    for child in table.get_children():
        yield from names_of_module(child)


def _literal(value):
    """Return Python for a constant, "" for another object."""
    if isinstance(value, float):  # numpy's float64 is one
        return repr(float(value)) if math.isfinite(value) else f'float("{value}")'
    try:
        return repr(value) if ast.literal_eval(repr(value)) == value else ""
    except (ValueError, SyntaxError, TypeError):
        return ""
