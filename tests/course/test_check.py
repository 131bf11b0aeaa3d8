"""A check survives every attempt, and says in words what is wrong."""

import contextlib
import ctypes
import functools
import inspect
import io
import itertools
import math
import multiprocessing
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import flashlab.course.check
from flashlab.course import card, progress
from flashlab.course.check import check, edited, hint, overview, solution
from flashlab.course.lessons import LESSONS, duration
from flashlab.course.registry import every, find
from flashlab.grading import forked as runner
from flashlab.grading import in_place, mistakes, outcomes, records, verdict
from flashlab.grading.exercise import Broken, Case, Exercise, Mistake
from flashlab.reference import online_softmax
from flashlab.reference.online_softmax import State
from tests.tools.long import long
from tests.tools.processes import children

HANGS = 600.0  # seconds that end a hang
forked = pytest.mark.skipif(not runner.forks(), reason="no process of its own here")


def printed(capsys, attempt, name="online_softmax.merge"):
    check(name, attempt)
    return capsys.readouterr().out


def alive():
    """Return the running processes that this one has started, and its threads."""
    return set(children()), set(threading.enumerate())


def assert_nothing_is_left(before):
    """Wait for the end of new threads, which may end after their check. A process must have ended with its check."""
    for thread in set(threading.enumerate()) - before[1]:
        thread.join(HANGS)
    now = alive()
    assert now[0] <= before[0] and now[1] <= before[1]


def merge(a, b):
    return online_softmax.merge(a, b)


def stub(a, b):
    raise NotImplementedError


def mutating(a, b):
    a.l[:] = 0
    return merge(a, b)


def printing(a, b):
    print("noise")
    return merge(a, b)


def nan(a, b):
    return State(*(np.full_like(part, np.nan) for part in a))


def leaving(a, b):
    raise SystemExit("goodbye")


def recursing(a, b):
    return recursing(a, b)


def patching(a, b):
    np.abs = np.allclose = np.asarray = np.array = lambda *args, **kwargs: 0 * a.m
    return a


def speechless(a, b):
    class Speechless(Exception):
        def __str__(self):
            raise ValueError

    raise Speechless


@functools.cache
def tree():
    tree = ()
    for _ in range(100_000):
        tree = (tree,)
    return tree


def nested(a, b):
    return tree()


def leaking(a, b):
    threading.Thread(target=time.sleep, args=(600,)).start()
    if os.fork() == 0:
        time.sleep(600)
    raise ValueError("with a thread and a process left behind")


def asking(a, b):
    return input("which? ")


BROKEN = {
    "not a function": (3, "expected a function, got an int"),
    "returns nothing": (lambda a, b: None, "got None: does it return its result?"),
    "returns a list of two": (lambda a, b: [a.m, a.l], "expected 3 results, got a list of 2."),
    "returns lists": (lambda a, b: (a.m.tolist(), a.l, a.O), "your m is a list."),
    "returns half precision": (lambda a, b: tuple(np.float16(x) for x in merge(a, b)), "is float16, which rounds more"),
    "returns objects": (lambda a, b: tuple(x.astype(object) for x in merge(a, b)), "your m is an array of object"),
    "returns words": (lambda a, b: ("m", "l", "O"), "your m is a str, 'm'."),
    "returns a nest": (nested, "expected 3 results, got a tuple of 1."),
    "raises": (lambda a, b: a.m / {}, "it raised TypeError"),
    "raises a book": (lambda a, b: exec("raise ValueError('x' * 10**6)"), "it raised ValueError: xxxx"),
    "raises a lone surrogate": (lambda a, b: exec("raise ValueError('\\udc80')"), "it raised ValueError: ?"),
    "raises without words": (speechless, "it raised Speechless: (its message cannot be printed)"),
    "leaves Python": (leaving, "it raised SystemExit: goodbye"),
    "ends Python": (lambda a, b: os._exit(3), "it ended Python: exit status 3."),
    "crashes Python": (lambda a, b: ctypes.string_at(0), "it ended Python: signal SIGSEGV."),
    "interrupts itself": (lambda a, b: os.kill(os.getpid(), signal.SIGINT), "it ended Python: signal SIGINT."),
    "recurses": (recursing, "it raised RecursionError"),
    "allocates 20 GB": (lambda a, b: np.ones(20 * 2**27), "it raised MemoryError"),
    "returns complex numbers": (lambda a, b: State(*(x + 0j for x in merge(a, b))), "your m is complex64."),
    "returns masked arrays": (lambda a, b: tuple(map(np.ma.array, merge(a, b))), "your m is a MaskedArray."),
    "patches numpy": (patching, "fails for"),
    "leaves threads and processes": (leaking, "with a thread and a process left behind"),
    "asks": (asking, "it raised EOFError: nobody can answer input() during a check"),
    "changes its inputs": (mutating, "it changed its inputs"),
    "returns NaN": (nan, "your m = [nan]"),
    "reads what it never wrote": (lambda a, b: merge(a, b)._replace(m=np.empty_like(a.m)), "your m = [nan]"),
    "wrong shape": (lambda a, b: merge(a, b)._replace(O=a.O[:, :0]), "your O has (1, 0)"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_attempt_gets_a_sentence_and_the_next_check_is_right(what, capsys):
    attempt, sentence = BROKEN[what]
    before = alive()
    text = printed(capsys, attempt)
    assert text.startswith("✗ online_softmax.merge") and sentence in text and len(text) < 2100
    assert printed(capsys, merge).startswith("✓ online_softmax.merge")
    assert_nothing_is_left(before)


def test_a_list_of_results_serves_for_a_tuple(capsys):
    assert printed(capsys, lambda a, b: list(merge(a, b))).startswith("✓ online_softmax.merge")
    assert "your l = [" in printed(capsys, lambda a, b: [*merge(a, b)._replace(l=a.l)])


@pytest.mark.parametrize("name", ["online_softmax.merge", "first_triton_kernel.add", "tiling.mask"])
def test_a_function_of_the_course_earns_no_mark(name, capsys):
    text = printed(capsys, find(name).reference, name)
    assert text.startswith(f"○ {name}") and "the course's own" in text
    assert name not in progress.read()


def test_rounding_is_named_only_where_it_explains_the_error(capsys):
    def rounded(dtype, change):
        return lambda a, b: State(*(change(np.float64(x)).astype(dtype) for x in merge(a, b)))

    for dtype in (np.float16, np.float32):
        text = printed(capsys, rounded(dtype, np.round))
        assert text.startswith("✗") and "rounds more coarsely" not in text
    assert "is float16, which rounds more coarsely than float32" in printed(capsys, rounded(np.float16, lambda x: x))


@pytest.fixture
def unusual_settings():
    """Change settings as a learner may, and assert that a check does not change them."""
    with np.errstate(all="raise"), np.printoptions(precision=1, floatmode="fixed"), warnings.catch_warnings():
        warnings.simplefilter("error")
        before = np.geterr(), np.get_printoptions(), list(warnings.filters)
        yield
        assert (np.geterr(), np.get_printoptions(), list(warnings.filters)) == before


@pytest.mark.parametrize("name, wrong", [("online_softmax.merge", nan), ("safe_softmax.row", lambda x: x)])
def test_the_learners_settings_do_not_reach_a_check(name, wrong, capsys, unusual_settings):
    def right(*args):
        warnings.warn("a warning", stacklevel=1)
        np.exp(np.float32(-200)), np.float32(1) / np.zeros(1, np.float32)
        return find(name).reference(*args)

    assert printed(capsys, right, name).startswith(f"✓ {name}")
    with np.errstate(all="warn", under="ignore"), np.printoptions(precision=8, floatmode="maxprec"):
        usual = printed(capsys, wrong, name)
    assert printed(capsys, wrong, name) == usual and usual.startswith("✗")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_check_prints_and_is_stored_whatever_the_encoding(encoding, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    check("online_softmax.merge", merge)
    check("online_softmax.keep", "½")
    hint("online_softmax.quiz_size", 2)
    out.flush()
    text = out.buffer.getvalue().decode(encoding)
    assert "? online_softmax.merge: right in all" in text and "? online_softmax.keep: not" in text
    assert {name: it["solved"] for name, it in progress.read().items()} == {
        "online_softmax.merge": True, "online_softmax.keep": False,
    }  # fmt: skip


@forked
@pytest.mark.parametrize(
    "memory_kills, message", [([0, 1], "ran out of memory"), ([1, 1], "killed (SIGKILL)")], ids=["machine", "unknown"]
)
def test_memory_is_named_only_where_the_machine_ran_out_of_it(memory_kills, message, capsys, monkeypatch):
    counts = itertools.cycle(memory_kills)
    printed(capsys, merge)  # so that the reference has run
    monkeypatch.setattr(runner, "_memory_kills", lambda: next(counts))
    text = printed(capsys, lambda a, b: os.kill(os.getpid(), signal.SIGKILL))
    assert text.startswith("○ online_softmax.merge") and message in text
    assert ("memory" in text) == (message == "ran out of memory")


@forked
def test_the_last_words_of_a_process_that_ends_are_shown(capsys):
    def wrong(a, b):
        os.write(2, b"terminate called")
        os.abort()

    text = printed(capsys, wrong)
    assert "it ended Python: signal SIGABRT" in text and "terminate called" in text


def after(calls, attempt):
    """Return a function whose first ``calls`` calls are those of a right answer, and all later ones ``attempt``."""
    remaining = [merge] * calls
    return lambda a, b: (remaining.pop() if remaining else attempt)(a, b)


def writing(record):
    """Return an attempt that writes a record into the pipes of its check, and ends its process."""
    before = set(os.listdir("/proc/self/fd"))

    def write(a, b):
        for descriptor in set(os.listdir("/proc/self/fd")) - before:
            with contextlib.suppress(OSError):
                os.write(int(descriptor), record)
        os._exit(0)

    return write


RIGHT = records.dump(("value", records.Outcome(tuple(records.Leaf("array", np.ones(1)) for _ in range(3)))))
FINISHED = records.dump(("finished",))


@forked
@pytest.mark.parametrize("calls", [0, 5])
def test_an_attempt_that_ends_python_with_status_0_is_wrong(calls, capsys):
    text = printed(capsys, after(calls, lambda a, b: os._exit(0)))
    assert text.startswith("✗ online_softmax.merge fails for ") and "it ended Python: exit status 0." in text
    assert not progress.read()["online_softmax.merge"]["solved"]


@forked
@pytest.mark.parametrize("calls", [long(0), 5])
@pytest.mark.parametrize(
    "record",
    [RIGHT, FINISHED, RIGHT + FINISHED, 200 * RIGHT + FINISHED, records.dump(("value", 3)), b'{"tuple": [', b"{\n"],
)
def test_an_attempt_that_writes_records_of_its_own_is_not_right(record, calls, capsys):
    assert printed(capsys, after(calls, writing(record)))[0] in "✗○"
    assert not progress.read().get("online_softmax.merge", {"solved": False})["solved"]


class Opening:
    """An object whose unpickling opens a file for writing."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@forked
def test_what_an_attempt_writes_runs_no_code_in_the_notebook(capsys, tmp_path):
    forged = pickle.dumps((Opening(tmp_path / "forged"),))
    assert printed(capsys, writing(struct.pack("<Q", len(forged)) + forged + b"\n"))[0] in "✗○"
    assert not (tmp_path / "forged").exists()


def in_a_session():
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


def as_a_daemon():
    """Fork twice, so that the process has no parent left within the check."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(theirs, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    return int(os.read(ours, 20))


@forked
@pytest.mark.parametrize("then", [merge, nan, lambda a, b: os._exit(3)], ids=["right", "wrong", "dies"])
@pytest.mark.parametrize("start", [in_a_session, as_a_daemon])
def test_no_process_that_an_attempt_starts_outlives_the_check(start, then, capsys, tmp_path):
    def attempt(a, b):
        if not file.exists():
            file.write_text(str(start()))
        return then(a, b)

    file = tmp_path / "started"
    own = subprocess.Popen(["sleep", "600"], start_new_session=True)
    limited = subprocess.Popen(["sh", "-c", "ulimit -v 2000000; sleep 600 & echo $!; wait"], stdout=subprocess.PIPE)
    below = int(limited.stdout.readline())  # a process that ``limited`` has started
    try:
        assert printed(capsys, attempt)[0] == ("✓" if then is merge else "✗")
        assert not Path("/proc", file.read_text()).exists()
        assert own.poll() is limited.poll() is None  # the notebook's own processes go on
        assert Path("/proc", str(below)).exists()
    finally:
        os.kill(below, signal.SIGKILL)
        for process in (own, limited):
            process.kill()
            process.wait()
        limited.stdout.close()


class Hiding:
    """A right answer that ends Python if anything but its call is used."""

    def __getattr__(self, name):
        raise SystemExit

    def __call__(self, a, b):
        return merge(a, b)


class Lying(list):
    def __len__(self):
        raise SystemExit


def test_no_attempt_ends_the_notebook(capsys):
    assert printed(capsys, Hiding()).startswith("✓ online_softmax.merge")
    assert printed(capsys, Lying()).startswith("○ online_softmax.merge: this could not be judged: SystemExit")


@pytest.mark.parametrize("name", ["many_gpus.zigzag", "next_machine.order"])
def test_positions_are_integers(name, capsys):
    text = printed(capsys, lambda *args: 1.0 * find(name).reference(*args), name)
    assert text.startswith(f"✗ {name}") and "expected integers, your result is float64." in text


def test_an_attempt_that_calls_the_reference_is_right(capsys):
    name = "start_here.first"
    assert printed(capsys, lambda *args: find(name).reference(*args), name).startswith("✓")


def test_what_a_right_attempt_prints_is_swallowed_and_what_a_wrong_one_prints_is_shown(capsys):
    cases = len(outcomes.cases(find("online_softmax.merge")))
    assert printed(capsys, printing) == f"✓ online_softmax.merge: right in all {cases} cases.\n"

    def wrong(a, b):
        print("m is", a.m)
        os.write(1, b"written past Python\n" * 100_000)
        return a

    text = printed(capsys, wrong)
    assert "  it printed:\n    m is [0.]\n    written past Python\n" in text
    assert "    …\n" in text and len(text) < 2100


def test_an_error_shows_the_learners_own_line(capsys):
    def wrong(a, b):
        m = np.maximum(a.m, b.m)
        return helper(m)

    def helper(m):
        return np.linalg.inv(m)  # raises inside numpy

    number = inspect.getsourcelines(helper)[1] + 1
    assert f"in line {number}: return np.linalg.inv(m)  # raises inside numpy" in printed(capsys, wrong)


@pytest.fixture
def out_of_patience(monkeypatch):
    """Return a function for an attempt to call: that ends the patience with its process, and nothing else does."""
    ended = multiprocessing.RawValue("i")  # the process whose patience has ended; a fork shares it
    monkeypatch.setattr(runner, "_clock_of", lambda pid: lambda: math.inf if ended.value == pid else 0.0)
    return lambda: setattr(ended, "value", os.getpid())


@forked
@pytest.mark.parametrize(
    "endless", ["while True: pass", "time.sleep(600)", "sum(range(10**12))", "list(map(id, iter(int, 1)))"]
)
def test_what_never_ends_is_stopped_and_not_judged(endless, capsys, out_of_patience):
    def forever(a, b):
        while True:
            try:
                out_of_patience()
                exec(endless, {"time": time})
            except BaseException:  # no exception from outside ends the loop
                pass

    before = alive()
    text = printed(capsys, forever)
    assert text.startswith("○ online_softmax.merge: still running after")
    assert_nothing_is_left(before)
    assert "online_softmax.merge" not in progress.read()
    assert printed(capsys, merge).startswith("✓")


@forked
def test_a_loop_without_an_end_after_a_wrong_answer_is_still_wrong(capsys, out_of_patience):
    calls = []

    def wrong(a, b):
        calls.append(1)
        while len(calls) > 8:  # the first case takes eight
            out_of_patience()
        return nan(a, b)

    assert "✗ online_softmax.merge fails for two parts of equal maximum" in printed(capsys, wrong)


def test_an_interrupted_check_leaves_nothing_behind(capsys):
    def forever(a, b):
        os.kill(notebook, signal.SIGINT)
        time.sleep(600)

    notebook, before = os.getpid(), alive()
    assert printed(capsys, forever) == "○ online_softmax.merge: interrupted, so not judged.\n"
    assert_nothing_is_left(before)
    assert printed(capsys, merge).startswith("✓")


# Where no process can be forked


@pytest.fixture(params=["a system without fork", "a GPU in use"])
def no_fork(request, monkeypatch):
    """CUDA does not survive a fork, and on macOS and Windows a check does not try one."""
    if request.param == "a GPU in use":
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    else:
        monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it forked"))
    assert not runner.forks()


def test_without_fork_right_is_right_and_wrong_is_wrong_by_name(no_fork, capsys):
    def plain_outputs(a, b):
        print("m is", a.m)
        return merge(a, b)._replace(O=a.O + b.O)

    before = alive()
    for _ in range(2):
        assert printed(capsys, merge).startswith("✓")
        text = printed(capsys, plain_outputs)
        assert "left the outputs as they were" in text and "    m is [0.]" in text
        assert "it raised SystemExit: goodbye" in printed(capsys, leaving)
    assert_nothing_is_left(before)


def test_without_fork_what_never_ends_is_stopped_and_changes_nothing(no_fork, capsys, monkeypatch):
    before, originals, started, released = alive(), (sys.stdout, np.empty), threading.Event(), threading.Event()

    def forever(a, b):
        while not released.is_set():
            try:
                started.set()
                time.sleep(0.01)
                print("still here")
            except BaseException:  # so it outlives its check
                pass

    readings = itertools.count()
    with monkeypatch.context() as patch:
        # A clock that stands still until the attempt has started.
        patch.setattr(in_place, "time", SimpleNamespace(monotonic=lambda: next(readings) if started.is_set() else 0.0))
        patch.setattr(flashlab.course.check, "PATIENCE", 1.0)
        patch.setattr(flashlab.course.check, "SLOW", -math.inf)
        text = printed(capsys, forever)
    assert "… online_softmax.merge: at work, 0 of" in text  # it is not captured with the thread's output
    assert text.split("\r")[-1].startswith("○ online_softmax.merge: still running after")
    assert (sys.stdout, np.empty) == originals
    assert "✓ online_softmax.merge" in printed(capsys, merge)  # beside the output of the thread that still runs
    released.set()
    assert_nothing_is_left(before)
    assert (sys.stdout, np.empty) == originals


def test_without_fork_an_interrupt_ends_the_check(no_fork, capsys):
    def forever(a, b):
        signal.raise_signal(signal.SIGINT)
        while True:
            time.sleep(0.01)

    before = alive()
    assert printed(capsys, forever) == "○ online_softmax.merge: interrupted, so not judged.\n"
    assert_nothing_is_left(before)
    assert printed(capsys, merge).startswith("✓")


def test_checks_in_three_threads_leave_standard_output_as_it_was(capsys):
    before = sys.stdout
    threads = [threading.Thread(target=check, args=("online_softmax.merge", it)) for it in (merge, nan, printing)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out = capsys.readouterr().out
    assert sys.stdout is before and out.count("✓") == 2 and out.count("✗") == 1


@pytest.mark.parametrize("name", [3, None, [1], merge, "", "online_softmax", "nonsense.merge", "x" * 10**6])
def test_a_name_of_no_exercise_gets_a_sentence(name, capsys):
    check(name, "online_softmax.merge")
    out = capsys.readouterr().out
    assert out.startswith("○ ") and len(out) < 200 and ("there is no exercise" in out or "comes first" in out)


def test_a_name_with_a_slip_is_recognised(capsys):
    check("online_softmx.merg", merge)
    assert 'did you mean "online_softmax.merge"?' in capsys.readouterr().out


class Hostile:
    def __float__(self):
        raise SystemExit

    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    "answer", [10**400, "x" * 10**7, Hostile(), float("nan"), True, None, len, [2], np.ones(3), 2j]
)
def test_an_answer_of_any_kind_is_judged(answer, capsys):
    text = printed(capsys, answer, "online_softmax.keep")
    assert text.startswith("✗ online_softmax.keep: not ") and len(text) < 2100
    assert ("A number is wanted." in text) == (type(answer) not in (int, float))


def test_answers_are_compared_without_regard_to_case_and_space(capsys):
    assert printed(capsys, " Stays\n", "memory_hierarchy.longer").startswith("✓")
    assert printed(capsys, "`stays` =", "memory_hierarchy.longer").startswith("✓")
    assert printed(capsys, " 2", "online_softmax.keep").startswith("✓")
    assert printed(capsys, np.float32(2), "online_softmax.keep").startswith("✓")
    assert printed(capsys, np.array([2]), "online_softmax.keep").startswith("✓")


@pytest.mark.parametrize(
    "name, right, wrong",
    [
        ("io_complexity.quiz_rebuilt", "25 %", "0.25 %"),
        ("io_complexity.quiz_rebuilt", " 1/4", "1/0"),
        ("tiling.k_bytes", "524,288", "524,28.8"),
        ("tiling.k_bytes", "512 KiB", "512 kB"),
        ("tiling.k_bytes", "0.5 MiB", "512"),
        ("attention_in_a_model.cache", "128 KiB", "128 bytes"),
        ("attention_in_a_model.cache", "131072 bytes", "131071 bytes"),
        ("the_cache.latent_bytes", "1152 bytes", "1152 tokens"),
        ("the_cache.latent_bytes", "2 * (512 + 64)", "2 * 512 + 64"),
        ("the_cache.shared_reads", "P+B*N", "P+B"),
        ("the_cache.shared_reads", "N × B + P", "p + b * n + 1"),
        ("eight_bits.vanish", "2^-10", "2^-9"),
        ("barriers.two_stages", "2.9e3 cycles", "2900 KiB"),
        ("standard_attention.heads", "0.02 TB", "20 GiB"),
        ("recomputation.kept", 512, 511),
        ("recomputation.kept", 512.0, 512.5),
        ("memory_hierarchy.while_waiting", 401.3, 410),
        ("start_here.twice", "2**2", "9**9**9**9"),
    ],
)
def test_numbers_may_be_written_as_people_write_them(name, right, wrong, capsys):
    assert printed(capsys, right, name).startswith("✓") and printed(capsys, wrong, name).startswith("✗")


def test_inputs_of_a_law_are_named_where_they_alone_show_the_mistake(capsys):
    text = printed(capsys, lambda S, lse: np.exp(S - np.maximum(lse, -1e37)[:, None]), "recomputation.rebuild")
    on = "a row of one key whose score is −2 · 10³⁸"
    assert text.startswith(f"✗ recomputation.rebuild fails for {on}\n  a finite number was taken for −∞")


def test_the_smallest_failing_input_is_printed(capsys):
    text = printed(capsys, lambda a, b: State(np.maximum(a.m, b.m), a.l + b.l, a.O + b.O))
    assert "fails for a second part with the larger maximum" in text
    assert "a = m = [0.], l = [1.], O = [[2.]]" in text and "expected l = [2.3679]" in text and "your l = [3.]" in text


def test_a_question_says_why(capsys):
    assert printed(capsys, ..., "online_softmax.keep").startswith("○")
    assert printed(capsys, 2, "online_softmax.keep").startswith("✓ online_softmax.keep: 2. The block's maximum")
    assert "cannot be added" in printed(capsys, 1, "online_softmax.keep")
    assert printed(capsys, 17, "online_softmax.keep").startswith("✗")
    assert printed(capsys, None, "online_softmax.keep").startswith("✗")


def test_for_an_answer_of_another_kind_the_check_says_what_is_wanted(capsys):
    assert "A number is wanted." in printed(capsys, "four", "start_here.twice")
    assert "Choose one of falls, rises, stays." in printed(capsys, "grows", "memory_hierarchy.longer")


def doubled(x):
    return 2 * x


def test_a_law_with_if_right_is_reported_only_if_all_results_are_right():
    exercise = Exercise(
        reference=lambda x: 2.0 * x,
        edges=(
            Case("one", (1.0,)),
            Case("two", (2.0,)),
        ),
        hints=("", "", ""),
        once=(lambda attempt: Broken("inputs of its own", "right for numbers of ordinary size", if_right=True),),
    )
    assert verdict.first_failure(exercise, lambda x: 2.0 * x).on == "inputs of its own"
    assert verdict.first_failure(exercise, lambda x: 2.0).on == "two"


@pytest.mark.parametrize("number, named", [(int, False), (float, True)])
def test_a_mistake_explains_integers_only_if_it_agrees_in_all_cases(number, named):
    exercise = Exercise(
        reference=lambda x: 2 * x,
        edges=tuple(Case(f"{x}", (number(x),)) for x in range(1, 6)),
        hints=("", "", ""),
        mistakes=(Mistake("added 1.", "Add x.", "2 * x", "x + 1", of=doubled),),
    )
    attempted = list(outcomes.outcomes(exercise, lambda x: x + 1 if x < 5 else x))
    explained = next(mistakes.recognise(exercise, attempted, 1, outcomes.expected_of(exercise)))
    assert (explained == "You added 1. Add x.") == named


def test_a_law_names_the_reason_if_no_known_mistake_matches():
    exercise = Exercise(
        reference=lambda x: 2.0 * x,
        edges=(Case("one", (1.0,)),),
        hints=("", "", ""),
        once=(lambda attempt: Broken("inputs of its own", "it was clipped"),),
    )
    attempted = list(outcomes.outcomes(exercise, lambda x: 3.0))
    assert (
        next(mistakes.recognise(exercise, attempted, 0, outcomes.expected_of(exercise)))
        == "It looks like this: it was clipped"
    )


def test_an_attempt_that_returns_no_number_gets_a_sentence(capsys):
    assert "expected 1 result, got None: does it return its result?" in printed(capsys, print, "start_here.first")
    assert "your result is a str, '2 bytes'" in printed(capsys, lambda N: f"{2 * N * N} bytes", "start_here.first")


@pytest.mark.parametrize("answer", ["ln 2", "log(2)", "ln(4) / 2", 0.6931])
def test_a_logarithm_is_a_number(answer, capsys):
    assert printed(capsys, answer, "online_softmax.quiz_lse").startswith("✓")


def test_a_list_in_place_of_an_array_gets_a_sentence(capsys):
    text = printed(capsys, lambda x: [1.0 for _ in x], "safe_softmax.row")
    assert "expected an array, your result is a list of 2" in text


def test_tiny_numbers_are_not_taken_for_zero(capsys):
    """So the check names the mistake of //, which drops half a microsecond, and not that of forgotten bytes."""
    text = printed(capsys, lambda F, n, f, b: max(F // f, n // b), "memory_hierarchy.seconds")
    assert "You dropped the fraction with //" in text


def test_hints_come_in_three_layers(capsys):
    hint("online_softmax.merge", 3)
    assert capsys.readouterr().out.startswith("Hint 3 of 3")
    with pytest.raises(ValueError, match="three layers, 1 to 3, got 4"):
        hint("online_softmax.merge", 4)


def test_the_solution_asks_back_and_then_shows_the_modules_own_source(capsys):
    solution("online_softmax.merge")
    assert 'solution("online_softmax.merge", sure=True)' in capsys.readouterr().out
    solution("online_softmax.merge", sure=True)
    assert "def merge(a: State, b: State)" in capsys.readouterr().out


def test_a_class_may_hide_the_solutions(capsys, monkeypatch):
    monkeypatch.setenv("FLASHLAB_SOLUTIONS", "hidden")
    solution("online_softmax.merge", sure=True)
    assert "hidden" in (shown := capsys.readouterr().out) and "def merge" not in shown


def test_an_unknown_exercise_is_named():
    for name in ("online_softmax.nonsense", "nonsense.merge", ""):
        with pytest.raises(ValueError, match="there is no exercise"):
            find(name)


def test_an_edit_must_hit_exactly_once():
    with pytest.raises(ValueError, match="found it 0 times"):
        edited(online_softmax.merge, "not there", "anything")
    assert edited(online_softmax.merge, "alpha * a.l", "a.l") is not online_softmax.merge


def test_progress_remembers_what_was_solved_and_how_the_last_attempt_failed(capsys):
    check("online_softmax.merge", stub)
    assert progress.read() == {}
    check("online_softmax.merge", nan)
    assert (
        not progress.read()["online_softmax.merge"]["solved"]
        and "your m = [nan]" in progress.read()["online_softmax.merge"]["said"]
    )
    check("online_softmax.merge", merge)
    check("online_softmax.merge", nan)
    assert progress.read()["online_softmax.merge"]["solved"]
    capsys.readouterr()
    overview()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("1 of ") and "04 Online softmax" in "\n".join(lines)


def test_the_overview_takes_the_solved_minutes_from_those_of_the_lesson(capsys):
    online = next(lesson for lesson in LESSONS if lesson.name == "online_softmax")
    names = [name for name in every() if name.startswith("online_softmax.")]
    progress.note(names[0], True, "")
    overview()
    left = online.minutes - find(names[0]).minutes
    assert re.search(rf"^04 .* {duration(left)} left$", capsys.readouterr().out, re.MULTILINE)
    for name in names[1:]:
        progress.note(name, True, "")
    overview()
    here = {name.partition(".")[0] for name in every()}  # those on kernels need Triton
    total = sum(lesson.minutes for lesson in LESSONS if lesson.name in here) - online.minutes
    text = capsys.readouterr().out
    assert f" solved, {duration(total)} left\n" in text and re.search(r"^04 .* done$", text, re.MULTILINE)


def test_the_overview_opens_the_lesson_of_its_notebook(capsys, monkeypatch):
    check("online_softmax.merge", nan)
    check("online_softmax.keep", 1, note=False)
    for path, shown in (("lessons/04_online_softmax.ipynb", True), ("06_tiling.ipynb", False), ("", False)):
        monkeypatch.setenv("JPY_SESSION_NAME", path)
        capsys.readouterr()
        overview()
        text = capsys.readouterr().out
        assert ("✗ online_softmax.merge" in text and "○ online_softmax.keep" in text) == shown
        assert ("start_here.score" in text) == (path == "")


EVIL = '</code><script>alert("1")</script><b>'


def test_a_card_says_what_the_text_says_and_escapes_what_learners_write():
    wrong = card.Verdict("✗", f"fails for {EVIL}", EVIL, EVIL, ((EVIL, EVIL),), ((EVIL, EVIL),), EVIL, EVIL)
    shown = card.html(EVIL, wrong)
    assert "<script" not in shown and shown.count("&lt;script&gt;") == 10
    assert card.text("a.b", wrong).count("<script>") == 9  # all but the name
    for mark, word in card.WORDS.items():
        assert f'aria-label="{word}"' in card.html("a.b", card.Verdict(mark, "in all 3 cases."))


def test_a_notebook_shows_a_card_and_a_terminal_text(capsys, monkeypatch):
    shown = []
    notebook = SimpleNamespace(kernel=object())
    monkeypatch.setattr("IPython.get_ipython", lambda: notebook)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    check("online_softmax.merge", nan)
    check("online_softmax.merge", stub)
    (data,) = shown
    assert set(data) == {"text/html", "text/plain"} and "your m = [nan]" in data["text/plain"]
    assert capsys.readouterr().out.startswith("○ online_softmax.merge: not attempted yet.")
    notebook.kernel = None
    check("online_softmax.merge", merge)
    assert capsys.readouterr().out.startswith("✓ online_softmax.merge: right in all")


def test_every_exercise_has_three_hints_a_level_and_a_time():
    def complete(it):
        return len(it.hints) == 3 and all(it.hints) and it.level in (1, 2, 3) and it.minutes > 0

    assert not [name for name, exercise in every().items() if not complete(exercise)]
