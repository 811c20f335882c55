"""From a study to a predictor: `train --study`, `compare --keep`, `pb.open`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pluribus as pb
from pluribus._common.signed_files import write_signed_json
from pluribus.results.store import read
from pluribus.study import Study, conduct
from pluribus.study.chosen_run import choose_run

STUDY = dict(model="mlp", methods=["single", "deep"], size=2, training={"epochs": 2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("study")
    conduct(Study(data=["diabetes"], **STUDY), place, keep=True)
    return place


def test_the_kept_weights_are_those_that_the_study_judged(folder):
    chosen = choose_run(folder, label="deep")
    predictor, data = pb.open(chosen.kept), pb.data.load("diabetes")
    stored = read(folder / "results" / f"{chosen.run.name}.npz").columns
    encoded = data.test[:][0]
    means = predictor.ensemble.predict(data.normalise(encoded)).mean * data.target_std + data.target_mean
    np.testing.assert_allclose(means, stored["test/mean"], rtol=1e-4)
    ends = torch.stack([torch.from_numpy(stored[f"test/{end}"]) for end in ("lower", "upper")], 1).double()
    raw = predictor.conformal.intervals(predictor.predict_batch(encoded))
    torch.testing.assert_close(torch.stack(raw, 1) * data.target_std + data.target_mean, ends, rtol=1e-4, atol=1e-2)


def test_train_takes_the_weights_and_another_promise_and_then_touches_nothing(pluribus, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("pluribus.workflows.predictor_training.train", None)  # whatever trains fails
    arguments = ("train", "--study", folder, "--method", "deep", "--coverage", "0.8", "--out", tmp_path / "out")
    code, out, err = pluribus(*arguments)
    assert code == 0, err
    assert "weights of the study" in out and "0.8" in out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    code, out, _ = pluribus(*arguments)
    assert "finished before: nothing was changed" in out and "FILES" in out and "--coverage" not in out
    other = [*arguments[:-4], "--coverage", "0.7", *arguments[-2:]]
    code, out, _ = pluribus(*other)
    assert "keeps the promises it was written with" in out and "--coverage 0.7 FILES" in out
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    first, kept = pb.open(tmp_path / "out"), pb.open(choose_run(folder, label="deep").kept)
    for one, other in zip(first.ensemble.state_dict().values(), kept.ensemble.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_the_metrics_that_train_prints_are_those_of_the_calibrated_predictor(pluribus, tmp_path, monkeypatch):
    monkeypatch.setattr("pluribus.deploy.promises.find_scale", lambda *_: 3.0)
    conduct(Study(data=["iris"], **{**STUDY, "methods": ["single"]}), tmp_path / "study", keep=True)
    arguments = ("train", "--study", tmp_path / "study", "--out", tmp_path / "out")
    code, out, err = pluribus(*arguments)
    assert code == 0, err
    predictor, data = pb.open(tmp_path / "out"), pb.data.load("iris")
    x, y = data.test[:]
    logits = predictor.ensemble(data.normalise(x))[0].detach() / 3
    nll = torch.nn.functional.cross_entropy(logits, y).item()
    assert predictor.record["figures"]["nll"] == pytest.approx(nll, rel=1e-4) and f"nll {nll:.3f}" in out


def test_intervals_and_predictions_are_those_of_the_answers(folder):
    predictor = pb.open(choose_run(folder, label="single").kept)
    rows = {name: [0.0, 0.05, -0.03] for name in ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")}
    answers = list(predictor.answers(rows))
    torch.testing.assert_close(predictor.predict(rows).mean, torch.tensor([one["value"] for one in answers]).double())
    ends = [[one["low"], one["high"]] for one in answers]
    torch.testing.assert_close(predictor.intervals(rows), torch.tensor(ends).double())
    wider = predictor.intervals(rows, coverage=0.5)
    assert ((wider[:, 1] - wider[:, 0]) <= (predictor.intervals(rows)[:, 1] - predictor.intervals(rows)[:, 0])).all()
    with pytest.raises(ValueError, match="sets are for classification, but its task is regression. Use intervals"):
        predictor.sets(rows)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--epochs", "3"], "--study: the study sets these already: --epochs"),
        (["--method", "dep"], "'dep' is unknown. Did you mean 'deep'?"),
        (["--seed", "7"], "no finished run of deep with seed 7. It has seeds: 0"),
        (["--data", "iris"], "choose one of the study's data sets with --data: diabetes"),
    ],
)
def test_what_a_study_does_not_have_is_an_error(pluribus, folder, tmp_path, more, said):
    named = [] if "--method" in more else ["--method", "deep"]
    arguments = ("train", "--study", folder, "--out", tmp_path / "out", *named, *more)
    code, _, err = pluribus(*arguments)
    assert code != 0 and said in " ".join(err.split())


def test_a_study_is_not_a_predictor_and_a_predictor_no_study(folder, tmp_path):
    with pytest.raises(ValueError, match="is a study, not a predictor.*pluribus train --study"):
        pb.open(folder)
    with pytest.raises(FileNotFoundError, match="is not a study"):
        choose_run(tmp_path)


def test_code_that_a_study_names_is_not_run_unasked(folder, tmp_path):
    text = json.loads((folder / "study.json").read_text())
    text.pop("digest")
    write_signed_json(tmp_path / "study.json", {**text, "model": "python:evil.py:build"})
    with pytest.raises(ValueError, match="is not run just because a folder names it.*--model python:evil.py:build"):
        choose_run(tmp_path)


def test_a_study_without_kept_weights_trains_them_when_asked_again(tmp_path):
    study = Study(data=["iris"], **{**STUDY, "methods": ["single"]})
    conduct(study, tmp_path)
    assert choose_run(tmp_path).kept is None
    conduct(study, tmp_path, keep=True)
    assert Path(choose_run(tmp_path).kept).is_dir()


def test_an_image_for_a_predictor_of_tables_is_said_to_be_one(folder):
    predictor = pb.open(choose_run(folder, label="single").kept)
    with pytest.raises(ValueError, match=r"a\.png: this predictor takes tables \(.*\), not images"):
        list(predictor.answers([Path("a.png")]))
