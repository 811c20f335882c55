"""Do members differ? Their labels against one another, and what their probabilities say of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._columns import Column, Matrix, read_columns, read_matrix


def agreement(member_label: Matrix) -> Tensor:
    """Share of examples on which each pair of members gives the same label.

    Shapes:
        member_label: (members, batch); result: (members, members), with ones on the diagonal

    >>> agreement([[0, 1, 1, 2], [0, 1, 2, 1]]).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    labels = read_matrix("agreement", "member_label", member_label)
    return torch.stack([(label == labels).double().mean(1) for label in labels])


def disagreement(member_label: Matrix) -> float:
    """Share of examples on which two members differ, averaged over pairs; 0 for one member.

    Shapes:
        member_label: (members, batch)

    >>> disagreement([[0, 1, 1, 2], [0, 1, 2, 1]])
    0.5
    """
    labels = read_matrix("disagreement", "member_label", member_label)
    pairs = len(labels) * (len(labels) - 1)
    return (1 - agreement(labels)).sum().item() / max(pairs, 1)


def disagreement_by_error(member_label: Matrix, target: Column) -> float:
    """`disagreement` divided by the members' mean error; 0 when no member errs, for then all agree.

    Shapes:
        member_label: (members, batch); target: (batch)

    >>> disagreement_by_error([[0, 1, 1, 2], [0, 1, 2, 1]], target=[0, 1, 2, 2])  # 1/2, and each errs once in four
    2.0
    """
    _, error = _member_errors("disagreement_by_error", member_label, target)
    return _ratio(disagreement(member_label), error.mean().item())


def disagreement_with_base(member_label: Matrix, target: Column) -> float:
    """Disagreement of each further member with the first, divided by its own error, averaged; 0 for one member.

    Infinite when a member makes no error and the first does.

    Shapes:
        member_label: (members, batch), the base first; target: (batch)

    >>> disagreement_with_base([[0, 1, 2, 2], [0, 1, 2, 1]], target=[0, 1, 2, 2])
    1.0
    """
    labels, error = _member_errors("disagreement_with_base", member_label, target)
    apart = (labels[1:] != labels[0]).double().mean(1)
    ratios = [_ratio(d, e) for d, e in zip(apart.tolist(), error[1:].tolist(), strict=True)]
    return sum(ratios) / max(len(ratios), 1)


def pairwise_kl(pairwise_kl: Column) -> float:
    """Kullback-Leibler divergence of two members, averaged over ordered pairs; infinite where supports differ.

    Shapes:
        pairwise_kl: (batch), the mean over ordered pairs for each example, as `Summary` gives it

    >>> members = pb.Classification.from_probabilities(torch.tensor([[[0.5, 0.5]], [[0.8, 0.2]]]))
    >>> pairwise_kl(pb.Summary(members).pairwise_kl)
    0.2079...
    """
    (pairwise_kl,) = read_columns("pairwise_kl", infinite=True, pairwise_kl=pairwise_kl)
    return pairwise_kl.mean().item()


def mutual_information(epistemic: Column) -> float:
    """Mean mutual information of label and member: the Jensen-Shannon divergence of the members, in nats.

    Of data inside it is the papers' IDMI, of data outside their OODMI.

    Shapes:
        epistemic: (batch), as `Classification.epistemic` gives it

    >>> members = pb.Classification.from_probabilities(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    >>> mutual_information(members.epistemic)  # each is sure, and they contradict each other: log 2
    0.6931...
    """
    (epistemic,) = read_columns("mutual_information", epistemic=epistemic)
    return epistemic.mean().item()


def entropy(total: Column) -> float:
    """Mean entropy of the mean prediction, in nats.

    Shapes:
        total: (batch), as `Classification.total` gives it

    >>> entropy(pb.Classification.from_probabilities(torch.full((2, 3, 4), 0.25)).total)  # log 4
    1.3862...
    """
    (total,) = read_columns("entropy", total=total)
    return total.mean().item()


def aleatoric(aleatoric: Column) -> float:
    """Mean entropy of the members, in nats: `entropy` without `mutual_information`.

    Shapes:
        aleatoric: (batch), as `Classification.aleatoric` gives it

    >>> aleatoric(pb.Classification.from_probabilities(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).aleatoric)
    0.0
    """
    (aleatoric,) = read_columns("aleatoric", aleatoric=aleatoric)
    return aleatoric.mean().item()


def _member_errors(metric: str, member_label: Matrix, target: Column) -> tuple[Tensor, Tensor]:
    labels = read_matrix(metric, "member_label", member_label)
    (target,) = read_columns(metric, target=target)
    if labels.shape[1] != len(target):
        raise ValueError(
            f"{metric}: needs one target for each of {labels.shape[1]} labels of a member, but there are {len(target)}."
        )
    return labels, (labels != target).double().mean(1)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else (math.inf if part else 0.0)
