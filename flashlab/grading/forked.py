"""Run work that may never end, or crash Python, in a process of its own that can be killed.

On Linux the process is a fork of the notebook's. It has all objects of the notebook (closures, kernels, modules) and
starts at once. Its patches and allocations end with it, and so does every process that it started, in any session.
Processes that the notebook started before continue. The notebook receives the values that the work yields, as
``records``, and what it printed. The work has finished only if a last record says so, whatever the exit status.

Where forking is not safe (macOS, Windows, a GPU in use), the work runs ``in_place``.

Patience counts the seconds that the process computes, not those that it waits: on a busy machine the work gets as many
of them as on an idle one. ``in_place`` counts seconds by the clock on the wall.
"""

import builtins
import ctypes
import faulthandler
import gc
import os
import selectors
import signal
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flashlab.grading import in_place, records
from flashlab.grading.poison import poisoned
from flashlab.grading.records import PRINTED, Run

MEMORY = 4 * 2**30  # bytes that the work may allocate beyond what the notebook has
ASLEEP = 5.0  # seconds without computing after which work counts as stuck; its patience, if that is longer
WALL = 20  # multiple of its patience that work may take by the clock on the wall
ONE_AT_A_TIME = threading.Lock()  # threads share standard output and the child processes


def run(work: Callable[[], Iterator], patience: float, on_wait: Callable[[int], None] = lambda done: None) -> Run:
    """Run ``work()`` until it ends or has computed for ``patience`` seconds, and return the values that it yielded.

    ``records`` must be able to send the values. ``on_wait(n)`` is called every now and then with the number of values
    so far. An exception ends the work: ``Run.end`` names it if the work runs in place, otherwise the last output does.
    KeyboardInterrupt ends the work and is raised.
    """
    with _interrupts_noted() as interrupted, ONE_AT_A_TIME:
        return (_forked if forks() else in_place.run)(work, patience, on_wait, interrupted)


def forks() -> bool:
    """Return whether work gets a process of its own here."""
    if sys.platform != "linux":
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()  # CUDA does not survive a fork


# Interrupts


@contextmanager
def _interrupts_noted():
    """Record Ctrl-C, and raise KeyboardInterrupt only at the end. Yield a function that returns whether Ctrl-C came.

    During a fork the exception would be lost (Python swallows what a hook of ``os.fork`` raises). During a wait for the
    forked process, it would leave that process behind.
    """
    handler, interrupts = signal.getsignal(signal.SIGINT), []
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: False  # no Ctrl-C arrives here
        return
    signal.signal(signal.SIGINT, lambda *args: interrupts.append(args))
    try:
        yield lambda: bool(interrupts)
    finally:
        signal.signal(signal.SIGINT, handler)
        if interrupts:
            handler(*interrupts[0])


# A process


def _forked(work, patience, on_wait, interrupted):
    answers, prints, result, memory_kills = os.pipe(), os.pipe(), Run(), _memory_kills()
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
        result.end = _how(status, _memory_kills() > memory_kills)
    return result


@contextmanager
def _orphans_ended():
    """Become the parent of all processes that work leaves behind, in any session, and kill them at the end."""
    earlier = _descendants() if _has_children() else set()
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(37, ctypes.byref(before))  # PR_GET_CHILD_SUBREAPER
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        with suppress(PermissionError):  # a process of another user
            _end_orphans(earlier)
        prctl(36, before)


def _end_orphans(earlier):
    """Kill this process's new children that inherited the memory limit of work, until none is left.

    earlier: the descendants of this process before the work, which continue. So does a process that another thread has
    started since then: it has the memory limit of this process.
    """
    orphans = [0]
    while orphans and _has_children():
        new = [pid for pid in _children()[os.getpid()] if pid not in earlier]
        orphans = [pid for pid in new if _memory_limit(pid) != _memory_limit(0)]
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            os.waitpid(pid, 0)


def _has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants():
    """Return the ids of the processes that this one and its descendants have started."""
    children, found = _children(), [os.getpid()]
    for pid in found:
        found += children[pid]
    return set(found[1:])


def _children():
    """Return the ids of the children of each process."""
    children = defaultdict(list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            _, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            children[int(parent)].append(int(file.parent.name))
    return children


def _memory_limit(pid):
    import resource

    return resource.prlimit(pid, resource.RLIMIT_AS)


def _child(work, answers, prints):
    """Run the forked process. It has one thread, and never waits for the notebook's other threads."""
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
        sys.stdout = sys.stderr = open(1, "w", 1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
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
    """Collect the values and the output of a process.

    Return "" once the process has sent that it finished, "patience" if that was over first, and None if the process
    ended first or was interrupted.
    """
    clock, received, finished = _clock_of(pid), bytearray(), False
    start = last_busy = time.monotonic()  # last_busy: when it last computed more than 1 % of the time
    used = 0.0
    with selectors.DefaultSelector() as selector:
        for descriptor in (answers, prints):
            os.set_blocking(descriptor, False)
            selector.register(descriptor, selectors.EVENT_READ)
        while answers in selector.get_map() and not interrupted():
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ready = selector.select(in_place.BEAT)
            if ended and answers not in (key.fd for key, _ in ready):  # a process of the work holds the pipe open
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
            result.waited = now - start
            if result.seconds - used > 0.01 * (now - last_busy):
                used, last_busy = result.seconds, now
            asleep, late = now - last_busy > max(patience, ASLEEP), result.waited > WALL * max(patience, ASLEEP)
            if not finished and (result.seconds > patience or asleep or late):
                return "patience"
            on_wait(len(result.values))
    with suppress(BlockingIOError):
        while data := os.read(prints, 1 << 16):
            _keep(result.printed, data)
    return "" if finished else None


def _clock_of(pid):
    """Return a function that returns the seconds that a process has computed."""
    clock, last = ~pid << 3 | 2, 0.0  # the id that clock_getcpuclockid returns

    def seconds():
        nonlocal last
        with suppress(OSError):  # it has ended
            last = time.clock_gettime(clock)
        return last

    return seconds


def _read(received, values):
    """Move the values of complete lines from the received bytes to ``values``. Return True if the work has finished."""
    *lines, received[:] = received.split(b"\n")
    for line in lines:
        kind, *value = records.load(bytes(line))
        if kind == "finished":
            return True
        values.extend(value)
    return False


def _keep(printed, data):
    """Append output to ``printed``; a zero byte ends the output of a value."""
    for at, part in enumerate(data.decode("utf-8", "replace").split("\0")):
        if at:
            printed.append("")
        printed[-1] = (printed[-1] + part)[: PRINTED + 1]


def _memory_kills():
    """Return the number of processes that the machine has killed for lack of memory; 0 if it does not count them."""
    with suppress(OSError):
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


def _how(status, ran_out_of_memory):
    """Return in words how a process ended without finishing its work."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:  # which does not name its sender
            return "memory" if ran_out_of_memory else "killed"
        return f"signal {signal.Signals(number).name}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"
