"""What members' outputs mean under a task, pooled or as answers by name; without checks, so that it exports."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.trees import logits_of


def pool(task: str, outputs: Any, class_dim: int | None = None) -> Any:
    """One output for stacked ones, (members, batch, ...) -> (batch, ...)."""
    if task == "gaussian":
        means, variances = gaussian(outputs)
        return means.mean(0), variances.mean(0) + means.var(0, unbiased=False)  # members
    tensor = one_tensor(outputs)
    if task == "regression":
        return tensor.mean(0)  # members
    if task == "binary":
        log_mean = log_mean_exp(two_classes(tensor).log_softmax(-1))
        return (log_mean[..., 1] - log_mean[..., 0]).reshape(tensor.shape[1:])
    return log_mean_exp(wide(tensor).log_softmax(class_dim_of(tensor, class_dim)))


def log_mean_exp(log_members: Tensor) -> Tensor:
    """The logarithm of the mean of probabilities that are given as logarithms."""
    return log_members.logsumexp(0) - math.log(len(log_members))  # members


def gaussian(outputs: Any) -> tuple[Tensor, Tensor]:
    """Means and variances: a pair as it is, or halves of the last dimension, the second through softplus."""
    if isinstance(outputs, (tuple, list)) and len(outputs) == 2:
        return outputs[0], outputs[1]
    tensor = one_tensor(outputs)
    if tensor.ndim < 2 or tensor.shape[-1] % 2:
        raise ValueError(
            "gaussian: the last dimension must hold means and raw variances in equal numbers, "
            f"but the shape is {tuple(tensor.shape)}. Give two outputs per target, or a pair (means, variances)."
        )
    mean, raw = tensor.chunk(2, -1)
    variance = F.softplus(raw) + 1e-6
    return (mean.squeeze(-1), variance.squeeze(-1)) if mean.shape[-1] == 1 else (mean, variance)


def gaussian_nll(output: Any, target: Tensor) -> Tensor:
    """A criterion for networks that give mean and variance, as `gaussian` reads them: negative log-likelihood.

    Shapes:
        output: (rows, 2 * outputs), means and then raw variances; target: (rows), or (rows, outputs)

    >>> gaussian_nll(torch.tensor([[0.0, 0.541325]]), torch.tensor([0.0])).item()  # softplus: variance 1
    0.9189...
    """
    mean, variance = gaussian(output)
    if target.shape != mean.shape and target.numel() == mean.numel():
        target = target.reshape(mean.shape)
    if target.shape != mean.shape:
        raise ValueError(
            f"gaussian_nll: needs one target for each mean, {tuple(mean.shape)}, "
            f"but the targets have the shape {tuple(target.shape)}."
        )
    return 0.5 * (torch.log(2 * math.pi * variance) + (target - mean).square() / variance).mean()


def two_classes(logit: Tensor) -> Tensor:
    """One logit per row as the logits of two classes: (members, batch, ..., 2)."""
    if logit.ndim > 2 and logit.shape[-1] == 1:
        logit = logit.squeeze(-1)
    elif logit.ndim > 3 and logit.shape[2] == 1:
        logit = logit.squeeze(2)  # a dense output with one channel
    return torch.stack([torch.zeros_like(logit), logit], -1)


def one_tensor(outputs: Any) -> Tensor:
    """The tensor that outputs are, alone or with nothing else in a list."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, (tuple, list)) and len(outputs) == 1:
        return one_tensor(outputs[0])
    raise TypeError(
        f"predict: the model must give one tensor, or `logits`, but it gives {type(outputs).__name__}. "
        "Wrap the model so that it returns the tensor to predict with; ensemble(x) gives the whole tree."
    )


def class_dim_of(tensor: Tensor, class_dim: int | None) -> int:
    """Where stacked outputs, (members, batch, ...), have the classes: the one rule for predictions, losses and metrics.

    Outputs of (batch, classes) have them last. With more dimensions they are where `class_dim` says: `Ensemble` finds
    it by trying the model, or is told. Nothing is guessed from sizes: a sequence may be as long as there are classes.

    Args:
        class_dim: where one member's output, (batch, ...), has its classes
    """
    if class_dim is not None:
        return class_dim + 1 if class_dim >= 0 else class_dim
    if tensor.ndim > 3:
        raise ValueError(
            f"the members' outputs have the shape {tuple(tensor.shape[1:])}, and it is not known which dimension holds "
            "the classes: they may be second (as torch's losses have them) or last (as token classifiers have them). "
            "Set ensemble.class_dim to 1 or -1."
        )
    return -1


def wide(tensor: Tensor) -> Tensor:
    """In single precision at least: half precision is too coarse for sums of probabilities."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


CLASS_ANSWERS = ("mean", "label", "confidence", "total", "aleatoric", "epistemic")
NUMBER_ANSWERS = ("mean", "total", "aleatoric", "epistemic")


class AnswerModule(nn.Module):
    """A module that gives what `predict` gives, without its checks: tensors by name, in the order of `answer_names`.

    Classification and binary: mean probabilities, label, confidence, and total = aleatoric + epistemic in nats.
    Regression and gaussian: mean, and total = aleatoric + epistemic variance.

    Shapes:
        input: what `module` takes
        mean: (batch, classes) or (batch, ...); everything else: (batch, ...) without the classes

    Args:
        module: anything that gives (members, batch, ...): an Ensemble or a frozen one
        task: what its outputs are; by default what the module says, or else classification
        class_dim: where a member's output, (batch, ...), has its classes; by default what the module says

    >>> given = AnswerModule(nn.Unflatten(1, (-1, 2)), "classification")(torch.tensor([[0.0, 0.0, 2.0, 0.0]]))
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
        return compute_answers(self.task, logits_of(self.module(*args, **kwargs)), self.class_dim)


def answer_names(task: str) -> tuple[str, ...]:
    """The names of the answers under a task, in their order."""
    return CLASS_ANSWERS if task in ("classification", "binary") else NUMBER_ANSWERS


def compute_answers(task: str, outputs: Any, class_dim: int | None = None) -> dict[str, Tensor]:
    """The answers that stacked outputs, (members, batch, ...), are under a task; as `pb.predict`, without checks."""
    if task == "gaussian":
        return _number_answers(*gaussian(outputs))
    tensor = one_tensor(outputs)
    if task == "regression":
        return _number_answers(tensor)
    if task == "binary":
        return _class_answers(two_classes(wide(tensor)), -1)
    return _class_answers(wide(tensor), class_dim_of(tensor, class_dim))


def _class_answers(logits: Tensor, class_dim: int) -> dict[str, Tensor]:
    class_dim = class_dim - logits.ndim if class_dim >= 0 else class_dim
    log_members = logits.log_softmax(class_dim)
    log_mean = log_mean_exp(log_members)
    log_confidence, label = log_mean.max(class_dim)
    total = _entropy(log_mean, class_dim)
    aleatoric = _entropy(log_members, class_dim).mean(0).minimum(total)  # members
    answers = (log_mean.exp(), label, log_confidence.exp(), total, aleatoric, total - aleatoric)
    return dict(zip(CLASS_ANSWERS, answers, strict=True))


def _number_answers(means: Tensor, variances: Tensor | None = None) -> dict[str, Tensor]:
    means, mean = wide(means), wide(means).mean(0)  # members
    aleatoric = torch.zeros_like(mean) if variances is None else wide(variances).mean(0)
    epistemic = (means - mean).square().mean(0)
    return dict(zip(NUMBER_ANSWERS, (mean, aleatoric + epistemic, aleatoric, epistemic), strict=True))


def _entropy(log_p: Tensor, class_dim: int) -> Tensor:
    """Of probabilities given as logarithms, in nats; p log p is 0 where p is 0."""
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(class_dim)
