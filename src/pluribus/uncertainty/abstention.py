"""When to abstain: a threshold of uncertainty below which the error is as small as promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .checks import Column, check_one_label_each, check_share, judged_labels, refuse_multi_label, tensor_of
from .classification import Classification, labelled_examples


def abstain(
    prediction: Classification,
    target: Column,
    risk: float = 0.01,
    confidence: float = 0.95,
    score: str | Column = "msp",
    candidates: int = 50,
) -> Threshold:
    """The threshold that keeps the most examples while their error stays at or below `risk`.

    With probability `confidence` over validation sets the true error of the kept examples is at most `risk`, for
    any model and any score. Each candidate keeps the examples below an order statistic of the scores; given that
    value, those below it are independent draws of what it keeps, so that the exact binomial (Clopper-Pearson) test
    holds. The best of several candidates is a choice made on the same data: each is tested at
    (1 - confidence) / candidates (Bonferroni). That needs no assumption on how risk and score are related, where
    testing in a fixed order, as one would from sure to unsure, stops at the first unlucky step.

    Shapes:
        prediction: (members, rows, classes); target: (rows); `keep` gives booleans, (batch)
        dense: (members, rows, ..., classes); target: (rows, ...), with one label for each row and -100 elsewhere

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
    if not isinstance(prediction, Classification):
        raise TypeError(f"abstain: needs a Classification, but got a {type(prediction).__name__}.")
    check_share("abstain", "risk", risk)
    check_share("abstain", "confidence", confidence)
    refuse_multi_label("abstain", prediction.log_mean, prediction.class_dim)
    shape = prediction.label.shape
    _, judged = judged_labels(prediction.log_members, tensor_of(target), prediction.class_dim, "abstain")
    prediction, target, rows = labelled_examples("abstain", prediction, target)
    check_one_label_each("abstain", rows)
    values = _check_scores(prediction.score(score) if isinstance(score, str) else score, shape, judged)
    counts, level = _counts(len(target), risk, 1 - confidence, max(candidates, 1))
    wrong = (prediction.label != target).cpu().numpy()
    ordered = np.append(np.sort(values), np.inf)
    name = score if isinstance(score, str) else "given"
    tried = []
    for count in reversed(counts):  # most examples first
        kept = values < ordered[count]
        tried.append((int(wrong[kept].sum()), int(kept.sum()), float(ordered[count])))
        if _binomial_cdf(*tried[-1][:2], risk) <= level:
            errors, keeps, value = tried[-1]
            found = value, name, keeps / len(target), upper_bound(errors, keeps, level), risk, confidence
            return Threshold(*found, keeps, errors, len(target), len(counts))
    least, errors, keeps = min((upper_bound(errors, keeps, level), errors, keeps) for errors, keeps, _ in tried)
    digits = 1 - math.floor(math.log10(least))
    raise ValueError(
        f"abstain: no threshold of {name} keeps the error at most {risk:g} with confidence {confidence:g}: "
        f"the lowest that can be guaranteed is {least:.4g}, keeping {keeps / len(target):.1%} "
        f"({errors} errors in {keeps:,}). Allow risk={min(1.0, math.ceil(least * 10**digits) / 10**digits):g}, give "
        "more validation examples, or use another score."
    )


@dataclass(frozen=True)
class Threshold:
    """Keep an example if its score is below `value`; see `abstain`.

    Args:
        value: the score below which an example is kept
        score: the name of the score
        coverage: the share of the validation examples that is kept
        bound: the largest error of kept examples that the data allow, at the confidence
        risk: the error that was asked for
        confidence: how sure the bound is
        kept: how many validation examples were kept
        errors: how many of those were wrong
        examples: how many validation examples there were
        candidates: how many thresholds were tried, which the bound allows for

    >>> sure = Classification.from_probabilities(torch.tensor([[[0.99, 0.01]]]).repeat(1, 400, 1))
    >>> threshold = pb.abstain(sure, torch.zeros(400, dtype=torch.long), risk=0.05)
    >>> bool(threshold.keep(sure).all())
    True
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

    def keep(self, prediction: Classification | Column) -> Tensor:
        """Which examples are certain enough to answer, as booleans: (batch).

        Args:
            prediction: a prediction; or its scores, where the threshold was found on given ones
        """
        if not isinstance(prediction, Classification):
            scores = tensor_of(prediction)
            if bool(scores.isnan().any()):
                raise ValueError("Threshold.keep: scores must be numbers, but one is NaN.")
            return scores < self.value
        if self.score == "given":
            raise TypeError("Threshold.keep: it was found on scores, so it needs scores, not a prediction.")
        return prediction.score(self.score).detach() < self.value

    def explain(self) -> str:
        """What is kept and what is promised, as text."""
        return (
            f"answer if {self.score} < {self.value:.6g}, abstain otherwise: keeps {self.coverage:.1%}\n"
            f"  {self.errors} errors in {self.kept:,} of {self.examples:,} validation examples\n"
            f"  with confidence {self.confidence:g}, the error on what is kept is at most {self.bound:.4g} "
            f"(asked: {self.risk:g}; one of {self.candidates} thresholds tried)"
        )


def upper_bound(errors: int, examples: int, level: float) -> float:
    """The exact upper confidence bound of an error rate (Clopper and Pearson): it is too low at most at `level`."""
    if errors >= examples:
        return 1.0
    low, high = errors / examples, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _binomial_cdf(errors, examples, middle) > level else (low, middle)
    return high


def lower_bound(errors: int, examples: int, level: float) -> float:
    """The exact lower confidence bound of an error rate (Clopper and Pearson): it is too high at most at `level`."""
    return 1 - upper_bound(examples - errors, examples, level)  # what is no error in place of errors


def _binomial_cdf(errors: int, examples: int, rate: float) -> float:
    """The probability of at most this many errors."""
    if rate >= 1:
        return float(errors >= examples)
    k = np.arange(errors + 1)
    ways = np.cumsum(np.log(np.append(1.0, (examples - k[1:] + 1) / k[1:])))  # logarithms of binomial coefficients
    terms = ways + k * math.log(rate) + (examples - k) * math.log1p(-rate)
    return min(1.0, float(np.exp(terms - terms.max()).sum() * math.exp(terms.max())))


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


def _check_scores(score: Column, shape: Sequence[int], judged: Tensor) -> np.ndarray:
    """The scores of the labels that count; given ones may be of those, or of all labels."""
    values = tensor_of(score)
    if values.shape == shape:
        values = values[judged.to(values.device)]
    if values.shape != (int(judged.sum()),) or not bool(values.isfinite().all()):
        raise ValueError(
            f"abstain: needs one finite score for each of {int(judged.sum())} examples, but the scores "
            f"have the shape {tuple(values.shape)} and {int((~values.isfinite()).sum())} are not finite."
        )
    return values.double().cpu().numpy()
