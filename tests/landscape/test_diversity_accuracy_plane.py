"""The diversity-accuracy plane: limits and family against simulated predictors, points against plain counts."""

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

CLASSES, ROWS = 7, 400_000


def simulate(reference=0.8, seed=0):
    rng = np.random.default_rng(seed)
    target = rng.integers(CLASSES, size=ROWS)
    return rng, target, miss(rng, target, rng.random(ROWS) > reference)


def miss(rng, labels, where):
    """Other labels, evenly drawn, where told."""
    return np.where(where, (labels + rng.integers(1, CLASSES, size=len(labels))) % CLASSES, labels)


@pytest.mark.parametrize("accuracy", [0.3, 0.6, 0.8])
def test_independent_predictors_are_at_the_upper_limit(accuracy):
    rng, target, base = simulate()
    other = miss(rng, target, rng.random(ROWS) > accuracy)
    low, high = ls.limits((other == target).mean(), (base == target).mean(), CLASSES, normalised=False)
    assert (other != base).mean() == pytest.approx(high, abs=5e-3)
    ratio = ls.limits((other == target).mean(), (base == target).mean(), CLASSES)[1]
    assert (other != base).mean() / (1 - (other == target).mean()) == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize("flips", [0.1, 0.5])
def test_random_flips_are_at_the_lower_limit(flips):
    rng, target, base = simulate()
    other = miss(rng, base, rng.random(ROWS) < flips)
    low, _ = ls.limits((other == target).mean(), (base == target).mean(), CLASSES, normalised=False)
    assert (other != base).mean() == pytest.approx(low, abs=5e-3)


@pytest.mark.parametrize("exponent", [0.22, 0.5, 1.0, 3.0])
def test_the_family_is_that_of_predictors_that_flip_right_and_wrong_labels_unlike(exponent):
    accuracies, apart = [], []
    for flips in (0.15, 0.35, 0.6, 0.9):
        rng, target, base = simulate(seed=int(100 * flips))
        other = miss(rng, base, rng.random(ROWS) < np.where(base == target, flips, flips**exponent))
        accuracies.append((other == target).mean())
        apart.append((other != base).mean())
    assert ls.family(accuracies, 0.8, CLASSES, exponent, normalised=False) == pytest.approx(apart, abs=8e-3)
    ratios = np.array(apart) / (1 - np.array(accuracies))
    assert ls.fit_exponent((accuracies, ratios), 0.8, CLASSES) == pytest.approx(exponent, rel=0.1)
    assert ls.fit_exponent((accuracies, apart), 0.8, CLASSES, normalised=False) == pytest.approx(exponent, rel=0.1)


def test_there_is_nothing_above_the_accuracy_of_the_reference():
    assert np.isnan(ls.limits([0.9], 0.8, 10)[0]).all() and np.isnan(ls.family([0.99], 0.8, 10, 0.22)).all()


def test_points_are_plain_counts_whatever_holds_the_networks():
    x, y = torch.randn(80, 4), torch.arange(80) % 3
    models = [nn.Linear(4, 3) for _ in range(4)]
    labels = [m(x).argmax(-1) for m in models]
    accuracy = [(label == y).double().mean().item() for label in labels]
    apart = [(label != labels[0]).double().mean().item() for label in labels]
    run = ls.Trajectory.of([models[1], models[0]], models[0])
    for reference in (models[0], pb.single(models[0]), run):
        for others in (models[1:], pb.deep(models[1:]), ls.Trajectory.of(models[1:], models[0])):
            points = ls.diversity_accuracy(reference, others, (x, y))
            assert points.accuracy == pytest.approx(accuracy[1:]) and points.reference_accuracy == accuracy[0]
            assert points.diversity == pytest.approx(np.array(apart[1:]) / (1 - np.array(accuracy[1:])))
            assert points.classes == 3
    assert ls.diversity_accuracy(models[0], models[1:], (x, y), normalised=False).diversity == pytest.approx(apart[1:])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ls.limits([0.5], 0.1, 10), "better than chance"),
        (lambda: ls.limits([1.5], 0.8, 10), "from 0 to 1"),
        (lambda: ls.fit_exponent(([0.5], [0.5])), "needs the reference's accuracy"),
        (lambda: ls.fit_exponent(([0.9], [0.5]), 0.8, 10), "less accurate than the reference"),
        (lambda: ls.diversity_accuracy(nn.Linear(4, 3), [nn.Linear(4, 3)], torch.randn(5, 4)), "needs labels"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()
