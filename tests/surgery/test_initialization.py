"""Fresh tensors have the distribution that the given one seems to come from."""

import math

import pytest
import scipy.stats
import torch
from torch import nn

from pluribus.surgery.initialization import NO_FAN, draw_like, find_fans, resize_evenly


def sinusoids(rows: int, columns: int) -> torch.Tensor:
    angles = torch.arange(rows)[:, None] / 10000 ** (torch.arange(0, columns, 2) / columns)
    return torch.cat([angles.sin(), angles.cos()], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_uniform_tensor_is_redrawn_uniform_with_its_bounds(dtype):
    tensor = torch.empty(200, 100).uniform_(-0.3, 0.3).to(dtype)
    fresh = draw_like(tensor)
    assert fresh.dtype == dtype
    assert scipy.stats.kstest(fresh.flatten().double(), "uniform", (-0.3, 0.6)).statistic < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_normal_tensor_is_redrawn_normal_with_its_deviation(dtype):
    tensor = torch.empty(200, 100).normal_(0, 0.02).to(dtype)
    fresh = draw_like(tensor)
    assert fresh.dtype == dtype
    assert scipy.stats.kstest(fresh.flatten().double() / 0.02, "norm").statistic < 0.02


def test_mean_is_kept_where_it_differs_from_zero():
    fresh = draw_like(1 + 0.1 * torch.randn(5000))
    assert fresh.mean().item() == pytest.approx(1, abs=0.01)
    assert fresh.std().item() == pytest.approx(0.1, rel=0.05)


INITIALISERS = {
    "default": nn.init.kaiming_uniform_,
    "kaiming_normal fan in": lambda t: nn.init.kaiming_normal_(t, mode="fan_in"),
    "kaiming_normal fan out": lambda t: nn.init.kaiming_normal_(t, mode="fan_out"),
    "xavier_uniform": nn.init.xavier_uniform_,
    "torch": lambda t: nn.init.kaiming_uniform_(t, a=math.sqrt(5)),
}


@pytest.mark.parametrize("initialise", INITIALISERS.values(), ids=INITIALISERS)
@pytest.mark.parametrize("shape, new", [((256, 96), (128, 48)), ((96, 64, 3, 3), (24, 32, 3, 3))])
def test_deviation_follows_the_shape_as_the_initialiser_does(initialise, shape, new):
    fresh = draw_like(initialise(torch.empty(shape)), new)
    expected = torch.stack([initialise(torch.empty(new)).std() for _ in range(20)]).mean().item()
    assert fresh.shape == new
    assert fresh.std().item() == pytest.approx(expected, rel=0.06)


def test_deviation_that_follows_no_fan_stays():
    assert draw_like(0.02 * torch.randn(192, 768), (96, 384)).std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("shape, new", [((64, 64), (32, 32)), ((96, 32), (48, 16)), ((32, 16, 3, 3), (16, 8, 3, 3))])
@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_orthogonal_matrix_becomes_another_orthogonal_matrix(shape, new, gain):
    tensor = nn.init.orthogonal_(torch.empty(shape), gain)
    fresh = draw_like(tensor, new)
    rows = fresh.flatten(1) if new[0] <= math.prod(new[1:]) else fresh.flatten(1).T
    torch.testing.assert_close(rows @ rows.T, gain**2 * torch.eye(len(rows)), atol=1e-4, rtol=0)
    assert not torch.allclose(draw_like(tensor), tensor, atol=0.1)


KEPT = {
    "constant": torch.ones(64),
    "zeros": torch.zeros(8, 8),
    "integers": torch.arange(64),
    "booleans": torch.arange(64) % 3 == 0,
    "few values": torch.tensor([0.0, 1.0]).repeat(32),
    "one value": torch.tensor([0.3]),
    "scalar": torch.tensor(0.3),
    "identity": torch.eye(16),
    "sinusoids": sinusoids(50, 64),
    "sinusoids with a batch": sinusoids(50, 64)[None],
    "frequencies": 10000 ** -(torch.arange(32) / 32),
    "logarithms": torch.arange(1, 65).float().log().repeat(8, 1),
}


@pytest.mark.parametrize("tensor", KEPT.values(), ids=KEPT)
def test_what_is_not_random_is_kept(tensor):
    fresh = draw_like(tensor)
    assert torch.equal(fresh, tensor)
    assert fresh.data_ptr() != tensor.data_ptr()


def test_spread_takes_evenly_spaced_entries():
    table = torch.arange(8)[:, None] * 10 + torch.arange(4)
    assert resize_evenly(table, (4, 2)).tolist() == [[0, 2], [20, 22], [40, 42], [60, 62]]
    assert resize_evenly(torch.arange(2), (4,)).tolist() == [0, 0, 1, 1]


def test_tensor_without_memory_gives_one_of_the_new_shape():
    fresh = draw_like(torch.empty(8, 4, device="meta", dtype=torch.float16), (4, 2))
    assert (fresh.device.type, fresh.shape, fresh.dtype) == ("meta", (4, 2), torch.float16)


def test_complex_tensor_is_redrawn():
    tensor = torch.randn(50, 50, dtype=torch.complex64)
    fresh = draw_like(tensor, (50, 25))
    assert fresh.shape == (50, 25)
    assert fresh.std().item() == pytest.approx(1, rel=0.05)


def test_a_law_that_one_tensor_fits_by_chance_gives_way_to_that_of_all():
    torch.manual_seed(0)
    shapes = [(64, 1, 7, 7), (256, 64), (64, 256), (16, 16)]
    alike = {str(shape): 0.02 * torch.randn(shape) for shape in shapes}
    assert set(find_fans(alike).values()) == {NO_FAN}
    xavier = {str(shape): torch.nn.init.xavier_uniform_(torch.empty(shape)) for shape in shapes[1:]}
    assert set(find_fans(xavier).values()) == {2}  # a square one alone would fit them all
    he = {str(shape): torch.nn.init.kaiming_normal_(torch.empty(shape)) for shape in shapes[1:]}
    assert set(find_fans(he).values()) == {0}
