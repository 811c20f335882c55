"""What a run stores of its cost: that of the frozen network, once it has given the ensemble's answers."""

import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus.study import costs
from pluribus.study.baselines import build_ensemble
from pluribus.study.costs import freeze_checked, measure_cost
from pluribus.study.run import load_data
from pluribus.study.settings import Run

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))

HIDDEN, INPUTS, CLASSES = 200, 2, 2  # of the network for the moons


def deployed(method: str, **settings: object) -> dict:
    run = Run("moons", "mlp", method, method, settings, size=3)
    data = load_data(run)
    return measure_cost(run, data, build_ensemble(run, data))


def test_what_members_share_is_counted_once_and_what_they_own_for_each():
    one = HIDDEN * (INPUTS + CLASSES)
    found = {method: deployed(method)["deployed"] for method in ("single", "deep", "multihead")}
    assert {name: cost["mult_adds"] for name, cost in found.items()} == {
        "single": one,
        "deep": 3 * one,
        "multihead": HIDDEN * INPUTS + 3 * HIDDEN * CLASSES,
    }
    assert found["deep"]["relative"]["mult_adds"] == 3 and found["deep"]["relative"]["parameters"] == 3
    assert found["single"]["relative"]["latency"] == {"1": 1.0, "32": 1.0}
    assert found["deep"]["memory"] > found["single"]["memory"] > 4 * one


def test_units_that_a_mask_drops_are_trained_but_not_deployed():
    """Each member computes its last layer with the units of its own mask; the first layer runs once."""
    run = Run("moons", "mlp", "masksembles", "masksembles", {"scale": 2.0}, size=3)
    data = load_data(run)
    ensemble = build_ensemble(run, data)
    found = measure_cost(run, data, ensemble)
    (mask,) = [buffer for name, buffer in ensemble.named_buffers() if buffer.shape == (3, HIDDEN)]
    used, kept = int((mask != 0).any(0).sum()), int((mask != 0).sum())
    assert found["deployed"]["mult_adds"] == used * INPUTS + kept * CLASSES
    assert found["mult_adds"] == HIDDEN * INPUTS + 3 * HIDDEN * CLASSES > found["deployed"]["mult_adds"]
    assert found["relative"]["mult_adds"] > found["deployed"]["relative"]["mult_adds"]


class LooksAtValues(nn.Module):
    """It takes another way for other values, so no graph of it is right."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if float(x.sum()) > 1e9 else -self.layer(x)


def test_what_cannot_be_frozen_keeps_the_ensemble_and_says_why():
    ensemble = pb.deep(LooksAtValues, 2)
    made, why = freeze_checked(ensemble, X[:2], X)
    assert made is ensemble and why


def test_a_frozen_network_that_gives_other_answers_is_not_taken(monkeypatch):
    def broken(ensemble, example):
        made = pb.freeze(ensemble, example)
        with torch.no_grad():
            next(iter(made.parameters())).add_(0.01)
        return made

    ensemble = pb.deep(nn.Linear(6, 3), 2)
    assert freeze_checked(ensemble, X[:2], X)[1] == ""
    monkeypatch.setattr(costs, "freeze", broken)
    assert freeze_checked(ensemble, X[:2], X) == (ensemble, "the frozen network gives different outputs")


def test_latencies_are_ratios_of_times_that_were_taken_in_turn(monkeypatch):
    """The oracle is a clock that gives the frozen ensemble, one network frozen, plain, and the ensemble their times."""
    monkeypatch.setattr(costs, "medians", lambda runs, device: [6.0, 2.0, 3.0, 12.0])
    found = deployed("deep")
    assert found["deployed"]["latency"] == {"1": 6.0, "32": 6.0}
    assert found["deployed"]["relative"]["latency"] == {"1": 3.0, "32": 3.0}
    assert found["deployed"]["relative"]["plain_latency"] == {"1": 2.0, "32": 2.0}
    assert (found["latency"], found["relative"]["latency"]) == (12.0, pytest.approx(4.0))
