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
        assert conv.packed_for is not None
        assert torch.equal(conv.weight, weight)
        torch.testing.assert_close(conv(x, *more), expected, rtol=1e-5, atol=1e-5)
        conv.weight.mul_(2.0)  # the copy is of another weight now
        conv.bias.mul_(2.0)
        twice = torch.nn.functional.conv2d(x, 2 * weight, conv.bias, 1, 1, 1, groups) + sum(more)
        torch.testing.assert_close(conv(x, *more), twice.relu() if relu else twice, rtol=1e-5, atol=1e-5)
        conv.pack_(None)
        torch.testing.assert_close(conv(x, *more), twice.relu() if relu else twice, rtol=1e-5, atol=1e-5)


@packs
def test_a_second_copy_of_the_weights_is_kept_where_it_is_light_or_rows_are_few():
    model = torch.nn.Sequential(torch.nn.Conv2d(256, 256, 3), torch.nn.Conv2d(256, 4, 3))
    ensemble = pb.single(model).eval()

    def packed(rows, **options):
        made = pb.freeze(ensemble, torch.randn(rows, 256, 6, 6), choose="rule", **options)
        return [part.packed_for is not None for part in made.modules() if isinstance(part, Convolution)]

    assert packed(2) == [True, True]
    assert packed(20) == [False, True]
    assert packed(2, memory="small") == [False, False]


def test_public_operators_run_where_onednns_are_missing(monkeypatch):
    monkeypatch.setattr(kernels, "is_onednn_enabled", lambda: False)
    ensemble, x = pb.deep(pb.models.lenet(), 2).eval(), torch.randn(3, 3, 32, 32)
    frozen = pb.freeze(ensemble, x, choose="rule")
    assert "oneDNN" not in frozen.explain()
    torch.testing.assert_close(frozen(x), ensemble(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 5, 8, 8), (2, 16, 7, 5), (1, 4, 2, 3)])
@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
def test_pooling_gives_what_torchs_operator_gives(shape, form):
    x = torch.randn(shape).contiguous(memory_format=form)
    x[0, 0, 0, 0] = torch.nan
    for options in ({}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}):
        given, expected = kernels.max_pool2d(x, 2, **options), torch.max_pool2d(x, 2, **options)
        torch.testing.assert_close(given, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(kernels.max_pool2d(x, (2, 1)), torch.max_pool2d(x, (2, 1)), equal_nan=True)
