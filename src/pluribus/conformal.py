"""Answers with a guarantee: sets and intervals that hold the truth as often as promised; when to abstain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .calibration import checked_labels, checked_values, observed
from .prediction import Classification, Regression


def conformal(
    ensemble: Any,
    validation: Any,
    coverage: float = 0.9,
    kind: str | None = None,
    *,
    randomise: bool = False,
    penalty: float = 0.01,
    free: int = 5,
    seed: int = 0,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
) -> Conformal:
    """Sets of classes, or intervals, that hold the truth with probability `coverage` at least.

    Split conformal prediction: on n validation examples each answer gets a score of how strange it is, and an
    answer belongs to the set if it is no stranger than the ceil((n + 1) coverage)-th smallest score. The promise is
    for new examples from the same source, on average over them and over validation sets, whatever the model is. It
    needs examples that nothing was fitted to: not those of training, nor those that `calibrate` has seen.

    | kind | how strange an answer is | paper |
    |---|---|---|
    | lac | 1 - its probability: the smallest sets, sometimes empty | Sadinle et al. |
    | aps | the probability of all classes down to it: hard examples get larger sets | Romano et al. |
    | raps | aps, and `penalty` for each rank after the first `free`: no long tails | Angelopoulos et al. |
    | absolute | its distance from the mean: intervals of one width | Lei et al. |
    | normalised | the distance in predicted standard deviations | Lei et al. |
    | widened | how far it lies outside the predicted central interval | Romano et al. |

    Args:
        ensemble: anything with `predict`, an ensemble calibrated or not; or a prediction, with its targets next
        validation: a loader of (x, y), a tuple (x, y), or a tuple (prediction, y)
        kind: default: aps; for regression normalised, or absolute where the predicted variances are zero
        randomise: aps and raps count a random share of the answer's own probability, as in the papers: smaller
            sets, which may be empty, and another draw at each call
        seed: of those shares

    >>> logits = torch.randn(1, 500, 3)
    >>> target = torch.distributions.Categorical(logits=logits[0]).sample()
    >>> conformal(Classification.from_logits(logits[:, :400]), target[:400]).sets(
    ...     Classification.from_logits(logits[:, 400:])
    ... ).shape
    torch.Size([100, 3])
    """
    _check_share("conformal", "coverage", coverage)
    prediction, target = observed("conformal", ensemble, validation, batch_size, device)
    source = None if isinstance(ensemble, (Classification, Regression)) else ensemble
    if isinstance(prediction, Regression):
        target = checked_values("conformal", prediction, target)
        kind = _checked_kind(kind or _usual(prediction), INTERVALS, "regression")
        made = Conformal(source, kind, coverage, torch.empty(0), len(target))
        error = (target - prediction.mean).double().abs()
        scores = INTERVALS[kind].score(error, _deviation(prediction, kind), coverage)
    else:
        target = checked_labels("conformal", prediction, target)
        _check_one_label_each("conformal", target)
        kind = _checked_kind(kind or "aps", SETS, "classification")
        _check_penalties(kind, penalty, free)
        made = Conformal(source, kind, coverage, torch.empty(0), len(target), penalty, free, _draws(randomise, seed))
        scores = made.strangeness(prediction).gather(1, target[:, None])[:, 0]
    return replace(made, quantile=_quantile(scores, coverage))


@dataclass(frozen=True)
class Conformal:
    """Sets or intervals with a guarantee; see `conformal`.

    Args:
        quantile: how strange an answer may be; for several regression outputs, one for each: each is covered
        examples: how many validation examples stand behind it
    """

    ensemble: Any
    kind: str
    coverage: float
    quantile: Tensor
    examples: int
    penalty: float = 0.0
    free: int = 0
    draws: torch.Generator | None = None

    def sets(self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """Which classes are in each set, as truth values: (batch, classes).

        Args:
            x: what `ensemble.predict` takes, or a prediction
        """
        prediction = self._predicted("sets", x, SETS, batch_size, device)
        return self.strangeness(prediction) <= self.quantile

    def intervals(
        self, x: Any, batch_size: int | None = None, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """The lower and the upper end of each interval: (batch) or (batch, outputs)."""
        prediction = self._predicted("intervals", x, INTERVALS, batch_size, device)
        deviation = prediction.total.double().sqrt()
        half = INTERVALS[self.kind].half_width(self.quantile, deviation, self.coverage).clamp_min(0)
        mean = prediction.mean.double()
        return mean - half, mean + half

    def measure(self, x: Any, target: Tensor) -> dict[str, float]:
        """How often the truth is covered on other data, and the mean size of the sets (width of the intervals).

        Args:
            x: what `ensemble.predict` takes, or a prediction
        """
        if self.kind in INTERVALS:
            prediction = self._predicted("measure", x, INTERVALS, None, None)
            low, high = self.intervals(prediction)
            inside = (low <= (y := checked_values("measure", prediction, target))) & (y <= high)
            return {"coverage": inside.double().mean().item(), "width": (high - low).mean().item()}
        prediction = self._predicted("measure", x, SETS, None, None)
        sets = self.sets(prediction)
        inside = sets.gather(1, checked_labels("measure", prediction, target)[:, None])
        return {"coverage": inside.double().mean().item(), "size": sets.sum(1).double().mean().item()}

    def explain(self) -> str:
        """What is promised, on what grounds, as text."""
        quantile = ", ".join(f"{q:.4g}" for q in self.quantile.flatten().tolist())
        what = "intervals" if self.kind in INTERVALS else "sets"
        extra = f", penalty {self.penalty:g} after the first {self.free}" if self.kind == "raps" else ""
        most = self.coverage + 1 / (self.examples + 1)
        return "\n".join(
            [
                f"{self.kind} {what}{extra}: they hold the truth with probability {self.coverage:g} at least,",
                f"  and without ties at most {most:.4g}, on average over new examples like the validation data",
                f"  an answer belongs if its score is at most {quantile}, from {self.examples:,} examples",
            ]
        )

    def strangeness(self, prediction: Classification) -> Tensor:
        """The score of every class as an answer: (batch, classes)."""
        log_p = prediction.log_mean.double()
        if self.kind == "lac":
            return -torch.expm1(log_p)
        p, order = log_p.exp().sort(dim=-1, descending=True, stable=True)
        own = 1.0 if self.draws is None else torch.rand(len(p), 1, generator=self.draws, dtype=p.dtype).to(p.device)
        scores = p.cumsum(-1) - p + own * p
        if self.kind == "raps":
            rank = torch.arange(1, p.shape[-1] + 1, device=p.device)
            scores = scores + self.penalty * (rank - self.free).clamp_min(0)
        return torch.empty_like(p).scatter(-1, order, scores)

    def _predicted(self, name: str, x: Any, kinds: dict[str, Any], batch_size: Any, device: Any) -> Any:
        wanted = Classification if kinds is SETS else Regression
        if self.kind not in kinds:
            other = "intervals" if kinds is SETS else "sets"
            raise TypeError(f"Conformal.{name}: {self.kind} gives {other}. Use {other}(x).")
        if isinstance(x, (Classification, Regression)):
            prediction = x
        elif self.ensemble is None:
            raise TypeError(
                f"Conformal.{name}: needs a {wanted.__name__}, because no ensemble was given to conformal, "
                f"but it is given a {type(x).__name__}. Give the prediction for x."
            )
        else:
            prediction = self.ensemble.predict(x, batch_size=batch_size, device=device)
        if not isinstance(prediction, wanted):
            raise TypeError(
                f"Conformal.{name}: {self.kind} needs a {wanted.__name__}, not a {type(prediction).__name__}."
            )
        return prediction


@dataclass(frozen=True)
class _Interval:
    """A score of the absolute error, and the half width that a score stands for."""

    score: Callable[[Tensor, Tensor, float], Tensor]
    half_width: Callable[[Tensor, Tensor, float], Tensor]


def _half(coverage: float) -> float:
    return NormalDist().inv_cdf((1 + coverage) / 2)


SETS = {"lac": "least ambiguous", "aps": "adaptive", "raps": "regularised adaptive"}
INTERVALS = {
    "absolute": _Interval(lambda error, deviation, coverage: error, lambda q, deviation, coverage: q + 0 * deviation),
    "normalised": _Interval(
        lambda error, deviation, coverage: error / deviation, lambda q, deviation, coverage: q * deviation
    ),
    "widened": _Interval(
        lambda error, deviation, coverage: error - _half(coverage) * deviation,
        lambda q, deviation, coverage: q + _half(coverage) * deviation,
    ),
}


def abstain(
    prediction: Classification,
    target: Tensor,
    risk: float = 0.01,
    confidence: float = 0.95,
    score: str | Tensor = "msp",
    candidates: int = 50,
) -> Threshold:
    """The threshold that keeps the most, such that the error on what is kept is at most `risk`.

    With probability `confidence` over validation sets the true error of the kept examples is at most `risk`, for
    any model and any score. Each candidate keeps the examples below an order statistic of the scores; given that
    value, those below it are independent draws of what it keeps, so that the exact binomial (Clopper-Pearson) test
    holds. The best of several candidates is a choice made on the same data: each is tested at
    (1 - confidence) / candidates (Bonferroni). That needs no assumption on how risk and score are related, where
    testing in a fixed order, as one would from sure to unsure, stops at the first unlucky step.

    Args:
        prediction: of validation data that nothing was fitted to
        score: the name of a score, or one number for each example, larger = more uncertain
        candidates: how many thresholds to try at most, spread evenly over the coverages that can pass at all; fewer
            are tried on few examples

    >>> logits = 4 * torch.randn(1, 4000, 3)
    >>> target = torch.distributions.Categorical(logits=logits[0]).sample()
    >>> found = abstain(Classification.from_logits(logits), target, risk=0.05)
    >>> 0.5 < found.coverage < 1 and found.bound <= 0.05
    True
    """
    _check_abstain(prediction, risk, confidence, candidates)
    target = checked_labels("abstain", prediction, target)
    _check_one_label_each("abstain", target)
    values = _checked_scores(prediction, score)
    counts, level = _counts(len(target), risk, 1 - confidence, candidates)
    wrong = (prediction.label != target).cpu().numpy()
    ordered = np.append(np.sort(values), np.inf)
    name = score if isinstance(score, str) else "given"
    tried = []
    for count in reversed(counts):  # most examples first
        kept = values < ordered[count]
        tried.append((int(wrong[kept].sum()), int(kept.sum()), float(ordered[count])))
        if _at_most(*tried[-1][:2], risk) <= level:
            errors, keeps, value = tried[-1]
            found = value, name, keeps / len(target), upper_bound(errors, keeps, level), risk, confidence
            return Threshold(*found, keeps, errors, len(target), len(counts))
    least, errors, keeps = _least(tried, level)
    raise ValueError(
        f"abstain: no threshold of {name} keeps the error at most {risk:g} with confidence {confidence:g}: "
        f"the least that can be promised is {least:.4g}, keeping {keeps / len(target):.1%} "
        f"({errors} errors in {keeps:,}). Allow risk={_rounded_up(least):g}, give more validation examples, "
        "or use another score."
    )


@dataclass(frozen=True)
class Threshold:
    """Keep an example if its score is below `value`; see `abstain`.

    Args:
        coverage: the share of the validation examples that is kept
        bound: the largest error of kept examples that the data allow, at the confidence
        risk: the error that was asked for
    """

    value: float
    score: str
    coverage: float
    bound: float
    risk: float
    confidence: float
    kept: int
    errors: int
    examples: int
    candidates: int

    def keep(self, prediction: Classification | Tensor) -> Tensor:
        """Which examples are sure enough to answer, as truth values: (batch).

        Args:
            prediction: a prediction; or its scores, where the threshold was found on given ones
        """
        if isinstance(prediction, Tensor):
            return prediction < self.value
        if self.score == "given":
            raise TypeError("Threshold.keep: it was found on given scores, so it needs scores, not a prediction.")
        return prediction.score(self.score) < self.value

    def explain(self) -> str:
        """What is kept and what is promised, as text."""
        return "\n".join(
            [
                f"answer if {self.score} < {self.value:.6g}, abstain otherwise: keeps {self.coverage:.1%}",
                f"  {self.errors} errors in {self.kept:,} of {self.examples:,} validation examples",
                f"  with confidence {self.confidence:g} the error on what is kept is at most {self.bound:.4g} "
                f"(asked: {self.risk:g}; one of {self.candidates} thresholds tried)",
            ]
        )


def upper_bound(errors: int, examples: int, level: float) -> float:
    """The exact upper confidence bound of an error rate (Clopper and Pearson): it is too low at most at `level`."""
    if errors >= examples:
        return 1.0
    low, high = errors / examples, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(errors, examples, middle) > level else (low, middle)
    return high


def _at_most(errors: int, examples: int, rate: float) -> float:
    """The probability of at most so many errors."""
    if rate >= 1:
        return float(errors >= examples)
    k = np.arange(errors + 1)
    ways = np.cumsum(np.log(np.append(1.0, (examples - k[1:] + 1) / k[1:])))  # logarithms of binomial coefficients
    terms = ways + k * math.log(rate) + (examples - k) * math.log1p(-rate)
    return min(1.0, float(np.exp(terms - terms.max()).sum() * math.exp(terms.max())))


def _least(tried: list[tuple[int, int, float]], level: float) -> tuple[float, int, int]:
    """The lowest bound among candidates, with its errors and examples."""
    least = 1.0, *tried[0][:2]
    for errors, examples, _ in tried:
        if _at_most(errors, examples, least[0]) <= level:
            least = upper_bound(errors, examples, level), errors, examples
    return least


def _counts(examples: int, risk: float, level: float, candidates: int) -> tuple[list[int], float]:
    """How many examples each candidate keeps, before ties, and the level of its test; the labels have no say."""
    for number in range(candidates, 0, -1):
        least = math.ceil(math.log(level / number) / math.log1p(-risk))  # without errors, so many pass
        apart = (examples - least) / max(number - 1, 1)
        if apart >= least / 4 or (number == 1 and least <= examples):  # closer ones cost more than they find
            spread = np.linspace(least, examples, number) if number > 1 else np.array([examples])
            counts = sorted({int(count) for count in spread.round()})
            return counts, level / len(counts)
    raise ValueError(
        f"abstain: an error of at most {risk:g} with confidence {1 - level:g} takes at least {least:,} validation "
        f"examples, but there are {examples:,}. Give more, or allow more risk."
    )


def _quantile(scores: Tensor, coverage: float) -> Tensor:
    """The ceil((n + 1) coverage)-th smallest score."""
    n = len(scores)
    place = math.ceil(round((n + 1) * coverage, 9))  # 0.1 + 0.2 must not cost an example
    if place > n:
        raise ValueError(
            f"conformal: a coverage of {coverage:g} takes at least "
            f"{math.ceil(round(coverage / (1 - coverage), 9))} validation examples, but there are {n}. "
            "Give more, or lower the coverage."
        )
    return scores.kthvalue(place, 0).values


def _draws(randomise: bool, seed: int) -> torch.Generator | None:
    return torch.Generator().manual_seed(seed) if randomise else None


def _usual(prediction: Regression) -> str:
    return "normalised" if bool((prediction.total > 0).all()) else "absolute"


def _deviation(prediction: Regression, kind: str) -> Tensor:
    deviation = prediction.total.double().sqrt()
    if kind == "normalised" and bool((deviation == 0).any()):
        raise ValueError(
            "conformal: normalised intervals need variances above zero, but row "
            f"{(deviation == 0).nonzero()[0][0].item()} has none. Use kind='absolute'."
        )
    return deviation


def _checked_scores(prediction: Classification, score: str | Tensor) -> np.ndarray:
    values = prediction.score(score) if isinstance(score, str) else torch.as_tensor(score)
    if values.shape != prediction.label.shape or not bool(values.isfinite().all()):
        raise ValueError(
            f"abstain: there must be one finite score for each of {len(prediction.label)} examples, but the scores "
            f"have the shape {tuple(values.shape)} and {int((~values.isfinite()).sum())} are not finite."
        )
    return values.detach().double().cpu().numpy()


def _rounded_up(bound: float) -> float:
    digits = 1 - math.floor(math.log10(bound))
    return min(1.0, math.ceil(bound * 10**digits) / 10**digits)


def _check_abstain(prediction: Any, risk: float, confidence: float, candidates: int) -> None:
    if not isinstance(prediction, Classification):
        raise TypeError(f"abstain: needs a Classification, but it is given a {type(prediction).__name__}.")
    _check_share("abstain", "risk", risk)
    _check_share("abstain", "confidence", confidence)
    if candidates < 1:
        raise ValueError(f"abstain: candidates must be at least 1, but it is {candidates}.")


def _check_share(name: str, what: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name}: {what} must be above 0 and below 1, but it is {value}. Write 90 % as 0.9.")


def _check_one_label_each(name: str, target: Tensor) -> None:
    if target.ndim > 1:
        raise ValueError(
            f"{name}: examples must be independent, with one label each, but the targets have the shape "
            f"{tuple(target.shape)}. For dense outputs take one random pixel of each image."
        )


def _checked_kind(kind: str, known: dict[str, Any], task: str) -> str:
    if kind not in known:
        raise ValueError(f"conformal: {kind!r} is no kind for {task}. Choose one of {', '.join(known)}.")
    return kind


def _check_penalties(kind: str, penalty: float, free: int) -> None:
    if kind == "raps" and (penalty < 0 or free < 0):
        raise ValueError(f"conformal: penalty and free must not be negative, but they are {penalty} and {free}.")
