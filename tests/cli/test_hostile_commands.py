"""Commands on hostile files, in a process with limits: a message, exit code 2, nothing half-written."""

import json
import os
import resource
import subprocess
import sys

import pytest
from hostile import bomb_npz, image_folder, npy_header, npz, postscript

import pluribus as pb
from pluribus.data.catalogue import load
from pluribus.deploy.predictor import RECORD, make_predictor
from pluribus.models.by_name import ModelSpec
from pluribus.study import Study, conduct


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # importing torch takes three
    resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))


def command(folder, *words):
    ran = subprocess.run(
        [sys.executable, "-m", "pluribus", *map(str, words)],
        cwd=folder,
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in ran.stderr + ran.stdout
    return ran.returncode, ran.stderr


def test_training_on_an_archive_that_grows_writes_nothing(tmp_path):
    bomb_npz(tmp_path / "x.npz")
    code, said = command(tmp_path, "train", "--out", "trained", "--data", "npz:x.npz")
    assert code == 2 and "--unpack-limit" in said and [path.name for path in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.slow
def test_comparing_on_pictures_that_are_programs_starts_none(tmp_path):
    (image_folder(tmp_path / "photos") / "cat" / "x.png").write_bytes(postscript(tmp_path / "canary"))
    code, said = command(tmp_path, "compare", "--data", "folder:photos", "--methods", "single", "--out", "study")
    assert code == 2 and "cat/x.png" in said and [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_folder_that_names_code_gets_a_message(tmp_path):
    spec = ModelSpec("mlp", (4,), 3, width=0.05)
    make_predictor(spec, load("iris"), pb.deep(spec.build(), 2), None).save(tmp_path / "sent")
    record = json.loads((tmp_path / "sent" / RECORD).read_text())
    (tmp_path / "net.py").write_text("import pathlib; pathlib.Path('canary').touch()")
    (tmp_path / "new.csv").write_text("a\n1\n")
    (tmp_path / "sent" / RECORD).write_text(json.dumps({**record, "model": "python:net.py:build"}))
    code, said = command(tmp_path, "predict", "sent", "new.csv")
    assert code == 2 and "--model" in said and not (tmp_path / "canary").exists()


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
