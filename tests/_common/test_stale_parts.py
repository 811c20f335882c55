"""What a kill leaves beside a file that was being written: removed by the next write, and nothing else is."""

import os
import subprocess
import sys
import time

import pytest

from pluribus._common.atomic import DAY, HERE, atomic_write, temporary_folder

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


FOLDER_KILLED = """
import os, pathlib, signal, sys
from pluribus._common.atomic import temporary_folder
with temporary_folder(pathlib.Path(sys.argv[1]) if sys.argv[1:] else None) as folder:
    (folder / "work").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("beside", [True, False], ids=["beside a file", "where the system has them"])
def test_a_folder_that_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch, beside):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    target = tmp_path / "x.onnx" if beside else None
    subprocess.run([sys.executable, "-c", FOLDER_KILLED, *([str(target)] if beside else [])], check=False)
    (left,) = tmp_path.iterdir()
    assert (left / "work").exists() and left.stat().st_mode & 0o77 == 0
    alive = tmp_path / f"{'.x.onnx.' if beside else ''}pluribus-{HERE}-{os.getpid()}-01234567-folder"
    alive.mkdir()
    (tmp_path / f"pluribus-{HERE}-999999999-01234567-folder").symlink_to(alive)
    with temporary_folder(target) as folder:
        assert folder.is_dir() and not left.exists()
    assert alive.is_dir() and not folder.exists()
