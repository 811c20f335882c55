"""Packed-Ensembles written by hand in the three forms of Figure 3, and the ends of its ablations."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb
from pluribus import landscape as ls

MEMBERS, WIDTH = 3, 6
LAYERS = ("conv1", "conv2", "conv3", "fc")


class ThreeConvolutions(nn.Module):
    """The network of Figure 3: three convolutions and a final dense layer."""

    takes_gamma = "conv[23]"

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, MEMBERS * WIDTH, 3, padding=1)
        self.conv2 = nn.Conv2d(MEMBERS * WIDTH, MEMBERS * WIDTH, 3, padding=1)
        self.conv3 = nn.Conv2d(MEMBERS * WIDTH, MEMBERS * WIDTH, 3, padding=1)
        self.fc = nn.Linear(MEMBERS * WIDTH, 4)

    def forward(self, x):
        for layer in (self.conv1, self.conv2, self.conv3):
            x = layer(x).relu()
        return self.fc(x.mean((2, 3)))


def weights_of(ensemble):
    """Each layer's weights and biases: (members, outputs, inputs, ...), (members, outputs)."""
    tensors = dict(ensemble.named_parameters())
    found = {}
    for layer in LAYERS:
        weight, bias = (
            next(t for name, t in tensors.items() if name.endswith(f"{layer}.{kind}")) for kind in ("weight", "bias")
        )
        found[layer] = (weight.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_())
    return found


def sequential(weights, x, gamma):
    """(a): one network after the other."""
    outputs = []
    for m in range(MEMBERS):
        h = x
        for layer in LAYERS[:3]:
            weight, bias = weights[layer]
            h = F.conv2d(h, weight[m], bias[m], padding=1, groups=1 if layer == "conv1" else gamma).relu()
        outputs.append(F.linear(h.mean((2, 3)), weights["fc"][0][m], weights["fc"][1][m]))
    return torch.stack(outputs)


def rearranged(weights, x, gamma):
    """(b): the images side by side on the channels, and grouped convolutions from the first on."""
    return _grouped_from(weights, torch.cat([x] * MEMBERS, 1), gamma, start=0)


def grouped(weights, x, gamma):
    """(c): a full convolution on the images, then grouped ones."""
    weight, bias = weights["conv1"]
    return _grouped_from(weights, F.conv2d(x, weight.flatten(0, 1), bias.flatten(), padding=1).relu(), gamma, start=1)


def _grouped_from(weights, h, gamma, start):
    for layer in LAYERS[start:3]:
        weight, bias = weights[layer]
        groups = MEMBERS * (1 if layer == "conv1" else gamma)
        h = F.conv2d(h, weight.flatten(0, 1), bias.flatten(), padding=1, groups=groups).relu()
    weight, bias = weights["fc"]
    last = F.conv2d(h.mean((2, 3), keepdim=True), weight.flatten(0, 1)[..., None, None], bias.flatten(), groups=MEMBERS)
    return last.flatten(1).unflatten(1, (MEMBERS, -1)).transpose(0, 1)


def packed(gamma):
    torch.manual_seed(0)
    x, y = torch.randn(7, 2, 5, 5), torch.arange(7) % 4
    return pb.packed(ThreeConvolutions(), MEMBERS, 1, gamma, x, min_channels=1), x, y


@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("form", [sequential, rearranged, grouped])
def test_the_three_forms_of_figure_3_are_the_ensemble(form, gamma):
    ensemble, x, _ = packed(gamma)
    weights = weights_of(ensemble)
    assert weights["conv2"][0].shape == (MEMBERS, WIDTH, WIDTH // gamma, 3, 3)
    torch.testing.assert_close(form(weights, x, gamma), ensemble(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize("form", [sequential, rearranged, grouped])
def test_the_three_forms_of_figure_3_learn_the_same(form, gamma):
    ensemble, x, y = packed(gamma)
    weights = weights_of(ensemble)
    ensemble.loss(x, y, F.cross_entropy).backward()
    sum(F.cross_entropy(one, y) for one in form(weights, x, gamma)).backward()
    own = dict(ensemble.named_parameters())
    for layer in LAYERS:
        for kind, by_hand in zip(("weight", "bias"), weights[layer], strict=True):
            gradient = next(t for name, t in own.items() if name.endswith(f"{layer}.{kind}")).grad
            torch.testing.assert_close(by_hand.grad, gradient, rtol=1e-4, atol=1e-6)


def test_gradients_of_one_member_reach_no_other():
    """In the grouped form too: the mask of the paper's Figure 4 is block-diagonal."""
    ensemble, x, y = packed(2)
    weights = weights_of(ensemble)
    F.cross_entropy(grouped(weights, x, 2)[1], y).backward()
    reached = {layer: [bool(weights[layer][0].grad[m].any()) for m in range(MEMBERS)] for layer in LAYERS}
    assert reached == {layer: [False, True, False] for layer in LAYERS}


GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(100, 6, generator=GENERATOR), torch.randint(3, (100,), generator=GENERATOR)
TRAIN, TEST, OUTSIDE = (X[:60], Y[:60]), (X[60:], Y[60:]), 4 * torch.randn(30, 6, generator=GENERATOR)
QUICK = {"seeds": 2, "epochs": 1, "batch_size": 20}


def test_alpha_of_the_size_is_independent_networks():
    model = pb.models.mlp(inputs=6, num_classes=3, hidden=(16, 16))
    found = ls.packing(model, TRAIN, TEST, alphas=(2, 4), gammas=(1, 2), outside=OUTSIDE, **QUICK)
    assert len(found.settings) == 6 and found.rows[2]["alpha"] == 2
    for figure in ("nll", "accuracy", "parameters", "aupr entropy"):
        assert found.values("alpha 4, gamma 1, M 4", figure) == pytest.approx(found.values("deep", figure), rel=1e-5)
    sizes = [found.values(f"alpha {a}, gamma {g}, M 4", "parameters")[0] for a, g in ((2, 2), (2, 1), (4, 2), (4, 1))]
    assert sizes == sorted(sizes) and len(set(sizes)) == 4


def test_criteria_are_judged_by_every_seed():
    found = ls.packing(
        pb.models.mlp(inputs=6, num_classes=3, hidden=(16,)), TRAIN, TEST, alphas=(2,), outside=OUTSIDE, **QUICK
    )
    table = ls.ood_criteria(found, "aupr")
    setting = "alpha 2, gamma 1, M 4"
    assert set(table[setting]) == {"msp", "max_logit", "entropy", "mutual_information", "variation_ratio"}
    assert table[setting]["msp"].value == pytest.approx(np.mean(found.values(setting, "aupr msp")))
    assert ls.ood_criteria(found)["single"]["variation_ratio"].value == 0.5  # one member has no dissent
    with pytest.raises(ValueError, match="no 'auroc msp'"):
        ls.ood_criteria(ls.measure_settings({"one": lambda: pb.single(nn.Linear(6, 3))}, TRAIN, TEST, **QUICK))
