"""Bias and variance of estimators that are known."""

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

ROWS, NOISE, MEAN = 16, 0.5, 2.0


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.zeros(ROWS, 1), MEAN + NOISE * torch.randn(ROWS, 1, generator=generator)


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.randn(1))

    def forward(self, x):
        return self.value.expand(len(x), 1)


def shrink(factor):
    """The training of an estimator in closed form: a part of the mean of y."""

    def train(ensemble, x, y, seed):
        with torch.no_grad():
            ensemble.module.value.copy_((factor * y.mean()).expand_as(ensemble.module.value))

    return train


@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_bias_and_variance_of_a_known_estimator(factor):
    truth = lambda x: torch.full((len(x), 1), MEAN)  # noqa: E731
    found = ls.bias_variance(lambda size: pb.single(Constant()), draw, [1], 200, truth=truth, train=shrink(factor))
    variance, bias = factor**2 * NOISE**2 / ROWS, ((1 - factor) * MEAN) ** 2
    assert found.variance[0] == pytest.approx(variance, rel=0.4)  # 4 standard errors
    assert found.bias[0] == pytest.approx(bias, abs=4 * 2 * np.sqrt(bias * variance / 200) + 4 * variance / 200)
    assert found.error == pytest.approx(found.bias + found.variance)
    for figure, value in (("variance", variance), ("bias", bias), ("error", bias + variance)):
        known = found.interval(figure, 1)
        half = known.high - known.value
        assert abs(known.value - value) < 2.2 * half and half < 0.3 * (bias + variance)


def test_few_training_sets_do_not_bias_the_figures():
    """Two sets that say 1 and 3 where 0 is right: the variance is 2, and of the squared mean 2 / 2 is chance."""
    found = ls.BiasVariance([1], np.array([[[1.0, 1.0], [3.0, 3.0]]]), np.zeros(2), np.zeros((1, 2)))
    assert (found.variance[0], found.bias[0], found.error[0]) == (2.0, 3.0, 5.0)


def test_without_the_truth_the_noise_is_part_of_the_bias_as_in_the_paper():
    test = draw(10_000)
    found = ls.bias_variance(lambda size: pb.single(Constant()), draw, [1], 10, test=test, train=shrink(1.0))
    sets = np.array([draw(i)[1].double().mean().item() for i in range(10)])
    y = test[1].double().reshape(-1).numpy()
    error = np.square(sets[:, None] - y).mean()  # equation of section 2.1
    assert found.error[0] == pytest.approx(error, rel=1e-5)
    assert found.variance[0] == pytest.approx(sets.var(ddof=1), rel=1e-4)
    assert found.bias[0] == pytest.approx(error - sets.var(ddof=1), rel=1e-4)
    assert found.members == pytest.approx(np.square(sets[:, None] - y).mean(1)[None], rel=1e-4)
    default = ls.bias_variance(lambda size: pb.single(Constant()), draw, [1], 10, train=shrink(1.0))
    assert len(default.target) >= 1000 and default.target[:ROWS] == pytest.approx(draw(10)[1].reshape(-1).numpy())


def mlp():
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def curve(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(20, 1, generator=generator)
    return x, torch.sin(6 * x) + 0.1 * torch.randn(20, 1, generator=generator)


@pytest.mark.parametrize("method", ["mimo", "masksembles", "packed"])
def test_the_mean_of_the_members_of_every_method_is_judged(method):
    example = torch.zeros(2, 1)
    options = {"init": "different"} if method == "mimo" else {}
    found = ls.bias_variance(
        lambda size: getattr(pb, method)(mlp(), size, example=example, **options), curve, [2], 2, steps=300, lr=0.05
    )
    assert found.error[0] < 0.2 and found.predictions.shape[:2] == (1, 2)
    assert found.interval("members", 2).value >= found.error[0] - 1e-6  # Jensen


def test_the_default_training_reaches_the_minimum_and_sizes_are_compared_on_the_same_sets():
    found = ls.bias_variance(lambda size: pb.deep(Constant, size), draw, [1, 3], 4, steps=400, lr=0.1)
    sets = [draw(i)[1].mean().item() for i in range(4)]
    assert found.predictions[:, :, 0] == pytest.approx(np.array([sets, sets]), abs=1e-3)
    assert found.difference("error", 1, 3).value == pytest.approx(0, abs=1e-3)


def test_bad_input_is_refused():
    make = lambda size: pb.deep(mlp(), size)  # noqa: E731
    with pytest.raises(ValueError, match="at least 2 training sets"):
        ls.bias_variance(make, curve, [1], 1)
    with pytest.raises(ValueError, match="y must be numbers"):
        ls.bias_variance(make, lambda seed: (torch.zeros(5, 1), torch.arange(5)), [1], 2)
