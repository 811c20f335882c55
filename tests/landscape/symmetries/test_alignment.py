"""Two networks in one order of units: exact where there is an exact answer, the best of all where all can be tried."""

import itertools

import numpy as np
import pytest
import torch
import torch.backends.opt_einsum
from odd_networks import ODD, built, linear, rows, seeded
from torch import nn
from zoo import Recurrent, UNet, images, tokens

import pluribus as pb
from pluribus import landscape as ls
from pluribus._common.trees import as_batch, map_tensors

SHUFFLED = [
    *("mlp", "residual", "densenet", "grouped convolution", "pixel shuffle", "group norm", "einsum"),
    *("gru", "lstm in both directions", "attention", "grouped queries", "queries, keys and values in one matrix"),
    *("encoder, norm first", "mixer", "tied weights", "flatten after a convolution", "batch norm", "chunks"),
]


def many(example):
    """More rows like those of an example."""
    other = lambda t: torch.randn(40, *t.shape[1:], generator=seeded(9)) if t.is_floating_point() else t.repeat(9, 1)  # noqa: E731
    return map_tensors(example, other)


def output(model, x):
    args, kwargs = as_batch(x)
    with torch.no_grad():
        return model(*args, **kwargs)


def is_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("by", ["weights", "activations"])
@pytest.mark.parametrize("name", SHUFFLED)
@torch.backends.opt_einsum.flags(enabled=False)  # where it is installed, weights are multiplied first: no activations
def test_a_shuffled_network_is_put_back_exactly(name, by):
    model, example = built(ODD[name].build), many(ODD[name].example())
    groups = ls.permutations(model, example)
    shuffled = ls.permute(model, groups, seeded(1))
    assert not is_equal(shuffled, model)
    assert is_equal(ls.align(shuffled, model, example, by, groups=groups), model)


@pytest.mark.parametrize(("build", "example"), [(Recurrent, tokens), (UNet, images(16))])
def test_a_shuffled_network_that_nobody_prepared_is_put_back_exactly(build, example):
    model, x = built(build), example()
    assert is_equal(ls.align(ls.permute(model, ls.permutations(model, x), seeded(1)), model, x), model)


@pytest.mark.parametrize("by", ["weights", "activations"])
def test_the_order_is_the_best_of_all_orders(by):
    """All 120 orders of five hidden units, each judged by a sum that is written out here."""
    one, other = (built(lambda: linear(3, 5, 2), seed) for seed in (1, 2))
    x = rows(30, 3)()

    def worth(order):
        if by == "weights":
            pairs = [(one[0].weight[order], other[0].weight), (one[0].bias[order], other[0].bias)]
            pairs += [(one[2].weight[:, order], other[2].weight)]
            return sum(float((a * b).sum().detach()) for a, b in pairs)
        a, b = (output(model[0], x[:28]).numpy() for model in (one, other))  # 28: as many as whole chunks hold
        return sum(np.corrcoef(a[:, order[i]], b[:, i])[0, 1] for i in range(5))

    best = max(itertools.permutations(range(5)), key=lambda order: worth(list(order)))
    aligned = ls.align(one, other, x, by)
    assert torch.equal(aligned[0].weight, one[0].weight[list(best)])
    assert torch.equal(aligned[2].weight, one[2].weight[:, list(best)])


def test_the_line_between_a_network_and_its_shuffled_copy_is_flat_once_they_are_aligned():
    model = built(ODD["batch norm"].build)
    x = ODD["batch norm"].example().repeat(4, 1, 1, 1)
    y = output(model, x)[:, :, 0, 0].argmax(1)[:, None, None].expand(-1, 8, 8)
    shuffled = ls.permute(model, ls.permutations(model, x), seeded(1))
    before = ls.barrier(ls.line(shuffled, model), (x, y), points=5)
    after = ls.barrier(ls.line(ls.align(shuffled, model, x), model), (x, y), points=5)
    assert before > 1e-3 > 1e-5 > abs(after)


# ---------------------------------------------------------------- soups


def test_a_soup_of_a_network_and_its_shuffled_copies_is_the_network():
    model, x = built(lambda: linear(5, 9, 8, 3)), rows(12, 5)()
    groups = ls.permutations(model, x)
    made = ls.soup([model, *(ls.permute(model, groups, seeded(seed)) for seed in (1, 2))], x)
    assert isinstance(made, pb.Ensemble) and made.size == 1
    assert torch.allclose(made(x)[0], output(model, x), atol=1e-5)
    assert "soup of 3 networks, aligned by weights" in made.explain()


def test_a_soup_is_the_mean_of_aligned_networks():
    one, other = (built(lambda: linear(5, 9, 3), seed) for seed in (1, 2))
    x = rows(12, 5)()
    aligned = ls.align(other, one, x)
    mean = {n: (a + aligned.state_dict()[n]) / 2 for n, a in one.state_dict().items()}
    by_hand = built(lambda: linear(5, 9, 3))
    by_hand.load_state_dict(mean)
    assert torch.allclose(ls.soup([one, other], x)(x)[0], output(by_hand, x), atol=1e-6)


def test_statistics_of_a_soup_are_estimated_on_data():
    models = [built(ODD["batch norm"].build, seed) for seed in (1, 2)]
    x = rows(16, 3, 8, 8)()
    with pytest.warns(UserWarning, match="batch normalisation"):
        ls.soup(models, x)
    made = ls.soup(models, x, data=x)
    hidden = made.module[0]
    kernel = nn.functional.conv2d(x, hidden.weight[0], hidden.bias[0], padding=1)
    assert torch.allclose(made.module[1].running_mean[0], kernel.mean((0, 2, 3)), atol=1e-5)


# ---------------------------------------------------------------- bad input


def test_networks_that_cannot_be_aligned_are_refused():
    one, x = built(lambda: linear(5, 7, 2)), rows(6, 5)()
    with pytest.raises(
        ValueError, match=r"same architecture, but '0.weight' has the shape \(7, 5\) in one and \(8, 5\)"
    ):
        ls.align(one, built(lambda: linear(5, 8, 2)), x)
    with pytest.raises(ValueError, match="'1' is a ReLU in one and a Tanh in another"):
        ls.align(one, nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), x)
    with pytest.raises(ValueError, match="by must be one of 'weights', 'activations', but it is 'outputs'"):
        ls.align(one, one, x, "outputs")
    with pytest.raises(ValueError, match="restarts must be a whole number"):
        ls.align(one, one, x, restarts=-1)
    with pytest.raises(ValueError, match="Give many rows"):
        ls.align(one, one, x[:1], "activations")
    with pytest.raises(ValueError, match="no hidden units"):
        ls.align(nn.Linear(5, 2), nn.Linear(5, 2), x)
    broken = built(lambda: linear(5, 7, 2))
    broken[0].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="invalid numeric entries"):
        ls.align(one, broken, x)
    with pytest.raises(ValueError, match="needs at least 2 networks to average"):
        ls.soup([one], x)


# ---------------------------------------------------------------- trained networks


def trained(seed, x, y, epochs):
    torch.manual_seed(seed)
    model = linear(784, 512, 512, 512, 10)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("pair", range(3))
def test_the_barrier_between_two_trained_networks_falls_to_a_tenth(pair):
    data = pb.data.load("digits")
    x, y = data.train[:]
    x = data.normalise(x).flatten(1)
    one, other = (trained(seed, x, y, 5) for seed in (2 * pair, 2 * pair + 1))
    before = ls.barrier(ls.line(one, other), (x, y), points=9)
    after = ls.barrier(ls.line(ls.align(one, other, x, restarts=0), other), (x, y), points=9)
    assert before > 0.2 and after <= 0.1 * before
