"""Members start in the law of freshly built models, of their own width: Kolmogorov and Smirnov over many draws."""

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import pluribus as pb

DRAWS = 12


def mlp(width: float = 1.0) -> nn.Module:
    """Torch's own law."""
    hidden = round(32 * width)
    return nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 3))


def convolutions(width: float = 1.0) -> nn.Module:
    """He's law, and a scale that starts at zero."""
    c = round(16 * width)
    norm = nn.BatchNorm2d(c)
    nn.init.zeros_(norm.weight)
    model = nn.Sequential(nn.Conv2d(3, c, 3), nn.ReLU(), nn.Conv2d(c, c, 3), norm, nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, 3, 8, 8))
    for part in (model[0], model[2]):
        nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(part.bias)
    norm.reset_running_stats()
    return model


class Tokens(nn.Module):
    """Truncated normals of one deviation, biases of zero, a raw parameter."""

    def __init__(self, width: float = 1.0):
        super().__init__()
        d = round(32 * width)
        self.enter, self.token = nn.Linear(12, d), nn.Parameter(torch.zeros(1, 4, d))
        self.inner, self.head = nn.Linear(d, 2 * d), nn.Linear(2 * d, 3)
        for weight in (self.enter.weight, self.token, self.inner.weight):
            nn.init.trunc_normal_(weight, std=0.02)
        nn.init.zeros_(self.enter.bias)
        nn.init.constant_(self.inner.bias, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 12) -> (batch, 3)."""
        return self.head(torch.relu(self.inner(self.enter(x)[:, None] + self.token)).mean(1))


class Own(nn.Module):
    """A class with a law of its own, for its child too."""

    def __init__(self, width: float = 1.0):
        super().__init__()
        d = round(32 * width)
        self.enter, self.scale, self.head = nn.Linear(12, d), nn.Parameter(torch.empty(d)), nn.Linear(d, 3)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Exponentials, and a normal for the layer inside."""
        nn.init.normal_(self.enter.weight, std=0.5)
        self.scale.data.exponential_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 12) -> (batch, 3)."""
        return self.head(self.enter(x) * self.scale)


def parametrized(change):
    """A chain whose inner weight is made by a parametrization."""

    def build(width: float = 1.0) -> nn.Module:
        model = mlp(width)
        change(model[2])
        return model

    return build


FAMILIES = {
    "mlp": (mlp, lambda: torch.randn(2, 12)),
    "convolutions": (convolutions, lambda: torch.randn(2, 3, 8, 8)),
    "tokens": (Tokens, lambda: torch.randn(2, 12)),
    "own": (Own, lambda: torch.randn(2, 12)),
    "spectral norm": (parametrized(nn.utils.parametrizations.spectral_norm), lambda: torch.randn(2, 12)),
    "weight norm": (parametrized(nn.utils.parametrizations.weight_norm), lambda: torch.randn(2, 12)),
    "weight norm by hooks": (parametrized(nn.utils.weight_norm), lambda: torch.randn(2, 12)),
}
families = pytest.mark.parametrize("name", FAMILIES)


def check_law(members: list[nn.Module], fresh: list[nn.Module]) -> None:
    """The members' tensors, entry by entry, against those of models that were built; a guess has no exact bounds."""
    for name, parameter in fresh[0].named_parameters():
        ours, theirs = (torch.cat([m.get_parameter(name).detach().flatten() for m in ms]) for ms in (members, fresh))
        assert members[0].get_parameter(name).shape == parameter.shape, name
        if bool((theirs == theirs[0]).all()):
            assert torch.equal(ours, theirs), name
            continue
        distance = scipy.stats.ks_2samp(ours.numpy(), theirs.numpy())
        assert distance.pvalue > 1e-4, f"{name}: {distance}"
        bound = theirs.abs().max()
        if theirs.pow(4).mean() / theirs.square().mean().square() < 2 and not name.endswith("_v"):  # uniform
            assert ours.abs().max() <= bound * (1 + 20 / len(theirs)), name


@families
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_deep_members_are_drawn_as_models_are_built(name):
    build, _ = FAMILIES[name]
    members = []
    for seed in range(DRAWS // 2):
        torch.manual_seed(1000 + seed)
        ensemble = pb.deep(build(), 2)
        members += [ensemble.member(0), ensemble.member(1)]
    check_law(members, [build() for _ in range(DRAWS)])


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "convolutions"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_packed_members_are_drawn_as_thin_models_are_built(name):
    build, example = FAMILIES[name]
    members = []
    for seed in range(DRAWS // 4):
        torch.manual_seed(2000 + seed)
        ensemble = pb.packed(build(), 4, alpha=2, example=example())
        members += [ensemble.member(i) for i in range(4)]
    check_law(members, [build(0.5) for _ in range(DRAWS)])


def test_explain_names_what_was_guessed_and_nothing_else():
    assert "guess" not in pb.deep(mlp(), 2).explain()
    told = pb.deep(Tokens(), 2).explain()
    assert "'token'" in told and "'inner.weight'" in told and "'head.weight'" not in told
    told = pb.packed(Tokens(), 2, alpha=1, example=torch.randn(2, 12)).explain()
    assert "'token'" in told and "'head.weight'" not in told
    assert "guess" not in pb.multihead(Tokens(), 2, where="head").explain()
    assert "'inner.weight'" in pb.treenet(Tokens(), 2, branch="inner|head").explain()
