"""How far inputs are from the training data in a trained network's own features: one pass, nothing is trained.

The features are what the last layer reads. Far from those of the training rows, a network was never checked, however
sure it is. This is what an ensemble's disagreement has to beat where the question is "is this input unlike the data?".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._common.names import say_unknown
from .._common.trees import as_batch, rows_of
from ..core.ensemble import Ensemble
from ..methods.building import check_model
from ..methods.layer_choice import heads_of
from ..surgery.calling import evaluation_mode
from ..training.batching import loader, pair_of

KINDS = ("neighbours", "mahalanobis")

ROWS = 256  # that are passed at once

RIDGE = 1e-3  # of the mean variance, added to every feature's, so that features that never vary can be divided by


class FeatureDistance(nn.Module):
    """The distance of inputs from the training rows, larger = less familiar; see `feature_distance`.

    Args:
        model: the trained network
        kind: "neighbours" or "mahalanobis"
        head: the layer that reads the features
        reference: what is kept of the training rows: "rows", or "whitening" and "centres"
        neighbours: which nearest row counts

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> distance = pb.FeatureDistance(network, "neighbours", "2", {"rows": torch.randn(20, 8)})
    >>> distance(torch.randn(5, 4)).shape
    torch.Size([5])
    """

    def __init__(self, model: nn.Module, kind: str, head: str, reference: dict[str, Tensor], neighbours: int = 1):
        super().__init__()
        wanted = {"rows"} if kind == "neighbours" else {"whitening", "centres"}
        if kind not in KINDS or set(reference) != wanted or not all(t.ndim == 2 and len(t) for t in reference.values()):
            raise ValueError(f"feature_distance: {kind!r} needs {' and '.join(sorted(wanted))}, tables of numbers")
        if kind == "neighbours" and not 1 <= neighbours <= len(reference["rows"]):
            raise ValueError(
                f"feature_distance: neighbours must be from 1 to {len(reference['rows'])}, the number of training "
                f"rows, but it is {neighbours}."
            )
        model.get_submodule(head)  # an error where there is no such layer
        self.model, self.kind, self.head, self.neighbours = model, kind, head, neighbours
        for name, tensor in reference.items():
            self.register_buffer(name, tensor)

    @property
    def reference(self) -> dict[str, Tensor]:
        """What was kept of the training rows."""
        return dict(self.named_buffers(recurse=False))

    def forward(self, x: Any) -> Tensor:
        """The distance of each row: (batch)."""
        return self.of(features_of(self.model, self.head, x))

    @torch.no_grad()
    def of(self, features: Tensor) -> Tensor:
        """The distance of rows whose features were read already: (batch)."""
        if self.kind == "neighbours":
            rows, parts = self.get_buffer("rows"), F.normalize(features).split(ROWS)
            return torch.cat([torch.cdist(part, rows).kthvalue(self.neighbours).values for part in parts])
        return torch.cdist(features @ self.get_buffer("whitening"), self.get_buffer("centres")).min(1).values  # classes

    def score(self, source: Any, batch_size: int = ROWS) -> Tensor:
        """The distance of all rows of a tensor, of (x, y), of a data set or of a loader, in order."""
        if isinstance(source, Tensor):
            return torch.cat([self(part) for part in source.split(batch_size)])
        return torch.cat([self(pair_of(batch)[0]) for batch in loader(source, batch_size)])


def feature_distance(
    model: nn.Module,
    train: Any,
    kind: str = "neighbours",
    *,
    neighbours: int = 10,
    rows: int = 10_000,
    where: str | None = None,
    batch_size: int = ROWS,
    seed: int = 0,
) -> FeatureDistance:
    """How far inputs are from the training rows in the features that the last layer of a trained network reads.

    "neighbours" is the distance to the k-th nearest training row, features scaled to length 1 (Sun et al., ICML 2022).
    "mahalanobis" is the distance to the nearest class mean under one covariance of all classes (Lee et al., NeurIPS
    2018); of targets that are no classes there is one mean. The model is not changed.

    Shapes:
        distance(x): (batch), larger = less familiar; `pb.metrics.auroc(distance(inside), distance(outside))`

    Args:
        model: a trained network, or an ensemble of one
        train: (x, y), a data set or a loader of (x, y)
        kind: "neighbours" or "mahalanobis"
        neighbours: k
        rows: how many training rows are kept, drawn at random
        where: the last layer; by default the one that gives the output
        batch_size: how many rows are passed at once
        seed: of the draw

    >>> x = torch.randn(300, 4)
    >>> distance = pb.feature_distance(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), (x, x.argmax(1)))
    >>> distance(torch.randn(5, 4)).shape
    torch.Size([5])
    """
    if kind not in KINDS:
        raise ValueError(f"feature_distance: the kind {say_unknown(kind, KINDS)}")
    if isinstance(model, Ensemble):
        if model.size != 1:
            raise ValueError(
                f"feature_distance: takes one network, but this ensemble has {model.size} members. Give "
                "ensemble.member(0)."
            )
        model = model.member(0)
    model = check_model("feature_distance", model)
    batches = loader(train, batch_size)
    head = heads_of(model, where, pair_of(next(iter(batches)))[0], "feature_distance")[0]
    found, targets = _some_features(model, head, batches, rows, seed)
    if kind == "neighbours":
        return FeatureDistance(model, kind, head, {"rows": F.normalize(found)}, neighbours)
    labels = torch.zeros(len(found), dtype=torch.long) if targets.is_floating_point() or targets.ndim > 1 else targets
    classes, number = labels.unique(return_inverse=True)
    sums = torch.zeros(len(classes), found.shape[1], dtype=torch.float64).index_add(0, number, found.double())
    means = sums / number.bincount()[:, None]
    rest = found.double() - means[number]
    covariance = rest.T @ rest / len(rest)
    covariance += RIDGE * covariance.diagonal().mean().clamp_min(1e-12) * torch.eye(len(covariance))
    whitening = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
    reference = {"whitening": whitening.float(), "centres": (means @ whitening).float()}
    return FeatureDistance(model, kind, head, reference)


@torch.no_grad()
def features_of(model: nn.Module, head: str, x: Any) -> Tensor:
    """What the layer reads for a batch, the mean over tokens or pixels: (batch, features)."""
    args, kwargs = as_batch(x)
    with evaluation_mode(model), reading_features(model, head) as read:
        model(*args, **kwargs)
    rows = rows_of((args, kwargs))
    if read[-1].shape[0] != rows:
        raise ValueError(
            f"feature_distance: the layer {head!r} reads {tuple(read[-1].shape)}, but the batch has {rows} rows. "
            "Choose a layer that reads one row for each of the batch with where=."
        )
    return read[-1]


@contextmanager
def reading_features(model: nn.Module, head: str) -> Iterator[list[Tensor]]:
    """A list of what the layer reads in each pass of the model meanwhile: (batch, features)."""
    read: list[Tensor] = []
    layer = model.get_submodule(head)

    def note(_: nn.Module, given: Any) -> None:
        found = given[0].detach().float()
        found = found.flatten(2).mean(2) if layer.get_parameter("weight").ndim > 2 else found  # a convolution
        read.append(found.flatten(1, -2).mean(1) if found.ndim > 2 else found)

    hook = layer.register_forward_pre_hook(note)
    try:
        yield read
    finally:
        hook.remove()


def _some_features(model: nn.Module, head: str, batches: Iterable[Any], most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features and targets of at most so many rows; each row has the same chance."""
    generator = torch.Generator().manual_seed(seed)
    kept: list[Tensor] = []
    for x, y in map(pair_of, batches):
        found = features_of(model, head, x)
        new = [found, y, torch.rand(len(found), generator=generator)]
        kept = [torch.cat(both) for both in zip(kept, new, strict=True)] if kept else new
        if len(kept[2]) > 2 * most:
            kept = _fewest(kept, most)
    return tuple(_fewest(kept, most)[:2])  # type: ignore[return-value]


def _fewest(columns: list[Tensor], most: int) -> list[Tensor]:
    rows = columns[2].argsort()[:most]
    return [column[rows] for column in columns]
