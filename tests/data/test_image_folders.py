"""Folders of images, written here with Pillow and compared with Pillow."""

import numpy as np
import pytest
import torch
from order import filed
from PIL import Image

from pluribus.data import image_folders
from pluribus.data.catalogue import encoded, load


def colours(height=12, width=12, seed=0, channels=3):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(values if channels == 3 else values[..., 0])


def write(folder, classes=("cat", "dog"), count=10, size=(12, 12), ending="png", channels=3):
    """`count` images in each class folder."""
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            colours(*size, seed=i, channels=channels).save(folder / name / f"{i:03}.{ending}")
    return folder


def as_bytes(split):
    return (split[:][0] * 255).round().byte()


def reference(path, side=None, mode="RGB"):
    """Pillow's own steps: short side to `side`, the centre cut out."""
    image = Image.open(path).convert(mode)
    if side is not None:
        factor = side / min(image.size)
        image = image.resize([round(factor * length) for length in image.size], Image.Resampling.BILINEAR)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "JPEG", "webp"])
def test_folder_of_classes_is_divided_and_equals_what_pillow_reads(tmp_path, ending):
    write(tmp_path, ("a cat", "dog", "emu"), 10, ending=ending)
    data = load(f"folder:{tmp_path}")
    assert data.classes == ("a cat", "dog", "emu") and data.shape == (3, 12, 12)
    assert (len(data.train), len(data.validation), len(data.test)) == (21, 3, 6)
    for split in (data.train, data.validation, data.test):
        for x, y, name in zip(as_bytes(split), split.y, split.names(), strict=True):
            assert name.startswith(data.classes[y]) and torch.equal(x, reference(tmp_path / name))
    names = data.train.names() + data.validation.names() + data.test.names()
    assert len(set(names)) == 30


def test_train_val_and_test_folders_are_the_parts(tmp_path):
    for part, count in (("train", 6), ("val", 3), ("test", 2)):
        write(tmp_path / part, count=count)
    data = load(f"folder:{tmp_path}")
    assert (len(data.train), len(data.validation), len(data.test)) == (12, 6, 4)
    assert filed(data.test).names() == ["test/cat/000.png", "test/cat/001.png", "test/dog/000.png", "test/dog/001.png"]


def test_test_folder_without_classes_is_left_out_with_a_note(tmp_path):
    write(tmp_path / "train", count=10)
    write(tmp_path / "val", count=3)
    write(tmp_path, ("test",))
    data = load(f"folder:{tmp_path}")
    assert len(data.test) == 6 and "not in class folders" in data.notes[0]


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (33, 33), (16, 90), (10, 7)])
def test_image_size_resizes_the_short_side_and_cuts_out_the_centre(tmp_path, size):
    write(tmp_path, size=size)
    data = load(f"folder:{tmp_path}", image_size=16)
    assert data.shape == (3, 16, 16)
    for x, name in zip(as_bytes(data.test), data.test.names(), strict=True):
        assert torch.equal(x, reference(tmp_path / name, 16))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_image_becomes_three_channels_of_bytes(tmp_path, mode):
    grey = np.linspace(0, 255, 144).reshape(12, 12).round()
    image = Image.fromarray((grey * 257).astype(np.uint16)) if mode == "I;16" else None
    image = image or Image.fromarray(grey.astype(np.uint8)).convert("RGB").convert(mode)
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    image.save(path)
    x = image_folders.decode(path, (3, 12, 12))
    assert x.shape == (3, 12, 12) and x.dtype == torch.uint8
    if mode != "1":
        assert (x.float() - torch.from_numpy(grey)).abs().max() < (52 if mode in ("P", "CMYK") else 1)


def test_photographs_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its right side
    colours(8, 12).save(tmp_path / "x.png", exif=exif)
    turned = torch.from_numpy(np.array(colours(8, 12).transpose(Image.Transpose.ROTATE_270))).permute(2, 0, 1)
    assert torch.equal(image_folders.decode(tmp_path / "x.png", (3, 12, 8)), turned)


# ---------------------------------------------------------------- ImageNet and its relatives

WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361")


def imagenet(folder):
    write(folder / "imagenet" / "train", WNIDS, 6, ending="JPEG")
    write(folder / "imagenet" / "val", WNIDS, 3, ending="JPEG")


@pytest.mark.parametrize("name, at", [("imagenet_r", "imagenet-r"), ("imagenet_a", "imagenet-a")])
def test_variants_of_imagenet_are_numbered_as_the_training_classes(tmp_path, name, at):
    imagenet(tmp_path)
    write(tmp_path / at, (WNIDS[3], WNIDS[1]), 2, size=(30, 20), ending="jpg")
    data = load("imagenet", folder=tmp_path, variants=[name])
    assert data.classes == WNIDS and len(data.test) == 12
    assert data.subsets == {name: [1, 3]}
    assert filed(data.variants[name]).y.tolist() == [1, 1, 3, 3] and data.variants[name][:][0].shape == (4, *data.shape)


def test_outside_images_have_no_class(tmp_path):
    imagenet(tmp_path)
    write(tmp_path / "imagenet-o", ("n02000000",), 4)
    write(tmp_path / "dtd" / "images", ("banded", "dotted"), 3, size=(40, 50), ending="jpg")
    data = load("imagenet", folder=tmp_path, outside=["imagenet_o", "textures"])
    assert {name: len(split) for name, split in data.outside.items()} == {"imagenet_o": 4, "textures": 6}
    for split in data.outside.values():
        assert set(split.y.tolist()) == {-1} and split[:][0].shape[1:] == data.shape


def test_corrupted_imagenet_has_severities_of_each_corruption(tmp_path):
    imagenet(tmp_path)
    for corruption in ("fog", "snow"):
        for severity in range(1, 6):
            write(tmp_path / "ImageNet-C" / "weather" / corruption / str(severity), WNIDS, severity)
    data = load("imagenet", folder=tmp_path, shifted=["imagenet_c"])
    assert {name: [len(part) for part in parts] for name, parts in data.shifted.items()} == {
        "fog": [4, 8, 12, 16, 20],
        "snow": [4, 8, 12, 16, 20],
    }
    assert data.shifted["fog"][1].y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_corrupted_imagenet_lacks_is_said(tmp_path):
    imagenet(tmp_path)
    write(tmp_path / "ImageNet-C" / "fog" / "1", WNIDS, 2)
    (tmp_path / "ImageNet-C" / "fog" / "1" / WNIDS[0] / "bad.png").write_text("no image")
    (tmp_path / "ImageNet-C" / "fog" / "1" / "again").symlink_to(WNIDS[0])
    data = load("imagenet", folder=tmp_path, shifted=["imagenet_c"], broken="skip")
    assert [len(part) for part in data.shifted["fog"]] == [8]
    said = " ".join(data.notes)
    assert "bad.png" in said and "links were left out" in said and "again" in said


def test_tiny_imagenet_takes_the_labels_of_its_list(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for name in WNIDS:
        write(root / "train" / name, ("images",), 5, ending="JPEG")
    write(root / "val", ("images",), 4, ending="JPEG")
    lines = [f"{i:03}.JPEG\t{WNIDS[3 - i]}\t0\t0\t9\t9" for i in range(4)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    data = load("tiny_imagenet", folder=tmp_path)
    assert data.classes == WNIDS and filed(data.test).y.tolist() == [3, 2, 1, 0]


# ---------------------------------------------------------------- bad input


def broken_folder(tmp_path):
    write(tmp_path)
    (tmp_path / "cat" / "zz text.png").write_text("no image")
    (tmp_path / "dog" / "zero.jpg").write_bytes(b"")
    whole = tmp_path / "dog" / "cut.png"
    colours(90, 90).save(whole)
    whole.write_bytes(whole.read_bytes()[:400])
    (tmp_path / "dog" / "link.png").symlink_to("nowhere")
    return ["cat/zz text.png", "dog/cut.png", "dog/link.png", "dog/zero.jpg"]


def test_broken_images_stop_and_all_are_named(tmp_path):
    names = broken_folder(tmp_path)
    with pytest.raises(ValueError, match='4 of 24 images cannot be read.*broken="skip"') as error:
        load(f"folder:{tmp_path}")
    assert all(name in str(error.value) for name in names) and "link.png: it is a link to nothing" in str(error.value)


def test_broken_images_are_left_out_with_a_note_that_names_them(tmp_path):
    names = broken_folder(tmp_path)
    data = load(f"folder:{tmp_path}", broken="skip", image_size=12)
    assert len(data.train) + len(data.validation) + len(data.test) == 20
    assert all(name in data.notes[0] for name in names)
    assert not set(names) & set(data.train.names() + data.validation.names() + data.test.names())


# ---------------------------------------------------------------- new files


def test_new_images_are_encoded_as_those_of_training(tmp_path):
    write(tmp_path, size=(20, 30))
    data = load(f"folder:{tmp_path}", image_size=12)
    paths = sorted((tmp_path / "dog").glob("*"))
    one, many, folder = (encoded(data.encoding, source) for source in (paths[0], paths, tmp_path))
    expected = torch.stack([reference(path, 12) for path in paths])
    assert torch.equal(as_bytes(many), expected) and torch.equal(as_bytes(one), expected[:1])
    assert torch.equal(as_bytes(folder)[10:], expected) and folder.y.tolist() == [0] * 10 + [1] * 10
    assert many.y.tolist() == [-1] * 10 and many.names()[3] == str(paths[3])


def test_new_arrays_are_encoded_as_those_of_training(tmp_path):
    data = load("sklearn_digits")
    x = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "new.npz", x_test=x)
    np.save(tmp_path / "new.npy", x)
    expected = encoded(data.encoding, x)[:][0]
    assert expected.shape == (4, 1, 8, 8)
    for name in ("new.npz", "new.npy"):
        assert torch.equal(encoded(data.encoding, tmp_path / name)[:][0], expected)


def test_broken_new_images_stop_or_are_left_out_with_a_warning(tmp_path):
    write(tmp_path)
    data = load(f"folder:{tmp_path}")
    (tmp_path / "dog" / "bad.png").write_text("no image")
    with pytest.raises(ValueError, match=r"bad\.png"):
        encoded(data.encoding, tmp_path)
    with pytest.warns(UserWarning, match=r"bad\.png"):
        assert len(encoded(data.encoding, tmp_path, broken="skip")) == 20


def test_class_folders_may_be_links(tmp_path):
    write(tmp_path / "all", ("cat", "dog", "emu"))
    (tmp_path / "some").mkdir()
    for name in ("cat", "emu"):
        (tmp_path / "some" / name).symlink_to(tmp_path / "all" / name, target_is_directory=True)
    data = load(f"folder:{tmp_path / 'some'}")
    assert data.classes == ("cat", "emu") and len(data.train) + len(data.validation) + len(data.test) == 20


# ---------------------------------------------------------------- links


def test_a_link_to_a_folder_that_holds_it_is_left_out_and_said(tmp_path):
    write(tmp_path / "photos", count=8)
    plain = load(f"folder:{tmp_path / 'photos'}", broken="skip")
    for link, to in (("cat/up", ".."), ("cat/higher", "../.."), ("dog/self", "."), ("dog/other", "../cat")):
        (tmp_path / "photos" / link).symlink_to(to)
    data = load(f"folder:{tmp_path / 'photos'}", broken="skip")
    assert data.train.names() == plain.train.names() and torch.equal(data.train.y, plain.train.y)
    assert all(name in data.notes[-1] for name in ("cat/up", "cat/higher", "dog/self", "dog/other"))


def test_a_link_between_masks_is_left_out_and_said(tmp_path):
    for part in ("images", "masks"):
        (tmp_path / part / "a").mkdir(parents=True)
        for i in range(12):
            Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 2).save(tmp_path / part / "a" / f"{i}.png")
        (tmp_path / part / "again").symlink_to("a")
    data = load(f"masks:{tmp_path}")
    assert len(data.train) + len(data.validation) + len(data.test) == 12
    assert [note.count("again") for note in data.notes] == [1, 1]


def test_a_folder_of_links_to_other_places_is_followed_once(tmp_path):
    write(tmp_path / "all", count=5)
    (tmp_path / "some").mkdir()
    for name, to in (("cat", "cat"), ("dog", "dog"), ("zebra", "cat")):
        (tmp_path / "some" / name).symlink_to(tmp_path / "all" / to)
    data = load(f"folder:{tmp_path / 'some'}")
    assert data.classes == ("cat", "dog") and "zebra" in data.notes[-1]
    assert len(data.train) + len(data.validation) + len(data.test) == 10


def test_a_strip_that_would_be_enlarged_to_gigabytes_is_refused(tmp_path):
    for width, ending in ((4_000, "short"), (4_000_000, "long")):
        Image.fromarray(np.zeros((1, width), np.uint8)).save(tmp_path / f"{ending}.png")
    assert image_folders.decode(tmp_path / "short.png", (1, 64, 64)).shape == (1, 64, 64)
    with pytest.raises(ValueError, match=r"long\.png.* 4000000x1 pixels is too thin to be resized to 64x64"):
        image_folders.decode(tmp_path / "long.png", (1, 64, 64))
