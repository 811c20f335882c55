"""One run of a study: what reaches the network in training, and how shifted and other test data are judged."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.nn.functional as F

import pluribus as pb
from pluribus import runs
from pluribus.recipes import Recipe
from pluribus.runs import Run, built, compute, loaded
from pluribus.splits import Points, Split

DIGITS = Run(data="digits", model="lenet", method="single", training={"epochs": 1})


@pytest.fixture(scope="module")
def digits():
    data = loaded(DIGITS)
    torch.manual_seed(0)
    return data, built(DIGITS, data).eval()


@pytest.mark.parametrize("augment", [None, {"flip": True, "crop": 1}])
def test_pictures_are_normalised_before_training_whether_augmented_or_not(augment, monkeypatch):
    seen = []
    loss = pb.Ensemble.loss

    def noted(self, batch, *args, **kwargs):
        seen.append(batch)
        return loss(self, batch, *args, **kwargs)

    monkeypatch.setattr(pb.Ensemble, "loss", noted)
    compute(dataclasses.replace(DIGITS, training={"epochs": 1, "augment": augment}))
    x = torch.cat(seen)
    assert abs(float(x.mean())) < 0.1
    assert abs(float(x.std()) - 1) < 0.1


def test_augmentation_leaves_validation_and_test_data_alone(digits):
    data, _ = digits
    plan = Recipe(augment={"flip": True, "crop": 1})
    x, y = data.train[:64]
    changed, targets = runs._augment(plan, data)(x, y)
    assert not torch.equal(changed, data.normalise(x))
    assert torch.equal(targets, y)
    assert torch.equal(runs.Normalised(data.test, data)[:5][0], data.normalise(data.test[:5][0]))


def likelihood(ensemble, data, x, y):
    with torch.no_grad():
        return float(F.nll_loss(ensemble(data.normalise(x)).softmax(-1).mean(0).log(), y))


def test_published_shifts_are_judged_one_severity_after_the_other(digits):
    data, ensemble = digits
    x, y = data.test[:100]
    negatives = [Split(Points(x.clone()), y), Split(Points(1 - x), y)]
    found = runs._shift(DIGITS, dataclasses.replace(data, shifted={"negatives": negatives}), ensemble)["negatives"]
    assert [row["severity"] for row in found] == [1, 2]
    expected = [likelihood(ensemble, data, pictures, y) for pictures in (x, 1 - x)]
    assert [row["nll"] for row in found] == pytest.approx(expected, rel=1e-4)
    assert expected[0] != expected[1]


def test_other_test_sets_are_judged_among_the_classes_that_occur_in_them(digits):
    data, ensemble = digits
    x, y = data.test[:]
    few = (y == 2) | (y == 5)
    x, y = x[few], y[few]
    changed = dataclasses.replace(data, variants={"few": Split(Points(x), y)}, subsets={"few": [2, 5]})
    figures = runs._variants(changed, ensemble)["few"]
    with torch.no_grad():
        chances = ensemble(data.normalise(x))[..., [2, 5]].softmax(-1).mean(0)
    right = (y == 5).long()
    assert figures["accuracy"] == pytest.approx(float((chances.argmax(-1) == right).float().mean()))
    assert figures["nll"] == pytest.approx(float(-chances.gather(1, right[:, None]).log().mean()), rel=1e-4)


ORPHAN = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pluribus.study import _watch
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_watch, initargs=(os.getpid(),))
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


@pytest.mark.slow
def test_workers_end_when_the_study_itself_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ORPHAN)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as study:
        worker = int(study.stdout.readline())
        study.send_signal(signal.SIGKILL)
        study.wait()
    for _ in range(300):
        if not is_alive(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker went on without its study")


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:  # one that nobody waits for is dead too
        return file.read().rpartition(")")[2].split()[0] != "Z"
