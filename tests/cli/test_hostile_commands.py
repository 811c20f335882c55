"""Commands on hostile files, in a process with limits: a message, exit code 2, nothing half-written."""

import contextlib
import json
import os
import subprocess
import sys

import attacks
import good_folders
import pytest
from hostile import npy_header, npz, postscript
from PIL import Image

from pluribus.study import Study, conduct


def test_the_canary_sings_where_a_picture_is_opened_without_care(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which the attacker changes
    attacker = attacks.Attacker(tmp_path)
    (tmp_path / "x.png").write_bytes(postscript(tmp_path / "unused"))
    with contextlib.suppress(Exception), Image.open(tmp_path / "x.png") as image:
        image.load()  # starts gs
    assert attacker.hear()


@pytest.mark.slow
def test_commands_refuse_every_hostile_file_and_leave_and_start_nothing(tmp_path):
    """In forks of one process, each with the limits: see `attacks.py`."""
    ran = subprocess.run([sys.executable, attacks.__file__, tmp_path], capture_output=True, text=True)
    assert json.loads(ran.stdout) == {}, ran.stderr


@pytest.mark.slow
def test_commands_that_read_folders_take_every_spoiled_one_as_they_should(tmp_path):
    """Refused, or what is spoiled is named and done again: in forks of one process, each with the limits."""
    good = tmp_path / "good"
    subprocess.run([sys.executable, good_folders.__file__, good], check=True, capture_output=True)
    ran = subprocess.run([sys.executable, attacks.__file__, tmp_path, good], capture_output=True, text=True)
    assert json.loads(ran.stdout) == {}, ran.stderr


@pytest.mark.parametrize("spoil", ["pipe", "folder", "promise", "other run"])
def test_a_result_that_is_none_is_named_and_its_run_repeated(tmp_path, spoil):
    study = Study(data=["iris"], methods=["single"], model="mlp", training={"epochs": 1}, width=0.05)
    first = conduct(study, tmp_path)
    (path,) = (tmp_path / "results").iterdir()
    content = path.read_bytes()
    path.unlink()
    if spoil == "pipe":
        os.mkfifo(path)
    elif spoil == "folder":
        path.mkdir()
        (path / "mine").touch()
    elif spoil == "promise":
        npz(path, record=npy_header("(1000000, 100000000)"))
    else:
        path.write_bytes(content)
        os.replace(path, moved := path.with_name("other.npz"))
        other = conduct(Study(**{**vars(study), "seeds": [1]}), tmp_path)
        assert len(other.results) == 1
        os.replace(moved, other.results[0].path)
        study = Study(**{**vars(study), "seeds": [1]})
    again = conduct(study, tmp_path)
    assert len(again.damaged) == 1 and not again.failed
    if spoil != "other run":
        assert again.results[0].record["metrics"] == first.results[0].record["metrics"]
    else:
        assert again.results[0].record["seed"] == 1
    if spoil == "folder":
        assert (path.with_name(f"{path.name}.damaged-0") / "mine").exists()
