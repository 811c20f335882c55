"""One browser for all tests of pages that run in a process."""

import pytest
from browser import chromium


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver
