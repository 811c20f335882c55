"""The items of MIMO (Havasi et al.)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..landscape.studies.comparisons import better, expect, near, not_worse
from ..landscape.studies.own_data import check_bias
from ..landscape.studies.sweeps import SWEEPS
from ..report.claims import Claim
from ..results.judgements import most_of
from . import counts
from .measured import BIAS, SPARSE, SUBNETWORKS, check_measured, of_one_part
from .packed import FAIR_COSTS, FAIR_NOTE, FAIR_SETTINGS, SWEEP_COSTS
from .parts import EXACT
from .published import mimo as published
from .studies import FAIR, IMAGENET, LAPTOP, ONE_SEED, cifar, fair, study, sweep_study, swept

MIMO_METHODS = (
    "single",
    "dropout_single_pass",
    "multihead",
    "mimo",
    "treenet",
    "batch_ensemble",
    "thin_ensemble",
    "deep",
)

MIMO_LARGE_METHODS = ("single", "multihead", "mimo", "treenet", "batch_ensemble", "deep", "wide", "wide_mimo")

AS_MIMO = {  # members as the paper has them, where no recipe says so
    "mimo": {"size": 3, "batch_repetition": 4},
    "multihead": {"size": 3},
    "treenet": {"size": 3},
}

MIMO_CIFAR10 = [cifar("cifar10", "wide_resnet28_10", "mimo/cifar/wide_resnet28_10", size=None)]

MIMO_CIFAR100 = [cifar("cifar100", "wide_resnet28_10", "mimo/cifar/wide_resnet28_10", size=None)]

MIMO_IMAGENET = [
    {
        **IMAGENET, "recipe": "mimo/imagenet/resnet50", "size": None,
        "source": {
            "shifted": ["imagenet_c"], "image_size": 224,
            "variants": ["imagenet_a", "imagenet_v2", "objectnet", "imagenet_vid_robust", "ytbb_robust"],
        },
    }
]  # fmt: skip

SETTINGS = {
    "training": "batches of 512, rate 0.1 falling by 0.1, L2 2e-4 (MIMO 3e-4), 200 to 250 epochs (appendix B)",
    "MIMO": "M = 3, batch repetition 4",
    "others": "multihead and TreeNet M = 3 (the last group of blocks apart), BatchEnsemble and Deep M = 4; thin: half "
    "the width; dropout 0.1, one pass",
    "network": "Wide-ResNet-28-10",
    "shift": "CIFAR-10-C, CIFAR-100-C",
}

IMAGENET_SETTINGS = {
    "training": "batches of 4096, rate 0.1 falling by 0.1, L2 1e-4, 90 to 150 epochs (appendix B)",
    "MIMO": "M = 2, input repetition 0.6, batch repetition 2",
    "others": "multihead M = 3, TreeNet M = 2, BatchEnsemble and Deep M = 4; wide: twice the width",
    "network": "ResNet-50",
    "shift": "ImageNet-C; Table 4: ImageNet-A, ImageNetV2, ObjectNet, ImageNet-Vid-Robust, YTBB-Robust",
}

INSIDE = {"network": "SmallCNN, CIFAR-10", "M": 3}
INSIDE_COSTS = {"smoke": "seconds", "laptop": "15 minutes on one core", "paper": "an hour"}

COSTS = {
    "smoke": "10 s on one core",
    "laptop": "about two hours on one core: eight methods, three seeds, LeNet-5, four times as wide (Fashion-MNIST)",
    "paper": "Wide-ResNet-28-10: about 12 GPU hours per run of 200 epochs on one V100 or better, 16 GB (our estimate)",
}

IMAGENET_COSTS = {**COSTS, "paper": "TPU or 8 GPUs for days: ImageNet, 90 to 150 epochs per run"}
_SMALL: dict[str, Any] = {"settings": AS_MIMO}
CIFAR10 = study("methods-mimo-cifar10", MIMO_CIFAR10, methods=list(MIMO_METHODS), **_SMALL)
CIFAR100 = study("methods-mimo-cifar100", MIMO_CIFAR100, methods=list(MIMO_METHODS), **_SMALL)
LARGE = study("methods-mimo-imagenet", MIMO_IMAGENET, methods=list(MIMO_LARGE_METHODS), smoke=ONE_SEED, **_SMALL)
SIZES = sweep_study("mimo-sizes", "members", MIMO_CIFAR10)
REPETITION = sweep_study("mimo-repetition", "repetition", [{**one, "size": 2} for one in MIMO_IMAGENET])
_TWELVE = {"batch_size": [256, 512], "lr": [0.05, 0.1]}  # by three sizes

BATCH_REPETITION = sweep_study(
    "mimo-batch-repetition", "batches", [{**MIMO_CIFAR100[0], "seeds": [0]}], seeds=[0],
    sweep={**SWEEPS["batches"].values, **_TWELVE},
    laptop={**LAPTOP, "training": {**LAPTOP["training"], "epochs": 20}},
    smoke={"sweep": {"batch_repetition": [1, 4], "lr": [0.003, 0.01], "size": [2]}},
)  # fmt: skip

_THREE = [{**one, "seeds": [0, 1, 2]} for one in (*MIMO_CIFAR10, *MIMO_CIFAR100)]  # "three repetitions"

L1 = sweep_study("mimo-l1", "l1", [{**one, "training": {"l2": 0.0}} for one in _THREE],
                 smoke={"sweep": {"size": [1, 3], "l1": [0.0, 1e-4]}})  # fmt: skip

L2 = sweep_study("mimo-l2", "l2", _THREE, smoke={"sweep": {"size": [1, 3], "l2": [0.0, 1e-2]}})
ONE_PASS = ("single", "dropout_single_pass", "multihead")
PATHS = "The strengths of the path are left open; L2 is zero while L1 varies, as the paper says."
ALL_FILES = "Of the published corruptions, all 19 files are used; the paper does not say which."

TIES = (
    "Most of the parts must hold: in the paper's own tables MIMO ties with multihead in cAcc on CIFAR-10, and is no "
    "better calibrated than the single network on ImageNet-C."
)

FIGURES = ("accuracy", "nll", "ece", "cacc", "cnll", "cece")


_MEMBERS: dict[str, dict[str, Any]] = {"mimo": {"batch_repetition": 4, "init": "different"}, "multihead": {"size": 3}}

FAIR_MIMO = fair(
    "mimo-fair",
    {"methods": ["single", "deep", "multihead"], "settings": {"multihead": _MEMBERS["multihead"]},
     "sweep": {"width": [2, 4]}},
    {"methods": ["mimo"], "settings": {"mimo": _MEMBERS["mimo"]}, "sweep": {"width": [2, 4], "size": [1, 2, 3]}},
    {"methods": ["mimo"], "settings": {"mimo": {**_MEMBERS["mimo"], "size": 2}},
     "sweep": {"width": [2, 4], "input_repetition": [0.5]}},
    smoke=[{"methods": ["single", "deep"], "sweep": {"width": [4]}},
           {"methods": ["mimo"], "settings": {"mimo": _MEMBERS["mimo"]}, "sweep": {"width": [4], "size": [1, 2]}}],
    base={**FAIR, "severities": [1, 3, 5]},
)  # fmt: skip

_JUDGED = ("nll", "ece", "cnll", "cece", "auroc")


_claim = partial(Claim, "mimo")
_swept = partial(swept, "mimo", settings=SETTINGS, costs=SWEEP_COSTS)


def _headline(one_pass: Sequence[str]) -> Any:
    """Better than every method of one pass, on clean and corrupted images; on the latter close to Deep Ensembles."""
    return expect(
        *(better("mimo", other, metric) for metric in FIGURES for other in one_pass),
        *(near("mimo", "deep", metric, "single") for metric in ("cacc", "cnll", "cece")),
        metrics=FIGURES, combine=most_of,
    )  # fmt: skip


ITEMS = [
    _claim(
        "footnote2", "Footnote 2: what MIMO adds to a network",
        "MIMO with three members adds a few hundredths of a percent of parameters and operations to a network.",
        published={"counts": published.FOOTNOTE2, "increase": published.INCREASE}, costs=EXACT,
        experiment=counts.counting_experiment("counts-mimo", counts.FOOTNOTE2, ""),
        check=counts.check_counts(counts.FOOTNOTE2, counts.FOOTNOTE2_REASONS, counts.mimo_adds_little),
        notes=("The paper prints 0.03 % more parameters and 0.01 % more operations; its own counts of operations "
               "differ by 0.02 %.",),
    ),
    _claim(
        "figure2", "Figure 2: bias and variance on a curve",
        "As M grows the variance falls and the bias rises, and the best M is not 1.",
        settings={"network": "two hidden layers (32, 128), ReLU", "rows": "64 training, 3,000 test", "M": "1 to 5"},
        costs={"smoke": "seconds", "laptop": "minutes", "paper": "minutes"}, reduced=("smoke",),
        experiment=BIAS, check=of_one_part(check_bias),
    ),
    _claim(
        "figure3", "Figure 3: sections of the landscape through three subnetworks",
        "MIMO's subnetworks end in distinct basins and disagree; those of the naive multihead end in one and agree.",
        settings=INSIDE, costs=INSIDE_COSTS, experiment=SUBNETWORKS,
        check=check_measured(("mimo_barrier", "multihead_barrier", "disagree"), ("subnetworks",)),
        notes=("Only the slices of the first and last layers (MIMO) or the heads (multihead) are interpolated.",),
    ),
    _swept(
        "methods", "figure4", "Figure 4, right: diversity of the subnetworks", costs=COSTS, experiment=CIFAR10,
        notes=("The other panels are the items mimo/figure4a and mimo/figure4b.",
               "The paper prints the disagreement with an equals sign: it is the share of different labels."),
    ),
    _claim(
        "figure4a", "Figure 4, left: conditional variances of the units",
        "Almost all units of a MIMO network vary with the input of one subnetwork alone.",
        settings={**INSIDE, "M": (2, 3)}, costs=INSIDE_COSTS, experiment=SUBNETWORKS,
        check=check_measured(("separated_2", "separated_3"), ("units",)),
        notes=("The paper shows histograms. What is judged, fixed before anything was run: three quarters of the units "
               "get at least 0.9 of their variance from one input.",
               "The network of this panel is left open: SmallCNN, as for the trajectories."),
    ),
    _claim(
        "figure4b", "Figure 4, middle: trajectories of the subnetworks",
        "MIMO's subnetworks converge to different functions, those of the naive multihead to one.",
        settings=INSIDE, costs=INSIDE_COSTS, experiment=SUBNETWORKS,
        check=check_measured(("mimo_courses", "multihead_courses"), ("courses",)),
        notes=("The paper shows t-SNE of predictions, here principal components. What is judged, fixed before anything "
               "was run: subnetworks disagree more than twice as much as one does with itself in the last quarter of "
               "training.",),
    ),
    _swept("members", "figure5", "Figure 5: the number of subnetworks", experiment=SIZES,
           settings={**SETTINGS, "M": "from 1 on"}, notes=("How far M goes is left to the picture: here to 4.",)),
    _swept("repetition", "figure6", "Figure 6: input repetition and batch repetition", settings=IMAGENET_SETTINGS,
           costs=IMAGENET_COSTS, experiment=REPETITION,
           notes=("Panel a, ResNet-50; panel b is the item mimo/figure6b.",)),
    _swept(
        "batches", "figure6b", "Figure 6b: batch repetition", experiment=BATCH_REPETITION,
        settings={**SETTINGS, "sweep": "12 settings of batch size, rate and M for each number of repetitions"},
        notes=("Data, network and the 12 settings are left open: CIFAR-100, Wide-ResNet-28-10, two batch sizes, two "
               "rates and three sizes, fixed before anything was run.",),
    ),
    _swept("l1", "figure7", "Figure 7: L1 regularisation", experiment=L1, notes=(PATHS,)),
    _swept("l2", "figure8", "Figure 8: L2 regularisation", experiment=L2, notes=(PATHS,)),
    _claim(
        "figure9", "Figure 9: performance against sparsity",
        "At the same sparsity, more subnetworks lose more performance.",
        settings={**SETTINGS, "sparsity": "share of weights below 1e-4, by L1"}, costs=SWEEP_COSTS, experiment=SPARSE,
        check=check_measured(("sparse_accuracy", "sparse_likelihood"), ("sparse",)),
        notes=("A loss is relative to the same network without L1, and averaged over the sparsity that both reach.",),
    ),
    _claim(
        "capacity", "Tables 1 and 2, made a test: one network of two members against the same training without",
        "With capacity to spare, MIMO is better calibrated, more robust and better at OOD detection than one network "
        "trained for as many steps, and as accurate.",
        settings=FAIR_SETTINGS, costs=FAIR_COSTS, experiment=FAIR_MIMO,
        check=expect(*(better("mimo width=4 size=2", other, metric) for metric in _JUDGED
                       for other in ("mimo width=4 size=1", "single width=4")),
                     *(not_worse("mimo width=4 size=2", other, "accuracy", 0.01)
                       for other in ("mimo width=4 size=1", "single width=4")),
                     control=("deep width=4", "single width=4"),
                     metrics=(*FIGURES, "auroc", "scaled_nll", "train_accuracy")),
        notes=(FAIR_NOTE, "M = 1 with R = 4 is the control of equal steps. As accurate: less than a point worse."),
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
        published={"table": published.TABLE3}, settings=IMAGENET_SETTINGS, costs=IMAGENET_COSTS, experiment=LARGE,
        check=_headline(("single", "multihead")),
        notes=(TIES, "TreeNet makes 1.5 passes and is better than MIMO in the paper's own table."),
    ),
    _claim(
        "table4", "Table 4: ImageNet and its variants",
        "MIMO is better than the single network on ImageNet and under every shift.",
        published={"table": published.TABLE4}, settings=IMAGENET_SETTINGS, costs=IMAGENET_COSTS, experiment=LARGE,
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
