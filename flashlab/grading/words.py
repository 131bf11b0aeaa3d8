"""Values, errors and their places in words."""

import linecache
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import numpy as np

OURS = tuple({str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<frozen"})


def shortened(text: str, length: int) -> str:
    """Return a text that can be printed, cut to a length."""
    text = str(text).encode("utf-8", "replace").decode()  # a lone surrogate cannot be printed
    return text if len(text) <= length else f"{text[: length - 2]} …"


def described(value: Any) -> str:
    """Return the kind of a value, with its article."""
    name = type(value).__name__
    if value is None:
        return "None"
    many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}{many}"


def message_of(error: BaseException) -> str:
    """Return an error in words, cut to a length. ``str`` of some errors raises another error."""
    while error.__cause__ is not None and type(error).__name__ in ("InterpreterError", "CompilationError"):
        error = error.__cause__
    try:
        text = str(error)
    except BaseException:
        text = "(its message cannot be printed)"
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__, 600)


def where(error: BaseException | None) -> str:
    """Return the learner's last line in a traceback, with its number; "" if there is none."""
    found = ""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, number in traceback.walk_tb(error.__traceback__):
            file = frame.f_code.co_filename
            theirs = not file.startswith(OURS) or "<" in file[:1] and not file.startswith("<frozen")
            if theirs and (line := linecache.getline(file, number).strip()):
                found = f"line {number}: {shortened(line, 200)}"
        error = error.__cause__ or error.__context__
    return found


def apart(expected: np.ndarray, yours: np.ndarray) -> tuple[str, str]:
    """Return two arrays in words, with enough digits to distinguish them."""
    for digits in (4, 7, 10, 16):
        texts = short(expected, digits), short(yours, digits)
        if texts[0] != texts[1]:
            break
    return texts


def short(value: Any, digits: int = 4) -> str:
    """Return a value in words, cut to a length."""
    if hasattr(value, "_fields"):
        return ", ".join(f"{name} = {short(leaf)}" for name, leaf in zip(value._fields, value, strict=True))
    if isinstance(value, np.ndarray) or np.isscalar(value):
        text = np.array2string(np.asarray(value), precision=digits, threshold=32, edgeitems=2, separator=", ")
        return shortened(text.replace("\n", ""), 200)
    return shortened(value, 200)
