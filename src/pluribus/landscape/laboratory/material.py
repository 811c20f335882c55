"""What the laboratory works on: recorded runs, or networks that somebody trained, and the data to judge on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from ...uncertainty.classification import Classification
from ..checkpoints import Trajectory

Rows = tuple[Tensor, Tensor]  # inputs and labels

Made = TypeVar("Made")

MOST = 10  # checkpoints of a run in a matrix


@dataclass(frozen=True)
class RunTraining:
    """How the runs were trained, so that more networks can be.

    Args:
        build: a network with new weights
    """

    build: Callable[[], nn.Module]
    epochs: int
    lr: float
    batch_size: int
    optimizer: str = "adam"
    schedule: str = "quarters"

    def options(self, epochs: int) -> dict[str, Any]:
        """The arguments of `trajectories` for this many epochs, without the learning rate."""
        how = {name: getattr(self, name) for name in ("batch_size", "optimizer", "schedule")}
        return {**how, "epochs": epochs, "task": "classification"}


@dataclass(frozen=True)
class Material:
    """Runs and data, and how much to spend on them.

    Args:
        runs: trajectories, or networks without a past
        train, validation, test: normalised inputs and labels; nothing is chosen by the last
        images: test inputs from 0 to 1, for corruptions; None where there are none
        normalise: what makes inputs of images
        outside: normalised inputs of other data; None where there are none
        training: how to train further networks; None where that is not known
        grid: points of a surface along each side
        samples: networks of each subspace
        steps: of each point of a tunnel
        retrained: networks that are trained anew for each comparison of ways of training; 0: none
        corruptions: names, and `severities` from 1 to 5
        say: told what is being done
    """

    runs: list[Any]
    train: Rows
    validation: Rows
    test: Rows
    images: Rows | None = None
    normalise: Callable[[Tensor], Tensor] | None = None
    outside: Tensor | None = None
    training: RunTraining | None = None
    grid: int = 21
    samples: int = 5
    steps: int = 80
    retrained: int = 3
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

    @property
    def names(self) -> list[str]:
        """What each run is called."""
        return [f"run {number}" for number in range(1, len(self.runs) + 1)]

    @property
    def styles(self) -> dict[str, int]:
        """The style of each run in every chart; 1 is that of shades."""
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

    def steps_of(self, run: Any) -> list[str]:
        """What each checkpoint is called."""
        return [f"step {step:,}" for step in run.steps] if isinstance(run, Trajectory) else ["solution"]

    def matrix(self, between: Callable[[Any, Any], np.ndarray]) -> np.ndarray:
        """What `between` gives for all networks of two runs, of all pairs of runs in one matrix."""
        return np.block([[between(a, b) for b in self.runs] for a in self.runs])


def pairs_of(matrix: np.ndarray, lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Of a matrix between all networks: solutions with the later half of their own run, and with each other."""
    ends = np.cumsum(lengths)
    last = ends - 1
    later = [(end, end - length + length // 2) for end, length in zip(ends, lengths, strict=True) if length > 2]
    within = [matrix[end - 1, middle : end - 1].mean() for end, middle in later]
    across = [matrix[i, j] for k, i in enumerate(last) for j in last[k + 1 :]]
    return np.array(within), np.array(across)


def pooled_accuracy(answers: Tensor, target: Tensor) -> float:
    """The accuracy of the mean of probabilities, (networks, rows, classes)."""
    prediction = Classification.from_probabilities(answers)
    return float((prediction.label == target).double().mean())


def spread(values: np.ndarray, percent: bool = False) -> str:
    """The mean, and between which ends the values lie: "0.02 [0.01, 0.03]"."""
    text = (lambda v: f"{100 * v:.1f} %") if percent else (lambda v: f"{v:.3f}")
    ends = f" [{text(values.min())}, {text(values.max())}]" if len(values) > 1 else ""
    return f"{text(values.mean())}{ends}"
