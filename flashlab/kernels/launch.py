"""Launch a kernel with little work on the host.

Triton inspects every argument of every launch to find the compiled kernel that fits, and then encodes the descriptors
for the copy engine. Both take longer than a small kernel runs. The fit depends on everything but the contents of the
tensors, and the encoding of a descriptor on layout and address alone, so this module remembers them.
"""

import contextlib
import copy
import functools
from types import SimpleNamespace
from typing import NamedTuple

import torch
import triton

FORGET_AFTER = 4096  # launches of different shapes
PLACES = 512  # streams and addresses for which a launch is kept ready, such as those of each layer of a model
KNOWN = triton.__version__.startswith(("3.6.", "3.7."))  # the versions whose launchers ``Repeat`` knows
HERE = contextlib.nullcontext()  # on the current device
_compiled = {}  # all that a launch depends on -> the compiled kernel
_repeats = {}  # all that a launch by ``again`` depends on, but for addresses -> ``Repeats``, or None after the first


def launch(kernel, grid, tensors, numbers, *, warps, stages=1, early=False):
    """Run a grid (x, y, z) of programs. The kernel's arguments are tensors, or descriptors of them, and then numbers.

    numbers: sizes, strides, constexprs, and what a problem tells, which may hold more tensors. A tensor that a kernel
    can do without may be None. early: launch it before the kernel before it has ended, for which it waits by itself
    (compute capability 9.0). Returns the compiled kernel and its arguments, for ``again``; None in the interpreter.
    """
    bases = tuple(getattr(x, "base", x) for x in tensors)  # the tensors that descriptors describe
    device = bases[0].device
    if device.type != "cuda":
        if hasattr(kernel, "is_gluon") and kernel.is_gluon():  # Triton interprets no Gluon
            from flashlab.kernels.gluon_interpreter import interpret  # late: few launches need it

            interpret(kernel, grid, tensors, numbers)
        else:
            kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages)
        return None
    key = (kernel, device, warps, stages, early, _fit(bases), _fit(numbers))
    compiled = _compiled.get(key)
    with _current(device):
        if compiled is None:
            options = {"launch_pdl": True} if early else {}
            compiled = kernel[grid](*tensors, *numbers, num_warps=warps, num_stages=stages, **options)
            remember(_compiled, key, compiled)
        else:
            compiled[grid](*tensors, *numbers)
    return compiled, grid, tensors, numbers


def again(start, tensors, made, *options, when=True, known=None):
    """Call ``start(*tensors, *made, *options)``; if that was done twice with tensors like these, repeat its launches.

    start: a function that launches kernels, and returns a list of what ``launch`` does for each, or that of one. They
    take these tensors, and may take parts of ``made``, descriptors of either, and tensors that ``start`` keeps. A
    tensor may be None. made: tensors that are new in this call. when: whether all else, the layouts of ``made`` too,
    follows from the layouts of ``tensors`` and the options. known: a dict for launches with these options alone, where
    ``_repeats`` would keep too much of them.

    Returns the launches as ``Known``, or None if they cannot be repeated. A CUDA graph outlives what is remembered
    here, so what it records is always started.
    """
    if not (tensors[0].is_cuda and when and can_repeat()):
        start(*tensors, *made, *options)
        return None
    device = tensors[0].device
    at, like = [], []  # addresses, layouts
    for x in tensors:
        address = 0 if x is None else x.data_ptr()
        at.append(address)
        like.append(None if x is None else (x.shape, x.stride(), x.dtype, address % 16))
    key = (start, device, options, *like) if known is None else (start, device, *like)
    known = _repeats if known is None else known
    repeats = known.get(key)
    at = *at, *addresses(made)
    if repeats is not None:
        repeats(at, device)
    else:  # made the second time: most launches of a text that grows come once
        tensors = [x if x is None else x.detach() for x in tensors]  # each an object of its own: ``Repeat`` tells by it
        launched = start(*tensors, *made, *options)
        repeats = _repeats_of(launched, tensors, made) if key in known else None
        remember(known, key, repeats)
    return repeats and Known(repeats, at, [x.nbytes for x in made])


class Known(NamedTuple):
    """Launches that can be repeated."""

    repeat: object  # ``Repeats``
    at: tuple[int, ...]  # addresses of the tensors that were given, then of those that were made
    sizes: list[int]  # bytes of each tensor that was made


def can_repeat():
    """Return whether launches may be repeated now."""
    return KNOWN and not (_watched() or torch.cuda.is_current_stream_capturing())


def addresses(tensors):
    """Return where tensors begin; 0 for None."""
    return tuple([0 if x is None else x.data_ptr() for x in tensors])  # a list takes less time than a generator


def _repeats_of(launched, tensors, made):
    """Return the ``Repeats`` of launches, or None if not all can be repeated.

    A kernel may need memory that Triton allocates, and of a tensor that is not taken perhaps a copy is.
    """
    launched = launched if isinstance(launched, list) else [launched]
    if any(kernel.metadata.global_scratch_size or kernel.metadata.profile_scratch_size for kernel, *_ in launched):
        return None
    repeats = [Repeat(*one, tensors, made) for one in launched]
    taken = {whose for repeat in repeats for _, whose, _, _ in repeat.blanks}
    return Repeats(repeats) if len(taken) == sum(x is not None for x in (*tensors, *made)) else None


class Repeats:
    """Launches that follow each other; what they take is kept ready for addresses that came before."""

    def __init__(self, launches):
        self.launches = launches  # ``Repeat``
        self.ready = {}  # a stream and addresses -> for each launch, a function and what it takes

    def __call__(self, at, device):
        """Launch with tensors at these addresses, a tuple in the order of ``Known``."""
        with _current(device):
            key = triton.runtime.driver.active.get_current_stream(device.index), at
            ready = self.ready.get(key)  # often: a step of a training allocates what the step before did
            if ready is None:
                ready = [one.on(*key) for one in self.launches]
                remember(self.ready, key, ready, PLACES)
            for run, arguments in ready:
                run(*arguments)


class Repeat:
    """A launch that waits for the addresses of the tensors, and of those that were made for it."""

    def __init__(self, kernel, grid, taken, numbers, tensors, made):
        self.grid, (self.run, self.after_stream) = grid, _launcher(kernel)
        self.kept = []  # tensors of the launch itself, so that their addresses stay
        encodings = iter(kernel.metadata.tensordesc_meta or ())
        given = []
        for x in taken:
            described = hasattr(x, "base")
            base, form = (x.base, Form(x, next(encodings))) if described else (x, None)
            source = _source(base, tensors, made)
            if source is None:
                self.kept.append(base)
                address = 0 if base is None else base.data_ptr()
                given.append(address if form is None else form[address])
            else:
                given.append(Blank(*source, form))
            given += [*x.shape, *x.strides] if described else []
        self.arguments = [x for _, x in _leaves(_kinds(kernel), (*given, *numbers))]
        self.blanks = [(place, *x) for place, x in enumerate(self.arguments) if isinstance(x, Blank)]

    def on(self, stream, addresses):
        """Return a function that launches with tensors at these addresses, and its arguments."""
        arguments = self.arguments.copy()
        for place, whose, offset, form in self.blanks:
            address = addresses[whose] + offset
            arguments[place] = address if form is None else form[address]
        return self.run, (*self.grid, stream, *self.after_stream(arguments))


class Blank(NamedTuple):
    """An argument that waits for the address of a tensor."""

    whose: int
    offset: int  # bytes past the address
    form: object  # a ``Form`` if the tensor is described, or None


def _source(x, tensors, made):
    """Return whose address x waits for, and how many bytes past it x begins. None: x belongs to the launch itself.

    x is one of the tensors, or a part of one that was made, and those are told by number, the former first.
    """
    for place, tensor in enumerate(tensors):
        if x is tensor and x is not None:
            return place, 0
    for place, whole in enumerate(made, len(tensors)):
        offset = -1 if x is None else x.data_ptr() - whole.data_ptr()
        if 0 <= offset < whole.nbytes:
            return place, offset
    return None


def _kinds(kernel):
    """Return what a compiled kernel takes, with descriptors as the copy engine reads them: encoded, shape, strides."""
    encodings = iter(kernel.metadata.tensordesc_meta or ())
    kinds = []
    for kind in kernel.src.signature.values():
        if isinstance(kind, str) and kind.startswith("tensordesc"):
            rank = len(next(encodings)["block_size"])
            kinds += ["nvTmaDesc", *["i32"] * rank, *["i64"] * rank]
        else:
            kinds.append(kind)
    return kinds


def _leaves(kinds, arguments):
    """Yield each kind with its argument, those in tuples too, except for what the compiler already knows."""
    for kind, x in zip(kinds, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _leaves(kind, x)
        elif kind != "constexpr":
            yield kind, x


@functools.cache
def _launcher(kernel):
    """Return the function that Triton has compiled to launch a kernel, and what it takes for given arguments.

    It takes a grid, a stream, and then what the second function makes of ``_leaves`` of the arguments.
    """
    kinds = _kinds(kernel)
    source = SimpleNamespace(signature=dict(enumerate(kind for kind, _ in _leaves(kinds, kinds))))
    launcher = triton.runtime.driver.active.launcher_cls(source, kernel.metadata._replace(tensordesc_meta=None))
    run, known = launcher.launch, (kernel.function, launcher.launch_cooperative_grid, launcher.launch_pdl)
    metadata, no_hooks, no_scratch = (kernel.packed_metadata, None), (None, None), (None, None)
    if hasattr(launcher, "kernel_signature"):  # Triton 3.7
        known += *metadata, *no_hooks, *no_scratch, launcher.arg_annotations, launcher.kernel_signature
        return run, lambda arguments: (*known, arguments)
    known += *no_scratch, *metadata, *no_hooks
    return run, lambda arguments: (*known, *arguments)


class Form(dict):
    """The descriptors of one layout as the copy engine reads them, by address: one that is missing is encoded."""

    def __init__(self, descriptor, encoding):
        self.descriptor, self.encoding = copy.copy(descriptor), encoding
        self.descriptor.base = None  # so that nothing keeps the tensor

    def __missing__(self, address):
        from triton.backends.nvidia.driver import make_tensordesc_arg  # late: only an NVIDIA GPU has it

        descriptor = copy.copy(self.descriptor)
        descriptor.base = SimpleNamespace(data_ptr=lambda: address)
        remember(self, address, make_tensordesc_arg(descriptor, self.encoding)[0])
        return self[address]


def _watched():
    """Return whether a profiler wants to hear of each launch, which Triton's own way of launching tells it."""
    enter, leave = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def remember(known, key, value, most=None):
    """Keep a value, and forget all others if there are ``most`` of them, or ``FORGET_AFTER``."""
    if len(known) >= (most or FORGET_AFTER):
        known.clear()
    known[key] = value


def _current(device):
    """Return the context in which torch and Triton launch on this device."""
    return HERE if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def _fit(x):
    """Return x with each tensor replaced by what the fit depends on: its dtype, and whether it is aligned."""
    if isinstance(x, tuple):
        return tuple(map(_fit, x))
    return (x.dtype, x.data_ptr() % 16 == 0) if isinstance(x, torch.Tensor) else x
