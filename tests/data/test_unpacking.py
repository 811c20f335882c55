"""How much a file may unpack to."""

import resource
import subprocess
import sys

import pytest

from pluribus.data import unpacking
from pluribus.data.unpacking import GROWTH, limit_for, memory, parse_bytes


def test_the_limit_follows_the_file_and_the_memory(monkeypatch):
    monkeypatch.setattr(unpacking, "memory", lambda: 10**10)
    assert limit_for(1000) == 2**29 and limit_for(10**8) == GROWTH * 10**8 and limit_for(10**9) == 5 * 10**9
    assert limit_for(10**9, "20G") == 20 * 10**9


def test_memory_is_what_the_shell_allows():
    code = "from pluribus.data.unpacking import memory; print(memory())"
    limit = 3 * 10**9
    ran = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) == min(limit, memory())


@pytest.mark.parametrize("given", ["", "x", "-1", "0", "1e9", "1.2.3G", 0, -5, None])
def test_a_limit_that_is_no_number_of_bytes_is_refused(given):
    with pytest.raises(ValueError, match="unpack_limit"):
        parse_bytes(given)
