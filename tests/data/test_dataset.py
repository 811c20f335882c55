"""Rows that become tensors, and how they are divided."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pluribus.data.dataset import ImageArrays, Points, Split, conform, divide, moments

COUNTS = st.lists(st.integers(1, 40), min_size=2, max_size=8)
SHARES = st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.5]), st.sampled_from([0.0, 0.1, 0.25]))


def labels(counts, seed=0):
    """Labels of this many rows per class, mixed."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]


@given(COUNTS, SHARES, st.integers(0, 100), st.booleans())
def test_parts_hold_every_row_once(counts, shares, seed, stratified):
    y = labels(counts, seed)
    parts = divide(y, shares, seed, stratified=stratified)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(y)))
    assert all(torch.equal(part, part.sort().values) for part in parts)


@given(COUNTS, SHARES, st.integers(0, 100))
def test_training_keeps_every_class(counts, shares, seed):
    y = labels(counts, seed)
    assert y[divide(y, shares, seed, stratified=True)[-1]].unique().numel() == len(counts)


@given(COUNTS, SHARES, st.integers(0, 100))
def test_every_part_has_each_class_in_proportion(counts, shares, seed):
    y = labels(counts, seed)
    parts = divide(y, shares, seed, stratified=True)
    lost = len(counts)  # a class that keeps a row in training may push others by as many rows
    for share, part in zip(shares, parts, strict=False):
        found = y[part].bincount(minlength=len(counts)).numpy()
        assert np.abs(found - share * np.array(counts)).max() <= lost + 1
        assert len(part) <= share * len(y) + 1


def test_moments_are_those_of_numpy():
    x = np.random.default_rng(0).integers(0, 256, (1500, 6, 5, 3), dtype=np.uint8)
    mean, std = moments(Split(ImageArrays(x), torch.zeros(1500)))
    assert np.allclose(mean.flatten(), x.mean((0, 1, 2)) / 255, atol=1e-6)
    assert np.allclose(std.flatten(), x.std((0, 1, 2)) / 255, atol=1e-6)


@pytest.mark.parametrize("size", [(20, 30), (31, 17), (9, 50)])
def test_resized_images_equal_pillow(size):
    values = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    factor = max(12 / size[0], 12 / size[1])
    height, width = round(size[0] * factor), round(size[1] * factor)
    left, top = (width - 12) // 2, (height - 12) // 2
    image = Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR)
    expected = np.array(image.crop((left, top, left + 12, top + 12)))
    x = torch.from_numpy(values).permute(2, 0, 1)[None].float() / 255
    assert np.abs(conform(x, (3, 12, 12))[0].permute(1, 2, 0).numpy() * 255 - expected).max() < 1.01


def test_taken_rows_are_those_of_the_whole():
    split = Split(Points(torch.arange(12.0).reshape(6, 2), list("abcdef")), torch.arange(6))
    part = split.take([4, 1, 3]).take(torch.tensor([False, True, True]))
    assert part.names() == ["b", "d"] and part.y.tolist() == [1, 3] and part[:][0].tolist() == [[2, 3], [6, 7]]
    assert part[-1][1] == 3 and [int(y) for _, y in part] == [1, 3]
    with pytest.raises(IndexError):
        part[2]


def test_empty_part_gives_empty_batches():
    split = Split(ImageArrays(np.zeros((3, 4, 4), np.uint8), (3, 8, 8)), torch.zeros(3)).take([])
    assert split[:][0].shape == (0, 3, 8, 8) and len(split) == 0
