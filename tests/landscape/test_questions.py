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
from pluribus.landscape.laboratory import questions
from pluribus.landscape.laboratory.exploration import ON_REQUEST, explore
from pluribus.landscape.laboratory.questions import QUESTIONS as OF_SETTINGS
from pluribus.landscape.laboratory.questions import (
    layer_similarity,
    loss_curvature,
    sparse_layers,
    trained_curves,
)
from pluribus.landscape.material import Material, RunTraining
from pluribus.landscape.studies import members
from pluribus.landscape.studies.members import members_of_one
from pluribus.landscape.studies.sweeps import SWEEPS, measure_sweep
from pluribus.training.batching import mix_seeds


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
    assert (
        question.found[0].startswith(("Yes", "Not by these"))
        and [len(row) for row in question.figures[0].rows] == [26] * 3
    )


def test_the_curvature_is_that_of_the_solutions(small):
    question = loss_curvature(small)
    exact = ls.spectrum(small.solutions[0], small.train, top=5)  # the whole matrix
    told = float(question.found[1].split("are ")[1].split(",")[0])
    assert told == pytest.approx(exact.values[0], rel=0.05)
    assert question.found[0].startswith(("In few", "Not only in a few"))


def labels(network, x):
    with torch.no_grad():
        return network.eval()(x).argmax(-1)


def test_members_of_one_network_are_trained_once_for_all_their_questions(small):
    given = replace(small, training=replace(small.training, epochs=4))
    plane, courses, units = (ON_REQUEST[name](given) for name in ("subnetworks", "courses", "units"))
    said = labels(given.once(members_of_one)["mimo"][0], given.test[0])  # (members, rows)
    apart = np.mean([(said[i] != said[j]).double().mean().item() for i, j in ((0, 1), (0, 2), (1, 2))])
    assert f"MIMO: disagreement of two members: {apart:.3g}." in plane.found
    assert [figure.title for figure in plane.figures] == ["MIMO", "Naive multihead"]
    assert len(plane.figures[0].panels) == 4 and "projected onto it" in plane.figures[0].caption
    assert [panel.heading for panel in courses.figures[0].panels] == ["MIMO", "Naive multihead"]
    owners = ls.separation(given.once(members_of_one)["mimo"][0], given.test).owner
    rows = units.figures[1].rows
    assert [int(row[1]) for row in rows] == [12, 8] and units.figures[0].title == "Whose unit is it? M = 2"
    assert [sum(int(row[2 + k]) for row in rows) for k in range(3)] == [int((owners == k).sum()) for k in range(3)]


def test_courses_that_end_apart_are_told_from_those_that_end_together(small, monkeypatch):
    """Answers by hand: members that agree on all rows, or have a label each; nobody changes at the end."""

    def course(label):
        return ls.Course(torch.eye(3)[torch.full((6, 60), label)].log().clamp(min=-20), list(range(6)))

    made = {"mimo": (None, [course(i) for i in range(3)]), "multihead": (None, [course(0) for _ in range(3)])}
    monkeypatch.setattr(members, "members_of_one", lambda material: made)
    values = members.member_courses(small).values
    half = 0.5 / 60
    assert values["mimo_courses"] == pytest.approx((1 + half) / half) and values["multihead_courses"] == 1.0


def test_questions_that_take_minutes_are_asked_by_name_alone(small, tmp_path):
    found = explore(small, tmp_path / "page.html", only=["layers", "curvature"])
    assert [question.name for question in found] == ["layers", "curvature"] and "curvature" in ON_REQUEST
    without = replace(small, training=None)
    with pytest.raises(ValueError, match="cannot answer 'units'"):
        explore(without, tmp_path / "page.html", only=["units"])


ALONE = ("curve", "curvature", "bias", "sinusoids")  # questions that need no training of the runs' network


@pytest.mark.parametrize("name", [name for name in ON_REQUEST if name not in ALONE])
def test_questions_about_training_need_to_know_how(small, name):
    assert ON_REQUEST[name](replace(small, training=None)) is None
    if name in OF_SETTINGS:
        assert ON_REQUEST[name](replace(small, retrained=1)) is None


@pytest.fixture
def given(small):
    return replace(small, retrained=2, outside=5 * small.test[0], training=replace(small.training, epochs=2))


def trained_apart(given, make, seed=0, **options):
    """What a sweep trains for a seed, by `pb.fit` alone."""
    with torch.random.fork_rng():
        torch.manual_seed(mix_seeds(seed, 11))
        made = make()
        how = {"lr": 0.02, "batch_size": 30, "optimizer": "adam", "schedule": "quarters", "epochs": 1, **options}
        pb.fit(made, given.train, seed=mix_seeds(seed, 12), **how)
        torch.manual_seed(0)
        return made.predict(given.test[0])


def test_a_sweep_trains_what_its_labels_say(given):
    """Each kind of setting: an argument of the method, its size, a penalty, a width; built and trained apart."""
    x, y = given.train[0][:2], given.test[1]
    cases = {
        "masks": ("masksembles scale=2.0 capacity=1.0", lambda: pb.masksembles(network(), 4, 2.0, 1.0, x), {}),
        "members": ("mimo size=2", lambda: pb.mimo(network(), 2, batch_repetition=4, example=x, init="different"), {}),
        "l1": ("mimo size=1 l1=0.001", lambda: pb.mimo(network(), 1, batch_repetition=4, example=x, init="different"),
               {"l1": 1e-3, "weight_decay": 0.0}),
        "widths": ("single width=2", lambda: (network(), pb.single(pb.packed(network(), 1, 2, example=x).member(0)))[1],
                   None),
    }  # fmt: skip
    for name, (label, make, options) in cases.items():
        brief = {axis: [value for value in values if f"{axis}={value}" in label.split()] for axis, values in
                 SWEEPS[name].short.items()}  # fmt: skip
        sweep = replace(SWEEPS[name], brief=brief, methods=(label.split()[0],))
        found = measure_sweep(given, sweep)
        assert found.settings == [label]
        if options is None:  # a network of twice the widths, whichever its weights
            wide = sum(p.numel() for p in network_of_width(2).parameters())
            assert found.values(label, "parameters") == [wide, wide]
            continue
        for seed in (0, 1):
            apart = pb.evaluate(trained_apart(given, make, seed, **options), y)
            assert found.values(label, "nll")[seed] == pytest.approx(apart["nll"], rel=1e-5), label


def network_of_width(width):
    first, second = int(12 * width), int(8 * width)
    return nn.Sequential(nn.Linear(3, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OF_SETTINGS if name != "thin"])
def test_every_question_about_settings_is_answered(given, name):
    question = ON_REQUEST[name](given)
    labels = [label for sweep in OF_SETTINGS[name] for label, *_ in SWEEPS[sweep].labels()]
    assert [row[0] for row in question.figures[-1].rows] == labels and len(question.found) > 2
    assert not any("nan" in line for line in question.found)


@pytest.mark.slow
def test_thin_members_are_judged_on_the_corrupted_images(small):
    x = torch.rand(60, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    y = (x.mean((1, 2, 3)) > 0.5).long()

    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    training = RunTraining(build, epochs=2, lr=0.02, batch_size=30)
    given = replace(
        small, train=(x, y), test=(x - 0.5, y), images=(x, y), normalise=lambda x: x - 0.5, training=training,
        retrained=2, severities=(1, 5), corruptions=("contrast",),
    )  # fmt: skip
    found = measure_sweep(given, replace(SWEEPS["thin"], methods=("single",)))
    judged = []
    for severity in (1, 5):
        torch.manual_seed(mix_seeds(0, 11))
        made = pb.single(build())
        pb.fit(made, (x, y), seed=mix_seeds(0, 12), lr=0.02, batch_size=30, schedule="quarters", epochs=1)
        judged.append(pb.evaluate(made.predict(corrupt(x, "contrast", severity) - 0.5), y)["ece"])
    assert found.values("single", "cece")[0] == pytest.approx(np.mean(judged), rel=1e-5)
    with pytest.raises(ValueError, match="corruptions need images"):
        ON_REQUEST["thin"](replace(given, images=None))


@pytest.mark.slow
def test_doubt_beyond_the_data_is_that_of_the_plane(small, monkeypatch):
    monkeypatch.setitem(questions.SINUSOIDS, "epochs", 2)
    monkeypatch.setitem(questions.SINUSOIDS, "points", 21)
    question = ON_REQUEST["sinusoids"](replace(small, retrained=2))
    headings = [panel.heading for panel in question.figures[0].panels]
    assert headings == ["single", "S 1.1", "S 2", "S 3", "S 10", "deep"]
    assert all(panel.svg.count("entropy ") >= 21 * 11 for panel in question.figures[0].panels)
    assert ON_REQUEST["sinusoids"](replace(small, retrained=0)) is None


def test_bias_and_variance_are_those_of_the_curve(small, monkeypatch):
    for name, value in (("sizes", 3), ("repeats", 4), ("steps", 30)):
        monkeypatch.setitem(questions.CURVE, name, value)
    question = questions.bias_question(replace(small, retrained=2))

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
    found = ls.bias_variance(make, draw_curve, [1, 2, 3], 4, steps=30, test=draw_curve(-1, 3000))
    value, low, high = (1000 * end for end in found.difference("variance", 3, 1))
    assert f"variance changes by {value:.3f} [{low:.3f}, {high:.3f}]" in question.found[0]
    assert questions.bias_question(replace(small, retrained=1)) is None


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
