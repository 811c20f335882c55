"""What a study remembers of its files is what is in them."""

import os

from PIL import Image

from pluribus.study import grid
from pluribus.study.grid import Study, fingerprints


def photos(folder):
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (8, 8), 10 * i).save(folder / label / f"{i}.png")
    return Study(data=[f"folder:{folder}"], methods=["single"])


def test_a_touched_image_is_the_same_and_another_is_not(tmp_path):
    study = photos(tmp_path / "photos")
    before, name = fingerprints(study), study.name
    image = tmp_path / "photos" / "cat" / "0.png"
    os.utime(image, (1, 1))
    assert fingerprints(study) == before and study.name == name
    content = bytearray(image.read_bytes())
    content[-20] ^= 1  # of the same size, at the same time
    image.write_bytes(bytes(content))
    os.utime(image, (1, 1))
    assert fingerprints(study) != before and study.name != name


def test_an_image_in_another_class_is_another_study(tmp_path):
    study = photos(tmp_path / "photos")
    before = fingerprints(study)
    (tmp_path / "photos" / "cat" / "0.png").rename(tmp_path / "photos" / "dog" / "9.png")
    assert fingerprints(study) != before


def test_what_is_too_large_to_read_is_known_by_sizes_and_times(tmp_path, monkeypatch):
    study = photos(tmp_path / "photos")
    monkeypatch.setattr(grid, "READ_WHOLE", 10)
    before = fingerprints(study)
    assert fingerprints(study) == before
    os.utime(tmp_path / "photos" / "cat" / "0.png", (1, 1))
    assert fingerprints(study) != before
