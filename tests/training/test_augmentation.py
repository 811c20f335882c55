"""Augmentation of batches, against torch's flips and slices, closed forms, Pillow and timm."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from small import CLASSES, make, targets
from timm.data import Mixup, auto_augment

import pluribus as pb
from pluribus.training.augmentation import (
    OPERATIONS,
    Augment,
    augment_of,
    cutmix,
    mixup,
    rand_augment,
    smooth_labels,
)


@pytest.fixture
def x():
    return torch.rand(64, 3, 16, 16)


Y = torch.arange(64) % 10


# ---------------------------------------------------------------- pixels


def test_normalisation_is_by_channel(x):
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 4.0])
    expected = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    assert torch.allclose(Augment(mean, std)(x, Y)[0], expected)
    assert torch.allclose(Augment(mean.view(3, 1, 1), std.view(3, 1, 1))(x, Y)[0], expected)


def test_flip_mirrors_half_of_the_rows_and_leaves_the_others(x):
    flipped, _ = Augment(flip=True)(x, Y)
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(flipped, x, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(flipped, x, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 16 <= sum(mirrored) <= 48  # 4 standard deviations


def test_shifts_move_an_image_and_repeat_its_border():
    down, right = torch.meshgrid(torch.arange(20.0), torch.arange(30.0), indexing="ij")
    ramps = torch.stack([down / 20, right / 30]).expand(64, 2, 20, 30)  # each pixel says where it was
    moved, _ = Augment(shift=0.1)(ramps, torch.zeros(64))
    assert float((moved[:, 0] * 20).std(0).mean()) > 0.5  # each image by its own shift
    for image in moved:
        shift = down[10, 15] - 20 * image[0, 10, 15], right[10, 15] - 30 * image[1, 10, 15]
        assert abs(shift[0]) <= 2.001 and abs(shift[1]) <= 3.001
        torch.testing.assert_close(20 * image[0], (down - shift[0]).clamp(0, 19), atol=1e-3, rtol=0)
        torch.testing.assert_close(30 * image[1], (right - shift[1]).clamp(0, 29), atol=1e-3, rtol=0)


def test_crop_is_a_window_of_the_padded_image(x):
    crops, _ = Augment(crop=2)(x, Y)
    padded = F.pad(x, (2, 2, 2, 2))
    windows = {(t, left): padded[:, :, t : t + 16, left : left + 16] for t in range(5) for left in range(5)}
    found = [next(k for k, w in windows.items() if torch.allclose(w[i], crops[i])) for i in range(64)]
    assert len(set(found)) > 12


@pytest.mark.parametrize("channels", [1, 3])
def test_input_is_not_changed_and_same_seed_gives_same_output(x, channels):
    x = x[:, :channels]
    before, y = x.clone(), Y.clone()
    augment = augment_of("medium", 0.5, 0.25, classes=10, crop=2)
    outputs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        outputs.append(augment(x, y))
    assert torch.equal(x, before) and torch.equal(y, Y)
    assert torch.equal(outputs[0][0], outputs[1][0]) and torch.equal(outputs[0][1], outputs[1][1])
    assert not torch.equal(outputs[0][0], outputs[2][0])


# ---------------------------------------------------------------- RandAugment

TIMM = dict(zip(OPERATIONS, auto_augment._RAND_TRANSFORMS, strict=True))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("magnitude", [4, 9])
def test_every_operation_is_that_of_timm_on_pillow_images(name, magnitude):
    down, right = np.mgrid[:32, :32] / 32
    image = np.stack([down, right, 0.5 + 0.4 * np.sin(7 * down * right)], -1)
    image = Image.fromarray(np.uint8(255 * image))
    settings = {"interpolation": Image.Resampling.BILINEAR, "img_mean": (128, 128, 128)}
    operation = auto_augment.AugmentOp(TIMM[name], prob=1.0, magnitude=magnitude, hparams=settings)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
    signs = (-1.0, 1.0)
    ours = [OPERATIONS[name](x, torch.tensor([magnitude / 10]), torch.tensor([s]))[0].clamp(0, 1) for s in signs]
    for seed in range(4):
        random.seed(seed)
        theirs = torch.from_numpy(np.array(operation(image))).permute(2, 0, 1).float() / 255
        error = min((own - theirs).abs().mean().item() for own in ours)
        assert error < (0.02 if name in ("rotate", "shear_x", "shear_y") else 0.004)


def test_rand_augment_draws_operations_for_each_image():
    x = torch.rand(1, 3, 16, 16).repeat(200, 1, 1, 1)
    y = rand_augment(x, 1, 9, 0)
    kept = (y == x).flatten(1).all(1).double().mean().item()
    assert kept == pytest.approx(0.5, abs=0.15)  # half of the time nothing is done
    assert len({tuple(row.flatten().tolist()) for row in y}) > 12
    assert y.min() >= 0 and y.max() <= 1


# ---------------------------------------------------------------- mixing


def test_mixup_is_the_closed_form(x):
    y = F.one_hot(Y, 10).float()
    mixed, target = mixup(x, y, 0.3)
    assert torch.allclose(mixed, 0.3 * x + 0.7 * x.flip(0))
    assert torch.allclose(target, 0.3 * y + 0.7 * y.flip(0))


@pytest.mark.parametrize("seed", range(8))
def test_cutmix_gives_a_target_the_share_of_its_pixels(x, seed):
    torch.manual_seed(seed)
    y = F.one_hot(torch.arange(64), 64).float()
    mixed, target = cutmix(x, y, 0.6)
    taken = (mixed != x).all(1)  # (batch, height, width)
    assert torch.equal(mixed.movedim(1, -1)[taken], x.flip(0).movedim(1, -1)[taken])
    own = 1 - taken.double().mean((1, 2))
    assert torch.allclose(target.diagonal().double(), own)
    assert torch.allclose(target.sum(1), torch.ones(64))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alphas", [(0.5, 0.0), (0.0, 0.2)])
def test_targets_are_those_of_timm(x, alphas, smoothing, monkeypatch):
    augment = Augment(mixup=alphas[0], cutmix=alphas[1], smoothing=smoothing, classes=10)
    oracle = Mixup(*alphas, label_smoothing=smoothing, num_classes=10)
    ours, target = augment(x, Y)
    share = ((target[0, 0] - smoothing / 10) / (1 - smoothing)).item()  # rows 0 and 63 are of classes 0 and 3
    box = (ours[0] != x[0]).all(0).nonzero()
    monkeypatch.setattr(oracle, "_params_per_batch", lambda: (share, alphas[1] > 0))
    if alphas[1] and len(box):
        ends = (box[:, 0].min(), box[:, 0].max() + 1, box[:, 1].min(), box[:, 1].max() + 1)
        monkeypatch.setattr("timm.data.mixup.cutmix_bbox_and_lam", lambda *args, **kwargs: (ends, share))
    theirs, expected = oracle(x.clone(), Y)
    assert torch.allclose(target, expected, atol=1e-6)
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_smoothing_is_that_of_torch(x):
    logits = torch.randn(64, 10)
    own = F.cross_entropy(logits, smooth_labels(Y, 10, 0.1, torch.float32))
    assert own.item() == pytest.approx(F.cross_entropy(logits, Y, label_smoothing=0.1).item(), rel=1e-6)


@pytest.mark.parametrize("method", pb.METHODS)
def test_soft_targets_reach_the_loss_of_every_method(method):
    ensemble, x = make(method, "cnn")
    _, soft = Augment(mixup=5.0, smoothing=0.1, classes=CLASSES)(x, targets())
    losses = []
    for target in (targets(), soft):
        torch.manual_seed(0)
        losses.append(ensemble.train().loss(x, target, F.cross_entropy))
    assert torch.isfinite(losses[1])
    assert not torch.allclose(*losses)


# ---------------------------------------------------------------- by name


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda x: augment_of("strong"), "'strong' is unknown. Choose from none, hflip, crop, medium"),
        (lambda x: Augment(mixup=-1), "mixup must be from 0 to inf, but it is -1"),
        (lambda x: Augment(smoothing=2), "smoothing must be from 0 to 1, but it is 2"),
        (lambda x: Augment(rand_augment={"m": 30}), "takes n, m from 0 to 10 and mstd, but got .*'m': 30"),
        (lambda x: Augment(rand_augment={"k": 1}), "takes n, m from 0 to 10 and mstd, but got .*'k': 1"),
        (lambda x: Augment(mixup=1.0)(x, Y), "classes is not given. Give classes=10"),
        (lambda x: Augment(mixup=1.0, classes=3)(x, Y.float()), "y is torch.float32"),
        (lambda x: Augment()(x[0], Y), "tables need no Augment"),
        (lambda x: Augment()((x * 255).byte(), Y), "Divide uint8 by 255"),
        (lambda x: Augment()(x, Y[:3]), "they have 64 and 3"),
    ],
)
def test_bad_input_is_told_with_the_way_out(make, words, x):
    with pytest.raises(ValueError, match=words):
        make(x)
