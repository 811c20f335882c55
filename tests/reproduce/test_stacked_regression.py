"""Stacked training of many splits equals training each member alone, with plain torch."""

import copy

import pytest
import torch
from torch import nn

import pluribus as pb
from pluribus.models import mlp
from pluribus.reproduce.uci import (
    Division,
    Hyperparameters,
    one_gaussian_nll,
    predict_stacked,
    split_rmse,
    stacked_forward,
    train_stacked_,
)
from pluribus.uncertainty.outputs import gaussian_nll


def divisions(splits=2, rows=150, features=3):
    torch.manual_seed(5)
    return [
        Division(
            torch.randn(rows, features), torch.randn(rows), torch.randn(20, features), torch.randn(20).double(), k, 2.0
        )
        for k in range(splits)
    ]


@pytest.mark.parametrize("same_batches", [True, False])
def test_a_member_ends_as_it_would_alone(same_batches):
    """Plain loops, one member at a time, over the batches that the stack's generator draws."""
    splits, recipe, members = divisions(), Hyperparameters(0.01, 3, 0.01), 2
    ensemble = pb.deep(lambda: mlp(3, 2, (7,)), 4)
    alone = [copy.deepcopy(ensemble.member(i)) for i in range(4)]
    train_stacked_(ensemble, splits, recipe, same_batches=same_batches, seed=3)

    from pluribus.training.batching import mix_seeds

    generator = torch.Generator().manual_seed(mix_seeds(3, 3))
    orders = []
    for _ in range(recipe.epochs):
        drawn = torch.rand(2 if same_batches else 4, 150, generator=generator).argsort(1)
        orders.append([drawn[i // members if same_batches else i] for i in range(4)])
    for i, member in enumerate(alone):
        split = splits[i // members]
        optimizer = torch.optim.Adam(member.parameters(), lr=0.01, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        for epoch in range(3):
            for rows in orders[epoch][i].split(100):
                optimizer.zero_grad()
                mean, raw = member(split.x[rows]).unbind(1)
                variance = nn.functional.softplus(raw) + 1e-6
                nn.GaussianNLLLoss(full=True, eps=1e-12)(mean, split.y[rows], variance).backward()
                optimizer.step()
                schedule.step()
        torch.testing.assert_close(ensemble.member(i)(split.x), member(split.x), atol=2e-4, rtol=1e-3)


def test_the_stacked_loss_is_that_of_the_ensemble_with_a_batch_for_each_member():
    ensemble = pb.packed(lambda width: mlp(3, 2, (9,), width=width), 6, alpha=4)
    x, y = torch.randn(6, 10, 3), torch.randn(6, 10)
    stacked = gaussian_nll(stacked_forward(ensemble)(x).flatten(0, 1), y.flatten()) * 6
    torch.testing.assert_close(stacked, ensemble.loss(x, y, gaussian_nll, per_member=True))


def test_packed_members_of_many_splits_are_as_wide_as_those_of_one():
    one = pb.packed(lambda width: mlp(4, 2, (200,), width=width), 3, alpha=2)
    many = pb.packed(lambda width: mlp(4, 2, (200,), width=width), 60, alpha=40)
    assert one.member(0)[1].out_features == many.member(0)[1].out_features == 134


def test_predictions_come_in_the_units_of_the_target():
    splits, ensemble = divisions(), pb.deep(lambda: mlp(3, 2, (5,)), 4)
    means, variances = predict_stacked(ensemble, splits)
    assert means.shape == variances.shape == (2, 2, 20)
    output = ensemble.member(3)(splits[1].other_x).double()
    torch.testing.assert_close(means[1, 1], output[:, 0] * 2 + 1)
    torch.testing.assert_close(variances[1, 1], (nn.functional.softplus(output[:, 1]) + 1e-6) * 4)


def test_the_nll_is_that_of_one_gaussian_with_the_moments_of_the_mixture():
    torch.manual_seed(0)
    means, variances, target = torch.randn(3, 4).double(), torch.rand(3, 4).double() + 0.1, torch.randn(4).double()
    draws = torch.distributions.Normal(means, variances.sqrt()).sample((200_000,)).flatten(0, 1)
    expected = -torch.distributions.Normal(draws.mean(0), draws.std(0)).log_prob(target).mean()
    assert one_gaussian_nll(means, variances, target).item() == pytest.approx(expected.item(), abs=0.02)
    assert split_rmse(means, target).item() == pytest.approx((means.mean(0) - target).square().mean().sqrt().item())
