"""The items of Packed-Ensembles (Laurent et al.) and its supplement."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..landscape.studies.comparisons import better, cheaper, closes, expect, improves, keeps_half, near, steadier
from ..landscape.studies.own_data import check_sparsity
from ..landscape.studies.sweeps import SWEEPS, criteria
from ..report.claims import Claim
from ..results.judgements import most_of
from . import counts
from .exact import FORMS, FORMULA, check_forms, check_formula
from .measured import PACKED_SOURCES, SELECTION, SPARSITY, check_measured, of_one_part
from .parts import EXACT
from .published import packed as published
from .studies import (
    FAIR,
    FIXED,
    IMAGENET,
    LAPTOP_RESIDUAL,
    ONE_SEED,
    SMOKE,
    WIDTHS,
    Given,
    StudyExperiment,
    cifar,
    fair,
    study,
    sweep_study,
    swept,
)
from .uci import UCI, check_table11

PACKED_BASELINES = ("single", "batch_ensemble", "mimo", "deep")  # of Table 2 for both networks

PACKED_METHODS = (*PACKED_BASELINES, "masksembles", "packed")  # of Table 1

AS_PACKED = {"packed": {"alpha": 2, "gamma": 2, "min_channels": 16}, "mimo": {"input_repetition": 1.0},
             "masksembles": {"after": True, "repeat": True}}  # fmt: skip

COUNTED = "wide_resnet28_10?bias=true&stride_on=second"  # the network whose counts Table 1 prints; packed: no biases


def packed_cifar(data: str) -> list[dict[str, Any]]:
    """The studies of Table 1 on one data set."""
    wide = f"packed/{data}/wide_resnet28_10"
    return [
        *(
            cifar(data, model, f"packed/{data}/{model}", methods=list(PACKED_METHODS))
            for model in ("resnet18", "resnet50")
        ),
        cifar(data, COUNTED, wide, methods=[*PACKED_BASELINES, "masksembles"]),
        cifar(data, COUNTED.replace("bias=true&", ""), wide, methods=["packed"]),
    ]


PACKED_CIFAR = [*packed_cifar("cifar10"), *packed_cifar("cifar100")]

PACKED_R50 = [cifar("cifar100", "resnet50", "packed/cifar100/resnet50")]

PACKED_WIDTHS = [cifar("cifar100", model, f"packed/cifar100/{model}") for model in ("resnet18", "resnet50")]

_PACKED_LARGE = {
    **IMAGENET, "source": {"outside": ["textures", "imagenet_o"], "variants": ["imagenet_r"], "image_size": 224},
}  # fmt: skip

PACKED_IMAGENET = [
    {**_PACKED_LARGE, "recipe": "packed/imagenet/resnet50", "methods": list(PACKED_METHODS)},
    {
        **_PACKED_LARGE, "width": 4.0, "recipe": "packed/imagenet/resnet50x4",
        "methods": [*PACKED_BASELINES, "packed"],  # Masksembles have no figures there
    },
]  # fmt: skip

TABLE6 = ((2, 1, 4), (3, 1, 8), (4, 2, 8), (6, 4, 8), (8, 1, 16))  # alpha, gamma, M


def table6(base: Given, rows: Sequence[tuple[int, int, int]] = TABLE6) -> list[dict[str, Any]]:
    """A study for each of the table's settings."""
    return [
        {**base, "methods": ["packed"], "sweep": {"alpha": [alpha], "gamma": [gamma], "size": [size]}}
        for alpha, gamma, size in rows
    ]


def table5(base: Given, alphas: Sequence[int] = (1, 2, 3, 4)) -> list[dict[str, Any]]:
    """The table's settings: all but alpha = 1 with gamma = 4."""
    return [
        {**base, "methods": ["packed"], "sweep": {"alpha": list(alphas), "gamma": [1, 2]}},
        {**base, "methods": ["packed"], "sweep": {"alpha": list(alphas[1:]), "gamma": [4]}},
    ]


HYPERPARAMETERS = {
    "training": "SGD, momentum 0.9, batches of 128, weight decay 5e-4 (ResNet-18 on CIFAR-100: 1e-4), rate 0.05 for 75 "
    "epochs (ResNet-18) or 0.1 for 200, stepwise (Table 4)",
    "ensembles": "M = 4, alpha = gamma = 2 (Wide-ResNet: gamma 1), groups of at least 64 channels; MIMO: rho 1; "
    "Masksembles: S = 2, masks after each convolution, batches repeated",
    "outside": "SVHN, maximum softmax probability",
    "shift": "CIFAR-10-C, CIFAR-100-C",
    "seeds": 5,
}

IMAGENET_SETTINGS = {
    "training": "procedure A3 of Wightman et al. (2021): LAMB, 100 epochs, trained at 160 pixels and tested at 224",
    "networks": "ResNet-50 (alpha 3), ResNet-50x4 (alpha 2), M = 4, gamma 1",
    "outside": "ImageNet-O, Texture, by mutual information (single network and MIMO: maximum softmax probability)",
    "shift": "ImageNet-R",
}

STUDY_COSTS = {
    "smoke": "10 s on one core",
    "laptop": "about an hour on one core: six methods, three seeds, LeNet-5 of four times its width (Fashion-MNIST)",
    "paper": "ResNet-50 alone 126 GPU hours for five seeds by the seconds of Table 8 (RTX 3090), 24 GB",
}

SWEEP_COSTS = {
    "smoke": "10 s on one core",
    "laptop": "hours on one core: ResNet-20 of twice its width, CIFAR-10 at 16 pixels",
    "paper": "by Table 8 about 50 GPU hours for each setting and five seeds (RTX 3090), 24 GB",
}

IMAGENET_COSTS = {**STUDY_COSTS, "paper": "days on 2 to 8 A100 of 80 GB, as the paper says"}

_SMALL: dict[str, Any] = {"methods": list(PACKED_METHODS), "settings": AS_PACKED}
METHODS = study("methods", PACKED_CIFAR, **_SMALL)
ON_CIFAR100 = study("methods-cifar100", packed_cifar("cifar100"), **_SMALL)  # what is said of CIFAR-100 alone
RESNET50 = study("methods-resnet50", [{**one, "methods": list(PACKED_METHODS)} for one in PACKED_R50], **_SMALL)
LAPTOP_GROUPS = {**LAPTOP_RESIDUAL, "settings": {"packed": {"min_channels": 16}}}

ALPHA_GAMMA = StudyExperiment(
    "packed-alpha-gamma",
    {"smoke": table5(SMOKE, (1, 2)), "laptop": table5(LAPTOP_GROUPS), "paper": table5(PACKED_R50[0])},
)

CRITERIA = StudyExperiment(
    "packed-criteria",
    {
        "smoke": table6(SMOKE, TABLE6[:2]),
        "laptop": table6({**LAPTOP_GROUPS, "data": ["cifar100"]}),
        "paper": table6(PACKED_R50[0]),
    },
)

CONTROLS: dict[str, dict[str, Any]] = {  # networks, and what is made of them; packed with the 23.6 M that are printed
    "resnet50": {"methods": ["packed"], "settings": {"packed": {"alpha": 2, "gamma": 1}}},
    "resnext50": {"methods": ["single"]},
}

CONTROL = StudyExperiment(
    "resnext",
    {
        "smoke": [{**SMOKE, **ONE_SEED, **own} for own in CONTROLS.values()],
        "laptop": [{**LAPTOP_RESIDUAL, "model": model, "width": 0.25, **own} for model, own in CONTROLS.items()],
        "paper": [cifar("cifar10", model, "packed/cifar10/resnet50", **own) for model, own in CONTROLS.items()],
    },
    merge=True,
)
MAIN = ("accuracy", "nll", "ece", "auroc")
_OF_WIDTHS = ["single", "packed", "deep"]
_WIDTHS_STUDY = {"methods": _OF_WIDTHS, "sweep": {"width": WIDTHS}}

CAPACITY = fair(
    "capacity", {"methods": ["single"], "sweep": {"width": [0.5]}}, _WIDTHS_STUDY,
    smoke=[{"methods": _OF_WIDTHS, "sweep": {"width": [4, 8]}, "training": {"epochs": 2, "lr": 0.003}}],
)  # fmt: skip

_SHARING = {
    "methods": ["masksembles", "mimo", "batch_ensemble"],
    "settings": {"masksembles": {"scale": 2.0, "capacity": None},
                 "mimo": {"size": 2, "batch_repetition": 4, "init": "different"}},
    "sweep": {"width": WIDTHS[:3]},
}  # fmt: skip

SHARING = fair(  # single and deep are the runs of `CAPACITY`
    "capacity-sharing", _WIDTHS_STUDY, _SHARING,
    smoke=[{"methods": ["single", "deep"], "sweep": {"width": [1, 4]}}, {**_SHARING, "sweep": {"width": [1, 4]}}],
)  # fmt: skip

RESIDUAL = fair(
    "residual", {"methods": ["single", "thin", "packed", "deep"]},
    smoke=[{"methods": ["single", "thin", "packed", "deep"]}],
    base={**FAIR, **LAPTOP_RESIDUAL, "seeds": FAIR["seeds"][:3], "severities": [3], "shift_rows": 300,
          "training": {**LAPTOP_RESIDUAL["training"], "patience": 10, "best": "likeliest"},
          "settings": {"packed": {"alpha": 2, "gamma": 2, "min_channels": 16}}},
)  # fmt: skip

SCHEDULE = fair(
    "fixed-schedule",
    {"methods": ["single", "thin", "packed", "masksembles", "deep"],
     "settings": {"masksembles": {"scale": 1.6, "capacity": 1.0}}},
    smoke=[{"methods": ["single", "thin", "packed", "masksembles", "deep"]}], base=FIXED,
)  # fmt: skip

FAIR_COSTS = {"smoke": "10 s on one core", "laptop": "two hours on one core", "paper": "as laptop: no paper ran this"}
FAIR_SETTINGS = {"protocol": "docs/protocol.md: no paper ran this, it is its claim made a test"}

FAIR_NOTE = (
    "Data, networks, seeds, margins and what would refute it were fixed in docs/protocol.md before the first run. "
    "Without a positive control, Deep Ensembles shown to beat the single network in NLL and ECE, it is inconclusive."
)

SHOWN = (*MAIN, "scaled_nll", "train_accuracy", "cacc", "cnll", "relative_parameters", "plain_latency")


def _keeps(packed: str, deep: str, base: str, thin: str) -> list[Any]:
    return [*(keeps_half(packed, deep, metric, base) for metric in MAIN), better(packed, thin, "nll")]


def _table1(published_rows: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The rows of ResNet-18 on CIFAR-10, by method, beside all others."""
    small = {name.split()[0]: row for name, row in published_rows.items() if name.endswith("r18 c10")}
    return {"table": small, "all rows": published_rows}


def _table2(row: dict[str, str]) -> dict[str, str]:
    """A row of Table 2 by our names: OOD data are scored by mutual information."""

    def name(column: str) -> str:
        metric, _, where = column.partition(" ")
        return f"{metric}_mi {where}" if metric in ("aupr", "auroc", "fpr95") else column

    return {name(column): value for column, value in row.items()}


_claim = partial(Claim, "packed")
_swept = partial(swept, "packed", costs=SWEEP_COSTS)

ITEMS = [
    _claim(
        "figure1", "Figure 1: accuracy against inference speed, CIFAR-100",
        "Packed-Ensembles are more accurate than the single network and faster than Deep Ensembles.",
        settings=HYPERPARAMETERS, costs=STUDY_COSTS, experiment=ON_CIFAR100,
        check=expect(better("packed", "single", "accuracy"), cheaper("packed", "deep", "latency"),
                        metrics=("accuracy", "latency", "relative_mult_adds")),
    ),
    _claim(
        "table1", "Table 1: CIFAR-10 and CIFAR-100",
        "Given a sufficiently large network, Packed-Ensembles with alpha = gamma = 2 yield results similar to those of "
        "Deep Ensembles.",
        published=_table1(published.TABLE1), settings=HYPERPARAMETERS, costs=STUDY_COSTS, experiment=METHODS,
        check=expect(*(near("packed", "deep", metric, "single") for metric in MAIN), combine=most_of,
                        metrics=(*MAIN, "aupr", "fpr95")),
        notes=("Similar: nearer to Deep Ensembles than half of what those gain over the single network. Where they do "
               "not beat it in NLL and ECE, nothing can be said.",
               "The paper concedes ResNet-18 on CIFAR-100. Its Wide-ResNets have biases and a late stride, the packed "
               "ones no biases: so they are counted, and so they train here. The caption gives them gamma 1.",
               "Its parameter and mult-add columns are the item packed/table1-cost."),
    ),
    _claim(
        "capacity", "Section 1, made a test: quality against the width of the network",
        "Given a sufficiently large network, Packed-Ensembles of its size perform about as well as Deep Ensembles.",
        settings=FAIR_SETTINGS, costs=FAIR_COSTS, experiment=CAPACITY,
        check=expect(*_keeps("packed width=8", "deep width=8", "single width=8", "single width=4"),
                     closes("packed width={}", "deep width={}", "nll", "width", 1, 8),
                     control=("deep width=8", "single width=8"), metrics=SHOWN),
        notes=(FAIR_NOTE, "The thin single network of a width is the single network of half of it."),
    ),
    _claim(
        "sharing", "Section 1, made a test: other methods that share one network, against its width",
        "As for packing, the wider the network, the closer Masksembles of its size and MIMO come to Deep Ensembles.",
        settings=FAIR_SETTINGS, costs=FAIR_COSTS, experiment=SHARING,
        check=expect(*(closes(f"{method} width={{}}", "deep width={}", "nll", "width", 1, 4)
                       for method in ("masksembles", "mimo")),
                     control=("deep width=4", "single width=4"), metrics=SHOWN),
        notes=(FAIR_NOTE, "BatchEnsemble does not divide the network, and is shown, not judged."),
    ),
    _claim(
        "schedule", "Section 1, made a test: a schedule of fixed length and its last epoch, as the papers train",
        "Given a sufficiently large network, Packed-Ensembles of its size, and Masksembles with members of its "
        "capacity, perform about as well as Deep Ensembles.",
        settings=FAIR_SETTINGS, costs={**FAIR_COSTS, "laptop": "an hour on one core"}, experiment=SCHEDULE,
        check=expect(*_keeps("packed", "deep", "single", "thin"),
                     *(keeps_half("masksembles", "deep", metric, "single") for metric in MAIN),
                     control=("deep", "single"), metrics=SHOWN),
        notes=(FAIR_NOTE, "Nothing is chosen on validation data, so a single network may overfit, as in the papers. "
               "NLL after temperature scaling is shown as well."),
    ),
    _claim(
        "residual", "Table 1, made a test: a residual network on small images",
        "Packed-Ensembles with alpha = gamma = 2 perform about as well as Deep Ensembles, at a ResNet's size.",
        settings=FAIR_SETTINGS, costs={**FAIR_COSTS, "laptop": "three hours on one core"}, experiment=RESIDUAL,
        check=expect(*_keeps("packed", "deep", "single", "thin"), control=("deep", "single"),
                     metrics=SHOWN), notes=(FAIR_NOTE,),
    ),
    _claim(
        "table1-cost", "Table 1: parameters and mult-adds",
        "With alpha = gamma = 2, four packed networks have fewer parameters and mult-adds than the single network.",
        published={"counts": published.TABLE1}, costs=EXACT,
        experiment=counts.counting_experiment("counts-table1", counts.TABLE1, "r18 c10"),
        check=counts.check_counts(counts.TABLE1, counts.TABLE1_REASONS, counts.packed_is_smaller),
        notes=("The caption says gamma = 1 for the Wide-ResNets, but on CIFAR-10 the printed counts are those of "
               "gamma = 2; on CIFAR-100 those of gamma = 1.",),
    ),
    _claim(
        "table2", "Table 2: ImageNet",
        "Packed-Ensembles are more accurate than the single network, and detect OOD data better than Deep Ensembles.",
        published={"table": {name.split()[0]: _table2(row) for name, row in published.TABLE2.items()
                             if name.endswith("r50")}, "all rows": published.TABLE2},
        settings=IMAGENET_SETTINGS, costs=IMAGENET_COSTS,
        experiment=study("methods-imagenet", PACKED_IMAGENET, smoke=ONE_SEED, **_SMALL),
        check=expect(better("packed", "single", "accuracy"), better("packed", "deep", "auroc_mi"),
                        metrics=("accuracy", "ece", *(f"{metric}_mi {where}" for where in ("textures", "imagenet_o")
                                                      for metric in ("aupr", "auroc", "fpr95")),
                                 "accuracy imagenet_r", "nll imagenet_r", "ece imagenet_r")),
        notes=("On ImageNet the paper scores ensembles by mutual information, the single network and MIMO by the "
               "maximum softmax probability.",
               "ImageNet-R is shown, not judged: packed is said to be better than Deep Ensembles and the single "
               "network under shift, where the table has Deep Ensembles ahead in accuracy, NLL and ECE.",
               "A3's test crop (0.95 of the side) and MIMO's rho are left open: the whole short side, and rho = 1."),
    ),
    _claim(
        "section3.2", "Section 3.2: the number of parameters of a layer",
        "A packed layer has M [alpha C/M x alpha C'/M x s^2 / gamma] parameters: those of the single network's layer "
        "with alpha = sqrt(M), those of M networks with alpha = M.",
        costs=EXACT, experiment=FORMULA, check=check_formula,
    ),
    _claim(
        "figure3", "Figure 3: equal forms of a packed ensemble",
        "Members run one by one, as grouped convolutions, or with a full first convolution give the same outputs.",
        costs=EXACT, experiment=FORMS, check=check_forms,
    ),
    _claim(
        "figure5", "Figure 5: the bound on the divergence of a sparse layer",
        "The Kullback-Leibler divergence between a layer and its sparse approximation stays below the bound (8).",
        settings={"mean": 0.1, "weights": 0.1}, costs=EXACT, experiment=SPARSITY, check=of_one_part(check_sparsity),
    ),
    _swept(
        "packing", "table5", "Table 5: alpha and gamma", experiment=ALPHA_GAMMA,
        published={"table": {f"packed {name}": row for name, row in published.TABLE5.items()}},
        settings={**HYPERPARAMETERS, "network": "ResNet-50, CIFAR-100"},
        notes=("The paper leaves out alpha = 1 with gamma = 4: groups would have fewer than 64 channels.",
               "Stable: less than one point of accuracy."),
    ),
    _claim(
        "figure6", "Figure 6: accuracy and AUPR against alpha and M",
        "Accuracy increases with alpha, and the more subnetworks, the better accuracy and AUPR.",
        settings={**HYPERPARAMETERS, "network": "ResNet-50, CIFAR-100"}, costs=SWEEP_COSTS,
        experiment=study("packed-alpha-size", PACKED_R50, laptop=LAPTOP_RESIDUAL, methods=["packed"],
                         sweep={"alpha": [1, 2, 4], "size": [2, 4]}),
        check=expect(improves("packed", "alpha", "accuracy", size=4),
                        *(improves("packed", "size", metric, alpha=4) for metric in ("accuracy", "aupr")),
                        metrics=("accuracy", "aupr")),
    ),
    _swept("packing", "figure7", "Figure 7: accuracy and AUPR against gamma", experiment=ALPHA_GAMMA,
           settings={**HYPERPARAMETERS, "network": "ResNet-50, CIFAR-100"}),
    _claim(
        "table6", "Table 6: criteria for OOD data", SWEEPS["packing"].claims["table6"].says,
        published={"all rows": published.TABLE6},
        settings={**HYPERPARAMETERS, "network": "ResNet-50, CIFAR-100 (the table names no network)",
                  "(alpha, gamma, M)": [str(row) for row in TABLE6]},
        costs=SWEEP_COSTS, experiment=CRITERIA,
        check=expect(*(part for alpha, gamma, size in TABLE6
                       for part in criteria(f"packed alpha={alpha} gamma={gamma} size={size}")),
                     metrics=("auroc", "aupr"), combine=most_of),
        notes=("The text says that it seems to be the best; in the fifth setting entropy has the higher AUROC.",),
    ),
    _claim(
        "table7", "Table 7: sources of stochasticity",
        "Any one of non-deterministic algorithms, different initialisations and different batches is enough for "
        "diversity, and no set of them is clearly best.",
        published={"all rows": published.TABLE7}, settings={**HYPERPARAMETERS, "networks": "ResNet-18, ResNet-50"},
        costs=SWEEP_COSTS, experiment=PACKED_SOURCES,
        check=check_measured(tuple(f"{figure}_{source}" for source in ("initialisation", "batches")
                                   for figure in ("enough", "accuracy", "aupr")), ("sources",)),
        notes=("Enough: half of the mutual information that both give. No best set: accuracy and AUPR within a point.",
               "On a CPU training is deterministic: the rows with non-deterministic algorithms need a GPU, where those "
               "of \"neither\" are the row ND; rows without ND need torch.use_deterministic_algorithms. "
               "Neither was run."),
    ),
    _claim(
        "table8", "Table 8: speed of training and inference",
        "Packed-Ensembles train and predict faster than Deep Ensembles.",
        published={"all rows": published.TABLE8}, settings={"device": "RTX 3090, torch 1.12.1", "network": "ResNet-50"},
        costs=STUDY_COSTS, experiment=RESNET50,
        check=expect(cheaper("packed", "deep", "training"), cheaper("packed", "deep", "latency"),
                        metrics=("training", "latency")),
        notes=("With float32 the paper's own figures say otherwise for training: 179.5 s per epoch against 145.3 s.",
               "Measured in float32 alone: the columns of float16 need a GPU, and were not run."),
    ),
    _swept(
        "widths", "figure8", "Figure 8: accuracy and AUPR against the width of one network",
        settings={**HYPERPARAMETERS, "networks": "ResNet-18, ResNet-50, CIFAR-100"},
        experiment=sweep_study("widths", "widths", PACKED_WIDTHS, laptop=LAPTOP_RESIDUAL),
        notes=("About the same: less than two points between half and twice the width.",),
    ),
    _claim(
        "figure9", "Figure 9: accuracy and calibration under shift, CIFAR-100-C",
        "Packed-Ensembles achieve the highest accuracy and the lowest ECE under shift.",
        settings=HYPERPARAMETERS, costs=STUDY_COSTS, experiment=ON_CIFAR100,
        check=expect(*(better("packed", other, metric) for metric in ("cacc", "cece")
                          for other in ("single", "deep", "masksembles", "batch_ensemble", "mimo")),
                        metrics=("cacc", "cece", "cnll")),
    ),
    _claim(
        "table9", "Table 9, appendix L: a ResNeXt as control",
        "Groups alone do not explain it: Packed-Ensembles of ResNet-50 are better than a ResNeXt-50 (32x4d).",
        published={"table": {"packed, resnet50": published.TABLE9["packed r50"],
                             "single, resnext50": published.TABLE9["resnext50"]}},
        settings={**HYPERPARAMETERS, "data": "CIFAR-10", "ensembles": "M = 4, alpha 2, gamma 1: 23.6 M parameters"},
        costs={**SWEEP_COSTS, "laptop": "hours: two networks of 50 layers at a quarter of their width, three seeds"},
        experiment=CONTROL,
        check=expect(*(better("packed, resnet50", "single, resnext50", metric) for metric in MAIN),
                        metrics=(*MAIN, "aupr", "fpr95", "parameters")),
    ),
    _claim(
        "table10", "Table 10: parameters and mult-adds on ImageNet",
        "Packed-Ensembles need fewer parameters and mult-adds than Deep Ensembles.",
        published={"counts": published.TABLE10}, costs=EXACT,
        experiment=counts.counting_experiment("counts-table10", counts.TABLE10,
                                              ("single r50", "alpha=3 r50", "deep r50")),
        check=counts.check_counts(counts.TABLE10, counts.TABLE10_REASONS, counts.packed_is_cheaper_than_deep),
    ),
    _claim(
        "table11", "Table 11: UCI regression",
        "Packed-Ensembles and Deep Ensembles give equivalent results on most UCI sets.",
        published={"table11": published.TABLE11, "lakshminarayanan": published.LAKSHMINARAYANAN},
        settings={"network": "one hidden layer of 200 (protein: 400), ReLU, mean and softplus variance",
                  "ensembles": "Packed alpha 2, M 3, gamma 1; Deep M 3 (the first three of five)",
                  "splits": "20 standard ones (protein: 5)", "batches": 100},
        costs={"smoke": "3 s on one core", "laptop": "about 20 minutes on one core",
               "paper": "about 4 hours on one core: all candidates on all splits"},
        experiment=UCI, check=check_table11, reduced=("smoke",),
        notes=("The paper says nothing about training: rate, epochs and L2 are chosen on a fifth of the training rows, "
               "then all training rows are used; the candidates are in the stored parts.",
               "NLL is that of one Gaussian with the mixture's moments; the formula in appendix N lacks a square.",
               "The paper's errors for Power and Wine are far below everybody else's; no attempt is made to match "
               "them."),
    ),
    _claim(
        "appendixJ", "Appendix J: stability over seeds",
        "The accuracy of Packed-Ensembles varies less over seeds than that of one network and of Deep Ensembles.",
        published=published.APPENDIX_J, settings={**HYPERPARAMETERS, "network": "ResNet-50, CIFAR-100"},
        costs=STUDY_COSTS, experiment=RESNET50,
        check=expect(steadier("packed", "single", "accuracy"), steadier("packed", "deep", "accuracy"),
                        metrics=("accuracy",)),
        notes=("With five seeds, a ratio of variances is distinguishable from one only above 9.6.",),
    ),
    _claim(
        "appendixK", "Appendix K: selection of the ensemble or of each member",
        "Selecting the epoch that is best for the ensemble is as good as selecting the best epoch of each member.",
        settings=HYPERPARAMETERS, costs=SWEEP_COSTS, experiment=SELECTION,
        check=check_measured(("selection", "selection_nll"), ("selection",)),
        notes=("As good: within one point of accuracy and 0.01 of NLL, fixed before anything was run.",),
    ),
]  # fmt: skip
