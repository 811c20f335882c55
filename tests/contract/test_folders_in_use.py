"""Folders that commands write to: nothing leaves them through a link, and two processes do not share one."""

import subprocess
import sys

import pytest

from pluribus._common.atomic import only_process, refuse_links
from pluribus.data.catalogue import load
from pluribus.study import Study, conduct
from pluribus.study.settings import Run
from pluribus.workflows.predictor_training import train_predictor

SMALL = {"width": 0.05, "training": {"epochs": 1}}


@pytest.mark.parametrize("name", ["results", "training"])
def test_comparing_writes_nothing_through_a_link(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{name}' is a link, and nothing is written outside"):
        conduct(Study(data=["iris"], methods=["single"], model="mlp", **SMALL), tmp_path / "study")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_comparing_writes_no_epochs_of_a_run_through_a_link(tmp_path):
    study = Study(data=["iris"], methods=["single"], model="mlp", **SMALL)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "study" / "training").mkdir(parents=True)
    (tmp_path / "study" / "training" / study.runs()[0].name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        conduct(study, tmp_path / "study")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_training_writes_nothing_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "training").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="training' is a link"):
        train_predictor(Run(data="iris", model="mlp", **SMALL), load("iris"), tmp_path / "out")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_is_itself_a_link_is_the_one_that_was_asked_for(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    refuse_links("train", tmp_path / "out", "training")


CLAIM = """
import sys, time
from pathlib import Path
from pluribus._common.atomic import only_process
with only_process("train", Path(sys.argv[1])):
    print("claimed", flush=True)
    time.sleep(60)
"""


def test_a_folder_belongs_to_one_process_until_that_ends(tmp_path):
    with subprocess.Popen([sys.executable, "-c", CLAIM, tmp_path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(ValueError, match="another process is writing to .* choose another --out"):
            train_predictor(Run(data="iris", model="mlp", **SMALL), load("iris"), tmp_path)
        assert list(tmp_path.iterdir()) == []
        other.kill()
    with only_process("train", tmp_path):
        pass
