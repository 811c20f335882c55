"""No method changes the model that it is given: state, modes, attributes, hooks and chance, bit for bit."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pluribus as pb

PARAMETRIZATIONS = nn.utils.parametrizations


def chain(change) -> nn.Module:
    """Convolutions, statistics, dropout and a head, whose weights are made by something else."""
    return nn.Sequential(
        *(change(nn.Conv2d(3, 8, 3)), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.2)),
        *(change(nn.Conv2d(8, 8, 3)), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), change(nn.Linear(8, 3))),
    )


class Diary(nn.Module):
    """A model that counts, remembers and draws whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.cache, self.history, self.draws = 0, None, [], random.Random(0)
        self.register_buffer("count", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(0)
        self.enter, self.inner, self.drop, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Dropout(0.1), None
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, and traces of the call."""
        self.calls, self.count = self.calls + 1, self.count + 1
        self.history.append(self.draws.random())
        torch.rand(1, generator=self.generator)
        self.cache = self.drop(F.relu(self.inner(F.relu(self.enter(x))))).mean((2, 3))
        return self.head(self.cache)


FAMILIES = {
    "plain": lambda: chain(lambda layer: layer),
    "spectral norm": lambda: chain(PARAMETRIZATIONS.spectral_norm),
    "spectral norm by hooks": lambda: chain(nn.utils.spectral_norm),
    "weight norm": lambda: chain(PARAMETRIZATIONS.weight_norm),
    "weight norm by hooks": lambda: chain(nn.utils.weight_norm),
    "orthogonal": lambda: chain(lambda x: PARAMETRIZATIONS.orthogonal(x) if isinstance(x, nn.Linear) else x),
    "diary": Diary,
}


def picture(value):
    """Everything in a value, as far as tests can compare it."""
    if isinstance(value, Tensor):
        return (
            id(value),
            value.dtype,
            value.requires_grad,
            value.is_leaf and value.grad is None,
            value.detach().flatten().tolist(),
        )
    if isinstance(value, nn.Module):
        return type(value), {key: picture(inner) for key, inner in vars(value).items()}
    if isinstance(value, dict):
        return {key: picture(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [picture(inner) for inner in value]
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    return value.getstate() if isinstance(value, random.Random) else value


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning", "ignore:.*does not run under vmap")
@pytest.mark.parametrize(("name", "training"), [*((name, True) for name in FAMILIES), ("diary", False)])
@pytest.mark.parametrize("method", pb.METHODS)
def test_the_given_model_stays_as_it_is(method, name, training):
    torch.manual_seed(0)
    model, x, y = FAMILIES[name]().train(training), torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    model(x)
    options = {"example": x} if method in ("packed", "masksembles", "mimo", "batch_ensemble", "multihead") else {}
    if method == "treenet":
        options["branch"] = "head" if name == "diary" else "8"
    generator = {"generator": torch.Generator().manual_seed(1)} if method not in ("single", "mc_dropout") else {}
    before, chance = picture(model), torch.get_rng_state()
    try:
        ensemble = pb.METHODS[method](model, *(() if method == "single" else (3,)), **options, **generator)
    except (ValueError, TypeError) as error:
        assert (method, name) in REFUSED, error
        ensemble = None
    assert torch.equal(torch.get_rng_state(), chance)
    if ensemble is not None:
        ensemble.train().loss(x, y, F.cross_entropy).backward()
        ensemble.eval()(x)
    assert picture(model) == before


REFUSED = {("packed", "orthogonal")} | {("mimo", n) for n in FAMILIES if n not in ("plain", "diary")}
