"""The laboratory: questions are answered whichever way they come out, and the page and animation are there."""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pluribus.cli.app as cli
from pluribus import landscape as ls
from pluribus.landscape.laboratory.between_solutions import _valleys, connection, cut, dig, plane_between, stitched_cut
from pluribus.landscape.laboratory.exploration import QUESTIONS, explore
from pluribus.landscape.laboratory.material import Material, RunTraining, pairs_of, spread
from pluribus.landscape.laboratory.sources_of_randomness import _compare, sources_of_difference
from pluribus.landscape.laboratory.weights_and_functions import _own_neighbours, function_space, weight_space
from pluribus.report.questions import Question

CENTRES = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])


def rows(count, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=g)
    return CENTRES[y] + 1.2 * torch.randn(count, 2, generator=g), y


def network():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


def material(runs=2, epochs=6, **settings):
    torch.manual_seed(0)
    train, validation, test = rows(120, 0), rows(60, 1), rows(60, 2)
    found = ls.trajectories(network, train, test, runs=runs, epochs=epochs, lr=0.02, batch_size=30, start=True)
    sizes = {"grid": 5, "samples": 2, "steps": 5}
    return Material(found, train, validation, test, **sizes | settings)


PASTLESS = [name for name in QUESTIONS if name not in ("map", "size", "randomness", "chain")]  # those need a past

TRAINING = RunTraining(network, epochs=4, lr=0.02, batch_size=30)


@pytest.fixture(scope="module")
def small():
    return material(runs=3)


# ---------------------------------------------------------------- what is found


def test_pairs_are_told_apart_within_and_across():
    matrix = np.array([[0, 1, 2, 9, 9], [1, 0, 3, 9, 9], [2, 3, 0, 9, 5], [9, 9, 9, 0, 9], [9, 9, 5, 9, 0.0]])
    within, across = pairs_of(matrix, [3, 2])
    assert within.tolist() == [3.0] and across.tolist() == [5.0]  # the solution with the later half; two solutions


def test_copies_of_one_network_are_called_alike():
    one = network()
    alike = Material([one, one], rows(40, 0), rows(40, 1), rows(40, 2))
    assert weight_space(alike).found[0].startswith("No: the cosine between solutions is 1.000")
    assert function_space(alike).found[0] == "Two solutions disagree on 0.0 % of the test rows."


def test_disagreement_and_cosine_are_those_of_the_networks_themselves(small):
    x, y = small.test
    with torch.no_grad():
        labels = [run.solution(x).argmax(-1) for run in small.runs]
        vectors = [torch.cat([layer.weight.flatten() for layer in run.solution[::2]]) for run in small.runs]
    pairs = [(0, 1), (0, 2), (1, 2)]
    apart = np.array([(labels[i] != labels[j]).double().mean() for i, j in pairs])
    angles = np.array([torch.cosine_similarity(vectors[i], vectors[j], dim=0).item() for i, j in pairs])
    assert spread(apart, percent=True) in function_space(small).found[0]
    assert spread(angles) in weight_space(small).found[0]
    own = np.array([(label == y).double().mean() for label in labels])
    assert spread(own, percent=True) in function_space(small).found[-1]


def test_neighbours_of_two_clouds_are_their_own():
    near = [np.arange(6.0)[:, None] * [0.01, 0], 10 + np.arange(6.0)[:, None] * [0.01, 0]]
    assert _own_neighbours(near) == 1.0
    mixed = [np.stack([np.arange(6.0), np.full(6, k * 0.1)], 1) for k in range(2)]
    assert _own_neighbours(mixed) == 0.0


def test_the_plane_shows_the_losses_of_its_solutions(small):
    question, surface = plane_between(small), small.once(cut)
    svg = question.figures[0].panels[0].svg
    told = [float(n) for n in re.findall(r"<title>\([^)]*\): loss ([\d.e+-]+)", svg)]
    assert len(told) == 25 and told == pytest.approx(surface.loss.flatten(), rel=1e-3)
    assert "run 1, checkpoint 0" in svg and "run 2, checkpoint 6" in svg
    assert _valleys(surface)[0].startswith(("Two valleys", "No clear ridge"))


def test_a_tunnel_is_judged_against_the_straight_line(small):
    question = connection(small)
    x, y = small.test
    ends = [nn.functional.cross_entropy(run.solution(x), y).item() for run in small.runs[:2]]
    table = question.figures[0].rows
    assert float(table[0][1]) == pytest.approx(ends[0], abs=1e-3)
    assert float(table[-1][1]) == pytest.approx(ends[1], abs=1e-3)
    straight = np.array([float(row[1]) for row in table])
    chord = np.linspace(straight[0], straight[-1], len(straight))
    assert f"straight line {max(0, (straight - chord).max()):.2f}"[:-1] in question.found[0]


def test_the_stitched_cut_shows_what_was_measured_and_judges_the_middle_of_the_tunnel(small):
    question, path = stitched_cut(small), small.once(dig)
    fan = ls.stitched(path, small.test, grid=(5, 3))
    svg = question.figures[0].panels[1].svg
    told = [float(n) for n in re.findall(r"radius: accuracy ([\d.]+)", svg)]
    assert told == pytest.approx(fan.accuracy.flatten(), abs=1e-4) and len(question.figures[0].panels) == 4
    x, _ = small.test
    with torch.no_grad():
        first, middle, last = (path.at(t)(x).argmax(-1) for t in (0.0, 0.5, 1.0))
    apart = [100 * (middle != end).double().mean() for end in (first, last)]
    assert f"{apart[0]:.1f} % of the labels are not those of run 1 and {apart[1]:.1f} %" in question.found[0]
    assert small.once(dig) is path  # two questions share it


def test_sources_of_difference_are_told_as_they_were_measured(small):
    told = replace(small, training=TRAINING, retrained=2)
    question = sources_of_difference(told)
    x, _ = small.test
    for kind, (init, batches) in {
        "initialisation": ("different", "same"),
        "order of batches": ("same", "different"),
    }.items():
        runs = ls.trajectories(
            network, small.train, runs=2, init=init, batches=batches, lr=0.02, epochs=2, batch_size=30,
            optimizer="adam", schedule=lambda epoch: 0.5 ** (2 * epoch), together=False,
        )  # fmt: skip
        one, two = (run.solution(x).argmax(-1) for run in runs)
        assert f"{100 * (one != two).double().mean():.1f} % ({kind})" in question.found[0]
    assert "0.0 % (nothing)" in question.found[0] and len(question.figures[0].rows) == 12
    assert sources_of_difference(replace(told, retrained=0)) is None and sources_of_difference(small) is None


@pytest.mark.parametrize(
    ("cycles", "chains", "answer"),
    [([0.1, 0.2], [0.3], "No, not in any chain:"), ([0.1, 0.3], [0.25], "No:"), ([0.3], [0.2], "Yes:")],
)
def test_chains_are_judged_whichever_way_they_come_out(cycles, chains, answer):
    found = _compare(np.array(cycles), np.array(chains), np.array([0.4]))
    assert found[0].startswith(answer) and "40.0 %" in found[1]


# ---------------------------------------------------------------- the page


def test_a_question_is_added_by_one_line(small, tmp_path, monkeypatch):
    monkeypatch.setitem(QUESTIONS, "new", lambda material: Question("new", "New?", "Yes.", [f"{len(material.runs)}"]))
    found = explore(small, tmp_path / "page.html", only=["weights", "new"])
    assert [question.name for question in found] == ["weights", "new"]
    assert 'id="new">New?</h2>' in (tmp_path / "page.html").read_text()


def test_the_page_answers_every_question_and_the_animation_moves(small, tmp_path):
    said = []
    told = replace(small, say=said.append, training=TRAINING, outside=3 * small.test[0], retrained=2)
    found = explore(told, tmp_path / "page.html", about="three classes", command="pluribus landscape",
                    settings={"runs": "3"}, animation=tmp_path / "training.svg")  # fmt: skip
    page = (tmp_path / "page.html").read_text()
    assert [question.name for question in found] == list(QUESTIONS) and len(said) > 5
    for question in found:
        assert question.found and question.figures and f'id="{question.name}"' in page
    assert "not images, so corruptions are left out" in page and "nan" not in page.replace("nano", "")
    root = ElementTree.parse(tmp_path / "training.svg").getroot()
    moved = [e.get("attributeName") for e in root.iter() if e.tag.endswith("animate")]
    assert moved.count("stroke-dashoffset") == 4 and moved.count("opacity") == 14  # two runs of seven checkpoints


def test_a_gif_has_a_frame_for_every_checkpoint(small, tmp_path):
    image = pytest.importorskip("PIL.Image")
    from pluribus.landscape.laboratory.animation import animate

    surface = small.once(cut)
    animate(surface, dict(zip(small.names, small.runs[:2], strict=False)), small.styles, tmp_path / "training.gif")
    with image.open(tmp_path / "training.gif") as found:
        assert found.n_frames == 7 and max(found.size) == 480
        found.seek(0)
        first = np.array(found.convert("RGB")).astype(int)
        found.seek(6)
        assert np.abs(np.array(found.convert("RGB")).astype(int) - first).max() > 50


def test_networks_without_a_past_are_asked_what_they_can_answer(tmp_path):
    train, test = rows(60, 0), rows(40, 1)
    torch.manual_seed(0)
    members = Material([network(), network()], train, train, test, grid=4, samples=2, steps=2)
    found = explore(members, tmp_path / "page.html")
    assert [question.name for question in found] == PASTLESS
    assert "have no checkpoints" in (tmp_path / "page.html").read_text()
    with pytest.raises(ValueError, match="have no training history"):
        explore(members, tmp_path / "other.html", animation=tmp_path / "a.gif")
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize(("runs", "animation", "words"), [(1, None, "at least 2 runs"), (2, "a.mp4", ".gif or .svg")])
def test_what_cannot_be_done_is_said_before_anything_is_computed(small, tmp_path, runs, animation, words):
    few = replace(small, runs=small.runs[:runs])
    with pytest.raises(ValueError, match=words):
        explore(few, tmp_path / "page.html", animation=animation)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the command


@pytest.fixture
def pluribus(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pluribus", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capsys.readouterr()

    return run


QUICK = ["--rows", "80", "--grid", "4", "--samples", "2", "--steps", "2", "--retrained", "0", "--threads", "1"]


def test_the_command_trains_and_writes_the_page(pluribus):
    code, out, _ = pluribus(
        "landscape", "--data", "moons", "--runs", "2", "--epochs", "6", *QUICK, "--out", "a/page.html"
    )
    assert code == 0 and "The page: a/page.html" in out and "Are they the same function?" in out
    page = Path("a/page.html").read_text()
    assert "2 networks on moons: mlp" in page and "pluribus landscape --data moons" in page


def test_the_command_takes_a_class_of_your_own(pluribus):
    Path("net_of_mine.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    pass\n"
        "def build(inputs, num_classes):\n"
        "    return Net(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, num_classes))\n"
    )
    options = ["--data", "moons", "--runs", "2", "--epochs", "2", "--only", "weights"]
    code, out, err = pluribus("landscape", "--model", "python:net_of_mine.py:build", *options, *QUICK)
    assert code == 0 and "Do runs end in different places" in out, err


def test_the_command_takes_an_ensemble_that_was_trained(pluribus):
    settings = ["--data", "moons", "--method", "deep", "--size", "2", "--epochs", "2", "--risk", "0.4"]
    code, *_ = pluribus("train", "--out", "model", *settings, "--quiet", "--threads", "1")
    assert code == 0
    code, out, _ = pluribus("landscape", "--ensemble", "model", *QUICK, "--json")
    found = json.loads(out)
    assert code == 0 and list(found["questions"]) == PASTLESS
    assert "members of model" in Path(found["page"]).read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "diabetes"], "compares class labels, but diabetes is a regression"),
        (["--data", "moons", "--corruptions", "rain"], "'rain' is unknown"),
        (["--data", "moons", "--animation", "a.mp4"], ".gif or .svg"),
        (["--data", "moons", "--only", "weather"], "the question 'weather' is unknown"),
        (["--data", "moons", "--out", "."], "cannot be written"),
        (["--ensemble", "nothing"], "is not a trained ensemble"),
        (["--data", "moons", "--model", "nonsense"], "'nonsense' is unknown"),
    ],
)
def test_bad_input_is_said_in_a_line_and_nothing_is_written(pluribus, arguments, words):
    code, _, err = pluribus("landscape", *arguments, *QUICK)
    assert code == 2 and words in " ".join(err.split()) and "Traceback" not in err
    assert not Path("landscape.html").exists()
