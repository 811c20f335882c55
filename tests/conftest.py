"""What every test shares: one thread, fixed seeds, and help for a torchvision that does not fit torch."""

import gc
import os
import random
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

SUPPORT = str(Path(__file__).parent / "support")
if "DeclaresOperators" not in {type(finder).__name__ for finder in sys.meta_path}:
    exec((Path(SUPPORT) / "sitecustomize.py").read_text())  # its name may be taken by the environment's own
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))  # of the commands

torch.set_num_threads(1)
hypothesis.settings.register_profile("pluribus", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("pluribus")


@pytest.fixture(autouse=True)
def fixed_seeds_and_one_thread():
    torch.set_num_threads(1)  # a command that ran in this process may have set more
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def pluribus(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty folder, and gives its exit code, output and messages."""
    from pluribus.cli.app import main

    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pluribus", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    return run


def pytest_collection_finish(session):
    """What was imported and collected stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
