"""Four processes for the tests of a file: smaller groups are made among them."""

import pytest

from flashlab.distributed import Team


@pytest.fixture(scope="module")
def team():
    with Team(4, timeout=60) as team:
        yield team
