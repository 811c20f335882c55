"""Work that is killed at random moments and started again: what comes out must be what it is without a kill.

`python kills.py PLACE KIND COUNT` prints how many of the kills hit, and what went wrong, as JSON.
"""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from good_folders import TRAINING, command
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

X, Y = torch.randn(600, 4, generator=torch.Generator().manual_seed(3)), torch.arange(600) % 3

LONG = [word if word != "2" else "40" for word in TRAINING]  # epochs


def train() -> dict[str, object]:
    command("train", *LONG, "--size", "2", "--method", "deep", "--out", "trained", "--quiet")
    record = json.loads(Path("trained/bundle.json").read_text())
    return {"record": record, "weights": Path("trained/ensemble.safetensors").read_bytes()}


def compare() -> dict[str, object]:
    command(
        "compare", *LONG, "--methods", "single,deep", "--seeds", "1", "--jobs", "1", "--yes", "--out", "study", "-q"
    )
    found = {}
    for path in sorted(Path("study/results").glob("*.npz")):
        with np.load(path) as stored:
            record = json.loads(str(stored["record"]))
            found |= {f"{path.name} {name}": stored[name].tobytes() for name in stored.files if name != "record"}
        found[path.name] = {name: record[name] for name in ("metrics", "run", "seed", "classes")}
    return found


def trajectory() -> dict[str, object]:
    torch.manual_seed(0)
    ensemble, recorder = pb.single(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))), ls.Recorder((X, Y))
    pb.fit(ensemble, (X, Y), epochs=30, batch_size=60, folder="run", callbacks=[recorder], progress=False)
    recorder.trajectory().save("trajectory.safetensors")
    return {"file": Path("trajectory.safetensors").read_bytes()}


def surface() -> dict[str, object]:
    networks = []
    for seed in range(3):
        torch.manual_seed(seed)
        networks.append(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3)))
    found = ls.surface(ls.plane(*networks), (X, Y), grid=25, path="points.npz")
    return {"loss": np.asarray(found.loss).tobytes()}


KINDS = {"train": train, "compare": compare, "trajectory": trajectory, "surface": surface}


def be_killed(top: Path, kind: str, count: int) -> dict[str, object]:
    """How many of so many kills came before the end, and what was not as it is without a kill."""
    chance, faults, hit = random.Random(kind), [], 0
    started = time.monotonic()
    expected = _finish(top / "whole", kind)
    whole = time.monotonic() - started
    for i in range(count):
        place = top / f"killed-{i}"
        place.mkdir()
        child = _start(place, kind, None)
        time.sleep(chance.uniform(0.05, 0.9) * whole)
        os.kill(child, signal.SIGKILL)
        hit += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if (found := _finish(place, kind)) != expected:
            faults.append(f"kill {i}: it ended otherwise: {found[:80]!r}")
        shutil.rmtree(place)
    return {"kind": kind, "kills": count, "before the end": hit, "seconds": round(whole, 1), "faults": faults}


def _finish(place: Path, kind: str) -> bytes:
    """What the work gives when nothing disturbs it."""
    place.mkdir(exist_ok=True)
    receive, send = os.pipe()
    child = _start(place, kind, send)
    os.close(send)
    with os.fdopen(receive, "rb") as told:
        found = told.read()
    return found if os.waitpid(child, 0)[1] == 0 else b"it failed"


def _start(place: Path, kind: str, send: int | None) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.chdir(place)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = KINDS[kind]()
        if send is not None:
            with os.fdopen(send, "wb") as told:
                told.write(repr(found).encode())
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    import lightning.pytorch  # noqa: F401  loaded once for all
    import sklearn.datasets  # noqa: F401

    import pluribus.cli.app  # noqa: F401

    print(json.dumps(be_killed(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])), indent=1))
