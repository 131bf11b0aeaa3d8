"""Repair Triton's interpreter: numbers as on a GPU, no access outside a tensor, a count of bytes.

With ``TRITON_INTERPRET=1`` Triton runs kernels in numpy, one program after the other. Unchanged, it multiplies the
bit patterns of bfloat16 numbers, truncates where a GPU rounds, reads any address, and leaves some sixty names in the
module of every kernel. ``install`` repairs that, for all kernels of the process:

- bfloat16 is widened to float32 for arithmetic and rounded to nearest even afterwards, as on a GPU. Atomics on
  bfloat16 are refused, since the interpreter has none.
- Conversions from and to float8 (e4m3 and e5m2) are a GPU's: widening keeps NaN and infinities; narrowing rounds to
  nearest even, and numbers past the range become the largest finite number.
- Products of float8 are summed exactly, and inside ``tensor_core()`` as a Hopper tensor core sums them.
- A pointer reaches only the tensor that it was launched with, wherever the tensors are in memory. A load or store
  outside of it raises an ``IndexError`` that names the tensor, the number of elements and the program. So does a tile
  of a descriptor that begins before the tensor: the hardware would fill it with zeros, which the kernel would count.
- ``tl.maximum(NaN, x)`` is x, as on a GPU, unless the kernel asks to propagate NaN.
- The variable of a loop is an int32, as on a GPU. Python's own numbers divide differently: -97 // 128 is -1 in Python
  and 0 on a GPU.
- A block of several elements has no truth value: ``and``, ``or``, ``not``, ``if``, ``min``, ``max`` and a chain of
  comparisons raise a TypeError. Unchanged, the interpreter takes any such block as True. Triton's compiler refuses
  ``if`` and chains, too. It still computes ``and``, ``or`` and ``not`` of blocks of booleans, but warns that ``and``
  and ``or`` are deprecated, so this interpreter asks for ``&``, ``|`` and ``~``.
- A comparison gives booleans, also of scalars, and ``other`` of a load may be a block of the one element 0.
- Inside ``count()`` every access is booked.

The interpreter still does not show speed, the lower precision of TF32 products and of the fast exp2, nor races between
programs.

Only this file patches the interpreter. The replacements that compute are in ``interpreter_numbers``, those that check
and count accesses in ``interpreter_memory``; here are launches, truth values, and the contexts for callers.
"""

import ast
import os
import sys
import threading
import traceback
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from flashlab.kernels.checks import RefusedInKernel
from flashlab.kernels.interpreter_memory import (
    OutsideItsTensor,
    bills,
    from_the_first_element,
    launched,
    moved_apart,
    spans,
    watched,
)
from flashlab.kernels.interpreter_numbers import (
    accumulator,
    comparing,
    float8_dot,
    in_float32,
    narrow,
    reduced_in_float32,
    rounding_cast,
    without_bfloat16,
)
from flashlab.machine.memory import Event, Memory

Builder, TensorHandle = interpreter.InterpreterBuilder, interpreter.TensorHandle
NEVER = 2**30  # products after which an accumulator is added to registers, if a kernel names none: Hopper's default
_languages = set()  # ids of the modules that Triton has patched for the running launch
_one_at_a_time = threading.RLock()  # the interpreter patches modules during a launch, and threads share them


@contextmanager
def count(**tensors):
    """Book the loads and stores of all kernels that this thread launches inside. Works in the interpreter only.

    Args:
        tensors: tensors to book under these names; all others have the name of the kernel's parameter.

    Yields:
        a ``machine.memory.Memory``, whose ``bytes``, ``loaded``, ``stored``, ``moved`` and ``events`` count the
        traffic that programs request, before caches; masked elements do not count. Events are
        ("kernel", kernel, (x, y, z), 0) as a program begins, and ("load" or "store", tensor, region, bytes), where
        region is the smallest box that holds the elements, a slice for each of the tensor's dimensions. An atomic
        operation is a load and a store. Kernels in Gluon have another interpreter, and are not booked.

    Raises:
        RuntimeError: kernels are compiled here.
    """
    if not getattr(Builder, "flashlab", False):
        raise RuntimeError("bytes are counted in the interpreter: set TRITON_INTERPRET=1, here kernels are compiled")
    memory = Memory()
    bills.open.append((memory, spans(tensors)))
    try:
        yield memory
    finally:
        bills.open.pop()


@contextmanager
def tensor_core(bits=13):
    """Sum products of float8 as Hopper's tensor cores do, inside the context. Works in the interpreter only.

    An instruction adds 32 products to the accumulator, of which it keeps ``bits`` after the leading one. ``tl.dot``
    adds the accumulator to float32 registers every ``max_num_imprecise_acc`` products; by default it never does. With
    0 it multiplies in half precision and keeps all bits. The model is ``reference.eight_bits.TensorCore``.

    Raises:
        RuntimeError: kernels are compiled here.
    """
    if not getattr(Builder, "flashlab", False):
        raise RuntimeError("a tensor core is imitated in the interpreter: set TRITON_INTERPRET=1, here is a real one")
    before, accumulator.bits = accumulator.bits, bits
    try:
        yield
    finally:
        accumulator.bits = before


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
    """Return a context in which masked elements of a load without ``other`` are NaN: a GPU leaves them undefined."""
    load_unchanged = Builder.create_masked_load

    def load(self, pointers, mask, other, *args, **kwargs):
        kind = pointers.get_element_ty()
        if other is None and kind.is_floating():
            dtype = interpreter._get_np_dtype(kind)  # bfloat16 is kept as the bits of a uint16
            undefined = np.full(pointers.data.shape, 0x7FC0 if dtype == np.uint16 else np.nan, dtype)
            other = TensorHandle(undefined, kind)
        return load_unchanged(self, pointers, mask, other, *args, **kwargs)

    return _patched(Builder, create_masked_load=load)


@contextmanager
def operands(*names):
    """Collect the first two operands of these instructions, as they run."""
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
    """Run every program of a launch as (program, 0, 0), with loads of zeros and without stores; collect addresses."""
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
    """Repair the interpreter, if ``flashlab.kernels`` interprets. A second call does nothing."""
    if getattr(Builder, "flashlab", False):
        return
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_erf", "create_rsqrt", "create_dot"):
        _replace(Builder, name, in_float32)
    _replace(Builder, "binary_op", comparing)
    _replace(Builder, "create_dot", float8_dot)
    builder = interpreter.interpreter_builder
    # Triton looks for overflow in each integer operation: a third of the run time, for reports in debug mode only.
    options = {"max_num_imprecise_acc_default": NEVER, "sanitize_overflow": builder.options.debug}
    builder.options = replace(builder.options, **options)
    _replace(Builder, "cast_impl", rounding_cast(interpreter._ir.ROUNDING_MODE.RTZ))
    _replace(Builder, "create_fp_to_fp", rounding_cast(interpreter._ir.ROUNDING_MODE.RTZ))
    _replace(interpreter.ReduceScanOpInterface, "apply", reduced_in_float32)
    Builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    Builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
    Builder.get_bf16 = lambda self, value: narrow(self.get_fp32(value))
    _replace(Builder, "create_atomic_rmw", without_bfloat16)
    _replace(interpreter, "_patch_lang_tensor", _refuse_truth)
    _replace(interpreter, "_implicit_cvt", moved_apart)
    _replace(Builder, "create_atomic_rmw", watched("load", "store", pointers=1, mask=3))
    _replace(Builder, "create_atomic_cas", watched("load", "store", pointers=0))
    _replace(Builder, "create_masked_load", watched("load", pointers=0, mask=1))
    _replace(Builder, "create_masked_store", watched("store", pointers=0, mask=2))
    _replace(Builder, "create_descriptor_load", from_the_first_element("load"))
    _replace(Builder, "create_descriptor_store", from_the_first_element("store"))
    interpreter.FunctionRewriter.ast_transformer = _Rewriter()
    _replace(Builder, "set_grid_idx", _book_program)
    _replace(interpreter.GridExecutor, "__call__", _launch)
    _replace(interpreter, "_get_np_dtype", _cached_dtype)
    _replace(interpreter, "_patch_lang", _patch_once)
    _replace(interpreter.FunctionRewriter, "_compile_and_exec", _remove_names)
    Builder.flashlab = True


def _replace(owner, name, wrapper):
    """Replace a function of a class or module by a wrapper around it."""
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(wrapper(original)))


# truth values


def truth(data, frame):
    """Return the truth value of an array of one element, which the code of a frame uses.

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


def _refuse_truth(patch):
    """Refuse the truth value of a block, except in Triton's own code.

    Triton's load asks for that of ``other`` instead of `is not None`, so there it is True, as on a GPU. Unchanged, a
    block of the one element 0 would be taken for a missing ``other``.

    An index is taken from the one element of an array: Triton 3.6 converts the array itself, which numpy 2.5 refuses.
    """

    def run(tensor, scope):
        patch(tensor, scope)
        unchanged = tensor.__bool__

        def checked(self):
            frame = sys._getframe(1)
            if frame.f_globals.get("__name__", "").startswith("triton."):
                return frame.f_code.co_name == "_load_legacy" or unchanged(self)
            return truth(self.handle.data, frame)

        scope.set_attr(tensor, "__bool__", checked)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return run


# launches


def _launch(call):
    """Record the launch's name and tensors, and raise errors of this interpreter without Triton's around them."""

    def run(self, *args, **kwargs):
        with _one_at_a_time:
            return interpreted(self, *args, **kwargs)

    def interpreted(self, *args, **kwargs):
        launched.begin(self.fn.__name__, {**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        _languages.clear()
        try:
            return call(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            cause = error
            while cause.__cause__:
                cause = cause.__cause__
            if isinstance(cause, OutsideItsTensor):
                raise IndexError(f"{self.fn.__name__} goes {cause}") from None
            if isinstance(cause, RefusedInKernel):
                raise TypeError(str(cause)) from None
            if line := _line_of_user(cause, args):
                raise TypeError(f"{line}: {cause}") from None
            raise

    return run


def _line_of_user(error, args):
    """Return the last line of a user's mask or score function in the traceback of an error, or None."""
    files = {f.fn.__code__.co_filename for f in _functions(args) if not f.fn.__module__.startswith("flashlab.")}
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [f"{code.co_name}, line {line}" for code, line in frames if code.co_filename in files]
    return lines[-1] if lines else None


def _functions(x):
    """Return the Triton functions among the arguments of a launch."""
    if isinstance(x, (tuple, list)):
        return [f for part in x for f in _functions(part)]
    return [x] if isinstance(x, interpreter.InterpretedFunction) else []


class _Rewriter(interpreter.ASTTransformer):
    """Rewrite a kernel such that the variables of its loops are int32, not Python's numbers."""

    def visit_For(self, node):
        self.generic_visit(node)
        called = getattr(node.iter, "func", None)
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name == "range":  # not static_range: on a GPU, too, its numbers are constants
            to_tensor = ast.Attribute(ast.Name("interpreter_semantic", ast.Load()), "to_tensor", ast.Load())
            variables = ast.Call(ast.Name("map", ast.Load()), [to_tensor, node.iter], [])
            node.iter = ast.copy_location(
                variables, node.iter
            )  # figures follow line numbers: without this, the call has that of the loop's last line
        return node


def _cached_dtype(convert):
    """Look up the numpy type of a Triton type once. Triton builds a table of all types at each operation."""
    found = {}

    def run(dtype):
        name = dtype.scalar.name
        if name not in found:
            found[name] = convert(dtype)
        return found[name]

    return run


def _patch_once(patch):
    """Patch ``triton.language`` once per launch instead of at each call of one kernel by another."""

    def run(fn):
        languages = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if not languages or not languages <= _languages:
            _languages.update(languages)
            return patch(fn)

    return run


def _book_program(set_grid_idx):
    """Book the beginning of a program as an event."""

    def run(self, *program):
        set_grid_idx(self, *program)
        for memory, _ in bills.open:
            memory.book(Event("kernel", launched.kernel, program, 0))

    return run


def _remove_names(compile_and_exec):
    """Rewrite a kernel for the interpreter without leaving names in the kernel's module."""

    def run(self, tree):
        names = self.fn.__globals__
        before = {*names, "interpreter_semantic"}  # the rewritten kernel calls this one
        try:
            return compile_and_exec(self, tree)
        finally:
            for name in names.keys() - before:
                del names[name]

    return run
