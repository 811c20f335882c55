"""Numbers with their uncertainty: a mixture of one Gaussian, or one point, for each member."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._common.text_tables import plural
from .checks import check_finite, check_numbers, rows_index, show_rows, tensor_of

PARTS = ("total", "aleatoric", "epistemic")


@dataclass(frozen=True, eq=False, repr=False)
class Regression:
    """Means, and variances where the networks give them, of every member: a mixture of Gaussians.

    Without variances it is a mixture of points: what the members disagree about is all there is.

    Shapes:
        means, variances: (members, batch) or (members, batch, outputs); each output is evaluated by itself

    >>> p = Regression(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5], [0.5]]))
    >>> p.mean.item(), p.aleatoric.item(), p.epistemic.item(), p.total.item()
    (2.0, 0.5, 1.0, 1.5)
    """

    means: Tensor
    variances: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "means", _check_members("means", self.means))
        if self.variances is None:
            return
        object.__setattr__(self, "variances", _check_members("variances", self.variances))
        shapes = tuple(self.means.shape), tuple(self.variances.shape)
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"Regression: means and variances must have the same shape, but they have {shapes[0]} and {shapes[1]}."
            )
        if (least := self.variances.min().item()) < 0:
            raise ValueError(
                f"Regression: variances must not be negative, but the least is {least:.4g}. Give variances, not their "
                "logarithms."
            )

    @classmethod
    def cat(cls, parts: Sequence[Regression]) -> Regression:
        """Batches of the same ensemble, one after the other."""
        variances = [p.variances for p in parts if p.variances is not None]
        if not parts or len(variances) not in (0, len(parts)):
            raise ValueError(f"cat: all parts or none must have variances, but {len(variances)} of {len(parts)} have.")
        return cls(torch.cat([p.means for p in parts], 1), torch.cat(variances, 1) if variances else None)

    @property
    def mean(self) -> Tensor:
        """The mixture's mean: (batch, ...)."""
        return self.means.mean(0)  # members

    @property
    def aleatoric(self) -> Tensor:
        """The members' mean variance; zero for networks that give points."""
        return torch.zeros_like(self.mean) if self.variances is None else self.variances.mean(0)

    @property
    def epistemic(self) -> Tensor:
        """The variance of the members' means."""
        return self.means.var(0, unbiased=False)  # members

    @property
    def total(self) -> Tensor:
        """The mixture's variance: mean(variance + mean^2) - mean^2."""
        return self.aleatoric + self.epistemic

    def score(self, name: str = "total") -> Tensor:
        """An uncertainty, larger = less certain: total, aleatoric or epistemic, summed over outputs: (batch)."""
        if name not in PARTS:
            raise ValueError(f"score: {name!r} is unknown for a regression. Choose from {', '.join(PARTS)}.")
        return getattr(self, name).flatten(1).sum(1) if self.means.ndim > 2 else getattr(self, name)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the mixture's central interval, (batch, ...) each.

        >>> low, high = Regression(torch.zeros(1, 1), torch.ones(1, 1)).interval(0.95)
        >>> round(high.item(), 3)
        1.96
        """
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be between 0 and 1, but it is {level}.")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def quantile(self, q: float) -> Tensor:
        """Where the mixture's distribution function reaches q, by bisection; of points one of them: (batch, ...)."""
        if not 0 < q < 1:
            raise ValueError(f"quantile: q must be between 0 and 1, but it is {q}.")
        if self.variances is None:
            return self.means.sort(0).values[math.ceil(q * self.size - 1e-9) - 1]  # members
        standard = NormalDist().inv_cdf(q)
        own = self.means.double() + self._deviations().double() * standard
        low, high = own.amin(0), own.amax(0)  # members: the mixture's quantile lies between theirs
        while bool(((high - low) > 1e-12 * (1 + high.abs().maximum(low.abs()))).any()):
            middle = (low + high) / 2
            reached = self.cumulative(middle) >= q
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        return high.to(self.means.dtype)

    def cumulative(self, target: Tensor | np.ndarray) -> Tensor:
        """The mixture's distribution function at the target: (batch, ...).

        >>> Regression(torch.zeros(1, 1), torch.ones(1, 1)).cumulative(torch.zeros(1)).tolist()
        [0.5]
        """
        distance = self.check_target(target).double() - self.means.double()
        return _cdf(distance, self._deviations().double()).mean(0)  # members

    def log_likelihood(self, target: Tensor | np.ndarray) -> Tensor:
        """Log density of the mixture at the target; needs variances above zero: (batch, ...).

        >>> round(Regression(torch.zeros(1, 1), torch.ones(1, 1)).log_likelihood(torch.zeros(1)).item(), 4)
        -0.9189
        """
        if self.variances is None or not bool((self.variances > 0).all()):
            has = "points without variances" if self.variances is None else "a variance of 0"
            raise ValueError(f"log_likelihood: every member must give a variance above 0, but there are {has}.")
        squared = (self.check_target(target) - self.means).square() / self.variances
        logs = -0.5 * (squared + torch.log(2 * math.pi * self.variances))
        return logs.logsumexp(0) - math.log(len(self.means))  # members

    def crps(self, target: Tensor | np.ndarray) -> Tensor:
        """Continuous ranked probability score, E|X - y| - E|X - X'|/2 in closed form (Grimit et al. 2006).

        >>> Regression(torch.zeros(1, 1)).crps(torch.tensor([2.0])).tolist()  # of a point: the absolute error
        [2.0]
        """
        means, deviations = self.means.double(), self._deviations().double()
        apart = _absolute(self.check_target(target).double() - means, deviations).mean(0)
        among = torch.zeros_like(apart)
        for mean, deviation in zip(means, deviations, strict=True):
            among += _absolute(means - mean, torch.hypot(deviations, deviation)).mean(0)
        return apart - among / (2 * len(means))

    def check_target(self, target: Tensor | np.ndarray) -> Tensor:
        """The targets in the shape of the mean, or an error that says what is wrong."""
        return check_numbers(self.means, target)

    def __len__(self) -> int:
        return self.means.shape[1]

    def __repr__(self) -> str:
        """The means of some examples with their standard deviations, and the means over all.

        >>> print(Regression(torch.tensor([[1.0], [3.0]]), torch.tensor([[3.0], [3.0]])))
        Regression of 1 example by 2 members
        example   mean     sd  aleatoric  epistemic
              0  2.000  2.000      3.000      1.000
        """
        shape = " x ".join(map(str, self.means.shape[1:])) if self.means.ndim > 2 else len(self)
        what = f"Regression of {plural(shape, 'example')} by {plural(self.size, 'member')}"
        if self.means.is_meta or self.means.ndim > 2:
            return what
        columns = {"mean": self.mean, "sd": self.total.sqrt(), "aleatoric": self.aleatoric, "epistemic": self.epistemic}
        return f"{what}\n{show_rows(columns, len(self))}"

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.means)

    def __getitem__(self, rows: Any) -> Regression:
        rows = rows_index(rows)
        return self._map(lambda t: t[:, rows])

    def detach(self) -> Regression:
        """The same without gradients."""
        return self._map(Tensor.detach)

    def member(self, i: int) -> Regression:
        """Member `i` alone, as an ensemble of one."""
        if not -self.size <= i < self.size:
            raise IndexError(f"member index {i} is out of range (0-{self.size - 1}).")
        return self._map(lambda t: t[i % self.size][None])

    def flat(self) -> Regression:
        """Each output as an example of its own: (members, batch * outputs)."""
        return self._map(lambda t: t.flatten(1))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Regression:
        return Regression(change(self.means), None if self.variances is None else change(self.variances))

    def _deviations(self) -> Tensor:
        return torch.zeros_like(self.means) if self.variances is None else self.variances.sqrt()


def _cdf(distance: Tensor, deviation: Tensor) -> Tensor:
    """Distribution function of a centred Gaussian; a step where the deviation is 0."""
    smooth = torch.special.ndtr(distance / deviation.clamp_min(torch.finfo(deviation.dtype).tiny))
    return torch.where(deviation > 0, smooth, (distance >= 0).to(smooth.dtype))


def _absolute(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|X| of a Gaussian."""
    scaled = mean / deviation.clamp_min(torch.finfo(deviation.dtype).tiny)
    density = torch.exp(-0.5 * scaled.square()) / math.sqrt(2 * math.pi)
    spread = 2 * deviation * density + mean * (2 * torch.special.ndtr(scaled) - 1)
    return torch.where(deviation > 0, spread, mean.abs())


def _check_members(name: str, values: Tensor | np.ndarray) -> Tensor:
    tensor = values if isinstance(values, Tensor) else tensor_of(values)
    tensor = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    if tensor.ndim < 2 or 0 in tensor.shape:
        raise ValueError(
            f"Regression: {name} must be (members, batch) or (members, batch, outputs) without an empty "
            f"dimension, but the shape is {tuple(tensor.shape)}. For one model's output, add the members' dimension "
            "with tensor[None]."
        )
    check_finite("Regression", name, tensor)
    return tensor
