"""Ensembles from one training run with a cyclic rate: snapshots, fast geometric ensembles, cyclic SG-MCMC."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from .._common.trees import rows_of, split_item
from ..core.ensemble import Ensemble
from ..methods.building import check_number, check_size, check_whole
from ..surgery.copying import state
from ..training.batching import loader, mix_seeds
from ..training.criteria import Criterion
from .common.batch_statistics import refresh_, statistics_layers
from .common.examples import answer_of, choose_criterion, endless
from .common.networks import Buffers, Networks, ensemble_of, network_of, rest_of


class Cyclic(TypedDict, total=False):
    """How a network is trained in cycles: what `snapshots` and `csgmcmc` both take."""

    weight_decay: float  # by default 0
    batch_size: int  # by default 128
    criterion: str | Criterion | None  # a name or a function of outputs and targets; by default what the task needs
    task: str | None  # what the outputs are; by default what the model says, or classification
    augment: Callable[[Any, Any], tuple[Any, Any]] | None  # what is done to every batch (x, y)
    seed: int  # of the order of rows, and of the noise


def snapshots(
    model: Any,
    train: Any,
    size: int,
    *,
    epochs: int | None = None,
    lr: float = 0.1,
    momentum: float = 0.9,
    **training: Unpack[Cyclic],
) -> Ensemble:
    """An ensemble of the networks at the ends of `size` cycles of one run (Huang et al., 2017).

    In each cycle the rate falls from `lr` to 0 by half a cosine, step by step, and starts again.

    Args:
        model: where training starts; it is not changed
        train: (x, y), a data set or a loader
        epochs: in all; by default 10 for each cycle
        lr: of the mean loss, at the start of a cycle
        momentum: of SGD
        training: weight_decay, batch_size, criterion, task, augment and seed: see `Cyclic`

    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> snapshots(nn.Linear(4, 3), (x, y), 2, epochs=2)(x).shape
    torch.Size([2, 12, 3])
    """
    size = check_size("snapshots", size)
    plan = _Plan("snapshots", size, size, 10 * size if epochs is None else epochs, lr, momentum)
    return _run(plan, model, train, **training)


def fast_geometric(
    model: Any,
    train: Any,
    size: int,
    *,
    cycle: int = 2,
    lr: float | tuple[float, float] = (5e-2, 5e-4),
    momentum: float = 0.9,
    **training: Unpack[Cyclic],
) -> Ensemble:
    """An ensemble of networks that one run passes on its way from a trained one (Garipov et al., 2018).

    In each cycle the rate falls along a line from the larger one to the smaller and rises again, step by step; a
    network is taken in the middle, where it is smallest.

    Args:
        model: where the run starts: a network that is trained; it is not changed
        train: (x, y), a data set or a loader
        size: how many networks, one of each cycle
        cycle: how many epochs one has, an even number
        lr: the largest rate and the smallest; one number is the largest, and the smallest a hundredth of it
        momentum: of SGD
        training: as for `snapshots`

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
    plan = _Plan("fast_geometric", size, size, cycle * size, high, momentum, least=low)
    return _run(plan, model, train, **training)


def csgmcmc(
    model: Any,
    train: Any,
    size: int,
    cycles: int | None = None,
    temperature: float = 1.0,
    *,
    epochs: int | None = None,
    lr: float = 0.1,
    momentum: float = 0.0,
    exploration: float = 0.8,
    **training: Unpack[Cyclic],
) -> Ensemble:
    """An ensemble of samples of the posterior by cyclic stochastic gradient MCMC (Zhang et al., 2020).

    The rate falls by half a cosine in each cycle, step by step. In the first part of a cycle the network explores;
    then every step adds noise of the variance 2 lr T / N, N being the rows of `train`, and samples are taken at
    even distances. Dropout is off: the likelihood is that of the network itself.

    Args:
        model: where training starts; it is not changed
        size: samples in all, spread over the cycles as evenly as they can be
        cycles: by default one for every three samples
        temperature: 1: the posterior; 0: no noise. The authors' code has 1 / N
        epochs: in all; by default 10 for each cycle
        lr: of the mean loss, at the start of a cycle
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
    plan = _Plan("csgmcmc", size, cycles, epochs, lr, momentum, temperature, exploration)
    return _run(plan, model, train, **training)


@dataclass(frozen=True)
class _Plan:
    caller: str
    size: int
    cycles: int
    epochs: int
    lr: float
    momentum: float
    temperature: float | None = None  # None: no sampling, the end of each cycle
    exploration: float = 1.0
    least: float | None = None  # the rate in the middle of a cycle that falls and rises again; None: half a cosine

    def __post_init__(self) -> None:
        check_whole(self.caller, "epochs", self.epochs)
        check_number(self.caller, "lr", self.lr, "positive", lambda value: 0 < value < math.inf)
        check_number(self.caller, "momentum", self.momentum, "from 0 to below 1", lambda value: 0 <= value < 1)

    def place(self, step: int, steps: int) -> float:
        """How much of its cycle is over before a step."""
        return (step * self.cycles / steps) % 1.0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step, given how many there are in all."""
        place = self.place(step, steps)
        if self.least is None:
            return self.lr * 0.5 * (1 + math.cos(math.pi * place))
        done = place + self.cycles / steps  # when the step is done
        return self.least + abs(1 - 2 * done) * (self.lr - self.least)

    def samples(self, steps: int) -> list[int]:
        """After which steps, counted from 1, a sample is taken."""
        if self.least is not None:
            return [round(steps * (cycle + 0.5) / self.cycles) for cycle in range(self.cycles)]
        found = []
        shares = [len(part) for part in np.array_split(np.arange(self.size), self.cycles)]
        for cycle, share in enumerate(shares):
            start, end = steps * cycle / self.cycles, steps * (cycle + 1) / self.cycles
            first = start + self.exploration * (end - start) if self.temperature is not None else end
            found += [round(first + (end - first) * (i + 1) / share) for i in range(share)]
        return found


def _run(
    plan: _Plan,
    model: Any,
    train: Any,
    *,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    criterion: str | Criterion | None = None,
    task: str | None = None,
    augment: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    seed: int = 0,
) -> Ensemble:
    """Train in cycles by SGD, with the noise of the plan, and collect its samples."""
    known = network_of(plan.caller, model)
    kind = task or known.task or "classification"
    loss = choose_criterion(plan.caller, criterion, kind)
    batches = loader(train, batch_size, shuffle=True, seed=seed)
    if not hasattr(batches, "__len__") or not len(batches):
        raise ValueError(
            f"{plan.caller}: the learning rate falls step by step, so train must have a known number of batches, at "
            "least one. Give (x, y)."
        )
    steps, data = len(batches) * plan.epochs, getattr(batches, "dataset", None)
    rows = sum(rows_of(split_item(item)[0]) for item in batches) if data is None else len(data)
    wanted = set(plan.samples(steps))
    if len(wanted) < plan.size:
        raise ValueError(
            f"{plan.caller}: {plan.size} samples need as many different steps, but of {steps} steps only "
            f"{len(wanted)} qualify. Train for more epochs, or take fewer samples."
        )
    module, layout = known[0], known.layout
    own = dict(state(module))
    moving = [own[name].requires_grad_() for name, moves in zip(layout.names, layout.moves, strict=True) if moves]
    speed = [torch.zeros_like(p) for p in moving]
    module.train(plan.temperature is None)
    for layer in statistics_layers(module):
        layer.training = True
    found, rests, step = list[Tensor](), list[Buffers](), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_seeds(seed, 1))
        for x, y in itertools.islice(endless(plan.caller, batches), max(wanted)):
            x, y = (x, y) if augment is None else augment(x, y)
            with torch.enable_grad():
                value = loss(answer_of(module, x), y.to(moving[0].device))
                gradients = torch.autograd.grad(value, moving, allow_unused=True)
            _move_(plan, moving, speed, gradients, step, steps, rows, weight_decay)
            step += 1
            if not bool(value.isfinite()):
                raise ValueError(f"{plan.caller}: the loss is not finite after step {step}. Use a smaller lr.")
            if step in wanted:
                found.append(layout.vector(own))
                rests.append(rest_of(layout, own))
    buffers = {name: torch.stack([rest[name] for rest in rests]) for name in rests[0]}
    made = ensemble_of(Networks(known.model, torch.stack(found), buffers, kind, known.class_dim))
    made.notes.append(f"{plan.caller}: {plan.size} networks of {plan.cycles} cycles in {plan.epochs} epochs")
    return refresh_(made, train)


@torch.no_grad()
def _move_(
    plan: _Plan,
    moving: list[Any],
    speed: list[Tensor],
    gradients: Any,
    step: int,
    steps: int,
    rows: int,
    weight_decay: float,
) -> None:
    """A step of SGD with momentum, and the noise of Langevin dynamics (or SGHMC) in the last part of a cycle."""
    lr, noisy = plan.rate(step, steps), plan.place(step, steps) >= plan.exploration
    deviation = math.sqrt(2 * lr * (1 - plan.momentum) * (plan.temperature or 0.0) / rows) if noisy else 0.0
    for parameter, velocity, gradient in zip(moving, speed, gradients, strict=True):
        if gradient is None:
            continue
        velocity.mul_(plan.momentum).sub_(gradient + weight_decay * parameter, alpha=lr)
        if deviation:
            velocity.add_(torch.randn_like(velocity), alpha=deviation)
        parameter.add_(velocity)
