"""Numbers as normal scores, compared with scikit-learn's transformer, and learnt from training rows alone."""

import numpy as np
import pytest
from scipy.stats import norm

from pluribus.data import load
from pluribus.data.encoding import check_encoding
from pluribus.data.tables import feature_groups, feature_names

preprocessing = pytest.importorskip("sklearn.preprocessing")


def write(path, values, other=None) -> str:
    other = np.random.default_rng(1).normal(size=len(values)) if other is None else other
    written = ["" if np.isnan(value) else repr(float(value)) for value in values]
    lines = [f"{a},{b:.4f},{i % 2}" for i, (a, b) in enumerate(zip(written, other, strict=True))]
    path.write_text("\n".join(["skewed,plain,label", *lines]))
    return f"table:{path}"


def test_scores_are_those_of_scikit_learn(tmp_path):
    values = np.exp(2 * np.random.default_rng(0).normal(size=1000))
    spec = write(tmp_path / "rows.csv", values)
    raw, scored = (load(spec, target="label", numbers=numbers) for numbers in ("standard", "quantile"))
    column = raw.encoding["columns"][0]
    numbers = [part[:][0][:, :1].double().numpy() * column["std"] + column["mean"] for part in (raw.train, raw.test)]
    peer = preprocessing.QuantileTransformer(n_quantiles=200, output_distribution="normal").fit(numbers[0])
    ours = scored.test[:][0][:, 0].numpy()
    expected = peer.transform(numbers[1])[:, 0]
    inside = abs(expected) < 2  # in the tails each has its own end
    np.testing.assert_allclose(ours[inside], expected[inside], atol=0.05)
    assert abs(ours).max() <= norm.ppf(1 - 0.5 / len(raw.train)) + 1e-4


@pytest.mark.parametrize("numbers", ["standard", "quantile", "piecewise"])
def test_nothing_is_learnt_from_validation_and_test_rows(tmp_path, numbers):
    if numbers == "piecewise":
        pytest.importorskip("rtdl_num_embeddings")
    from pandas import DataFrame

    found = []
    for shift in (0.0, 1000.0):  # of the test rows
        folder = tmp_path / str(shift)
        folder.mkdir()
        generator = np.random.default_rng(0)
        for part, more in (("train", 0.0), ("validation", shift), ("test", shift)):
            words = ["new" if more else "old", "both"] * 30
            frame = DataFrame({"x": generator.normal(size=60) + more, "word": words, "label": [0, 1] * 30})
            frame.to_csv(folder / f"{part}.csv", index=False)
        data = load(f"table:{folder}", target="label", numbers=numbers)
        found.append((data.encoding, data.train[:][0]))
    assert found[0][0] == found[1][0] and (found[0][1] == found[1][1]).all()


def test_missing_values_keep_their_flag_and_the_encoding_is_checked(tmp_path):
    values = np.random.default_rng(0).normal(size=200)
    values[::5] = np.nan
    data = load(write(tmp_path / "rows.csv", values), target="label", numbers="quantile")
    x = data.train[:][0]
    assert (x[x[:, 1] == 1, 0] == 0).all() and x[:, 1].mean() > 0.1
    check_encoding(data.encoding)
    data.encoding["columns"][0]["knots"].reverse()
    with pytest.raises(ValueError, match="knots must increase"):
        check_encoding(data.encoding)


def test_bins_are_those_of_the_authors_package_and_learnt_from_training_rows(tmp_path):
    package = pytest.importorskip("rtdl_num_embeddings")
    values = np.random.default_rng(0).normal(size=300)
    values[::5] = np.nan
    spec = write(tmp_path / "rows.csv", values)
    raw, binned = (load(spec, target="label", numbers=numbers) for numbers in ("standard", "piecewise"))
    train, test = (part[:][0] for part in (raw.train, raw.test))
    known = train[:, 1] == 0
    peer = package.PiecewiseLinearEncoding(package.compute_bins(train[known, :1], n_bins=48))
    found = binned.test[:][0]
    assert [*map(len, feature_groups(binned.encoding))][:2] == [48, 1] and len(
        feature_names(binned.encoding)
    ) == found.shape[1]
    np.testing.assert_allclose(found[:, :48], peer(test[:, :1]).numpy(), atol=2e-4)
    np.testing.assert_array_equal(found[:, 48], test[:, 1])
    check_encoding(binned.encoding)
    binned.encoding["columns"][0]["bins"].reverse()
    with pytest.raises(ValueError, match="bins must increase"):
        check_encoding(binned.encoding)
