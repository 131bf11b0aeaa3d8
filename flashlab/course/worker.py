"""Run work that may never end, or end everything, apart from the notebook: in a process that can be killed.

On Linux the process is a fork of the notebook's. It has whatever the notebook has (closures, kernels, modules) and
starts at once. What it patches, allocates or takes down ends with it, and so does every process that it started, in any
session. The notebook receives the values that the work yields, as ``records``, and what it printed. The work has
finished only if a last record says so, whatever the exit status.

Where forking is not safe (macOS, Windows, a GPU in use), the work runs in a thread, which is asked to stop and mostly
does. Its patches of modules and the processes that it started remain.

Patience counts seconds of computing, not of waiting: on a busy machine the work gets the same number of them.
"""

import builtins
import ctypes
import faulthandler
import gc
import io
import os
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flashlab.course import records

MEMORY = 4 * 2**30  # bytes that the work may allocate beyond what the notebook has
PRINTED = 2000  # characters kept of what is printed while one value is computed
ASLEEP = 5.0  # seconds without any computing after which work is thought to wait for ever, or more if patience is more
WALL = 20  # times its patience that work may take by the clock on the wall
BEAT = 0.05  # seconds between two looks at the work
ONE_AT_A_TIME = threading.Lock()  # threads share standard output, and processes the children of the notebook


@dataclass
class Run:
    """The values that work yielded, and how it ended."""

    values: list = field(default_factory=list)
    printed: list[str] = field(default_factory=lambda: [""])  # before each value, and after the last
    end: str | None = None  # "" if it finished, "patience" if that ended first, or in words how its process ended
    seconds: float = 0.0  # of computing
    waited: float = 0.0  # seconds by the clock on the wall


def run(work: Callable[[], Iterator], patience: float, on_wait: Callable[[int], None] = lambda done: None) -> Run:
    """Run ``work()`` to its end, or until it has computed for ``patience`` seconds, and return what it yielded.

    ``records`` must be able to send the values. ``on_wait(n)`` is called every now and then with the number of values
    so far. An exception ends the work; ``Run.end`` names it. KeyboardInterrupt ends the work and is raised.
    """
    with _interrupts_noted() as interrupted, ONE_AT_A_TIME:
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
    answers, prints, result = os.pipe(), os.pipe(), Run()
    with _orphans_ended():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: see _child
            pid = os.fork()
        if pid == 0:
            _child(work, answers[1], prints[1])
        for end in (answers[1], prints[1]):
            os.close(end)
        try:
            with suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, pid)
            result.end = _listen(pid, answers[0], prints[0], patience, result, on_wait, interrupted)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            for end in (answers[0], prints[0]):
                os.close(end)
    if result.end is None:
        result.end = _how(status)
    return result


@contextmanager
def _orphans_ended():
    """Become the parent of all processes that work leaves behind, in any session, and kill them at the end."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(37, ctypes.byref(before))  # PR_GET_CHILD_SUBREAPER
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        with suppress(ChildProcessError, PermissionError):  # no child at all; a process of another user
            _end_orphans()
        prctl(36, before)


def _end_orphans():
    """Kill the children of this process that inherited the memory limit of work, until none is left."""
    orphans = [0]
    while orphans:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises ChildProcessError if there are none
        orphans = [pid for pid in _children() if _memory_limit(pid) != _memory_limit(0)]
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            os.waitpid(pid, 0)


def _children():
    """Return the ids of the children of this process."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            _, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid():
                found.append(int(file.parent.name))
    return found


def _memory_limit(pid):
    import resource

    return resource.prlimit(pid, resource.RLIMIT_AS)


def _child(work, answers, prints):
    """Be the forked process. It has one thread and does nothing that waits for the notebook's others."""
    status = 1
    try:
        ONE_AT_A_TIME.release()
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
                _send(answers, ("value", value))
        _send(answers, ("finished",))
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
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _send(descriptor, record):
    data = memoryview(records.dump(record))
    while data:
        data = data[os.write(descriptor, data) :]


def _listen(pid, answers, prints, patience, result, on_wait, interrupted):
    """Gather what a process sends and prints. Return "" once it has sent that it finished, "patience" if that ended
    first, and None if the process ended first or is interrupted."""
    clock, received, finished = _clock_of(pid), bytearray(), False
    begun = moved = time.monotonic()  # moved: when it last computed anything worth the name
    used = 0.0
    with selectors.DefaultSelector() as selector:
        for descriptor in (answers, prints):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while answers in selector.get_map() and not interrupted():
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ready = selector.select(BEAT)
            if ended and answers not in (key.fd for key, _ in ready):  # a process that it started holds the pipe open
                break
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                elif key.fd == prints:
                    _keep(result.printed, data)
                else:
                    received += data
                    finished = _read(received, result.values)
                    if finished:
                        selector.unregister(answers)
            now, result.seconds = time.monotonic(), clock()
            result.waited = now - begun
            if result.seconds - used > 0.01 * (now - moved):
                used, moved = result.seconds, now
            asleep, late = now - moved > max(patience, ASLEEP), result.waited > WALL * max(patience, ASLEEP)
            if not finished and (result.seconds > patience or asleep or late):
                return "patience"
            on_wait(len(result.values))
    with suppress(BlockingIOError):
        while data := os.read(prints, 1 << 16):
            _keep(result.printed, data)
    return "" if finished else None


def _clock_of(pid):
    """Return a function that tells how many seconds a process has computed."""
    clock, last = ~pid << 3 | 2, 0.0  # as clock_getcpuclockid makes it

    def seconds():
        nonlocal last
        with suppress(OSError):  # it has ended
            last = time.clock_gettime(clock)
        return last

    return seconds


def _read(received, values):
    """Move the values of whole lines out of the bytes received so far. Return True once the work has finished."""
    *lines, received[:] = received.split(b"\n")
    for line in lines:
        kind, *value = records.load(bytes(line))
        if kind == "finished":
            return True
        values.extend(value)
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
    return f"exit status {os.waitstatus_to_exitcode(status)}"


# A thread


def _threaded(work, patience, on_wait, interrupted):
    """Run work in a thread. What is changed for all threads meanwhile is undone even where that thread never stops."""
    result, stop, printed = Run(end="patience"), threading.Event(), io.StringIO()

    def go():
        try:
            for value in work():
                if stop.is_set():
                    return
                result.printed[-1] = printed.getvalue()[: PRINTED + 1]
                result.printed.append("")
                printed.truncate(printed.seek(0))
                result.values.append(value)
            result.end = ""
        except BaseException as error:
            if not stop.is_set():
                result.end = f"{type(error).__name__}: {error}"

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

    def close(self):
        """Leave ``onward`` alone: it may be closed when Python deletes this object, which would flush it."""


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
