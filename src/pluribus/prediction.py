"""What an ensemble says about a batch, and how sure it is: total = aleatoric + epistemic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

SCORES = ("msp", "max_logit", "energy", "entropy", "mutual_information", "variation_ratio")


class Classification:
    """Class probabilities of every member.

    Shapes:
        members: (members, batch, classes), or with the classes elsewhere for dense outputs (`class_dim`)

    >>> p = Classification.from_logits(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))  # two members disagree
    >>> p.mean.tolist(), bool(p.epistemic > 0.3)
    ([[0.5, 0.5]], True)
    """

    def __init__(self, log_probabilities: Tensor, logits: Tensor | None = None, class_dim: int = -1):
        self.log_members, self.logits, self.class_dim = log_probabilities, logits, class_dim

    @classmethod
    def from_logits(cls, logits: Tensor, class_dim: int = -1) -> Classification:
        """From what the networks give, (members, batch, classes)."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        class_dim = _checked_dim("from_logits", logits, class_dim)
        return cls(logits.log_softmax(class_dim), logits, class_dim)

    @classmethod
    def from_probabilities(cls, probabilities: Tensor, class_dim: int = -1) -> Classification:
        """From anybody's probabilities, (members, batch, classes)."""
        p = probabilities.float() if probabilities.dtype in (torch.float16, torch.bfloat16) else probabilities
        class_dim = _checked_dim("from_probabilities", p, class_dim)
        total = p.sum(class_dim)
        if not bool(torch.isfinite(p).all()) or bool((p < -1e-6).any()) or bool((total - 1).abs().max() > 1e-3):
            raise ValueError(
                "from_probabilities: each row must be finite, not negative and sum to one, but there is a value "
                f"{p.min().item():.4g} and a sum {total.flatten()[(total - 1).abs().argmax()].item():.4g}. "
                "Give probabilities, or use from_logits."
            )
        return cls(p.clamp_min(0).log(), None, class_dim)

    @property
    def members(self) -> Tensor:
        """Each member's probabilities."""
        return self.log_members.exp()

    @property
    def log_mean(self) -> Tensor:
        """The logarithm of the mean probability: (batch, classes)."""
        return self.log_members.logsumexp(0) - math.log(len(self.log_members))  # members

    @property
    def mean(self) -> Tensor:
        """The ensemble's probabilities: (batch, classes)."""
        return self.log_mean.exp()

    @property
    def label(self) -> Tensor:
        """The most probable class: (batch)."""
        return self.log_mean.argmax(self.class_dim)

    @property
    def confidence(self) -> Tensor:
        """The probability of the label: (batch)."""
        return self.mean.amax(self.class_dim)

    @property
    def total(self) -> Tensor:
        """Entropy of the mean, in nats: (batch)."""
        return _entropy(self.log_mean, self.class_dim)

    @property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the members: (batch)."""
        return _entropy(self.log_members, self.class_dim).mean(0).minimum(self.total)  # members

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and member, what the members disagree about: (batch)."""
        return self.total - self.aleatoric

    def score(self, name: str) -> Tensor:
        """An uncertainty, larger = less certain, by name: (batch)."""
        if name not in SCORES:
            raise ValueError(f"score: {name!r} is unknown. Choose one of {', '.join(SCORES)}.")
        if name in ("max_logit", "energy"):
            if self.logits is None:
                raise ValueError(f"score: {name} needs logits, but this prediction was made from probabilities.")
            mean = self.logits.mean(0)  # members
            return -(mean.amax(self.class_dim) if name == "max_logit" else mean.logsumexp(self.class_dim))
        if name == "variation_ratio":
            votes = F.one_hot(self.log_members.argmax(self.class_dim), self.log_members.shape[self.class_dim])
            return 1 - votes.float().mean(0).amax(-1)
        return {"msp": lambda: 1 - self.confidence, "entropy": lambda: self.total}.get(name, lambda: self.epistemic)()


@dataclass(frozen=True)
class Regression:
    """Means, and variances where the networks give them, of every member: a mixture of Gaussians.

    Shapes:
        means, variances: (members, batch) or (members, batch, outputs)
    """

    means: Tensor
    variances: Tensor | None = None

    def __post_init__(self) -> None:
        if self.variances is not None:
            if self.variances.shape != self.means.shape:
                raise ValueError(
                    f"Regression: means and variances must have one shape, but they have {tuple(self.means.shape)} "
                    f"and {tuple(self.variances.shape)}."
                )
            if bool((self.variances < 0).any()):
                raise ValueError(f"Regression: variances must not be negative; one is {self.variances.min():.4g}.")

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


Prediction = Classification | Regression


def predicted(task: str, outputs: Any) -> Prediction:
    """The prediction that stacked outputs, (members, batch, ...), are under a task."""
    if task == "gaussian":
        return Regression(*gaussian(outputs))
    tensor = _one_tensor(outputs)
    if task == "regression":
        return Regression(tensor)
    if task == "binary":
        return Classification.from_logits(_two_classes(tensor))
    class_dim = 2 if tensor.ndim > 3 else -1
    return Classification.from_logits(tensor, class_dim)


def pool(task: str, outputs: Any) -> Any:
    """One answer for stacked outputs, (members, batch, ...) -> (batch, ...)."""
    prediction = predicted(task, outputs)
    if isinstance(prediction, Regression):
        return prediction.mean if prediction.variances is None else (prediction.mean, prediction.total)
    if task == "binary":
        logit = prediction.log_mean[..., 1] - prediction.log_mean[..., 0]
        return logit.reshape(_one_tensor(outputs).shape[1:])
    return prediction.log_mean


def gaussian(outputs: Any) -> tuple[Tensor, Tensor]:
    """Means and variances: a pair as it is, or halves of the last dimension, the second through softplus."""
    if isinstance(outputs, (tuple, list)) and len(outputs) == 2:
        return outputs[0], outputs[1]
    tensor = _one_tensor(outputs)
    if tensor.shape[-1] % 2:
        raise ValueError(
            "gaussian: the last dimension must hold means and raw variances in equal numbers, "
            f"but it has {tensor.shape[-1]}. Give the network 2 outputs per target, or a pair (means, variances)."
        )
    mean, raw = tensor.chunk(2, -1)
    variance = F.softplus(raw) + 1e-6
    return (mean.squeeze(-1), variance.squeeze(-1)) if mean.shape[-1] == 1 else (mean, variance)


def _one_tensor(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, (tuple, list)) and len(outputs) == 1:
        return _one_tensor(outputs[0])
    raise TypeError(
        f"predict: the model must give one tensor, or `logits`, but it gives {type(outputs).__name__}. "
        "Wrap the model so that it returns the tensor to predict with; ensemble(x) gives the whole tree."
    )


def _two_classes(logit: Tensor) -> Tensor:
    """One logit per row as the logits of two classes: (members, batch, ..., 2)."""
    if logit.ndim > 2 and logit.shape[-1] == 1:
        logit = logit.squeeze(-1)
    return torch.stack([torch.zeros_like(logit), logit], -1)


def _entropy(log_p: Tensor, dim: int) -> Tensor:
    return -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(dim)


def _checked_dim(name: str, tensor: Tensor, class_dim: int) -> int:
    if tensor.ndim < 3 or tensor.shape[class_dim] < 1:
        raise ValueError(
            f"{name}: the tensor must be (members, batch, ..., classes), but its shape is {tuple(tensor.shape)}."
        )
    return class_dim - tensor.ndim if class_dim >= 0 else class_dim
