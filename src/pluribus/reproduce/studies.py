"""The studies that items share: tiny for `smoke`, CIFAR-10 images for `laptop`, the papers' recipes for `paper`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..data.corruptions.catalogue import BENCHMARK
from .experiments.study_experiment import StudyExperiment

ALL = ("single", "deep", "packed", "masksembles", "mc_dropout", "batch_ensemble", "mimo", "multihead", "treenet")

SOME = ("gaussian_noise", "impulse_noise", "motion_blur", "zoom_blur", "contrast", "elastic_transform")

SMOKE: dict[str, Any] = {
    "data": ["sklearn_digits"], "model": "mlp", "size": 3, "seeds": [0, 1], "training": {"epochs": 2, "lr": 0.003},
    "source": {"outside": ["noise"]}, "corruptions": ["gaussian_noise"], "severities": [1, 3], "shift_rows": 100,
}  # fmt: skip

LAPTOP: dict[str, Any] = {
    "data": ["cifar10"], "model": "small_cnn", "size": 4, "seeds": [0, 1, 2],
    "training": {"epochs": 10, "batch_size": 128, "lr": 2e-3, "schedule": {"name": "cosine"}},
    "source": {"outside": ["svhn"]}, "corruptions": list(SOME), "severities": [1, 3, 5], "shift_rows": 500,
}  # fmt: skip

CIFAR: dict[str, Any] = {
    "source": {"outside": ["svhn"]},
    "size": 4,
    "seeds": list(range(5)),
    "corruptions": list(BENCHMARK),
}

IMAGENET: dict[str, Any] = {
    "data": ["imagenet"], "model": "resnet50", "size": 4, "seeds": [0],
    "source": {"outside": ["textures", "imagenet_o"], "variants": ["imagenet_r"]}, "corruptions": list(BENCHMARK),
}  # fmt: skip


def study(
    name: str, paper: Sequence[Mapping[str, Any]], *, smoke: Mapping[str, Any] | None = None, **given: Any
) -> StudyExperiment:
    """An experiment with the same methods and settings at each scale.

    Args:
        paper: the studies of `--scale paper`, in which `given` holds too
        smoke: what is different at `--scale smoke`
        given: arguments of `Study`
    """
    return StudyExperiment(
        name,
        {
            "smoke": [{**SMOKE, **given, **(smoke or {})}],
            "laptop": [{**LAPTOP, **given}],
            "paper": [{**one, **given} for one in paper],
        },
    )


def _recipe(data: str, model: str, recipe: str) -> dict[str, Any]:
    return {**CIFAR, "data": [data], "model": model, "recipe": recipe}


def control(name: str, *pairs: tuple[str, str]) -> StudyExperiment:
    """One method on each of several networks, on CIFAR-10, compared with each other across the networks.

    Args:
        pairs: (network, method)
    """
    brief = {"width": 0.25, "training": {"epochs": 1, "lr": 0.003}, "severities": [1], "shift_rows": 20}
    return StudyExperiment(
        name,
        {
            "smoke": [{**SMOKE, **brief, "model": model, "methods": [method]} for model, method in pairs],
            "laptop": [{**LAPTOP, "model": model, "methods": [method], "width": 0.25} for model, method in pairs],
            "paper": [
                {**_recipe("cifar10", model, "packed/cifar10/resnet50"), "methods": [method]} for model, method in pairs
            ],
        },
        merge=True,
    )


PACKED_CIFAR = [
    _recipe(data, model, f"packed/{data}/{model}")
    for data in ("cifar10", "cifar100")
    for model in ("resnet18", "resnet50", "wide_resnet28_10")
]

PACKED_R50 = [_recipe("cifar100", "resnet50", "packed/cifar100/resnet50")]

PACKED_IMAGENET = [{**IMAGENET, "recipe": "packed/imagenet/resnet50"}]

MASKS_CIFAR = [_recipe("cifar10", "wide_resnet16_4", "masksembles/cifar10/wide_resnet16_4")]

MASKS_IMAGENET = [{**IMAGENET, "recipe": "masksembles/imagenet/resnet50", "seeds": [0]}]

MIMO_CIFAR10 = [{**_recipe("cifar10", "wide_resnet28_10", "mimo/cifar/wide_resnet28_10"), "size": None}]

MIMO_CIFAR100 = [{**_recipe("cifar100", "wide_resnet28_10", "mimo/cifar/wide_resnet28_10"), "size": None}]

MIMO_IMAGENET = [{**IMAGENET, "recipe": "mimo/imagenet/resnet50", "size": None}]
