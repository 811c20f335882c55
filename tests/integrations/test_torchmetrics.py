"""Metrics over processes: what each has seen is joined, as torchmetrics does it."""

import pytest
import torch
from processes import in_two_processes

import pluribus as pb

NAMES = ("accuracy", "nll", "ece", "classwise_ece", "aurc", "disagreement", "mutual_information")


def values(rank: int, logits: torch.Tensor, target: torch.Tensor) -> dict[str, float]:
    rows = slice(0, 7) if rank == 0 else slice(7, None)  # unequal shares
    metrics = {name: pb.torchmetric(name) for name in NAMES}
    for metric in metrics.values():
        metric.update(pb.Classification.from_logits(logits[:, rows]), target[rows])
    return {name: float(metric.compute()) for name, metric in metrics.items()}


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path):
    pytest.importorskip("torchmetrics")
    logits, target = torch.randn(3, 20, 4), torch.randint(4, (20,))
    expected = pb.evaluate(pb.Classification.from_logits(logits), target)
    found = in_two_processes(values, tmp_path, logits, target)
    assert found == pytest.approx({name: expected[name] for name in NAMES}, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_whose_labels_are_all_ignored_adds_nothing(name):
    pytest.importorskip("torchmetrics")
    logits, target = torch.randn(3, 12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 4
    ignored, metric = torch.full((4,), -100), pb.torchmetric(name)
    assert metric(pb.Classification.from_logits(logits[:, :4]), ignored).isnan()
    for rows, y in ((slice(4, 8), target[4:8]), (slice(0, 4), ignored), (slice(8, 12), target[8:])):
        metric.update(pb.Classification.from_logits(logits[:, rows]), y)
    expected = pb.evaluate(pb.Classification.from_logits(logits[:, 4:]), target[4:])
    assert float(metric.compute()) == pytest.approx(expected[name], abs=1e-6)
