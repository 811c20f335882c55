"""Questions about what is inside: layers, curves, curvature, and the members of one network."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pluribus import landscape as ls
from pluribus.landscape.laboratory.between_solutions import trained_curves
from pluribus.landscape.laboratory.exploration import ON_REQUEST, explore
from pluribus.landscape.laboratory.hessian_spectra import loss_curvature
from pluribus.landscape.laboratory.masks_and_packing import (
    many_masks,
    overlapping_masks,
    packed_settings,
    sparse_layers,
)
from pluribus.landscape.laboratory.material import Material, RunTraining
from pluribus.landscape.laboratory.mimo_members import (
    members_of_one,
    subnetworks_apart,
    units_of_members,
)
from pluribus.landscape.laboratory.weights_and_functions import layer_similarity


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def network():
    return nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    train, test = rows(120, 0), rows(60, 1)
    runs = ls.trajectories(network, train, test, runs=2, epochs=8, lr=0.02, batch_size=30)
    training = RunTraining(network, epochs=8, lr=0.02, batch_size=30)
    return Material(runs, train, test, test, grid=4, steps=10, training=training)


def test_layers_are_told_as_they_are(small):
    question = layer_similarity(small)
    found = ls.cka(*small.solutions, small.test, debiased=True)
    for name, value in zip(["0", "2", "4"], np.diag(found), strict=True):
        assert f"{name} {value:.2f}" in question.found[1]
    assert "CKA" in question.figures[0].panels[0].svg
    alike = layer_similarity(replace(small, runs=[small.runs[0], small.runs[0]]))
    assert "is 1.000 [1.000, 1.000]; for 3 of 3 layers" in alike.found[0]


def test_a_curve_is_judged_against_the_straight_line(small):
    question = trained_curves(small)
    straight = ls.barrier(ls.line(*small.runs[:2]), small.test)
    assert f"straight line {straight:.3g}" in question.found[0]
    assert question.found[0].startswith(("Yes", "Not by these")) and len(question.figures[0].rows) == 25


def test_the_curvature_is_that_of_the_solutions(small):
    question = loss_curvature(small)
    exact = ls.spectrum(small.solutions[0], small.train, top=5)  # the whole matrix
    told = float(question.found[1].split("are ")[1].split(",")[0])
    assert told == pytest.approx(exact.values[0], rel=0.05)
    assert question.found[0].startswith(("In few", "Not in few"))


def test_members_of_one_network_are_trained_once_for_both_questions(small):
    plane, units = subnetworks_apart(small), units_of_members(small)
    mimo = small.once(members_of_one)["MIMO"][0]
    figures = ls.member_figures(mimo, small.test)
    assert all(f"disagree on {100 * figures['disagreement']:.1f} %" in line for line in plane.found[:2])
    assert [figure.title for figure in plane.figures] == ["MIMO", "naive multihead"]
    assert len(plane.figures[0].panels) == 5 and "projected onto it" in plane.figures[0].caption
    owners = ls.separation(mimo, small.test).owner
    assert f"members own {', '.join(str(int((owners == k).sum())) for k in range(3))} units" in units.found[0]
    assert [int(row[1]) for row in units.figures[0].rows] == [12, 8]


def test_questions_that_take_minutes_are_asked_by_name_alone(small, tmp_path):
    found = explore(small, tmp_path / "page.html", only=["layers", "units"])
    assert [question.name for question in found] == ["layers", "units"] and "units" in ON_REQUEST
    without = replace(small, training=None)
    assert units_of_members(without) is None and subnetworks_apart(without) is None
    with pytest.raises(ValueError, match="cannot answer 'units'"):
        explore(without, tmp_path / "page.html", only=["units"])


@pytest.mark.slow
def test_masks_and_packing_are_told_as_they_were_measured(small):
    told = replace(small, retrained=2, outside=5 * small.test[0], training=replace(small.training, epochs=2))
    masks, dropout, packing = overlapping_masks(told), many_masks(told), packed_settings(told)
    how = {"lr": 0.02, "batch_size": 30, "optimizer": "adam", "schedule": "quarters", "epochs": 1, "seeds": 2}
    found = ls.mask_transition(network(), told.train, told.test, scales=(1.1, 2.0, 3.0), **how)
    gap = found.difference("S 3", "deep", "nll")
    assert f"{gap.value:.4g} [{gap.low:.4g}, {gap.high:.4g}]" in masks.found[1]
    assert [row[0] for row in masks.figures[0].rows] == ["single", "S 1.1", "S 2", "S 3", "deep"]
    assert [figure.name for figure in masks.figures] == ["masks", "calibration", "overlap"]
    assert [row[0] for row in dropout.figures[0].rows] == ["deep", "N 2", "N 8", "N 32", "mc_dropout"]
    assert [row[0] for row in packing.figures[1].rows][:2] == ["single", "deep"] and len(packing.found) == 2
    assert all(overlapping_masks(replace(told, **no)) is None for no in ({"training": None}, {"retrained": 1}))


def test_sparse_layers_are_those_of_the_first_solution(small):
    question = sparse_layers(small)
    found = ls.layer_sparsity(small.solutions[0], small.test)
    half = np.interp(0.5, found["2"]["shares"], found["2"]["measured"])
    assert f"2 {half:.3g}" in question.found[1] and [row[0] for row in question.figures[0].rows] == ["0", "2", "4"]
