"""How a network is trained, as data: the papers' own settings by name, RECIPES at the foot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .._common.names import say_unknown


@dataclass(frozen=True)
class Recipe:
    """All settings of training: everything except the ensemble and the data.

    >>> RECIPES["packed/cifar10/resnet18"].schedule
    {'name': 'multistep', 'milestones': [25, 50], 'factors': 0.1}
    >>> RECIPES["packed/cifar10/resnet50"].of("batch_ensemble").lr
    0.08

    Args:
        epochs: passes over the training data
        batch_size: rows in a step; MIMO divides it by its batch repetition
        optimizer, schedule: a name in OPTIMIZERS or SCHEDULES with settings, such as {"name": "sgd", "momentum": 0.9}
        lr: the rate at the start
        weight_decay: as the optimizer has it
        decays: what `weight_decay`, `l1` and `l2` act on: "all" parameters, or "kernels" alone, no scales and biases
        criterion: a name in CRITERIA; None: what the ensemble's task needs
        augment: a name in AUGMENTATIONS, or settings of `Augment`
        clip: the largest norm of a gradient
        clip_by: "member": each member's by itself, as if it trained alone; "all": the whole ensemble's as one
        patience: stop after so many epochs in which nothing improved on validation data
        best: which epoch is kept: the most "accurate" on validation data (of equals, the likeliest), the "likeliest",
            or the "last", whatever validation data say
        l1, l2: penalties on the weights, added to the loss
        fast_weight_factor: of BatchEnsemble's vectors: their rate relative to `lr`
        methods: what changes for a method: fields of the recipe, or of the method under "settings"
        source: where it is printed, and what was left open there
    """

    epochs: int = 10
    batch_size: int = 128
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "adam"})
    lr: float = 1e-3
    weight_decay: float = 0.0
    decays: Literal["all", "kernels"] = "all"
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"name": "constant"})
    criterion: str | None = None
    augment: str | Mapping[str, Any] | None = None
    clip: float | None = None
    clip_by: Literal["member", "all"] = "member"
    patience: int | None = None
    best: Literal["accurate", "likeliest", "last"] = "accurate"
    l1: float = 0.0
    l2: float = 0.0
    fast_weight_factor: float = 0.5
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.lr, str) or not self.lr > 0:
            raise ValueError(f"recipe: lr must be above 0, but it is {self.lr!r}.")

    def of(self, method: str) -> Recipe:
        """The recipe for one method."""
        own = {key: value for key, value in self.methods.get(method, {}).items() if key != "settings"}
        return dataclasses.replace(self, **own, methods={})

    def settings(self, method: str) -> dict[str, Any]:
        """The settings of the method itself that go with the recipe, such as MIMO's batch repetition."""
        return dict(self.methods.get(method, {}).get("settings", {}))

    def changed(self, **changes: Any) -> Recipe:
        """The recipe with other values; a change holds for every method."""
        known = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"recipe: {say_unknown(name, known)}")
        methods = {m: {k: v for k, v in own.items() if k not in changes} for m, own in self.methods.items()}
        return dataclasses.replace(self, **{"methods": methods, **changes})

    def to_json(self) -> dict[str, Any]:
        """The recipe as plain values."""
        return dataclasses.asdict(self)


def recipe(name: str | Mapping[str, Any] | Recipe) -> Recipe:
    """The recipe of this name; a mapping is one already written down."""
    if isinstance(name, Recipe):
        return name
    if not isinstance(name, str):
        return Recipe().changed(**name)
    if name not in RECIPES:
        raise ValueError(f"recipe: {say_unknown(name, RECIPES)}")
    return RECIPES[name]


def _multistep(milestones: list[int], factors: float | list[float]) -> dict[str, Any]:
    return {"name": "multistep", "milestones": milestones, "factors": factors}


def _packed(
    epochs: int, lr: float, decay: float, factor: float, milestones: list[int], augment: str, gamma: int = 2
) -> Recipe:
    return Recipe(
        epochs=epochs, batch_size=128, optimizer={"name": "sgd", "momentum": 0.9}, lr=lr, weight_decay=decay,
        schedule=_multistep(milestones, factor), augment=augment, source="Packed-Ensembles, Table 4",
        methods={
            "packed": {"settings": {"alpha": 2, "gamma": gamma}},
            "masksembles": {"settings": {"scale": 2.0, "after": True, "repeat": True}},
            "mimo": {"settings": {"input_repetition": 1.0, "init": "different"}},
        },
    )  # fmt: skip


def _with_slower_batch_ensemble(base: Recipe) -> Recipe:
    methods = {**base.methods, "batch_ensemble": {"lr": 0.08}}
    return dataclasses.replace(base, methods=methods, source=f"{base.source}; BatchEnsemble at 0.08: appendix B")


def _mimo(imagenet: bool) -> Recipe:
    """MIMO, appendix B. The milestones are those of the published code: the paper leaves them open."""

    def decay(epochs: int) -> dict[str, Any]:
        of, at = (90, (30, 60, 80)) if imagenet else (200, (80, 160, 180))
        return _multistep([m * epochs // of for m in at], 0.1)

    base, longer, tree = (90, 135, 150) if imagenet else (200, 250, 250)
    l2, repetition, own = (1e-4, 2, 150) if imagenet else (2e-4, 4, 250)
    rho = 0.6 if imagenet else 0.0
    return Recipe(
        epochs=base, batch_size=4096 if imagenet else 512, optimizer={"name": "sgd", "momentum": 0.9, "nesterov": True},
        lr=0.1, l2=l2, schedule=decay(base),
        augment={"flip": True, "resized_crop": {"size": 224}} if imagenet else {"flip": True, "crop": 4},
        fast_weight_factor=0.25 if imagenet else 0.5,
        methods={
            "mc_dropout": {"settings": {"rate": 0.1}},
            "batch_ensemble": {"epochs": longer, "schedule": decay(longer), "settings": {"size": 4}},
            "multihead": {"epochs": tree, "schedule": decay(tree), "settings": {"size": 3}},
            "treenet": {
                "epochs": tree, "schedule": decay(tree),
                "settings": {"size": 2, "branch": "layer4|fc"} if imagenet else {"size": 3, "branch": "layer3|bn1|fc"},
            },
            "deep": {"settings": {"size": 4}},
            "mimo": {
                "epochs": own, "schedule": decay(own), "l2": 1e-4 if imagenet else 3e-4,
                "settings": {
                    "size": 2 if imagenet else 3, "batch_repetition": repetition, "input_repetition": rho,
                    "init": "different",
                },
            },
        },
        source="MIMO, appendix B; milestones, momentum and augmentation as in its published code",
    )  # fmt: skip


def _fort(epochs: int, source: str) -> Recipe:
    return Recipe(
        epochs=epochs, batch_size=128, optimizer={"name": "adam"}, lr=1.6e-3,
        schedule={"name": "step", "every": 10, "factor": 0.5}, methods={"mc_dropout": {"settings": {"rate": 0.1}}},
        source=source,
    )  # fmt: skip


def _resnet20(milestones: list[int], factors: list[float], batch_size: int, source: str) -> Recipe:
    return Recipe(
        epochs=200, batch_size=batch_size, lr=1e-3, l2=1e-4, schedule=_multistep(milestones, factors),
        decays="kernels", augment={"flip": True, "shift": 0.1}, source=source,
    )  # fmt: skip


def _a3(alpha: int, **masksembles: Any) -> Recipe:
    return Recipe(
        epochs=100, batch_size=2048, optimizer={"name": "lamb"}, lr=8e-3, weight_decay=0.02, decays="kernels",
        schedule={"name": "cosine", "warmup": 5}, criterion="multilabel_bce",
        augment={
            "flip": True, "resized_crop": {"size": 160}, "rand_augment": {"n": 2, "m": 6, "mstd": 0.5},
            "mixup": 0.1, "cutmix": 1.0,
        },
        fast_weight_factor=0.25,
        methods={
            "packed": {"settings": {"alpha": alpha, "gamma": 1}},
            "batch_ensemble": {"clip": 0.0005},
            "mimo": {"settings": {"input_repetition": 1.0, "init": "different"}},
            "masksembles": {**masksembles, "settings": {"scale": 2.0, "after": True, "repeat": True}},
        },
        source="Packed-Ensembles, appendix B: procedure A3 of Wightman et al., 2021, trained at 160 px, tested at 224; "
        "MIMO's input repetition as in Table 1",
    )  # fmt: skip


TABM: dict[str, Any] = {
    "optimizer": {"name": "adamw"}, "lr": 2e-3, "weight_decay": 3e-4, "clip": 1.0, "clip_by": "all"
}  # fmt: skip

RECIPES: dict[str, Recipe] = {
    "default": Recipe(
        epochs=20, lr=1e-3, methods={"tabm": {**TABM, "settings": {"size": 32}}},
        source="Adam at its usual rate; TabM as in the recipe tabm",
    ),
    "tabm": Recipe(
        epochs=300, batch_size=256, patience=16, **{key: value for key, value in TABM.items() if key != "clip_by"},
        methods={"tabm": {"clip_by": "all", "settings": {"size": 32}}},
        source="TabM: the authors' published defaults and patience; at most 300 epochs",
    ),
    "digits": Recipe(
        epochs=20, batch_size=64, lr=2e-3, schedule={"name": "cosine"},
        methods={
            "masksembles": {"settings": {"capacity": 1.0}},
            "mimo": {"settings": {"size": 2, "batch_repetition": 4}},
        },
        source="the default of `pluribus compare`; members and settings as the papers choose them",
    ),
    "packed/cifar10/resnet18": _packed(75, 0.05, 5e-4, 0.1, [25, 50], "hflip"),
    "packed/cifar10/resnet50": _with_slower_batch_ensemble(_packed(200, 0.1, 5e-4, 0.2, [60, 120, 160], "hflip")),
    "packed/cifar10/wide_resnet28_10": _packed(200, 0.1, 5e-4, 0.2, [60, 120, 160], "hflip", gamma=1),
    "packed/cifar100/resnet18": _packed(75, 0.05, 1e-4, 0.2, [25, 50], "hflip"),
    "packed/cifar100/resnet50": _with_slower_batch_ensemble(_packed(200, 0.1, 5e-4, 0.2, [60, 120, 160], "hflip")),
    "packed/cifar100/wide_resnet28_10": _packed(200, 0.1, 5e-4, 0.2, [60, 120, 160], "medium", gamma=1),
    "packed/imagenet/resnet50": _a3(3),
    "packed/imagenet/resnet50x4": _a3(2, batch_size=1120),
    "packed/uci": Recipe(
        epochs=40, batch_size=32, lr=1e-2, criterion="gaussian_nll",
        methods={"packed": {"settings": {"size": 3, "alpha": 2}}, "deep": {"settings": {"size": 3}}},
        source="Packed-Ensembles, appendix N (epochs, batch and rate: Lakshminarayanan et al., 2017, 40 epochs)",
    ),
    "mimo/cifar/wide_resnet28_10": _mimo(imagenet=False),
    "mimo/imagenet/resnet50": _mimo(imagenet=True),
    "masksembles/cifar10/wide_resnet16_4": Recipe(
        epochs=200, batch_size=128, optimizer={"name": "sgd", "momentum": 0.9, "nesterov": True}, lr=0.1,
        weight_decay=5e-4, schedule=_multistep([60, 120, 160], 0.2), augment={"flip": True, "crop": 4},
        methods={
            "masksembles": {"settings": {"scale": 1.55, "capacity": 1.0}},  # 2.3 times the network, as Table 1 says
            "mc_dropout": {"settings": {"rate": 0.1}},
        },
        source="Masksembles, section 4.2: the procedure of Zagoruyko and Komodakis, 2016; S is left open",
    ),
    "masksembles/imagenet/resnet50": Recipe(
        epochs=90, batch_size=256, optimizer={"name": "sgd", "momentum": 0.9}, lr=0.1, weight_decay=1e-4,
        schedule=_multistep([30, 60], 0.1), augment={"flip": True, "resized_crop": {"size": 224}},
        methods={
            "masksembles": {"settings": {"scale": 1.5, "where": "layer[234].*"}},  # an IoU of 0.5, the best
            "mc_dropout": {"settings": {"rate": 0.1, "where": "layer[234].*"}},
        },
        source="Masksembles, section 4.3: the usual ResNet-50 training; masks and dropout from stage 3 (conv3_x) on",
    ),
    "fort/cifar10/small_cnn": _fort(40, "Fort et al., section 3 (text: 40 epochs)"),
    "fort/cifar10/small_cnn/10_epochs": _fort(10, "Fort et al., section 3 (list: 10 epochs)"),
    "fort/cifar10/medium_cnn": _fort(40, "Fort et al., section 3"),
    "fort/cifar10/resnet20": _resnet20(
        [80, 120, 160, 180], [1e-1, 1e-2, 1e-3, 5e-4], 32,
        "Fort et al., section 3: rates, augmentation and, where they are left open, batches and L2 of Keras' example",
    ),
    "fort/cifar100/resnet20": _resnet20(
        [100, 130, 160, 190], [1e-1, 5e-2, 1e-2, 5e-4], 128,
        "Fort et al., section 3; augmentation and L2 as in the Keras example",
    ),
    "fort/imagenet/resnet50v2": Recipe(
        epochs=160, batch_size=256, optimizer={"name": "sgd", "momentum": 0.9}, lr=0.15,
        schedule=_multistep([80, 120], 0.1), augment={"flip": True}, source="Fort et al., section 3",
    ),
}  # fmt: skip
