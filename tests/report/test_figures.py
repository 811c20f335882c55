"""Figures show the numbers they are given, and refuse numbers that cannot be meant."""

import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from pluribus import figures

pytest.importorskip("matplotlib")

rng = np.random.default_rng(0)
BINS = {"confidence": [math.nan, 0.5, 0.9], "accuracy": [math.nan, 0.4, 0.95], "examples": [0, 40, 60]}
CURVE = {"coverage": [1.0, 0.5], "risk": [0.1, 0.02]}
SCORES = {"inside": rng.normal(0, 1, 300).round(1), "outside": torch.from_numpy(rng.normal(1, 1, 200).round(1))}
POINTS = {"accuracy": [0.8, 0.7], "disagreement": [0.1, 0.25]}
EXAMPLES = {
    "reliability": ({"deep": BINS, "mine": BINS},),
    "risk_coverage": ({"deep": CURVE},),
    "score_histograms": ({"deep": SCORES, "packed": SCORES}, "msp"),
    "roc": ({"deep": SCORES},),
    "agreement": ([[1.0, 0.9], [0.9, 1.0]], ["first", "second"]),
    "diversity_accuracy": ({"deep": POINTS}, 0.85, 10, 0.22),
}


@pytest.mark.parametrize("name", list(figures.FIGURES))
def test_figure_is_drawn_with_labels_on_its_axes(name):
    figure = figures.FIGURES[name](*EXAMPLES[name], title="A title")
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    assert len(picture.getvalue()) > 5000
    assert figure.get_suptitle() == "A title"
    assert figure.axes[0].get_ylabel() and any(axes.get_xlabel() for axes in figure.axes)


def test_a_figure_is_left_to_its_caller_and_pyplot_is_not_loaded():
    code = (
        "import sys; from pluribus import figures; assert 'matplotlib' not in sys.modules;"
        "figures.risk_coverage({'deep': {'coverage': [0.5, 1.0], 'risk': [0.0, 0.1]}});"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reliability_leaves_out_empty_bins_and_gives_the_ece():
    axes = figures.reliability({"deep": BINS}).axes[0]
    assert axes.lines[1].get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.95]]
    assert axes.get_legend().get_texts()[1].get_text() == "deep (ECE 0.070)"  # 0.4 * 0.1 + 0.6 * 0.05


def test_area_under_the_drawn_roc_is_that_of_all_pairs_with_ties_one_half():
    axes = figures.roc({"deep": SCORES}).axes[0]
    inside, outside = SCORES["inside"][:, None], SCORES["outside"].numpy()[None]
    expected = ((outside > inside) + 0.5 * (outside == inside)).mean()
    x, y = axes.lines[0].get_data()
    assert np.trapezoid(y, x) == pytest.approx(expected, abs=1e-12)
    assert axes.get_legend().get_texts()[0].get_text() == f"deep (AUROC {expected:.3f})"
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)


def test_agreement_shows_every_pair_and_hides_the_diagonal_that_says_nothing():
    matrix = np.array([[1, 0.9, 0.8], [0.9, 1, 0.7], [0.8, 0.7, 1]])
    axes = figures.agreement(matrix).axes[0]
    shown = axes.images[0].get_array()
    assert shown.mask.diagonal().all() and shown[0, 2] == 0.8
    assert [text.get_text() for text in axes.texts][:3] == ["1.00", "0.90", "0.80"]
    assert axes.images[0].get_clim() == (0.7, 0.9)


def test_upper_limit_is_the_disagreement_of_independent_predictions():
    base, sample, target = simulated(0.8, 0.6, classes=5)
    _, upper = figures.diversity_limits((sample == target).mean(), (base == target).mean(), 5)
    assert upper == pytest.approx((base != sample).mean(), abs=0.005)


@pytest.mark.parametrize(("plus", "minus"), [(0.2, 0.2), (0.1, 0.5), (0.3, 0.0)])
def test_the_family_is_the_accuracy_and_disagreement_of_flipped_labels(plus, minus):
    base, _, target = simulated(0.8, 0.6, classes=5)
    chance = np.random.default_rng(1)
    flip = chance.random(len(base)) < np.where(base == target, plus, minus)
    sample = np.where(flip, (base + chance.integers(1, 5, len(base))) % 5, base)
    accuracy, disagreement = figures.diversity_family(plus, minus, (base == target).mean(), 5)
    assert accuracy == pytest.approx((sample == target).mean(), abs=0.005)
    assert disagreement == pytest.approx((sample != base).mean(), abs=0.005)


def test_lower_limit_is_the_family_with_equal_flips():
    flips = np.linspace(0, 1, 11)
    accuracy, disagreement = figures.diversity_family(flips, flips, 0.8, 10)
    assert figures.diversity_limits(accuracy, 0.8, 10)[0] == pytest.approx(disagreement)


def simulated(base, sample, classes, examples=200_000):
    """Labels of two independent functions with these accuracies, and the targets."""
    chance = np.random.default_rng(0)
    target = chance.integers(classes, size=examples)
    wrong = lambda: (target + chance.integers(1, classes, examples)) % classes  # noqa: E731
    labels = [np.where(chance.random(examples) < accuracy, target, wrong()) for accuracy in (base, sample)]
    return *labels, target


def test_a_method_has_one_colour_in_all_figures_and_no_two_share_one():
    first = figures.risk_coverage({"mine": CURVE, "deep": CURVE, "packed": CURVE}).axes[0].lines
    second = figures.roc({"packed": SCORES, "deep": SCORES}).axes[0].lines
    assert first[1].get_color() == second[1].get_color() and first[2].get_color() == second[0].get_color()
    assert len({line.get_color() for line in first}) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("reliability", ({},), "at least one method"),
        ("reliability", ({"deep": {"confidence": [0.5]}},), "'deep' must hold confidence, accuracy, examples"),
        ("reliability", ({"deep": BINS | {"accuracy": [0, 40, 95]}},), "from 0 to 1, but one is 95. Give shares"),
        ("roc", ({"deep": {"inside": [], "outside": [1.0]}},), "not empty"),
        ("agreement", ([[1.0, 0.9]],), r"\(members, members\), but its shape is \(1, 2\)"),
        ("agreement", ([[1.0, 90.0], [90.0, 1.0]],), "one is 90. Give shares"),
        ("agreement", ([[1.0]], ["a", "b"]), "as many names, but got 2"),
    ],
)
def test_numbers_that_cannot_be_meant_are_an_error(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        figures.FIGURES[name](*arguments)
