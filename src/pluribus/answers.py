"""What an ensemble says and how sure it is, as further operations of the same graph: it exports and compiles."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .prediction import class_dim_of, gaussian, one_tensor, two_classes, wide
from .trees import answer

CLASS_ANSWERS = ("mean", "label", "confidence", "total", "aleatoric", "epistemic")
NUMBER_ANSWERS = ("mean", "total", "aleatoric", "epistemic")


class Answers(nn.Module):
    """A module that gives what `predict` gives, without its checks: tensors by name, in the order of `names_of`.

    Classification and binary: mean probabilities, label, confidence, and total = aleatoric + epistemic in nats.
    Regression and gaussian: mean, and total = aleatoric + epistemic variance.

    Shapes:
        input: what `module` takes
        mean: (batch, classes) or (batch, ...); everything else: (batch, ...) without the classes

    Args:
        module: anything that gives (members, batch, ...): an Ensemble or a frozen one
        task: what its outputs are; by default what the module says, or else classification
        class_dim: where a member's output, (batch, ...), has its classes; by default what the module says

    >>> given = Answers(nn.Unflatten(1, (-1, 2)), "classification")(torch.tensor([[0.0, 0.0, 2.0, 0.0]]))
    >>> list(given)
    ['mean', 'label', 'confidence', 'total', 'aleatoric', 'epistemic']
    """

    def __init__(self, module: nn.Module, task: str | None = None, class_dim: int | None = None):
        super().__init__()
        self.module = module
        self.task = str(task or getattr(module, "task", "classification"))
        self.class_dim: int | None = getattr(module, "class_dim", None) if class_dim is None else class_dim

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The answers for every row."""
        return answers(self.task, answer(self.module(*args, **kwargs)), self.class_dim)


def names_of(task: str) -> tuple[str, ...]:
    """The names of the answers under a task, in their order."""
    return CLASS_ANSWERS if task in ("classification", "binary") else NUMBER_ANSWERS


def answers(task: str, outputs: Any, class_dim: int | None = None) -> dict[str, Tensor]:
    """The answers that stacked outputs, (members, batch, ...), are under a task; as `pb.predict`, without checks."""
    if task == "gaussian":
        return _of_numbers(*gaussian(outputs))
    tensor = one_tensor(outputs)
    if task == "regression":
        return _of_numbers(tensor)
    if task == "binary":
        return _of_classes(two_classes(wide(tensor)), -1)
    return _of_classes(wide(tensor), class_dim_of(tensor, class_dim))


def _of_classes(logits: Tensor, class_dim: int) -> dict[str, Tensor]:
    class_dim = class_dim - logits.ndim if class_dim >= 0 else class_dim
    log_members = logits.log_softmax(class_dim)
    log_mean = _log_of_mean(log_members)
    log_confidence, label = log_mean.max(class_dim)
    total = _entropy(log_mean, class_dim)
    aleatoric = _entropy(log_members, class_dim).mean(0).minimum(total)  # members
    return {
        "mean": log_mean.exp(),
        "label": label,
        "confidence": log_confidence.exp(),
        "total": total,
        "aleatoric": aleatoric,
        "epistemic": total - aleatoric,
    }


def _of_numbers(means: Tensor, variances: Tensor | None = None) -> dict[str, Tensor]:
    means, mean = wide(means), wide(means).mean(0)  # members
    aleatoric = torch.zeros_like(mean) if variances is None else wide(variances).mean(0)
    epistemic = (means - mean).square().mean(0)
    return {"mean": mean, "total": aleatoric + epistemic, "aleatoric": aleatoric, "epistemic": epistemic}


def _log_of_mean(log_members: Tensor) -> Tensor:
    """As `prediction.pooled`, with a peak that is finite: a class that all members exclude stays at -inf."""
    peak = log_members.amax(0).clamp_min(torch.finfo(log_members.dtype).min)
    return (log_members - peak).exp().sum(0).log() + peak - math.log(len(log_members))


def _entropy(log_p: Tensor, class_dim: int) -> Tensor:
    """Of probabilities given as logarithms, in nats; p log p is 0 where p is 0."""
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(class_dim)
