"""What a function says of bad input."""

import re
from collections.abc import Callable

import pytest


def assert_refused(call: Callable, sentence: str) -> None:
    """Assert that a call raises TypeError or ValueError, in one line that has this sentence."""
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)) as refused:
        call()
    assert "\n" not in str(refused.value)
