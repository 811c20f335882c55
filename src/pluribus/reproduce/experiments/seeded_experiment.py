"""An experiment that is repeated with several seeds, each a part: figures by name, with intervals over the parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from ...data.catalogue import load
from ...data.dataset import Data, NormalisedSplit
from ...models.by_name import ModelSpec
from .stored_parts import Given, InParts, Part, Stored

Rows = tuple[Tensor, Tensor]

HELD = 2**29  # bytes of test rows that are kept in memory: all of CIFAR, 891 rows of ImageNet

Compute = Callable[[Mapping[str, Any], Path | None], Given]


def experiment_by_seed(name: str, scales: Mapping[str, Mapping[str, Any]], compute: Compute) -> InParts:
    """An experiment with one part for each seed.

    Args:
        scales: settings by scale; "seeds" is how many
        compute: from settings with a "seed", and the folder of the data, to {"values": figures by name, ...} and arrays
    """
    return in_seeds(name, lambda scale: seed_parts(scales[scale]), compute)


def in_seeds(name: str, plan: Callable[[str], list[Part]], compute: Compute) -> InParts:
    """An experiment whose parts follow from their settings; data that is missing is refused before anything is run."""
    return InParts(name, plan, BySettings(compute), lambda scale, folder: check_data(plan(scale), folder))


def check_data(parts: Sequence[Part], folder: Path | None) -> None:
    """Refuse data that is missing, with where to get it, before anything is trained."""
    for data, outside in dict.fromkeys((part.settings["data"], part.settings["outside"]) for part in parts):
        load(data, folder=folder, outside=[outside], validation=0.1)


def seed_parts(settings: Mapping[str, Any], start: str = "") -> list[Part]:
    """A part for each seed of the settings; `start` begins their names."""
    own = {key: value for key, value in settings.items() if key != "seeds"}
    return [Part(f"{start}seed-{seed}", {**own, "seed": seed}) for seed in range(settings["seeds"])]


@dataclass(frozen=True)
class BySettings:
    """What computes a part from its settings alone; it can be sent to other processes."""

    compute: Compute

    def __call__(self, part: Part, folder: Path | None, needed: Mapping[str, Stored]) -> Given:
        """What the part gives."""
        return self.compute(part.settings, folder)


def few(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """What every experiment needs of the settings of another, with changes."""
    kept = ("data", "outside", "model", "rows", "epochs", "batch_size", "seeds", "lr")
    return {**{key: base[key] for key in kept}, **changes}


def fit_options(given: Mapping[str, Any], *, rate: bool = True, **usual: Any) -> dict[str, Any]:
    """What `pb.fit` is given: the recipe of a paper where the settings name one, or epochs, batches, and the rate.

    Args:
        rate: False: the rate is not given, because it is what the experiment changes
        usual: beside them, where there is no recipe
    """
    if "recipe" in given:
        return {"recipe": given["recipe"]}
    names = ("epochs", "batch_size", "lr") if rate else ("epochs", "batch_size")
    return {**{name: given[name] for name in names}, **usual}


class Prepared(NamedTuple):
    """Data and a network for a part.

    Training rows are read a batch at a time; validation and test rows are normalised tensors, as many as HELD bytes
    hold; `plain` are the same test rows as images from 0 to 1; `example` are two rows.
    """

    data: Data
    model: nn.Module
    train: NormalisedSplit
    validation: Rows
    test: Rows
    plain: Rows
    outside: Tensor
    example: Tensor


def prepare_rows(given: Mapping[str, Any], folder: Path | None) -> Prepared:
    """What the settings name: data, outside, model, how many rows; the network is drawn anew, the rows are the same."""
    data = load(given["data"], folder=folder, outside=[given["outside"]], validation=0.1)
    train = NormalisedSplit(data.train.take(slice(given["rows"])), data)
    most = max(1, min(given["rows"], HELD // (4 * math.prod(data.shape))))
    plain, validation = data.test[:most], data.validation[:most]
    test, held_out = ((data.normalise(x), y) for x, y in (plain, validation))
    outside = data.normalise(next(iter(data.outside.values()))[:500][0])
    model = ModelSpec(given["model"], tuple(data.shape), len(data.classes)).build()
    return Prepared(data, model, train, held_out, test, plain, outside, train[:2][0])
