"""Subspaces around one solution or along one trajectory, as ensembles (Fort et al., section 4.2), and averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.ensemble import Ensemble
from ..methods.building import check_number, check_size, check_whole
from ..methods.method_info import takes
from ..surgery.selecting import quote_names
from ..training.batching import mix_seeds
from .checkpoints import Trajectory
from .common.batch_statistics import refresh_, warn_without_data
from .common.networks import Networks, ensemble_of, gram, network_of, networks_of
from .common.points import make_judge

Sampler = Callable[..., Ensemble]


def random_subspace(
    run_or_model: Any,
    size: int,
    distance: float | tuple[float, float] | None = None,
    accept: tuple[Any, float] | None = None,
    *,
    tries: int | None = None,
    data: Any = None,
    seed: int = 0,
) -> Ensemble:
    """An ensemble of networks at a distance from a solution, each in a random direction of its own.

    Args:
        run_or_model: a trajectory, which stands for its solution, or a network
        size: how many networks
        distance: between the weight vectors; or (least, largest), drawn uniformly between the two; by default a
            tenth of the length of the weight vector
        accept: (validation data, least accuracy): less accurate samples are rejected; `explain()` says how many.
            Never give test data: metrics on data that samples were chosen by are not metrics on unseen data
        tries: the largest number of samples to draw; by default 20 for each member
        data: training data on which the statistics of batch normalisation are estimated again
        seed: of all random numbers: the same seed gives the same result

    >>> random_subspace(nn.Linear(4, 3), 5, distance=0.1)(torch.zeros(2, 4)).shape
    torch.Size([5, 2, 3])
    """
    size, base = check_size("random_subspace", size), network_of("random_subspace", run_or_model)
    row = base.weights[0].to(base.layout.dtype)
    low, high = _range("random_subspace", 0.1 * row.norm().item() if distance is None else distance, math.inf)
    tries = check_whole("random_subspace", "tries", 20 * size if tries is None else tries)
    generator = torch.Generator().manual_seed(seed)
    mask = base.layout.mask()

    def draw() -> Tensor:
        direction = torch.randn(len(row), generator=generator) * mask
        length = low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()
        return row + (direction * (length / direction.norm().item())).to(row.dtype)

    if accept is None:
        return _gather("random_subspace", base, [draw() for _ in range(size)], data)
    return _accept("random_subspace", base, draw, size, accept, tries, data)


def dropout_subspace(
    run_or_model: Any, size: int, keep: float | tuple[float, float] = (0.7, 1.0), *, data: Any = None, seed: int = 0
) -> Ensemble:
    """An ensemble of networks in which weights are dropped, and the others divided by the share that is kept.

    Args:
        keep: the share of weights that is kept; or (least, largest), between which each network's own is drawn
        run_or_model, size, data, seed: as for `random_subspace`

    >>> dropout_subspace(nn.Linear(4, 3), 5, keep=0.9)(torch.zeros(2, 4)).shape
    torch.Size([5, 2, 3])
    """
    size, base = check_size("dropout_subspace", size), network_of("dropout_subspace", run_or_model)
    low, high = _range("dropout_subspace", keep, 1.0, "keep")
    row, mask = base.weights[0].to(base.layout.dtype), base.layout.mask()
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(size):
        share = low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()
        kept = torch.rand(len(row), generator=generator) < share
        samples.append(torch.where(mask, row * kept / share, row))
    return _gather("dropout_subspace", base, samples, data)


def diagonal_gaussian(run: Any, size: int, last: int | None = None, *, data: Any = None, seed: int = 0) -> Ensemble:
    """An ensemble drawn from independent normal distributions with each weight's mean and deviation at the end.

    Args:
        run: a trajectory, or checkpoints in their order
        size: how many networks
        last: how many checkpoints; by default the last quarter, and five at least where there are so many
        data: training data on which statistics of batch normalisation are estimated anew
        seed: of all random numbers: the same seed gives the same result

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(6)]  # of one run, in their order
    >>> diagonal_gaussian(checkpoints, 4)(torch.zeros(2, 4)).shape
    torch.Size([4, 2, 3])
    """
    size, checkpoints = check_size("diagonal_gaussian", size), last_checkpoints("diagonal_gaussian", run, last, least=2)
    rows = checkpoints.weights
    mean = checkpoints.mix(np.full(len(rows), 1 / len(rows)))
    deviation = (_squares(checkpoints, mean) / (len(rows) - 1)).sqrt()
    generator = torch.Generator().manual_seed(seed)
    samples = [mean + deviation * torch.randn(len(mean), generator=generator).to(mean.dtype) for _ in range(size)]
    return _gather("diagonal_gaussian", checkpoints, samples, data)


def low_rank_gaussian(
    run: Any,
    size: int,
    rank: int = 4,
    last: int | None = None,
    *,
    data: Any = None,
    seed: int = 0,
) -> Ensemble:
    """An ensemble drawn from a normal distribution along the principal components of the last checkpoints.

    One draw is for the whole weight vector: layers vary together as they did in training.

    Args:
        rank: how many components
        last: how many checkpoints; by default the last quarter, and at least five, or one more than the rank
        run, size, data, seed: as for `diagonal_gaussian`

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(6)]  # of one run, in their order
    >>> low_rank_gaussian(checkpoints, 4, rank=2)(torch.zeros(2, 4)).shape
    torch.Size([4, 2, 3])
    """
    size, rank = check_size("low_rank_gaussian", size), check_whole("low_rank_gaussian", "rank", rank)
    checkpoints = last_checkpoints("low_rank_gaussian", run, last, least=rank + 1, why=f"rank {rank}")
    count = len(checkpoints)
    centre = np.eye(count) - 1 / count
    vectors = np.linalg.eigh(centre @ gram(checkpoints.weights) @ centre)[1][:, ::-1][:, :rank]
    # A component is X' u / s, with X the centred checkpoints, and s / sqrt(K - 1) the deviation along it.
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(size):
        z = torch.randn(rank, generator=generator, dtype=torch.float64).numpy()
        samples.append(checkpoints.mix(centre @ vectors @ z / math.sqrt(count - 1) + 1 / count))
    return _gather("low_rank_gaussian", checkpoints, samples, data)


def low_rank_random(
    run_or_model: Any,
    size: int,
    rank: int = 4,
    distance: float | tuple[float, float] | None = None,
    accept: tuple[Any, float] | None = None,
    *,
    draws: int | None = None,
    tries: int | None = None,
    data: Any = None,
    seed: int = 0,
) -> Ensemble:
    """An ensemble drawn along the principal components of random samples around a solution (Fort et al., section 5).

    Args:
        rank: how many components
        draws: how many random samples; by default 10, or one more than the rank
        run_or_model, size, distance, accept, tries, data, seed: of the random samples, as for `random_subspace`

    >>> low_rank_random(nn.Linear(4, 3), 5, rank=2)(torch.zeros(2, 4)).shape
    torch.Size([5, 2, 3])
    """
    rank = check_whole("low_rank_random", "rank", rank)
    count = check_whole("low_rank_random", "draws", max(10, rank + 1) if draws is None else draws)
    drawn = random_subspace(run_or_model, count, distance, accept, tries=tries, data=data, seed=seed)
    return low_rank_gaussian(drawn, size, rank, last=count, data=data, seed=mix_seeds(seed, 1))


def swag(
    run: Any,
    size: int,
    rank: int = 20,
    last: int | None = None,
    *,
    data: Any = None,
    seed: int = 0,
) -> Ensemble:
    """An ensemble drawn from the normal distribution of SWAG (Maddox et al., 2019).

    mean + (deviation * z1 + D z2 / sqrt(rank - 1)) / sqrt(2): each weight's own deviation, and along with it the last
    `rank` deviations from the running mean, which are the columns of D. With rank 0 it is mean + deviation * z1.

    Args:
        run: a trajectory, or checkpoints in their order, best of a constant or cyclic rate that is high
        rank: how many columns; 0: each weight by itself (SWAG-Diagonal)
        last: how many checkpoints; by default the last quarter, and at least five, or the rank
        size, data, seed: as for `diagonal_gaussian`

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(6)]  # of one run, in their order
    >>> swag(checkpoints, 4, rank=3)(torch.zeros(2, 4)).shape
    torch.Size([4, 2, 3])
    """
    size = check_size("swag", size)
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 or rank == 1:
        raise ValueError(
            f"swag: rank must be 0 (each weight on its own) or a whole number of at least 2, but it is {rank!r}."
        )
    checkpoints = last_checkpoints("swag", run, last, least=max(rank, 2), why=f"rank {rank}" if rank else "a deviation")
    count = len(checkpoints)
    mean = checkpoints.mix(np.full(count, 1 / count))
    deviation = (_squares(checkpoints, mean) / count).sqrt()
    running = np.tril(np.ones((count, count))) / np.arange(1, count + 1)[:, None]  # each one's mean up to itself
    columns = (np.eye(count) - running)[count - rank :] / math.sqrt(max(rank - 1, 1))
    scale = math.sqrt(0.5 if rank else 1.0)  # as in the paper
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(size):
        own = torch.randn(len(mean), generator=generator).to(mean.dtype)
        z = torch.randn(rank, generator=generator, dtype=torch.float64).numpy()
        along = checkpoints.mix(1 / count + scale * (z @ columns))
        samples.append(along.add_(deviation * own, alpha=scale))
    return _gather("swag", checkpoints, samples, data)


def of_subspaces(runs: Sequence[Any], sampler: str | Sampler, size: int = 1, **options: Any) -> Ensemble:
    """An ensemble of subspaces: `size` samples around each of several independent runs, all in one ensemble.

    Args:
        sampler: one of SAMPLERS by name, or a function of a run and a size, by whatever name, that gives an Ensemble;
            averages, which have one member, take no size
        options: for the sampler

    >>> of_subspaces([nn.Linear(4, 3), nn.Linear(4, 3)], random_subspace, 3)(torch.zeros(2, 4)).shape
    torch.Size([6, 2, 3])
    """
    size, seed = check_size("of_subspaces", size), options.get("seed", 0)
    draw = find_sampler("of_subspaces", sampler)
    parts = [draw_around("of_subspaces", draw, run, size, seed + i, options) for i, run in enumerate(runs)]
    made = ensemble_of(networks_of("of_subspaces", parts), [note for part in parts for note in part.notes])
    made.task, made.class_dim = parts[0].task, parts[0].class_dim
    return made


def solutions(runs: Sequence[Any]) -> Ensemble:
    """The ensemble of the solutions of several runs.

    >>> solutions([nn.Linear(4, 3), nn.Linear(4, 3)])(torch.zeros(2, 4)).shape
    torch.Size([2, 2, 3])
    """
    return ensemble_of(networks_of("solutions", [network_of("solutions", run) for run in runs]))


def weight_average(run: Any, last: int | None = None, *, data: Any = None) -> Ensemble:
    """An ensemble of one: the network with the mean of the last checkpoints' weights (Izmailov et al., 2018).

    Args:
        run, last, data: as for `diagonal_gaussian`

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(6)]  # of one run, in their order
    >>> average = weight_average(checkpoints, last=2)
    >>> torch.allclose(average.member(0).weight, (checkpoints[4].weight + checkpoints[5].weight) / 2)
    True
    """
    held = last_checkpoints("weight_average", run, last)
    return _average("weight_average", held, np.full(len(held), 1 / len(held)), data)


def moving_average(run: Any, decay: float = 0.9, *, data: Any = None) -> Ensemble:
    """An ensemble of one: the network with the exponential moving average of the checkpoints' weights.

    It begins with the first checkpoint; each further one has the weight 1 - decay when it comes.

    Args:
        run, data: as for `diagonal_gaussian`

    >>> checkpoints = [nn.Linear(4, 3) for _ in range(6)]  # of one run, in their order
    >>> moving_average(checkpoints, decay=0.9)(torch.zeros(2, 4)).shape
    torch.Size([1, 2, 3])
    """
    check_number("moving_average", "decay", decay, "from 0 to below 1", lambda value: 0 <= value < 1)
    held = as_trajectory("moving_average", run)
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


SAMPLERS: Mapping[str, Sampler] = {
    "random": random_subspace,
    "dropout": dropout_subspace,
    "diagonal": diagonal_gaussian,
    "low_rank": low_rank_gaussian,
    "low_rank_random": low_rank_random,
    "swag": swag,
    "weight_average": weight_average,
    "moving_average": moving_average,
}


def find_sampler(caller: str, sampler: Any) -> Sampler:
    """The sampler itself, or that of the name."""
    if callable(sampler):
        made: Sampler = sampler
        return made
    if not isinstance(sampler, str) or sampler not in SAMPLERS:
        raise ValueError(
            f"{caller}: the sampler {sampler!r} is unknown. Choose from {quote_names(SAMPLERS)}, or give a function "
            "of a run and a size."
        )
    return SAMPLERS[sampler]


def draw_around(caller: str, sampler: Sampler, run: Any, size: int, seed: int, options: Mapping[str, Any]) -> Ensemble:
    """What the sampler draws around a run; averages, which have one member, take no size."""
    words = {**options, **({"seed": seed} if takes(sampler, "seed") else {})}
    made = sampler(run, **words) if sampler in (weight_average, moving_average) else sampler(run, size, **words)
    if not isinstance(made, Ensemble):
        raise TypeError(f"{caller}: a sampler must give an Ensemble, but this gave a {type(made).__name__}.")
    return made


def _range(caller: str, value: Any, most: float, name: str = "distance") -> tuple[float, float]:
    low, high = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)
    rule = "positive" if most == math.inf else f"above 0 and at most {most:g}"
    for part in (low, high):
        check_number(
            caller, name, part, f"{rule}, or a pair (smallest, largest)", lambda v: 0 < v <= most and v < math.inf
        )
    if low > high:
        raise ValueError(f"{caller}: {name} must be (smallest, largest), but {low:g} is above {high:g}.")
    return float(low), float(high)


def last_checkpoints(caller: str, run: Any, last: int | None, least: int = 1, why: str = "a deviation") -> Networks:
    """The last checkpoints; by default the last quarter, but five, or `least` of them, where there are so many."""
    held = as_trajectory(caller, run)
    there = len(held)
    count = min(there, max(-(-there // 4), 5, least)) if last is None else check_whole(caller, "last", last)
    if count > there:
        raise ValueError(f"{caller}: last must be from 1 to the {there} checkpoints of the trajectory, but is {count}.")
    if count < least:
        where = f"the trajectory has {there}" if there < least else f"last is {last}"
        raise ValueError(
            f"{caller}: {why} needs at least {least} checkpoints, but {where}. Record more often, or ask for less."
        )
    return held.take(range(there - count, there))


def _squares(networks: Networks, mean: Tensor) -> Tensor:
    """The sum of the squares of each weight's deviations from the mean."""
    total = torch.zeros_like(mean)
    for row in networks.weights:
        total.add_((row.to(mean.dtype) - mean).square())
    return total


def _gather(caller: str, base: Networks, samples: Sequence[Tensor], data: Any, notes: Sequence[str] = ()) -> Ensemble:
    """The samples as an ensemble, with the last network's buffers, estimated anew where there is data."""
    buffers = {name: torch.stack([values[-1]] * len(samples)) for name, values in base.buffers.items()}
    made = ensemble_of(Networks(base.model, torch.stack(list(samples)), buffers, base.task, base.class_dim), notes)
    made.notes.insert(0, f"sampled by {caller}")
    if data is None:
        warn_without_data(caller, base.model, stacklevel=4)
        return made
    return refresh_(made, data)


def _accept(
    caller: str, base: Networks, draw: Callable[[], Tensor], size: int, accept: tuple[Any, float], tries: int, data: Any
) -> Ensemble:
    """Samples that are accurate enough on validation data, with a note on how many were not."""
    if not isinstance(accept, (tuple, list)) or len(accept) != 2:
        raise ValueError(f"{caller}: accept must be (data, least accuracy), but it is a {type(accept).__name__}.")
    judge, least = make_judge(caller, base, accept[0], ("accuracy",)), accept[1]
    accepted, seen = list[Tensor](), list[float]()
    while len(accepted) < size:
        if len(seen) == tries:
            raise ValueError(
                f"{caller}: {len(accepted)} of {size} samples reached the accuracy {least:g} in {tries} tries, whose "
                f"accuracies ranged from {min(seen):.4g} to {max(seen):.4g}; the network itself has "
                f"{float(judge(base[0])[1]):.4g}. Ask for less accuracy, a smaller distance or more tries."
            )
        sample = draw()
        network = base.build(sample, base.buffers_of(len(base) - 1))
        seen.append(float(judge(network if data is None else refresh_(network, data))[1]))
        accepted += [sample] if seen[-1] >= least else []
    rejected = len(seen) - size
    note = f"{rejected} of {len(seen)} samples were rejected because they were below the accuracy {least:g}"
    return _gather(caller, base, accepted, data, [note])
