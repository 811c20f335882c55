"""Several targets and multi-label tables from the command line to the page, against pandas and scikit-learn."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from commands import run
from sklearn.metrics import accuracy_score, root_mean_squared_error

from pluribus.data.catalogue import encoded, load
from pluribus.deploy.predictor import load_predictor
from pluribus.results.quantities import difference
from pluribus.results.store import Group, Result, read_all


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    chance = np.random.default_rng(0)
    a, b = chance.normal(size=(2, 240))
    frame = pd.DataFrame({"a": a, "b": b, "price": 1e5 + 3e4 * a, "rooms": 4 + b, "one, two": a - b})
    frame["dear"] = np.where(a > 0, "yes", "no")
    frame["big"] = (b > 0).astype(int)
    frame.loc[3, "rooms"] = np.nan
    frame.to_csv(folder / "t.csv", index=False)
    return folder, frame


def arguments(folder, *more):
    return ("--data", f"table:{folder / 't.csv'}", "--epochs", 25, "--lr", 0.02, "--batch-size", 32, "--quiet", *more)


def test_targets_are_standardised_one_by_one(table):
    folder, frame = table
    data = load(f"table:{folder / 't.csv'}", target=["price", "rooms"])
    assert data.task == "regression" and data.targets == ("price", "rooms") and data.train[:5][1].shape == (5, 2)
    known = frame.drop(index=3)
    rows = [int(name) for name in data.train.names()]
    train = frame.loc[rows, ["price", "rooms"]]
    expected = (train - train.mean()) / train.std(ddof=0)
    np.testing.assert_allclose(data.train.y.numpy(), expected.to_numpy(), atol=1e-5)
    assert sum(map(len, (data.train, data.validation, data.test))) == len(known)
    assert any('1 train rows have no target "rooms"' in note for note in data.notes)
    assert load(f"table:{folder / 't.csv'}", target="price, rooms").targets == ("price", "rooms")


def test_a_column_whose_name_has_a_comma_is_one_target(table):
    folder, _ = table
    assert load(f"table:{folder / 't.csv'}", target="one, two").targets == ()


@pytest.mark.parametrize(
    ("given", "task", "said"),
    [
        ("price,dear", None, r"several targets must all be numbers .* \"price\" has values such as"),
        ("price,rooms", "multilabel", 'all have two values .* "price"'),
        ("price,rooms", "classification", "needs one class for each row.*regression or multilabel"),
        ("dear", "multilabel", "needs a table with several targets, as in --target a,b,c"),
        ("dear", "segmentation", "needs masks, as in --data masks:FOLDER"),
        ("price,price", None, "named once"),
        ("price,pool", None, 'target "pool" is not a column'),
    ],
)
def test_targets_that_do_not_go_together_are_refused(table, given, task, said):
    folder, _ = table
    with pytest.raises(ValueError, match=said):
        load(f"table:{folder / 't.csv'}", target=given, task=task)


def test_predicted_numbers_are_in_the_units_of_their_targets(table, capsys):
    folder, frame = table
    run("train", "--out", folder / "m", "--target", "price,rooms", "--method", "deep", "--size", 2, *arguments(folder))
    run("predict", folder / "m", folder / "t.csv", "--format", "jsonl")
    rows = pd.DataFrame([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    for name in ("price", "rooms"):
        spread = frame[name].std()
        assert root_mean_squared_error(frame[name].fillna(4), rows[name]) < 0.5 * spread
        assert (rows[f"{name}_low"] < rows[name]).all() and (rows[name] < rows[f"{name}_high"]).all()
    predictor = load_predictor(folder / "m")
    x = encoded(predictor.record["encoding"], folder / "t.csv")[:][0]
    module, _ = predictor.for_export(len(x), frozen=False)
    means, variances = module(x)  # in the targets' units, too
    np.testing.assert_allclose(means.mean(0).detach().numpy(), rows[["price", "rooms"]].to_numpy(), rtol=1e-4)
    np.testing.assert_allclose(variances.mean(0).detach()[:, 0], rows["price_aleatoric"], rtol=1e-3)
    run("predict", folder / "m", folder / "t.csv", "--format", "csv")
    first = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert float(first["price"]) == pytest.approx(frame["price"][0]) and first["predicted_price"] != first["price"]


def test_labels_are_answered_one_by_one(table, capsys):
    folder, frame = table
    given = ("train", "--out", folder / "l", "--target", "dear,big", "--method", "packed", "--size", 2)
    run(*given, *arguments(folder))
    run(*given, *(word for word in arguments(folder) if word != "--quiet"))
    assert "several labels have no promises" in capsys.readouterr().out
    run("predict", folder / "l", folder / "t.csv", "--format", "jsonl")
    rows = pd.DataFrame([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert accuracy_score(frame["dear"], rows["dear"]) > 0.8
    assert accuracy_score(frame["big"].astype(str), rows["big"]) > 0.8
    predictor = load_predictor(folder / "l")
    logits = predictor.ensemble(encoded(predictor.record["encoding"], folder / "t.csv")[:][0])
    probability = logits.sigmoid().mean(0).detach().numpy()
    np.testing.assert_allclose(rows["dear_confidence"], np.maximum(probability, 1 - probability)[:, 0], rtol=1e-5)


@pytest.fixture(scope="module")
def compared(table):
    folder, _ = table
    for name, targets in (("numbers", "price,rooms"), ("labels", "dear,big")):
        run("compare", "--out", folder / name, "--target", targets, "--methods", "single,deep", "--size", 2, "--yes",
            "--jobs", 1, "--validation", 0.3, *arguments(folder, "--epochs", 6))  # fmt: skip
    return folder


def test_a_comparison_scores_each_target_in_its_own_units(compared, table):
    results, _ = read_all(compared / "numbers")
    data = load(f"table:{compared / 't.csv'}", target="price,rooms", validation=0.3)
    for result in results:
        predicted, true = (result.columns[f"test/{name}"].reshape(-1, 2) for name in ("mean", "target"))
        np.testing.assert_allclose(true, data.test.y, rtol=1e-5)
        scale = np.array(data.target_std)
        for i, name in enumerate(("price", "rooms")):
            expected = root_mean_squared_error(true[:, i] * scale[i], predicted[:, i] * scale[i])
            assert result.record["targets"][name]["rmse"] == pytest.approx(expected, rel=1e-4)
        assert result.record["metrics"]["rmse"]["value"] == pytest.approx(
            root_mean_squared_error(true.ravel(), predicted.ravel()), rel=1e-4
        )
    page = (compared / "numbers" / "report.html").read_text()
    assert "Target: price" in page and "Target: rooms" in page


def test_a_comparison_scores_each_label(compared):
    results, _ = read_all(compared / "labels")
    for result in results:
        label, true = (result.columns[f"test/{name}"].reshape(-1, 2) for name in ("label", "target"))
        for i, name in enumerate(("dear", "big")):
            assert result.record["targets"][name]["accuracy"] == pytest.approx(accuracy_score(true[:, i], label[:, i]))
        assert result.record["metrics"]["accuracy"]["value"] == pytest.approx((label == true).mean())
        assert "mean_iou" not in result.record["metrics"]
    assert "Target: dear" in (compared / "labels" / "report.html").read_text()


def test_targets_of_a_row_are_resampled_together():
    """Two targets that say the same say no more than one of them."""
    losses = np.random.default_rng(0).normal(size=(2, 80))

    def group(name, column, block):
        record = {
            "run": name,
            "method": name,
            "label": name,
            "data": "t",
            "task": "regression",
            "seed": 0,
            "settings": {},
        }
        record |= {"metrics": {"nll": {"value": float(-column.mean())}}, "cost": {}, "block": block}
        columns = {"test/log_likelihood": column, "test/target": np.arange(float(len(column)))}
        return Group(name, (Result(record, columns),))

    one = difference(*(group(name, column, 1) for name, column in zip("ab", losses, strict=True)), "nll")
    twice = difference(*(group(name, column.repeat(2), 2) for name, column in zip("ab", losses, strict=True)), "nll")
    assert tuple(twice) == pytest.approx(tuple(one))
