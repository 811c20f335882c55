"""Some data for every metric, and another way to each number: other libraries, closed forms, loops."""

import functools
import itertools
import math

import numpy as np
import sklearn.metrics as sk
import torch
import torchmetrics.functional.classification as tm
from scipy import integrate, optimize, special, stats

from pluribus.uncertainty.classification import Classification
from pluribus.uncertainty.metrics import METRICS
from pluribus.uncertainty.regression import Regression
from pluribus.uncertainty.summary import Summary

MEMBERS, EXAMPLES, CLASSES = 4, 500, 6
FEW = 40  # examples where the other way is slow


def classification(ties: bool = False) -> Summary:
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(MEMBERS, EXAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    logits = logits.round() if ties else logits
    target = torch.where(
        torch.rand(EXAMPLES, generator=generator) < 0.6,
        logits.mean(0).argmax(-1),
        torch.randint(CLASSES, (EXAMPLES,), generator=generator),
    )
    return Summary(Classification.from_logits(logits), target)


def regression() -> Summary:
    generator = torch.Generator().manual_seed(2)
    means = torch.randn(MEMBERS, EXAMPLES, generator=generator, dtype=torch.float64)
    variances = 0.2 + torch.rand(MEMBERS, EXAMPLES, generator=generator, dtype=torch.float64)
    return Summary(Regression(means, variances), torch.randn(EXAMPLES, generator=generator, dtype=torch.float64))


def scores(ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inside, outside = torch.randn(300, generator=generator), 1 + torch.randn(200, generator=generator)
    return (inside.round(), outside.round()) if ties else (inside, outside)


def columns(name: str, ties: bool = False) -> list[torch.Tensor]:
    """The columns of some data that a metric needs."""
    entry = METRICS[name]
    if entry.task == "ood":
        return list(scores(ties))
    if entry.task == "shift":
        generator = torch.Generator().manual_seed(4)
        return [0.1 + torch.rand(3, 5, generator=generator, dtype=torch.float64) for _ in entry.needs]
    summary = regression() if entry.task == "regression" else classification(ties)
    return [getattr(summary, need) for need in entry.needs]


# ---------------------------------------------------------------- another way to each number


def probabilities() -> tuple[np.ndarray, np.ndarray]:
    """The ensemble's probabilities and targets, by plain means of softmax."""
    summary = classification()
    return summary._prediction.logits.softmax(-1).mean(0).numpy(), summary.target.numpy()


def binned_gap(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    edges, total = np.arange(bins + 1) / bins, 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        total += abs((confidence[inside] - correct[inside]).sum()) / len(confidence)
    return total


def calibration_error(norm: str) -> float:
    p, y = (torch.tensor(values) for values in probabilities())
    return tm.multiclass_calibration_error(p, y, CLASSES, n_bins=15, norm=norm).item()


def adaptive_ece() -> float:
    p, y = probabilities()
    order = p.max(1).argsort()
    gap = (p.max(1) - (p.argmax(1) == y))[order]
    edges = [i * len(y) // 15 for i in range(16)]
    return sum(abs(gap[a:b].sum()) for a, b in itertools.pairwise(edges)) / len(y)


def classwise_ece() -> float:
    p, y = probabilities()
    return np.mean([binned_gap(p[:, c], (y == c).astype(float), 15) for c in range(CLASSES)])


def selective(number) -> float:
    p, y = probabilities()
    order = p.max(1).argsort()[::-1]
    wrong = (p.argmax(1) != y)[order].astype(float)
    return number([wrong[: k + 1].mean() for k in range(len(y))], np.sort(wrong))


def member_labels() -> np.ndarray:
    return classification()._prediction.logits.argmax(-1).numpy()


def pairs_apart() -> float:
    labels = member_labels()
    return np.mean([np.mean(labels[i] != labels[j]) for i, j in itertools.combinations(range(MEMBERS), 2)])


def with_base() -> float:
    labels, (_, y) = member_labels(), probabilities()
    return np.mean([np.mean(labels[j] != labels[0]) / np.mean(labels[j] != y) for j in range(1, MEMBERS)])


def pairwise_kl() -> float:
    p = classification()._prediction.logits.softmax(-1).numpy()
    return np.mean([stats.entropy(p[i], p[j], axis=1) for i, j in itertools.permutations(range(MEMBERS), 2)])


def mean_entropy(of_members: bool) -> float:
    p = classification()._prediction.logits.softmax(-1).numpy()
    return stats.entropy(p if of_members else p.mean(0), axis=-1).mean()


def detection(reference) -> float:
    inside, outside = (s.numpy() for s in scores(False))
    return reference(np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside])


def false_positives(truth: np.ndarray, score: np.ndarray) -> float:
    false, true, _ = sk.roc_curve(truth, score, drop_intermediate=False)
    return false[true >= 0.95].min()


@functools.cache
def mixture() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    p, y = regression()._prediction, regression().target
    return p.means.numpy(), p.variances.sqrt().numpy(), y.numpy()


def mixture_cdf(x: float, i: int) -> float:
    means, deviations, _ = mixture()
    return special.ndtr((x - means[:, i]) / deviations[:, i]).mean()


def crps_by_integration() -> float:
    total = 0.0
    for i, y in enumerate(mixture()[2][:FEW]):
        total += integrate.quad(lambda x, i=i: mixture_cdf(x, i) ** 2, -12, y, epsabs=1e-9)[0]
        total += integrate.quad(lambda x, i=i: (1 - mixture_cdf(x, i)) ** 2, y, 12, epsabs=1e-9)[0]
    return total / FEW


@functools.cache
def interval() -> tuple[np.ndarray, np.ndarray]:
    """Where the mixture's distribution function is 0.05 and 0.95."""
    ends = [
        [optimize.brentq(lambda x, i=i, q=q: mixture_cdf(x, i) - q, -20, 20, xtol=1e-12) for i in range(FEW)]
        for q in (0.05, 0.95)
    ]
    return np.array(ends[0]), np.array(ends[1])


def interval_coverage() -> float:
    (low, high), y = interval(), mixture()[2][:FEW]
    return np.mean((low <= y) & (y <= high))


def quantile_gap() -> float:
    means, deviations, y = mixture()
    u = stats.norm.cdf(y, means, deviations).mean(0)
    return np.mean([abs(np.mean(u <= q) - q) for q in np.arange(1, 20) / 20])


REFERENCES = {
    "accuracy": lambda: sk.accuracy_score(probabilities()[1], probabilities()[0].argmax(1)),
    "top_5": lambda: sk.top_k_accuracy_score(probabilities()[1], probabilities()[0], k=5),
    "nll": lambda: sk.log_loss(probabilities()[1], probabilities()[0]),
    "brier": lambda: np.mean(((probabilities()[0] - np.eye(CLASSES)[probabilities()[1]]) ** 2).sum(1)),
    "ece": lambda: calibration_error("l1"),
    "adaptive_ece": adaptive_ece,
    "classwise_ece": classwise_ece,
    "mce": lambda: calibration_error("max"),
    "aurc": lambda: selective(lambda risks, _: np.mean(risks)),
    "e_aurc": lambda: selective(
        lambda risks, best: np.mean(risks) - np.mean(np.cumsum(best) / np.arange(1, len(best) + 1))
    ),
    "risk_at_90": lambda: selective(lambda risks, _: risks[math.ceil(0.9 * len(risks)) - 1]),
    "entropy": lambda: mean_entropy(False),
    "aleatoric": lambda: mean_entropy(True),
    "mutual_information": lambda: mean_entropy(False) - mean_entropy(True),
    "disagreement": pairs_apart,
    "disagreement_by_error": lambda: pairs_apart() / np.mean(member_labels() != probabilities()[1]),
    "disagreement_with_base": with_base,
    "pairwise_kl": pairwise_kl,
    "mean_iou": lambda: sk.jaccard_score(probabilities()[1], probabilities()[0].argmax(1), average="macro"),
    "auroc": lambda: detection(sk.roc_auc_score),
    "aupr": lambda: detection(sk.average_precision_score),
    "fpr95": lambda: detection(false_positives),
    "cacc": lambda: np.mean(columns("cacc")[0].numpy()),
    "cnll": lambda: np.mean(columns("cnll")[0].numpy()),
    "cece": lambda: np.mean(columns("cece")[0].numpy()),
    "mean_corruption_error": lambda: np.mean(
        [ours.sum() / theirs.sum() for ours, theirs in zip(*columns("mean_corruption_error"), strict=True)]
    ),
    "rmse": lambda: sk.root_mean_squared_error(mixture()[2], mixture()[0].mean(0)),
    "mae": lambda: sk.mean_absolute_error(mixture()[2], mixture()[0].mean(0)),
    "crps": lambda: crps_by_integration(),
    "coverage": interval_coverage,
    "width": lambda: np.mean(interval()[1] - interval()[0]),
    "quantile_calibration": quantile_gap,
}
