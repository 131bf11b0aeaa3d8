"""Make Triton's interpreter a microscope: real bfloat16 and float8, no access outside a tensor, every byte counted.

With ``TRITON_INTERPRET=1`` Triton runs kernels in numpy, one program after the other. Unchanged, it multiplies the
bit patterns of bfloat16 numbers, truncates where a GPU rounds, reads any address it is given, and leaves some sixty
names in the module of every kernel. ``install`` repairs that, for all kernels of the process:

- bfloat16 is widened to float32 for arithmetic and rounded to nearest even afterwards, as on a GPU; atomics on it,
  which the interpreter lacks, are refused.
- Conversions from and to float8 (e4m3 and e5m2) are a GPU's: NaN and infinities stay what they are on the way up; on
  the way down numbers are rounded to nearest even, and what is too large becomes the largest finite number.
- Products of float8 are exact sums, and inside ``tensor_core()`` what a Hopper tensor core makes of them.
- A pointer reaches the tensor that it was launched with, and no other, wherever the tensors are in memory: a load or
  store outside it raises ``IndexError``, naming the tensor, how many elements and which program. So does a tile of a
  descriptor that begins before the tensor: the hardware would fill it with zeros, and the kernel would count them.
- ``tl.maximum(NaN, x)`` is x, as on a GPU, unless the kernel asks to propagate NaN.
- The variable of a loop is an int32, as on a GPU. Python's own numbers divide differently: -97 // 128 is -1 there, and
  0 on a GPU.
- A block of several elements has no truth value: ``and``, ``or``, ``not``, ``if``, ``min``, ``max`` and a chain of
  comparisons raise a TypeError. Unchanged, the interpreter takes any such block as True. Triton's compiler refuses
  ``if`` and chains, too. It still computes ``and``, ``or`` and ``not`` of blocks of booleans, but warns that ``and``
  and ``or`` are deprecated, so this interpreter asks for ``&``, ``|`` and ``~``.
- Inside ``count()`` every access is booked.

What the interpreter still cannot tell: speed, the lower precision of TF32 products and of the fast exp2, and races
between programs.
"""

import ast
import os
import sys
import threading
import traceback
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from flashlab.kernels.checks import RefusedInKernel
from flashlab.machine.memory import Event, Memory

Builder, TensorHandle = interpreter.InterpreterBuilder, interpreter.TensorHandle


class _Named(NamedTuple):
    name: str
    tensor: torch.Tensor
    first: int  # address of the first element
    last: int  # address past the last one


# What is running, its tensors as ``_Named``, where its pointers see each of them begin and end, and for which language
# modules Triton has put its patches in place.
_launched = SimpleNamespace(kernel="", tensors=[], places=[], patched=set())
APART = 2**48  # is added to the pointers into the first tensor, twice to those into the second, …: memory ends below
_one_at_a_time = threading.RLock()  # the interpreter patches modules during a launch, and threads share them


class _Open(threading.local):
    """What ``count`` and ``tensor_core`` have opened in this thread: a launch belongs to the thread that makes it."""

    def __init__(self):
        self.bills = []  # (Memory, tensors named by the caller)
        self.bits = None  # that an accumulator keeps after the leading one; None: all


_open = _Open()


@contextmanager
def count(**tensors):
    """Book what the kernels load and store that this thread launches inside. Works in the interpreter only.

    Args:
        tensors: tensors to book under a name of the caller's; all others go under the name of the kernel's parameter.

    Yields:
        a ``machine.memory.Memory``, so that ``bytes``, ``loaded``, ``stored``, ``moved`` and ``events`` mean what
        they mean there: traffic the program asks for, before caches; elements masked out do not count. Events are
        ("kernel", kernel, (x, y, z), 0) as a program begins, and ("load" or "store", tensor, region, bytes), where
        region is the smallest box that holds the elements, a slice for each of the tensor's dimensions. An atomic
        operation is a load and a store. Kernels in Gluon have another interpreter, and are not booked.

    Raises:
        RuntimeError: kernels are being compiled, so there is nothing to watch.
    """
    if not getattr(Builder, "flashlab", False):
        raise RuntimeError("bytes are counted in the interpreter: set TRITON_INTERPRET=1, here kernels are compiled")
    memory = Memory()
    _open.bills.append((memory, _named(tensors)))
    try:
        yield memory
    finally:
        _open.bills.pop()


@contextmanager
def tensor_core(bits=13):
    """Add up products of float8 as Hopper's tensor cores do, inside the context. Works in the interpreter only.

    An instruction adds 32 products to the accumulator, of which it keeps ``bits`` after the leading one. ``tl.dot``
    adds the accumulator to float32 registers every ``max_num_imprecise_acc`` products, and never unless told to. With
    0 it multiplies in half precision and keeps all bits. The model is ``reference.eight_bits.TensorCore``.

    Raises:
        RuntimeError: kernels are being compiled, and the device adds up as it does.
    """
    if not getattr(Builder, "flashlab", False):
        raise RuntimeError("a tensor core is imitated in the interpreter: set TRITON_INTERPRET=1, here is a real one")
    before, _open.bits = _open.bits, bits
    try:
        yield
    finally:
        _open.bits = before


@contextmanager
def _patched(owner, **replacements):
    """Replace methods of a class inside the context."""
    originals = {name: getattr(owner, name) for name in replacements}
    try:
        for name, replacement in replacements.items():
            setattr(owner, name, replacement)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


def masked_loads_read_nan():
    """Return a context in which a masked load without ``other`` reads NaN where it is masked: a GPU reads anything."""
    load_unchanged = Builder.create_masked_load

    def load(self, pointers, mask, other, *args, **kwargs):
        kind = pointers.get_element_ty()
        if other is None and kind.is_floating():
            dtype = interpreter._get_np_dtype(kind)  # bfloat16 is kept as the bits of a uint16
            nothing = np.full(pointers.data.shape, 0x7FC0 if dtype == np.uint16 else np.nan, dtype)
            other = TensorHandle(nothing, kind)
        return load_unchanged(self, pointers, mask, other, *args, **kwargs)

    return _patched(Builder, create_masked_load=load)


@contextmanager
def operands(*names):
    """Gather the first two operands of these instructions, as they run."""
    found = []

    def noted(original):
        def run(self, x, y, *rest):
            found.append((x, y))
            return original(self, x, y, *rest)

        return run

    with _patched(Builder, **{name: noted(getattr(Builder, name)) for name in names}):
        yield found


@contextmanager
def running_as(program):
    """Let every launch run as this program only, which loads zeros and stores nothing; gather its addresses."""
    found = []

    def load(self, pointers, mask, *rest):
        store(self, pointers, None, mask)
        kind = pointers.get_element_ty()
        return TensorHandle(np.zeros(pointers.data.shape, interpreter._get_np_dtype(kind)), kind)

    def store(self, pointers, value, mask, *rest):
        found.extend(pointers.data[mask.data].tolist() or [0])
        if len(found) > 1000:
            raise RuntimeError("a loop over all of a tensor that is not there")

    def number(self, axis):
        return TensorHandle(np.array([program if axis == 0 else 0], np.int32), tl.int32)

    with _patched(Builder, create_masked_load=load, create_masked_store=store, create_get_program_id=number):
        yield found


@contextmanager
def launches_noted(note):
    """Call ``note(function, names, args, kwargs)`` at each launch of a kernel."""
    launch = interpreter.GridExecutor.__call__

    def noted(self, *args, **kwargs):
        note(self.fn, self.arg_names, args, kwargs)
        return launch(self, *args, **kwargs)

    with _patched(interpreter.GridExecutor, __call__=noted):
        yield


def _free_in_child():
    """Replace the lock in a forked process: a thread that holds it at the fork does not exist there."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=_free_in_child)


def install():
    """Repair the interpreter. Called when ``flashlab.kernels`` decides to interpret; a second call does nothing."""
    if getattr(Builder, "flashlab", False):
        return
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_erf", "create_rsqrt", "create_dot"):
        _replace(Builder, name, _in_float32)
    _replace(Builder, "create_dot", _float8_dot)
    builder = interpreter.interpreter_builder
    # Triton looks for overflow in each integer operation, a third of the time, and tells of it only where one debugs.
    options = {"max_num_imprecise_acc_default": NEVER, "sanitize_overflow": builder.options.debug}
    builder.options = replace(builder.options, **options)
    _replace(Builder, "cast_impl", _rounding_cast)
    _replace(Builder, "create_fp_to_fp", _rounding_cast)
    _replace(interpreter.ReduceScanOpInterface, "apply", _reduced_in_float32)
    Builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    Builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    Builder.get_bf16 = lambda self, value: _narrow(self.get_fp32(value))
    _replace(Builder, "create_atomic_rmw", _without_bfloat16)
    _replace(interpreter, "_patch_lang_tensor", _ambiguous)
    _replace(interpreter, "_implicit_cvt", _moved_apart)
    _replace(Builder, "create_atomic_rmw", _watched("load", "store", pointers=1, mask=3))
    _replace(Builder, "create_atomic_cas", _watched("load", "store", pointers=0))
    _replace(Builder, "create_masked_load", _watched("load", pointers=0, mask=1))
    _replace(Builder, "create_masked_store", _watched("store", pointers=0, mask=2))
    _replace(Builder, "create_descriptor_load", _from_the_first_element("load"))
    _replace(Builder, "create_descriptor_store", _from_the_first_element("store"))
    interpreter.FunctionRewriter.ast_transformer = _Rewriter()
    _replace(Builder, "set_grid_idx", _announced)
    _replace(interpreter.GridExecutor, "__call__", _launch)
    _replace(interpreter, "_get_np_dtype", _known)
    _replace(interpreter, "_patch_lang", _once)
    _replace(interpreter.FunctionRewriter, "_compile_and_exec", _tidy)
    Builder.flashlab = True


def _replace(owner, name, wrapper):
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(wrapper(original)))


# truth values


def truth(data, frame):
    """Return the truth value of a number, an array of one element, that the code of a frame asks for.

    Raises:
        RefusedInKernel: the array is a block of several elements.
    """
    if data.size == 1:
        return bool(data.item())
    where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
    raise RefusedInKernel(
        f"{where}: a block {list(data.shape)} has no truth value: write & | ~ for and, or, not, tl.where for if, "
        "tl.minimum and tl.maximum for min and max, and one comparison at a time"
    )


def _ambiguous(patch):
    """Refuse the truth value of a block, except in Triton's own code, which asks for it instead of `is not None`.

    An index is the element of an array of one: Triton 3.6 converts the array, which numpy 2.5 refuses.
    """

    def run(tensor, scope):
        patch(tensor, scope)
        unchanged = tensor.__bool__

        def checked(self):
            frame = sys._getframe(1)
            if frame.f_globals.get("__name__", "").startswith("triton."):
                return unchanged(self)
            return truth(self.handle.data, frame)

        scope.set_attr(tensor, "__bool__", checked)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return run


# bfloat16: the interpreter keeps the bits in uint16


def _is_bfloat16(arg):
    return isinstance(arg, TensorHandle) and arg.dtype.scalar == tl.bfloat16


def _widen(arg):
    """Return a bfloat16 handle as float32, exactly; anything else unchanged."""
    if not _is_bfloat16(arg):
        return arg
    bits = np.ascontiguousarray(arg.data).astype(np.uint32) << np.uint32(16)
    return TensorHandle(bits.view(np.float32).reshape(arg.data.shape), tl.float32)


def _narrow(handle):
    """Return a handle of numbers rounded to bfloat16."""
    values = np.ascontiguousarray(handle.data, dtype=np.float32)
    return TensorHandle(bits_of_bfloat16(values).reshape(handle.data.shape), tl.bfloat16)


def bits_of_bfloat16(values):
    """Return float32 numbers as bits of bfloat16, uint16: rounded to nearest and ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # just below one half, or one half if odd
    return np.where(np.isnan(values), np.uint32(0x7FC0), (bits + half) >> np.uint32(16)).astype(np.uint16)


def _in_float32(operation):
    """Run the operation on widened operands; its result is rounded where no operand was wider than bfloat16."""

    def run(self, *args):
        if not any(_is_bfloat16(arg) for arg in args):
            return operation(self, *args)
        wider = any(isinstance(arg, TensorHandle) and arg.data.dtype.kind == "f" for arg in args)
        result = operation(self, *(_widen(arg) for arg in args))
        return result if wider or result.data.dtype.kind != "f" else _narrow(result)

    return run


def _reduced_in_float32(apply):
    """Run the reduction or scan on widened inputs. A sum rounds once, at the end; a GPU rounds after each addition."""

    def retyped(tensor, handle):
        dtype = tl.block_type(handle.dtype, tensor.type.shape) if tensor.type.is_block() else handle.dtype
        return tl.tensor(handle, dtype)

    def run(self, inputs):
        if not isinstance(inputs, tuple):
            return run(self, (inputs,))[0]
        narrow = [_is_bfloat16(tensor.handle) for tensor in inputs]
        widened = tuple(retyped(t, _widen(t.handle)) if n else t for t, n in zip(inputs, narrow, strict=True))
        results = apply(self, widened)
        return tuple(retyped(t, _narrow(t.handle)) if n else t for t, n in zip(results, narrow, strict=True))

    return run


def _rounding_cast(cast):
    def run(self, source, target, *rounding):
        if source.dtype.scalar in FLOAT8:
            source = _from_float8(source)
        if target.scalar in FLOAT8:
            return _to_float8(_widen(source), target.scalar)
        if target.scalar != tl.bfloat16:
            return cast(self, _widen(source), target, *rounding)
        if interpreter._ir.ROUNDING_MODE.RTZ in rounding or source.dtype.scalar.is_fp8():
            return cast(self, source, target, *rounding)
        return _narrow(_widen(source))

    return run


# float8: the interpreter keeps the codes in uint8, and torch knows what they mean

FLOAT8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}


def _from_float8(handle):
    """Return a handle of float8 numbers as float32, exactly."""
    codes = torch.from_numpy(np.ascontiguousarray(handle.data))
    return TensorHandle(codes.view(FLOAT8[handle.dtype.scalar]).float().numpy(), tl.float32)


def _to_float8(handle, target):
    """Return a handle of numbers rounded to float8; those past its range are clamped, and NaN stays NaN."""
    dtype = FLOAT8[target]
    values = torch.from_numpy(np.ascontiguousarray(handle.data, dtype=np.float32))
    codes = values.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    return TensorHandle(codes.view(torch.uint8).numpy(), target)


NEVER = (
    2**30
)  # products after which an accumulator is added to registers, where a kernel does not say: Hopper's default


def _float8_dot(dot):
    def run(self, a, b, d, precision, flush):
        if not {a.dtype.scalar, b.dtype.scalar} <= FLOAT8.keys():
            return dot(self, a, b, d, precision, flush)
        A, B = _from_float8(a).data, _from_float8(b).data  # [M, K], [K, N]
        summed = d.data + A @ B if _open.bits is None or flush == 0 else _added(d.data, A, B, _open.bits, flush)
        return TensorHandle(summed.astype(d.data.dtype), d.dtype.scalar)

    return run


def _added(C, A, B, bits, flush):
    """Return C + A @ B, added up 32 products at a time, where ``bits`` after the leading one are kept of each sum."""
    total, sums = (C, 0.0 * C) if flush <= A.shape[-1] else (0.0 * C, C)  # [M, N], [M, N]
    for start in range(0, A.shape[-1], 32):
        there = slice(start, start + 32)
        sums = sums + A[..., there].astype(np.float64) @ B[..., there, :]  # [M, N]
        step = np.ldexp(1.0, np.frexp(sums)[1] - 1 - bits)  # [M, N]
        sums = (np.trunc(sums / step) * step).astype(np.float32)
        if (start + 32) % flush == 0:
            total, sums = total + sums, 0 * sums
    return total + sums


def _without_bfloat16(atomic):
    def run(self, operation, pointers, *args):
        if pointers.get_element_ty() == tl.bfloat16:
            raise NotImplementedError("the interpreter has no atomic operations on bfloat16: accumulate in float32")
        return atomic(self, operation, pointers, *args)

    return run


# addresses


class _OutsideItsTensor(IndexError):
    pass


def _tensors(name, arg):
    """Return the tensors of a launch's argument, named; those in a NamedTuple have the names of their fields."""
    if isinstance(arg, tuple):
        names = getattr(arg, "_fields", [name] * len(arg))
        return [x for part, value in zip(names, arg, strict=True) for x in _tensors(part, value)]
    base = getattr(arg, "base", arg)  # of descriptors and wrappers
    return _named({name: base}) if hasattr(base, "data_ptr") else []


def _named(tensors):
    """Return tensors with their names and the first and last addresses of their elements."""
    named = []
    for name, tensor in tensors.items():
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        first = tensor.data_ptr()
        named.append(_Named(name, tensor, first, first + (extent * tensor.element_size() if tensor.numel() else 0)))
    return named


def _moved_apart(convert):
    """Give a kernel pointers that say whose they are: no two tensors of a launch are neighbours for it."""

    def run(arg):
        converted = convert(arg)
        if hasattr(arg, "data_ptr"):
            (own,) = _tensors("", arg)
            at = [(t.first, t.last) for t in _launched.tensors].index((own.first, own.last))
            converted.handle.data += np.uint64((at + 1) * APART)
        return converted

    return run


def _watched(*kinds, pointers, mask=None):
    """Wrap a load, store or atomic such that its addresses are checked and booked.

    pointers, mask: positions of these arguments.
    """

    def wrapper(access):
        def run(self, *args, **kwargs):
            handle = args[pointers]
            seen = True if mask is None else getattr(args[mask], "data", args[mask])
            addresses = handle.data[np.broadcast_to(np.asarray(seen), handle.data.shape)].astype(np.int64)  # [elements]
            real = TensorHandle(handle.data % np.uint64(APART), handle.dtype, handle.attr)
            if addresses.size:
                itemsize = max(1, handle.get_element_ty().primitive_bitwidth // 8)
                _check(kinds[0], addresses, itemsize, self.grid_idx)
                for kind in kinds:
                    for memory, tensors in _open.bills:
                        _book(memory, kind, addresses % APART, itemsize, tensors + _launched.tensors)
            return access(self, *args[:pointers], real, *args[pointers + 1 :], **kwargs)

        return run

    return wrapper


def _check(kind, addresses, itemsize, program):
    lowest, highest = addresses.min(), addresses.max() + itemsize
    if any(first <= lowest and highest <= last for first, last in _launched.places):
        return
    outside = np.ones(addresses.shape, bool)
    for first, last in _launched.places:
        outside &= (addresses < first) | (addresses + itemsize > last)
    if outside.any():
        at = addresses[outside][0] // APART - 1
        name = _launched.tensors[at].name if 0 <= at < len(_launched.tensors) else "every tensor"
        raise _OutsideItsTensor(f"outside {name}: {kind} of {outside.sum()} element(s), in program {program}")


def _from_the_first_element(kind):
    """Refuse a tile of a descriptor that begins before its tensor."""

    def wrapper(access):
        def run(self, descriptor, *args, **kwargs):
            indices = args[-1] if kind == "store" else args[0]
            first = [int(index.data.item()) for index in indices]
            if min(first) < 0:
                name = _launched.tensors[int(descriptor.base.data.item()) // APART - 1].name
                raise _OutsideItsTensor(
                    f"outside {name}: {kind} of a tile that begins at {first}, in program {self.grid_idx}"
                )
            return access(self, descriptor, *args, **kwargs)

        return run

    return wrapper


def _book(memory, kind, addresses, itemsize, tensors):
    for t in tensors:
        inside = (t.first <= addresses) & (addresses < t.last)
        if inside.any():
            nbytes = int(inside.sum()) * itemsize
            region = _region(t.tensor, (addresses[inside] - t.first) // itemsize)
            memory.book(Event(kind, t.name, region, nbytes))
            addresses = addresses[~inside]


def _region(tensor, offsets):
    """Return the smallest box of slices that holds the elements at these offsets [elements] from the tensor's first."""
    region = [slice(0, size) for size in tensor.shape]
    for dim in sorted(range(tensor.dim()), key=tensor.stride, reverse=True):
        if tensor.shape[dim] > 1 and tensor.stride(dim):
            index, offsets = np.divmod(offsets, tensor.stride(dim))
            region[dim] = slice(int(index.min()), int(index.max()) + 1)
    return tuple(region)


# launches


def _launch(call):
    """Tell the watchers the launch's name and tensors, and raise what this interpreter refuses in its own words."""

    def run(self, *args, **kwargs):
        with _one_at_a_time:
            return interpreted(self, *args, **kwargs)

    def interpreted(self, *args, **kwargs):
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        _launched.kernel, _launched.patched = self.fn.__name__, set()
        _launched.tensors = [x for name, arg in named.items() for x in _tensors(name, arg)]
        _launched.places = [(t.first + at * APART, t.last + at * APART) for at, t in enumerate(_launched.tensors, 1)]
        try:
            return call(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            cause = error
            while cause.__cause__:
                cause = cause.__cause__
            if isinstance(cause, _OutsideItsTensor):
                raise IndexError(f"{self.fn.__name__} goes {cause}") from None
            if isinstance(cause, RefusedInKernel):
                raise TypeError(str(cause)) from None
            if line := _line_of_user(cause, args):
                raise TypeError(f"{line}: {cause}") from None
            raise

    return run


def _line_of_user(error, args):
    """Return the last line of a mask or score function of the user's that an error came through; None: of none."""
    files = {f.fn.__code__.co_filename for f in _functions(args) if not f.fn.__module__.startswith("flashlab.")}
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [f"{code.co_name}, line {line}" for code, line in frames if code.co_filename in files]
    return lines[-1] if lines else None


def _functions(x):
    """Return the functions in Triton among the arguments of a launch."""
    if isinstance(x, (tuple, list)):
        return [f for part in x for f in _functions(part)]
    return [x] if isinstance(x, interpreter.InterpretedFunction) else []


class _Rewriter(interpreter.ASTTransformer):
    """Rewrite a kernel such that its loops' variables are int32 and not Python's numbers."""

    def visit_For(self, node):
        self.generic_visit(node)
        called = getattr(node.iter, "func", None)
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name == "range":  # and not static_range, whose numbers are the compiler's constants on a GPU, too
            to_tensor = ast.Attribute(ast.Name("interpreter_semantic", ast.Load()), "to_tensor", ast.Load())
            variables = ast.Call(ast.Name("map", ast.Load()), [to_tensor, node.iter], [])
            node.iter = ast.copy_location(variables, node.iter)  # without it the loop's last line: figures follow lines
        return node


def _known(convert):
    """Ask once per name of a type for numpy's, instead of building a table of all of them at each operation."""
    found = {}

    def run(dtype):
        name = dtype.scalar.name
        if name not in found:
            found[name] = convert(dtype)
        return found[name]

    return run


def _once(patch):
    """Patch ``triton.language`` once per launch instead of at each call of one kernel by another."""

    def run(fn):
        languages = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if not languages or not languages <= _launched.patched:
            _launched.patched |= languages
            return patch(fn)

    return run


def _announced(set_grid_idx):
    """Book the beginning of a program as an event."""

    def run(self, *program):
        set_grid_idx(self, *program)
        for memory, _ in _open.bills:
            memory.book(Event("kernel", _launched.kernel, program, 0))

    return run


def _tidy(compile_and_exec):
    """Rewrite a kernel for the interpreter without leaving names in the kernel's module."""

    def run(self, tree):
        names = self.fn.__globals__
        before = {*names, "interpreter_semantic"}  # which the rewritten kernel calls
        try:
            return compile_and_exec(self, tree)
        finally:
            for name in names.keys() - before:
                del names[name]

    return run
