"""Overlap of masks against closed forms, and the ends of the transitions against the methods that they lead to."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom
from torch import nn

import pluribus as pb
from pluribus import landscape as ls
from pluribus.methods.mask_sampler import mean_mask_iou

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(120, 6, generator=GENERATOR), torch.randint(3, (120,), generator=GENERATOR)
TRAIN, TEST, OUTSIDE = (X[:80], Y[:80]), (X[80:], Y[80:]), 4 * torch.randn(30, 6, generator=GENERATOR)
QUICK = {"seeds": 2, "epochs": 2, "lr": 0.01, "batch_size": 20}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def mask(*ones, width):
    return [float(i in ones) for i in range(width)]


def test_the_masks_of_figure_1_overlap_as_printed():
    """N = 4 masks with M = 2 ones; S = 2 gives 4 positions, S = 3 gives 6, one of which no mask uses."""
    first = [mask(0, 1, width=4), mask(0, 1, width=4), mask(0, 2, width=4), mask(0, 3, width=4)]
    second = [mask(0, 1, width=5), mask(1, 2, width=5), mask(2, 3, width=5), mask(3, 4, width=5)]
    assert mean_mask_iou(torch.tensor(first)) == pytest.approx((1 + 5 / 3) / 6)
    assert mean_mask_iou(torch.tensor(second)) == pytest.approx((3 / 3) / 6)
    assert [math.floor(100 * mean_mask_iou(torch.tensor(given))) / 100 for given in (first, second)] == [0.44, 0.16]


@pytest.mark.parametrize("ones, positions", [(1, 5), (2, 4), (2, 6), (7, 10), (40, 100), (5, 5)])
def test_the_expected_overlap_is_that_of_the_hypergeometric_law(ones, positions):
    law = hypergeom(positions, ones, ones)
    expected = sum(law.pmf(common) * common / (2 * ones - common) for common in range(ones + 1))
    assert ls.exact_iou(ones, positions) == pytest.approx(expected)


def test_overlap_and_size_come_out_as_the_closed_forms():
    found = ls.mask_overlap(sizes=(2, 4, 8), scales=(1.0, 2.0, 4.0), ones=64, draws=30)
    assert found["iou"].shape == found["size"].shape == (3, 3, 3)
    assert np.abs(found["size"][..., 0] - found["size_paper"]).max() < 0.05
    assert np.abs(found["iou"][..., 0] - found["iou_exact"]).max() < 0.02
    assert found["iou_paper"].tolist() == pytest.approx([1, 1 / 3, 1 / 7])
    assert (found["iou_exact"] >= found["iou_paper"] - 1e-12).all()  # the paper's form leaves out Jensen's gap
    assert found["size_paper"][:, 1].tolist() == pytest.approx([1.5, 1.875, 255 / 128])
    assert np.isnan(found["iou"][:, 0, 1:]).all()  # at scale 1 every draw overlaps fully: there is no interval
    low, high = (found["iou"][:, 1:, end] for end in (1, 2))
    assert ((low <= found["iou_exact"][1:]) & (found["iou_exact"][1:] <= high)).mean() > 0.7  # 95 % intervals


def test_the_transition_begins_at_one_network():
    """With S = 1 every mask is all ones: the same network, trained on the same rows."""
    found = ls.mask_transition(network(), TRAIN, TEST, scales=(1.0, 3.0), capacity=None, outside=OUTSIDE, **QUICK)
    assert found.settings == ["single", "S 1", "S 3", "deep"]
    for figure in ("accuracy", "nll", "ece", "parameters", "auroc msp", "outside entropy"):
        assert found.values("S 1", figure) == pytest.approx(found.values("single", figure), rel=1e-5)
    assert found.difference("S 3", "S 1", "mutual_information").value > 0
    assert max(found.values("single", "disagreement")) == 0 < min(found.values("S 3", "disagreement"))


def test_figures_are_those_of_the_ensemble_trained_apart():
    found = ls.measure_settings({"two": lambda: pb.deep(network(), 2)}, TRAIN, TEST, outside=OUTSIDE, **QUICK)
    assert found.interval("two", "nll").low < found.interval("two", "nll").value
    again = ls.measure_settings({"two": lambda: pb.deep(network(), 2)}, TRAIN, TEST, outside=OUTSIDE, **QUICK)
    assert all(found.values("two", name) == again.values("two", name) for name in found.figures)
    assert found.values("two", "nll")[0] != found.values("two", "nll")[1]

    trained = {}

    def make():
        trained["ensemble"] = pb.deep(network(), 2)
        return trained["ensemble"]

    once = ls.measure_settings({"two": make}, TRAIN, TEST, outside=OUTSIDE, shifts={2: [(X[80:] + 1, Y[80:])]}, **QUICK)
    inside, outside = trained["ensemble"].predict(TEST[0]), trained["ensemble"].predict(OUTSIDE)
    row = once.rows[-1]
    assert row["nll"] == pytest.approx(pb.evaluate(inside, TEST[1])["nll"])
    assert row["disagreement_by_error"] == pytest.approx(pb.evaluate(inside, TEST[1])["disagreement_by_error"])
    assert row["aupr max_logit"] == pytest.approx(pb.ood(inside, outside, "max_logit")["aupr"])
    shifted = pb.evaluate(trained["ensemble"].predict(X[80:] + 1), Y[80:])
    assert row["ece at 2"] == pytest.approx(shifted["ece"]) and row["nll at 2"] == pytest.approx(shifted["nll"])
    assert sum(row["reliability"][2]) == 40 and row["parameters"] == 2 * sum(p.numel() for p in network().parameters())


@pytest.mark.slow
def test_many_masks_lead_to_dropout_of_the_same_layers():
    found = ls.dropout_transition(network(), TRAIN, TEST, sizes=(2, 8), scale=2.0, **QUICK)
    assert found.settings == ["deep", "N 2", "N 8", "mc_dropout"]
    assert {row["parameters"] for row in found.rows if row["setting"] != "deep"} == {
        float(sum(p.numel() for p in network().parameters()))
    }
    with pytest.raises(ValueError, match="scale above 1"):
        ls.dropout_transition(network(), TRAIN, TEST, scale=1.0)


@pytest.mark.slow
def test_the_grid_has_every_overlap_with_every_capacity():
    found = ls.mask_grid(network(), TRAIN, TEST, scales=(1.0, 2.0), capacities=(0.5, 1.0), **{**QUICK, "seeds": 1})
    assert found.settings == ["single", "mc_dropout", "deep", "S 1, M 0.5", "S 1, M 1", "S 2, M 0.5", "S 2, M 1"]
    assert found.values("S 1, M 1", "parameters") == found.values("single", "parameters")
    assert found.values("S 1, M 0.5", "parameters") < found.values("S 2, M 0.5", "parameters")
    assert not found.interval("deep", "nll").known  # one seed has no interval


def test_the_rate_of_dropout_is_the_best_on_validation_data():
    best, found = ls.dropout_grid(network(), TRAIN, TEST, rates=(0.05, 0.9), **QUICK)
    losses = {rate: np.mean(found.values(f"rate {rate:g}", "nll")) for rate in (0.05, 0.9)}
    assert best == min(losses, key=losses.get)


def test_what_was_not_measured_is_named():
    found = ls.Measured([{"setting": "one", "seed": 0, "nll": 0.5}, {"setting": "one", "seed": 1, "nll": 0.7}])
    assert found.interval("one", "nll").value == pytest.approx(0.6) and found.curve("nll").shape == (1, 3)
    assert found.table(["nll"]).splitlines()[-1].startswith("| one | 0.6 ±")
    with pytest.raises(ValueError, match="no 'ece' of 'one'.*figures are 'nll'"):
        found.interval("one", "ece")
