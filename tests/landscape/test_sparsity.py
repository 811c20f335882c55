"""The divergence of a sparse layer against all its masks, one by one, and against its bound."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from pluribus import landscape as ls
from pluribus.landscape.analyses import sparsity


def layer(outputs=3, inputs=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    return weight, torch.randn(inputs, generator=generator), torch.rand(inputs, generator=generator) + 0.1


def divergence_over_all_masks(weight, mean, variance, p):
    """Means and variances of the outputs over every mask there is, each with its probability."""
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(mean))), dtype=torch.float64)
    chance = (p**masks * (1 - p) ** (1 - masks)).prod(1)
    found = []
    for row in weight.double():
        means, variances = (masks * row) @ mean.double(), (masks * row).square() @ variance.double()
        middle = chance @ means
        spread = chance @ variances + chance @ (means - middle).square()
        dense = Normal(row @ mean.double(), (row.square() @ variance.double()).sqrt())
        found.append(kl_divergence(dense, Normal(middle, spread.sqrt())))
    return torch.stack(found)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9, 1.0])
def test_the_divergence_is_that_of_the_moments_over_all_masks(p):
    given = layer()
    torch.testing.assert_close(ls.sparsity_divergence(*given, p), divergence_over_all_masks(*given, p))


@pytest.mark.parametrize("p", [0.05, 0.5, 1.0])
def test_the_bound_is_equation_8(p):
    weight, mean, variance = (tensor.double().numpy() for tensor in layer())
    for unit, bound in enumerate(ls.sparsity_bound(*layer(), p).tolist()):
        w = weight[unit]
        sigma2, squares = np.sum(w**2 * variance), np.sum(w**2 * mean**2)
        printed = p + 1 / p - 2 + p * (1 - p) * squares / sigma2 + ((1 - p) * np.sum(w * mean)) ** 2 / (p * sigma2)
        assert bound == pytest.approx(printed / 2, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_the_divergence_never_exceeds_its_bound(seed):
    weight, mean, variance = layer(outputs=50, inputs=30, seed=seed)
    shares = torch.cat([torch.linspace(0.01, 1, 40, dtype=torch.float64), torch.tensor([1 - 1e-6, 1 - 1e-12])])
    divergence = ls.sparsity_divergence(weight, 3 * mean, variance, shares)
    bound = ls.sparsity_bound(weight, 3 * mean, variance, shares)
    assert divergence.shape == (42, 50) and bool((divergence >= 0).all())
    assert bool((divergence <= bound * (1 + 1e-9) + 1e-300).all())


def test_a_layer_that_keeps_everything_does_not_diverge():
    assert ls.sparsity_divergence(*layer(), 1).tolist() == ls.sparsity_bound(*layer(), 1.0).tolist() == [0, 0, 0]


def test_without_means_half_the_weights_are_half_the_variance():
    found = ls.sparsity_divergence(torch.ones(1, 10), 0, 2.0, 0.5).item()
    assert found == pytest.approx((np.log(0.5) + 2 - 1) / 2)


def test_one_number_stands_for_all_inputs():
    weight, _, _ = layer()
    one, all_of_them = (0.3, 0.7), (torch.full((8,), 0.3), [0.7] * 8)
    for function in (ls.sparsity_bound, ls.sparsity_divergence):
        torch.testing.assert_close(function(weight, *one, [0.2, 0.8]), function(weight, *all_of_them, [0.2, 0.8]))


@pytest.mark.parametrize("function", [ls.sparsity_bound, ls.sparsity_divergence])
@pytest.mark.parametrize(
    "changes, said",
    [
        ({"p": 0.0}, "above 0 and at most 1, but it is 0.0"),
        ({"p": 1.2}, "at most 1, but it is 1.2"),
        ({"p": -0.5}, "but it is -0.5"),
        ({"p": float("nan")}, "but it is nan"),
        ({"p": [0.5, 2.0]}, r"but it is \[0.5, 2.0\]"),
        ({"weight": torch.ones(2, 3, 3, 3)}, r"\(outputs, inputs\).*weight.flatten\(1\)"),
        ({"weight": torch.eye(8) * 0}, "unit 0 does not"),
    ],
)
def test_what_has_no_divergence_is_refused(function, changes, said):
    weight, mean, variance = layer()
    with pytest.raises(ValueError, match=f"{function.__name__}: .*{said}"):
        function(**{"weight": weight, "mean": mean, "variance": variance, "p": 0.5, **changes})


def test_drawn_masks_give_the_divergence_of_figure_5():
    curves = ls.sparsity_curves((0.5, 1.0), (0.2, 0.5, 0.9, 1.0), draws=20_000)
    assert curves["bound"].shape == curves["measured"].shape == (2, 4)
    torch.testing.assert_close(curves["measured"], curves["divergence"], rtol=0.1, atol=0.002)
    assert bool((curves["measured"] <= curves["bound"] + 1e-12).all())  # at p = 1 both are 0
    assert bool((curves["bound"].diff() < 0).all())  # fewer weights, farther away


def test_layers_of_a_network_are_judged_on_their_own_inputs():
    torch.manual_seed(0)
    x = torch.randn(4000, 6)
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    found = ls.layer_sparsity(net, x, [0.25, 0.5, 1.0], rows=4000)
    weight = net[0].weight.detach()
    bound = ls.sparsity_bound(weight, x.mean(0), x.var(0), [0.25, 0.5, 1.0]).mean(1)
    assert found["0"]["bound"] == pytest.approx(bound.numpy(), rel=1e-4) and list(found) == ["0", "1"]
    # independent Gaussian inputs: what is measured is equation 17, and below the bound
    assert found["0"]["measured"][:2] == pytest.approx(found["0"]["divergence"][:2], rel=0.2)
    assert (found["0"]["measured"][:2] < found["0"]["bound"][:2]).all() and found["0"]["measured"][2] == pytest.approx(
        0
    )


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.Conv2d(2, 4, (2, 3), padding="same", dilation=2),
        nn.Conv2d(2, 4, 3, padding=(0, 2), padding_mode="circular"),
    ],
)
def test_the_rows_of_a_convolution_times_its_weight_are_its_outputs(conv):
    x = torch.randn(3, 2, 7, 8)
    rows = sparsity._patches(conv, x, 10**6, torch.Generator())
    outputs = conv(x).movedim(1, -1).reshape(-1, 4)
    torch.testing.assert_close(rows @ conv.weight.flatten(1).T + conv.bias, outputs, atol=1e-5, rtol=1e-5)


def test_a_network_without_layers_is_refused():
    with pytest.raises(ValueError, match="no linear layer or ungrouped convolution"):
        ls.layer_sparsity(nn.LayerNorm(4), torch.randn(5, 4))
