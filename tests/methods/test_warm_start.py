"""Ensembles of a trained network with trained=: near it, where their defaults are far."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pluribus as pb


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor]:
    """A network that tells which of four numbers is largest, and inputs for it."""
    torch.manual_seed(0)
    model, x = pb.models.mlp(4, 4, hidden=(32, 32, 32)), torch.randn(512, 4)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(x), x.argmax(1)).backward()
        optimizer.step()
    assert accuracy(pb.single(model), x) > 0.95
    return model.eval(), x


def accuracy(ensemble: pb.Ensemble, x: Tensor) -> float:
    """The mean over members, judged by the labels, which the search for a setting never sees."""
    return (ensemble.eval()(x).argmax(-1) == x.argmax(1)).float().mean().item()


CALLS = {
    "batch_ensemble": {"std": 0.5},
    "masksembles": {"scale": 3.0},
    "multihead": {},
    "treenet": {"branch": "fc3|fc"},
    "mc_dropout": {"rate": 0.3},
}


@pytest.mark.parametrize("method", CALLS)
def test_members_keep_what_the_network_knew(method, trained):
    model, x = trained
    torch.manual_seed(1)
    far = pb.METHODS[method](model, 4, **CALLS[method], **({"example": x[:2]} if method == "masksembles" else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near = pb.METHODS[method](model, 4, **CALLS[method], trained=x)
    assert accuracy(near, x) > accuracy(far, x)
    assert accuracy(near, x) > 0.9
    assert "% of its answers" in near.explain()


@pytest.mark.parametrize("method", ["batch_ensemble", "multihead", "treenet", "mc_dropout"])
def test_members_differ_where_they_start_near(method, trained):
    model, x = trained
    members = pb.METHODS[method](model, 3, **CALLS[method], trained=x).predict(x).members
    assert (members[0] - members[1]).abs().max() > 1e-3


def test_a_setting_that_is_near_already_is_taken_as_it_is(trained):
    model, x = trained
    ensembles = [
        pb.batch_ensemble(model, 2, std=0.01, generator=torch.Generator().manual_seed(0), **more)
        for more in ({}, {"trained": x})
    ]
    torch.testing.assert_close(ensembles[0](x), ensembles[1](x), rtol=0, atol=0)
    assert ensembles[1].settings == ensembles[0].settings


def test_a_conversion_keeps_95_percent_or_is_refused_with_the_number(trained, monkeypatch):
    model, x = trained
    base = model(x).argmax(1)
    for made in (pb.mc_dropout(model, 4, 0.99, where="fc", trained=x), pb.masksembles(model, 4, 3.0, trained=x)):
        found = made.eval()(x)
        assert not torch.equal(found[0], found[1])
        assert (found.argmax(-1) == base).float().mean() > 0.9  # draws of dropout differ from those that were looked at
    monkeypatch.setattr("pluribus.methods._mc_dropout.SHARES", (1.0,))
    with pytest.raises(
        ValueError, match=r"must keep 95 % of the network's answers.*but in every setting.*\d+\.\d % at"
    ):
        pb.mc_dropout(model, 4, 0.99, where="fc", trained=x)


def test_lora_adapts_the_only_linear_layer_of_a_convolutional_network():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    ensemble, x = pb.lora(model, 3, rank=2, heads=True), torch.randn(8, 1, 6, 6)
    assert ensemble.own and torch.allclose(ensemble(x)[1], model(x))
    optimizer = torch.optim.SGD(ensemble.parameter_groups(0.1, 0.0))
    for _ in range(2):  # B is zero at first
        optimizer.zero_grad()
        ensemble.loss(x, torch.arange(8) % 3, nn.functional.cross_entropy).backward()
        optimizer.step()
    assert not torch.equal(ensemble(x)[0], ensemble(x)[1])


def test_a_regression_is_kept_too():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(64, 3)
    near = pb.batch_ensemble(model, 3, trained=x)(x)
    assert ((near - model(x)) ** 2).mean() < 0.1 * model(x).var()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("batch_ensemble", {"trained": True}, "trained= takes a batch of inputs"),
        ("batch_ensemble", {"trained": torch.randn(8, 4), "init": "signs"}, 'init must be "normal"'),
        ("masksembles", {"trained": torch.randn(8, 4), "capacity": 1.0}, "exclude each other"),
        ("mc_dropout", {"trained": torch.randn(8, 4)}, "no active dropout in training"),
        ("multihead", {"noise": 0.1}, 'init="same"'),
    ],
)
def test_what_does_not_fit_is_refused(method, options, message, trained):
    with pytest.raises(ValueError, match=message):
        pb.METHODS[method](trained[0], 3, **options)


def test_a_network_that_was_trained_with_dropout_keeps_its_own():
    model, x = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.01), nn.Linear(32, 3)).eval(), torch.randn(64, 4)
    near = pb.mc_dropout(model, 4, trained=x)
    assert "members keep" in near.explain() and near.settings["rate"] is None
    torch.manual_seed(0)
    found = near.eval()(x)
    torch.manual_seed(0)
    torch.testing.assert_close(pb.mc_dropout(model, 4).eval()(x), found)
    assert not torch.equal(found[0], found[1])


# -------------------------------------------------------------------- trained weights that nobody mentioned


def seen(batches: int) -> nn.Module:
    """A small network whose batch norm has seen so many batches."""
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).train()
    for _ in range(batches):
        network(torch.randn(16, 6))
    return network.eval()


FAR = {
    "batch_ensemble": pb.batch_ensemble, "masksembles": pb.masksembles, "multihead": pb.multihead,
    "treenet": lambda model, size, **more: pb.treenet(model, size, "3", **more),
}  # fmt: skip


@pytest.mark.parametrize("method", FAR)
def test_a_conversion_that_loses_a_trained_network_warns(method):
    with pytest.warns(
        UserWarning, match=rf"{method}: this network seems to be pretrained \(its layer '1' has seen data\)"
    ):
        FAR[method](seen(20), 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", FAR)
def test_fresh_networks_and_those_that_are_said_to_be_convert_without_a_word(method, tmp_path):
    FAR[method](seen(0), 2)
    FAR[method](seen(2), 2)  # a look at its shapes
    ensemble = FAR[method](trained := seen(20), 2, trained=False)
    FAR[method](trained, 2, trained=torch.randn(16, 6))
    pb.save(ensemble, tmp_path / "ensemble.safetensors", whole=True)
    pb.load(tmp_path / "ensemble.safetensors", trained)


@pytest.mark.filterwarnings("error")
def test_settings_that_start_near_convert_without_a_word():
    trained = seen(20)
    pb.batch_ensemble(trained, 2, std=0.1)
    pb.masksembles(trained, 2, 1.0)
    pb.multihead(trained, 2, init="same", noise=0.1)
    pb.multihead(trained, 2, freeze_trunk=True)


def test_a_transformer_whose_scales_have_moved_warns():
    network = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    pb.batch_ensemble(network, 2)
    network[1].weight.data += torch.randn(8)
    with pytest.warns(UserWarning, match="seems to be pretrained"):
        pb.batch_ensemble(network, 2)


@pytest.mark.parametrize("method", FAR)
def test_a_batch_that_the_network_does_not_take_is_named(method):
    with pytest.raises(ValueError, match=rf"{method}: the model does not run on the example, .*\(16, 5\)"):
        FAR[method](seen(20), 2, trained=torch.randn(16, 5))
