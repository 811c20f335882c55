"""A plan's counts are those of the ensembles that it stands for; budgets filter exactly; nothing is allocated."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus.deploy.budget.counting import activations
from pluribus.deploy.budget.planning import build_planned, plan
from pluribus.methods import mask_sampler

X = torch.randn(2, 8)


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


class Images(nn.Module):
    """A stem, a block with normalisation, and a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.block(self.stem(x)).mean((2, 3)))


MODELS = {"perceptron": (perceptron, X), "images": (Images, torch.randn(2, 3, 8, 8))}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow
def test_counts_are_those_of_the_ensembles_really_built(name):
    make, x = MODELS[name]
    model = make()
    found = plan(model, x, sizes=(2, 4, 5))
    assert {row["method"] for row in found.rows} == set(pb.METHODS) - {"single"}
    for row in found.rows:
        cost = pb.cost(build_planned(row, model, x), x)
        assert (row["parameters"], row["forward_passes"]) == (cost.parameters, cost.forward_passes), row["call"]
        if row["method"] != "masksembles":  # which is counted as it is deployed
            assert row["mult_adds"] == cost.mult_adds, row["call"]


@pytest.fixture(scope="module")
def everything():
    """All that there is to choose from, without a budget."""
    return plan(perceptron(), X)


@pytest.mark.slow
def test_budgets_are_inclusive_and_exact(everything):
    found = everything
    limit = sorted(row["parameters"] for row in found.rows)[5]
    within = plan(perceptron(), X, parameters=limit, relative=False)
    assert [r["call"] for r in within.rows] == [r["call"] for r in found.rows if r["parameters"] <= limit]
    assert len(within.rows) + len(within.misses) == len(found.rows)
    assert all(row["misses"]["parameters"] == row["parameters"] / limit for row in within.misses)


def test_a_relative_budget_is_a_multiple_of_the_models_own_figures():
    found = plan(perceptron(), X, mult_adds=1.5, parameters=2.0)
    assert found.budget == {
        "parameters": 2 * found.single["parameters"],
        "mult_adds": 1.5 * found.single["mult_adds"],
    }
    assert all(row["mult_adds"] <= found.budget["mult_adds"] for row in found.rows)


def test_the_cheapest_comes_first(everything):
    rows = everything.rows
    keys = [(row["mult_adds"], row["parameters"], -row["size"]) for row in rows]
    assert keys == sorted(keys)


def test_a_budget_that_nothing_meets_shows_the_nearest_and_by_how_much():
    found = plan(perceptron(), X, parameters=0.01, methods=["deep", "multihead"])
    assert not found.rows
    assert found.misses[0]["method"] == "multihead"
    text = str(found)
    assert "Nothing fits. The nearest:" in text
    assert "misses by" in text


def test_a_method_that_cannot_be_applied_is_listed_with_the_reason():
    found = plan(nn.Linear(4, 3), torch.zeros(2, 4), sizes=(4,), methods=["packed", "deep"])
    assert [row["method"] for row in found.rows] == ["deep"]
    assert found.refused[0]["method"] == "packed"
    assert "no hidden width" in found.refused[0]["reason"]
    assert "cannot be used" in str(found)


def test_overlap_and_widths_follow_the_papers_formulas():
    rows = plan(perceptron(), X, sizes=(4,), scales=(2.0,), methods=["masksembles", "packed"]).rows
    masked = next(row for row in rows if row["method"] == "masksembles")
    assert masked["iou"] == 1 / 3
    assert masked["width"] == round(mask_sampler.ones(32, 4, 2.0) / 32, 4)
    packed = next(row for row in rows if row["method"] == "packed" and row["settings"]["alpha"] == 2)
    assert packed["width"] == 0.5


def test_layers_of_a_given_capacity_grow_to_the_expected_width():
    options = {"sizes": (4,), "scales": (2.0,), "capacities": (1.0,), "methods": ["masksembles"]}
    row = next(row for row in plan(perceptron(), X, **options).rows if row["expected"])
    width = round(32 * 2 * (1 - 0.5**4))  # m S (1 - (1 - 1/S)^n)
    assert row["parameters"] == (8 + 1) * width + (width + 1) * width + (width + 1) * 3


def test_memory_is_weights_and_the_most_results_alive_at_once():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    seen = activations(model.to("meta"), ((torch.empty(2, 8, device="meta"),), {}))
    assert seen.peak == 4 * 2 * (32 + 32)  # the linear layer's output beside its ReLU
    assert seen.total == 4 * 2 * (32 + 32 + 3)


def test_latency_is_measured_only_when_asked():
    quiet = plan(perceptron(), X, sizes=(2,), methods=["deep"])
    assert quiet.rows[0]["latency"] is None
    found = plan(perceptron(), X, sizes=(2,), methods=["deep"], measure=True)
    assert found.rows[0]["latency"] > 0
    assert found.single["latency"] > 0
    assert found.rows[0]["mult_adds"] == 2 * found.single["mult_adds"]
    with pytest.raises(ValueError, match="latency is measured, so model and example need values"):
        plan(perceptron().to("meta"), X.to("meta"), sizes=(2,), methods=["deep"], latency=2.0)


def test_masks_cost_what_is_left_when_their_channels_are_cut_measured_or_not():
    model = pb.models.mlp(8, 3, hidden=(32, 32, 32))
    share = mask_sampler.ones(32, 4, 2.0)
    expected = 8 * 32 + 4 * (2 * share**2 + share * 3)  # the first layer runs once
    for options in ({}, {"measure": True}):
        found = plan(model, X, sizes=(4,), methods=["masksembles"], scales=(2.0,), **options)
        assert found.rows[0]["mult_adds"] == expected
    x = torch.empty(1, 3, 32, 32, device="meta")
    resnet = plan(pb.models.resnet18, x, sizes=(4,), methods=["masksembles"], scales=(2.0,))
    assert resnet.rows[0]["relative"]["mult_adds"] == pytest.approx(1.44, abs=0.02)  # as test_frozen counts by hand


def test_ten_rows_are_printed_with_every_method_and_the_others_are_counted(everything):
    shown = everything.best
    assert len(shown) == 10 < len(everything.rows)
    assert {row["method"] for row in shown} == {row["method"] for row in everything.rows}
    assert f"{len(everything.rows) - 10} more fit" in str(everything)
    order = [(everything.is_thin(row), row["forecast"]) for row in shown]
    assert order == sorted(order)


# docs/capacity.md: the NLL of one network, of four packed members and of deep, LeNet-5 of width 1, 2 and 4.
@pytest.mark.parametrize(
    ("width", "one", "packed", "deep"), [(1, 0.5, 0.57, 0.47), (2, 0.46, 0.48, 0.43), (4, 0.45, 0.42, 0.42)]
)
def test_the_forecast_is_near_what_the_capacity_curve_measured(width, one, packed, deep):
    network = pb.models.lenet(width=width, channels=1, image=28)
    settings = {"sizes": (4,), "methods": ["deep", "packed"], "alphas": (2,), "gammas": (1,)}
    found = {row["method"]: row["forecast"] for row in plan(network, torch.zeros(1, 1, 28, 28), **settings).rows}
    assert found["packed"] == pytest.approx(packed / one, abs=0.06)
    assert found["deep"] == pytest.approx(deep / one, abs=0.06)


def test_eight_thin_members_of_a_network_of_19_000_weights_are_not_the_first_suggestion():
    network = pb.models.mlp(inputs=64, num_classes=10, hidden=(112, 100))
    found = plan(network, torch.zeros(1, 64), parameters=1.5, sizes=(8,), methods=["packed", "mc_dropout"])
    assert 18_000 < found.single["parameters"] < 20_000
    packed = [row for row in found.rows if row["method"] == "packed"]
    assert packed and all(row["forecast"] > 1 for row in packed)
    assert found.best[0]["method"] != "packed" and found.best[0]["forecast"] < 1
    assert "packed M = 8" in str(found) and "Probably worse" in str(found)


def test_the_model_stays_as_it_was():
    model = perceptron().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan(model, X, sizes=(2,))
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


PEAK = """
import torch
from memory import peak_memory
from pluribus import models
from pluribus.deploy.budget.planning import plan
plan(models.mlp, torch.empty(1, 3072, device="meta"), sizes=(2,), methods=["deep", "multihead"])
before = peak_memory()
x = torch.empty(1, 3, 224, 224, device="meta")
wide = lambda: models.resnet50(width=4, num_classes=1000, style="imagenet")
found = plan(wide, x, sizes=(2,), methods=["deep", "multihead"])
after = peak_memory()
print(found.single["parameters"], after - before)
"""


@pytest.mark.slow
def test_resnet50x4_is_planned_without_its_weights():
    printed = subprocess.run([sys.executable, "-c", PEAK], check=True, capture_output=True, text=True).stdout
    parameters, mebibytes = printed.split()
    assert int(parameters) > 300_000_000  # 1.2 GiB and more of weights
    assert float(mebibytes) < 150


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ["many"]}, "the method 'many' is unknown"),
        ({"sizes": (1, 2)}, "sizes must be whole numbers of at least 2"),
        ({"parameters": -1}, "parameters must be a positive number"),
    ],
)
def test_what_cannot_be_planned_is_said(options, words):
    with pytest.raises(ValueError, match=words):
        plan(perceptron(), X, **options)
