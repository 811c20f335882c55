"""Models of a list are stacked where they differ in nothing but weights; the oracle is each model by itself."""

import functools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pluribus as pb


class Holder(nn.Module):
    """A layer, and something in an attribute that the output may depend on."""

    def __init__(self, held=None, change=None):
        super().__init__()
        self.layer, self.held, self.change = nn.Linear(6, 3), held, change

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 6) -> (batch, 3)."""
        y = self.layer(x)
        return y if self.change is None else self.change(y)


class Sum:
    """A callable object."""

    def __init__(self, value):
        self.value = value

    def __call__(self, y: Tensor) -> Tensor:
        """The sum."""
        return y + self.value


def default(value):
    return lambda y, value=value: y + value


def closure(value):
    return lambda y: y + value


def hidden(value):
    layer = nn.Linear(3, 3)
    nn.init.constant_(layer.weight, value)
    nn.init.zeros_(layer.bias)
    return [layer]


CHANGES = {
    "default argument": default,
    "closure": closure,
    "closure over a tensor": lambda value: closure(torch.tensor(value)),
    "partial": lambda value: functools.partial(torch.add, other=value),
    "callable object": Sum,
    "hidden module": lambda value: functools.partial(lambda held, y: held[0](y), hidden(value)),
}
HELD = {
    "array": lambda value: np.full(3, value),
    "tensor in a list": lambda value: [torch.full((3,), value)],
    "chance of torch": lambda value: torch.Generator().manual_seed(int(value)),
    "hidden module": hidden,
}


@pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES)
def test_models_that_do_something_else_with_their_output_are_not_stacked(make):
    torch.manual_seed(0)
    models = [Holder(change=make(value)) for value in (1.0, 2.0)]
    x = torch.randn(5, 6)
    ensemble = pb.deep(models)
    torch.testing.assert_close(ensemble(x), torch.stack([model(x) for model in models]))
    assert isinstance(ensemble, pb.Ensemble) and not ensemble.stacked


@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
def test_models_that_hold_something_else_are_not_stacked(make):
    assert not pb.deep([Holder(make(value)) for value in (1.0, 2.0)]).stacked


EQUAL = CHANGES | HELD


@pytest.mark.parametrize("name", sorted(EQUAL.keys() - {"hidden module", "chance of torch"}))
def test_models_that_hold_equal_things_are_stacked(name):
    assert pb.deep([Holder(EQUAL[name](1.0)) for _ in range(2)]).stacked


def test_models_whose_functions_hold_a_part_of_them_are_not_stacked():
    """A function is not copied with its model: it would look at the first model's part for all."""

    def make() -> nn.Module:
        model = Holder()
        model.change = lambda y, layer=model.layer: y + layer.weight.sum()
        return model

    torch.manual_seed(0)
    models, x = [make(), make()], torch.randn(5, 6)
    torch.testing.assert_close(pb.deep(models)(x), torch.stack([model(x) for model in models]))


def test_models_that_list_their_own_parts_are_stacked_and_those_that_list_parameters_are_not():
    def make(hold) -> nn.Module:
        model = Holder()
        model.held, model.change = [hold(model)], None
        return model

    for hold, stacked in ((lambda model: model.layer, True), (lambda model: model.layer.weight, False)):
        assert pb.deep([make(hold), make(hold)]).stacked is stacked


@pytest.mark.parametrize(
    "build", [lambda: nn.LSTM(6, 3), lambda: nn.MultiheadAttention(6, 2), lambda: nn.BatchNorm1d(6)]
)
def test_layers_of_torch_are_alike(build):
    assert pb.deep([build(), build()]).stacked


def test_models_that_use_other_parts_twice_are_not_stacked():
    def make(twice: bool) -> nn.Module:
        one = nn.Sequential(nn.Tanh())
        return nn.Sequential(nn.Linear(6, 6), one, one if twice else nn.Sequential(nn.Tanh()))

    assert not pb.deep([make(True), make(False)]).stacked


HOOKS = {
    "spectral norm": lambda layer: nn.utils.parametrizations.spectral_norm(layer),
    "weight norm": lambda layer: nn.utils.parametrizations.weight_norm(layer),
    "orthogonal": lambda layer: nn.utils.parametrizations.orthogonal(layer),
    "spectral norm by hooks": lambda layer: nn.utils.spectral_norm(layer),
}


@pytest.mark.parametrize("name", HOOKS)
def test_layers_with_parametrizations_and_hooks_give_what_they_gave(name):
    torch.manual_seed(0)
    models = [nn.Sequential(HOOKS[name](nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3)).eval() for _ in range(2)]
    x = torch.randn(5, 6)
    expected = torch.stack([model(x) for model in models])
    ensemble = pb.deep(models).eval()
    torch.testing.assert_close(ensemble(x), expected)
    assert ensemble.stacked or "hooks" in name  # these keep the weight that they computed, which differs


def test_a_builder_of_unlike_models_is_told_in_what_they_differ():
    values = iter((1.0, 2.0))
    with pytest.raises(ValueError, match=r"differ in 'held' of module ''.*pb\.deep"):
        pb.deep(lambda: Holder(next(values)), 2)
