"""Numbers that nobody means, in options and in files: a line that says which, before anything is written."""

import json
import sys

import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus.cli import predict
from pluribus.cli.app import main
from pluribus.data.catalogue import load
from pluribus.deploy.predictor import make_predictor
from pluribus.models.by_name import ModelSpec
from pluribus.study.settings import Run
from pluribus.workflows.landscape_material import _run_of


@pytest.fixture
def flowers(tmp_path):
    """A trained folder of iris, and where it is."""
    torch.manual_seed(0)
    spec = ModelSpec("mlp", (4,), 3, width=0.05)
    make_predictor(spec, load("iris"), pb.deep(spec.build(), 2), promise=False).save(tmp_path / "sent")
    return tmp_path


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["pluribus", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    return stop.value.code, said.out, " ".join((said.out + said.err).split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threads", "100000"], "--threads"),
        (["--size", "1000000000"], "--size"),
        (["--coverage", "1"], "--coverage must be above 0 and below 1"),
        (["--risk", "0"], "--risk must be above 0 and below 1"),
        (["--data", "diabetes", "--risk", "0.1"], "--risk: only classification has a threshold"),
        (["--set", "alpha=1e308"], "packed: alpha must be below"),
        (["--set", "alpha=" + "9" * 400], "packed: alpha must be below"),
    ],
)
def test_a_number_that_nobody_means_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, options, words
):
    code, _, said = run(monkeypatch, capsys, "train", "--out", tmp_path / "new", "--data", "iris", *options)
    assert code == 2 and words in said and "bug" not in said and not (tmp_path / "new").exists()


COLUMNS = "sepal length (cm),sepal width (cm),petal length (cm),petal width (cm)"


@pytest.mark.parametrize("value", ["-1e300", "1e30", "1e16"])
def test_a_huge_value_is_named_with_file_row_and_column_before_any_answer(flowers, monkeypatch, capsys, value):
    rows = ["5,3,1,0.2"] * 1000
    rows[900] = f"5,{value},1,0.2"
    (flowers / "new.csv").write_text("\n".join([COLUMNS, *rows]))
    code, out, said = run(monkeypatch, capsys, "predict", flowers / "sent", flowers / "new.csv", "--format", "csv")
    assert code == 2 and out == "" and 'new.csv: row 900, column "sepal width (cm)": the value is' in said


@pytest.mark.parametrize("terminal", [True, False])
def test_names_steer_no_terminal_and_stay_as_they_are_in_files(flowers, monkeypatch, capsys, terminal):
    (flowers / "new.csv").write_text(f"a\x1b[2J,{COLUMNS}\n\x1b]0;owned\x07,5,3,1,0.2\n")
    monkeypatch.setattr(predict, "_is_terminal", lambda: terminal)
    code, out, _ = run(monkeypatch, capsys, "predict", flowers / "sent", flowers / "new.csv", "--format", "csv")
    assert code == 0 and ("\x1b" in out) is not terminal and (r"\x1b[2J" in out) is terminal


def test_labels_that_are_no_classes_are_named():
    x, y = torch.randn(8, 4), torch.arange(8)
    with pytest.raises(ValueError, match=r"fit: labels must be whole numbers from 0 to .* are from 0 to 7"):
        pb.fit(pb.deep(nn.Linear(4, 3), 2), (x, y), epochs=1, batch_size=8)


def test_the_landscape_takes_a_folder_that_was_trained_without_a_size(tmp_path):
    told = json.loads(json.dumps({**Run(data="iris").plain(), "size": None}))
    assert _run_of({"run": told, "shape": [4]}, tmp_path).size is None
