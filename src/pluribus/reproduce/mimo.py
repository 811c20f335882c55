"""The items of MIMO (Havasi et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import packed_counts as counts
from .checks.analyses import check_bias
from .checks.comparisons import better, expect, more, near, over_settings, sensitivity
from .checks.exact import check_footnote2
from .checks.findings import MEMBERS, check_seeds
from .checks.pictures import basins_picture, sparsity_picture
from .claims import EXACT, Claim
from .experiments.analyses import BIAS
from .experiments.counting import counting_experiment
from .experiments.members_of_one_network import BASINS, SPARSE
from .packed import SWEEP_COSTS
from .published import mimo as published
from .studies import (
    AS_MIMO,
    LAPTOP,
    MIMO_CIFAR10,
    MIMO_CIFAR100,
    MIMO_IMAGENET,
    MIMO_LARGE_METHODS,
    MIMO_METHODS,
    study,
)
from .verdicts import most_of

SETTINGS = {
    "training": "batches of 512, rate 0.1 falling by 0.1, L2 2e-4 (MIMO 3e-4), 200 to 250 epochs (appendix B)",
    "MIMO": "M = 3, batch repetition 4",
    "others": "multihead and TreeNet M = 3 (the last group of blocks apart), BatchEnsemble and Deep M = 4; thin: half "
    "the width; dropout 0.1, one pass",
    "network": "Wide-ResNet-28-10",
    "shift": "CIFAR-10-C, CIFAR-100-C",
}

IMAGENET = {
    "training": "batches of 4096, rate 0.1 falling by 0.1, L2 1e-4, 90 to 150 epochs (appendix B)",
    "MIMO": "M = 2, input repetition 0.6, batch repetition 2",
    "others": "multihead M = 3, TreeNet M = 2, BatchEnsemble and Deep M = 4; wide: twice the width",
    "network": "ResNet-50",
    "shift": "ImageNet-C; Table 4: ImageNet-A, ImageNetV2, ObjectNet, ImageNet-Vid-Robust, YTBB-Robust",
}

COSTS = {
    "smoke": "10 s on one core",
    "laptop": "about two hours on one core: eight methods, three seeds, LeNet-5, four times as wide (Fashion-MNIST)",
    "paper": "Wide-ResNet-28-10: about 12 GPU hours per run of 200 epochs on one V100 or better, 16 GB (our estimate)",
}

IMAGENET_COSTS = {**COSTS, "paper": "TPU or 8 GPUs for days: ImageNet, 90 to 150 epochs per run"}

_SMALL: dict[str, Any] = {"settings": AS_MIMO}

_R4 = {"mimo": {"batch_repetition": 4}}

CIFAR10 = study("methods-mimo-cifar10", MIMO_CIFAR10, methods=list(MIMO_METHODS), **_SMALL)

CIFAR100 = study("methods-mimo-cifar100", MIMO_CIFAR100, methods=list(MIMO_METHODS), **_SMALL)

LARGE = study("methods-mimo-imagenet", MIMO_IMAGENET, methods=list(MIMO_LARGE_METHODS), **_SMALL)

SIZES = study("mimo-sizes", MIMO_CIFAR10, methods=["mimo"], sweep={"size": [1, 2, 3, 4]}, settings=_R4)

REPETITION = study("mimo-repetition", [{**one, "size": 2} for one in MIMO_IMAGENET], methods=["mimo"], size=2,
                   sweep={"input_repetition": [0.0, 0.3, 0.6, 1.0]}, settings=_R4)  # fmt: skip

BATCH_REPETITION = study(
    "mimo-batch-repetition", [{**MIMO_CIFAR100[0], "seeds": [0]}], methods=["mimo"], seeds=[0],
    sweep={"batch_repetition": [1, 2, 4], "batch_size": [256, 512], "lr": [0.05, 0.1], "size": [2, 3, 4]},
    laptop={**LAPTOP, "training": {**LAPTOP["training"], "epochs": 20}},
    smoke={"sweep": {"batch_repetition": [1, 4], "lr": [0.003, 0.01], "size": [2]}},
)  # fmt: skip

_THREE = [{**one, "seeds": [0, 1, 2]} for one in (*MIMO_CIFAR10, *MIMO_CIFAR100)]  # "three repetitions"

_SHORT = {"sweep": {"size": [1, 3], "l1": [0.0, 1e-4]}}

L1 = study("mimo-l1", [{**one, "training": {"l2": 0.0}} for one in _THREE], methods=["mimo"], settings=_R4,
           sweep={"size": [1, 2, 3], "l1": [0.0, 1e-7, 1e-6, 1e-5, 1e-4]}, smoke=_SHORT)  # fmt: skip

L2 = study("mimo-l2", _THREE, methods=["mimo"], settings=_R4,
           sweep={"size": [1, 2, 3], "l2": [0.0, 1e-5, 1e-4, 1e-3, 1e-2]},
           smoke={"sweep": {"size": [1, 3], "l2": [0.0, 1e-2]}})  # fmt: skip

ONE_PASS = ("single", "dropout_single_pass", "multihead")

PATHS = "The strengths of the path are left open; L2 is zero while L1 varies, as the paper says."

ALL_FILES = "Of the published corruptions, all 19 files are used; the paper does not say which."

TIES = (
    "Most of the parts must hold: in the paper's own tables MIMO ties with multihead in cAcc on CIFAR-10, and is no "
    "better calibrated than the single network on ImageNet-C."
)

FIGURES = ("accuracy", "nll", "ece", "cacc", "cnll", "cece")


def _claim(item: str, title: str, says: str, **given: Any) -> Claim:
    return Claim("mimo", item, title, says, **given)


def _headline(one_pass: Sequence[str]) -> Any:
    """Better than every method of one pass, on clean and corrupted images; on the latter close to Deep Ensembles."""
    return expect(
        *(better("mimo", other, metric) for metric in FIGURES for other in one_pass),
        *(near("mimo", "deep", metric, "single") for metric in ("cacc", "cnll", "cece")),
        metrics=FIGURES, combine=most_of,
    )  # fmt: skip


def _suffers_more(axis: str) -> Any:
    """Three members lose more by regularisation than one: the difference of two paired differences."""
    return expect(
        sensitivity("mimo", axis, "accuracy"), sensitivity("mimo", axis, "nll"), metrics=("accuracy", "nll")
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
        notes=("Panel a, ResNet-50; panel b is the item mimo/figure6b.",),
    ),
    _claim(
        "figure6b", "Figure 6b: batch repetition",
        "More repetitions of a batch typically give a slight boost.",
        settings={**SETTINGS, "sweep": "12 settings of batch size, rate and M for each number of repetitions"},
        costs=SWEEP_COSTS, experiment=BATCH_REPETITION,
        check=expect(over_settings("mimo", "batch_repetition", "accuracy"), metrics=("accuracy", "nll")),
        notes=("Data, network and the 12 settings are left open: CIFAR-100, Wide-ResNet-28-10, two batch sizes, two "
               "rates and three sizes, fixed before anything was run.",),
    ),
    _claim(
        "figure7", "Figure 7: L1 regularisation",
        "The more subnetworks, the more performance suffers from L1 regularisation.",
        settings=SETTINGS, costs=SWEEP_COSTS, experiment=L1, check=_suffers_more("l1"),
        notes=(PATHS,),
    ),
    _claim(
        "figure8", "Figure 8: L2 regularisation",
        "The more subnetworks, the more performance suffers from L2 regularisation.",
        settings=SETTINGS, costs=SWEEP_COSTS, experiment=L2, check=_suffers_more("l2"),
        notes=(PATHS,),
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
        "MIMO is better than the other methods with one forward pass, and approaches the robustness of Deep Ensembles.",
        published={"table": published.TABLE1}, settings=SETTINGS, costs=COSTS, experiment=CIFAR10,
        check=_headline(ONE_PASS), notes=(TIES, ALL_FILES),
    ),
    _claim(
        "table2", "Table 2: CIFAR-100",
        "MIMO is better than the other methods with one forward pass, and approaches the robustness of Deep Ensembles.",
        published={"table": published.TABLE2}, settings=SETTINGS, costs=COSTS, experiment=CIFAR100,
        check=_headline(ONE_PASS), notes=(TIES, ALL_FILES),
    ),
    _claim(
        "table3", "Table 3: ImageNet",
        "MIMO is better than the other methods with one forward pass, and approaches the robustness of Deep Ensembles.",
        published={"table": published.TABLE3}, settings=IMAGENET, costs=IMAGENET_COSTS, experiment=LARGE,
        check=_headline(("single", "multihead")),
        notes=(TIES, "TreeNet makes 1.5 passes and is better than MIMO in the paper's own table."),
    ),
    _claim(
        "table4", "Table 4: ImageNet and its variants",
        "MIMO is better than the single network on ImageNet and under every shift.",
        published={"table": published.TABLE4}, settings=IMAGENET, costs=IMAGENET_COSTS, experiment=LARGE,
        check=expect(*(better("mimo", "single", metric) for metric in ("accuracy", "nll", "cacc", "cnll")),
                        *(better("mimo", "single", f"{metric} {where}") for metric in ("accuracy", "nll")
                          for where in ("imagenet_a", "imagenet_v2")),
                        better("mimo", "single", "accuracy objectnet"),
                        *(better("mimo", "single", f"stable_accuracy {where}")
                          for where in ("imagenet_vid_robust", "ytbb_robust")),
                        metrics=(*FIGURES, *(f"{metric} {where}" for where in ("imagenet_a", "imagenet_v2")
                                             for metric in ("nll", "accuracy", "ece")),
                                 "accuracy objectnet", "stable_accuracy imagenet_vid_robust",
                                 "stable_accuracy ytbb_robust")),
        notes=("At smaller scales the variants are missing, and with them what the claim says.",
               "In the paper's own table calibration is worse than the single network's on most sets: ECE is not "
               "judged."),
    ),
]  # fmt: skip
