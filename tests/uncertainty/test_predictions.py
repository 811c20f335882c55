"""Predictions: total = aleatoric + epistemic, in log space, for any logits; mixtures of Gaussians."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special, stats

from pluribus.uncertainty.classification import SCORES, Classification
from pluribus.uncertainty.outputs import gaussian, gaussian_nll, pool
from pluribus.uncertainty.prediction import prediction_of
from pluribus.uncertainty.regression import Regression

close = torch.testing.assert_close


def some(members: int = 3, batch: int = 5, classes: int = 4, kind: torch.dtype = torch.float64) -> Classification:
    return Classification.from_logits(3 * torch.randn(members, batch, classes, dtype=kind))


logits = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 5)), elements=st.floats(-1e4, 1e4)
)


# ---------------------------------------------------------------- what always holds


@given(logits)
def test_total_is_aleatoric_plus_epistemic_and_none_is_negative(values):
    p = Classification.from_logits(values)
    close(p.total, p.aleatoric + p.epistemic)
    assert bool((p.epistemic >= 0).all()) and bool((p.aleatoric >= 0).all())
    assert bool((p.total >= p.epistemic).all()) and bool((p.total <= math.log(p.classes) + 1e-9).all())


@given(logits)
def test_one_member_has_no_epistemic_part_and_is_the_ensemble(values):
    p = Classification.from_logits(values[:1])
    assert bool((p.epistemic == 0).all()) and bool((p.pairwise_kl == 0).all())
    close(p.log_mean, p.log_members[0], rtol=0, atol=0)
    close(p.total, p.member_entropy[0], rtol=0, atol=0)
    assert bool((p.score("variation_ratio") == 0).all())


# ---------------------------------------------------------------- classification


def test_scores_are_those_of_scipy():
    p = some()
    raw, each = p.logits.numpy(), special.softmax(p.logits.numpy(), -1)
    mean = each.mean(0)
    votes = stats.mode(each.argmax(-1), axis=0).count / len(each)
    expected = {
        "msp": 1 - mean.max(-1),
        "max_logit": -raw.mean(0).max(-1),
        "energy": -special.logsumexp(raw.mean(0), -1),
        "entropy": stats.entropy(mean, axis=-1),
        "mutual_information": stats.entropy(mean, axis=-1) - stats.entropy(each, axis=-1).mean(0),
        "variation_ratio": 1 - votes,
    }
    assert set(expected) == set(SCORES)
    for name, values in expected.items():
        np.testing.assert_allclose(p.score(name), values, atol=1e-6)


def test_extreme_logits_keep_their_logarithms():
    p = Classification.from_logits(torch.tensor([[[0.0, -500.0, -1e30]], [[0.0, -600.0, -math.inf]]]))
    close(p.log_mean[0, 1], torch.tensor(-500.0) - math.log(2))
    assert p.log_likelihood(torch.tensor([1])).item() == pytest.approx(-500 - math.log(2))
    assert p.total.item() == 0 and p.epistemic.item() == 0 and p.confidence.item() == 1
    assert p.rank(torch.tensor([1])).item() == 1  # above the impossible class, though both underflow


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_handled_in_float32(kind):
    raw = (3 * torch.randn(3, 5, 4)).to(kind)
    p, q = Classification.from_logits(raw), Classification.from_logits(raw.float())
    assert p.total.dtype == torch.float32
    close(p.total, q.total)
    assert pool("classification", raw).dtype == torch.float32


def test_gradients_of_probabilities_that_underflow_are_finite():
    raw = torch.tensor([[[0.0, -500.0]], [[0.0, -600.0]]], requires_grad=True)
    Classification.from_logits(raw).log_mean[0, 1].backward()
    close(raw.grad[0, 0], torch.tensor([-1.0, 1.0]))


def test_binary_has_two_classes():
    raw = torch.randn(3, 5)
    p = Classification.from_binary(raw)
    close(p.mean[:, 1], raw.sigmoid().mean(0))
    close(Classification.from_binary(raw[..., None]).mean, p.mean)
    dense = torch.randn(3, 2, 1, 4, 4)
    close(prediction_of("binary", dense).mean[..., 1], dense[:, :, 0].sigmoid().mean(0))
    assert pool("binary", dense).shape == (2, 1, 4, 4)


def test_dense_outputs_are_predicted_pixel_by_pixel():
    raw = torch.randn(3, 2, 5, 4, 6)
    p, target = Classification.from_logits(raw, class_dim=2), torch.randint(5, (2, 4, 6))
    pixel = Classification.from_logits(raw[..., 1, 2])
    assert p.label.shape == p.total.shape == (2, 4, 6) and p.mean.shape == (2, 5, 4, 6)
    for name in SCORES:
        close(p.score(name)[:, 1, 2], pixel.score(name))
    for name in ("log_likelihood", "squared_error", "rank"):
        close(getattr(p, name)(target)[:, 1, 2], getattr(pixel, name)(target[:, 1, 2]))
        close(getattr(p.flat(), name)(target.flatten()), getattr(p, name)(target).flatten())
    assert p.member_log_likelihood(target).shape == p.member_squared_error(target).shape == (3, 2, 4, 6)


def test_rank_is_the_place_in_a_stable_sort():
    p = Classification.from_logits(torch.randint(3, (1, 50, 6)).double())
    target = torch.randint(6, (50,))
    order = p.log_mean.argsort(dim=-1, descending=True, stable=True)
    close(p.rank(target), (order == target[:, None]).int().argmax(-1))
    close(p.rank(p.label), torch.zeros(50, dtype=torch.long))


def test_restriction_renormalises_members_and_logits():
    p = some()
    for q, chosen in ((p, [3, 1]), (p, torch.tensor([False, True, False, True]))):
        r = q.restrict(chosen)
        index = [3, 1] if isinstance(chosen, list) else [1, 3]
        expected = p.members[..., index] / p.members[..., index].sum(-1, keepdim=True)
        close(r.members, expected)
        close(r.score("max_logit"), -p.logits[..., index].mean(0).amax(-1))
    close(Classification.from_probabilities(p.members).restrict([3, 1]).members, p.restrict([3, 1]).members)
    dense = Classification.from_logits(torch.randn(2, 3, 5, 4, 4), class_dim=2)
    assert dense.restrict([0, 4]).mean.shape == (3, 2, 4, 4)


def test_rows_and_members_are_chosen_by_index():
    p = some()
    assert len(p) == 5 and p.size == 3 and p.classes == 4
    close(p[1].log_members, p.log_members[:, 1:2])
    close(p[-1].logits, p.logits[:, -1:])
    close(p[torch.tensor([True, False, False, True, False])].mean, p.mean[[0, 3]])
    close(p.member(-1).mean, p.members[-1])
    with pytest.raises(IndexError, match=r"3 is out of range \(0-2\)"):
        p.member(3)


def test_batches_are_joined():
    p = some()
    close(Classification.cat([p[:2], p[2:]]).log_members, p.log_members)
    with pytest.raises(ValueError, match="same members"):
        Classification.cat([p, some(members=2)])
    with pytest.raises(ValueError, match="same members"):
        Classification.cat([])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probabilities(1, 2, math.nan), r"row at \[member 1, example 2\] .* nan"),
        (lambda: probabilities(0, 4, math.inf), r"row at \[member 0, example 4\] .* inf"),
        (lambda: probabilities(2, 0, -0.1), r"row at \[member 2, example 0\] .* from -0.1 "),
        (lambda: probabilities(2, 0, 0.5), r"the sum 1.25\. Give probabilities, or use from_logits"),
        (lambda: from_logits(1, 2, math.nan), r"row at \[member 1, example 2\] is \[nan, 0.0, 0.0, 0.0\]"),
        (lambda: from_logits(1, 2, math.inf), r"row at \[member 1, example 2\] is \[inf"),
        (lambda: Classification.from_logits(torch.full((1, 2, 3), -math.inf)), "-inf in some but not all"),
        (lambda: Classification.from_logits(torch.zeros(2, 3)), r"\(2, 3\)\. .* add the members' dimension"),
        (lambda: Classification.from_logits(torch.zeros(2, 0, 3)), r"without an empty dimension, but .* \(2, 0, 3\)"),
        (lambda: Classification.from_logits(torch.zeros(2, 3, 1)), "use from_binary"),
        (lambda: Classification.from_logits(torch.zeros(2, 3, 4), class_dim=1), "class_dim must be from 2 to 2"),
        (lambda: some().score("surprise"), "'surprise' is unknown. Choose from msp"),
        (lambda: probabilities(0, 0, 0.25).score("energy"), "energy needs logits"),
        (lambda: probabilities(0, 0, 0.25).score("max_logit"), "max_logit needs logits"),
        (lambda: some().restrict([0, 4]), r"from 0 to 3, but they are \[0, 4\]"),
        (lambda: some().restrict([1, 1]), "different ones"),
        (lambda: some().log_likelihood(torch.tensor([0, 1, 4, 0, 0])), r"0 to 3, but at \[2\] there is 4"),
        (lambda: some().log_likelihood(torch.tensor([0, 1, -1, 0, 0])), r"at \[2\] there is -1"),
        (lambda: some().log_likelihood(torch.tensor([0, 1, 0.5, 0, 0])), r"whole numbers .* there is 0.5"),
        (lambda: some().rank(torch.zeros(5, 4)), r"\(5, 4\)\. For one-hot or soft targets"),
    ],
)
def test_bad_input_is_an_error_that_says_rule_and_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def probabilities(member: int, row: int, value: float) -> Classification:
    p = torch.full((3, 5, 4), 0.25)
    p[member, row, 0] = value
    return Classification.from_probabilities(p)


def from_logits(member: int, row: int, value: float) -> Classification:
    p = torch.zeros(3, 5, 4)
    p[member, row, 0] = value
    return Classification.from_logits(p)


def test_targets_may_be_floats_columns_and_arrays():
    p = Classification.from_binary(torch.randn(2, 3))
    expected = p.log_likelihood(torch.tensor([0, 1, 1]))
    for target in (torch.tensor([[0.0], [1.0], [1.0]]), np.array([False, True, True])):
        close(p.log_likelihood(target), expected)


# ---------------------------------------------------------------- regression


def normal(members: int = 3, batch: int = 6) -> Regression:
    kind = torch.float64
    return Regression(torch.randn(members, batch, dtype=kind), 0.1 + torch.rand(members, batch, dtype=kind))


def test_mixture_variance_subtracts_the_square_of_the_mean():
    p = normal()
    close(p.total, (p.variances + p.means.square()).mean(0) - p.means.mean(0).square())
    close(p.total, p.aleatoric + p.epistemic)


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(0.01, 0.99), st.floats(-1e3, 1e3))
def test_a_mixture_of_one_is_the_member(mean, variance, level, target):
    kind = torch.float64
    p, y = (
        Regression(torch.tensor([[mean]], dtype=kind), torch.tensor([[variance]], dtype=kind)),
        torch.tensor([target]),
    )
    member = stats.norm(mean, math.sqrt(variance))
    assert p.total.item() == variance and p.epistemic.item() == 0
    assert [end.item() for end in p.interval(level)] == pytest.approx(member.interval(level), abs=1e-9)
    exact = y.double().item()
    assert p.log_likelihood(y.double()).item() == pytest.approx(member.logpdf(exact), rel=1e-9)
    assert p.cumulative(y.double()).item() == pytest.approx(member.cdf(exact), abs=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_interval_holds_its_share_of_the_mixture(level):
    p = normal()
    low, high = p.interval(level)
    for end, share in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
        below = stats.norm.cdf(end.numpy(), p.means.numpy(), p.variances.sqrt().numpy()).mean(0)
        np.testing.assert_allclose(below, share, atol=1e-10)


def test_likelihood_is_that_of_the_mixture():
    p, y = normal(), torch.randn(6, dtype=torch.float64)
    density = stats.norm.pdf(y.numpy(), p.means.numpy(), p.variances.sqrt().numpy()).mean(0)
    np.testing.assert_allclose(p.log_likelihood(y), np.log(density))


def test_points_are_a_mixture_without_aleatoric_part():
    p, y = Regression(torch.tensor([[0.0], [1.0], [5.0]])), torch.tensor([2.0])
    assert p.aleatoric.item() == 0 and p.total.item() == pytest.approx(np.var([0, 1, 5]))
    assert [end.item() for end in p.interval(0.9)] == [0.0, 5.0]
    apart, among = np.mean([2, 1, 3]), np.abs(np.subtract.outer([0, 1, 5], [0, 1, 5])).mean()
    assert p.crps(y).item() == pytest.approx(apart - among / 2)
    assert p.cumulative(y).item() == pytest.approx(2 / 3)
    one = Regression(torch.tensor([[3.0]]))
    assert one.crps(y).item() == 1 and [end.item() for end in one.interval()] == [3.0, 3.0]


def test_several_outputs_are_judged_one_by_one():
    means, variances = torch.randn(3, 4, 2), torch.rand(3, 4, 2) + 0.1
    p, y = Regression(means, variances), torch.randn(4, 2)
    one = Regression(means[..., 1], variances[..., 1])
    for values, expected in ((p.crps(y), one.crps(y[:, 1])), (p.interval()[0], one.interval()[0])):
        close(values[:, 1], expected)
    close(p.log_likelihood(y)[:, 1], one.log_likelihood(y[:, 1]))
    assert len(p.flat()) == 8 and p.score("total").shape == (4,)


def test_regression_rows_members_and_batches():
    p = normal()
    close(Regression.cat([p[:2], p[2:]]).variances, p.variances)
    close(p[-1].means, p.means[:, -1:])
    close(p.member(1).total, p.variances[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Regression(torch.zeros(2, 3), torch.tensor([[1.0, 1, 1], [1, -2, 1]])), "the least is -2"),
        (
            lambda: Regression(torch.zeros(2, 3), torch.ones(2, 4)),
            r"the same shape, but they have \(2, 3\) and \(2, 4\)",
        ),
        (lambda: Regression(torch.tensor([[0.0, math.nan]])), r"means must be finite, but at \[0, 1\]"),
        (lambda: Regression(torch.zeros(2, 0)), "without an empty dimension"),
        (lambda: Regression(torch.zeros(3)), "add the members' dimension"),
        (lambda: Regression(torch.zeros(2, 3)).interval(1.0), "level must be between 0 and 1"),
        (lambda: Regression(torch.zeros(2, 3)).log_likelihood(torch.zeros(3)), "points without variances"),
        (lambda: Regression(torch.zeros(2, 3)).crps(torch.zeros(4)), r"\(3,\), but the shape is \(4,\)"),
        (lambda: Regression(torch.zeros(2, 3)).crps(torch.tensor([0, 0, math.nan])), r"at \[2\] there is nan"),
        (lambda: Regression(torch.zeros(2, 3)).score("msp"), "Choose from total, aleatoric, epistemic"),
        (lambda: Regression.cat([normal(), Regression(torch.zeros(3, 1))]), "1 of 2 have"),
        (lambda: gaussian(torch.zeros(2, 3)), r"the shape is \(2, 3\)"),
        (lambda: gaussian_nll(torch.zeros(5, 2), torch.zeros(4)), r"\(5,\), but the targets have the shape \(4,\)"),
    ],
)
def test_bad_numbers_are_an_error_that_says_rule_and_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_criterion_is_that_of_torch():
    output, y = torch.randn(5, 4), torch.randn(5, 2)
    mean, variance = gaussian(output)
    close(gaussian_nll(output, y), F.gaussian_nll_loss(mean, y, variance, full=True))
    close(gaussian_nll((mean, variance), y), gaussian_nll(output, y))
    close(gaussian_nll(output[:, :2], y[:, :1]), gaussian_nll(output[:, :2], y[:, 0]))


def test_pooled_gaussians_are_the_mixture():
    output = torch.randn(3, 5, 2)
    p = prediction_of("gaussian", output)
    mean, variance = pool("gaussian", output)
    close(mean, p.mean)
    close(variance, p.total)
