"""Four processes for all tests of this folder: smaller groups are made among them."""

import pytest

from flashlab.distributed import Team


@pytest.fixture(scope="session")
def team():
    with Team(4, timeout=60) as team:
        yield team
