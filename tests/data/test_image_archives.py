"""Readers against files in the published formats, written here by other means."""

import codecs
import gzip
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from order import filed
from scipy.io import savemat

from pluribus.data.catalogue import load


def bytes_of(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels_of(count, classes=10):
    return np.arange(count) % classes


def pixels(split):
    """All images of a part as bytes, (rows, height, width, channels)."""
    return (filed(split)[:][0] * 255).round().byte().permute(0, 2, 3, 1).numpy()


def in_order(*splits):
    """The rows of several parts of one array, in the order of the array."""
    rows = torch.cat([filed(split).rows for split in splits]).argsort()
    labels = torch.cat([filed(split).y for split in splits])
    return np.concatenate([pixels(split) for split in splits])[rows], labels[rows].numpy()


# ---------------------------------------------------------------- idx


def idx_bytes(array):
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}i", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder, packed=False, dot=False):
    folder.mkdir(parents=True)
    written = {"train": (bytes_of(40, 28, 28), labels_of(40)), "t10k": (bytes_of(20, 28, 28, seed=1), labels_of(20))}
    for part, (x, y) in written.items():
        for array, end in ((x, "images-idx3-ubyte"), (y, "labels-idx1-ubyte")):
            name = f"{part}-{end.replace('-idx', '.idx') if dot else end}"
            data = idx_bytes(array)
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    return written


@pytest.mark.parametrize("name, at", [("mnist", "MNIST/raw"), ("fashion_mnist", "fashion_mnist"), ("kmnist", "KMNIST")])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_give_what_was_written(tmp_path, name, at, packed):
    written = write_mnist(tmp_path / at, packed)
    data = load(name, folder=tmp_path)
    x, y = in_order(data.train, data.validation)
    assert np.array_equal(x[..., 0], written["train"][0]) and np.array_equal(y, written["train"][1])
    assert np.array_equal(pixels(data.test)[..., 0], written["t10k"][0])
    assert np.array_equal(filed(data.test).y, written["t10k"][1])
    assert len(data.classes) == 10 and (len(data.train), len(data.validation)) == (36, 4)


# ---------------------------------------------------------------- CIFAR


def rows_of(x):
    """Images as CIFAR's rows: all red values, all green ones, all blue ones."""
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def cifar_files(hundred, binary, protocol=2):
    """The files of CIFAR by name, 4 rows per batch, and the arrays in them."""
    files, written = {}, {}
    names = ["train", "test"] if hundred else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in enumerate(names):
        x, fine = bytes_of(20, 32, 32, 3, seed=i), (labels_of(20, 10) * (7 if hundred else 1)).tolist()
        written[name] = (x, fine)
        labels = {b"fine_labels": fine, b"coarse_labels": [0] * 20} if hundred else {b"labels": fine}
        if binary:
            heads = np.array([[3, y] if hundred else [y] for y in fine], np.uint8)
            files[f"{name}.bin"] = np.concatenate([heads, rows_of(x)], axis=1).tobytes()
        else:
            files[name] = pickle.dumps({b"data": rows_of(x), b"batch_label": b"a batch", **labels}, protocol)
    return files, written


PLACES = {
    (False, False): "cifar-10-batches-py",
    (False, True): "cifar-10-batches-bin",
    (True, False): "cifar-100-python",
    (True, True): "cifar-100-binary",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("hundred, binary", PLACES)
def test_cifar_in_both_formats_gives_what_was_written(tmp_path, hundred, binary, packed):
    files, written = cifar_files(hundred, binary)
    place = PLACES[hundred, binary]
    if packed:
        write_tar(
            tmp_path / f"{place.replace('-batches-py', '-python').replace('-batches-bin', '-binary')}.tar.gz", files
        )
    else:
        (tmp_path / place).mkdir()
        for name, content in files.items():
            (tmp_path / place / name).write_bytes(content)
    data = load("cifar100" if hundred else "cifar10", folder=tmp_path)
    *train, test = written.values()
    x, y = in_order(data.train, data.validation)
    assert np.array_equal(x, np.concatenate([one for one, _ in train]))
    assert np.array_equal(y, np.concatenate([one for _, one in train]))
    assert np.array_equal(pixels(data.test), test[0]) and filed(data.test).y.tolist() == test[1]
    assert len(data.classes) == (100 if hundred else 10)


def write_tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"some-folder/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


class Evil:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize(
    "evil",
    [
        Evil(os.system, "touch ran"),
        Evil(eval, "open('ran', 'w')"),
        Evil(exec, "open('ran', 'w')"),
        Evil(getattr, "x", "upper"),
        Evil(np.load, "x.npy"),
        Evil(np.lib.npyio.NpzFile, "x.npz"),
        Evil(codecs.encode, "x", "rot13"),
        Evil(os.getcwd),
    ],
    ids=lambda evil: evil.call.__name__,
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickle_that_asks_for_a_function_is_refused_and_runs_nothing(tmp_path, monkeypatch, evil, protocol):
    monkeypatch.chdir(tmp_path)
    files, _ = cifar_files(hundred=False, binary=False)
    files["data_batch_2"] = pickle.dumps({b"data": evil, b"labels": [0]}, protocol)
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name, content in files.items():
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(content)
    with pytest.raises(ValueError, match="data_batch_2: .*this pickle asks for .* which could run code"):
        load("cifar10", folder=tmp_path)
    assert not (tmp_path / "ran").exists()


# ---------------------------------------------------------------- SVHN, CIFAR-10-C


def test_svhn_mat_files_give_what_was_written_and_ten_is_zero(tmp_path):
    (tmp_path / "svhn").mkdir()
    x, y = bytes_of(40, 32, 32, 3), labels_of(40) + 1
    for part, rows in (("train", slice(0, 20)), ("test", slice(20, 40))):
        content = {"X": x[rows].transpose(1, 2, 3, 0), "y": y[rows, None].astype(np.uint8)}
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", content)
    data = load("svhn", folder=tmp_path)
    found, labels = in_order(data.train, data.validation)
    assert np.array_equal(found, x[:20]) and np.array_equal(pixels(data.test), x[20:])
    assert labels.tolist() == [*range(1, 10), 0] * 2 and data.classes == tuple("0123456789")


def write_cifar10(folder, rows=20):
    x, y = bytes_of(rows, 32, 32, 3), labels_of(rows)
    np.savez(folder / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return x, y


@pytest.mark.parametrize("repeated", [True, False])
def test_corrupted_cifar_has_five_severities_of_each_corruption(tmp_path, repeated):
    _, y = write_cifar10(tmp_path)
    (tmp_path / "CIFAR-10-C").mkdir()
    noise, fog = bytes_of(100, 32, 32, 3, seed=1), bytes_of(100, 32, 32, 3, seed=2)
    np.save(tmp_path / "CIFAR-10-C" / "gaussian_noise.npy", noise)
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", fog)
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.tile(y, 5 if repeated else 1))
    data = load("cifar10", folder=tmp_path, shifted=["cifar10_c"])
    assert list(data.shifted) == ["fog", "gaussian_noise"]
    for name, written in (("gaussian_noise", noise), ("fog", fog)):
        assert len(data.shifted[name]) == 5
        for severity, part in enumerate(data.shifted[name]):
            assert np.array_equal(pixels(part), written[20 * severity : 20 * severity + 20])
            assert np.array_equal(part.y, y)
    assert isinstance(data.shifted["fog"][0].inputs.values, np.memmap)


# ---------------------------------------------------------------- npz and npy


@pytest.mark.parametrize("shape", [(28, 28), (8, 9, 1), (8, 9, 3), (3, 8, 9), (1, 8, 9)])
def test_npz_images_of_every_layout_are_read(tmp_path, shape):
    x = bytes_of(40, *shape)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=labels_of(40), x_test=x, y_test=labels_of(40))
    data = load(f"npz:{tmp_path / 'a.npz'}", validation=0)
    last = x[..., None] if x.ndim == 3 else x.transpose(0, 2, 3, 1) if shape[0] in (1, 3) else x
    assert np.array_equal(pixels(data.test), last) and np.array_equal(pixels(data.train), last)
    assert len(data.validation) == 0 and data.validation[:][0].shape[1:] == data.shape


def test_labels_of_an_npz_may_be_any_numbers_or_texts(tmp_path):
    for labels in (np.array([3, 7, 40] * 10), np.array(["b", "a", "c"] * 10)):
        np.savez(tmp_path / "a.npz", x_train=bytes_of(30, 8, 8), y_train=labels)
        data = load("a", folder=tmp_path)
        assert data.classes == tuple(map(str, sorted(set(labels.tolist()))))
        for split in (data.train, data.validation, data.test):
            assert [data.classes[y] for y in split.y] == [str(labels[row]) for row in split.rows]


def test_floats_are_kept_and_large_ones_divided_by_255(tmp_path):
    x = np.random.default_rng(0).random((20, 8, 8), np.float32)
    for factor in (1, 255):
        np.savez(tmp_path / "a.npz", x_train=factor * x, y_train=labels_of(20, 2))
        data = load("a", folder=tmp_path)
        assert torch.allclose(data.train[:][0][:, 0], torch.from_numpy(x)[data.train.rows], atol=1e-6)
        assert bool(data.notes) == (factor == 255)


def test_normalised_pixels_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.random.default_rng(0).normal(size=(20, 8, 8)), y_train=labels_of(20, 2))
    with pytest.raises(ValueError, match=r"pixels must be in \[0, 1\] or \[0, 255\], but range from -"):
        load("a", folder=tmp_path)


def test_images_with_values_as_targets_are_a_regression(tmp_path):
    y = np.random.default_rng(0).normal(5, 3, 40)
    np.savez(tmp_path / "a.npz", x_train=bytes_of(40, 8, 8), y_train=y)
    data = load("a", folder=tmp_path)
    assert data.task == "regression" and data.classes == ()
    back = data.test.y * data.target_std + data.target_mean
    assert torch.allclose(back, torch.from_numpy(y[data.test.rows]).float(), atol=1e-5)
    assert data.train.y.mean().abs() < 1e-5 and abs(data.train.y.std(correction=0) - 1) < 1e-5


def test_npz_of_rows_of_numbers_may_have_several_targets(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 3)), generator.normal(size=(60, 2)) * 5 + 1
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    data = load(f"npz:{tmp_path / 'x.npz'}", validation=0)
    assert data.task == "regression" and data.targets == ("y0", "y1")
    found = filed(data.test)[:][1].numpy()
    assert np.allclose(found, (y[:9] - y.mean(0)) / y.std(0), atol=1e-5)
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y > 1)
    assert load(f"npz:{tmp_path / 'x.npz'}").task == "multilabel"


def test_one_hot_targets_and_several_of_an_image_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", x_train=np.zeros((6, 3)), y_train=np.eye(3)[[0, 1, 2] * 2])
    with pytest.raises(ValueError, match=r"one-hot.*y\.argmax\(1\)"):
        load(f"npz:{tmp_path / 'x.npz'}")
    np.savez(tmp_path / "x.npz", x_train=np.zeros((6, 8, 8)), y_train=np.zeros((6, 2)))
    with pytest.raises(ValueError, match="one target per row"):
        load(f"npz:{tmp_path / 'x.npz'}")


def test_npy_folder_is_mapped_from_disk(tmp_path):
    x, y = bytes_of(40, 8, 8, 3), labels_of(40, 4)
    for part in ("train", "test"):
        np.save(tmp_path / f"x_{part}.npy", x)
        np.save(tmp_path / f"y_{part}.npy", y)
    data = load(f"npy:{tmp_path}")
    assert isinstance(data.train.inputs.values, np.memmap)
    assert np.array_equal(pixels(data.test), x) and np.array_equal(filed(data.test).y, y)
