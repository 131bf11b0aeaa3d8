"""Four processes for all tests of this folder: smaller groups are made among them."""

import pytest

from flashlab.distributed import Team
from tests.distributed import work


@pytest.fixture(scope="session")
def team():
    with Team(4, timeout=2 * work.HANGS) as team:
        yield team
