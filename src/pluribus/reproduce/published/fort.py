"""Figures of Fort et al. that stand in its text; the rest are plots."""

from __future__ import annotations

ACCURACY = {"small_cnn": "0.64", "medium_cnn": "0.71", "resnet20": "0.90"}  # section 3, CIFAR-10

DIVERGENCE = {  # Jensen-Shannon, on SVHN, five samples of each kind (section 5)
    "independent": "0.384",
    "trajectory": "0.153",
    "random": "0.155",
    "low_rank": "0.087",
    "diagonal": "0.034",
}

EXPONENT = {"ResNet20v1, CIFAR-100": "0.22"}  # Figure S6
