"""Segmentation from a folder of masks to the page and to pictures, against Pillow and scikit-learn."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run
from PIL import Image
from sklearn.metrics import accuracy_score, jaccard_score, log_loss

from pluribus.data.catalogue import load
from pluribus.data.masks import palette
from pluribus.deploy.predictor import load_predictor
from pluribus.results.quantities import difference
from pluribus.results.store import Group, read_all
from pluribus.study.judging_images import image_metrics, image_sums
from pluribus.uncertainty.classification import Classification
from pluribus.uncertainty.evaluation import evaluate

VALUES = (0, 7, 9)  # what the masks hold: not 0, 1, 2


def opened(path):
    return Image.open(io.BytesIO(Path(path).read_bytes()))


def write_scenes(folder, count=40, size=(24, 16), seed=0, mode="L", void=True):
    """Rectangles on noise: bright ones are of one class, dark ones of another; the first row of a mask has none."""
    chance = np.random.default_rng(seed)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        width, height = size
        pixels = chance.integers(90, 140, (height, width, 3))
        mask = np.zeros((height, width), np.uint8)
        for value, light in ((7, 240), (9, 10)):
            top, left = chance.integers(0, height - 6), chance.integers(0, width - 8)
            pixels[top : top + 6, left : left + 8] = light
            mask[top : top + 6, left : left + 8] = value
        mask[0] = 255 if void else mask[0]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / f"{i:02}.png")
        image = Image.fromarray(mask)
        if mode == "P":
            image.putpalette(palette().tobytes())
        image = image if mode == "P" else image.convert(mode)
        image.save(folder / "masks" / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes"))


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "LA"])
def test_images_and_masks_are_those_that_pillow_reads(tmp_path, mode):
    folder = write_scenes(tmp_path, 12, mode=mode)
    data = load(f"masks:{folder}")
    assert data.task == "segmentation" and data.classes == ("0", "7", "9") and data.shape == (3, 16, 24)
    for split in (data.train, data.validation, data.test):
        x, y = split[:]
        assert y.dtype == torch.int64 and y.shape == (len(split), 16, 24)
        for image, mask, name in zip(x, y, split.names(), strict=True):
            pixels = np.asarray(opened(folder / name)) / 255
            np.testing.assert_allclose(image.permute(1, 2, 0).numpy(), pixels, atol=1e-6)
            values = np.asarray(opened(folder / "masks" / name.split("/")[-1]))
            values = values[..., 0] if mode in ("RGB", "RGBA", "LA") else values  # equal channels
            assert (np.array([*VALUES, 255])[np.where(mask == -100, 3, mask)] == values).all()
    assert any("255" in note for note in data.notes)


def test_an_image_is_resized_as_a_whole_and_its_mask_with_it(tmp_path):
    data = load(f"masks:{write_scenes(tmp_path, 12, size=(40, 20))}", image_size=10)
    x, y = data.train[0]
    name = data.train.names([0])[0]
    small = np.asarray(opened(tmp_path / name).resize((10, 10), Image.Resampling.BILINEAR)) / 255
    np.testing.assert_allclose(x.permute(1, 2, 0).numpy(), small, atol=1e-6)
    mask = opened(tmp_path / "masks" / name.split("/")[-1]).resize((10, 10), Image.Resampling.NEAREST)
    assert (np.array([*VALUES, 255])[np.where(y == -100, 3, y)] == np.asarray(mask)).all()


def test_parts_names_and_two_colours(tmp_path):
    for part, count in (("train", 8), ("val", 3), ("test", 4)):
        write_scenes(tmp_path / part, count, seed=count)
    (tmp_path / "classes.txt").write_text("\n".join(f"class {i}" for i in range(10)))
    data = load(f"masks:{tmp_path}")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 3, 4]
    assert data.classes[9] == "class 9" and set(data.train.y.unique().tolist()) == {-100, 0, 7, 9}
    two = write_scenes(tmp_path / "two", 10, void=False)
    for path in (two / "masks").iterdir():
        Image.fromarray(np.where(np.asarray(opened(path)) > 0, 255, 0).astype(np.uint8)).save(path)
    assert load(f"masks:{two}").classes == ("background", "foreground")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda at: (at / "masks" / "03.png").unlink(), "1 of 12 have none: 03"),
        (lambda at: Image.new("L", (5, 5)).save(at / "masks" / "03.png"), "has 5x5 pixels .* has 24x16"),
        (lambda at: Image.new("RGB", (24, 16), "red").save(at / "masks" / "03.png"), "one number for each pixel"),
        (lambda at: (at / "masks" / "03.png").rename(at / "masks" / "03.jpg"), "must be a PNG"),
        (lambda at: (at / "masks" / "03.png").write_bytes(b"no image"), "1 of 12 images cannot be read"),
        (lambda at: [path.unlink() for path in (at / "masks").iterdir()], "masks/ has none"),
    ],
)
def test_masks_that_do_not_fit_are_refused_by_name(tmp_path, spoil, said):
    spoil(write_scenes(tmp_path, 12))
    with pytest.raises(ValueError, match=said):
        load(f"masks:{tmp_path}")


@pytest.mark.parametrize(
    "text", [b"a\na\n", b"x" * 2**20, b"\n".join(b"%d" % i for i in range(300)), b"\xff\x00\n" * 9]
)
def test_names_that_are_none_are_refused_with_their_file(tmp_path, text):
    (write_scenes(tmp_path, 12) / "classes.txt").write_bytes(text)
    with pytest.raises(ValueError, match=r"classes\.txt: must name up to 256 classes"):
        load(f"masks:{tmp_path}")


def test_a_mask_that_unpacks_to_gigabytes_is_refused(tmp_path):
    write_scenes(tmp_path, 12)
    Image.new("L", (20_000, 20_000)).save(tmp_path / "masks" / "03.png")
    with pytest.raises(ValueError, match="20000x20000 pixels"):
        load(f"masks:{tmp_path}")


# ---------------------------------------------------------------- metrics


def test_sums_over_images_give_the_metrics_of_scikit_learn():
    chance = torch.Generator().manual_seed(0)
    prediction = Classification.from_logits(torch.randn(2, 6, 4, 5, 7, generator=chance), class_dim=2)
    target = torch.randint(0, 3, (6, 5, 7), generator=chance)
    target[torch.rand(6, 5, 7, generator=chance) < 0.2] = -100
    found = {name: interval.value for name, interval in image_metrics(image_sums(prediction, target)).items()}
    judged = (target != -100).flatten().numpy()
    true, label = target.flatten().numpy()[judged], prediction.label.flatten().numpy()[judged]
    mean = prediction.mean.movedim(1, -1).reshape(-1, 4).double().numpy()[judged]
    mean /= mean.sum(1, keepdims=True)  # to all digits
    assert found["accuracy"] == pytest.approx(accuracy_score(true, label))
    assert found["nll"] == pytest.approx(log_loss(true, mean, labels=range(4)), rel=1e-5)
    assert found["mean_iou"] == pytest.approx(jaccard_score(true, label, average="macro", labels=range(4)))
    assert found["brier"] == pytest.approx(((mean - np.eye(4)[true]) ** 2).sum(1).mean(), rel=1e-5)
    flat = Classification.from_probabilities(torch.from_numpy(mean)[None])
    assert found["ece"] == pytest.approx(evaluate(flat, true, metrics=["ece"])["ece"], rel=1e-4)


@pytest.fixture(scope="module")
def compared(scenes):
    run("compare", "--data", f"masks:{scenes}", "--methods", "single,multihead", "--size", 2, "--epochs", 8,
        "--lr", 0.02, "--width", 0.5, "--corruptions", "gaussian_noise,elastic_transform", "--shift-rows", 3,
        "--yes", "--jobs", 1, "--task", "segmentation", "--outside", "noise", "--validation", 0.2, "--quiet",
        "--out", scenes / "study")  # fmt: skip
    return scenes


@pytest.mark.slow
def test_a_comparison_stores_what_its_pixels_say(compared):
    results, damaged = read_all(compared / "study")
    assert len(results) == 2 and not damaged
    for result in results:
        metrics = result.record["metrics"]
        label, true = result.columns["test/label"], result.columns["test/target"]
        assert metrics["accuracy"]["value"] == pytest.approx(
            accuracy_score(true, label), rel=1e-5
        )  # all pixels are kept
        assert metrics["mean_iou"]["value"] == pytest.approx(jaccard_score(true, label, average="macro"), rel=1e-5)
        assert metrics["mean_iou"]["low"] < metrics["mean_iou"]["value"] < metrics["mean_iou"]["high"]
        assert metrics["mean_iou"]["value"] > 0.4
        assert set(result.record["shift"]) == {"gaussian_noise"}  # elastic transforms move pixels out of their masks
        assert result.record["outside"]["noise"]["msp"]["auroc"] is not None


@pytest.mark.slow
def test_images_are_resampled_not_pixels(compared):
    results, _ = read_all(compared / "study")
    groups = {result.record["label"]: Group(result.record["label"], (result,)) for result in results}
    found = difference(groups["multihead"], groups["single"], "mean_iou")
    values = {name: group.runs[0].record["metrics"]["mean_iou"]["value"] for name, group in groups.items()}
    assert len(groups["single"].runs[0].columns["images/pixels"]) == 8
    assert found.value == pytest.approx(values["multihead"] - values["single"], rel=1e-4)


@pytest.mark.slow
def test_the_page_shows_every_pixel_of_some_images(compared):
    page = (compared / "study" / "report.html").read_text()
    assert "mIoU" in page and page.count('class="maps"') == 2 * 2 * 8
    first = re.search(r'class="maps"><div>(.*?)</div>', page).group(1)
    pictures = [Image.open(io.BytesIO(base64.b64decode(one))) for one in re.findall(r'base64,([^"]+)"', first)]
    assert [picture.size for picture in pictures] == [(24, 16)] * 5
    result = next(r for r in read_all(compared / "study")[0] if r.record["method"] == "single")
    truth = np.asarray(pictures[1])
    expected = load(f"masks:{compared}", validation=0.2).test[[int(result.columns["examples/index"][0])]][1][0].numpy()
    assert (truth == palette()[np.where(expected == -100, 255, expected)]).all()


# ---------------------------------------------------------------- predicting


def test_predictions_are_pictures_of_the_size_of_the_images(scenes, tmp_path, capsys):
    run("train", "--out", tmp_path / "m", "--data", f"masks:{scenes}", "--method", "packed", "--size", 2, "--epochs", 8,
        "--lr", 0.02, "--width", 0.5, "--quiet")  # fmt: skip
    large = tmp_path / "large.png"
    opened(scenes / "images" / "00.png").resize((48, 33)).save(large)
    same = scenes / "images" / "01.png"
    other = tmp_path / "01.png"
    other.write_bytes(same.read_bytes())
    run("predict", tmp_path / "m", same, large, other, "--out", tmp_path / "answers", "--format", "jsonl")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [opened(row["label_picture"]).size for row in rows] == [(24, 16), (48, 33), (24, 16)]
    assert len({row["label_picture"] for row in rows}) == 3  # though two images have one name
    predictor = load_predictor(tmp_path / "m")
    mean, std = (torch.tensor(predictor.record[key]) for key in ("mean", "std"))
    x = torch.from_numpy(np.asarray(opened(same)).copy()).permute(2, 0, 1)[None] / 255
    probabilities = predictor.ensemble((x - mean) / std).softmax(2).mean(0)[0].detach()
    label, total = opened(rows[0]["label_picture"]), opened(rows[0]["total_picture"])
    assert label.mode == "P" and (np.asarray(label) == np.array(VALUES)[probabilities.argmax(0)]).all()
    entropy = -(probabilities * probabilities.log()).sum(0) / np.log(3) * 255
    np.testing.assert_allclose(np.asarray(total), entropy.numpy(), atol=0.51)
    true = np.asarray(opened(scenes / "masks" / "01.png"))
    assert (np.asarray(label) == true)[1:].mean() > 0.7


def test_where_pictures_go_must_be_said(scenes, tmp_path):
    run("train", "--out", tmp_path / "m", "--data", f"masks:{scenes}", "--method", "single", "--epochs", 1, "--quiet")
    with pytest.raises(ValueError, match="--out: a folder is needed: a segmentation writes its pictures there"):
        run("predict", tmp_path / "m", scenes / "images" / "01.png")


def test_a_network_with_one_answer_for_an_image_is_refused(scenes, tmp_path):
    with pytest.raises(ValueError, match=r"resnet18 must give the shape \(3, 16, 24\) for each image"):
        run("train", "--out", tmp_path / "m", "--data", f"masks:{scenes}", "--model", "resnet18", "--quiet")


@pytest.mark.parametrize("command", ["upgrade", "landscape"])
def test_commands_for_one_target_each_refuse_masks_and_several(scenes, tmp_path, command):
    (tmp_path / "t.csv").write_text("x,a,b\n" + "1,2.5,3.5\n2,3.5,1.5\n" * 20)
    more = ["--model", "mlp", "--weights", "none.pt"] if command == "upgrade" else []
    for data, what in ([f"masks:{scenes}"], "masks"), ([f"table:{tmp_path}/t.csv", "--target", "a,b"], "2 targets"):
        with pytest.raises(ValueError, match=f"^{command}: takes data with one target for each row, .* has {what}"):
            run(command, *more, "--data", *data, "--out", tmp_path / "new")
