"""Check the error that a function raises for bad input."""

import re
from collections.abc import Callable

import pytest


def assert_refused(call: Callable, sentence: str) -> None:
    """Assert that a call raises TypeError or ValueError, with a message of one line that contains this sentence."""
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)) as refused:
        call()
    assert "\n" not in str(refused.value)
