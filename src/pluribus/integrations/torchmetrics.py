"""Any of METRICS as a `torchmetrics.Metric`; imported by `torchmetric` only, because it needs torchmetrics."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from ..uncertainty.checks import tensor_of
from ..uncertainty.metrics import METRICS
from ..uncertainty.prediction import Prediction
from ..uncertainty.summary import Summary, all_ignored


class Streaming(Metric):
    """One of METRICS over batches and processes: keeps the columns it needs, see `torchmetric`.

    >>> metric = Streaming("nll")
    >>> metric.update(pb.Classification.from_logits(torch.zeros(1, 4, 2)), torch.zeros(4, dtype=torch.long))
    >>> round(metric.compute().item(), 4)  # log 2
    0.6931
    """

    full_state_update = False
    is_differentiable = False

    def __init__(self, name: str, **settings: Any):
        super().__init__()
        if name not in METRICS:
            raise ValueError(f"torchmetric: the metric {name!r} is unknown. Choose from {', '.join(METRICS)}.")
        self.name, self.settings, self.needs = name, settings, METRICS[name].needs
        for need in self.needs:
            if need == "class_bins":
                self.add_state(need, torch.zeros(()), dist_reduce_fx="sum")
            else:
                self.add_state(need, [], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """Which way is better, or None where neither is."""
        return {"higher": True, "lower": False}.get(METRICS[self.name].better)

    def update(self, prediction: Prediction | Summary | None = None, target: Any = None, **columns: Any) -> None:
        """Add a batch: a prediction and its targets, or the columns themselves by name."""
        if prediction is not None:
            empty = all_ignored(prediction, target)
            target = tensor_of(target) * 0 if empty else target
            summary = prediction if isinstance(prediction, Summary) else Summary(prediction, target)
            missing = [need for need in self.needs if need not in summary.names]
            if missing:
                raise ValueError(f"torchmetric: {self.name} needs {', '.join(missing)}. Give targets, or the columns.")
            columns = {need: getattr(summary, need) for need in self.needs}
            if empty:  # columns without rows, so that every process has some to join
                columns = {n: c * 0 if n == "class_bins" else c[..., :0] for n, c in columns.items()}
        unknown = set(columns) - set(self.needs)
        if unknown or not columns:
            raise ValueError(f"torchmetric: {self.name} takes {', '.join(self.needs)}, but got {sorted(columns)}.")
        for need, column in columns.items():
            if need == "class_bins":
                setattr(self, need, getattr(self, need) + tensor_of(column))
            else:
                getattr(self, need).append(_rows_first(need, tensor_of(column)))

    def compute(self) -> Tensor:
        """The metric of everything seen; NaN where no label was."""
        columns = [_rows_first(need, dim_zero_cat(getattr(self, need))) for need in self.needs]
        seen = all(column.numel() and (column.any() or self.needs != ("class_bins",)) for column in columns)
        value = METRICS[self.name].function(*columns, **self.settings) if seen else math.nan
        return torch.tensor(value, dtype=torch.float64)


def _rows_first(need: str, column: Tensor) -> Tensor:
    """Columns of members are (members, examples), but processes join what they have along the first dimension."""
    return column.T if need.startswith("member_") else column
