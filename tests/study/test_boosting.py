"""Gradient boosting on the rows of a study, compared with scikit-learn called by hand."""

import numpy as np
import pytest
import torch

import pluribus as pb
from pluribus.data import load
from pluribus.results.store import Result
from pluribus.study.boosting import boost, judge_boosting
from pluribus.study.settings import Run

ensemble = pytest.importorskip("sklearn.ensemble")


@pytest.fixture
def table(tmp_path):
    """300 rows: y is x0 squared, with noise, and a column of two words that says nothing."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 2))
    y = x[:, 0] ** 2 + 0.1 * generator.normal(size=300)
    words = generator.choice(["a", "b"], 300)
    lines = [f"{a:.5f},{b:.5f},{word},{c:.5f}" for (a, b), word, c in zip(x, words, y, strict=True)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["x0,x1,word,y", *lines]))
    return f"table:{path}"


def test_the_mean_is_that_of_scikit_learn_on_the_same_rows(table):
    data = load(table, target="y")
    (x, y), (held_x, held_y), (test, _) = data.train[:], data.selection[:], data.test[:]
    by_hand = ensemble.HistGradientBoostingRegressor(
        max_iter=1000, early_stopping=True, n_iter_no_change=20, random_state=3
    ).fit(x.numpy(), y.numpy(), X_val=held_x.numpy(), y_val=held_y.numpy())
    prediction, seconds = boost("boosting", data, 3)
    np.testing.assert_allclose(prediction.mean.numpy(), by_hand.predict(test.numpy()), rtol=1e-5)
    assert seconds["train"] > 0


def test_classes_get_probabilities():
    data = load("iris")
    prediction, _ = boost("boosting", data, 0)
    assert prediction.mean.shape == (len(data.test), 3)
    assert pb.evaluate(prediction, data.test[:][1])["accuracy"] > 0.8


def test_the_verdict_follows_the_likelihoods_of_the_same_rows(table):
    run = Run(table, "auto", "single", "single", {}, 0, source={"target": "y"})
    rows = len(load(table, target="y").test)
    for likelihood, said in ((-50.0, "Use gradient boosting here"), (50.0, "single is better than gradient boosting")):
        column = np.full(rows, likelihood, np.float32)
        result = Result({"data": table, "label": "single"}, {"test/log_likelihood": column})
        assert judge_boosting([result], [run])[0]["sentence"].startswith(said)


def test_images_are_named():
    with pytest.raises(ValueError, match="needs a table with one target, but digits holds images"):
        boost("boosting", load("digits"), 0)


def test_embedded_numbers_leave_flags_as_they_are():
    from pluribus.models.tables import PiecewiseMLP

    torch.manual_seed(0)
    rows = torch.randn(50, 3)
    rows[:, 1] = (rows[:, 1] > 0).float()
    network = PiecewiseMLP(rows, 2, hidden=(8,))
    assert network.chunks == [16, 16, 1] and network(rows).shape == (50, 2)
    drawn = pb.tabm(network, 4, init="normal", chunks=network.chunks).module.network.fc1.r
    assert (drawn[:, :16] == drawn[:, :1]).all() and not (drawn[:, 16] == drawn[:, 0]).any()


def test_a_study_gives_the_columns_of_a_category_one_random_sign(table):
    from pluribus.study.baselines import build_ensemble, recipe_of

    run, data = Run(table, "auto", "tabm", "tabm", {}, 0, source={"target": "y"}), load(table, target="y")
    made = build_ensemble(run, data)
    drawn = made.module.fc1.r  # x0, x1, word = a, word = b, word unknown
    assert made.size == 32 and (drawn[:, 2:] == drawn[:, 2:3]).all() and (drawn[:, 0] != drawn[:, 1]).any()
    plan = recipe_of(run, data)
    assert (plan.optimizer["name"], plan.lr, plan.weight_decay, plan.clip, plan.clip_by) == (
        "adamw", 2e-3, 3e-4, 1.0, "all",
    )  # fmt: skip


def test_all_gradients_are_clipped_as_one():
    from pluribus.training.fitting import lightning_module

    torch.manual_seed(0)
    made = pb.tabm(pb.models.mlp(inputs=3, num_classes=1, hidden=(8,)), 4)
    made.task = "regression"
    module = lightning_module(made, "tabm")
    (1e3 * made.loss(torch.randn(5, 3), torch.randn(5, 1), torch.nn.functional.mse_loss)).backward()
    module.configure_gradient_clipping(None)
    norm = torch.stack([p.grad.norm() for p in made.parameters()]).norm()
    torch.testing.assert_close(norm, torch.tensor(1.0), rtol=1e-4, atol=0)
