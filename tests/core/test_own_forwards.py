"""Layers with a forward of their own run it, whatever an ensemble does to them: compared with closed forms."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb


class Standardised(nn.Linear):
    """A linear layer that standardises its weight."""

    def forward(self, x):
        return F.linear(x, F.layer_norm(self.weight, self.weight.shape[1:]), self.bias) + 1.0


class Equalised(nn.Conv2d):
    """A convolution with an equalised learning rate."""

    def forward(self, x):
        return F.conv2d(x, self.weight * 3.0, self.bias)


@pytest.mark.parametrize("run", ["vmap", "loop", "auto"])
@pytest.mark.parametrize("kind", [Standardised, Equalised])
def test_a_masked_layer_runs_its_own_forward(kind, run):
    torch.manual_seed(0)
    image = (2, 2) if kind is Equalised else ()
    plain, options = (nn.Conv2d, (1,)) if image else (nn.Linear, ())
    model = nn.Sequential(plain(6, 8, *options), kind(8, 8, *options), plain(8, 3, *options)).eval()
    x = torch.randn(4, 6, *image)
    ensemble = pb.masksembles(model, 3, where="1").eval()
    ensemble.run = run
    masks = dict(ensemble.module.named_buffers())["1.mask"].reshape(3, 1, 8, *(1 for _ in image))
    expected = torch.stack([model[2](model[1](model[0](x) * mask)) for mask in masks])
    frozen, members = pb.freeze(ensemble, x, choose="rule"), [ensemble.member(i)(x) for i in range(3)]
    for outputs in (ensemble(x), torch.stack(members), frozen(x)):
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
