"""The items of Masksembles (Durasov et al.)."""

from __future__ import annotations

from functools import partial

from ..landscape.studies.comparisons import at_most, better, cheaper, expect, keeps_half, near
from ..landscape.studies.own_data import check_transition
from ..landscape.studies.sweeps import HALF
from ..report.claims import Claim
from .exact import DRAWN, FIGURE1, check_drawn, check_figure1
from .measured import EXTREMES, TRANSITION, check_measured, of_one_part
from .packed import FAIR_COSTS, FAIR_NOTE, FAIR_SETTINGS, SWEEP_COSTS
from .parts import EXACT
from .published import masksembles as published
from .studies import FAIR, IMAGENET, LAPTOP_MASKS, ONE_SEED, cifar, fair, study, sweep_study, swept

MASKS_METHODS = ("single", "mc_dropout", "masksembles", "deep")

RATES = (0.05, 0.1, 0.2, 0.3)  # of MC-Dropout: the best on validation data stands for it

MASKS_CIFAR = [cifar("cifar10", "wide_resnet16_4", "masksembles/cifar10/wide_resnet16_4")]

MASKS_IMAGENET = [
    {**IMAGENET, "recipe": "masksembles/imagenet/resnet50", "source": {"shifted": ["imagenet_c"], "image_size": 224}}
]

SETTINGS = {
    "network": "Wide-ResNet-16-4, trained as by Zagoruyko and Komodakis",
    "masks": "before every convolution and linear layer but the first; N = 4; Table 1 and Figure 6: 2.3 times the "
    "size, members at full capacity",
    "dropout": "rate chosen on validation data (about 0.1)",
    "outside": "SVHN",
    "shift": "19 corruptions at 5 severities",
}

IMAGENET_SETTINGS = {
    "network": "ResNet-50",
    "masks": "before every convolution from stage 3 on; total size fixed; IoU 0.7, 0.5 (the best), 0.3 and 0.2",
    "dropout": "before the same layers",
}

COSTS = {
    "smoke": "10 s on one core",
    "laptop": "about an hour on one core: four methods, three seeds, LeNet-5 of twice its width (Fashion-MNIST)",
    "paper": "78 GPU minutes per seed by the times of Table 1, several GB",
}

IMAGENET_COSTS = {**COSTS, "paper": "455 GPU hours by the times of Table 2, 16 GB per GPU"}
_FULL = {"masksembles": {"scale": 1.6, "capacity": 1.0}}  # of a LeNet-5: 2.4 times its size
_FIXED = {"masksembles": {"capacity": None}}  # the network keeps its widths

CIFAR = study("methods-masksembles", MASKS_CIFAR, methods=list(MASKS_METHODS), laptop=LAPTOP_MASKS, settings=_FULL,
              sweep={"rate": list(RATES)}, choose={"mc_dropout": "nll"},
              smoke={"sweep": {"rate": [0.1, 0.3]}})  # fmt: skip

OVERLAPS = {"0.7": 1.21, "0.5": 1.5, "0.3": 2.17, "0.2": 3.0}  # IoU = 1 / (2 S - 1)

LARGE = study("methods-masksembles-imagenet", MASKS_IMAGENET, methods=list(MASKS_METHODS), laptop=LAPTOP_MASKS,
              sweep={"rate": list(RATES), "scale": list(OVERLAPS.values())}, choose={"mc_dropout": "nll"},
              smoke={**ONE_SEED, "sweep": {"rate": [0.1, 0.3], "scale": [1.5, 3.0]}})  # fmt: skip

FIXED_WIDTH = sweep_study("masks-fixed-width", "thin", [{**one, "settings": _FIXED} for one in MASKS_CIFAR],
                          laptop=LAPTOP_MASKS)  # fmt: skip

FIXED_WIDTH_LARGE = sweep_study("masks-fixed-width-imagenet", "thin", MASKS_IMAGENET, laptop=LAPTOP_MASKS)

FIXED_CAPACITY = sweep_study("masks-fixed-capacity", "masks", MASKS_CIFAR, laptop=LAPTOP_MASKS,
                             smoke={"sweep": {"scale": [1.0, 4.0], "capacity": [1.0]}})  # fmt: skip

GRID = sweep_study("masks-grid", "span", MASKS_CIFAR, laptop=LAPTOP_MASKS, choose={"mc_dropout": "nll"})
BEST = "masksembles scale=1.5"
_ALL = ["single", "mc_dropout", "masksembles", "deep"]

FAIR_MASKS = fair(
    "masks-fair", {"methods": _ALL, "settings": _FULL, "sweep": {"rate": list(RATES)}},
    {"methods": ["masksembles"], "settings": _FULL, "sweep": {"epochs": [160]}},  # as many updates for each member
    smoke=[{"methods": _ALL, "settings": _FULL, "sweep": {"rate": [0.1, 0.3]}}], choose={"mc_dropout": "nll"},
    base={**FAIR, **LAPTOP_MASKS, "seeds": FAIR["seeds"], "severities": [1, 3, 5], "shift_rows": 300,
          "training": FAIR["training"]},
)  # fmt: skip


_claim = partial(Claim, "masksembles")
_swept = partial(swept, "masksembles", settings=SETTINGS, costs=SWEEP_COSTS)

ITEMS = [
    _claim(
        "figure1", "Figure 1: examples of masks",
        "With N = 4 masks of M = 2 ones, the examples overlap by 0.44 at S = 2 and by 0.16 at S = 3.",
        published={"iou": published.FIGURE1}, costs=EXACT, experiment=FIGURE1, check=check_figure1,
        notes=("0.16 is 1/6 cut off.",),
    ),
    _claim(
        "figure3", "Figure 3: model size against S and N",
        "The relative size of a model is S (1 - (1 - 1/S)^N), and the overlap depends on S alone.",
        costs=EXACT, experiment=DRAWN, check=check_drawn("size"),
    ),
    _claim(
        "figure4", "Figure 4: from one network to an ensemble on two sinusoids",
        "The entropy outside the training range rises as masks overlap less, from one network's to an ensemble's.",
        settings={"network": "2 hidden layers, capacity M = 100", "N": 4, "S": (1.1, 2.0, 3.0, 10.0)},
        costs={"smoke": "seconds", "laptop": "minutes", "paper": "minutes"}, reduced=("smoke",),
        experiment=TRANSITION, check=of_one_part(check_transition),
        notes=("The paper gives neither amplitude nor noise of the sinusoids.",
               "Masks train for four times as many epochs: a member sees a quarter of the rows of each."),
    ),
    _claim(
        "figure5", "Figure 5: from ensembles to MC-Dropout",
        "With many masks, Masksembles behave like MC-Dropout; with masks that do not overlap, like Deep Ensembles.",
        settings=SETTINGS, costs=SWEEP_COSTS, experiment=EXTREMES,
        check=check_measured(("dropout_accuracy", "dropout_information", "deep_accuracy", "deep_information"),
                             ("dropout",)),
        notes=("The figure is a sketch without numbers. What is judged: many masks of S = 2 beside MC-Dropout with the "
               "rate 1/2, and four masks of S = 10 and the network's capacity beside four networks: accuracy within "
               "two points, mutual information within a factor of 1.65.",),
    ),
    _claim(
        "figure6", "Figure 6: CIFAR-10 under corruptions",
        "Masksembles are on par with Deep Ensembles under corruptions and consistently better than MC-Dropout.",
        settings=SETTINGS, costs=COSTS, experiment=CIFAR,
        check=expect(*(near("masksembles", "deep", metric, "single") for metric in ("cacc", "cece")),
                        *(better("masksembles", "mc_dropout", metric) for metric in ("cacc", "cece")),
                        metrics=("cacc", "cece", "cnll")),
    ),
    _swept(
        "span", "figure7", "Figure 7: the space of behaviours", experiment=GRID,
        settings={**SETTINGS, "S": "1 to 5", "M": "0.3 C to 2 C"},
        notes=("Judged at S = 1.55 with the capacity of the network, 2.3 times a Wide-ResNet-16-4, fixed before "
               "anything was run; about half: at most 0.6 of the ensemble.",),
    ),
    _swept("thin", "figure8", "Figure 8: ECE under corruptions at fixed size, CIFAR-10", experiment=FIXED_WIDTH,
           published={"S": published.FIGURE8_SCALES}),
    _swept("masks", "figure9", "Figure 9: fixed capacity, CIFAR-10", experiment=FIXED_CAPACITY,
           settings={**SETTINGS, "S": "1 to 4"}),
    _claim(
        "figure10", "Figure 10: ECE under corruptions at fixed size, ImageNet",
        "On ImageNet, calibration under corruptions matches that of an ensemble for S = 2 and more.",
        settings=IMAGENET_SETTINGS, costs=IMAGENET_COSTS, experiment=FIXED_WIDTH_LARGE,
        check=expect(near("masksembles scale=2.0", "deep", "cece", "single"), metrics=("cece", "ece")),
    ),
    _claim(
        "figure11", "Figure 11: ImageNet under corruptions",
        "On ImageNet Masksembles are close to Deep Ensembles under corruptions and better than MC-Dropout.",
        settings=IMAGENET_SETTINGS, costs=IMAGENET_COSTS, experiment=LARGE,
        check=expect(*(near(BEST, "deep", metric, "single") for metric in ("cacc", "cece")),
                        *(better(BEST, "mc_dropout", metric) for metric in ("cacc", "cece")),
                        metrics=("cacc", "cece")),
    ),
    _claim(
        "capacity", "Table 1 and Figure 6, made a test: LeNet-5 of twice its width, Fashion-MNIST",
        "At about half the size and training time of Deep Ensembles, Masksembles keep most of what those gain over one "
        "network, and are better than MC-Dropout under corruptions.",
        settings=FAIR_SETTINGS, costs=FAIR_COSTS, experiment=FAIR_MASKS,
        check=expect(*(keeps_half("masksembles", "deep", metric, "single")
                       for metric in ("accuracy", "nll", "ece", "auroc", "cacc", "cece")),
                     *(better("masksembles", "mc_dropout", metric) for metric in ("auroc", "cacc", "cece")),
                     at_most("masksembles", "deep", "parameters", HALF), cheaper("masksembles", "deep", "training"),
                     control=("deep", "single"),
                     metrics=("accuracy", "nll", "ece", "auroc", "cacc", "cnll", "cece", "scaled_nll", "parameters",
                              "training")),
        notes=(FAIR_NOTE, "epochs=160 is the row of equal updates a member: shown, not judged."),
    ),
    _claim(
        "figure12", "Figure 12: overlap of masks, drawn and in a formula",
        "The mean intersection over union of masks is close to 1/(2S - 1) in a wide range of S.",
        costs=EXACT, experiment=DRAWN, check=check_drawn("iou"),
    ),
    _swept(
        "masks", "figure13", "Figure 13: diversity against accuracy, CIFAR-10", experiment=FIXED_CAPACITY,
        settings={**SETTINGS, "S": (2, 3, 4, 5)},
        notes=("Diversity: disagreement relative to the error, equation 7.",),
    ),
    _swept("masks", "figure14", "Figure 14: calibration plots", experiment=FIXED_CAPACITY,
           notes=("Section 3.4 names Figure 14 where it means Figure 4.",)),
    _claim(
        "table1", "Table 1: CIFAR-10",
        "At about half the size and training time of Deep Ensembles, Masksembles are as accurate, as well calibrated "
        "and as good at OOD detection, and better at that than MC-Dropout and the single network.",
        published={"table": published.TABLE1}, settings=SETTINGS, costs=COSTS, experiment=CIFAR,
        check=expect(*(near("masksembles", "deep", metric, "single") for metric in ("accuracy", "ece", "auroc")),
                        *(better("masksembles", other, "auroc") for other in ("mc_dropout", "single")),
                        at_most("masksembles", "deep", "parameters", HALF), cheaper("masksembles", "deep", "training"),
                        metrics=("accuracy", "ece", "auroc", "aupr", "parameters", "training")),
        notes=("The paper's ECE formula gives only the idea: it is computed with 15 bins, as by Guo et al.",),
    ),
    _claim(
        "table2", "Table 2: ImageNet",
        "With the size of one network Masksembles come close to Deep Ensembles in accuracy and ECE, and are better "
        "than MC-Dropout.",
        published={"table": {name if "IoU" not in name else f"masksembles scale={OVERLAPS[name.partition('=')[2]]}": row
                             for name, row in published.TABLE2.items()}},
        settings=IMAGENET_SETTINGS, costs=IMAGENET_COSTS, experiment=LARGE,
        check=expect(*(near(BEST, "deep", metric, "single") for metric in ("accuracy", "ece")),
                        *(better(BEST, "mc_dropout", metric) for metric in ("accuracy", "ece")),
                        cheaper(BEST, "deep", "training"), at_most(BEST, "single", "parameters", 1.01),
                        metrics=("accuracy", "ece", "parameters", "training")),
        notes=("Judged at an IoU of 0.5, S = 1.5, which the text names as the best.",),
    ),
]  # fmt: skip
