"""Spectra against matrices that are known: quadratics, and torch.func.hessian of small networks."""

import numpy as np
import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

DATA = (torch.zeros(6, 1), torch.zeros(6))


class Quadratic(nn.Module):
    """A network whose loss is w' A w / 2, its weights in two tensors."""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", torch.as_tensor(matrix))
        self.first = nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
        self.second = nn.Parameter(torch.randn(len(matrix) - 6, dtype=torch.float64))

    def forward(self, x):
        w = torch.cat([self.first.reshape(-1), self.second])
        return (0.5 * w @ self.matrix @ w).expand(len(x))


def symmetric(values, seed=0):
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return turn @ np.diag(values) @ turn.T


def mean(output, target):
    return output.mean()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-3, 8, 40),
        np.r_[9.0, 9.0, 9.0, 4.0, 4.0, np.linspace(1, 2, 15), np.zeros(20)],  # equal ones
        np.full(40, 2.5),
        np.r_[-50.0, np.linspace(0, 1, 39)],
    ],
)
def test_the_spectrum_of_a_quadratic_is_its_matrix_s(values, exact):
    model = Quadratic(symmetric(values))
    found = ls.spectrum(model, DATA, top=6, probes=10, steps=40, exact=exact, criterion=mean, batch_size=4)
    expected = np.sort(values)[::-1]
    scale = np.abs(values).max()
    assert found.values == pytest.approx(expected[:6], abs=2e-4 * scale)
    assert found.lowest == pytest.approx(expected[-1], abs=1e-3 * scale)
    assert found.weights.sum() == pytest.approx(1) and found.parameters == 40 and found.exact is exact
    assert abs(found.trace - values.sum()) <= (5 * found.trace_error if not exact else 0) + 1e-8 * scale
    assert found.weights @ found.nodes == pytest.approx(found.trace / 40)
    if exact:
        assert found.trace_error == 0 and np.sort(found.nodes) == pytest.approx(np.sort(values), abs=1e-8)
    else:
        squares = found.weights @ found.nodes**2  # Gaussian quadrature: exact for each random vector
        assert squares == pytest.approx((values**2).mean(), abs=0.3 * scale**2)


def test_the_density_is_a_density_and_has_the_eigenvalues():
    values = np.r_[np.full(30, 0.0), np.full(10, 4.0)]
    found = ls.spectrum(Quadratic(symmetric(values)), DATA, 1, probes=200, steps=5, exact=False, criterion=mean)
    points = np.linspace(-2, 6, 4001)
    density = found.density(points, 0.1)
    assert density.sum() * (points[1] - points[0]) == pytest.approx(1, abs=1e-6)
    assert density[points > 2].sum() / density.sum() == pytest.approx(0.25, abs=0.03)
    assert found.density(0.0) > found.density(2.0)


def network(norm=False):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Tanh(), nn.Linear(5, 3)).double()


def hessian_of(model, x, y):
    """By torch.func, of the parameters in one row."""
    named = {name: p.detach() for name, p in model.named_parameters()}
    flat = torch.cat([p.reshape(-1) for p in named.values()])

    def loss(row):
        parts = dict(zip(named, row.split([p.numel() for p in named.values()]), strict=True))
        parts = {name: part.reshape(named[name].shape) for name, part in parts.items()}
        return nn.functional.cross_entropy(torch.func.functional_call(model, parts, (x,)), y)

    return torch.func.hessian(loss)(flat).numpy()


@pytest.mark.parametrize("norm", [False, True])
def test_a_small_network_has_the_spectrum_of_torch_s_hessian(norm):
    model = network(norm).eval()
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 3
    matrix = hessian_of(model, x, y)
    expected = np.linalg.eigvalsh(matrix)[::-1]
    whole = ls.spectrum(model, (x, y), 5, batch_size=7)  # batches of different sizes
    assert whole.exact and whole.values == pytest.approx(expected[:5]) and whole.trace == pytest.approx(matrix.trace())
    assert whole.lowest == pytest.approx(expected[-1])
    found = ls.spectrum(model, (x, y), 5, exact=False, probes=20, steps=4, tolerance=1e-6)
    assert found.values == pytest.approx(expected[:5], abs=1e-5 * expected[0])
    assert found.trace == pytest.approx(matrix.trace(), abs=5 * found.trace_error)
    assert 0 < found.trace_error < 0.3 * matrix.trace()


def test_the_network_stays_as_it_is_and_frozen_weights_are_left_out():
    model = network().train()
    model[0].requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x, y = torch.randn(20, 3), torch.arange(20) % 3
    found = ls.spectrum(model, (x, y), 3)
    assert found.parameters == sum(p.numel() for p in model[3].parameters()) and model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model[0].weight.requires_grad is False and model[3].weight.grad is None


def test_attention_has_a_spectrum():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 2))
    found = ls.spectrum(model, (torch.randn(5, 3, 4), torch.arange(5) % 2), 2, exact=False, probes=2, steps=5)
    assert np.isfinite(found.values).all() and found.values[0] > found.values[1] > 0


def test_bad_input_is_refused():
    model, x, y = network().float(), torch.randn(20, 3), torch.arange(20) % 3
    with pytest.raises(ValueError, match="top must be at most 38.*but it is 39"):
        ls.spectrum(model, (x, y), 39)
    with pytest.raises(ValueError, match="needs labels"):
        ls.spectrum(model, x)
    with pytest.raises(ValueError, match="needs one network"):
        ls.spectrum(pb.deep(model, 2), (x, y))
    with pytest.raises(ValueError, match="top"):
        ls.spectrum(model, (x, y), 0)
