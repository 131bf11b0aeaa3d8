"""Run work that may never end, or end everything, apart from the notebook: in a process that can be killed.

On Linux the process is a fork of the notebook's. It has whatever the notebook has (closures, kernels, modules), starts
at once, and nothing that it does comes back: what it patches, allocates, leaves running or takes down goes with it.
Only what the work yields returns, and what it printed. Where forking is not safe (macOS, Windows, a GPU in use), the
work runs in a thread, which is asked to stop and mostly does.

Patience counts seconds of computing, not of waiting: on a busy machine the work gets the same number of them.
"""

import builtins
import ctypes
import faulthandler
import gc
import io
import os
import pickle
import selectors
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field

import numpy as np

MEMORY = 4 * 2**30  # bytes that the work may allocate beyond what the notebook has
PRINTED = 2000  # characters kept of what is printed while one value is computed
ASLEEP = 5.0  # seconds without any computing after which work is thought to wait for ever, or more if patience is more
WALL = 20  # times its patience that work may take by the clock on the wall
BEAT = 0.05  # seconds between two looks at the work
ONE_AT_A_TIME = threading.Lock()  # for threads, which share standard output


@dataclass
class Run:
    """The values that work yielded, and how it ended."""

    values: list = field(default_factory=list)
    printed: list[str] = field(default_factory=lambda: [""])  # before each value, and after the last
    end: str = ""  # "" if it came to its end, "patience" if that ended first, or in words how its process ended
    seconds: float = 0.0  # of computing
    waited: float = 0.0  # seconds by the clock on the wall


def run(work: Callable[[], Iterator], patience: float, on_wait: Callable[[int], None] = lambda done: None) -> Run:
    """Run ``work()`` to its end, or until it has computed for ``patience`` seconds, and return what it yielded.

    The values must be picklable. ``on_wait(n)`` is called every now and then with the number of values so far. Whatever
    the work raises ends it and is told in ``Run.end``. KeyboardInterrupt ends the work and is raised.
    """
    with _interrupts_noted() as interrupted:
        return (_forked if forks() else _threaded)(work, patience, on_wait, interrupted)


def forks() -> bool:
    """Return whether work gets a process of its own here."""
    if sys.platform != "linux":
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()  # CUDA does not survive a fork


# Interrupts


@contextmanager
def _interrupts_noted():
    """Note Ctrl-C instead of raising KeyboardInterrupt at once; raise it at the end. Yield what says whether it came.

    Raised while a process is forked, or waited for, it would be lost (Python swallows what a hook of ``os.fork``
    raises) or leave that process behind.
    """
    handler, noted = signal.getsignal(signal.SIGINT), []
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: False  # here nobody is interrupted
        return
    signal.signal(signal.SIGINT, lambda *args: noted.append(args))
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(*noted[0])


# A process


def _forked(work, patience, on_wait, interrupted):
    answers, prints = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: see _child
        pid = os.fork()
    if pid == 0:
        _child(work, answers[1], prints[1])
    for end in (answers[1], prints[1]):
        os.close(end)
    result, done = Run(), False
    try:
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        done = _listen(pid, answers[0], prints[0], patience, result, on_wait, interrupted)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # with what it has started
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        for end in (answers[0], prints[0]):
            os.close(end)
    if not done and not result.end:
        result.end = _how(status)
    return result


def _child(work, answers, prints):
    """Be the forked process. It has one thread and does nothing that waits for the notebook's others."""
    status = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with the notebook
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.disable()  # whose report would go past the pipe
        gc.freeze()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in ((nothing, 0), (prints, 1), (prints, 2)):
            os.dup2(descriptor, place)
        sys.stdout = sys.stderr = open(1, "w", 1, encoding="utf-8", errors="replace", closefd=False)
        builtins.input = _no_input
        _limit_memory()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # the threads of the notebook's pool are not here
        with poisoned():
            for value in work():
                sys.stdout.flush()
                os.write(1, b"\0")
                _send(answers, value)
        _send(answers, None)
        status = 0
    except BaseException as error:
        with suppress(BaseException):
            os.write(1, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:PRINTED])
    finally:
        os._exit(status)


def _no_input(prompt=""):
    raise EOFError("nobody can answer input() during a check")


def _limit_memory():
    import resource

    with suppress(OSError, ValueError):
        with open("/proc/self/statm", encoding="ascii") as sizes:
            now = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _send(descriptor, value):
    data = pickle.dumps((value,) if value is not None else None)
    data = memoryview(struct.pack("<Q", len(data)) + data)
    while data:
        data = data[os.write(descriptor, data) :]


def _listen(pid, answers, prints, patience, result, on_wait, interrupted):
    """Gather what a process sends and prints until it ends, is interrupted or out of patience; True if it sent all."""
    clock, received, done = _clock_of(pid), bytearray(), False
    begun = moved = time.monotonic()  # moved: when it last computed anything worth the name
    used = 0.0
    with selectors.DefaultSelector() as selector:
        for descriptor in (answers, prints):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while answers in selector.get_map() and not interrupted():
            for key, _ in selector.select(BEAT):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                elif key.fd == prints:
                    _keep(result.printed, data)
                else:
                    received += data
                    done = _unpack(received, result.values)
                    if done:
                        selector.unregister(answers)
            now, result.seconds = time.monotonic(), clock()
            result.waited = now - begun
            if result.seconds - used > 0.01 * (now - moved):
                used, moved = result.seconds, now
            asleep, late = now - moved > max(patience, ASLEEP), result.waited > WALL * max(patience, ASLEEP)
            if not done and (result.seconds > patience or asleep or late):
                result.end = "patience"
                return False
            on_wait(len(result.values))
    with suppress(BlockingIOError):
        while data := os.read(prints, 1 << 16):
            _keep(result.printed, data)
    return done


def _clock_of(pid):
    """Return a function that tells how many seconds a process has computed."""
    clock, last = ~pid << 3 | 2, 0.0  # as clock_getcpuclockid makes it

    def seconds():
        nonlocal last
        with suppress(OSError):  # it has ended
            last = time.clock_gettime(clock)
        return last

    return seconds


def _unpack(received, values):
    """Move whole values from the bytes received so far; True once the last has come."""
    while len(received) >= 8 and len(received) >= 8 + (size := struct.unpack_from("<Q", received)[0]):
        packed = pickle.loads(received[8 : 8 + size])
        del received[: 8 + size]
        if packed is None:
            return True
        values.append(packed[0])
    return False


def _keep(printed, data):
    """Add what was printed to what is kept; a zero byte ends a value."""
    for at, part in enumerate(data.decode("utf-8", "replace").split("\0")):
        if at:
            printed.append("")
        printed[-1] = (printed[-1] + part)[: PRINTED + 1]


def _how(status):
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "killed" if number == signal.SIGKILL else f"signal {signal.Signals(number).name}"
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else f"exit status {code}"


# A thread


def _threaded(work, patience, on_wait, interrupted):
    """Run work in a thread. What is changed for all threads meanwhile is undone even where that thread never stops."""
    result, stop, printed = Run(), threading.Event(), io.StringIO()

    def go():
        try:
            for value in work():
                if stop.is_set():
                    return
                result.printed[-1] = printed.getvalue()[: PRINTED + 1]
                result.printed.append("")
                printed.truncate(printed.seek(0))
                result.values.append(value)
        except BaseException as error:
            if not stop.is_set():
                result.end = f"{type(error).__name__}: {error}"

    with ONE_AT_A_TIME:
        thread = threading.Thread(target=go, daemon=True)
        begun = time.monotonic()
        out, err = (_Apart(thread, printed, onward) for onward in (sys.stdout, sys.stderr))
        with poisoned(), redirect_stdout(out), redirect_stderr(err):
            thread.start()
            while thread.is_alive() and time.monotonic() - begun <= patience and not interrupted():
                thread.join(BEAT)
                on_wait(len(result.values))
            stop.set()
            if thread.is_alive():
                result.end = "patience"
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
                thread.join(1)  # most stop at once
    result.seconds = result.waited = time.monotonic() - begun
    return result


class _Apart(io.TextIOBase):
    """Keep what one thread prints; what the others print goes on to where it went."""

    def __init__(self, thread, kept, onward):
        self.thread, self.kept, self.onward = thread, kept, onward

    def write(self, text):
        return (self.kept if threading.current_thread() is self.thread else self.onward).write(text)

    def flush(self):
        self.onward.flush()


# Undefined memory


@contextmanager
def poisoned():
    """Let memory that was never written hold NaN: what np.empty and torch.empty give, and what a masked load skips."""
    torch, triton = sys.modules.get("torch"), sys.modules.get("triton.runtime.interpreter")
    patches = [(np, name, _full_of_nan) for name in ("empty", "empty_like")]
    if torch is not None:
        patches += [(torch, "empty", _full_of_nan), (torch, "empty_like", _full_of_nan)]
        patches += [(torch.Tensor, "new_empty", _full_of_nan)]
    if triton is not None:
        patches += [(triton.InterpreterBuilder, "create_masked_load", _load_or_nan)]
    originals = [getattr(owner, name) for owner, name, _ in patches]
    for (owner, name, patch), original in zip(patches, originals, strict=True):
        setattr(owner, name, patch(original))
    try:
        yield
    finally:
        for (owner, name, _), original in zip(patches, originals, strict=True):
            setattr(owner, name, original)


def _full_of_nan(make):
    def empty(*args, **kwargs):
        array = make(*args, **kwargs)
        if isinstance(array, np.ndarray):
            return _fill(array) if array.dtype.kind in "fc" else array
        return array.fill_(np.nan) if array.dtype.is_floating_point else array

    return empty


def _fill(array):
    array.fill(np.nan)
    return array


def _load_or_nan(load):
    """Make a masked load read NaN where it is masked and has no ``other``: a GPU reads anything there."""
    triton = sys.modules["triton.runtime.interpreter"]

    def run(self, pointers, mask, other, *args, **kwargs):
        kind = pointers.get_element_ty()
        if other is None and kind.is_floating():
            dtype = triton._get_np_dtype(kind)  # bfloat16 is kept as the bits of a uint16
            nothing = np.full(pointers.data.shape, 0x7FC0 if dtype == np.uint16 else np.nan, dtype)
            other = triton.TensorHandle(nothing, kind)
        return load(self, pointers, mask, other, *args, **kwargs)

    return run
