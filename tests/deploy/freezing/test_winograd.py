"""Convolutions with fewer multiplications: against torch's own, in double precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pluribus as pb
from pluribus.deploy.freezing import kernel_choice as tuning
from pluribus.deploy.freezing import winograd
from pluribus.deploy.freezing.kernels import Convolution, can_pack
from pluribus.deploy.freezing.winograd import Tiled

pytestmark = pytest.mark.skipif(not can_pack(torch.zeros(1)), reason="oneDNN's operators are not here")


def layer(inputs, outputs, groups=1, bias=True):
    weight = torch.randn(outputs, inputs // groups, 3, 3) / math.sqrt(9 * inputs / groups)
    return weight, torch.randn(outputs) if bias else None


def direct(x, weight, bias, groups):
    return F.conv2d(x.double(), weight.double(), None if bias is None else bias.double(), 1, 1, 1, groups)


def assert_near(y, expected, tolerance=1e-5):
    assert y.shape == expected.shape
    assert (y - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(4, 4), (8, 8), (3, 4), (1, 2), (7, 7), (5, 14), (4, 9)])
def test_every_size_of_map_gives_the_convolution(size, bias, groups):
    x = torch.randn(3, 8, *size).contiguous(memory_format=torch.channels_last)
    weight, b = layer(8, 12, groups, bias)
    y = Tiled(weight, b, groups, x.shape)(x)
    assert_near(y, direct(x, weight, b, groups))
    assert y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_any_number_of_rows_runs_in_parts_of_a_bounded_size(rows, size, monkeypatch):
    monkeypatch.setattr(winograd, "BUFFER", 1)
    weight, bias = layer(16, 16)
    tiled = Tiled(weight, bias, 1, (2, 16, size, size))
    assert tiled._rows_at_once(16, (size // 4) ** 2) == 128 // (size // 4) ** 2
    x = torch.randn(rows, 16, size, size)
    assert_near(tiled(x), direct(x, weight, bias, 1))


def test_the_weight_comes_back():
    weight, bias = layer(32, 24, 2)
    assert_near(Tiled(weight, bias, 2, (2, 32, 8, 8)).plain(), weight, 1e-6)


def test_a_buffer_for_the_transformed_weight_is_only_worked_in():
    weight, bias = layer(8, 8)
    x, buffer = torch.randn(2, 8, 8, 8), torch.full((40 * 64,), torch.nan)
    tiled = Tiled(weight, bias, 1, x.shape, buffer)
    buffer.fill_(torch.nan)
    assert_near(tiled(x), direct(x, weight, bias, 1))


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("way", ["packed", "winograd"])
def test_a_layer_gives_the_same_in_every_way(way, relu, added):
    x = torch.randn(4, 16, 8, 8).contiguous(memory_format=torch.channels_last)
    weight, bias = layer(16, 16)
    conv = Convolution(weight, bias, (1, 1), (1, 1), (1, 1), 1, relu)
    more = [torch.randn(4, 16, 8, 8)] if added else []
    with torch.no_grad():
        expected = conv(x, *more)
        conv.way = way
        conv.pack_(x.shape)
        assert conv.packed is not None
        assert_near(conv.weight, weight, 1e-6)  # looking at it changes nothing
        assert conv.packed is not None
        assert_near(conv(x, *more), expected)
        conv.unpack_()
        assert_near(conv(x, *more), expected)
        assert_near(conv.weight, weight, 1e-6)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), [(1, 1, 0, 1), (3, 2, 1, 1), (3, 1, 0, 1), (3, 1, 2, 2), (5, 1, 2, 1)]
)
def test_other_convolutions_are_left_alone(kernel, stride, padding, dilation):
    weight = torch.randn(4, 4, kernel, kernel)
    conv = Convolution(weight, None, (stride,) * 2, (padding,) * 2, (dilation,) * 2)
    assert conv.ways((2, 4, 8, 8)) == ["plain", "packed"]


# -------------------------------------------------------------------- in a frozen network


def network():
    """Two layers for which it pays, one for which it does not."""
    sizes = (16, 192), (192, 192), (192, 192)
    layers = [layer for i, o in sizes for layer in (nn.Conv2d(i, o, 3, 1, 1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 3)).eval()


def ways(frozen):
    return [part.way for part in frozen.modules() if isinstance(part, Convolution)]


def test_memory_is_spent_where_it_saves_most_time(monkeypatch):
    def times(each):
        saving = {16: 0.9, 192: 0.5}[each.part.shape[1]]
        return {"plain": 1.0, "packed": 0.9, "winograd": saving}

    monkeypatch.setattr(tuning, "_measure", times)
    ensemble, x = pb.single(network()), torch.randn(4, 16, 8, 8)
    monkeypatch.setattr(tuning, "ROOM", 10.0)
    assert ways(pb.freeze(ensemble, x)) == ["packed", "winograd", "winograd"]
    monkeypatch.setattr(tuning, "ROOM", 1.6)  # three times one of two large layers
    assert sorted(ways(pb.freeze(ensemble, x))) == ["packed", "packed", "winograd"]
    assert ways(pb.freeze(ensemble, x, memory="small")) == ["packed"] * 3


def test_a_rule_gives_the_same_ways_each_time(monkeypatch):
    monkeypatch.setattr(tuning, "ROOM", 2.0)
    ensemble, x = pb.single(network()), torch.randn(32, 16, 8, 8)
    first, second = (pb.freeze(ensemble, x, choose="rule") for _ in range(2))
    assert ways(first) == ways(second) == ["packed", "winograd", "packed"]
    assert "1 with four times fewer multiplications" in first.explain()


@pytest.mark.slow
def test_a_network_for_which_it_rounds_too_much_does_without(monkeypatch):
    monkeypatch.setattr(tuning, "ROOM", 10.0)
    ensemble, x = pb.deep([network(), network()]).eval(), torch.randn(32, 16, 8, 8)
    assert "winograd" in ways(pb.freeze(ensemble, x, choose="rule"))
    exact = Tiled.__call__
    monkeypatch.setattr(Tiled, "__call__", lambda self, x: exact(self, x) * 1.001)
    frozen = pb.freeze(ensemble, x, choose="rule")
    assert set(ways(frozen)) == {"packed"}
    torch.testing.assert_close(frozen(x), ensemble(x), rtol=1e-4, atol=1e-5)
    assert "is unchanged" not in frozen.explain()
