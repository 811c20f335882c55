"""Networks that are given in eval mode stay in it, and what looks at an ensemble leaves every module's mode alone."""

import copy

import pytest
import torch
from small import make
from torch import nn

import pluribus as pb


def trained(width: int = 8) -> nn.Module:
    """A network whose statistics are not those of the batch, as after training: the modes differ."""
    model = nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(width * 36, 3)
    )
    with torch.no_grad():
        model[1].running_mean += torch.randn(width)
        model[1].running_var += torch.rand(width)
    return model.eval()


MODELS = {
    "alike": lambda: [trained() for _ in range(3)],
    "unlike": lambda: [trained(8), trained(12), trained(16)],
    "asleep in part": lambda: [awake_but_for_normalisation() for _ in range(3)],
    "one awake": lambda: [trained().train(), trained(), trained()],
}


def awake_but_for_normalisation(width: int = 8) -> nn.Module:
    model = trained(width).train()
    model[1].eval()
    return model


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


LOOKS = {
    "predict": lambda e, x: e.predict(x, batch_size=2),
    "summary": lambda e, x: e.predict(x, keep="summary"),
    "calibrate": lambda e, x: pb.calibrate(e, [(x.repeat(4, 1, 1, 1), torch.arange(20) % 3)]),
    "conformal": lambda e, x: pb.conformal(e, [(x.repeat(4, 1, 1, 1), torch.arange(20) % 3)]),
    "cost": lambda e, x: pb.cost(e, x),
    "freeze": lambda e, x: pb.freeze(e, x),
    "member": lambda e, x: e.member(0)(x) if e.size > 1 else None,
    "copy": lambda e, x: copy.deepcopy(e)(x),
    "explain": lambda e, x: e.explain(),
    "pooled": lambda e, x: e.pooled(),
}


@torch.no_grad()
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("given", MODELS)
def test_given_networks_keep_their_modes(given, look):
    models, x = MODELS[given](), torch.randn(5, 3, 8, 8)
    expected = [copy.deepcopy(model)(x) for model in models]
    asleep = [copy.deepcopy(model).eval()(x) for model in models]
    ensemble = pb.deep(models)
    if given != "one awake":
        torch.testing.assert_close(ensemble(x), torch.stack(expected), rtol=1e-4, atol=1e-5)
    ensemble = pb.deep(models)  # its statistics have not moved
    before = modes(ensemble)
    LOOKS[look](ensemble, x)
    assert modes(ensemble) == before
    torch.testing.assert_close(ensemble.predict(x).members, torch.stack(asleep).softmax(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ensemble(x), torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert modes(ensemble) == before


def test_an_ensemble_is_awake_if_a_member_is():
    assert not pb.deep(MODELS["unlike"]()).training
    assert not pb.deep(MODELS["unlike"]()).pooled().training
    assert pb.deep(MODELS["one awake"]()).training
    assert [m.training for m in pb.deep(MODELS["one awake"]()).module] == [True, False, False]


@pytest.mark.parametrize("method", pb.METHODS)
def test_predict_does_not_wake_what_sleeps(method):
    ensemble, x = make(method, "cnn")
    ensemble.train()
    sleeping = [part for part in ensemble.modules() if isinstance(part, nn.BatchNorm2d)][:1]
    for part in sleeping:
        part.eval()
    before = modes(ensemble)
    for look in ("predict", "cost", "freeze", "explain", "copy"):
        LOOKS[look](ensemble, x)
        assert modes(ensemble) == before, look


def test_modules_that_change_their_weights_with_their_mode_are_switched_back():
    class Merged(nn.Linear):
        """Adds a low-rank update to its weight in eval mode, as LoRA layers do."""

        def __init__(self, *sizes: int):
            super().__init__(*sizes)
            self.low = nn.Parameter(torch.randn(sizes[1], 1))

        def train(self, mode: bool = True):
            if mode != self.training:
                self.weight.data += (-1 if mode else 1) * self.low
            return super().train(mode)

        def forward(self, x):
            weight = self.weight + self.low if self.training else self.weight
            return nn.functional.linear(x, weight, self.bias)

    models, x = [nn.Sequential(Merged(6, 3)) for _ in range(3)], torch.randn(5, 6)
    expected = torch.stack([model(x) for model in models])
    for run in ("vmap", "loop"):
        ensemble = pb.deep(models)
        ensemble.run = run
        for _ in range(2):
            torch.testing.assert_close(ensemble(x), expected)
            torch.testing.assert_close(ensemble.predict(x).members, expected.softmax(-1).detach())


@pytest.mark.parametrize("run", ["vmap", "loop"])
@pytest.mark.parametrize("method", ["masksembles", "multihead"])
def test_a_batch_norm_that_is_woken_after_a_first_call_counts_each_batch_once(method, run):
    torch.manual_seed(0)
    network, x = (
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval(),
        torch.randn(16, 6),
    )
    expected = copy.deepcopy(network)
    ensemble = getattr(pb, method)(network, 4).eval()
    ensemble.run = run
    with torch.no_grad():
        ensemble(x)
        ensemble.module[1].train()
        ensemble(x)
        expected[1].train()
        expected(x)
    assert ensemble.module[1].num_batches_tracked == expected[1].num_batches_tracked == 1
    torch.testing.assert_close(ensemble.module[1].running_mean, expected[1].running_mean)
    torch.testing.assert_close(ensemble.module[1].running_var, expected[1].running_var)
