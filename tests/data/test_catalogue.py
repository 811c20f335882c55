"""Data by name: outside data, sizes, and what `load` refuses; what holds for every set is in tests/contract."""

from pathlib import Path

import numpy as np
import pytest
import torch
from order import filed
from PIL import Image

from pluribus.data.catalogue import encoded, load
from pluribus.data.source import data_folder

# ---------------------------------------------------------------- outside data, sizes


def test_outside_data_takes_the_shape_of_the_data(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 40, 30, 3), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", x_test=images)
    (tmp_path / "more").mkdir()
    np.savez(tmp_path / "more" / "other.npz", x_test=images)
    more = f"npz:{tmp_path / 'more' / 'other.npz'}"
    data = load("digits", folder=tmp_path, outside=["other", "noise", "noise", "sklearn_digits", "letters", more])
    assert list(data.outside) == ["letters", "other", "noise", "sklearn_digits", "other 2"]
    for i, image in enumerate(images):
        grey = Image.fromarray(image).convert("L").resize((28, 37), Image.Resampling.BILINEAR).crop((0, 4, 28, 32))
        assert np.abs(filed(data.outside["other"])[i][0][0].numpy() * 255 - np.array(grey)).max() < 2


def test_image_size_of_arrays_equals_pillow():
    plain, large = load("digits"), load("digits", image_size=40)
    assert large.shape == (1, 40, 40) and large.outside["letters"][:1][0].shape == (1, 1, 40, 40)
    for i in range(5):
        small = Image.fromarray((plain.test[i][0][0].numpy() * 255).round().astype(np.uint8))
        expected = np.array(small.resize((40, 40), Image.Resampling.BILINEAR))
        assert np.abs(large.test[i][0][0].numpy() * 255 - expected).max() < 2


def test_noise_fills_the_shape_of_the_data_without_being_smoothed():
    x = filed(load("digits", outside=["noise"]).outside["noise"])[:500][0]
    assert abs(x.mean() - 0.5) < 0.01 and abs(x.std() - 12**-0.5) < 0.01
    assert abs(torch.corrcoef(torch.stack([x[..., 1:].flatten(), x[..., :-1].flatten()]))[0, 1]) < 0.01


def test_new_images_are_those_of_the_data_again():
    data = load("digits")
    x = (data.test[:5][0][:, 0].numpy() * 255).round().astype(np.uint8)
    assert torch.allclose(encoded(data.encoding, x)[:][0], data.test[:5][0])
    assert data.encoding["mean"] == pytest.approx(data.mean.flatten().tolist())


@pytest.mark.parametrize("name", ["iris", "sklearn_digits"])
def test_training_on_fewer_rows_takes_each_class_alike_and_leaves_the_other_parts(name):
    whole, some = load(name), load(name, train_rows=30)
    assert set(some.train.names()) < set(whole.train.names()) and len(some.train) == 30
    shares = 30 * whole.train.y.bincount() / len(whole.train)
    assert (some.train.y.bincount() - shares).abs().max() <= 1
    assert some.test.names() == whole.test.names() and some.validation.names() == whole.validation.names()


# ---------------------------------------------------------------- names and places


def test_folder_is_the_argument_else_the_variable_else_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLURIBUS_DATA", raising=False)
    assert data_folder() == tmp_path / "data"
    monkeypatch.setenv("PLURIBUS_DATA", str(tmp_path / "elsewhere"))
    assert data_folder() == tmp_path / "elsewhere" and data_folder(tmp_path) == tmp_path
    assert data_folder("~/x") == Path.home() / "x"


@pytest.mark.parametrize("name", ["digits", "sklearn_digits", "iris"])
def test_the_first_rows_of_each_part_are_of_all_classes(name):
    data = load(name)
    for split in (data.train, data.validation, data.test):
        assert len(split.y[: max(15, len(split) // 10)].unique()) > len(data.classes) / 2
