"""The items of MIMO (Havasi et al.)."""

from __future__ import annotations

from typing import Any

from . import packed_counts as counts
from .checks.analyses import check_bias
from .checks.comparisons import better, expect, more, near, sensitivity
from .checks.exact import check_footnote2
from .checks.findings import MEMBERS, check_seeds
from .checks.pictures import basins_picture, sparsity_picture
from .claims import EXACT, Claim
from .experiments.analyses import BIAS
from .experiments.counting import counting_experiment
from .experiments.members_of_one_network import BASINS, SPARSE
from .packed import SWEEP_COSTS
from .published import mimo as published
from .studies import ALL, MIMO_CIFAR10, MIMO_CIFAR100, MIMO_IMAGENET, study

SETTINGS = {
    "training": "batches of 512, rate 0.1 falling by 0.1, L2 2e-4 (MIMO 3e-4), 200 to 250 epochs (appendix B)",
    "MIMO": "M = 3, batch repetition 4",
    "network": "Wide-ResNet-28-10",
    "shift": "CIFAR-10-C, CIFAR-100-C",
}

IMAGENET = {
    "training": "batches of 4096, rate 0.1 falling by 0.1, L2 1e-4, 90 to 150 epochs (appendix B)",
    "MIMO": "M = 2, input repetition 0.6, batch repetition 2",
    "network": "ResNet-50",
}

COSTS = {
    "smoke": "10 s on one core",
    "laptop": "about an hour on one core: all methods, three seeds, ten epochs (CIFAR-10, 10,000 images)",
    "paper": "Wide-ResNet-28-10: about 12 GPU hours per run of 200 epochs on one V100 or better, 16 GB (our estimate)",
}

IMAGENET_COSTS = {**COSTS, "paper": "TPU or 8 GPUs for days: ImageNet, 90 to 150 epochs per run"}

BASELINES = ("dropout_single_pass",)

CIFAR10 = study("methods-mimo-cifar10", MIMO_CIFAR10, methods=[*ALL, *BASELINES])

CIFAR100 = study("methods-mimo-cifar100", MIMO_CIFAR100, methods=[*ALL, *BASELINES])

LARGE = study("methods-mimo-imagenet", MIMO_IMAGENET, methods=[*ALL, *BASELINES])

SIZES = study("mimo-sizes", MIMO_CIFAR10, methods=["mimo"], sweep={"size": [1, 2, 3, 4]})

REPETITION = study("mimo-repetition", MIMO_IMAGENET, methods=["mimo"], sweep={"input_repetition": [0.0, 0.6, 1.0]},
                   size=2)  # fmt: skip

L1 = study("mimo-l1", MIMO_CIFAR10, methods=["mimo"], sweep={"size": [1, 3], "l1": [0.0, 1e-4]})

L2 = study("mimo-l2", MIMO_CIFAR10, methods=["mimo"], sweep={"size": [1, 3], "l2": [0.0, 1e-2]})

ONE_PASS = ("single", "dropout_single_pass", "multihead")

FIGURES = ("accuracy", "nll", "ece", "cacc", "cnll", "cece")


def _claim(item: str, title: str, says: str, **given: Any) -> Claim:
    return Claim("mimo", item, title, says, **given)


def _beats_one_pass(*metrics: str) -> Any:
    return expect(*(better("mimo", other, metric) for metric in metrics for other in ONE_PASS), metrics=FIGURES)


def _suffers_more(axis: str, strong: str) -> Any:
    """Three members lose more accuracy by regularisation than one: the difference of two paired differences."""
    return expect(
        sensitivity("mimo", axis, strong, "accuracy"), sensitivity("mimo", axis, strong, "nll"),
        metrics=("accuracy", "nll"),
    )  # fmt: skip


ITEMS = [
    _claim(
        "footnote2", "Footnote 2: what MIMO adds to a network",
        "MIMO with three members adds a few hundredths of a percent of parameters and operations to a network.",
        published={"counts": published.FOOTNOTE2, "increase": published.INCREASE}, costs=EXACT,
        experiment=counting_experiment("counts-mimo", counts.FOOTNOTE2, ""), check=check_footnote2,
    ),
    _claim(
        "figure2", "Figure 2: bias and variance on a curve",
        "As M grows the variance falls and the bias rises, and the best M is not 1.",
        settings={"network": "two hidden layers (32, 128), ReLU", "rows": "64 training, 3,000 test", "M": "1 to 5"},
        costs={"smoke": "seconds", "laptop": "minutes", "paper": "minutes"}, reduced=("smoke",),
        experiment=BIAS, check=check_bias,
    ),
    _claim(
        "figure3", "Figure 3: sections of the landscape through three subnetworks",
        "MIMO's subnetworks end in distinct basins and disagree; those of the naive multihead end in one and agree.",
        settings={"network": "SmallCNN, CIFAR-10", "M": 3},
        costs={"smoke": "seconds", "laptop": "15 minutes on one core", "paper": "an hour"}, experiment=BASINS,
        check=check_seeds(MEMBERS, "mimo_barrier", "multihead_barrier", "disagree", pictures=basins_picture),
        notes=("Only the slices of the first and last layers (MIMO) or the heads (multihead) are interpolated.",),
    ),
    _claim(
        "figure4", "Figure 4: separation and diversity of the subnetworks",
        "MIMO's members are more diverse than those of TreeNet, BatchEnsemble and multihead, and as diverse as "
        "independent networks.",
        settings={**SETTINGS, "panels": "conditional variances (M = 2, 3), trajectories (SmallCNN), diversity"},
        costs=COSTS, experiment=CIFAR10,
        check=expect(*(more("mimo", other, "disagreement") for other in ("treenet", "batch_ensemble", "multihead")),
                        near("mimo", "deep", "disagreement", "multihead"), metrics=("disagreement", "accuracy")),
        notes=("Only the right panel, diversity, is judged; conditional variances and trajectories are not run here.",
               "The paper prints the disagreement with an equals sign: it is the share of different labels."),
    ),
    _claim(
        "figure5", "Figure 5: the number of subnetworks",
        "The ensemble is best with two to four subnetworks: better than with one.",
        settings={**SETTINGS, "M": "1 to 10"}, costs=SWEEP_COSTS, experiment=SIZES,
        check=expect(*(better(f"mimo size={size}", "mimo size=1", metric) for metric in ("accuracy", "nll")
                          for size in (2, 3)), metrics=("accuracy", "nll")),
    ),
    _claim(
        "figure6", "Figure 6: input repetition and batch repetition",
        "With limited capacity, some input repetition is better than none or full repetition.",
        settings=IMAGENET, costs=IMAGENET_COSTS, experiment=REPETITION,
        check=expect(better("mimo input_repetition=0.6", "mimo input_repetition=0.0", "accuracy"),
                        better("mimo input_repetition=0.6", "mimo input_repetition=1.0", "accuracy"),
                        metrics=("accuracy", "nll")),
        notes=("Batch repetition (panel b, a sweep of 12 settings each) is not run here yet.",),
    ),
    _claim(
        "figure7", "Figure 7: L1 regularisation",
        "The more subnetworks, the more performance suffers from L1 regularisation.",
        settings=SETTINGS, costs=SWEEP_COSTS, experiment=L1, check=_suffers_more("l1", "0.0001"),
    ),
    _claim(
        "figure8", "Figure 8: L2 regularisation",
        "The more subnetworks, the more performance suffers from L2 regularisation.",
        settings=SETTINGS, costs=SWEEP_COSTS, experiment=L2, check=_suffers_more("l2", "0.01"),
    ),
    _claim(
        "figure9", "Figure 9: performance against sparsity",
        "At the same sparsity, more subnetworks lose more performance.",
        settings={**SETTINGS, "sparsity": "share of weights below 1e-4, by L1"}, costs=SWEEP_COSTS, experiment=SPARSE,
        check=check_seeds(MEMBERS, "sparse_accuracy", "sparse_likelihood", pictures=sparsity_picture),
        notes=("A loss is relative to the same network without L1, and averaged over the sparsity that both reach.",),
    ),
    _claim(
        "table1", "Table 1: CIFAR-10",
        "MIMO is better than the other methods with one forward pass, and close to Deep Ensembles.",
        published={"table": published.TABLE1}, settings=SETTINGS, costs=COSTS, experiment=CIFAR10,
        check=_beats_one_pass("accuracy", "nll", "ece"),
    ),
    _claim(
        "table2", "Table 2: CIFAR-100",
        "MIMO is better than the other methods with one forward pass, and close to Deep Ensembles.",
        published={"table": published.TABLE2}, settings=SETTINGS, costs=COSTS, experiment=CIFAR100,
        check=_beats_one_pass("accuracy", "nll", "ece"),
    ),
    _claim(
        "table3", "Table 3: ImageNet",
        "MIMO is better than the other methods with one forward pass.",
        published={"table": published.TABLE3}, settings=IMAGENET, costs=IMAGENET_COSTS, experiment=LARGE,
        check=_beats_one_pass("accuracy", "nll"),
        notes=("TreeNet makes 1.5 passes and is better than MIMO in the paper's own table.",),
    ),
    _claim(
        "table4", "Table 4: ImageNet and its variants",
        "MIMO is better than the single network on ImageNet and under every shift.",
        published={"table": published.TABLE4}, settings=IMAGENET, costs=IMAGENET_COSTS, experiment=LARGE,
        check=expect(*(better("mimo", "single", metric) for metric in ("accuracy", "nll", "cacc", "cnll")),
                        metrics=FIGURES),
        notes=("Shifts here are corruptions; ImageNet-A, ImageNetV2, ObjectNet and the video sets need their files.",),
    ),
]  # fmt: skip
