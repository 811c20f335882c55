"""TabM, compared with its authors' package: the same weights, outputs and gradients."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb

tabm = pytest.importorskip("tabm")
MEMBERS = 5


def network(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
        nn.Linear(16, outputs),
    )  # fmt: skip


def pair(variant: str) -> tuple[pb.Ensemble, nn.Module]:
    """An ensemble of ours, and the package's with the same weights."""
    torch.manual_seed(0)
    ensemble = pb.tabm(network(), MEMBERS, variant=variant).double()
    kind = {"full": "tabm", "mini": "tabm-mini"}[variant]
    theirs = tabm.TabM.make(
        n_num_features=6, d_out=3, n_blocks=3, d_block=16, dropout=0.0, k=MEMBERS, arch_type=kind
    ).double()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(ours_of(ensemble, name))
        for parameter in ensemble.parameters():  # no vector is left at one
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, parameter in theirs.named_parameters():
            parameter.copy_(ours_of(ensemble, name))
    return ensemble, theirs


def ours_of(ensemble: pb.Ensemble, name: str, grad: bool = False) -> torch.Tensor:
    """Our tensor, or its gradient, in the place and shape of theirs."""
    read = (lambda p: p.grad) if grad else (lambda p: p)
    if name == "backbone.affine.weight":
        return read(ensemble.module[0].r)
    if name.startswith("output"):
        tensor = read(getattr(ensemble.module[6], name.split(".")[1]))
        return tensor.mT if tensor.ndim == 3 else tensor
    _, _, block, _, key = name.split(".")
    layer = ensemble.module[2 * int(block)]
    return read(layer.b if key == "bias" and layer.bias is None else getattr(layer, key))


@pytest.mark.parametrize("variant", ["full", "mini"])
def test_outputs_and_gradients_are_those_of_the_package(variant):
    ensemble, theirs = pair(variant)
    x, y = torch.randn(7, 6).double(), torch.randint(3, (7,))
    expected = theirs(x).transpose(0, 1)  # (members, batch, outputs)
    torch.testing.assert_close(ensemble(x), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(ensemble.eval()(x), expected, rtol=0, atol=1e-6)
    loss = F.cross_entropy(theirs(x).flatten(0, 1), y.repeat_interleave(MEMBERS))
    loss.backward()
    ours = ensemble.train().loss(x, y, F.cross_entropy)
    ours.backward()
    torch.testing.assert_close(ours, loss, rtol=0, atol=1e-6)
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours_of(ensemble, name, grad=True), parameter.grad, rtol=0, atol=1e-6)


def test_members_with_batches_of_their_own_train_as_the_package_does():
    ensemble, theirs = pair("full")
    x, y = torch.randn(MEMBERS, 7, 6).double(), torch.randint(3, (MEMBERS, 7))
    expected = F.cross_entropy(theirs(x.transpose(0, 1)).transpose(0, 1).flatten(0, 1), y.flatten())
    ours = ensemble.train().loss(x, y, F.cross_entropy, per_member=True)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ["full", "mini"])
def test_it_owns_as_many_parameters_as_the_package(variant):
    ensemble, theirs = pair(variant)
    assert sum(p.numel() for p in ensemble.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_only_the_first_vector_and_the_heads_are_random():
    ensemble = pb.tabm(network(), 32)
    layers = [ensemble.module[i] for i in (0, 2, 4)]
    assert set(layers[0].r.unique().tolist()) == {-1.0, 1.0}
    assert all((vector == 1).all() for vector in (layers[0].s, layers[1].r, layers[1].s, layers[2].r, layers[2].s))
    assert all((layer.b == layer.b[0]).all() for layer in layers)
    head = ensemble.module[6].weight
    assert len(head.flatten(1).unique(dim=0)) == 32
    assert head.abs().max() <= 1 / 4  # the law of a linear layer with 16 inputs


def test_inputs_of_one_feature_share_a_random_number():
    drawn = pb.tabm(network(), 8, chunks=[1, 3, 2], init="normal").module[0].r
    assert (drawn[:, 1:4] == drawn[:, 1:2]).all() and (drawn[:, 4:] == drawn[:, 4:5]).all()
    assert not (drawn[:, 0] == drawn[:, 1]).any()


def test_chunks_must_add_up_to_the_inputs():
    with pytest.raises(ValueError, match="add up to the 6 inputs of layer '0'"):
        pb.tabm(network(), 8, chunks=[1, 3])


def test_a_member_is_an_ordinary_network():
    ensemble, x = pb.tabm(network(), 4).eval(), torch.randn(5, 6)
    torch.testing.assert_close(ensemble.member(2)(x), ensemble(x)[2])
    frozen = pb.freeze(ensemble, x)
    torch.testing.assert_close(frozen(x), ensemble(x), rtol=1e-5, atol=1e-6)


def test_all_parameters_train_and_decay_alike():
    groups = pb.tabm(network(), 4).parameter_groups(1e-3, 1e-4)
    assert len(groups) == 1 and groups[0]["weight_decay"] == 1e-4


def test_a_network_without_hidden_layers_is_named():
    with pytest.raises(ValueError, match="needs a layer before its heads"):
        pb.tabm(nn.Linear(4, 3), 4)


def test_a_trained_network_keeps_its_answers():
    torch.manual_seed(0)
    model, x = network(), torch.randn(64, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble = pb.tabm(model, 8, trained=x)
    same = (ensemble.eval()(x).argmax(-1) == model(x).argmax(-1)).float().mean()
    assert same >= 0.95
