"""How alike networks are: in weight space, and in function space."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .._common.optional import require
from .._common.trees import unstack
from ..core.ensemble import Ensemble
from ..methods.building import check_choice
from .checkpoints import Course, Trajectory
from .common.examples import (
    Examples,
    answers,
    choose_task,
    is_classifying,
    labels_of,
    log_probabilities,
    run,
    target_labels,
)
from .common.networks import Networks, check_alike, gram, networks_of


def cosine(a: Any, b: Any = None, *, parameters: Literal["matrices", "all"] = "matrices") -> np.ndarray:
    """The cosine of the angle between the weights of each network of `a` and of each of `b`: (networks, networks).

    Only weight matrices and filters count. Scales of normalisation layers all start at 1, so that with them the
    weights of independent networks point in similar directions however different they are.

    Args:
        parameters: "matrices": those with two or more dimensions; "all": biases and scales of normalisation, too

    >>> cosine([nn.Linear(4, 3)]).round(6)
    array([[1.]])
    """
    check_choice("cosine", "parameters", parameters, ("matrices", "all"))
    one = networks_of("cosine", a)
    other = one if b is None else networks_of("cosine", b)
    check_alike("cosine", one, other)
    counted = [name for name, p in one.model.named_parameters() if parameters == "all" or p.dim() > 1]
    pieces = [[part for name, part in n.columns() if name in set(counted)] for n in (one, other)]
    if not pieces[0]:
        raise ValueError('cosine: the network has no weight matrix. Give parameters="all" to compare what it has.')
    lengths = [np.sqrt(sum(part.double().square().sum(1).numpy() for part in own)) for own in pieces]
    inner = sum(gram(first, second) for first, second in zip(*pieces, strict=True))
    return np.clip(inner / np.outer(*lengths), -1, 1)


def disagreement(
    a: Any, b: Any = None, data: Any = None, normalised: bool = False, *, task: str | None = None
) -> np.ndarray:
    """The share of rows on which each network of `a` and each of `b` give different labels: (networks, networks).

    Args:
        data: (x, y), a data set or a loader, x alone where nothing is normalised; by default the probe of trajectories
        normalised: divide by the error of the row's network, that of `a`, as in Figure S1 and section 4.3; where it
            makes no error, 0 if they agree and infinite if not
        task: as `Ensemble.task`; by default what the networks, labels and outputs tell

    >>> disagreement([nn.Linear(4, 3)], data=torch.randn(8, 4))
    array([[0.]])
    """
    one, other, targets = _compare("disagreement", a, b, data, task)
    first, second = (labels_of(answer) for answer in (one, other))
    apart = np.stack([(row != second).double().mean(1).numpy() for row in first])
    if not normalised:
        return apart
    if targets is None:
        raise ValueError("disagreement: normalised=True needs labels, but there are none. Give data=(x, y).")
    error = (first != target_labels(targets, one.shape[-1])).double().mean(1).numpy()
    return ratios(apart, error[:, None])


def divergence(
    a: Any, b: Any = None, data: Any = None, kind: Literal["kl", "js"] = "kl", *, task: str | None = None
) -> np.ndarray:
    """The mean divergence of the predictions of each network of `a` from those of each of `b`, in nats.

    Args:
        data: (x, y), a data set or a loader, or x alone; by default the probe of trajectories
        kind: "kl": Kullback and Leibler, of a relative to b; "js": Jensen and Shannon, between 0 and log 2
        task: as `Ensemble.task`; by default what the networks, labels and outputs tell

    >>> divergence([nn.Linear(4, 3), nn.Linear(4, 3)], data=torch.randn(8, 4), kind="js").shape
    (2, 2)
    """
    check_choice("divergence", "kind", kind, ("kl", "js"))
    one, other, _ = _compare("divergence", a, b, data, task)
    between = _kl if kind == "kl" else _js
    return np.array([[between(p, q) for q in other.double()] for p in one.double()])


def embedding(
    runs: Any,
    method: Literal["tsne", "pca", "mds"] = "tsne",
    *,
    data: Any = None,
    task: str | None = None,
    perplexity: float | None = None,
    seed: int = 0,
) -> list[np.ndarray]:
    """Points in the plane for the predictions of every network: one array, (networks, 2), for each run.

    Args:
        runs: trajectories, or any holders of networks: subspace samples, ensembles
        method: "tsne" on the flattened predictions, as Figures 2 and 4; "pca" of them; "mds": classical scaling of
            Jensen-Shannon distances (in regression Euclidean ones), which keeps distances as well as a plane can
        data: where networks are compared; by default the probe of trajectories
        task: as `Ensemble.task`; by default what the networks, labels and outputs tell
        perplexity: of t-SNE; by default 30, or a third of the networks if these are few
        seed: of the embedding's start

    >>> runs = [[nn.Linear(4, 3) for _ in range(4)] for _ in range(2)]
    >>> [points.shape for points in embedding(runs, "pca", data=torch.randn(8, 4))]
    [(4, 2), (4, 2)]
    """
    check_choice("embedding", "method", method, ("tsne", "pca", "mds"))
    holders = list(runs) if isinstance(runs, (list, tuple)) else [runs]
    examples = None if data is None else Examples("embedding", data)
    found = [_answers("embedding", holder, examples, task) for holder in holders]
    together, classifying = torch.cat([answer for answer, _, _ in found]), is_classifying(found[0][1])
    if method == "mds":
        centre = np.eye(len(together)) - 1 / len(together)
        points = _axes(-centre @ _distances(together, classifying) ** 2 @ centre / 2)  # classical scaling
    else:
        values = (together.exp() if classifying else together).flatten(1).double()
        centred = (values - values.mean(0)).numpy()
        points = _axes(centred @ centred.T) if method == "pca" else _tsne(values.numpy(), perplexity, seed)
    return np.split(points, np.cumsum([len(answer) for answer, _, _ in found])[:-1])


def ratios(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole; where whole is 0, 0 if part is and infinite if not."""
    part, whole = np.broadcast_arrays(np.asarray(part, float), np.asarray(whole, float))
    empty = np.where(part > 0, math.inf, 0.0)
    return np.divide(part, whole, out=empty, where=whole > 0)


def answers_and_targets(
    caller: str, holder: Any, data: Any, task: str | None = None
) -> tuple[Tensor, str, Tensor | None]:
    """What each network says, (networks, rows, ...), the task, and the labels of the rows."""
    return _answers(caller, holder, None if data is None else Examples(caller, data), task)


def _compare(caller: str, a: Any, b: Any, data: Any, task: str | None) -> tuple[Tensor, Tensor, Tensor | None]:
    examples = None if data is None else Examples(caller, data)
    one, kind, targets = _answers(caller, a, examples, task)
    other = one if b is None else _answers(caller, b, examples, task)[0]
    if not is_classifying(kind):
        raise ValueError(f"{caller}: compares labels and probabilities, but the task is {kind}. Compare run.outputs.")
    if one.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"{caller}: the networks must predict the same rows and classes, but their outputs are "
            f"{tuple(one.shape[1:])} and {tuple(other.shape[1:])}. Give data=."
        )
    for name, said in (("a", one), ("b", other)):
        if len(lost := said.isnan().flatten(1).any(1).nonzero()):
            raise ValueError(
                f"{caller}: network {int(lost[0])} of {name} gives NaN on some rows, which cannot be compared. Look "
                "at its weights and at the inputs, or leave it out."
            )
    return one, other, targets


def _answers(
    caller: str, holder: Any, examples: Examples | None, task: str | None
) -> tuple[Tensor, str, Tensor | None]:
    """The networks need not be of one architecture: they are asked, not compared."""
    if isinstance(holder, Course) and examples is not None:
        raise ValueError(
            f"{caller}: the predictions of members during training are known only on their probe. Leave data= out."
        )
    if examples is None and isinstance(holder, (Trajectory, Course)) and holder.answers is not None:
        return holder.answers, str(holder.task), holder.targets
    if isinstance(holder, (list, tuple)) and holder:
        parts = [_answers(caller, part, examples, task) for part in holder]
        return torch.cat([part[0] for part in parts]), parts[0][1], parts[0][2]
    if examples is None:
        raise ValueError(f"{caller}: needs data=, because only trajectories with a probe store predictions.")
    if isinstance(holder, Ensemble):
        kind = task or holder.task
        said = [
            torch.stack([log_probabilities(kind, one, holder.class_dim).cpu() for one in unstack(out, holder.size)])
            for out, _ in run(holder, examples)
        ]
        return torch.cat(said, 1), kind, examples.targets
    if isinstance(holder, (Networks, nn.Module)):
        networks = networks_of(caller, holder)
        kind = choose_task(caller, task, networks.task, examples, networks[0])
        rows = [answers(network, examples, kind, networks.class_dim) for network in networks]
        return torch.stack(rows), kind, examples.targets
    networks_of(caller, holder)  # says what is taken
    raise AssertionError


def _kl(p: Tensor, q: Tensor) -> float:
    """Of logarithms of probabilities, (rows, classes); a class that p excludes counts nothing."""
    terms = torch.where(p > -math.inf, p.exp() * (p - q), torch.zeros_like(p))
    return terms.sum(-1).mean().clamp_min(0).item()


def _js(p: Tensor, q: Tensor) -> float:
    middle = torch.logaddexp(p, q) - math.log(2)
    return (_kl(p, middle) + _kl(q, middle)) / 2


def _distances(together: Tensor, classifying: bool) -> np.ndarray:
    rows = together.double()
    if not classifying:
        return torch.cdist(rows.flatten(1), rows.flatten(1)).numpy()
    return np.sqrt([[max(_js(p, q), 0.0) for q in rows] for p in rows])


def _axes(products: np.ndarray) -> np.ndarray:
    """Points in the plane with these inner products, as nearly as can be: the two largest eigenvectors."""
    values, vectors = np.linalg.eigh(products)
    points = vectors[:, ::-1][:, :2] * np.sqrt(np.clip(values[::-1][:2], 0, None))
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def _tsne(values: np.ndarray, perplexity: float | None, seed: int) -> np.ndarray:
    if len(values) < 4:
        raise ValueError(f'embedding: t-SNE needs at least 4 networks, but there are {len(values)}. Use method="pca".')
    manifold = require("sklearn.manifold", 'ls.embedding(method="tsne")', "data")
    perplexity = perplexity or min(30.0, (len(values) - 1) / 3)
    made = manifold.TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
    return np.asarray(made.fit_transform(values.astype(np.float32)), float)
