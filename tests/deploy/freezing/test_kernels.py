"""Convolutions whose weight is in oneDNN's order: against torch's own, and without oneDNN."""

import pytest
import torch

import pluribus as pb
from pluribus.deploy.freezing import kernels
from pluribus.deploy.freezing.kernels import Convolution, can_pack

packs = pytest.mark.skipif(not can_pack(torch.zeros(1)), reason="oneDNN's operators are not here")


@packs
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_packed_layer_gives_what_the_plain_one_gives(groups, relu, added):
    x = torch.randn(4, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(16, 16 // groups, 3, 3) / 12
    conv = Convolution(weight, torch.randn(16), (1, 1), (1, 1), (1, 1), groups, relu)
    more = [torch.randn(4, 16, 8, 8)] if added else []
    expected = torch.nn.functional.conv2d(x, weight, conv.bias, 1, 1, 1, groups) + sum(more)
    expected = expected.relu() if relu else expected
    with torch.no_grad():
        conv.pack_(x.shape)
        assert conv.packed is not None
        assert torch.equal(conv.weight, weight)  # looking at it changes nothing
        assert conv.packed is not None
        torch.testing.assert_close(conv(x, *more), expected, rtol=1e-5, atol=1e-5)
        conv.unpack_()
        torch.testing.assert_close(conv(x, *more), expected, rtol=1e-5, atol=1e-5)


def test_public_operators_run_where_onednns_are_missing(monkeypatch):
    monkeypatch.setattr(kernels, "is_onednn_enabled", lambda: False)
    ensemble, x = pb.deep(pb.models.lenet(), 2).eval(), torch.randn(3, 3, 32, 32)
    frozen = pb.freeze(ensemble, x, choose="rule")
    assert "oneDNN" not in frozen.explain()
    torch.testing.assert_close(frozen(x), ensemble(x).detach(), rtol=1e-4, atol=1e-5)
