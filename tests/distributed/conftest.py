"""Four processes for all tests of a file. The first of them also form smaller groups."""

import pytest

from flashlab.distributed import Team
from tests.distributed import work


@pytest.fixture(scope="module")
def team():
    with Team(4, timeout=2 * work.HANGS) as team:
        yield team
