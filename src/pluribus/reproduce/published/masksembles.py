"""Figures of Masksembles (Durasov et al.), as printed."""

from __future__ import annotations

from .packed import printed_rows

FIGURE1 = {"N=4 M=2 S=2": "0.44", "N=4 M=2 S=3": "0.16"}  # IoU of the drawn examples

FIGURE2 = {"S": (1.0, 1.7, 2.3), "hidden units": (3, 5, 7), "M": 3}

TABLE1 = printed_rows(
    """
single: 0.89 0.06 1 10 0.91 0.94
mc_dropout: 0.90 0.01 1 12 0.92 0.95
masksembles: 0.92 0.01 2.3 16 0.94 0.96
deep: 0.92 0.01 4 40 0.94 0.96
""",
    ("accuracy", "ece", "size", "minutes", "auroc", "aupr"),
)

TABLE2 = printed_rows(
    """
single: 0.71 0.07 1.0 50
masksembles IoU=0.7: 0.72 0.03 0.7 55
masksembles IoU=0.3: 0.71 0.02 0.3 60
masksembles IoU=0.2: 0.70 0.02 0.2 70
deep: 0.74 0.02 - 200
mc_dropout: 0.69 0.03 - 80
""",
    ("accuracy", "ece", "iou", "hours"),
)

FIGURE8_SCALES = (1.0, 1.1, 1.4, 2.0, 3.0)
