"""Addresses of Ray clusters that are none: refused, in time."""

import subprocess
from types import SimpleNamespace

import pytest

from pluribus.training import executors


@pytest.mark.parametrize(
    "address, why",
    [
        ("127.0.0.1:1", "nothing listens"),
        ("ray://127.0.0.1:1", "nothing listens"),
        ("nowhere.invalid:6379", "nothing listens"),
        ("127.0.0.1", "must be HOST:PORT"),
        ("127.0.0.1:99999", "must be HOST:PORT"),
    ],
)
def test_an_address_where_nothing_is_is_refused(address, why):
    with pytest.raises(ValueError, match=f"--ray: {why}"):
        executors._connect(SimpleNamespace(), address)


def test_something_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(executors, "PATIENCE", 0.2)
    monkeypatch.setattr(executors.sys, "executable", "/bin/sleep")
    monkeypatch.setattr(
        subprocess, "run", lambda command, run=subprocess.run, **more: run(["/bin/sleep", "60"], **more)
    )
    with pytest.raises(ValueError, match=r"no cluster answered at 'auto' in 0\.2 seconds.*ray start --head"):
        executors._connect(SimpleNamespace(), "auto")
