"""Class probabilities with their uncertainty, in nats: total = aleatoric + epistemic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._common.text_tables import plural
from .._common.trees import IGNORED
from .checks import check_classes, check_numeric, judged_labels, rows_index, show_rows, tensor_of
from .outputs import log_mean_exp, two_classes, wide

SCORES = ("msp", "max_logit", "energy", "entropy", "mutual_information", "variation_ratio")
CHUNK = 2**18  # numbers worked on at once: few enough to stay in a processor's cache


class Classification:
    """Class probabilities of every member.

    Everything is computed from logarithms, in float32 at least, once, and kept.

    Shapes:
        members: (members, batch, classes), or with the classes elsewhere for dense outputs (`class_dim`)

    Args:
        log_probabilities: (members, batch, classes), each member's own
        logits: what they were computed from, where it is known: some scores of OOD detection need it
        class_dim: where the classes are

    >>> p = Classification.from_logits(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))  # two members disagree
    >>> p.mean.round(decimals=4).tolist(), bool(p.epistemic > 0.3)
    ([[0.5, 0.5]], True)
    """

    def __init__(self, log_probabilities: Tensor, logits: Tensor | None = None, class_dim: int = -1):
        self.log_members, self.logits, self.class_dim = log_probabilities, logits, class_dim

    @classmethod
    def from_logits(cls, logits: Tensor | np.ndarray, class_dim: int = -1) -> Classification:
        """From what the networks give, (members, batch, classes); a class with the logit -inf is impossible."""
        logits = _float(logits)
        class_dim = _check_dim("from_logits", logits, class_dim)
        if logits.shape[class_dim] == 1:
            raise ValueError(
                "from_logits: there must be at least two classes, but there is one. "
                "For the single logit of a binary network, use from_binary."
            )
        log_members = logits.log_softmax(class_dim)
        if bool(log_members.detach().amax().isnan()):  # NaN, +inf, or -inf in every class
            where, row = _first_row(log_members.isnan(), class_dim)
            values = logits.movedim(class_dim, -1)[tuple(where)].tolist()
            raise ValueError(
                "from_logits: logits must be finite, or -inf in some but not all classes, but the row at "
                f"{row} is {[round(v, 4) for v in values[:10]]}{' ...' if len(values) > 10 else ''}."
            )
        return cls(log_members, logits, class_dim)

    @classmethod
    def from_binary(cls, logits: Tensor | np.ndarray) -> Classification:
        """From one logit for each example, that of class 1: (members, batch), (members, batch, 1) or dense.

        >>> Classification.from_binary(torch.zeros(2, 5)).mean[0].tolist()
        [0.5, 0.5]
        """
        return cls.from_logits(two_classes(_float(logits)))

    @classmethod
    def from_probabilities(cls, probabilities: Tensor | np.ndarray, class_dim: int = -1) -> Classification:
        """From probabilities of any source, (members, batch, classes); rounding errors are corrected.

        >>> Classification.from_probabilities(torch.tensor([[[1.0000001, 0.0]]])).confidence.item()
        1.0
        """
        p = _float(probabilities)
        class_dim = _check_dim("from_probabilities", p, class_dim)
        total = p.sum(class_dim, keepdim=True)
        bad = ~p.isfinite() | (p < -1e-6) | ((total - 1).abs() > 1e-3)
        if bool(bad.any()):
            where, row = _first_row(bad, class_dim)
            values = p.movedim(class_dim, -1)[tuple(where)]
            raise ValueError(
                "from_probabilities: each row must be finite, not negative and sum to one, but the row at "
                f"{row} has values from {values.min().item():.4g} to {values.max().item():.4g} and the sum "
                f"{values.sum().item():.6g}. Give probabilities, or use from_logits."
            )
        p = p.clamp_min(0)
        return cls((p / p.sum(class_dim, keepdim=True)).log(), None, class_dim)

    @classmethod
    def cat(cls, parts: Sequence[Classification]) -> Classification:
        """Batches of the same ensemble, one after the other.

        >>> Classification.cat([Classification.from_logits(torch.zeros(2, rows, 3)) for rows in (4, 1)]).mean.shape
        torch.Size([5, 3])
        """
        if len({(p.size, p.classes, p.class_dim, p.logits is None) for p in parts}) != 1:
            raise ValueError(
                "cat: all parts must have the same members, classes and class_dim, and all or none logits."
            )
        logits = [p.logits for p in parts if p.logits is not None]
        log_members = torch.cat([p.log_members for p in parts], 1)
        return cls(log_members, torch.cat(logits, 1) if logits else None, parts[0].class_dim)

    # ---------------------------------------------------------------- what is asked most

    @property
    def members(self) -> Tensor:
        """Each member's probabilities."""
        return self.log_members.exp()

    @property
    def log_mean(self) -> Tensor:
        """The logarithm of the mean probability: (batch, classes)."""
        return self._log_mean_and_mean[0]

    @property
    def mean(self) -> Tensor:
        """The ensemble's probabilities: (batch, classes)."""
        return self._log_mean_and_mean[1]

    @cached_property
    def label(self) -> Tensor:
        """The most probable class, the first of equals: (batch)."""
        return self.log_mean.max(self.class_dim).indices

    @cached_property
    def confidence(self) -> Tensor:
        """The probability of the label: (batch)."""
        return self.log_mean.amax(self.class_dim).exp()

    @cached_property
    def total(self) -> Tensor:
        """Entropy of the mean, in nats: (batch)."""
        return -_times_log(self.mean, self.log_mean).sum(self.class_dim)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean entropy of the members: (batch)."""
        return self.member_entropy.mean(0).minimum(self.total)  # members

    @cached_property
    def epistemic(self) -> Tensor:
        """Mutual information of label and member, what the members disagree about: (batch)."""
        return self.total - self.aleatoric

    def score(self, name: str) -> Tensor:
        """An uncertainty, larger = less certain, by name: (batch).

        | name | what |
        |---|---|
        | msp | 1 - confidence |
        | max_logit | minus the largest mean logit |
        | energy | minus the logsumexp of the mean logits |
        | entropy | of the mean: `total` |
        | mutual_information | of label and member: `epistemic` |
        | variation_ratio | share of members that do not vote for the most voted label |
        """
        if name not in SCORES:
            raise ValueError(f"score: {name!r} is unknown. Choose from {', '.join(SCORES)}.")
        if name in ("max_logit", "energy"):
            if self.logits is None:
                raise ValueError(
                    f"score: {name} needs logits, but this prediction was made from probabilities. "
                    "Choose msp, entropy, mutual_information or variation_ratio, or use from_logits."
                )
            mean = self.logits.mean(0)  # members
            return -(mean.amax(self.class_dim) if name == "max_logit" else mean.logsumexp(self.class_dim))
        if name == "variation_ratio":
            votes = torch.stack([(label == self.member_label).sum(0) for label in self.member_label])
            return 1 - votes.amax(0) / self.size
        return {"msp": lambda: 1 - self.confidence, "entropy": lambda: self.total}.get(name, lambda: self.epistemic)()

    def restrict(self, classes: Sequence[int] | Tensor | np.ndarray) -> Classification:
        """The prediction among some classes only, as ImageNet-R and -A need; class i is then `classes[i]`.

        >>> Classification.from_probabilities(torch.tensor([[[0.5, 0.25, 0.25]]])).restrict([1, 2]).mean.tolist()
        [[0.5, 0.5]]
        """
        index = torch.as_tensor(classes, device=self.log_members.device)
        index = index.nonzero().flatten() if index.dtype == torch.bool and len(index) == self.classes else index.long()
        known = bool(((index >= 0) & (index < self.classes)).all())
        if index.ndim != 1 or not 2 <= len(index) == len(index.unique()) or not known:
            raise ValueError(
                f"restrict: classes must be at least two different ones from 0 to {self.classes - 1}, "
                f"but they are {index.tolist()}."
            )
        chosen = (self.log_members if self.logits is None else self.logits).index_select(self.class_dim, index)
        log_members = chosen.log_softmax(self.class_dim)
        if bool(log_members.amax().isnan()):
            _, row = _first_row(log_members.isnan(), self.class_dim)
            raise ValueError(f"restrict: the row at {row} gives none of these classes a probability above zero.")
        return Classification(log_members, None if self.logits is None else chosen, self.class_dim)

    # ---------------------------------------------------------------- members and rows

    @property
    def size(self) -> int:
        """The number of members."""
        return self.log_members.shape[0]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.log_members.shape[self.class_dim]

    def __len__(self) -> int:
        return self.log_members.shape[1]

    def __repr__(self) -> str:
        """The labels of some examples and how sure they are, and the means over all.

        >>> print(Classification.from_probabilities(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]])))
        Classification of 1 example by 2 members, 2 classes
        example  label  confidence  total  aleatoric  epistemic
              0      0       0.800  0.500      0.468      0.032
        """
        by = f"by {plural(self.size, 'member')}, {self.classes} classes"
        if self.log_members.is_meta or not len(self):
            return f"Classification of {plural(len(self), 'example')} {by}"
        names = ("label", "confidence", "total", "aleatoric", "epistemic")
        if self.label.ndim == 1:
            columns = {name: getattr(self, name) for name in names}
            return f"Classification of {plural(len(self), 'example')} {by}\n{show_rows(columns, len(self))}"
        columns = {name: getattr(self, name).flatten(1).double().mean(1) for name in names[1:]}
        return f"Classification of {' x '.join(map(str, self.label.shape))} {by}\n{show_rows(columns, len(self))}"

    def __getitem__(self, rows: Any) -> Classification:
        """Some rows of the batch: a slice, a list, a mask or one number (which stays a batch)."""
        return self._map(lambda t: t[:, rows_index(rows)])

    def member(self, i: int) -> Classification:
        """Member `i` alone, as an ensemble of one."""
        if not -self.size <= i < self.size:
            raise IndexError(f"member index {i} is out of range (0-{self.size - 1}).")
        return self._map(lambda t: t[i % self.size][None])

    def detach(self) -> Classification:
        """The same without gradients."""
        return self._map(lambda t: t.detach())

    def flat(self) -> Classification:
        """Each pixel of a dense prediction as an example of its own: (members, batch * pixels, classes).

        >>> dense = Classification.from_logits(torch.zeros(2, 5, 3, 8, 8), class_dim=2)  # classes before the pixels
        >>> dense.flat().mean.shape
        torch.Size([320, 3])
        """
        if self.log_members.ndim == 3 and self.class_dim == -1:
            return self
        flat = self._map(lambda t: t.movedim(self.class_dim, -1).flatten(1, -2))
        flat.class_dim = -1
        return flat

    @cached_property
    def member_label(self) -> Tensor:
        """Each member's most probable class: (members, batch)."""
        return self.log_members.argmax(self.class_dim)

    @cached_property
    def member_confidence(self) -> Tensor:
        """The probability of each member's label: (members, batch)."""
        return self.log_members.amax(self.class_dim).exp()

    @cached_property
    def member_entropy(self) -> Tensor:
        """Each member's entropy, in nats: (members, batch)."""
        parts = [-_times_log(part.exp(), part).sum(self.class_dim) for part in self._chunks()]
        return torch.cat(parts, 1)

    @cached_property
    def pairwise_kl(self) -> Tensor:
        """Kullback-Leibler divergence of two members, averaged over ordered pairs; 0 for one member: (batch)."""
        return torch.cat([_pairwise_kl(part, self.class_dim) for part in self._chunks()])

    # ---------------------------------------------------------------- compared with the targets

    def log_likelihood(self, target: Tensor | np.ndarray) -> Tensor:
        """The log probability of the target: (batch).

        >>> pair = Classification.from_probabilities(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]]))
        >>> pair.log_likelihood(torch.tensor([0])).exp().tolist()
        [0.75]
        """
        return self._at(self.log_mean, self.check_target(target))

    def member_log_likelihood(self, target: Tensor | np.ndarray) -> Tensor:
        """Each member's log probability of the target: (members, batch)."""
        return self._at(self.log_members, self.check_target(target))

    def squared_error(self, target: Tensor | np.ndarray) -> Tensor:
        """Squared distance between the mean and the one-hot target, summed over classes: (batch).

        >>> pair = Classification.from_probabilities(torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]]))
        >>> pair.squared_error(torch.tensor([0])).tolist()
        [0.125]
        """
        target, p = self.check_target(target), self.mean
        return ((p * p).sum(self.class_dim) - 2 * self._at(p, target) + 1).clamp_min(0)

    def member_squared_error(self, target: Tensor | np.ndarray) -> Tensor:
        """Squared distance between each member and the one-hot target: (members, batch)."""
        return torch.stack([self.member(i).squared_error(target) for i in range(self.size)])

    def rank(self, target: Tensor | np.ndarray) -> Tensor:
        """How many classes are likelier than the target, ties broken by class number: (batch).

        >>> three = Classification.from_probabilities(torch.tensor([[[0.5, 0.25, 0.25]]]))
        >>> three.rank(torch.tensor([0])).item(), three.rank(torch.tensor([2])).item()
        (0, 2)
        """
        target = self.check_target(target)
        own = self._at(self.log_mean, target).unsqueeze(self.class_dim)
        number = torch.arange(self.classes, device=target.device).reshape(-1, *[1] * (-self.class_dim - 1))
        lower = number < target.unsqueeze(self.class_dim)
        return ((self.log_mean > own) | ((self.log_mean == own) & lower)).sum(self.class_dim)

    def check_target(self, target: Tensor | np.ndarray) -> Tensor:
        """The targets as class numbers, one for each label, or an error that says what is wrong."""
        return check_classes(self.log_members, target, self.class_dim)

    # ---------------------------------------------------------------- how it is computed

    @cached_property
    def _log_mean_and_mean(self) -> tuple[Tensor, Tensor]:
        """The mean over members, as logarithm and as it is."""
        if self.size == 1:
            return self.log_members[0], self.log_members[0].exp()
        if self.log_members.requires_grad:
            log_mean = log_mean_exp(self.log_members)
            return log_mean, log_mean.exp()
        mean = torch.cat([part.exp().mean(0) for part in self._chunks()])
        log_mean = mean.log()
        small = mean < 1e8 * torch.finfo(mean.dtype).tiny  # where exp loses digits
        if bool(small.any()):
            log_mean[small] = log_mean_exp(self.log_members[:, small])
        return log_mean, mean

    def _chunks(self) -> Iterator[Tensor]:
        rows = max(1, CHUNK * len(self) // max(self.log_members.numel(), 1))
        return iter(self.log_members.split(rows, 1))

    def _map(self, change: Any) -> Classification:
        logits = None if self.logits is None else change(self.logits)
        return Classification(change(self.log_members), logits, self.class_dim)

    def _at(self, values: Tensor, target: Tensor) -> Tensor:
        """The values of the target's class."""
        index = target.unsqueeze(self.class_dim)
        index = index.expand(self.size, *index.shape) if values.ndim > index.ndim else index
        return values.gather(self.class_dim, index).squeeze(self.class_dim)


class LabelledExamples(NamedTuple):
    """The labels that count, each an example of its own, with its row of the batch."""

    prediction: Classification  # (members, examples, classes)
    target: Tensor  # (examples)
    row: Tensor  # (examples)


def judged_examples(
    prediction: Classification, target: Any, name: str = "target", ignore: int | None = None
) -> LabelledExamples:
    """Each pixel or token with a label as an example: labels of -100, and of `ignore`, are left out.

    >>> p = Classification.from_logits(torch.zeros(2, 3, 4, 5))  # three sequences of four, five classes
    >>> judged_examples(p, torch.tensor([[0, 1, 2, -100], [4, -100, -100, -100], [-100] * 4])).row.tolist()
    [0, 0, 0, 1]
    """
    numbers, judged = judged_labels(prediction.log_members, target, prediction.class_dim, name, ignore)
    flat, row = prediction.flat(), torch.arange(len(numbers), device=numbers.device)
    row = row.repeat_interleave(numbers[0].numel()) if len(numbers) else row
    if bool(judged.all()):
        return LabelledExamples(flat, numbers.flatten(), row)
    kept = judged.flatten()
    return LabelledExamples(flat[kept], numbers.flatten()[kept], row[kept])


def labelled_examples(name: str, prediction: Classification, target: Any) -> LabelledExamples:
    """As `judged_examples`, for a function that fits or judges: at least one, and probabilities without NaN."""
    found = judged_examples(prediction, target, name)
    if not len(found.target):
        raise ValueError(
            f"{name}: there must be at least one example with a label, but "
            f"{f'all labels are {IGNORED}, which is ignored' if len(prediction) else 'there are no validation data'}."
        )
    check_numeric(name, found.prediction.log_members, -1)
    return found


def _float(values: Tensor | np.ndarray) -> Tensor:
    tensor = wide(values if isinstance(values, Tensor) else tensor_of(values))
    return tensor if tensor.is_floating_point() else tensor.float()


def _times_log(p: Tensor, log_p: Tensor) -> Tensor:
    """p log p, 0 where p is 0."""
    return p * log_p.clamp_min(torch.finfo(p.dtype).min)


def _pairwise_kl(log_p: Tensor, class_dim: int) -> Tensor:
    """Mean of p_i (log p_i - log p_j) over i != j: (size * sum of p log p - sum of p * sum of log p) / pairs."""
    size, p = len(log_p), log_p.exp()
    alike, crossed = size * _times_log(p, log_p).sum(0), p.sum(0) * log_p.sum(0)  # members
    crossed = torch.where(p.amax(0) > 0, crossed, 0.0)
    return (alike - crossed).sum(class_dim).clamp_min(0) / max(size * (size - 1), 1)


def _check_dim(name: str, tensor: Tensor, class_dim: int) -> int:
    if tensor.ndim < 3 or 0 in tensor.shape:
        raise ValueError(
            f"{name}: the tensor must be (members, batch, ..., classes) without an empty dimension, but its "
            f"shape is {tuple(tensor.shape)}. For one model's output, add the members' dimension with tensor[None]."
        )
    if not -tensor.ndim + 2 <= class_dim < tensor.ndim or class_dim in (0, 1):
        raise ValueError(f"{name}: class_dim must be from 2 to {tensor.ndim - 1}, or negative, but it is {class_dim}.")
    return class_dim - tensor.ndim if class_dim >= 0 else class_dim


def _first_row(bad: Tensor, class_dim: int) -> tuple[list[int], str]:
    where = bad.any(class_dim).nonzero()[0].tolist()
    return where, f"[member {where[0]}, example {', '.join(map(str, where[1:]))}]"
