"""Other libraries' ways in: each file adapts Pluribus to one of them, and is imported where that library is used."""

from __future__ import annotations

from typing import Any

from .._common.optional import require


def torchmetric(name: str, **settings: Any) -> Any:
    """Metric `name` as a `torchmetrics.Metric`, for streaming and several processes; needs torchmetrics.

    `update(prediction, target)`; metrics that compare sets take their columns, `update(inside=..., outside=...)`.
    Settings are those of the function, such as `bins=10`.

    Shapes:
        update: a prediction of (members, batch, classes), and targets of (batch)

    Args:
        settings: of the metric, such as bins=10

    >>> metric = torchmetric("accuracy")
    >>> metric.update(pb.Classification.from_logits(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000...
    """
    require("torchmetrics", "pb.torchmetric", "metrics")
    from .torchmetrics import Streaming

    return Streaming(name, **settings)
