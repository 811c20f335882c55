"""Questions about what is inside: layers, curves, curvature, and the members of one network."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls
from pluribus.data.corruptions import corrupt
from pluribus.landscape.analyses.bias_variance import draw_curve
from pluribus.landscape.laboratory import settings
from pluribus.landscape.laboratory.between_solutions import trained_curves
from pluribus.landscape.laboratory.exploration import ON_REQUEST, explore
from pluribus.landscape.laboratory.hessian_spectra import loss_curvature
from pluribus.landscape.laboratory.layers import layer_similarity, sparse_layers
from pluribus.landscape.laboratory.mimo_members import members_of_one, subnetworks_apart, units_of_members
from pluribus.landscape.material import Material, RunTraining
from pluribus.results.intervals import t_interval


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
    assert question.found[0].startswith(("In few", "Not only in a few"))


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


HOW = {"lr": 0.02, "batch_size": 30, "optimizer": "adam", "schedule": "quarters", "epochs": 1, "seeds": 2}

WITHOUT = [swept.name for swept in settings.SWEPT if swept.name not in ("sinusoids", "thin")]


def told(interval):
    return f"{interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}]"


def settings_of(question):
    return [row[0] for row in question.figures[0].rows]


def number(interval):
    """A difference as it stands in a sentence."""
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


@pytest.fixture
def given(small):
    return replace(small, retrained=2, outside=5 * small.test[0], training=replace(small.training, epochs=2))


@pytest.mark.parametrize("name", WITHOUT)
def test_questions_about_settings_need_training_and_seeds(small, name):
    assert ON_REQUEST[name](replace(small, training=None)) is None
    assert ON_REQUEST[name](replace(small, retrained=1)) is None


@pytest.mark.slow
def test_masks_and_packing_are_told_as_they_were_measured(given):
    overlap, dropout, packing = (ON_REQUEST[name](given) for name in ("masks", "dropout", "packing"))
    found = ls.mask_transition(network(), given.train, given.test, scales=(1.1, 2.0, 3.0), outside=given.outside, **HOW)
    assert number(found.difference("S 3", "single", "nll")) in overlap.found[3]
    assert overlap.figures[0].rows[3][2] == told(found.interval("S 3", "nll"))
    assert settings_of(overlap) == ["one network", "S 1.1", "S 2", "S 3", "independent networks"]
    assert [figure.name for figure in overlap.figures] == ["masks", "calibration", "overlap"]
    assert settings_of(dropout) == ["independent networks", "N 2", "N 8", "N 32", "MC-Dropout"]
    assert [row[0] for row in packing.figures[1].rows][:2] == ["one network", "independent networks"]


def network_of_width(width):
    first, second = int(12 * width), int(8 * width)
    return nn.Sequential(nn.Linear(3, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 3))


@pytest.mark.slow
def test_spans_and_widths_are_told_as_they_were_measured(given):
    span, widths = ON_REQUEST["span"](given), ON_REQUEST["widths"](given)
    found = ls.mask_grid(network(), given.train, given.test, scales=(2.0, 3.0), capacities=(0.5, 1.0, 2.0), **HOW)
    assert settings_of(span)[3:5] == ["S 2, M 0.5", "S 2, M 1"] and len(settings_of(span)) == 9
    assert span.figures[0].rows[4][3] == told(found.interval("S 2, M 1", "ece"))
    found = ls.network_widths(network_of_width, given.train, given.test, widths=(0.25, 0.5, 1.0, 2.0), **HOW)
    assert [row[-1].split()[0] for row in widths.figures[0].rows] == [
        f"{sum(p.numel() for p in network_of_width(width).parameters())}" for width in (0.25, 0.5, 1.0, 2.0)
    ]
    assert number(found.difference("width 2", "width 0.25", "accuracy")) in widths.found[1]


@pytest.mark.slow
def test_thin_members_are_judged_on_the_corrupted_images(small):
    x = torch.rand(60, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    y = (x.mean((1, 2, 3)) > 0.5).long()

    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    training = RunTraining(build, epochs=2, lr=0.02, batch_size=30)
    given = replace(
        small, train=(x, y), test=(x - 0.5, y), images=(x, y), normalise=lambda x: x - 0.5, training=training,
        retrained=2, severities=(5,), corruptions=("contrast",),
    )  # fmt: skip
    thin = ON_REQUEST["thin"](given)
    shifts = {5: [(corrupt(x, "contrast", 5) - 0.5, y)]}
    found = ls.mask_transition(
        build(), (x, y), (x - 0.5, y), scales=(1.1, 2.0, 3.0), capacity=None, shifts=shifts, **HOW
    )
    assert number(found.difference("S 3", "single", "ece at 5")) in thin.found[1]
    assert thin.figures[0].rows[3][3] == told(found.interval("S 3", "ece at 5"))
    with pytest.raises(ValueError, match="corruptions need images"):
        ON_REQUEST["thin"](replace(given, images=None))


@pytest.mark.slow
def test_settings_of_mimo_are_told_as_they_were_measured(given):
    def make(size, *repeated):
        return pb.mimo(network(), size, *repeated, example=given.train[0][:2], init="different")

    members = ls.sweep(make, [1, 2, 3, 4], given.train, given.test, **HOW)
    question = ON_REQUEST["members"](given)
    assert number(members.difference(4, 1, "member_accuracy")) in question.found[1]
    assert question.figures[0].rows[2][2] == told(members.interval(3, "log_likelihood"))
    shared = ls.sweep(lambda rho: make(2, rho), [0.0, 0.5], given.train, given.test, **HOW)
    assert number(shared.difference(0.5, 0.0, "log_likelihood")) in ON_REQUEST["repetition"](given).found[1]
    assert settings_of(ON_REQUEST["batches"](given)) == ["1", "4"]
    paths = {
        size: ls.regularization_path(lambda size=size: make(size), given.train, given.test, l2=[0.0, 1e-2], **HOW)
        for size in (1, 3)
    }
    question = ON_REQUEST["penalties"](given)
    lost = {
        size: np.subtract(path.values(("l2", 1e-2), "log_likelihood"), path.values(("l2", 0.0), "log_likelihood"))
        for size, path in paths.items()
    }
    assert number(t_interval((lost[3] - lost[1]).tolist())) in question.found[2]
    assert question.figures[0].rows[-1][3] == told(paths[3].interval(("l2", 1e-2), "share"))
    question = ON_REQUEST["methods"](given)
    deep = ls.sweep(lambda name: pb.deep(network(), 3), ["deep"], given.train, given.test, **HOW)
    assert settings_of(question)[1] == "TreeNet"
    assert question.figures[0].rows[4][1:3] == [told(deep.interval("deep", name)) for name in ("disagreement", "kl")]


@pytest.mark.slow
def test_doubt_beyond_the_data_is_that_of_the_plane(small, monkeypatch):
    monkeypatch.setattr(settings, "SINUSOID_EPOCHS", 6)
    question = ON_REQUEST["sinusoids"](replace(small, retrained=2))
    headings = [panel.heading for panel in question.figures[1].panels]
    assert headings == ["one network", "S 1.1", "S 2", "S 3", "S 10", "independent networks"]
    assert float(question.figures[0].rows[0][2].split()[0]) < float(question.figures[0].rows[4][2].split()[0])
    assert all(panel.svg.count("entropy ") >= 41 * 17 for panel in question.figures[1].panels)
    assert ON_REQUEST["sinusoids"](replace(small, retrained=0)) is None


def test_bias_and_variance_are_those_of_the_curve(small, monkeypatch):
    monkeypatch.setattr(settings, "CURVE_SIZES", (1, 3))
    monkeypatch.setattr(settings, "CURVE_SETS", 4)
    monkeypatch.setattr(settings, "CURVE_STEPS", 30)
    question = settings.bias_of_members(replace(small, retrained=2))

    def make(size):
        network = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
        ensemble = pb.mimo(network, size, example=torch.zeros(2, 1), init="different")
        ensemble.task = "regression"
        return ensemble

    x, y = (t.double() for t in draw_curve(-1, 3000))
    x = 0.25 + x * 0.5 / 12**0.5
    curve = x + 0.3 * torch.sin(2 * torch.pi * x) + 0.3 * torch.sin(4 * torch.pi * x)
    slope = 1 + 0.6 * torch.pi * torch.cos(2 * torch.pi * x) + 1.2 * torch.pi * torch.cos(4 * torch.pi * x)
    assert 0 <= x.min() < x.max() <= 0.5
    assert ((y - curve) / slope).median().abs() < 2e-3 and 0.018 < ((y - curve) / slope)[:, 0].quantile(0.84) < 0.022
    found = ls.bias_variance(make, draw_curve, [1, 3], 4, steps=30, test=draw_curve(-1, 3000))
    assert told(found.difference("variance", 3, 1)) in question.found[0]
    ends = [f"{end:.4g}" for name in ("bias", "variance", "error") for end in found.interval(name, 3)]
    assert question.figures[0].rows[1] == ["M = 3", *ends]
    assert settings.bias_of_members(replace(small, retrained=1)) is None


def test_a_question_that_a_network_refuses_leaves_the_others(small, tmp_path, monkeypatch):
    def refuse(material):
        raise ValueError("masksembles: needs a hidden layer.")

    said = []
    monkeypatch.setitem(ON_REQUEST, "masks", refuse)
    found = explore(replace(small, say=said.append), tmp_path / "page.html", only=["layers", "masks"])
    reason = "The question 'masks' was not answered: masksembles: needs a hidden layer."
    assert [question.name for question in found] == ["layers"] and reason in said
    assert "needs a hidden layer" in (tmp_path / "page.html").read_text().split("Not shown")[1]
    with pytest.raises(ValueError, match="cannot answer 'masks'.*needs a hidden layer"):
        explore(small, tmp_path / "none.html", only=["masks"])
    assert not (tmp_path / "none.html").exists()


def test_sparse_layers_are_those_of_the_first_solution(small):
    question = sparse_layers(small)
    found = ls.layer_sparsity(small.solutions[0], small.test)
    half = np.interp(0.5, found["2"]["shares"], found["2"]["measured"])
    assert f"2 {half:.3g}" in question.found[1] and [row[0] for row in question.figures[0].rows] == ["0", "2", "4"]
