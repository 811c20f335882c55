"""The items of Fort et al., Deep Ensembles: A Loss Landscape Perspective."""

from __future__ import annotations

from typing import Any

from .checks.findings import check_findings
from .claims import Claim
from .experiments.landscape_findings import FINDINGS
from .published import fort as published

SETTINGS = {
    "networks": "SmallCNN (16, 32, 32), MediumCNN (64, 128, 256, 256), ResNet20v1",
    "training": "Adam, batches of 128, dropout 0.1, rate 1.6e-3 halved every 10 epochs, 40 epochs",
    "data": "CIFAR-10, no augmentation (ResNet20v1: as in the Keras example, 200 epochs)",
}

IMAGENET = {"network": "ResNet50v2", "training": "momentum 0.9, batches of 256, 160 epochs, rate 0.15 to 0.0015"}

COSTS = {
    "smoke": "20 s of one processor",
    "laptop": "about half an hour of one processor (SmallCNN, 5,000 images of CIFAR-10), shared by its items",
    "paper": "about a day of one GPU: MediumCNN, 25 runs of 40 epochs on 50,000 images (our estimate)",
}

HOURS = {**COSTS, "paper": "ImageNet: days on several GPUs"}


def _claim(item: str, title: str, says: str, **given: Any) -> Claim:
    return Claim("fort", item, title, says, **{"settings": SETTINGS, "costs": COSTS, **given})


def _judged(*names: str) -> dict[str, Any]:
    return {"experiment": FINDINGS, "check": check_findings(*names)}


ITEMS = [
    _claim(
        "figure2", "Figure 2: similarity along a trajectory, SmallCNN",
        "Functions along one trajectory are much more alike than those of different initialisations.",
        published={"accuracy": published.ACCURACY}, **_judged("across"),
        notes=("SmallCNN trains for 10 epochs in section 3's list and for 40 in its text.",),
    ),
    _claim(
        "figure3", "Figure 3: weights and predictions of different initialisations",
        "Solutions of different initialisations are nearly orthogonal in weight space and disagree in function space.",
        **_judged("cosine", "across"),
    ),
    _claim(
        "figure4", "Figure 4: t-SNE of trajectories and subspaces",
        "Functions sampled from a subspace stay in the neighbourhood of their own run.",
        settings={**SETTINGS, "subspaces": "random, dropout, diagonal Gaussian, low-rank Gaussian"},
    ),
    _claim(
        "figure5", "Figure 5: radial landscape between two optima, MediumCNN",
        "Solutions along a trajectory are much more like their own optimum than like the other.",
    ),
    _claim(
        "figure6", "Figure 6: diversity against accuracy, CIFAR-10",
        "Independent solutions achieve a better trade-off of diversity and accuracy than four subspace methods.",
    ),
    _claim(
        "figure7", "Figure 7: diversity against accuracy, CIFAR-100 and ImageNet",
        "On harder problems independent solutions stand out more from subspace samples.",
        settings={**SETTINGS, **IMAGENET}, costs=HOURS,
    ),
    _claim(
        "figure8", "Figure 8: ensembles, subspaces, and both, against ensemble size",
        "Subspace sampling and ensembling are complementary, and ensembling gains more.",
        settings={**SETTINGS, "network": "MediumCNN", "samples": 10, "rank": 4},
        **_judged("ensemble", "both"),
    ),
    _claim(
        "figure9", "Figure 9: under corruptions, and Jensen-Shannon divergence",
        "Divergence is highest between independent solutions, then trajectory and random samples, low-rank, diagonal.",
        published={"divergence on SVHN": published.DIVERGENCE},
        **_judged("independent", "random", "trajectory", "random_low_rank", "low_rank"),
        notes=("The paper writes the sum over members; its figures are means.",
               "Judged are the divergences outside; accuracy and Brier score under corruptions are not run here yet."),
    ),
    _claim(
        "figure10", "Figure 10: ImageNet and ImageNet-C",
        "On ImageNet random subspaces are the best of subspaces and complementary to ensembling.",
        settings=IMAGENET, costs=HOURS,
    ),
    _claim(
        "figureS1", "Figure S1: radial landscape, training and validation loss",
        "Optima with similar loss are different functions.",
    ),
    _claim(
        "figureS2", "Figure S2: the line and the tunnel between two optima",
        "The straight line between optima has a barrier; an optimised path avoids it.",
        **_judged("barrier", "tunnel"),
    ),
    _claim(
        "figureS3", "Figure S3: functions along the tunnel",
        "Along the low-loss path functions do not stay the same.",
        **_judged("along"),
    ),
    _claim(
        "figureS4", "Figure S4: initialisation and shuffling",
        "Both add diversity, and initialisation more; shuffling adds more at higher rates.",
    ),
    _claim(
        "figureS5", "Figure S5: cSG-MCMC",
        "Deep Ensembles are more diverse than the cycles of cSG-MCMC.",
        settings={"network": "ResNet-18", "chains": "3 starts, 3 cycles of 50 epochs", "data": "CIFAR-10, CIFAR-100"},
    ),
    _claim(
        "figureS6", "Figure S6: a model of the trade-off",
        "A one-parameter family fits subspace samples well; on CIFAR-100 its exponent is 0.22.",
        published={"exponent": published.EXPONENT},
        notes=("Equations 3 and 4 of appendix D.3 are exchanged and misprinted; they are taken from the text.",),
    ),
]  # fmt: skip
