"""Values in registers: a number or a tile of them, with the types of a GPU and the arithmetic of C.

A compile-time value, Gluon's constexpr, is plain Python here. Everything else is a ``Value``: integers of 32 bits wrap,
quotients are truncated, and float32 stays float32. numpy has neither bfloat16 nor float8: registers hold such numbers
in float32, rounded, and memory holds their bits.
"""

import sys
from types import SimpleNamespace

import numpy as np
import torch
from triton.experimental.gluon import language as gl

from flashlab.kernels.interpreter import truth
from flashlab.kernels.interpreter_numbers import bits_of_bfloat16

ARRAYS = {  # Triton's type: numpy's, for arithmetic
    gl.int1: np.bool_,
    gl.int8: np.int8, gl.int16: np.int16, gl.int32: np.int32, gl.int64: np.int64,
    gl.uint8: np.uint8, gl.uint16: np.uint16, gl.uint32: np.uint32, gl.uint64: np.uint64,
    gl.float8e4nv: np.float32, gl.float8e5: np.float32, gl.bfloat16: np.float32,
    gl.float16: np.float16, gl.float32: np.float32, gl.float64: np.float64,
}  # fmt: skip
BITS = {gl.bfloat16: np.uint16, gl.float8e4nv: np.uint8, gl.float8e5: np.uint8}  # in memory, where numpy lacks the type
OF_TORCH = {
    torch.bool: gl.int8, torch.uint8: gl.uint8, torch.int8: gl.int8, torch.int16: gl.int16, torch.int32: gl.int32,
    torch.int64: gl.int64, torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32,
    torch.float64: gl.float64, torch.float8_e4m3fn: gl.float8e4nv, torch.float8_e5m2: gl.float8e5,
}  # fmt: skip
FLOAT8 = {gl.float8e4nv: torch.float8_e4m3fn, gl.float8e5: torch.float8_e5m2}


def in_memory(dtype):
    """Return the numpy type of a number's bits in memory."""
    return np.dtype(BITS.get(dtype, ARRAYS[dtype]))


def rounded(array, dtype):
    """Return an array as ``dtype``, rounded to nearest and ties to even; integers wrap, float8 saturates."""
    if dtype in BITS:
        return widened(narrowed(array, dtype), dtype)
    return array.astype(ARRAYS[dtype], copy=False)


def narrowed(array, dtype):
    """Return the bits of an array's numbers in memory."""
    if dtype == gl.bfloat16:
        return bits_of_bfloat16(array.astype(np.float32))
    if dtype in FLOAT8:
        most = torch.finfo(FLOAT8[dtype]).max
        values = torch.from_numpy(np.array(array, np.float32)).clamp(-most, most)
        return values.to(FLOAT8[dtype]).view(torch.uint8).numpy()
    return array.astype(ARRAYS[dtype], copy=False)


def widened(bits, dtype):
    """Return the numbers with these bits in memory."""
    if dtype == gl.bfloat16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype in FLOAT8:
        return torch.from_numpy(np.array(bits)).view(FLOAT8[dtype]).float().numpy()
    return bits


class Value:
    """Numbers of one type, [..]: an array of ``ARRAYS``, and the layout that the kernel gave it, if any."""

    def __init__(self, data, dtype, layout=None):
        self.data, self.dtype, self._layout = np.asarray(data), dtype, layout

    @property
    def shape(self):
        return list(self.data.shape)

    @property
    def type(self):
        return SimpleNamespace(layout=self._layout, shape=self.shape, element_ty=self.dtype)

    def to(self, dtype, bitcast=False):
        """Return the numbers as ``dtype``; bitcast: the same bits."""
        if bitcast:
            bits = np.ascontiguousarray(narrowed(self.data, self.dtype)).view(in_memory(dtype))
            return Value(widened(bits, dtype).reshape(self.data.shape), dtype, self._layout)
        return Value(rounded(self.data, dtype), dtype, self._layout)

    def __getitem__(self, key):
        return Value(self.data[key], self.dtype)

    def __bool__(self):
        return truth(self.data, sys._getframe(1))

    def __index__(self):
        return int(self.data)

    __int__ = __index__

    def __repr__(self):
        return f"{self.dtype}{self.shape or ''} {self.data}"

    def __neg__(self):
        return Value(-self.data, self.dtype, self._layout)

    def __invert__(self):
        return Value(~self.data, self.dtype, self._layout)


def value(x, dtype=None):
    """Return x as a ``Value``: Python's numbers get the type that a kernel's argument or constant has."""
    if isinstance(x, Value):
        return x
    if dtype is None:
        dtype = gl.int1 if isinstance(x, bool) else gl.float32 if isinstance(x, float) else whole(x)
    return Value(np.asarray(x).astype(ARRAYS[dtype]), dtype)


def whole(x):
    """Return the type of a whole number."""
    return gl.int32 if -(2**31) <= x < 2**31 else gl.int64


def floating(dtype):
    """Return whether a type has fractions."""
    return dtype.is_floating()


def common(a, b, division=False):
    """Return the type of a result of operands of the types a and b, by Triton's rules. division: by /."""
    if floating(a) != floating(b):
        return a if floating(a) else b
    wider = max(a, b, key=lambda dtype: dtype.primitive_bitwidth)
    if floating(a):
        narrow = wider.primitive_bitwidth <= 16 and (a != b or a in BITS and division)
        return gl.float32 if narrow else wider
    if division:
        return gl.float32
    if a.primitive_bitwidth != b.primitive_bitwidth:
        return wider
    return a if a.is_int_unsigned() or a == b else b


def together(a, b, division=False):
    """Return two operands as arrays of their common type, that type, and their layout.

    A number of Python takes the type of a value beside it, unless it has fractions and the type has none.
    """
    plain = [not isinstance(x, Value) for x in (a, b)]
    layout = next((x._layout for x in (a, b) if isinstance(x, Value) and x._layout is not None), None)
    if plain[0] != plain[1]:
        typed, x = (b, a) if plain[0] else (a, b)
        dtype = typed.dtype
        if dtype == gl.int1 and not isinstance(x, bool):
            dtype = value(x).dtype
        elif isinstance(x, float) and not floating(dtype):
            dtype = gl.float32
        elif not floating(dtype) and not isinstance(x, bool) and whole(x).primitive_bitwidth > dtype.primitive_bitwidth:
            dtype = gl.int64
        if division and not floating(dtype):
            dtype = gl.float32
    else:
        a, b = value(a), value(b)
        dtype = common(a.dtype, b.dtype, division)
    a, b = (rounded(x.data, dtype) if isinstance(x, Value) else np.asarray(x).astype(ARRAYS[dtype]) for x in (a, b))
    return a, b, dtype, layout


def computed(function, a, b, division=False):
    """Return function(a, b) of two arrays as a ``Value`` of their common type."""
    a, b, dtype, layout = together(a, b, division)
    result = function(a, b)
    return Value(rounded(result, dtype) if dtype in BITS else result, dtype, layout)


def quotient(a, b):
    """Divide as C does: towards 0."""
    if a.dtype.kind == "u":
        return a // b
    down = a // b
    return down + ((a % b != 0) & ((a < 0) != (b < 0)))


def remainder(a, b):
    """Return the remainder of C's division, which has the sign of a."""
    return a - quotient(a, b) * b


def _operator(name, function, division=False):
    def forward(self, other):
        if isinstance(other, Value) and other.dtype.is_ptr():
            return NotImplemented
        return computed(function, self, other, division)

    def backward(self, other):
        return computed(function, other, self, division)

    setattr(Value, f"__{name}__", forward)
    setattr(Value, f"__r{name}__", backward)


def _comparison(name, function):
    def compare(self, other):
        a, b, _, layout = together(self, other)
        return Value(function(a, b), gl.int1, layout)

    setattr(Value, f"__{name}__", compare)


for _name, _function in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": quotient, "mod": remainder,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}.items():  # fmt: skip
    _operator(_name, _function)
_operator("truediv", np.divide, division=True)
for _name, _function in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}.items():  # fmt: skip
    _comparison(_name, _function)
Value.__hash__ = None
