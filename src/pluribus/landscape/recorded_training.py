"""Training that is recorded: one run, or several from different initialisations or shuffles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..core.ensemble import Ensemble
from ..methods import deep, single
from ..methods.building import INITS, check_choice, check_size
from ..training.batching import loader, mix_seeds
from ..training.fitting import fit, resolve_recipe
from .checkpoints import Trajectory
from .common.examples import naming_data
from .common.networks import network_of

Source = nn.Module | Callable[[], nn.Module]
RECORDED = ("keep", "start", "dtype")  # options of the recorder; the others are for training


def trajectory(
    model: nn.Module,
    train: Any,
    probe: Any = None,
    *,
    every: str | int = "epoch",
    task: str | None = None,
    **options: Any,
) -> Trajectory:
    """The trajectory of a copy of the model, trained from the weights that it has; the model is not changed.

    Its solution is the network of the last step, unless validation= and select= say otherwise.

    Shapes:
        weights: (checkpoints, parameters); outputs: (checkpoints, rows, classes)

    Args:
        train: (x, y), a data set or a loader of (x, y)
        probe: the same, or x alone: where predictions are recorded
        every: "epoch", or a number of steps
        task: as `Ensemble.task`; by default what the networks, labels and outputs tell
        options: for the `Recorder`: keep, only the last so many checkpoints; start, record the network before the
            first step, too; dtype, how weights are kept. As for `pb.fit`: epochs, recipe, optimizer, schedule, lr,
            batch_size, augment, validation, seed, ...

    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> run = trajectory(nn.Linear(4, 3), (x, y), probe=(x, y), epochs=3)
    >>> run.weights.shape, run.outputs.shape, run.steps
    (torch.Size([3, 15]), torch.Size([3, 64, 3]), [1, 2, 3])
    """
    if isinstance(model, Ensemble) and model.size != 1:
        raise ValueError(
            f"trajectory: trains one network, but the ensemble has {model.size} members. Use ls.trajectories."
        )
    return _train(_begin(model, task), train, probe, every, **options)[0]


def trajectories(
    model: Source,
    train: Any,
    probe: Any = None,
    *,
    runs: int = 3,
    init: str = "different",
    batches: str = "different",
    every: str | int = "epoch",
    task: str | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Trajectory]:
    """Several runs of one architecture, each a trajectory; arguments as for `trajectory`.

    Args:
        model: a model, or a function without arguments that builds one
        train: (x, y), a data set or a loader
        probe: x, or (x, y): where predictions are recorded
        init: "different": each run starts from weights of its own, in law like the model's; "same": from the model's
        batches: "different": each run has an order of the rows of its own; "same": all have one
        every: "epoch", or a number of steps between checkpoints
        task: as `Ensemble.task`; by default what the networks, labels and outputs tell
        seed: of starts and orders of rows; each run has one of its own that follows from it
        options: as for `trajectory`

    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> runs = trajectories(nn.Linear(4, 3), (x, y), probe=(x, y), runs=2, epochs=1)
    >>> len(runs), runs[0].outputs.shape
    (2, torch.Size([1, 12, 3]))
    """
    runs = check_size("trajectories", runs)
    for name, value in (("init", init), ("batches", batches)):
        check_choice("trajectories", name, value, INITS)
    whole = _starts(model, runs, init, task, seed)
    seeds = [mix_seeds(seed, run) if batches == "different" else seed for run in range(runs)]
    if batches == "different" and isinstance(train, list) and getattr(loader(train, 1), "batch_sampler", None) is None:
        raise ValueError(
            'trajectories: batches="different" needs rows that can be shuffled, but train is a list of batches. '
            'Give (x, y), a data set or a loader that shuffles, or batches="same".'
        )
    starts = [_begin(whole.member(i), whole.task) for i in range(runs)]
    return [_train(one, train, probe, every, seed=own, **options)[0] for one, own in zip(starts, seeds, strict=True)]


def _begin(model: Any, task: str | None) -> Ensemble:
    """A copy of the network as an ensemble of one."""
    known = network_of("trajectory", model)
    start = single(known[0].train())
    start.task, start.class_dim = task or known.task or "classification", known.class_dim
    return start


def _starts(model: Any, runs: int, init: str, task: str | None, seed: int) -> Ensemble:
    known = model if isinstance(model, Ensemble) else None
    if known is not None:
        model = known.member(0)
    generator = torch.Generator().manual_seed(mix_seeds(seed, 0x1A17))
    whole = deep(model, runs, init=init, generator=generator)  # type: ignore[arg-type]
    whole.task = task or (known.task if known is not None else "classification")
    whole.class_dim = None if known is None else known.class_dim
    return whole.train()


def _train(ensemble: Ensemble, train: Any, probe: Any, every: str | int, **options: Any) -> list[Trajectory]:
    from .recorder import Recorder

    recorder = Recorder(probe, every, **{key: options.pop(key) for key in RECORDED if key in options})
    if options.get("validation") is None or "select" not in options:
        options["select"] = None  # the solution is the end of the trajectory
    callbacks = [*options.pop("callbacks", ()), recorder]
    recipe = options.get("recipe")
    if recipe is None or isinstance(recipe, str):
        options["recipe"] = resolve_recipe(recipe).of("single")  # these are single networks, however many
    with naming_data("trajectory", ensemble, train):
        history = fit(ensemble, train, callbacks=callbacks, **options)
    if not recorder.records:
        raise ValueError(
            f"trajectory: training had fewer than every={every} steps, so nothing was recorded. Use a smaller every=."
        )
    for i, record in enumerate(recorder.records):
        record.model = record.model or ensemble.member(i)  # training was over before it was taken up again
        record.task = record.task or ensemble.task
    found = recorder.trajectories
    for i, run in enumerate(found):
        run.model = ensemble.member(i).eval()
        run.history = history
    return found
