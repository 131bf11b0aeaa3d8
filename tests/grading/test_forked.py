"""The verdict of a check is true on a busy machine, too, and the check leaves no process, thread or file open."""

import io
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from flashlab.grading import forked, in_place, poison, watch
from tests.tools.processes import children

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("flashlab.kernels")
tl, triton = kernels.tl, kernels.triton

HANGS = 600.0  # seconds of patience that only work that hangs exceeds

# Check right answers after wrong ones, with some patience; print false verdicts, and processes and threads that remain.
LEARNER = """
import contextlib, io, os, sys, threading
from pathlib import Path
import numpy as np
from flashlab.course import check as desk, progress
from flashlab.course.registry import find
from tests.tools.copied import copied

name, patience, times = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
desk.PATIENCE = patience
progress.FILE = Path(sys.argv[4])
threads = set(threading.enumerate())
exercise = find(name)
wrong = [mistake.function(exercise.reference) for mistake in exercise.mistakes]
marks = ""
for at in range(times):
    for attempt, right in ((wrong[at % len(wrong)], False), (copied(exercise.reference), True)):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            desk.check(name, attempt)
        text = out.getvalue().split(chr(13))[-1]
        mark = text[0]
        marks += mark
        if mark == ("✗" if right else "✓") or "could not be judged" in text:
            print("FALSE:", text)
left = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
if left or set(threading.enumerate()) - threads:
    print("LEFT:", left, set(threading.enumerate()) - threads)
print("marks", marks)
"""


def learners(folder, count, times, patience):
    """Run several learners at once, and yield the patience, the exit status and the output of each."""
    names = ["first_triton_kernel.add", "triton_forward.update", "online_softmax.merge", "triton_backward.delta"]
    command = [sys.executable, "-c", LEARNER]
    processes = [
        subprocess.Popen(
            [*command, names[at % 4], str(patience[at % len(patience)]), str(times), str(folder / "progress.json")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for at in range(count)
    ]  # fmt: skip
    for at, process in enumerate(processes):
        out, _ = process.communicate()
        yield patience[at % len(patience)], process.returncode, out


def assert_true(outcomes):
    for patience, code, out in outcomes:
        assert code == 0 and "FALSE" not in out and "LEFT" not in out, out
        marks = out.split("marks ")[1].strip()
        assert set(marks) <= set("✓✗" if patience == HANGS else "✓✗○"), out


@pytest.mark.exhaustive
@pytest.mark.skipif(not forked.forks(), reason="no process of its own here")
def test_right_after_wrong_is_right_on_a_busy_machine(tmp_path):
    assert_true(learners(tmp_path, 2, 2, [HANGS]))


@pytest.mark.exhaustive
@pytest.mark.skipif(not forked.forks(), reason="no process of its own here")
def test_twelve_learners_on_one_machine(tmp_path):
    """156 right answers, each after a wrong one, most with little patience: the first version failed at this load."""
    assert_true(learners(tmp_path, 12, 13, [0.1, 1, 8, HANGS]))


def test_work_sends_what_it_yields_and_what_it_printed():
    def work():
        print("before")
        yield 1
        yield np.arange(3)
        print("after")

    run = forked.run(work, HANGS)
    assert run.end == "" and run.values[0] == 1 and np.array_equal(run.values[1], [0, 1, 2])
    assert [text.strip() for text in run.printed] == ["before", "", "after"]


def test_no_side_effect_of_work_reaches_the_parent():
    numbers = []

    def work():
        numbers.append(1)
        os.environ["FLASHLAB_TEST"] = np.add = "changed"
        yield len(numbers)

    assert forked.run(work, HANGS).values == [1] and numbers == [] and np.add(1, 1) == 2
    assert "FLASHLAB_TEST" not in os.environ


@pytest.mark.skipif(not forked.forks(), reason="no process of its own here")
def test_patience_ends_after_seconds_of_computing(monkeypatch):
    def endless():
        yield 1
        while True:
            pass

    monkeypatch.setattr(forked, "ASLEEP", HANGS)
    run = forked.run(endless, 0.01)
    assert run.end == "patience" and run.seconds > 0.01


@pytest.mark.skipif(not forked.forks(), reason="no process of its own here")
def test_patience_ends_for_work_that_computes_nothing(monkeypatch):
    monkeypatch.setattr(forked, "_clock_of", lambda pid: lambda: 0.0)
    monkeypatch.setattr(forked, "ASLEEP", 0.001)
    monkeypatch.setattr(forked, "WALL", math.inf)
    assert forked.run(lambda: iter([time.sleep(600)]), 0).end == "patience"


def test_an_error_ends_work_and_is_printed():
    def work():
        yield 1
        raise ValueError("so")

    run = forked.run(work, HANGS)
    assert run.values == [1] and run.end == "exit status 1" and "ValueError: so" in run.printed[-1]


def test_no_descriptor_is_left_open():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        forked.run(lambda: iter([1]), HANGS)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


HOOKS = []  # called in the parent at the end of each fork
os.register_at_fork(after_in_parent=lambda: [hook() for hook in HOOKS])


@pytest.mark.skipif(not forked.forks(), reason="no process of its own here")
def test_an_interrupt_while_a_process_is_forked_is_not_lost():
    """Python ignores an exception in a hook of os.fork, so KeyboardInterrupt must not be raised there."""
    before = children()
    HOOKS.append(lambda: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            forked.run(lambda: iter([time.sleep(600)]), HANGS)
    finally:
        HOOKS.clear()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert children() == before


@pytest.mark.exhaustive
@pytest.mark.skipif(not forked.forks(), reason="no process of its own here")
@pytest.mark.parametrize("moment", np.linspace(0, 0.08, 41))
def test_an_interrupt_at_any_moment_ends_the_work(moment):
    """The signal comes from outside, as Ctrl-C does: before, while and after the process is forked."""
    command = [sys.executable, "-c", f"import os, time; input(); time.sleep({moment}); os.kill({os.getpid()}, 2)"]
    before = children()
    sender = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    with pytest.raises(KeyboardInterrupt):
        sender.stdin.write("now\n")
        sender.stdin.flush()
        forked.run(lambda: iter([time.sleep(600)]), HANGS)
    sender.communicate()
    assert children() == before


def test_a_thread_takes_the_place_of_a_process(monkeypatch):
    monkeypatch.setattr(forked, "forks", lambda: False)

    def work():
        print("words")
        yield np.empty(2)

    out = sys.stdout
    run = forked.run(work, HANGS)
    assert run.end == "" and np.isnan(run.values[0]).all() and run.printed[0] == "words\n" and sys.stdout is out

    arrived = threading.Event()
    monkeypatch.setattr(in_place, "time", SimpleNamespace(monotonic=lambda: math.inf if arrived.is_set() else 0.0))

    def endless():
        yield 1
        arrived.set()
        while True:
            pass

    run = forked.run(endless, HANGS)
    assert run.values == [1] and run.end == "patience"


def test_the_stream_of_a_thread_does_not_flush_the_notebooks_stream_when_it_is_deleted():
    """The notebook's stream may be closed by then. Since Python 3.13, the error of such a flush is printed."""
    onward, flushed = io.StringIO(), []
    onward.flush = lambda: flushed.append(True)
    apart = in_place._Apart(threading.current_thread(), io.StringIO(), onward)
    apart.flush()
    assert flushed == [True]
    del apart
    assert flushed == [True]


@triton.jit
def copy(x, y, N, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < N))


def test_memory_that_was_never_written_is_read_as_nan():
    if not kernels.INTERPRETED:
        pytest.skip("a compiled kernel cannot be watched")
    before = torch.empty, np.empty, triton.runtime.interpreter.InterpreterBuilder.create_masked_load

    with poison.poisoned():
        y = torch.empty(4)
        assert y.isnan().all() and np.isnan(np.empty(3)).all()
        assert torch.empty(2, dtype=torch.int32).dtype == torch.int32
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            y = torch.zeros(4, dtype=dtype)
            copy[(1,)](torch.ones(4, dtype=dtype), y, 3, 4)
            assert y[:3].tolist() == [1, 1, 1] and y[3].isnan()
    assert before == (torch.empty, np.empty, triton.runtime.interpreter.InterpreterBuilder.create_masked_load)


def test_reads_are_counted_by_name_and_by_tile():
    reads = watch.Reads()
    K, V = reads.watch("K", np.ones((6, 4))), reads.watch("V", np.ones((6, 2)))
    for j in range(0, 6, 3):
        K[j : j + 3].T.sum()
        np.multiply(V[j : j + 3], V[j : j + 3])
    assert (reads.largest("K"), reads.loaded("K")) == (12, 24)
    assert (reads.largest("V"), reads.loaded("V")) == (6, 12)
    assert type(K @ np.ones((4, 1))) is np.ndarray and reads.largest("K") == 24
    with reads.through_copies():
        for convert in (np.asarray, np.array, np.ascontiguousarray):
            before = reads.loaded("V")
            assert convert(V, np.float32).dtype == np.float32 and convert([1, 2]).sum() == 3
            assert reads.loaded("V") == before and (convert(V)[:2] + 1 == 2).all() and reads.loaded("V") == before + 4
    assert type(np.asarray(V)) is np.ndarray
    assert reads.largest("Q") == reads.loaded("Q") == 0
