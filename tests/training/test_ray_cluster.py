"""The lines that docs/compare.md gives for Ray: a cluster starts, only this machine reaches it, and it is used."""

import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pluribus.training.executors import HOW_TO_START

DOCS = Path(__file__).parents[2] / "docs" / "compare.md"

LINE = next(line for line in DOCS.read_text().splitlines() if "ray start" in line and line.startswith("RAY_"))


def documented(place):
    """The documented line as words and variables; the program of this environment, and files in a folder of its own."""
    words = shlex.split(LINE)
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    program = [str(Path(sys.executable).parent / "ray"), *words[words.index("ray") + 1 :]]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of Ray that asks for one
    return [*program, f"--temp-dir={place}", "--num-cpus=1"], {**os.environ, **variables, **token}


def listening(port):
    """The addresses at which something listens on a port, in hexadecimals as the system's own table has them."""
    tables = [Path(name).read_text() for name in ("/proc/net/tcp", "/proc/net/tcp6") if Path(name).exists()]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A"]
    return [address for address, number in places if int(number, 16) == port]


def test_the_message_gives_the_documented_line():
    assert LINE.partition(" --include")[0] in HOW_TO_START


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="there is no /proc/net/tcp to see who listens")
def test_the_documented_cluster_is_reached_by_this_machine_alone():
    pytest.importorskip("ray")
    place = Path("/tmp") / f"pluribus-ray-{os.getpid()}"  # sockets have short names
    words, variables = documented(place)
    port = 20000 + os.getpid() % 10000
    start = [*words, f"--port={port}", "--block"]
    # a session of its own, so that all that was started here, and nothing else, is ended
    cluster = subprocess.Popen(
        start, env=variables, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        used = subprocess.run(
            [sys.executable, "-c", USE, f"127.0.0.1:{port}"], env=variables, capture_output=True, text=True, timeout=240
        )
        assert used.stdout.split()[-1:] == ["7"], used.stderr[-2000:]
        addresses = listening(port)
        assert addresses and set(addresses) <= LOOPBACK
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(cluster.pid, number)
            time.sleep(1)
        cluster.wait()
        shutil.rmtree(place, ignore_errors=True)


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

USE = """
import socket, sys, time
import ray
host, port = sys.argv[1].split(":")
for _ in range(120):
    try:
        socket.create_connection((host, int(port)), 1).close()
        break
    except OSError:
        time.sleep(1)
ray.init(sys.argv[1], log_to_driver=False)
print(ray.get(ray.remote(lambda: 7).remote(), timeout=100))
"""
