"""The papers' networks, each written once: hidden widths follow `width`, so no thin or wide copy is needed.

A network's `takes_gamma` is a pattern of the layers to which Packed-Ensembles gives gamma groups. Weights
begin as PyTorch's layers draw them: a layer that is reset later comes from the same law as a new one.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .resnet import resnet18, resnet20, resnet50, resnet50v2, resnext50, wide_resnet16_4, wide_resnet28_10
from .small import lenet, medium_cnn, mlp, small_cnn
from .unet import unet

MODELS: dict[str, Callable[..., nn.Module]] = {
    function.__name__: function
    for function in (
        mlp,
        lenet,
        small_cnn,
        medium_cnn,
        resnet18,
        resnet20,
        resnet50,
        resnet50v2,
        resnext50,
        wide_resnet28_10,
        wide_resnet16_4,
    )
}

DENSE_MODELS: dict[str, Callable[..., nn.Module]] = {"unet": unet}  # with an answer for every pixel
