"""Ensembles from one training run with a cyclic rate: snapshots, fast geometric ensembles, cyclic SG-MCMC."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from .._common.trees import rows_of
from ..core.ensemble import Ensemble
from ..methods.building import check_number, check_size, check_whole
from ..surgery.copying import state
from ..surgery.selecting import quote_names
from ..training.batching import loader, mix_seeds, set_epoch
from ..training.criteria import Criterion
from .common.arguments import FUNCTION_OR_NONE, RATES, RULES, check_arguments
from .common.batch_statistics import refresh_, statistics_layers
from .common.examples import answer_of, choose_criterion, labelled_batch
from .common.networks import Buffers, Layout, Networks, ensemble_of, network_of, rest_of


class Cyclic(TypedDict, total=False):
    """How a network is trained in cycles: what `snapshots` and `csgmcmc` both take.

    Args:
        lr: of the mean loss, at the start of a cycle; by default 0.1
        weight_decay: by default 0
        batch_size: by default 128
        criterion: a name or a function of outputs and targets; by default what the task needs
        task: what the outputs are; by default what the model says, or classification
        augment: what is done to every batch (x, y)
        seed: of the order of rows, and of the noise
    """

    lr: float
    weight_decay: float
    batch_size: int
    criterion: str | Criterion | None
    task: str | None
    augment: Callable[[Any, Any], tuple[Any, Any]] | None
    seed: int


def snapshots(
    model: Any,
    train: Any,
    size: int,
    *,
    epochs: int | None = None,
    momentum: float = 0.9,
    **training: Unpack[Cyclic],
) -> Ensemble:
    """An ensemble of the networks at the ends of `size` cycles of one run (Huang et al., 2017).

    In each cycle the rate falls from `lr` to 0 by half a cosine, step by step, and starts again.

    Shapes:
        output of the ensemble: (size, batch, *outputs)

    Args:
        model: where training starts; it is not changed
        train: (x, y), a data set or a loader
        epochs: in all; by default 10 for each cycle
        momentum: of SGD
        training: lr, 0.1, and weight_decay, batch_size, criterion, task, augment and seed: see `Cyclic`

    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> snapshots(nn.Linear(4, 3), (x, y), 2, epochs=2)(x).shape
    torch.Size([2, 12, 3])
    """
    size = check_size("snapshots", size)
    return _run(
        _Plan("snapshots", size, size, 10 * size if epochs is None else epochs, momentum, training=training),
        model,
        train,
    )


@check_arguments(lr=RATES, augment=FUNCTION_OR_NONE)
def fast_geometric(
    model: Any,
    train: Any,
    size: int,
    *,
    cycle: int = 2,
    lr: float | tuple[float, float] = (5e-2, 5e-4),
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    criterion: str | Criterion | None = None,
    task: str | None = None,
    augment: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    seed: int = 0,
) -> Ensemble:
    """An ensemble of networks that one run passes on its way from a trained one (Garipov et al., 2018).

    In each cycle the rate falls along a line from the larger one to the smaller and rises again, step by step; a
    network is taken in the middle, where it is smallest.

    Shapes:
        output of the ensemble: (size, batch, *outputs)

    Args:
        model: where the run starts: a network that is trained; it is not changed
        train: (x, y), a data set or a loader
        cycle: how many epochs one has, an even number
        lr: the largest rate and the smallest; one number is the largest, and the smallest a hundredth of it
        momentum: of SGD
        weight_decay: of SGD
        batch_size: rows in a step
        criterion: a name or a function of outputs and targets that gives a mean over rows; by default what the task
            needs
        task: "classification", "binary", "regression" or "gaussian"; by default what the networks, labels and outputs
            tell
        augment: augment(x, y) -> (x, y), on training batches
        seed: of the order of rows

    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> fast_geometric(nn.Linear(4, 3), (x, y), 2, batch_size=4)(x).shape
    torch.Size([2, 12, 3])
    """
    size = check_size("fast_geometric", size)
    if check_whole("fast_geometric", "cycle", cycle) % 2:
        raise ValueError(
            f"fast_geometric: networks are taken in the middle of a cycle, so cycle must be an even number of "
            f"epochs, but it is {cycle}."
        )
    high, low = lr if isinstance(lr, (tuple, list)) and len(lr) == 2 else (lr, 0.01 * lr)
    check_number("fast_geometric", "the smallest rate", low, f"from 0 to the largest, {high}", lambda v: 0 <= v <= high)
    training = Cyclic(
        lr=high, weight_decay=weight_decay, batch_size=batch_size, criterion=criterion, task=task, augment=augment,
        seed=seed,
    )  # fmt: skip
    plan = _Triangles("fast_geometric", size, size, cycle * size, momentum, training=training, least=low)
    return _run(plan, model, train)


def csgmcmc(
    model: Any,
    train: Any,
    size: int,
    cycles: int | None = None,
    temperature: float = 1.0,
    *,
    epochs: int | None = None,
    momentum: float = 0.0,
    exploration: float = 0.8,
    **training: Unpack[Cyclic],
) -> Ensemble:
    """An ensemble of samples of the posterior by cyclic stochastic gradient MCMC (Zhang et al., 2020).

    The rate falls by half a cosine in each cycle, step by step. In the first part of a cycle the network explores;
    then every step adds noise of the variance 2 lr T / N, N being the rows of `train`, and samples are taken at
    even distances. Dropout is off: the likelihood is that of the network itself.

    Shapes:
        output of the ensemble: (size, batch, *outputs)

    Args:
        model: where training starts; it is not changed
        size: samples in all, spread over the cycles as evenly as they can be
        cycles: by default one for every three samples
        temperature: 1: the posterior; 0: no noise. The authors' code has 1 / N
        epochs: in all; by default 10 for each cycle
        momentum: of SGHMC; 0 is Langevin dynamics
        exploration: the share of a cycle without noise and samples
        training: as for `snapshots`. For the posterior to be one, the criterion is minus the mean log-likelihood of
            a row, and weight_decay the prior: 1 / (N times its variance)

    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> csgmcmc(nn.Linear(4, 3), (x, y), 2, cycles=1, epochs=2, batch_size=4)(x).shape
    torch.Size([2, 12, 3])
    """
    size = check_size("csgmcmc", size)
    cycles = check_whole("csgmcmc", "cycles", -(-size // 3) if cycles is None else cycles)
    if cycles > size:
        raise ValueError(f"csgmcmc: each cycle gives at least one sample, but {cycles} cycles were asked for {size}.")
    check_number("csgmcmc", "temperature", temperature, "0 or more", lambda value: 0 <= value < math.inf)
    check_number("csgmcmc", "exploration", exploration, "from 0 to below 1", lambda value: 0 <= value < 1)
    epochs = 10 * cycles if epochs is None else epochs
    plan = _Plan("csgmcmc", size, cycles, epochs, momentum, temperature, exploration, training)
    return _run(plan, model, train)


@dataclass(frozen=True)
class _Plan:
    caller: str
    size: int
    cycles: int
    epochs: int
    momentum: float
    temperature: float | None = None  # None: no sampling, the end of each cycle
    exploration: float = 1.0
    training: Cyclic = field(default_factory=lambda: Cyclic())

    def __post_init__(self) -> None:
        known = Cyclic.__annotations__
        if unknown := [name for name in self.training if name not in known]:
            raise TypeError(f"{self.caller}: the argument {unknown[0]!r} is unknown. Choose from {quote_names(known)}.")
        for name, rule in RULES.items():
            if name in self.training:
                rule.check(self.caller, name, self.training[name])  # type: ignore[literal-required]
        FUNCTION_OR_NONE.check(self.caller, "augment", self.training.get("augment"))
        check_whole(self.caller, "epochs", self.epochs)
        check_number(self.caller, "lr", self.lr, "positive", lambda value: 0 < value < math.inf)
        check_number(self.caller, "momentum", self.momentum, "from 0 to below 1", lambda value: 0 <= value < 1)

    @property
    def lr(self) -> float:
        """The rate at the start of each cycle."""
        return self.training.get("lr", 0.1)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step, given how many there are in all."""
        return self.lr * 0.5 * (1 + math.cos(math.pi * self.place(step, steps)))

    def place(self, step: int, steps: int) -> float:
        """How much of its cycle is over before a step."""
        return (step * self.cycles / steps) % 1.0

    def samples(self, steps: int) -> list[int]:
        """After which steps, counted from 1, a sample is taken."""
        found = []
        shares = [len(part) for part in np.array_split(np.arange(self.size), self.cycles)]
        for cycle, share in enumerate(shares):
            start, end = steps * cycle / self.cycles, steps * (cycle + 1) / self.cycles
            first = start + min(self.exploration, 1.0) * (end - start) if self.temperature is not None else end
            found += [round(first + (end - first) * (i + 1) / share) for i in range(share)]
        return found


@dataclass(frozen=True)
class _Triangles(_Plan):
    """The rate falls to its least and rises again in each cycle, and a sample is taken where it is least."""

    least: float = 0.0

    def rate(self, step: int, steps: int) -> float:
        t = self.place(step, steps) + self.cycles / steps  # when the step is done
        return self.least + abs(1 - 2 * t) * (self.lr - self.least)

    def samples(self, steps: int) -> list[int]:
        return [round(steps * (cycle + 0.5) / self.cycles) for cycle in range(self.cycles)]


def _run(plan: _Plan, model: Any, train: Any) -> Ensemble:
    known, seed = network_of(plan.caller, model), plan.training.get("seed", 0)
    kind = plan.training.get("task") or known.task or "classification"
    loss = choose_criterion(plan.caller, plan.training.get("criterion"), kind)
    batches = loader(train, plan.training.get("batch_size", 128), shuffle=True, seed=seed)
    if not hasattr(batches, "__len__"):
        raise ValueError(
            f"{plan.caller}: the learning rate falls step by step, so the length of train must be known. Give (x, y)."
        )
    if not len(batches):
        raise ValueError(f"{plan.caller}: there must be at least one batch of data, but there is none.")
    steps, rows = len(batches) * plan.epochs, _rows(batches)
    wanted = plan.samples(steps)
    if len(set(wanted)) < plan.size:
        raise ValueError(
            f"{plan.caller}: {plan.size} samples need as many different steps, but of {steps} steps only "
            f"{len(set(wanted))} qualify. Train for more epochs, or take fewer samples."
        )
    module = known[0]
    layout, found, rests = known.layout, [], []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_seeds(seed, 1))
        for step in _steps(plan, module, layout, batches, loss, steps, rows):
            if step in set(wanted):
                tensors = dict(state(module))
                found.append(layout.vector(tensors))
                rests.append(rest_of(layout, tensors))
            if len(found) == plan.size:
                break  # what would follow is in no sample
    return _collect(plan, known, kind, found, rests, train)


def _steps(
    plan: _Plan, module: nn.Module, layout: Layout, batches: Any, loss: Criterion, steps: int, rows: int
) -> Iterator[int]:
    """Train, and give the number of each step when it is done."""
    augment = plan.training.get("augment")
    own = dict(state(module))
    moving = [own[name].requires_grad_() for name, moves in zip(layout.names, layout.moves, strict=True) if moves]
    speed = [torch.zeros_like(p) for p in moving]
    module.train(plan.temperature is None)
    _wake_statistics(module)
    step = 0
    for epoch in range(plan.epochs):
        set_epoch(batches, epoch)
        for item in batches:
            x, y = labelled_batch(plan.caller, item)
            if augment is not None:
                x, y = augment(x, y)
            with torch.enable_grad():
                value = loss(answer_of(module, x), y.to(moving[0].device))
                gradients = torch.autograd.grad(value, moving, allow_unused=True)
            noisy = plan.temperature is not None and plan.place(step, steps) >= plan.exploration
            _move_(plan, moving, speed, gradients, plan.rate(step, steps), rows, noisy)
            step += 1
            if not bool(value.isfinite()):
                raise ValueError(f"{plan.caller}: the loss is no longer finite after step {step}. Use a smaller lr.")
            yield step


@torch.no_grad()
def _move_(
    plan: _Plan, moving: list[Any], speed: list[Tensor], gradients: Any, lr: float, rows: int, noisy: bool
) -> None:
    deviation = math.sqrt(2 * lr * (1 - plan.momentum) * (plan.temperature or 0.0) / rows) if noisy else 0.0
    for parameter, velocity, gradient in zip(moving, speed, gradients, strict=True):
        if gradient is None:
            continue
        velocity.mul_(plan.momentum).sub_(gradient + plan.training.get("weight_decay", 0.0) * parameter, alpha=lr)
        if deviation:
            velocity.add_(torch.randn_like(velocity), alpha=deviation)
        parameter.add_(velocity)


def _wake_statistics(module: nn.Module) -> None:
    for layer in statistics_layers(module):
        layer.training = True


def _collect(
    plan: _Plan, known: Networks, task: str, found: list[Tensor], rests: list[Buffers], train: Any
) -> Ensemble:
    buffers = {name: torch.stack([rest[name] for rest in rests]) for name in rests[0]}
    made = ensemble_of(Networks(known.model, torch.stack(found), buffers, task, known.class_dim))
    made.notes.append(f"{plan.caller}: {plan.size} networks of {plan.cycles} cycles in {plan.epochs} epochs")
    return refresh_(made, train)


def _rows(batches: Any) -> int:
    """How many rows an epoch has."""
    data = getattr(batches, "dataset", None)
    if data is not None:
        return len(data)
    return sum(rows_of(item[0] if isinstance(item, (tuple, list)) else item) for item in batches)
