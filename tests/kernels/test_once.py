"""Workers of a session call a slow function once for all of them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tools.once import Once


def test_the_first_worker_calls_and_all_read_the_result(tmp_path):
    calls = []

    def slow(name):
        calls.append(name)
        time.sleep(0.05)  # the others ask in the meantime
        return [{"name": name, "numbers": [1, 2.5, None]}]

    with ThreadPoolExecutor() as threads:
        results = list(threads.map(lambda _: Once(tmp_path)(slow, "a"), range(8)))
    assert calls == ["a"] and results == [[{"name": "a", "numbers": [1, 2.5, None]}]] * 8
    assert Once(tmp_path)(slow, "b")[0]["name"] == "b", "the result of other arguments"


def test_a_failed_call_is_repeated(tmp_path):
    def fails(name):
        raise OSError(name)

    for _ in range(2):
        with pytest.raises(OSError, match="a"):
            Once(tmp_path)(fails, "a")
    assert Once(tmp_path)(lambda name: name, "a") == "a"
