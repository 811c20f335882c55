"""Methods that train their members as rows of one batch, on models that turn and pick rows, against networks apart."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import pluribus as pb

METHODS = [method for method in pb.METHODS if method in ("masksembles", "batch_ensemble")]
methods = pytest.mark.parametrize("method", METHODS)


class Base(nn.Module):
    """(batch, 4, 6) -> (batch, 3), through a layer that is called in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def turn(self, x: Tensor) -> Tensor:
        """(batch, time, 6) -> the same."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Class scores from the mean over time."""
        return self.head(self.turn(torch.tanh(self.enter(x))).mean(1))


class Siamese(Base):
    """Once on both halves of a pair, below each other, and once on one of them."""

    def turn(self, x: Tensor) -> Tensor:
        """The product of the halves, and the input."""
        one, two = torch.tanh(self.layer(torch.cat([x.flatten(0, 1), x.flip(1).flatten(0, 1)]))).chunk(2)
        return (one * two).unflatten(0, x.shape[:2]) + self.layer(x)


class Axial(Base):
    """Along one axis, time first, and then along another."""

    def turn(self, x: Tensor) -> Tensor:
        """Both axes, one after the other."""
        x = torch.tanh(self.layer(x.transpose(0, 1))).transpose(0, 1)
        x = torch.tanh(self.layer(x.transpose(0, 1).flatten(0, 1))).unflatten(0, (x.shape[1], -1)).transpose(0, 1)
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class TrainingOnly(Base):
    """A second head in training, time first, behind dropout that drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(6, 6)

    def turn(self, x: Tensor) -> Tensor:
        """The layer's output, in training with more added to it."""
        y = self.layer(x)
        return y + self.extra(F.dropout(x, 0.0).transpose(0, 1)).transpose(0, 1) if self.training else y


MODELS = [Siamese, Axial, TrainingOnly]


def apart(ensemble: pb.Ensemble, model: nn.Module) -> list[dict[str, Tensor]]:
    """The tensors of each member as a plain network, by the methods' equations."""
    state = dict(ensemble.module.named_parameters()) | dict(ensemble.module.named_buffers())
    members = []
    for i in range(ensemble.size):
        own = {}
        for name in dict(model.named_parameters()):
            layer, _, key = name.rpartition(".")
            tensor = state[f"{layer}.b"][i] if f"{layer}.b" in state and key == "bias" else state[name]
            if key == "weight" and f"{layer}.mask" in state:
                tensor = tensor * state[f"{layer}.mask"][i]
            if key == "weight" and f"{layer}.r" in state:
                tensor = tensor * state[f"{layer}.r"][i] * state[f"{layer}.s"][i][:, None]
            own[name] = tensor
        members.append(own)
    return members


def check_training_pass(ensemble: pb.Ensemble, model: nn.Module, x: Tensor) -> None:
    """Outputs, and the gradients of what the members share, are those of networks apart."""
    weight = ensemble.module.layer.weight
    expected = torch.stack([functional_call(model.train(), own, x) for own in apart(ensemble, model)])
    gradient = torch.autograd.grad(expected.square().mean(), weight)
    outputs = ensemble.train()(x)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(outputs.square().mean(), weight), gradient, rtol=1e-4, atol=1e-6)


def make(method: str, model: nn.Module, **options) -> pb.Ensemble:
    torch.manual_seed(0)
    return pb.METHODS[method](model, 3, **options)


@methods
@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("with_example", [False, True])
def test_each_call_of_a_layer_has_its_rows_at_its_own_place(method, build, with_example):
    torch.manual_seed(0)
    model, x = build(), torch.randn(5, 4, 6)
    ensemble = make(method, model, **({"example": x[:2]} if with_example else {}))
    assert any(name.startswith("layer.") for name in ensemble.own)
    check_training_pass(ensemble, model, x)


@methods
@pytest.mark.parametrize("build", MODELS)
def test_rows_are_found_anew_for_inputs_of_another_length(method, build):
    """With one step, time first and batch first look the same."""
    torch.manual_seed(0)
    model = build()
    ensemble = make(method, model)
    for length in (1, 4, 2):
        check_training_pass(ensemble, model, torch.randn(3, length, 6))


class Adaptive(Base):
    """Called once more, at another place, where the input is large."""

    def turn(self, x: Tensor) -> Tensor:
        """The layer's output."""
        y = self.layer(x.transpose(0, 1)).transpose(0, 1)
        return self.layer(y) if x.abs().max() > 0.95 else y


@methods
def test_a_number_of_calls_that_changes_with_the_values_is_refused_or_right(method):
    torch.manual_seed(0)
    ensemble = make(method, Adaptive(), where="layer").train()
    for scale in (1.0, 0.01):  # whatever the first batch has shown
        x = scale * torch.randn(5, 4, 6)
        try:
            outputs = ensemble(x)
        except ValueError as error:
            assert "layer 'layer'" in str(error) and "where=" in str(error)
        else:
            members = torch.stack([ensemble.member(i)(x) for i in range(ensemble.size)])
            torch.testing.assert_close(outputs, members, rtol=1e-4, atol=1e-5)


class Experts(Base):
    """Each row goes to the one of eight experts that a gate chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 8), nn.ModuleList(nn.Linear(6, 6) for _ in range(8))

    def turn(self, x: Tensor) -> Tensor:
        """What the experts make of their rows."""
        x = self.layer(x)
        chosen = self.gate(100 * x[:, 0]).argmax(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().flatten()
            if len(rows):  # an expert that nobody chose is not called
                y = y.index_add(0, rows, expert(x[rows]))
        return y


@methods
def test_experts_that_see_some_rows_only_are_shared_where_an_example_shows_it(method):
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(9, 4, 6)
    ensemble = make(method, model, example=x[:1])
    assert not any(name.startswith("experts") for name in ensemble.own)
    assert "experts" in ensemble.explain()
    check_training_pass(ensemble, model, x)


@methods
def test_members_whose_experts_see_some_rows_only_run_one_by_one(method):
    torch.manual_seed(0)
    ensemble = make(method, Experts(), where="layer|experts|head").train()
    for _ in range(3):
        x, y = torch.randn(9, 4, 6), torch.randint(3, (9,))
        members = torch.stack([F.cross_entropy(ensemble.member(i)(x), y) for i in range(ensemble.size)])
        torch.testing.assert_close(ensemble.loss(x, y, F.cross_entropy), members.mean(), rtol=1e-4, atol=1e-5)
    assert "not as rows" in ensemble.explain()


@methods
def test_a_layer_that_no_pass_has_called_is_left_alone_and_refused_once_it_is(method):
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.spare, self.head, self.on = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3), False

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.enter(x))
            return self.head(self.spare(x) if self.on else x)

    x, y = torch.randn(9, 6), torch.randint(3, (9,))
    ensemble = make(method, Spare(), where="spare|head").train()
    ensemble.loss(x, y, F.cross_entropy).backward()
    assert ensemble.module.spare.weight.grad is None and ensemble.module.head.weight.grad is not None
    ensemble.module.on = True
    with pytest.raises(ValueError, match="layer 'spare' was not called when all layers"):
        ensemble.loss(x, y, F.cross_entropy)
