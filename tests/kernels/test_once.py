"""Workers of a session make what takes minutes once between them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tools.once import Once


def test_the_first_makes_it_and_all_read_it(tmp_path):
    calls = []

    def slow(name):
        calls.append(name)
        time.sleep(0.05)  # the others ask meanwhile
        return [{"name": name, "numbers": [1, 2.5, None]}]

    with ThreadPoolExecutor() as threads:
        found = list(threads.map(lambda _: Once(tmp_path)(slow, "a"), range(8)))
    assert calls == ["a"] and found == [[{"name": "a", "numbers": [1, 2.5, None]}]] * 8
    assert Once(tmp_path)(slow, "b")[0]["name"] == "b", "others are not taken for it"


def test_what_failed_is_made_again(tmp_path):
    def fails(name):
        raise OSError(name)

    for _ in range(2):
        with pytest.raises(OSError, match="a"):
            Once(tmp_path)(fails, "a")
    assert Once(tmp_path)(lambda name: name, "a") == "a"
