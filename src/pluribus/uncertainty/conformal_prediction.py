"""Conformal prediction: sets of classes and intervals with guaranteed coverage."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .calibration import join_examples, join_observed, observe
from .checks import check_all_labels, check_one_label_each, check_share, check_values, is_multi_label
from .classification import Classification, labelled_examples
from .regression import Regression

ONE = torch.ones((), dtype=torch.float64)


def conformal(
    ensemble: Any,
    validation: Any,
    coverage: float = 0.9,
    kind: str | None = None,
    *,
    empty: bool = False,
    randomise: bool = False,
    penalty: float = 0.01,
    free: int = 5,
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
) -> Conformal:
    """Sets of classes, or intervals, that contain the truth with a probability of at least `coverage`.

    Split conformal prediction: on n validation examples each answer gets a nonconformity score, and an answer belongs
    to the set if its score is at most the ceil((n + 1) coverage)-th smallest one. The guarantee is
    for new examples from the same source, on average over them and over validation sets, whatever the model is. It
    needs examples that nothing was fitted to: not those of training, nor those that `calibrate` has seen.

    | kind | nonconformity of an answer | paper |
    |---|---|---|
    | lac | 1 - its probability: the smallest sets on average | Sadinle et al. |
    | aps | the probability of all classes down to it: easy examples get larger sets than they need | Romano et al. |
    | raps | aps, and `penalty` for each rank after the first `free`: no long tails | Angelopoulos et al. |
    | absolute | its distance from the mean: intervals of one width | Lei et al. |
    | normalised | the distance in predicted standard deviations | Lei et al. |
    | widened | how far it lies outside the predicted central interval | Romano et al. |

    A multi-label prediction, (members, batch, labels, 2), has a set of yes and no for each label, and each is covered.

    Shapes:
        sets: (batch, classes), booleans; for sequences, dense outputs and several labels (batch, ..., classes)
        intervals: two tensors of (batch), or (batch, outputs)

    Args:
        ensemble: anything with `predict`, an ensemble calibrated or not; or a prediction, with its targets next
        validation: a loader of (x, y), a tuple (x, y), or a tuple (prediction, y)
        kind: default: lac; for regression normalised, or absolute where the predicted variances are zero
        empty: whether a set may be empty, as in the papers; otherwise the most probable class stands in its place,
            with which the truth is covered at least as often
        randomise: aps and raps count a random share of the answer's own probability, as in the papers: smaller
            sets, and another draw at each call
        seed: of those shares
        batch_size: rows in one call of `predict`
        device: where it predicts; by default where the ensemble is

    >>> prediction = Classification.from_logits(4 * torch.eye(3)[torch.arange(90) % 3][None])
    >>> conformal(prediction, torch.arange(90) % 3).sets(prediction).shape
    torch.Size([90, 3])
    """
    check_share("conformal", "coverage", coverage)
    observed = observe("conformal", ensemble, validation, batch_size, device)
    source = None if isinstance(ensemble, (Classification, Regression)) else ensemble
    if isinstance(observed[0][0], Regression):
        prediction, target = join_observed(observed)
        target = check_values("conformal", prediction.means, prediction.total, target)
        kind = kind or ("normalised" if bool((prediction.total > 0).all()) else "absolute")
        if kind not in INTERVALS:
            raise ValueError(f"conformal: {kind!r} is not a kind for regression. Choose from {', '.join(INTERVALS)}.")
        error = (target.double() - prediction.mean.double()).abs()
        scores = INTERVALS[kind][0](error, _deviation(prediction, kind), coverage)
        return Conformal(source, kind, coverage, _quantile(scores, coverage), len(target), scores=scores)
    first: Any = observed[0][0]
    if is_multi_label(first.log_mean, first.class_dim):
        prediction, target = join_observed(observed)
        target = check_all_labels("conformal", prediction.log_members, target, prediction.class_dim)
    else:
        prediction, target, rows = join_examples("conformal", observed)
        check_one_label_each("conformal", rows)
    kind = kind or "lac"
    if kind not in SETS:
        raise ValueError(f"conformal: {kind!r} is not a kind for classification. Choose from {', '.join(SETS)}.")
    if not penalty >= 0 or not free >= 0:
        raise ValueError(f"conformal: penalty and free must not be negative, but they are {penalty} and {free}.")
    if kind == "lac" and randomise:
        raise ValueError('conformal: randomise is only for aps and raps, but the kind is lac. Give kind="aps".')
    draws = torch.Generator().manual_seed(seed) if randomise else None
    made = Conformal(source, kind, coverage, ONE, len(target), penalty, free, draws, empty=empty)
    return replace(made, scores=made.excess(prediction).gather(-1, target[..., None])[..., 0]).at(coverage)


@dataclass(frozen=True)
class Conformal:
    """Sets or intervals with a guarantee; see `conformal`.

    Args:
        ensemble: what `predict` asks
        kind: the nonconformity score, a row of the table of `conformal`
        coverage: the probability that was asked for
        quantile: the largest score in a set; for several labels or regression outputs, one each: each is covered
        examples: how many validation examples stand behind it
        penalty: of raps, for each rank after the first `free`
        free: ranks without a penalty
        draws: random numbers of aps and raps with `randomise`
        most: of sets, the quantile less one: near one it keeps the digits that the quantile has lost
        empty: whether a set may be empty
        scores: of the validation examples: (examples) or (examples, outputs); of sets, less one

    >>> prediction = Classification.from_probabilities(torch.tensor([[[0.9, 0.1]]]).repeat(1, 20, 1))
    >>> promise = pb.conformal(prediction, torch.zeros(20, dtype=torch.long), coverage=0.9)
    >>> promise.sets(prediction)[0].tolist(), promise.examples
    ([True, False], 20)
    """

    ensemble: Any
    kind: str
    coverage: float
    quantile: Tensor
    examples: int
    penalty: float = 0.0
    free: int = 0
    draws: torch.Generator | None = None
    most: Tensor = ONE
    empty: bool = False
    scores: Tensor | None = field(default=None, repr=False, compare=False)

    def at(self, coverage: float) -> Conformal:
        """The same with another coverage, from the scores that are kept: no example is predicted again.

        >>> points = Regression(torch.zeros(1, 99, 1))
        >>> promise = conformal(points, torch.linspace(-1, 1, 99), coverage=0.5)
        >>> round(promise.quantile.item(), 2), round(promise.at(0.9).quantile.item(), 2)
        (0.51, 0.92)
        """
        check_share("conformal", "coverage", coverage)
        if self.scores is None or (self.kind == "widened" and coverage != self.coverage):
            what = "widened intervals depend on the coverage" if self.scores is not None else "no scores are kept"
            raise ValueError(f"Conformal.at: {what}. Use pb.conformal with coverage={coverage:g}.")
        found = _quantile(self.scores, coverage)
        if self.kind in INTERVALS:
            return replace(self, coverage=coverage, quantile=found)
        return replace(self, coverage=coverage, quantile=1 + found, most=found)

    def sets(self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """Which classes are in each set, as booleans: (batch, classes).

        Args:
            x: what `ensemble.predict` takes, or a prediction
        """
        prediction = self._predict("sets", x, SETS, batch_size, device)
        sets = self.excess(prediction) <= self.most.to(prediction.log_mean.device)[..., None]
        if not self.empty:
            sets |= ~sets.any(-1, keepdim=True) & F.one_hot(prediction.label, prediction.classes).bool()
        return sets

    def intervals(
        self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """The lower and the upper end of each interval: (batch) or (batch, outputs).

        >>> points = Regression(torch.zeros(1, 99, 1))
        >>> low, high = conformal(points, torch.linspace(-1, 1, 99), coverage=0.5).intervals(points)
        >>> round(high[0].item(), 2)
        0.51
        """
        prediction = self._predict("intervals", x, INTERVALS, batch_size, device)
        deviation = prediction.total.double().sqrt()
        half = INTERVALS[self.kind][1](self.quantile, deviation, self.coverage).clamp_min(0)
        mean = prediction.mean.double()
        return mean - half, mean + half

    def measure(self, x: Any, target: Any) -> dict[str, float]:
        """How often the truth is covered on other data, and the mean size of the sets (width of the intervals).

        Args:
            x: what `ensemble.predict` takes, or a prediction

        >>> prediction = Classification.from_logits(4 * torch.eye(3)[torch.arange(90) % 3][None])
        >>> conformal(prediction, torch.arange(90) % 3).measure(prediction, torch.arange(90) % 3)["coverage"]
        1.0
        """
        if self.kind in INTERVALS:
            prediction = self._predict("measure", x, INTERVALS, None, None)
            y = check_values("measure", prediction.means, prediction.total, target)
            low, high = self.intervals(prediction)
            inside = (low <= y) & (y <= high)
            return {"coverage": inside.double().mean().item(), "width": (high - low).mean().item()}
        prediction = self._predict("measure", x, SETS, None, None)
        if is_multi_label(prediction.log_mean, prediction.class_dim):
            labels = check_all_labels("measure", prediction.log_members, target, prediction.class_dim)
        else:
            prediction, labels, _ = labelled_examples("measure", prediction, target)
        sets = self.sets(prediction)
        inside = sets.gather(-1, labels[..., None])
        return {"coverage": inside.double().mean().item(), "size": sets.sum(-1).double().mean().item()}

    def __repr__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """What is promised, on what grounds, as text."""
        what = "intervals" if self.kind in INTERVALS else "sets"
        extra = f", penalty {self.penalty:g} after the first {self.free}" if self.kind == "raps" else ""
        at_most = f"and without ties at most {self.coverage + 1 / (self.examples + 1):.4g}, "
        if self.kind in SETS and not self.empty:
            at_most = "the most probable class where no other is likely enough, "
        rule, ends = "score is at most", self.quantile
        if self.kind == "lac":  # near a quantile of one, the probability says what the quantile cannot
            rule, ends = "probability is at least", -self.most
        bounds = ", ".join(f"{end:.4g}" for end in ends.flatten().tolist())
        return (
            f"{self.kind} {what}{extra}: they contain the truth with probability at least {self.coverage:g},\n"
            f"  {at_most}on average over new examples like the validation data\n"
            f"  an answer is included if its {rule} {bounds}, from {self.examples:,} examples"
        )

    def excess(self, prediction: Classification) -> Tensor:
        """The score of every class less one, so that small probabilities keep their digits: (batch, classes).

        lac: -p. aps: minus the probability of the classes after it, and of its own share that does not count.
        """
        p = prediction.log_mean.double().exp().movedim(prediction.class_dim, -1)
        if self.kind == "lac":
            return -p
        p, order = p.sort(dim=-1, descending=True, stable=True)
        after = p.flip(-1).cumsum(-1).flip(-1).roll(-1, -1)  # summed from the least on, which keeps small ones
        after[..., -1] = 0
        if self.draws is not None:
            own = torch.rand(*p.shape[:-1], 1, generator=self.draws, dtype=p.dtype).to(p.device)
            after = after + (1 - own) * p
        scores = -after
        if self.kind == "raps":
            rank = torch.arange(1, p.shape[-1] + 1, device=p.device)
            scores = scores + self.penalty * (rank - self.free).clamp_min(0)
        return torch.empty_like(p).scatter(-1, order, scores)

    def _predict(self, name: str, x: Any, kinds: dict[str, Any], batch_size: Any, device: Any) -> Any:
        if self.kind not in kinds:
            other = "intervals" if kinds is SETS else "sets"
            raise TypeError(f"Conformal.{name}: {self.kind} gives {other}. Use {other}(x).")
        wanted, given = Classification if kinds is SETS else Regression, x
        if isinstance(x, (Classification, Regression)):
            given = x.detach()  # as it was observed: at the quantile every digit counts
        elif self.ensemble is not None:
            given = self.ensemble.predict(x, batch_size=batch_size, device=device)
        if not isinstance(given, wanted):
            why = "" if self.ensemble is not None else ": conformal was given no ensemble to predict with"
            raise TypeError(
                f"Conformal.{name}: {self.kind} needs a {wanted.__name__}, but got a {type(given).__name__}{why}."
            )
        return given


def _central(coverage: float) -> float:
    """Half the width of a central interval, in standard deviations."""
    return NormalDist().inv_cdf((1 + coverage) / 2)


SETS = {"lac": "least ambiguous", "aps": "adaptive", "raps": "regularised adaptive"}
Interval = tuple[Callable[[Tensor, Tensor, float], Tensor], Callable[[Tensor, Tensor, float], Tensor]]

# A score of the absolute error, and the half width that a score stands for, each by the deviation and the coverage.
INTERVALS: dict[str, Interval] = {
    "absolute": (lambda error, sd, coverage: error, lambda q, sd, coverage: q + 0 * sd),
    "normalised": (lambda error, sd, coverage: error / sd, lambda q, sd, coverage: q * sd),
    "widened": (
        lambda error, sd, coverage: error - _central(coverage) * sd,
        lambda q, sd, coverage: q + _central(coverage) * sd,
    ),
}


def _quantile(scores: Tensor, coverage: float) -> Tensor:
    """The ceil((n + 1) coverage)-th smallest score."""
    n = len(scores)
    place = math.ceil(round((n + 1) * coverage, 9))  # 0.1 + 0.2 must not cost an example
    if place > n:
        raise ValueError(
            f"conformal: a coverage of {coverage:g} needs at least "
            f"{math.ceil(round(coverage / (1 - coverage), 9))} validation examples, but there are {n}. "
            "Give more, or lower the coverage."
        )
    return scores.kthvalue(place, 0).values


def _deviation(prediction: Regression, kind: str) -> Tensor:
    deviation = prediction.total.double().sqrt()
    if kind == "normalised" and bool((deviation == 0).any()):
        raise ValueError(
            "conformal: normalised intervals need variances above zero, but row "
            f"{(deviation == 0).nonzero()[0][0].item()} has none. Use kind='absolute'."
        )
    return deviation
