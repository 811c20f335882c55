"""Trained curves where the way around is known: a ring, and what a loop written apart finds."""

import numpy as np
import pytest
import torch
from torch import nn

from pluribus import landscape as ls

X, Y = torch.randn(40, 4, generator=torch.Generator().manual_seed(3)), torch.arange(40) % 3
DUMMY = (torch.zeros(5, 1), torch.zeros(5))


class Ring(nn.Module):
    """A network whose output is low on the unit circle of its two weights."""

    def __init__(self, x, y):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.tensor([float(x)])), nn.Parameter(torch.tensor([float(y)]))

    def forward(self, x):
        return (self.first**2 + self.second**2 - 1).square().expand(len(x), 1)


def value(output, target):
    return output.mean()


def network(seed, norm=False):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 3))


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("kind", ["bezier", "polygon"])
def test_a_curve_leads_around_the_ring(kind):
    a, b = Ring(1, 0.05), Ring(-1, 0.05)
    found = ls.curve(a, b, DUMMY, kind, steps=300, lr=0.05, criterion=value)
    straight = ls.barrier(ls.line(a, b), DUMMY, criterion=value)
    assert straight > 0.9 and ls.barrier(found, DUMMY, criterion=value) < 0.25
    assert ls.barrier(ls.curve(a, b, DUMMY, kind, bends=4, steps=400, lr=0.05, criterion=value), DUMMY,
                      criterion=value) < 0.03  # fmt: skip
    for t, end in ((0, a), (1, b)):
        assert torch.equal(flat(found.at(t)), flat(end))


def test_points_of_a_bezier_curve_are_those_of_de_casteljau():
    found = ls.curve(network(0), network(1), (X, Y), bends=2, steps=3)
    rows = found.networks.weights.double()
    assert len(rows) == 4
    for t in (0.0, 0.3, 0.8, 1.0):
        points = list(rows)
        while len(points) > 1:
            points = [(1 - t) * p + t * q for p, q in zip(points, points[1:], strict=False)]
        assert torch.allclose(flat(found.at(t)).double(), points[0], atol=1e-6)


@pytest.mark.parametrize(("kind", "norm"), [("bezier", False), ("polygon", False), ("bezier", True)])
def test_training_is_that_of_a_loop_written_apart(kind, norm):
    a, b = network(0, norm), network(1, norm)
    found = ls.curve(a, b, [(X, Y)], kind, steps=10, lr=0.03, weight_decay=0.1, seed=4)
    first, last = flat(a), flat(b)
    bend = ((first + last) / 2).requires_grad_()
    optimizer = torch.optim.Adam([bend], weight_decay=0.1)
    module, draws = network(0, norm).train(), np.random.default_rng(4).random(10)
    for step, t in enumerate(draws):
        if kind == "bezier":
            w = (1 - t) ** 2 * first + 2 * t * (1 - t) * bend + t**2 * last
        else:
            w = (1 - 2 * t) * first + 2 * t * bend if t < 0.5 else (2 - 2 * t) * bend + (2 * t - 1) * last
        parts = w.split([p.numel() for p in module.parameters()])
        named = {n: part.reshape(p.shape) for (n, p), part in zip(module.named_parameters(), parts, strict=True)}
        loss = nn.functional.cross_entropy(torch.func.functional_call(module, named, (X,)), Y)
        optimizer.zero_grad()
        loss.backward()
        done = (step + 1) / 10
        optimizer.param_groups[0]["lr"] = 0.03 * (1 if done <= 0.5 else max(0.01, 1 - 0.99 * (done - 0.5) / 0.4))
        optimizer.step()
    assert torch.allclose(found.networks.weights[1], bend, atol=2e-5)


def test_the_straight_line_between_trained_networks_is_higher_than_a_curve():
    models = []
    for seed in range(2):
        model = network(seed)
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(150):
            loss = nn.functional.cross_entropy(model(X), Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        models.append(model)
    straight = ls.barrier(ls.line(*models), (X, Y))
    for kind in ("bezier", "polygon"):
        path = ls.curve(*models, (X, Y), kind, steps=400, lr=0.02)
        assert ls.barrier(path, (X, Y)) < 0.5 * straight
    assert ls.along(path, (X, Y), points=5).agreement.shape == (2, 5)


def test_a_stitched_cut_follows_the_curve():
    found = ls.curve(Ring(1, 0.05), Ring(-1, 0.05), DUMMY, steps=300, lr=0.05, criterion=value)
    fan = ls.stitched(found, DUMMY, grid=(21, 6), criterion=value, reach=1.25)
    at = [flat(found.at(t)) for t in fan.u]
    lengths = np.array([w.norm().item() for w in at])
    assert np.linalg.norm(fan.fan[:, 4], axis=-1) == pytest.approx(lengths, rel=1e-5)  # radius 1 is the path
    steps = np.linalg.norm(np.diff(fan.fan[:, 4], axis=0), axis=-1)
    chords = [(p - q).norm().item() for p, q in zip(at, at[1:], strict=False)]
    assert steps == pytest.approx(np.array(chords), rel=0.02)  # all in one plane here: lengths are kept
    expected = [[((r * w).square().sum().item() - 1) ** 2 for r in fan.v] for w in at]
    assert fan.loss == pytest.approx(np.array(expected), abs=1e-4)


def test_frozen_weights_stay_where_both_have_them():
    a, b = network(0), network(0)
    nn.init.normal_(b[2].weight)
    for model in (a, b):
        model[0].requires_grad_(False)
    middle = ls.curve(a, b, (X, Y), steps=5, lr=0.5).at(0.5)
    assert torch.allclose(middle[0].weight, a[0].weight, atol=1e-6)


def test_bad_input_is_refused_before_training():
    a, b = network(0), network(1)
    with pytest.raises(ValueError, match=r"curve: the networks must have the same architecture, but '0.weight'"):
        ls.curve(a, nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)), (X, Y))
    with pytest.raises(ValueError, match="one of 'bezier', 'polygon', but it is 'spline'"):
        ls.curve(a, b, (X, Y), "spline")
    with pytest.raises(ValueError, match="are the same"):
        ls.curve(a, network(0), (X, Y))
    with pytest.raises(ValueError, match="bends"):
        ls.curve(a, b, (X, Y), bends=0)
    with pytest.raises(ValueError, match="smaller lr"):
        ls.curve(a, b, (X, Y), lr=9e18, weight_decay=1e30, steps=30)
