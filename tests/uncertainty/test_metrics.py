"""Metrics at their edges: ties, empty bins, rounding, and what has no value is refused."""

import itertools
import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_references import false_positives, probabilities

from pluribus import metrics


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [10, 15])
def test_a_confidence_on_an_edge_is_in_the_bin_below(kind, bins):
    confidence = torch.tensor([i / bins for i in range(1, bins + 1)], dtype=kind)
    assert metrics.reliability(confidence, torch.ones(bins), bins).examples.tolist() == [1] * bins


def test_a_confidence_above_one_by_rounding_changes_nothing():
    correct = [0, 1, 1]
    assert metrics.ece([0.4, 0.9, 1.0000001], correct) == pytest.approx(metrics.ece([0.4, 0.9, 1.0], correct), abs=1e-6)
    assert metrics.ece([1.0000001], [1]) == 0


def test_labels_in_place_of_correctness_are_an_error():
    with pytest.raises(ValueError, match="correct must be from 0 to 1"):
        metrics.ece([0.5, 0.6], [3, 7])


def test_fewer_examples_than_bins_leave_bins_empty():
    assert metrics.adaptive_ece([0.2, 0.8], [0, 1], bins=15) == pytest.approx(0.2)
    assert metrics.ece([0.2, 0.8], [0, 1], bins=15) == pytest.approx(0.2)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=6))
def test_aurc_of_ties_is_the_mean_over_their_orders(rows):
    loss = {order: [rows[i][1] for i in order] for order in itertools.permutations(range(len(rows)))}
    sorted_orders = [o for o in loss if all(rows[a][0] <= rows[b][0] for a, b in itertools.pairwise(o))]
    areas = [np.mean(np.cumsum(loss[o]) / np.arange(1, len(rows) + 1)) for o in sorted_orders]
    assert metrics.aurc(*zip(*rows, strict=True)) == pytest.approx(np.mean(areas))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
)
def test_detection_with_ties_equals_scikit_learn(inside, outside):
    truth, score = [0] * len(inside) + [1] * len(outside), inside + outside
    assert metrics.auroc(inside, outside) == pytest.approx(sk.roc_auc_score(truth, score))
    assert metrics.aupr(inside, outside) == pytest.approx(sk.average_precision_score(truth, score))
    assert metrics.fpr95(inside, outside) == pytest.approx(false_positives(np.array(truth), np.array(score)))


def test_infinite_scores_have_a_rank():
    assert metrics.auroc([0.0, 1.0], [math.inf, 2.0]) == 1.0
    assert metrics.auroc([-math.inf, 1.0], [0.0, 2.0]) == 0.75


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.data())
def test_excess_is_between_zero_and_the_area(uncertainty, data):
    loss = data.draw(st.lists(st.integers(0, 1), min_size=len(uncertainty), max_size=len(uncertainty)))
    assert 0 <= metrics.e_aurc(uncertainty, loss) <= metrics.aurc(uncertainty, loss) + 1e-12


def test_classes_that_do_not_occur_are_no_part_of_mean_iou():
    assert metrics.mean_iou([0, 5], [0, 5]) == 1.0
    assert metrics.mean_iou([0, 5], [0, 4]) == pytest.approx(1 / 3)


def test_one_member_does_not_disagree():
    labels, target = torch.tensor([[0, 1, 2]]), torch.tensor([0, 1, 1])
    assert metrics.disagreement(labels) == 0
    assert metrics.disagreement_by_error(labels, target) == 0
    assert metrics.disagreement_with_base(labels, target) == 0


def test_members_that_never_err_have_no_disagreement_by_error():
    labels = torch.tensor([[0, 1], [0, 1]])
    assert metrics.disagreement_by_error(labels, labels[0]) == 0
    assert metrics.disagreement_with_base(torch.tensor([[0, 0], [0, 1]]), labels[0]) == math.inf


def test_class_bins_add_up_over_batches():
    p, y = (torch.tensor(values) for values in probabilities())
    parts = metrics.class_bins(p[:200], y[:200]) + metrics.class_bins(p[200:], y[200:])
    torch.testing.assert_close(parts, metrics.class_bins(p, y))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.top_k([1], k=0), "k must be at least 1, but it is 0"),
        (lambda: metrics.ece([0.5], [1], bins=0), "bins must be at least 1, but it is 0"),
        (lambda: metrics.risk_at_coverage([1], [1], coverage=1.5), "coverage must be above 0 and at most 1"),
        (lambda: metrics.fpr95([1], [1], recall=0), "recall must be above 0"),
        (lambda: metrics.disagreement([1, 2]), r"two dimensions, but its shape is \(2,\)"),
        (lambda: metrics.mean_iou([-1], [0]), "must not be negative, but one is -1"),
        (lambda: metrics.class_bins([[0.5, 0.5]], [2]), "one target from 0 to 1"),
        (lambda: metrics.mean_corruption_error([[0.1]], [[0.0]]), "on one corruption it makes none"),
        (lambda: metrics.accuracy([[1], [2]], [1, 2]), r"label \(2, 1\) and target \(2,\)"),
    ],
)
def test_an_error_says_the_rule_and_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
