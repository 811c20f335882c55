"""Other libraries' ways in: each file adapts Pluribus to one of them, and is imported where that library is used."""

from __future__ import annotations

from typing import Any

from .._common.optional import require


def torchmetric(name: str, **settings: Any) -> Any:
    """Metric `name` as a `torchmetrics.Metric`, for streaming and several processes; needs torchmetrics.

    `update(prediction, target)`; metrics that compare sets take their columns, `update(inside=..., outside=...)`.
    Settings are those of the function, such as `bins=10`.
    """
    require("torchmetrics", "pb.torchmetric", "metrics")
    from .torchmetrics import Streaming

    return Streaming(name, **settings)
