"""Checks of arguments by their annotations, so that a wrong call of a formula raises an error.

=================  ====================================================================================
``int``            a whole number from 1 on; a numpy integer becomes an int, which never overflows
``float``          a finite number above 0
``bool``           True or False
``Callable[...]``  a function
``Sequence[X]``    a list or the like, not a text; its elements are checked as X. So is ``Iterable[X]``
``DTypeLike``      a dtype of numpy, or its name
a class            one of its objects
``X | None``       None, or what X says
=================  ====================================================================================

Other annotations are not checked.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

import numpy as np
from numpy.typing import DTypeLike

from flashlab.machine.numbers import whole_number

P = ParamSpec("P")
R = TypeVar("R")
NAMES = {"collections.abc.Callable": "a function", "numpy.ndarray": "a numpy array", "torch.Tensor": "a torch tensor"}
Bounds = float | tuple[float | None, float]  # the smallest number (None: above 0), or the smallest and the largest


def check_arguments(**bounds: Bounds) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a function raise TypeError or ValueError for an argument of another kind or size.

    bounds: the ``Bounds`` of numbers, by the names of the arguments, where they are not those of the table above.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        checks = _checks({it.name: it.annotation for it in parameters if it.kind != it.VAR_KEYWORD}, bounds)
        positional = [it.name for it in parameters if it.kind == it.POSITIONAL_OR_KEYWORD]

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> R:
            values = list(args)
            for at, name in enumerate(positional[: len(values)]):
                if name in checks:
                    values[at] = checks[name](values[at])
            for name in checks.keys() & options:
                options[name] = checks[name](options[name])
            return function(*values, **options)

        return checked

    return decorate


def check_fields(record: Any, **bounds: Bounds) -> None:
    """Raise TypeError or ValueError if a field of this dataclass or NamedTuple does not fit its annotation."""
    for name, check in _checks(inspect.get_annotations(type(record)), bounds).items():
        check(getattr(record, name))


def check_flag(name: str, x: object) -> bool:
    """Return x. Raise TypeError if it is neither True nor False."""
    if not isinstance(x, bool):
        raise TypeError(f"{name} must be True or False, got {shown(x)}")
    return x


def check_whole(name: str, x: Any, least: float = 1, most: float = math.inf) -> int:
    """Return x as an int. Raise TypeError or ValueError if it is no whole number, or too small or too large."""
    n = whole_number(x)
    if n is None or not least <= n <= most:
        size = f"from {least} on" if most == math.inf else f"from {least} to {most}"
        raise _error(x)(f"{name} must be a whole number {size}, got {shown(x)}")
    return n


def check_number(name: str, x: Any, least: float | None = None, most: float = math.inf) -> Any:
    """Return x. Raise TypeError or ValueError if it is no finite number, or too small or too large.

    least: None for a number that must be above 0.
    """
    finite = _is_number(x) and -math.inf < x < math.inf  # large integers would overflow as floats
    if not finite or not (x > 0 if least is None else x >= least) or x > most:
        low = "above 0" if least is None else "" if least == -math.inf else f"at least {least}"
        sizes = " and ".join(filter(None, (low, f"at most {most}" if most < math.inf else "")))
        raise _error(x)(f"{name} must be a finite number{sizes and ' '}{sizes}, got {shown(x)}")
    return x


def shown(x: object) -> str:
    """Return a short text of an argument for a message: type, dtype and shape of an array, otherwise its ``repr``."""
    if hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type) and np.shape(x) != ():
        return f"{type(x).__name__} {x.dtype} {list(x.shape)}"
    return " ".join(repr(x).split())[:40]


def check_dtype(name: str, x: Any) -> Any:
    """Return x. Raise TypeError if it is no dtype of numpy. None, which numpy takes for float64, is refused."""
    try:
        np.dtype("no dtype" if x is None else x)
    except TypeError:
        raise TypeError(f"{name} must be a dtype of numpy, such as np.float16, got {shown(x)}") from None
    return x


def check_one_shape(**arrays: Any) -> None:
    """Raise ValueError if arrays, or tuples of arrays, differ in shape.

    numpy and torch would broadcast them: they would repeat a single row for all rows of another array.
    """
    shapes = {name: [*map(np.shape, x)] if isinstance(x, tuple) else np.shape(x) for name, x in arrays.items()}
    first, *others = shapes.values()
    if any(shape != first for shape in others):
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{' and '.join(shapes)} must have one shape, got {found}")


def _checks(kinds: dict[str, Any], bounds: dict[str, Bounds]) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that check arguments of these annotations, by name."""
    checks = {name: _check_of(name, kind, bounds.get(name)) for name, kind in kinds.items()}
    return {name: check for name, check in checks.items() if check is not None}


def _check_of(name: str, kind: Any, bounds: Bounds | None) -> Callable[[Any], Any] | None:
    """Return the function that checks an argument and returns it; None if its annotation is not checked."""
    if kind == DTypeLike:
        return lambda x: check_dtype(name, x)
    if isinstance(kind, UnionType):
        kinds = [it for it in get_args(kind) if it is not NoneType]
        check = _check_of(name, kinds[0], bounds) if len(kinds) == 1 else None
        return check and (lambda x: None if x is None else check(x))
    ends = () if bounds is None else bounds if isinstance(bounds, tuple) else (bounds,)
    if kind is int:
        return lambda x: check_whole(name, x, *ends)
    if kind is float:
        return lambda x: check_number(name, x, *ends)
    if kind is bool:
        return lambda x: check_flag(name, x)
    if get_origin(kind) in (Sequence, Iterable):
        return functools.partial(_list, name, _check_of(f"each element of {name}", get_args(kind)[0], bounds))
    kind = get_origin(kind) or kind
    if kind is Callable or (isinstance(kind, type) and kind not in (object, str, inspect.Parameter.empty)):
        return functools.partial(_object, name, kind)
    return None


def _list(name: str, check: Callable[[Any], Any] | None, x: Any) -> Any:
    if isinstance(x, str | bytes) or not isinstance(x, Iterable):
        raise TypeError(f"{name} must be a list, got {type(x).__name__}")
    return x if check is None else [check(element) for element in x]


def _object(name: str, kind: Any, x: Any) -> Any:
    if not isinstance(x, (kind, np.generic) if kind is np.ndarray else kind):
        full = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
        expected = NAMES.get(full, f"of type {full}")
        raise TypeError(f"{name} must be {expected}, got {type(x).__name__}")
    return x


def _is_number(x: object) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _error(x: object) -> type[Exception]:
    """Return the class of the error for a wrong argument: ValueError for a number, TypeError for anything else."""
    return ValueError if _is_number(x) else TypeError
