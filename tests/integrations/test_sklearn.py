"""Estimators against scikit-learn's own checks, plain loops of torch, and the tools that people use them in."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import pluribus as pb
from pluribus.integrations.sklearn import EnsembleClassifier, EnsembleRegressor

pandas = pytest.importorskip("pandas")
sparse = pytest.importorskip("scipy.sparse")

SMALL = {"size": 2, "hidden": (16,), "epochs": 20, "batch_size": 32, "lr": 0.03}


@pytest.mark.slow
@parametrize_with_checks([EnsembleClassifier(**SMALL), EnsembleRegressor(**SMALL)])
def test_scikit_learn_s_own_checks_pass(estimator, check):
    check(estimator)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)) * [1, 5, 0.1] + [0, 20, 1]
    return x, np.where(x[:, 0] + 0.2 * x[:, 1] > 4, "high", "low"), x @ [1.0, -0.4, 3.0]


def small(kind, **settings):
    return kind(**{"size": 2, "hidden": (8,), "epochs": 3, "random_state": 0, **settings})


def test_full_batches_of_one_network_are_a_plain_loop_of_torch(table):
    x, labels, _ = table
    network = nn.Linear(3, 2).double()
    weight = np.arange(40) % 3 + 1.0
    found = EnsembleClassifier(
        "single", network=network, epochs=4, batch_size=40, optimizer="sgd", lr=0.1, random_state=0
    ).fit(x, labels, sample_weight=weight)
    mean = np.average(x, axis=0, weights=weight)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    inputs, target = torch.tensor((x - mean) / std), torch.tensor((labels == "low").astype(int))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        losses = nn.CrossEntropyLoss(reduction="none")(network(inputs), target)
        optimizer.zero_grad()
        ((losses * torch.tensor(weight)).sum() / weight.sum()).backward()
        optimizer.step()
    expected = network(inputs).softmax(-1).detach().numpy()
    np.testing.assert_allclose(found.predict_proba(x), expected, atol=1e-12)


@pytest.mark.parametrize("task", ["gaussian", "regression"])
def test_a_weight_of_three_is_the_row_three_times(table, task):
    x, _, y = table
    weight = np.arange(40) % 4
    weighted = small(EnsembleRegressor, task=task, batch_size=8).fit(x, y, weight)
    repeated = small(EnsembleRegressor, task=task, batch_size=8).fit(x.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_array_equal(weighted.predict(x), repeated.predict(x))


def test_data_frames_and_sparse_matrices_give_what_arrays_give(table):
    x, labels, _ = table
    x = np.where(np.abs(x) > 1, x, 0)
    names = ["a", "b", "c"]
    expected = small(EnsembleClassifier, batch_size=64).fit(x, labels).predict_proba(x)
    framed = small(EnsembleClassifier, batch_size=64).fit(pandas.DataFrame(x, columns=names), pandas.Series(labels))
    assert framed.feature_names_in_.tolist() == names
    np.testing.assert_allclose(framed.predict_proba(pandas.DataFrame(x, columns=names)), expected)
    packed = small(EnsembleClassifier, batch_size=64).fit(sparse.csr_array(x), labels)
    np.testing.assert_allclose(packed.predict_proba(sparse.csc_array(x)), expected, rtol=1e-6)


def test_class_weights_are_sample_weights(table):
    x, labels, _ = table
    rare = labels == "high"
    balanced = np.where(rare, 20 / rare.sum(), 20 / (~rare).sum())
    for given, weight in (({"high": 3.0}, np.where(rare, 3.0, 1.0)), ("balanced", balanced)):
        by_class = small(EnsembleClassifier, class_weight=given, scale=False).fit(x, labels)
        by_row = small(EnsembleClassifier, scale=False).fit(x, labels, weight)
        np.testing.assert_allclose(by_class.predict_proba(x), by_row.predict_proba(x), rtol=1e-6)


def test_intervals_and_deviations_of_one_member_are_a_gaussian_s(table):
    x, _, y = table
    regressor = small(EnsembleRegressor, method="single").fit(x, y)
    mean, std = regressor.predict(x, return_std=True)
    expected = np.stack([mean - 1.6448536 * std, mean + 1.6448536 * std], -1)
    found = torch.stack(regressor.predict_distribution(x).interval(0.9), -1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_intervals_cover_rows_like_those_that_were_held_out():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(3000, 3))
    y = x[:, 0] + draw.standard_t(3, size=len(x)) * (1 + x[:, 1] ** 2)  # no Gaussian, and of no one width
    regressor = small(EnsembleRegressor, epochs=3, calibration=0.5).fit(x[:1000], y[:1000])
    for level in (0.5, 0.9):
        low, high = regressor.predict_interval(x[1000:], level).T
        assert abs(((low <= y[1000:]) & (y[1000:] <= high)).mean() - level) < 0.06


def test_intervals_without_rows_held_out_are_an_error(table):
    x, _, y = table
    none, few = small(EnsembleRegressor, calibration=0).fit(x, y), small(EnsembleRegressor, calibration=0.25).fit(x, y)
    with pytest.raises(ValueError, match="at least 9 rows"):
        none.predict_interval(x)
    with pytest.raises(ValueError, match="needs at least 19 validation examples, but there are 9"):
        few.predict_interval(x, 0.95)
    with pytest.raises(ValueError, match=r"calibration must be a share in \[0, 1\)"):
        small(EnsembleRegressor, calibration=1.5).fit(x, y)


def test_several_targets_have_intervals_each(table):
    x, _, y = table
    regressor = small(EnsembleRegressor, calibration=0.25).fit(x, np.stack([y, -y], 1))
    assert regressor.predict(x).shape == (40, 2) and regressor.predict_interval(x).shape == (40, 2, 2)


@pytest.mark.parametrize("method", pb.METHODS)
def test_every_method_classifies_and_regresses(method, table):
    x, labels, y = table
    assert small(EnsembleClassifier, method=method, epochs=1).fit(x, labels).predict_proba(x).shape == (40, 2)
    again = [small(EnsembleRegressor, method=method, epochs=1).fit(x, y).predict(x) for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_passes_one_by_one_are_passes_together(table):
    x, labels, _ = table
    together = small(EnsembleClassifier).fit(x, labels)
    steps = small(EnsembleClassifier)
    for _ in range(3):
        steps = pickle.loads(pickle.dumps(steps.partial_fit(x, labels, classes=["high", "low"])))
    np.testing.assert_allclose(steps.predict_proba(x), together.predict_proba(x), rtol=1e-12)


def test_pipelines_searches_copies_and_pickles_work(table):
    x, labels, y = table
    search = GridSearchCV(small(EnsembleClassifier), {"method": ["deep", "packed"], "size": [2, 4]}, cv=2)
    line = make_pipeline(StandardScaler(), search).fit(x, labels)
    assert search.get_params()["estimator__lr"] == 3e-3 and line.score(x, labels) > 0.4
    assert len(cross_val_score(small(EnsembleRegressor), x, y, cv=2)) == 2
    regressor = small(EnsembleRegressor).fit(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(regressor)).predict(x), regressor.predict(x))
    assert not hasattr(clone(regressor), "ensemble_")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, y: (np.where(x > 20, np.nan, x), y), "contains NaN"),
        (lambda x, y: (x, np.full(40, "low")), "one class, 'low'"),
        (lambda x, y: (x[:, :2], y[:20]), "inconsistent numbers"),
    ],
)
def test_refused_rows_leave_the_estimator_as_it_was(table, change, message):
    x, labels, _ = table
    classifier = small(EnsembleClassifier).fit(x, labels)
    before = classifier.predict_proba(x)
    with pytest.raises(ValueError, match=message):
        classifier.fit(*change(x, labels))
    with pytest.raises(ValueError, match="classes must stay"):
        classifier.partial_fit(x, labels, classes=["high", "low", "middle"])
    np.testing.assert_array_equal(classifier.predict_proba(x), before)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"method": "dep"}, "'dep' is unknown. Did you mean 'deep'"),
        ({"optimizer": "lamb"}, "'lamb' is unknown. Choose from sgd, adam, adamw"),
        ({"epochs": 0}, "epochs == 0, must be >= 1"),
        ({"lr": 0}, "lr == 0, must be > 0"),
        ({"class_weight": {"medium": 2.0}}, "'medium', which is not a class"),
        ({"class_weight": "fair"}, "must be \"balanced\" or {class: weight}, not 'fair'"),
        ({"network": lambda inputs, outputs: nn.Linear(inputs, 5)}, r"must give 2 numbers .* \(2, 5\)"),
        ({"optimizer": "sgd", "lr": 1e200}, "the loss became .* Choose a lower lr"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_fit(table, settings, message):
    with pytest.raises(ValueError, match=message):
        small(EnsembleClassifier, **settings).fit(*table[:2])


@pytest.mark.parametrize("weight", [np.zeros(40), -np.ones(40), np.ones((40, 1)), np.ones(39)])
def test_weights_that_make_no_sense_are_refused(table, weight):
    with pytest.raises(ValueError, match=r"sample.weight"):
        small(EnsembleRegressor).fit(table[0], table[2], weight)


# ---------------------------------------------------------------- data frames with texts


@pytest.fixture
def houses():
    chance = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {
            "area": chance.normal(100, 30, 120),
            "town": chance.choice(["Ulm", "Bonn", "NA"], 120),
            "garden": chance.random(120) < 0.5,
            "sold": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(chance.integers(0, 900, 120), unit="D"),
        }
    )
    frame.loc[::7, "area"] = np.nan
    frame.loc[::11, "town"] = None
    return frame, 3.0 * (frame["town"] == "Ulm") + frame["area"].fillna(100) / 50


def prepared(train, frame):
    """The columns as scikit-learn's own transformers prepare them."""
    numbers = SimpleImputer(strategy="mean", add_indicator=True).fit(train[["area"]])
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(train[["town"]].dropna())
    towns = words.transform(frame[["town"]].fillna("nothing"))
    days = (frame["sold"] - pandas.Timestamp(0)).dt.total_seconds().to_numpy() / 86400
    unknown = towns.sum(1) == 0
    return np.column_stack([numbers.transform(frame[["area"]]), towns, unknown, frame["garden"], days])


def test_a_frame_with_texts_is_trained_as_if_scikit_learn_had_prepared_it(houses):
    frame, y = houses
    train, new = frame[:90], frame[90:].assign(town="nowhere")
    own, plain = (small(EnsembleRegressor, batch_size=90, calibration=0.0) for _ in range(2))
    own.fit(train, y[:90])
    plain.fit(prepared(train, train), y[:90])
    np.testing.assert_allclose(own.predict(frame[90:]), plain.predict(prepared(train, frame[90:])), rtol=1e-5)
    np.testing.assert_allclose(own.predict(new), plain.predict(prepared(train, new)), rtol=1e-5)
    assert own.n_features_in_ == 4 and own.feature_names_in_.tolist() == list(frame.columns)


def test_a_frame_with_texts_goes_through_searches_and_pickles(houses):
    frame, y = houses
    labels = np.where(y > y.median(), "dear", "cheap")
    classifier = small(EnsembleClassifier, epochs=15)
    assert cross_val_score(classifier, frame, labels, cv=3).mean() > 0.6
    fitted = clone(classifier).fit(frame, labels)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))


def test_after_a_frame_with_texts_nothing_else_is_taken(houses):
    frame, y = houses
    fitted = small(EnsembleRegressor).fit(frame, y)
    with pytest.raises(ValueError, match="needs one with the columns area, town, garden, sold"):
        fitted.predict(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame.drop(columns="town"))
    with pytest.raises(ValueError, match="column \"area\" held numbers in training, but row 0 has 'wide'"):
        fitted.predict(frame.assign(area="wide"))


def test_weights_of_frames_are_repetitions_and_large_classes_stay_apart(houses):
    frame, _ = houses
    classes = 2**53 + np.arange(120) % 3
    weight = np.arange(120) % 3
    weighted = small(EnsembleClassifier).fit(frame, classes, sample_weight=weight)
    repeated = small(EnsembleClassifier).fit(frame.loc[frame.index.repeat(weight)], np.repeat(classes, weight))
    np.testing.assert_array_equal(weighted.predict_proba(frame), repeated.predict_proba(frame))
    alike = small(EnsembleClassifier).fit(np.zeros((90, 2)), 2**53 + np.arange(90) % 3)
    assert alike.classes_.tolist() == [2**53, 2**53 + 1, 2**53 + 2]
    assert alike.predict_proba(np.zeros((1, 2))).shape == (1, 3)
