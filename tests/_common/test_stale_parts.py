"""What a kill leaves beside a file that was being written: removed by the next write, and nothing else is."""

import os
import subprocess
import sys
import time

import pytest

from pluribus._common.atomic import DAY, HERE, atomic_write

KILLED = """
import os, signal, sys
from pluribus._common.atomic import atomic_write
with atomic_write(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a.json")], check=False)
    (left,) = tmp_path.iterdir()
    assert left.read_text() == "half" and left.name.startswith(".a.json.")
    with atomic_write(tmp_path / "b.json") as temporary:
        temporary.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize(
    "name",
    [
        f".a.json.pluribus-{HERE}-{os.getpid()}-01234567",  # of a process that is alive
        ".a.json.pluribus-00000000-999999999-01234567",  # of another machine
        f".a.json.pluribus-{HERE}-999999999-xyz",  # nearly ours
        ".a.json.1234-01234567",
        ".a.json.swp",
        "a.json.tmp",
    ],
    ids=["alive", "another machine", "nearly ours", "no machine", "an editor's", "somebody's"],
)
def test_what_may_be_in_use_or_somebody_elses_stays(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with atomic_write(tmp_path / "b.json") as temporary:
        temporary.write_text("whole")
    assert (tmp_path / name).read_text() == "mine"


def test_a_part_of_another_machine_is_removed_after_a_day(tmp_path):
    (path := tmp_path / ".a.json.pluribus-00000000-999999999-01234567").write_text("half")
    os.utime(path, (time.time() - DAY - 60,) * 2)
    with atomic_write(tmp_path / "b.json") as temporary:
        temporary.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_a_folder_with_the_name_of_a_part_stays(tmp_path):
    (tmp_path / f".a.pluribus-{HERE}-999999999-01234567").mkdir()
    with atomic_write(tmp_path / "b.json") as temporary:
        temporary.write_text("whole")
    assert len(list(tmp_path.iterdir())) == 2
