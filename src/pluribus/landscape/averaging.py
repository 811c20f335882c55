"""Averages of weights along a trajectory: one network in place of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..core.ensemble import Ensemble
from ..methods.building import check_number
from .checkpoints import Trajectory
from .common.batch_statistics import refresh_, warn_without_data
from .common.networks import Networks, ensemble_of, networks_of


def weight_average(run: Any, last: int | None = None, *, data: Any = None) -> Ensemble:
    """An ensemble of one: the network with the mean of the last checkpoints' weights (Izmailov et al., 2018).

    Shapes:
        output of the ensemble: (1, batch, *outputs)

    Args:
        run: a trajectory, or checkpoints in their order
        last: how many checkpoints; by default the last quarter, and five at least where there are so many
        data: training data on which statistics of batch normalisation are estimated anew

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(6)]  # of one run, in their order
    >>> average = weight_average(checkpoints, last=2)
    >>> torch.allclose(average.member(0).weight, (checkpoints[4].weight + checkpoints[5].weight) / 2)
    True
    """
    held = as_trajectory("weight_average", run).last("weight_average", last)
    return _average("weight_average", held, np.full(len(held), 1 / len(held)), data)


def moving_average(run: Any, decay: float = 0.9, last: int | None = None, *, data: Any = None) -> Ensemble:
    """An ensemble of one: the network with the exponential moving average of the checkpoints' weights.

    It begins with the first checkpoint; each further one has the weight 1 - decay when it comes.

    Shapes:
        output of the ensemble: (1, batch, *outputs)

    Args:
        run: a trajectory, or checkpoints in their order
        last: how many checkpoints; by default all
        data: training data on which statistics of batch normalisation are estimated anew

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(6)]  # of one run, in their order
    >>> moving_average(checkpoints, decay=0.9)(torch.zeros(2, 4)).shape
    torch.Size([1, 2, 3])
    """
    check_number("moving_average", "decay", decay, "from 0 to below 1", lambda value: 0 <= value < 1)
    held: Networks = as_trajectory("moving_average", run)
    if last is not None:
        held = as_trajectory("moving_average", run).last("moving_average", last)
    powers = decay ** np.arange(len(held) - 1, -1, -1.0)
    weights = np.where(np.arange(len(held)) == 0, 1.0, 1 - decay) * powers
    return _average("moving_average", held, weights, data)


def as_trajectory(caller: str, run: Any) -> Trajectory:
    """The trajectory itself, or the one of the networks that are held, in their order."""
    if isinstance(run, Trajectory):
        return run
    held = networks_of(caller, run)
    steps, task = range(len(held)), held.task or "classification"
    return Trajectory(held.model, held.weights, held.buffers, steps, task=task, class_dim=held.class_dim)


def _average(caller: str, held: Networks, weights: np.ndarray, data: Any) -> Ensemble:
    buffers = {name: value[None] for name, value in held.mix_buffers(weights).items()}
    mean = held.mix(weights)
    if not bool(torch.isfinite(mean).all()):
        raise ValueError(
            f"{caller}: weights must be finite, but a checkpoint has some that are not. Leave it out with last=."
        )
    made = ensemble_of(Networks(held.model, mean[None], buffers, held.task, held.class_dim))
    made.notes.append(f"{caller} of {len(held)} checkpoints")
    if data is None:
        if len(held) > 1:
            warn_without_data(caller, held.model, stacklevel=4)
        return made
    return refresh_(made, data)
