"""What the page and the figures both draw: curves compared with other libraries and with counting."""

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from pluribus import figures
from pluribus.report.figure import compute_histograms, compute_roc, divide_by_error


@pytest.fixture
def scores():
    generator = np.random.default_rng(0)
    return generator.normal(size=400).round(1), generator.normal(1, size=300).round(1)  # with ties


def test_the_roc_is_that_of_scikit_learn(scores):
    inside, outside = scores
    labels = np.repeat([0, 1], [len(inside), len(outside)])
    false, true, _ = roc_curve(labels, np.concatenate(scores), drop_intermediate=False)
    for given, expected in zip(compute_roc(inside, outside), (false, true), strict=True):
        np.testing.assert_allclose(given, expected, atol=1e-12)


def test_histograms_share_their_bins_and_each_adds_up_to_one(scores):
    edges, shares = compute_histograms([*scores], bins=7)
    assert (edges[0], edges[-1]) == (min(map(np.min, scores)), max(map(np.max, scores)))
    for part, share in zip(scores, shares, strict=True):
        inside = [(part >= low) & (part < high) for low, high in zip(edges, edges[1:], strict=False)]
        inside[-1] |= part == edges[-1]
        np.testing.assert_allclose(share, np.mean(inside, axis=1))
        assert share.sum() == pytest.approx(1)


def test_a_member_without_errors_has_no_place_in_the_plane():
    assert np.isnan(divide_by_error(np.array([0.1]), np.array([1.0]))).all()
    points = {"accuracy": [0.8, 1.0], "disagreement": [0.1, 0.2]}
    axes = figures.diversity_accuracy({"deep": points}, 0.85, 10).axes[0]
    (line,) = (line for line in axes.lines if line.get_label() == "deep")
    assert line.get_ydata()[0] == pytest.approx(0.5)
    assert not np.isfinite(line.get_ydata()[1])
