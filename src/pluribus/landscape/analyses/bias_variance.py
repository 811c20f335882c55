"""Bias and variance of an estimator over training sets, for ensembles of any size (MIMO, section 2.1 and Figure 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.ensemble import Ensemble
from ...data.builtin import blundell_curve
from ...methods import mimo
from ...results.intervals import t_interval
from ...training.batching import mix_seeds
from ...training.criteria import CRITERIA, USUAL
from ...uncertainty.resampling import Interval

Rows = tuple[Tensor, Tensor]
Train = Callable[[Ensemble, Tensor, Tensor, int], Any]
TEST_ROWS = 1000  # at least, of draws that nothing is trained on


@dataclass(frozen=True)
class BiasVariance:
    """Squared bias, variance and error of an ensemble's mean prediction, for each size.

    `error` is `bias` + `variance`. Without `truth` the noise of the test values is part of the bias, as in the paper.
    Both are free of the bias that few training sets give them: the variance is over repeats - 1, and a repeats-th of
    it is taken from the square of the mean's error.

    Shapes:
        predictions: (sizes, repeats, values), of each trained ensemble on the test rows
        target: (values), what they are compared with
        members: (sizes, repeats), the mean squared error of single members

    >>> import numpy as np
    >>> predictions = np.zeros((1, 3, 4))  # one size, three training sets, four values
    >>> BiasVariance([1], predictions, np.ones(4), np.ones((1, 3))).bias
    array([1.])
    """

    sizes: list[int]
    predictions: np.ndarray
    target: np.ndarray
    members: np.ndarray

    @property
    def bias(self) -> np.ndarray:
        """The squared bias for each size: (sizes)."""
        return np.array([_decompose(said, self.target)[0] for said in self.predictions])

    @property
    def variance(self) -> np.ndarray:
        """The variance over training sets for each size: (sizes)."""
        return np.array([_decompose(said, self.target)[1] for said in self.predictions])

    @property
    def error(self) -> np.ndarray:
        """The mean squared error for each size: (sizes)."""
        return self.bias + self.variance

    def interval(self, figure: str, size: int) -> Interval:
        """ "bias", "variance", "error" or "members" of a size with its interval over training sets."""
        return t_interval(self._pseudo_values(figure, size).tolist())

    def difference(self, figure: str, first: int, second: int) -> Interval:
        """A figure of the first size minus that of the second, both trained on the same sets, with its interval."""
        return t_interval((self._pseudo_values(figure, first) - self._pseudo_values(figure, second)).tolist())

    def _pseudo_values(self, figure: str, size: int) -> np.ndarray:
        """The jackknife: what each training set adds."""
        i = self.sizes.index(size)
        if figure == "members":
            return self.members[i]
        said, which = self.predictions[i], {"bias": [0], "variance": [1], "error": [0, 1]}[figure]
        whole = sum(_decompose(said, self.target)[k] for k in which)
        without = [_decompose(np.delete(said, r, 0), self.target) for r in range(len(said))]
        return np.array([len(said) * whole - (len(said) - 1) * sum(one[k] for k in which) for one in without])


def _decompose(said: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Squared bias and variance of predictions, (repeats, values)."""
    variance = float(said.var(0, ddof=1).mean())
    return float(np.square(said.mean(0) - target).mean()) - variance / len(said), variance


def bias_variance(
    make: Callable[[int], Ensemble],
    draw: Callable[[int], Rows],
    sizes: Sequence[int],
    repeats: int = 20,
    *,
    test: Rows | None = None,
    truth: Callable[[Tensor], Tensor] | None = None,
    train: Train | None = None,
    steps: int = 1000,
    lr: float = 0.01,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> BiasVariance:
    """Squared bias, variance and error of ensembles of each size, each trained on `repeats` training sets.

    Without `train`, the ensemble's own loss on the whole training set is minimised by Adam with a cosine rate.

    Shapes:
        draw(seed): x (rows, *features), y (rows, outputs); bias, variance, error: (sizes)

    Args:
        make: an ensemble of a size, to be trained; what it draws is seeded
        draw: a training set for a seed, (x, y); the same sets serve all sizes
        test: (x, y); by default draws of other seeds, 1000 rows at least
        truth: the values without noise; then noise is no part of bias and error
        train: train(ensemble, x, y, seed), in place of the default
        steps: of training
        lr: the rate
        progress: called with a line of text when a part is done

    >>> def draw(seed):
    ...     generator = torch.Generator().manual_seed(seed)
    ...     x = torch.rand(32, 1, generator=generator)
    ...     return x, x + 0.1 * torch.randn(32, 1, generator=generator)
    >>> found = bias_variance(lambda size: pb.deep(nn.Linear(1, 1), size), draw, [1, 2], repeats=3, steps=5)
    >>> found.bias.shape, bool(abs(found.bias + found.variance - found.error).max() < 1e-6)
    ((2,), True)
    """
    if repeats < 2:
        raise ValueError(f"bias_variance: a variance needs at least 2 training sets, but repeats is {repeats}.")
    chosen = list(sizes)
    sets = [_check_rows(draw(seed + i)) for i in range(repeats)]
    x, y = _check_rows(test) if test is not None else _unseen(draw, seed + repeats)
    with torch.no_grad():
        target = (y if truth is None else truth(x)).double().reshape(-1).numpy()
    predictions, members = [], []
    for size in chosen:
        if progress is not None:
            progress(f"size {size}")
        made = [_make(make, size, mix_seeds(seed, size, i)) for i in range(repeats)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seeds(seed, size))
            for i, (ensemble, (own_x, own_y)) in enumerate(zip(made, sets, strict=True)):
                if train is None:
                    _descend(ensemble, own_x, own_y, steps, lr)
                else:
                    train(ensemble, own_x, own_y, mix_seeds(seed, size, i))
        said = [ensemble.eval().predict(x) for ensemble in made]
        each = [answer.means.detach().double().flatten(1).numpy() for answer in said]  # type: ignore[union-attr]
        predictions.append(np.stack([part.mean(0) for part in each]))
        members.append([float(np.square(part - target).mean()) for part in each])
    return BiasVariance(chosen, np.stack(predictions), target, np.array(members))


def mimo_on_a_curve(
    sizes: Sequence[int], repeats: int, steps: int, progress: Callable[[str], None] | None = None
) -> BiasVariance:
    """MIMO's own experiment (Figure 2): a small network for the curve of Blundell et al. (2015), inputs standardised.

    Two hidden layers of 32 and 128 units, training sets of 64 rows, 3000 test rows.
    """

    def make(size: int) -> Ensemble:
        network = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
        ensemble = mimo(network, size, example=torch.zeros(2, 1), init="different")
        ensemble.task = "regression"
        return ensemble

    return bias_variance(make, draw_curve, sizes, repeats, steps=steps, test=draw_curve(-1, 3000), progress=progress)


def draw_curve(seed: int, rows: int = 64) -> Rows:
    """Rows of the curve of Blundell et al. (2015), inputs standardised by their law."""
    generator = torch.Generator().manual_seed(seed + 10_000)
    x = 0.5 * torch.rand(rows, 1, generator=generator)
    noise = 0.02 * torch.randn(rows, 1, generator=generator)
    return (x - 0.25) / (0.5 / 12**0.5), torch.from_numpy(blundell_curve(x.numpy(), noise.numpy()))


def _check_rows(rows: Any) -> Rows:
    x, y = (torch.as_tensor(part) for part in rows)
    if not y.is_floating_point() or len(x) != len(y):
        raise ValueError(
            "bias_variance: errors are squared, so y must be numbers, one row for each row of x, but it is "
            f"{y.dtype} of the shape {tuple(y.shape)} beside {tuple(x.shape)}."
        )
    return x, y


def _unseen(draw: Callable[[int], Rows], first: int) -> Rows:
    drawn = [_check_rows(draw(first))]
    while sum(len(y) for _, y in drawn) < TEST_ROWS:
        drawn.append(_check_rows(draw(first + len(drawn))))
    return torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])


def _make(make: Callable[[int], Ensemble], size: int, seed: int) -> Ensemble:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make(size)
    if made.task == "classification":
        made.task = "regression"
    return made


def _descend(ensemble: Ensemble, x: Tensor, y: Tensor, steps: int, lr: float) -> None:
    """Train in place on all rows at once."""
    parameters = list(ensemble.train().parameters())
    optimizer, criterion = torch.optim.Adam(parameters, lr), CRITERIA[USUAL[ensemble.task]]
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        ensemble.loss(x, y, criterion).backward()
        optimizer.step()
    if not all(bool(p.isfinite().all()) for p in parameters):
        raise ValueError(f"bias_variance: the weights are no longer finite after {steps} steps of {lr:g}. Lower lr.")
