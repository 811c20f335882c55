"""A disk that is full: an error that says so, the earlier file as it was, and nothing half-written beside it."""

import json
import subprocess
import sys

import pytest

# In a process of its own whose files may not grow beyond some bytes, as on a disk that is full.
WRITE_ALL = """
import errno, json, resource, sys, warnings
from pathlib import Path
import lightning.pytorch, torch
from torch import nn
import fakes
import pluribus as pb
from pluribus.data.catalogue import load
from pluribus.deploy.predictor import make_predictor
from pluribus.landscape.checkpoints import Trajectory
from pluribus.models.by_name import ModelSpec
from pluribus.report.page import report
from pluribus.results.store import write
from pluribus.study.folder import _claim
from pluribus.study.grid import Study

ensemble, run = pb.deep(nn.Linear(4, 3), 2), fakes.classification("deep", examples=30, pictures=False)
weights = torch.zeros(2, 15)
trajectory = Trajectory(nn.Linear(4, 3), weights, {}, [0, 1], None, None, "classification", None)
spec, flowers = ModelSpec("mlp", (4,), 3, width=0.05), load("iris")
predictor = make_predictor(spec, flowers, pb.deep(spec.build(), 2), promise=False)
x, y = torch.randn(32, 4), torch.arange(32) % 3
study = Study(data=["iris"], methods=["single"])
home = Path(sys.argv[1])
write(home / "one run" / "a.npz", run.record, run.columns)

WRITERS = {
    "save": lambda at: pb.save(ensemble, at / "x"),
    "result": lambda at: write(at / "x", run.record, run.columns),
    "trajectory": lambda at: trajectory.save(at / "x"),
    "page": lambda at: report(home / "one run", at / "x"),
    "predictor": lambda at: predictor.save(at / "new"),
    "study": lambda at: _claim(study, at / "new", {}, ""),
    "checkpoint": lambda at: pb.fit(pb.deep(nn.Linear(4, 3), 2), (x, y), epochs=1, folder=at / "new"),
    "export": lambda at: pb.export(ensemble, x, at / "x.pt2"),
}

done = {}
for name, writer in WRITERS.items():
    (at := home / name).mkdir()
    for old in ("x", "x.pt2"):
        (at / old).write_text("old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    try:
        writer(at)
        said = "nothing"
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error))
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    files = [path for path in sorted(at.rglob("*")) if path.is_file()]
    left = {str(path.relative_to(at)): path.read_bytes()[:9].decode(errors="replace") for path in files}
    done[name] = said, left
print(json.dumps(done))
"""

NAMES = ("save", "result", "trajectory", "page", "predictor", "study", "checkpoint", "export")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    ran = subprocess.run([sys.executable, "-c", WRITE_ALL, str(folder)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow  # exports and trains once
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(outcome, name):
    said, left = outcome[name]
    assert said == "EFBIG" or "could not be written" in said and "File too large" in said
    assert left == {"x": "old", "x.pt2": "old"}
