"""Training on NaN, or that diverges, stops with the last good weights and says why."""

import copy
import itertools
import math

import pytest
import torch
from fitting_cases import examples, network
from torch import nn

import pluribus as pb


def normed():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def finite(ensemble):
    return all(bool(t.isfinite().all()) for t in ensemble.state_dict().values())


def state(ensemble):
    return copy.deepcopy(ensemble.state_dict())


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def poison_after(batches):
    """An augmentation that leaves so many batches as they are."""
    steps = itertools.count(1)
    return lambda x, y: (x if next(steps) <= batches else x * math.nan, y)


def fitted(ensemble, *data, **options):
    with pytest.warns(RuntimeWarning) as caught:
        history = pb.fit(ensemble, *data, **{"epochs": 3, "batch_size": 16, **options})
    (warning,) = [str(one.message) for one in caught]
    assert warning == history.failure and history.failure in str(history)
    return history


METHODS = {
    "single": {}, "deep": {"size": 2}, "packed": {"size": 2, "example": torch.zeros(2, 6)},
    "masksembles": {"size": 2, "example": torch.zeros(2, 6)}, "batch_ensemble": {"size": 2},
    "mc_dropout": {"size": 2, "rate": 0.1}, "mimo": {"size": 2, "example": torch.zeros(2, 6)},
    "treenet": {"size": 2, "branch": "3"}, "multihead": {"size": 2}, "lora": {"size": 2}, "tabm": {"size": 2},
}  # fmt: skip


@pytest.mark.parametrize("method", pb.METHODS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_inputs_stop_every_method_and_leave_it_as_it_was(method, value):
    x, y = torch.randn(48, 6), torch.randint(3, (48,))
    x[17, 2] = value
    ensemble = pb.METHODS[method](normed(), **METHODS[method]).eval()
    before = state(ensemble)
    history = fitted(ensemble, (x, y))
    assert same(before, state(ensemble)) and not ensemble.training
    assert f"x holds {value}" in history.failure and "those before training" in history.failure
    assert history.rows == []


def test_the_weights_of_the_last_whole_epoch_are_kept():
    x, y = examples()
    ensemble = pb.deep(network(), 2)
    twin = copy.deepcopy(ensemble)
    options = {"batch_size": len(x) // 4, "seed": 3, "schedule": "constant"}
    history = fitted(ensemble, (x, y), epochs=9, augment=poison_after(10), **options)
    pb.fit(twin, (x, y), epochs=2, **options)  # four steps an epoch: the third epoch is the bad one
    assert len(history.rows) == 2 and "those after epoch 1" in history.failure
    assert same(state(ensemble), state(twin))


def test_a_loss_that_diverges_is_told_from_bad_data():
    x, y = torch.randn(64, 6), torch.randn(64)
    ensemble = pb.deep(nn.Linear(6, 1), 2)
    ensemble.task = "regression"
    history = fitted(ensemble, (x, y), optimizer="sgd", lr=1e12, epochs=20)
    assert "diverges although the data are finite; use a smaller lr" in history.failure and finite(ensemble)


class Root(torch.autograd.Function):
    """A number whose gradient is NaN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


@pytest.mark.parametrize("held_out", [False, True])
def test_a_gradient_that_is_nan_is_found_though_every_loss_is_finite(held_out):
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    ensemble = pb.deep(nn.Linear(6, 3), 2)
    before = state(ensemble)

    def criterion(output, target):
        return nn.functional.cross_entropy(Root.apply(output), target)

    data = ((x, y), (x, y)) if held_out else ((x, y),)
    history = fitted(ensemble, *data, criterion=criterion, epochs=1)  # one step: no loss is NaN
    assert "is NaN or infinite after the last step" in history.failure and same(before, state(ensemble))


@pytest.mark.parametrize(("place", "word"), [(0, "x holds nan"), (1, "y holds nan")])
def test_bad_validation_data_are_named(place, word):
    x, y = torch.randn(48, 6), torch.randn(48)
    held_out = [x.clone(), y.clone()]
    held_out[place][3] = math.nan
    ensemble = pb.deep(nn.Linear(6, 1), 2)
    ensemble.task = "regression"
    history = fitted(ensemble, (x, y), tuple(held_out))
    assert "validation data" in history.failure and word in history.failure and finite(ensemble)


def test_the_best_epoch_so_far_is_kept_where_there_is_one():
    x, y = examples()
    ensemble = pb.deep(network(), 2)
    history = fitted(ensemble, (x, y), (x, y), epochs=9, augment=poison_after(10), batch_size=len(x) // 4)
    best = history.rows[history.best["ensemble"]]["validation_accuracy"]
    assert "the best so far" in history.failure
    assert pb.evaluate(ensemble.predict(x), y, metrics=["accuracy"])["accuracy"] == pytest.approx(best)


def test_a_mask_of_infinities_is_no_divergence():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(6, 3)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, -math.inf]))

        def forward(self, x):
            return self.last(x) + self.mask

    x, y = torch.randn(48, 6), torch.randint(2, (48,))
    history = pb.fit(pb.deep(Masked(), 2), (x, y), (x, y), epochs=2)
    assert history.failure == "" and len(history.rows) == 2


def test_a_stopped_training_does_not_spoil_its_checkpoint(tmp_path):
    x, y = examples()
    ensemble = pb.deep(network(), 2)
    fitted(ensemble, (x, y), augment=poison_after(6), batch_size=len(x) // 4, folder=tmp_path)
    again = pb.deep(network(), 2)
    history = pb.fit(again, (x, y), epochs=3, batch_size=len(x) // 4, folder=tmp_path)
    assert len(history.rows) == 3 and finite(again)
