"""Columns of a prediction, one value for each example: all that the metrics need, without the probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .._common.trees import IGNORED
from .checks import rows_index, tensor_of
from .classification import CHUNK, SCORES, Classification, judged_examples
from .metrics import class_bins
from .prediction import Prediction, check_any_batch

LEVEL = 0.9  # of the intervals that `coverage` and `width` are about


class Summary:
    """A prediction, and its targets where there are any, as columns; a pixel or an output is an example of its own.

    Columns are attributes, computed when first asked for: `summary.label`, `summary.correct`. Those of members are
    (members, examples), the others (examples). `kept` computes all of them and lets the probabilities go.

    Args:
        ignore: a target that is left out, such as 255 in segmentation; -100 always is
        interval: of a regression, the ends of intervals that stand in place of the mixture's own, as conformal ones do

    >>> p = Classification.from_logits(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]))
    >>> Summary(p, torch.tensor([0, 0])).correct.tolist()
    [True, False]
    """

    def __init__(
        self,
        prediction: Prediction,
        target: Tensor | np.ndarray | None = None,
        ignore: int | None = None,
        interval: tuple[Tensor, Tensor] | None = None,
    ):
        if not len(prediction):
            raise ValueError("Summary: there must be at least one example, but the prediction is empty.")
        flat, numbers = prediction.flat(), None
        self.dense = len(flat) != len(prediction)  # several pixels or outputs for each row of the batch
        row = torch.arange(len(prediction)).repeat_interleave(len(flat) // len(prediction))
        if target is not None and isinstance(prediction, Classification):
            flat, numbers, row = judged_examples(prediction, target, ignore=ignore)
            if not len(numbers):
                left_out = IGNORED if ignore is None else ignore
                raise ValueError(f"evaluate: needs at least one target, but all are {left_out}, which is ignored.")
        elif target is not None:
            if ignore is not None:
                raise ValueError("evaluate: ignore is only for class numbers, but this is a regression.")
            numbers = prediction.check_target(target).flatten()
        self.size, self.classes = prediction.size, flat.classes if isinstance(flat, Classification) else 0
        self._prediction: Prediction | None = flat
        self._columns: dict[str, Tensor] = {} if numbers is None else {"target": numbers}
        if interval is not None:
            self._columns |= {name: end.flatten() for name, end in zip(("lower", "upper"), interval, strict=True)}
        self._names = _column_names(flat, numbers is not None)
        self.row = row.cpu()  # of each example: those of one row are drawn together

    @property
    def names(self) -> list[str]:
        """The columns there are."""
        return [*self._names, *(name for name, (_, *needs) in DERIVED.items() if set(needs) <= set(self._names))]

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self.names:
            raise AttributeError(f"this summary has no column {name!r}; there are {', '.join(self.names)}.")
        if name in DERIVED:
            function, *needs = DERIVED[name]
            return function(*(getattr(self, need) for need in needs))
        if name not in self._columns:
            assert self._prediction is not None
            self._columns[name] = _compute(name, self._prediction, self._columns.get("target"))
        return self._columns[name]

    def score(self, name: str) -> Tensor:
        """An uncertainty, larger = less certain, as the prediction's own `score`."""
        column = {"entropy": "total", "mutual_information": "epistemic"}.get(name, name)
        if column in self.names and (not self.classes or name in SCORES):
            return getattr(self, column)
        if name in ("max_logit", "energy") and self.classes:
            raise ValueError(f"score: {name} needs logits, but this prediction was made from probabilities.")
        known = SCORES if self.classes else ("total", "aleatoric", "epistemic")
        raise ValueError(f"score: {name!r} is unknown. Choose from {', '.join(known)}.")

    def kept(self) -> Summary:
        """This summary with every column computed, on the CPU, and the probabilities let go."""
        columns = {name: getattr(self, name).cpu() for name in self._names}
        self._prediction = None
        self._columns = {name: column.clone() for name, column in columns.items()}  # into memory that is free by now
        return self

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, rows: Any) -> Summary:
        """Some examples."""
        rows = rows_index(rows)
        names = [name for name in self._names if name != "class_bins"]
        return self._with({name: getattr(self, name)[..., rows] for name in names}, self.row[rows])

    def member(self, i: int) -> Summary:
        """Member `i` alone: its label, confidence, entropy, likelihood and squared error."""
        if not -self.size <= i < self.size:
            raise IndexError(f"member index {i} is out of range (0-{self.size - 1}).")
        if self._prediction is not None:
            alone = self._with({}, self.row)
            alone._prediction, alone._names, alone.size = self._prediction.member(i), list(self._names), 1
            alone._columns = {"target": self._columns["target"]} if "target" in self._columns else {}
            return alone
        columns = {own: getattr(self, name)[i] for name, own in OF_MEMBER.items() if name in self._names}
        if not columns:
            raise ValueError("member: this summary does not store the members. Use predict without keep=.")
        alone = self._with({**columns, **({"target": self.target} if "target" in self._names else {})}, self.row)
        alone.size = 1
        return alone

    @classmethod
    def cat(cls, parts: Sequence[Summary]) -> Summary:
        """Batches of the same ensemble, one after the other."""
        if len({(part.size, part.classes, tuple(part._names)) for part in parts}) != 1:
            raise ValueError("cat: all parts must have the same members, classes and columns, and there must be some.")
        starts = np.cumsum([0, *(int(part.row.max()) + 1 for part in parts)]).tolist()
        row = torch.cat([part.row + start for part, start in zip(parts, starts, strict=False)])
        columns = {name: torch.cat([getattr(part, name) for part in parts], -1) for name in parts[0]._names}
        if "class_bins" in columns:
            columns["class_bins"] = torch.stack([part.class_bins for part in parts]).sum(0)
        return parts[0]._with(columns, row)

    def _with(self, columns: dict[str, Tensor], row: Tensor) -> Summary:
        other = Summary.__new__(Summary)
        other.size, other.classes, other.dense, other._prediction = self.size, self.classes, self.dense, None
        other._columns, other._names, other.row = columns, list(columns), row
        if not len(row):
            raise ValueError("Summary: there must be at least one example, but none is left.")
        return other


def summarize(batches: Iterable[tuple[Prediction, Any]]) -> Summary:
    """The summary of all batches of (prediction, targets), in little memory; batches without a label are left out."""
    summaries: list[Summary] = []
    empty: tuple[Prediction, Any] | None = None
    for prediction, target in batches:
        if all_ignored(prediction, target):
            empty = prediction, target
            continue
        summaries.append(Summary(prediction, target).kept())
        # Joined early, in pairs of like size: many small tensors among large ones would keep memory from its reuse.
        while len(summaries) > 1 and len(summaries[-2]) <= len(summaries[-1]):
            summaries[-2:] = [Summary.cat(summaries[-2:])]
    if empty is not None and not summaries:
        Summary(*empty)  # says what is wrong
    check_any_batch(summaries)
    return Summary.cat(summaries)


def all_ignored(prediction: Prediction | Summary, target: Any) -> bool:
    """Whether no label of a batch is evaluated."""
    return target is not None and isinstance(prediction, Classification) and bool((tensor_of(target) == IGNORED).all())


def _column_names(prediction: Prediction, targets: bool) -> list[str]:
    if isinstance(prediction, Classification):
        names = [*CLASSIFICATION, *(CLASSES_KNOWN if targets else ())]
        return names if prediction.logits is not None else [n for n in names if n not in ("max_logit", "energy")]
    dense = prediction.variances is not None and bool((prediction.variances > 0).all())
    known = [name for name in VALUES_KNOWN if dense or name != "log_likelihood"]
    return [*REGRESSION, *(known if targets else ())]


def _compute(name: str, prediction: Any, target: Tensor | None) -> Tensor:
    """A column: what the prediction has under this name, for the targets where it asks for them."""
    if name == "class_bins":
        return _class_bins(prediction.mean, cast(Tensor, target))
    if name in ("max_logit", "energy", "variation_ratio"):
        return prediction.score(name)
    if name in ("lower", "upper"):
        return prediction.quantile((1 - LEVEL) / 2 if name == "lower" else (1 + LEVEL) / 2)
    found = getattr(prediction, name)
    return found(target) if callable(found) else found


def _class_bins(mean: Tensor, target: Tensor) -> Tensor:
    """In pieces, for they are made in double precision."""
    rows = max(1, CHUNK // mean.shape[1])
    pieces = zip(mean.split(rows), target.split(rows), strict=True)
    return torch.stack([class_bins(*piece) for piece in pieces]).sum(0)


CLASSIFICATION = (  # columns of the prediction alone
    *("label", "confidence", "total", "aleatoric", "epistemic", "max_logit", "energy", "variation_ratio"),
    *("pairwise_kl", "member_label", "member_confidence", "member_entropy"),
)

REGRESSION = ("mean", "total", "aleatoric", "epistemic", "lower", "upper")

CLASSES_KNOWN = (  # columns of the prediction and the targets
    *("target", "log_likelihood", "squared_error", "rank", "member_log_likelihood", "member_squared_error"),
    "class_bins",  # not one for each example: sums, which add up over batches
)

VALUES_KNOWN = ("target", "cumulative", "crps", "log_likelihood")

OF_MEMBER = {
    "member_label": "label",
    "member_confidence": "confidence",
    "member_entropy": "total",
    "member_log_likelihood": "log_likelihood",
    "member_squared_error": "squared_error",
}

DERIVED: dict[str, tuple[Any, ...]] = {  # a function and the columns it takes
    "msp": (lambda confidence: 1 - confidence, "confidence"),
    "correct": (lambda label, target: label == target, "label", "target"),
    "error": (lambda label, target: (label != target).double(), "label", "target"),
}
