"""The table of the papers' parameters and mult-adds, to the digit, made by the methods themselves."""

import pytest
import torch

import pluribus as pb
from pluribus import models

SMALL, LARGE = torch.empty(1, 3, 32, 32, device="meta"), torch.empty(1, 3, 224, 224, device="meta")


def on_meta(build, **options):
    with torch.device("meta"):
        return build(**options)


def packed(build, alpha, gamma, x=SMALL, **options):
    return pb.packed(on_meta(build, **options), 4, alpha=alpha, gamma=gamma, example=x)


WIDE = {"stride_on": "second"}
ROWS = {
    "ResNet-18": (lambda: on_meta(models.resnet18), 11_173_962, 0.555),
    "ResNet-18 packed (2, 4, 2)": (lambda: packed(models.resnet18, 2, 2), 8_175_784, 0.481),
    "ResNet-18 BatchEnsemble 4": (lambda: pb.batch_ensemble(on_meta(models.resnet18), 4), 11_210_652, 2.222),
    "ResNet-18 BatchEnsemble 4, shortcuts plain": (
        lambda: pb.batch_ensemble(on_meta(models.resnet18), 4, where=r"(?!.*downsample).*"),
        11_205_276,
        2.222,
    ),
    "ResNet-18 MIMO 4": (lambda: pb.mimo(on_meta(models.resnet18), 4, example=SMALL), 11_194_536, 0.561),
    "ResNet-18 Deep 4": (lambda: pb.deep(on_meta(models.resnet18), 4), 44_695_848, 2.222),
    "ResNet-50": (lambda: on_meta(models.resnet50), 23_520_842, 1.298),
    "ResNet-50 packed (2, 4, 2)": (lambda: packed(models.resnet50, 2, 2), 14_552_232, 1.004),
    "WRN-28-10 with biases": (lambda: on_meta(models.wide_resnet28_10, bias=True, **WIDE), 36_489_290, 5.951),
    "WRN-28-10 packed (2, 4, 2)": (lambda: packed(models.wide_resnet28_10, 2, 2, **WIDE), 19_352_008, 4.058),
    "WRN-28-10, 100 classes, packed (2, 4, 1)": (
        lambda: packed(models.wide_resnet28_10, 2, 1, num_classes=100, **WIDE),
        36_619_568,
        5.952,  # the paper prints 5.96
    ),
    "ResNet-50 ImageNet packed (3, 4, 1)": (
        lambda: packed(models.resnet50, 3, 1, LARGE, num_classes=1000, style="imagenet"),
        59_087_968,
        9.291,
    ),
    "ResNet-18, 100 classes, packed (2, 4, 2)": (
        lambda: packed(models.resnet18, 2, 2, num_classes=100),
        8_268_304,
        0.481,
    ),
    "ResNet-50, 100 classes, packed (2, 4, 2)": (
        lambda: packed(models.resnet50, 2, 2, num_classes=100),
        14_921_232,
        1.004,
    ),
    "WRN-28-10 MIMO 3": (lambda: pb.mimo(on_meta(models.wide_resnet28_10), 3, example=SMALL), 36_492_878, None),
    "WRN-28-10, usual stride": (lambda: on_meta(models.wide_resnet28_10), 36_479_194, 5.243),
    "WRN-28-10 packed (2, 4, 2), usual stride": (lambda: packed(models.wide_resnet28_10, 2, 2), 19_352_008, 3.527),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.slow
def test_the_row_comes_out_to_the_digit(row):
    make, parameters, giga = ROWS[row]
    cost = pb.cost(make(), LARGE if "ImageNet" in row else SMALL)
    assert cost.parameters == parameters
    if giga is not None:
        assert round(cost.mult_adds / 1e9, 3) == giga
