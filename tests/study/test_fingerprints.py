"""What a study remembers of its files is what is in them."""

import os

import pytest
from hostile_folders import sparse
from PIL import Image

from pluribus.study import fingerprints
from pluribus.study.grid import Study


@pytest.fixture
def read(monkeypatch):
    """The names of the files whose content is read."""
    names, digest = [], fingerprints._digest
    monkeypatch.setattr(fingerprints, "_digest", lambda file: names.append(file.name) or digest(file))
    return names


def photos(folder):
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), 10 * i).save(folder / label / f"{i}.png")
    return Study(data=[f"folder:{folder}"], methods=["single"])


def marks(study):
    return fingerprints.fingerprints(study.data, study.source, study.model)


def test_a_touched_image_is_the_same_and_another_is_not(tmp_path):
    study = photos(tmp_path / "photos")
    before, name = marks(study), study.name
    image = tmp_path / "photos" / "cat" / "0.png"
    os.utime(image, (1, 1))
    assert marks(study) == before and study.name == name
    content = bytearray(image.read_bytes())
    content[-20] ^= 1  # of the same size, at the same time
    image.write_bytes(bytes(content))
    os.utime(image, (1, 1))
    assert marks(study) != before and study.name != name


def test_an_image_in_another_class_is_another_study(tmp_path):
    study = photos(tmp_path / "photos")
    before = marks(study)
    (tmp_path / "photos" / "cat" / "0.png").rename(tmp_path / "photos" / "dog" / "9.png")
    assert marks(study) != before


def test_large_data_are_not_read(tmp_path, read, monkeypatch):
    monkeypatch.setattr(fingerprints, "ALWAYS_READ", 10)
    study = photos(tmp_path / "photos")
    before = marks(study)
    assert not read and marks(study) == before
    os.utime(tmp_path / "photos" / "dog" / "1.png", (1, 1))
    assert marks(study) != before


def test_behind_a_link_only_images_are_read(tmp_path, read):
    study = photos(tmp_path / "photos")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "large.bin").write_text("x")
    (tmp_path / "elsewhere" / "9.png").write_text("x")
    (tmp_path / "photos" / "bird").symlink_to(tmp_path / "elsewhere")
    marks(study)
    assert "9.png" in read and "large.bin" not in read


def test_what_is_beside_images_is_not_read(tmp_path):
    """A text of 300 GB that takes no room on the disk would be read for an hour."""
    study = photos(tmp_path / "photos")
    before = marks(study)
    sparse(tmp_path / "photos" / "notes.txt", b"x", 300 * 10**9)
    sparse(tmp_path / "photos" / "cat" / "notes.txt", b"x", 300 * 10**9)
    assert marks(study) == before
    sparse(tmp_path / "photos" / "cat" / "large.png", b"x", 3 * 10**11)
    assert marks(study) != before


def test_every_file_that_is_read_has_a_mark(tmp_path):
    uci = tmp_path / "uci" / "x" / "data"
    uci.mkdir(parents=True)
    files = [tmp_path / name for name in ("train_32x32.mat", "test_32x32.mat", "mine.npz", "t.csv")] + [
        uci / "data.txt"
    ]
    for file in files:
        file.write_text("1")
    study = Study(data=["svhn", "mine", "table:t.csv", "uci:x"], methods=["single"], source={"folder": str(tmp_path)})
    for file in files:
        before = marks(study)
        file.write_text("2")
        assert marks(study) != before, file
