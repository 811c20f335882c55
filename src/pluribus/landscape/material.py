"""What the laboratory works on: recorded runs, or networks that somebody trained, and the data to evaluate them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from .._common.trees import map_arrays
from ..core.ensemble import Ensemble
from ..data.corruptions import corrupt
from ..data.dataset import Data, Split
from ..training.batching import mix_seeds
from .checkpoints import Trajectory
from .common.examples import Examples
from .common.networks import networks_of

Rows = tuple[Tensor, Tensor]  # inputs and labels
Made = TypeVar("Made")
MOST = 10  # checkpoints of a run in a matrix


@dataclass(frozen=True)
class RunTraining:
    """How the runs were trained, so that more networks can be.

    Args:
        build: a function that gives a network with new weights
        epochs, lr, batch_size, optimizer, schedule: as for `pb.fit`
        recipe: in place of these settings

    >>> RunTraining(lambda: nn.Linear(4, 3), epochs=2, lr=1e-3, batch_size=8).options(1)["schedule"]
    'quarters'
    """

    build: Callable[[], nn.Module]
    epochs: int
    lr: float
    batch_size: int
    optimizer: str = "adam"
    schedule: str = "quarters"
    recipe: str | None = None

    def options(self, epochs: int) -> dict[str, Any]:
        """The arguments of `trajectories` for this many epochs, without the learning rate."""
        if self.recipe is not None:
            return {"recipe": self.recipe, "task": "classification"}
        how = {name: getattr(self, name) for name in ("batch_size", "optimizer", "schedule")}
        return {**how, "epochs": epochs, "task": "classification"}

    def whole(self) -> dict[str, Any]:
        """The arguments of `pb.fit` for a network that is trained as long as the runs were."""
        if self.recipe is not None:
            return {"recipe": self.recipe}
        return {name: getattr(self, name) for name in ("epochs", "lr", "batch_size", "optimizer", "schedule")}


@dataclass(frozen=True)
class Material:
    """Runs and data, and how much to spend on them.

    Args:
        runs: trajectories, or networks without a past
        train: normalised inputs and labels, or a data set of them
        validation, test: normalised inputs and labels; nothing is chosen by the last
        images: test inputs from 0 to 1, for corruptions; None where there are none
        normalise: what makes inputs of images
        outside: normalised inputs of other data; None where there are none
        shifted: published corrupted sets in place of our own corruptions: by name, one of each severity, as images
        training: how to train further networks; None where that is not known
        grid: points of a surface along each side
        samples: networks of each subspace
        least: the accuracy on validation rows below which random samples are rejected; by default 0.92 of the run's own
        reach: distances of random samples from their solution; by default 0.02 to 0.2 of the length of its weights
        steps: of each point of a tunnel
        retrained: networks that are trained again for each comparison of ways of training; 0: none
        rates: learning rates at which these are compared; by default a quarter, once and four times that of the runs
        chain: options of `csgmcmc`, where they are not the usual ones
        extra: settings of single measures: repetition (of MIMO's batches), sizes and l1 (of its path of sparsity),
            masks (how many), gamma and runs (of packed members)
        corruptions: names, and `severities` from 1 to 5
        seed: of all random numbers
        say: told what is being done

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> Material([nn.Linear(4, 3), nn.Linear(4, 3)], (x, y), (x, y), (x, y)).names
    ['run 1', 'run 2']
    """

    runs: list[Any]
    train: Any
    validation: Rows
    test: Rows
    images: Rows | None = None
    normalise: Callable[[Tensor], Tensor] | None = None
    outside: Tensor | None = None
    shifted: Mapping[str, Sequence[Split]] = field(default_factory=dict)
    training: RunTraining | None = None
    grid: int = 21
    samples: int = 5
    least: float | None = None
    reach: float | tuple[float, float] | None = None
    steps: int = 80
    retrained: int = 3
    rates: tuple[float, ...] = ()
    chain: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    corruptions: tuple[str, ...] = ("gaussian_noise",)
    severities: tuple[int, ...] = (1, 3, 5)
    seed: int = 0
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, make: Callable[[Material], Made]) -> Made:
        """What `make` gives for this material; several questions share it, and it is made for the first alone."""
        if make not in self.made:
            self.made[make] = make(self)
        found: Made = self.made[make]
        return found

    def network(self) -> nn.Module:
        """A network like those of the runs, with new weights that follow the seed."""
        assert self.training is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seeds(self.seed, 20))
            return self.training.build()

    @property
    def names(self) -> list[str]:
        """What each run is called."""
        return run_names(len(self.runs))

    @property
    def styles(self) -> dict[str, int]:
        """The style of each run in every chart; 1 is too much like the shades."""
        return {name: number for number, name in enumerate(self.names, 2)}

    @property
    def recorded(self) -> bool:
        """Whether the runs have a past."""
        return all(isinstance(run, Trajectory) and len(run) > 1 for run in self.runs)

    @property
    def solutions(self) -> list[nn.Module]:
        """What each run ended with."""
        return [run.solution if isinstance(run, Trajectory) else run for run in self.runs]

    def checkpoints(self, run: Any) -> list[int]:
        """Evenly spread checkpoints of a run, its last among them, without the beginning, which knows nothing."""
        if not isinstance(run, Trajectory):
            return [0]
        first = 1 if run.steps[0] == 0 and len(run) > 2 else 0
        return sorted({round(i) for i in np.linspace(len(run) - 1, first, min(MOST, len(run) - first)).tolist()})

    def shown(self) -> tuple[list[Any], dict[str, np.ndarray]]:
        """The networks of each run that a picture shows, and of each which run it belongs to and its step."""
        chosen = [self.checkpoints(run) for run in self.runs]
        networks = [
            run.take(rows) if isinstance(run, Trajectory) else run for run, rows in zip(self.runs, chosen, strict=True)
        ]
        steps = [run.steps[i] if isinstance(run, Trajectory) else 0 for run, rows in zip(self.runs, chosen, strict=True)
                 for i in rows]  # fmt: skip
        return networks, {"run": np.repeat(np.arange(len(chosen)), list(map(len, chosen))), "step": np.array(steps)}

    @property
    def train_rows(self) -> int:
        """How many rows were trained on."""
        return len(self.train[1] if isinstance(self.train, tuple) else self.train)

    def shifts(self) -> Iterator[tuple[str, int, Rows]]:
        """Corrupted test rows, one set after the other: the corruption, its severity, normalised inputs and labels."""
        normalise = self.normalise or (lambda x: x)
        for name, splits in self.shifted.items():
            for severity in self.severities:
                x, y = splits[severity - 1][: len(self.test[1])]
                yield name, severity, (normalise(x), y)
        if self.shifted or self.images is None:
            return
        for name in self.corruptions:
            for severity in self.severities:
                yield name, severity, (normalise(corrupt(self.images[0], name, severity)), self.images[1])


def material_of(caller: str, runs: Any, data: Any, *, train: Any = None, rows: int = 1000, **settings: Any) -> Material:
    """Networks and data as a user has them."""
    held = [runs.member(i).eval() for i in range(runs.size)] if isinstance(runs, Ensemble) else runs
    if not isinstance(held, (list, tuple)) or not all(isinstance(run, (Trajectory, nn.Module)) for run in held):
        raise TypeError(f"{caller}: runs must be a list of trajectories or networks, or an Ensemble.")
    if len(held) < 2:
        raise ValueError(f"{caller}: needs at least 2 runs to compare, but there is {len(held)}.")
    networks_of(caller, [run if isinstance(run, nn.Module) else run.solution for run in held])  # of one architecture
    known = {name for name in Material.__dataclass_fields__ if name not in ("runs", "train", "test", "made")}
    if unknown := [name for name in settings if name not in known]:
        raise TypeError(f"{caller}: the setting {unknown[0]!r} is unknown. Choose from {', '.join(sorted(known))}.")
    if isinstance(data, Data):
        return Material(list(held), **{**data_rows(data, rows), **settings})
    test = rows_in_data(caller, data)
    if train is None:
        half = len(test[1]) // 2
        first, test = (test[0][:half], test[1][:half]), (test[0][half:], test[1][half:])
    else:
        first = rows_in_data(caller, train)
    return Material(list(held), first, settings.pop("validation", first), test, **settings)


def rows_in_data(caller: str, data: Any, labelled: bool = True) -> Any:
    """All rows of data as one tensor of inputs, and their labels, None where there are none."""
    examples = Examples(caller, data, labelled=labelled)
    inputs = [map_arrays(x) for x, _ in examples.batches]
    if not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(f"{caller}: inputs must be one tensor of rows, but they are a {type(inputs[0]).__name__}.")
    return torch.cat(inputs), examples.targets


def data_rows(data: Data, rows: int) -> dict[str, Any]:
    """Rows of each part of the data for a `Material`, drawn at random, normalised; and test images as they are."""
    if data.task != "classification":
        raise ValueError(f"landscape: compares class labels, but {data.name} is a {data.task}. Give data with classes.")
    train, test = draw_rows(data.train, rows), draw_rows(data.test, max(rows // 2, 2))
    validation = draw_rows(data.validation, max(rows // 2, 2)) if len(data.validation) else train
    parts: dict[str, Any] = {"train": train, "validation": validation, "test": test}
    found: dict[str, Any] = {name: (data.normalise(x), y) for name, (x, y) in parts.items()}
    if data.kind == "images":
        found |= {"images": test, "normalise": data.normalise}
    if data.outside:
        first = next(iter(data.outside.values()))
        found["outside"] = data.normalise(draw_rows(first, max(rows // 2, 2))[0])
    return found


def draw_rows(split: Split, rows: int) -> Rows:
    """Some rows of a split, the same each time."""
    chosen: Tensor = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:rows]
    return split[chosen]


def first_rows(part: Any, rows: int = 500) -> Rows:
    """The first rows of a part, for what is measured on many networks."""
    x, y = (part[0][:rows], part[1][:rows]) if isinstance(part, tuple) else part[:rows]
    return x, y


def run_names(count: int) -> list[str]:
    """What runs are called."""
    return [f"run {number}" for number in range(1, count + 1)]


def spread(values: np.ndarray) -> str:
    """The mean, and between which ends the values lie: "0.020 [0.010, 0.030]"."""
    ends = f" [{values.min():.3f}, {values.max():.3f}]" if len(values) > 1 else ""
    return f"{values.mean():.3f}{ends}"
