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

import pluribus as pb
import pluribus.cli.app as cli
from pluribus import landscape as ls
from pluribus.landscape.laboratory.drawing import SECTIONS
from pluribus.landscape.laboratory.exploration import QUESTIONS, explore
from pluribus.landscape.material import Material, RunTraining
from pluribus.landscape.studies.fort import MEASURES, cut, dig
from pluribus.training.batching import mix_seeds

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


PASTLESS = [
    name for name in QUESTIONS if name not in ("map", "size", "shift", "randomness", "chain")
]  # those need a past

TRAINING = RunTraining(network, epochs=4, lr=0.02, batch_size=30)


@pytest.fixture(scope="module")
def small():
    return material(runs=3)


# ---------------------------------------------------------------- what is found


def test_copies_of_one_network_are_called_alike():
    one = network()
    alike = Material([one, one], rows(40, 0), rows(40, 1), rows(40, 2))
    assert QUESTIONS["weights"](alike).found[0].startswith("Does not hold here: solutions of different")
    assert MEASURES["functions"](alike).values["apart"] == 0.0


def solutions_of(given):
    x, _ = given.test
    with torch.no_grad():
        return torch.stack([run.solution(x).log_softmax(-1) for run in given.runs])


PAIRS = [(0, 1), (0, 2), (1, 2)]


def test_disagreement_and_cosine_are_those_of_the_networks_themselves(small):
    said, y = solutions_of(small), small.test[1]
    labels = said.argmax(-1)
    vectors = [torch.cat([layer.weight.flatten() for layer in run.solution[::2]]) for run in small.runs]
    apart = [(labels[i] != labels[j]).double().mean().item() for i, j in PAIRS]
    angles = [torch.cosine_similarity(vectors[i], vectors[j], dim=0).item() for i, j in PAIRS]
    own, together = (labels == y).double().mean().item(), (said.exp().mean(0).argmax(-1) == y).double().mean().item()
    found = MEASURES["functions"](small).values
    assert found["apart"] == pytest.approx(np.mean(apart)) and found["accuracy"] == pytest.approx(own)
    assert found["together"] == pytest.approx(together)
    assert found["different"] == pytest.approx(np.mean(apart) / (1 - own))
    assert MEASURES["weights"](small).values["cosine"] == pytest.approx(np.abs(angles).max(), abs=1e-6)
    told = QUESTIONS["functions"](small).found
    held = (found["across"] > 2) + (found["different"] > 0.5)
    assert told[0] == f"{held} of 2 findings hold here."
    assert f"Disagreement of two solutions: {np.mean(apart):.3g}." in told


def test_within_a_run_the_last_quarter_is_compared_with_its_end(small):
    x, _ = small.test
    with torch.no_grad():
        late = [[run[i](x).argmax(-1) for i in range(len(run) - 2, len(run))] for run in small.runs]
    within = np.mean([(first != last).double().mean().item() for first, last in late])
    found = MEASURES["functions"](small).values
    assert found["within"] == pytest.approx(within)
    assert found["across"] == pytest.approx((found["apart"] + 0.5 / 60) / (within + 0.5 / 60))


def test_samples_of_the_map_stay_near_their_run_where_other_runs_are_far():
    torch.manual_seed(0)
    first = [network() for _ in range(6)]
    far = [nn.Sequential(*(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))) for _ in range(6)]
    with torch.no_grad():
        for one, other in zip(first, far, strict=True):
            one.load_state_dict(first[0].state_dict())
            other.load_state_dict(first[0].state_dict())
            other[2].weight.neg_(), other[2].bias.neg_()  # the least likely class of the first
    runs = [ls.Trajectory.of(models, models[0]) for models in (first, far)]
    given = Material(runs, rows(60, 0), rows(60, 1), rows(60, 2), samples=2)
    found = MEASURES["map"](given)
    assert min(found.values.values()) > 5 and found.arrays["samples"].shape == (4, 2, 3, 2)
    assert SECTIONS["map"].draw(found.arrays)[0].panels[0].svg.count("mark open") == 24


def test_the_plane_shows_the_losses_of_its_solutions(small):
    found, surface = MEASURES["plane"](small), small.once(cut)
    (figure,) = SECTIONS["plane"].draw(found.arrays)
    told = [float(n) for n in re.findall(r"<title>\([^)]*\): loss ([\d.e+-]+)", figure.panels[1].svg)]
    assert len(told) == 25 and told == pytest.approx(surface.loss.flatten(), rel=1e-3)
    assert "run 1, checkpoint 0" in figure.panels[0].svg and "run 2, checkpoint 6" in figure.panels[0].svg
    said, y = solutions_of(small), small.test[1]
    losses = [nn.functional.nll_loss(one, y).item() for one in said[:2]]
    one, two = (run.solution for run in small.runs[:2])
    with torch.no_grad():
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            a.copy_((a + b) / 2)
        middle = nn.functional.cross_entropy(one(small.test[0]), y).item()
    ridge = middle - np.mean(losses)
    assert found.values["ridge"] == pytest.approx(ridge, abs=1e-5)
    assert found.values["similar"] == pytest.approx(abs(losses[0] - losses[1]) / ridge, rel=1e-4)
    assert found.arrays["samples"].shape == (5, 2)  # Figure 5 shows a Gaussian subspace, too
    assert figure.panels[0].svg.count("<title>Gaussian samples: ") == 5


def test_a_tunnel_is_judged_against_the_straight_line_on_training_rows(small):
    found = MEASURES["tunnel"](small)
    x, y = small.train
    ends = [nn.functional.cross_entropy(run.solution(x), y).item() for run in small.runs[:2]]
    straight = found.arrays["line loss"]
    assert straight[[0, -1]] == pytest.approx(ends, abs=1e-3)
    assert found.values["barrier"] == pytest.approx((straight - np.linspace(*ends, len(straight))).max(), abs=1e-5)
    (figure,) = SECTIONS["tunnel"].draw(found.arrays)
    assert figure.rows[0][:2] == ["straight line", "loss on training rows"]
    assert [float(cell) for cell in figure.rows[0][2:]] == pytest.approx(straight.tolist(), abs=1e-4)


def test_the_stitched_cut_shows_what_was_measured_and_judges_the_middle_of_the_tunnel(small):
    found, path = MEASURES["stitched"](small), small.once(dig)
    fan = ls.stitched(path, small.test, grid=(5, 3))
    (figure,) = SECTIONS["stitched"].draw(found.arrays)
    told = [float(n) for n in re.findall(r"radius: accuracy ([\d.]+)", figure.panels[0].svg)]
    assert told == pytest.approx(fan.accuracy.flatten(), abs=1e-4) and len(figure.panels) == 4
    x, _ = small.test
    with torch.no_grad():
        first, middle, last = (path.at(t)(x).argmax(-1) for t in (0.0, 0.5, 1.0))
    apart = [(middle != end).double().mean().item() for end in (first, last)]
    ends, half = (first != last).double().mean().item(), 0.5 / 60
    assert found.values["along"] == pytest.approx((min(apart) + half) / (ends + half))
    assert small.once(dig) is path  # two questions share it


def test_sources_of_difference_are_told_as_they_were_measured(small):
    told = replace(small, training=TRAINING, retrained=2, rates=(0.02,), seed=4)
    torch.manual_seed(1)
    found = MEASURES["randomness"](told)
    torch.manual_seed(1)
    start, (x, _) = network(), small.test
    for kind, (init, batches) in {"initialisation": ("different", "same"), "batches": ("same", "different")}.items():
        one, two = ls.trajectories(
            start, small.train, runs=2, init=init, batches=batches, lr=0.02, epochs=4, batch_size=30, optimizer="adam",
            seed=mix_seeds(4, 3), schedule=lambda epoch: 0.5**epoch,
        )  # fmt: skip
        apart = (one.solution(x).argmax(-1) != two.solution(x).argmax(-1)).double().mean().item()
        assert found.arrays[kind].tolist() == pytest.approx([apart])
    assert set(found.arrays) == {"rates", "both", "initialisation", "batches"}  # CPUs repeat themselves
    assert found.values["initialisation"] == found.arrays["initialisation"].mean()
    assert MEASURES["randomness"](replace(told, retrained=0)) is None and MEASURES["randomness"](small) is None


# ---------------------------------------------------------------- Figures 8 and 9


def judged(networks, part):
    """Accuracy, Brier score and divergence of the mean of probabilities, by hand."""
    x, y = part
    with torch.no_grad():
        p = torch.stack([one(x).softmax(-1).double() for one in networks])
    mean = p.mean(0)
    brier = (mean - nn.functional.one_hot(y, 3)).square().sum(-1).mean().item()
    spread = (p * (p.log() - mean.log())).sum(-1).mean().item()
    return {"accuracy": (mean.argmax(-1) == y).double().mean().item(), "brier": brier, "jsd": spread}


def test_quality_against_size_is_that_of_ensembles_built_apart(small):
    found = MEASURES["size"](small)
    ends = [run.solution for run in small.runs]
    alone = [judged([one], small.test) for one in ends]
    kinds = ["solutions", "random", "dropout", "diagonal", "low_rank", "low_rank_random", "weight_average"]
    for metric in ("accuracy", "brier"):
        sizes, *curves = found.arrays[metric]
        assert sizes.tolist() == [1, 2, 3] and len(curves) == len(kinds) and np.isfinite(curves).all()
        assert curves[0][0] == pytest.approx(np.mean([one[metric] for one in alone]), abs=1e-5)
        assert curves[0][2] == pytest.approx(judged(ends, small.test)[metric], abs=1e-5)
        averages = [ls.weight_average(run).member(0) for run in small.runs]
        assert curves[6][2] == pytest.approx(judged(averages, small.test)[metric], abs=1e-5)
        sign = {"accuracy": 1, "brier": -1}[metric]
        best = max(sign * curve[0] for curve in curves[1:])
        assert found.values[f"ensemble_{metric}"] == pytest.approx(sign * curves[0][2] - best)
        chosen = sign * (np.array([curve[2] for curve in curves[1:]]) - curves[0][2])
        assert min(abs(chosen - found.values[f"both_{metric}"])) < 1e-9  # that of one of them, chosen elsewhere


def test_under_shift_every_corruption_and_severity_counts(small):
    assert MEASURES["shift"](replace(small, outside=None)) is None  # neither images nor outside data
    moved = {
        "far": [FakeSplit(small.test[0] * k, small.test[1]) for k in (2.0, 4.0)],
        "near": [FakeSplit(small.test[0] + k, small.test[1]) for k in (0.5, 1.0)],
    }
    given = replace(small, shifted=moved, severities=(1, 2), outside=3 * small.test[0])
    found = MEASURES["shift"](given)
    ends = [run.solution for run in small.runs]
    for metric in ("accuracy", "brier"):
        severities, first, *_ = found.arrays[metric]
        by_hand = [
            np.mean([judged(ends, split[:])[metric] for split in level]) for level in zip(*moved.values(), strict=True)
        ]
        assert severities.tolist() == [0, 1, 2]
        assert first.tolist() == pytest.approx([judged(ends, small.test)[metric], *by_hand], abs=1e-5)
    divergence = [
        np.mean([judged(ends, split[:])["jsd"] for split in level]) for level in zip(*moved.values(), strict=True)
    ]
    assert found.arrays["jsd"][1].tolist() == pytest.approx([judged(ends, small.test)["jsd"], *divergence], abs=1e-5)
    late = [small.runs[0][i] for i in range(4, 7)]
    assert found.arrays["jsd"][2][0] == pytest.approx(judged(late, small.test)["jsd"], abs=1e-5)
    outside = judged(ends, given_rows(given))["jsd"]
    assert found.values["jsd_independent"] == pytest.approx(outside, abs=1e-6)
    assert len(SECTIONS["shift"].draw(found.arrays)) == 3


class FakeSplit:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __getitem__(self, rows):
        return self.x[rows], self.y[rows]


def given_rows(given):
    return given.outside, given.test[1]


# ---------------------------------------------------------------- from Python


def test_python_writes_the_page_of_networks_and_of_trajectories(small, tmp_path):
    names = ls.page([network(), network()], rows(60, 3), tmp_path / "own.html", grid=3, samples=2, steps=2)
    assert [one.name for one in names] == PASTLESS and "have no checkpoints" in (tmp_path / "own.html").read_text()
    found = ls.page(
        small.runs, small.test, tmp_path / "runs.html", train=small.train, only=["functions", "size"], samples=2
    )
    assert [one.name for one in found] == ["functions", "size"]
    told = ls.measure("functions", small.runs, small.test, train=small.train)
    assert told.values == pytest.approx(MEASURES["functions"](small).values)
    assert f"Accuracy of all solutions together: {told.values['together']:.3g}." in found[0].found
    ensemble = pb.deep(network(), 2)
    assert ls.page(ensemble, rows(40, 3), tmp_path / "e.html", only=["weights"])[0].name == "weights"


def test_half_of_the_rows_are_held_out_where_no_training_rows_are_given():
    x, y = rows(40, 3)
    one, two = network(), network()
    found = ls.measure("functions", [one, two], (x, y))
    apart = (one(x[20:]).argmax(-1) != two(x[20:]).argmax(-1)).double().mean().item()
    assert found.values["apart"] == pytest.approx(apart)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda path: ls.page([network()], rows(9, 0), path), ValueError, "at least 2 runs"),
        (lambda path: ls.page(network(), rows(9, 0), path), TypeError, "must be a list of trajectories or networks"),
        (lambda path: ls.page([network(), nn.Linear(2, 3)], rows(9, 0), path), ValueError, "same architecture"),
        (lambda path: ls.page([network(), network()], rows(9, 0)[0], path), ValueError, "needs labels"),
        (lambda path: ls.page([network(), network()], rows(9, 0), path, only=["no"]), ValueError, "'no' is unknown"),
        (lambda path: ls.page([network(), network()], rows(9, 0), path, gird=3), TypeError, "'gird' is unknown"),
        (lambda path: ls.measure("weather", [], None), ValueError, "'weather' is unknown"),
        (lambda path: ls.measure("size", [network(), network()], rows(9, 0)), ValueError, "cannot tell 'size'"),
    ],
)
def test_what_python_gets_wrong_is_said_before_anything_is_written(call, error, words, tmp_path):
    with pytest.raises(error, match=words):
        call(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


# ---------------------------------------------------------------- the page


def test_the_page_answers_every_question_and_the_animation_moves(small, tmp_path):
    said = []
    told = replace(small, say=said.append, training=TRAINING, outside=3 * small.test[0], retrained=2)
    found = explore(told, tmp_path / "page.html", about="three classes", command="pluribus landscape",
                    settings={"runs": "3"}, animation=tmp_path / "training.svg")  # fmt: skip
    page = (tmp_path / "page.html").read_text()
    assert [question.name for question in found] == list(QUESTIONS) and len(said) > 5
    for question in found:
        assert question.found and f'id="{question.name}"' in page
        assert question.figures or question.name == "shift"  # of tables there is nothing to corrupt
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
    assert code == 0 and "The page: a/page.html" in out and "Do different runs learn different functions?" in out
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
