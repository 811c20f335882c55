"""Commands on hostile files, in a process with limits: a message, exit code 2, nothing half-written."""

import contextlib
import json
import os
import resource
import subprocess
import sys

import attacks
import good_folders
import pytest
from hostile import bomb_npz, image_folder, npy_header, npz, postscript
from hostile_folders import rewrite
from memory import cost_of_torch, limit_data_memory
from PIL import Image

import pluribus as pb
from pluribus.data.catalogue import load
from pluribus.deploy.predictor import RECORD, make_predictor
from pluribus.models.by_name import ModelSpec
from pluribus.study import Study, conduct

SECONDS, BYTES = 8, 8 * 10**8  # beyond what importing torch takes

PROGRAMS = ("gs", "gswin64c", "magick", "convert", "ffmpeg", "sh", "bash")


def limit(memory, seconds):
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    limit_data_memory(memory)


@pytest.fixture
def canary(tmp_path_factory, monkeypatch):
    """The file that appears when one of the programs is started that files have been known to start."""
    place = tmp_path_factory.mktemp("programs")
    for name in PROGRAMS:
        (place / name).write_text(f"#!/bin/sh\n: > '{place / 'canary'}'\nexit 1\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    return place / "canary"


@pytest.fixture
def command(canary):
    """Runs a command with limits: its exit code and what it said, in one line and with no program started."""

    memory, seconds = cost_of_torch()

    def run(folder, *words):
        ran = subprocess.run(
            [sys.executable, "-m", "pluribus", *map(str, words)],
            cwd=folder,
            preexec_fn=lambda: limit(memory + BYTES, seconds + SECONDS),
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in ran.stderr + ran.stdout and not ran.stdout
        assert len(ran.stderr.splitlines()) == 1 and not canary.exists()
        return ran.returncode, ran.stderr

    return run


def test_the_canary_sings_where_a_picture_is_opened_without_care(canary, tmp_path):
    (tmp_path / "x.png").write_bytes(postscript(tmp_path / "unused"))
    with contextlib.suppress(Exception), Image.open(tmp_path / "x.png") as image:
        image.load()  # starts gs
    assert canary.exists()


@pytest.mark.slow
def test_training_on_an_archive_that_grows_writes_nothing(command, tmp_path):
    bomb_npz(tmp_path / "x.npz")
    code, said = command(tmp_path, "train", "--out", "trained", "--data", "npz:x.npz")
    assert code == 2 and "--unpack-limit" in said and [path.name for path in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.slow
def test_comparing_on_pictures_that_are_programs_starts_none(command, tmp_path):
    (image_folder(tmp_path / "photos") / "cat" / "x.png").write_bytes(postscript(tmp_path / "canary"))
    code, said = command(tmp_path, "compare", "--data", "folder:photos", "--methods", "single", "--out", "study")
    assert code == 2 and "cat/x.png" in said and [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_folder_that_names_code_gets_a_message(command, tmp_path):
    spec = ModelSpec("mlp", (4,), 3, width=0.05)
    make_predictor(spec, load("iris"), pb.deep(spec.build(), 2), promise=False).save(tmp_path / "sent")
    record = json.loads((tmp_path / "sent" / RECORD).read_text())
    (tmp_path / "net.py").write_text("import pathlib; pathlib.Path('canary').touch()")
    (tmp_path / "new.csv").write_text("a\n1\n")
    rewrite(tmp_path / "sent" / RECORD, {**record, "model": "python:net.py:build"})
    code, said = command(tmp_path, "predict", "sent", "new.csv")
    assert code == 2 and "--model" in said and not (tmp_path / "canary").exists()


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
