"""The items of Fort et al., Deep Ensembles: A Loss Landscape Perspective.

Each is judged by numbers of `landscape/studies/fort.py`, and shows the pictures of the laboratory's page.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..landscape.studies.fort import SUBSPACES
from ..report.claims import Claim
from .measured import CHAINS, HARDER, SOURCES_OF_CHANCE, Found, by_network, check_measured, landscape
from .parts import InParts, Stored
from .published import fort as published


def harder_minus_easier(found: Found) -> Found:
    """For each seed how much more independent solutions stand out on a harder problem than on the easiest."""
    groups = by_network(found)
    easy = groups.get("easier", groups.get("resnet20", {}))
    gaps = {
        name: {seed.rpartition("-")[2]: part.figures.get("values", {}).get("apart") for seed, part in parts.items()}
        for name, parts in groups.items()
    }
    base = next((gaps[name] for name, parts in groups.items() if parts is easy), {})
    return {
        f"{name}{name and '-'}seed-{seed}": Stored({"values": {"harder": gap - base[seed]}})
        for name, own in gaps.items() if groups[name] is not easy
        for seed, gap in own.items() if gap is not None and base.get(seed) is not None
    }  # fmt: skip


SETTINGS = {
    "networks": "SmallCNN (16, 32, 32), MediumCNN (64, 128, 256, 256), ResNet20v1",
    "training": "Adam, batches of 128, dropout 0.1, rate 1.6e-3 halved every 10 epochs, 40 epochs",
    "data": "CIFAR-10, no augmentation (ResNet20v1: as in the Keras example, 200 epochs)",
}

IMAGENET = {"network": "ResNet50v2", "training": "momentum 0.9, batches of 256, 160 epochs, rate 0.15 to 0.0015"}

COSTS = {
    "smoke": "20 s on one core",
    "laptop": "about half an hour on one core (SmallCNN, 5,000 images of CIFAR-10), shared by its items",
    "paper": "about a day on one GPU: MediumCNN, 25 runs of 40 epochs on 50,000 images (our estimate)",
}

HOURS = {**COSTS, "paper": "ImageNet: days on several GPUs"}


DRAWN_BY_TORCH = (
    "Weights begin as PyTorch's layers draw them; the authors' notebook draws weights and biases by Xavier."
)


_claim = partial(Claim, "fort", settings=SETTINGS, costs=COSTS)


def _item(
    names: tuple[str, ...], measures: tuple[str, ...], *networks: str, experiment: InParts | None = None, **given: Any
) -> dict[str, Any]:
    return {"experiment": experiment or landscape(*networks), "check": check_measured(names, measures, **given)}


ITEMS = [
    _claim(
        "figure2", "Figure 2: similarity along a trajectory, SmallCNN",
        "Functions along one trajectory are much more alike than those of different initialisations.",
        published={"accuracy": published.ACCURACY}, **_item(("across",), ("weights", "functions", "map"), "small_cnn"),
        notes=("SmallCNN trains for 10 epochs in section 3's list and for 40 in its text; here for 40.",
               DRAWN_BY_TORCH),
    ),
    _claim(
        "figure3", "Figure 3: weights and predictions of different initialisations",
        "Solutions of different initialisations are nearly orthogonal in weight space and disagree in function space.",
        **_item(("cosine", "across"), ("weights", "functions"), "small_cnn", "resnet20"),
        notes=("The text does not name the two architectures: SmallCNN and ResNet20v1 are taken.",
               "Cosines are of weight matrices and filters: scales of normalisation all start at 1.", DRAWN_BY_TORCH),
    ),
    _claim(
        "figure4", "Figure 4: t-SNE of trajectories and subspaces",
        "Functions sampled from a subspace stay in the neighbourhood of their own run.",
        settings={**SETTINGS, "subspaces": "random, dropout, diagonal Gaussian, low-rank Gaussian"},
        **_item(tuple(f"stays_{name}" for name in SUBSPACES), ("map",), "small_cnn"),
        notes=("The paper shows it only by t-SNE; what is judged here is disagreement with the solutions.",),
    ),
    _claim(
        "figure5", "Figure 5: radial landscape between two optima, MediumCNN",
        "Solutions along a trajectory are much more like their own optimum than like the other.",
        **_item(("own",), ("plane",), "medium_cnn"),
    ),
    _claim(
        "figure6", "Figure 6: diversity against accuracy, CIFAR-10",
        "Independent solutions achieve a better trade-off of diversity and accuracy than four subspace methods.",
        **_item(tuple(f"apart_{name}" for name in SUBSPACES), ("diversity",), "small_cnn", "medium_cnn", "resnet20"),
        notes=("Trade-off: the share reached, at that accuracy, of the diversity between the limits of "
               "appendix D.",),
    ),
    _claim(
        "figure7", "Figure 7: diversity against accuracy, CIFAR-100 and ImageNet",
        "On harder problems, independent solutions stand out more from subspace samples.",
        settings={**SETTINGS, **IMAGENET}, costs=HOURS,
        **_item(("harder",), ("diversity",), experiment=HARDER, derive=harder_minus_easier),
        notes=("At laptop scale the harder problem is CIFAR-10 and the easier one Fashion-MNIST; at the paper's "
               "CIFAR-100 and CIFAR-10.",),
    ),
    _claim(
        "figure8", "Figure 8: ensembles, subspaces, and both, against ensemble size",
        "Subspace sampling and ensembling are complementary, and ensembling gains more.",
        settings={**SETTINGS, "network": "MediumCNN", "samples": 10, "rank": 4,
                  "rejected": "random samples below a validation accuracy of 0.65", "metrics": "accuracy, Brier score"},
        **_item(("ensemble_accuracy", "ensemble_brier", "both_accuracy", "both_brier"), ("size",), "medium_cnn"),
        notes=("How many runs the figure has is not said: ten are taken. What subspaces add to an ensemble is told of "
               "the one that is best on validation rows.",
               "At laptop scale samples are rejected below 0.92 of their solution's accuracy, which is 0.65 of 0.71."),
    ),
    _claim(
        "figure9", "Figure 9: under corruptions, and Jensen-Shannon divergence",
        "Divergence is highest between independent solutions, then trajectory and random samples, low-rank, diagonal.",
        published={"divergence on SVHN": published.DIVERGENCE},
        **_item(("shifted_accuracy", "shifted_brier", "shifted_jsd", "grows", "independent", "random", "trajectory",
                 "random_low_rank", "low_rank"), ("shift",), "medium_cnn"),
        notes=("The paper writes the sum over members; its figures are means.",
               "At laptop scale: three corruptions of our own at three severities; at the paper's all of CIFAR-10-C."),
    ),
    _claim(
        "figure10", "Figure 10: ImageNet and ImageNet-C",
        "On ImageNet, random subspaces are the best subspaces and complement ensembling.",
        settings=IMAGENET, costs=HOURS,
        **_item(("random_best_accuracy", "random_best_brier", "random_both_accuracy", "random_both_brier",
                 "shifted_accuracy", "shifted_brier"), ("size", "shift"), "imagenet"),
        notes=("At smaller scales it is judged on the runs of the other figures.",
               "Training rows are read a batch at a time; of the test rows, the first 891 (512 MB) are evaluated on. "
               "The probabilities of every network on every row are kept: with all 50,000 rows and 1,000 classes "
               "these are 200 MB for each of several hundred networks."),
    ),
    _claim(
        "figureS1", "Figure S1: radial landscape, training and validation loss",
        "Optima with similar loss are different functions.",
        **_item(("similar", "different"), ("plane",), "medium_cnn"),
        notes=("Different: they disagree on more than half as many rows as they err on.",),
    ),
    _claim(
        "figureS2", "Figure S2: the line and the tunnel between two optima",
        "The straight line between optima has a barrier; an optimised path avoids it.",
        **_item(("barrier", "tunnel"), ("tunnel",), "medium_cnn"),
    ),
    _claim(
        "figureS3", "Figure S3: functions along the tunnel",
        "Along the low-loss path, the function does not stay the same.",
        **_item(("along",), ("stitched",), "medium_cnn"),
    ),
    _claim(
        "figureS4", "Figure S4: initialisation and shuffling",
        "Both add diversity, initialisation more so; shuffling adds more at higher learning rates.",
        costs={**COSTS, "laptop": "about 10 minutes on one core"},
        **_item(("initialisation", "batches", "dominant", "higher"), ("randomness",), experiment=SOURCES_OF_CHANCE),
    ),
    _claim(
        "figureS5", "Figure S5: cSG-MCMC",
        "Deep Ensembles are more diverse than the cycles of cSG-MCMC.",
        settings={"network": "ResNet-18", "chains": "3 starts, 3 cycles of 50 epochs", "data": "CIFAR-10, CIFAR-100",
                  "training": "as in the code of Zhang et al.: rate 0.5, batches of 64, decay 5e-4, no momentum, noise "
                              "in the last 5 epochs of a cycle, temperature 1/N, padded crops and flips"},
        costs={**COSTS, "laptop": "about 6 minutes on one core"},
        **_item(("runs",), ("chain",), experiment=CHAINS),
    ),
    _claim(
        "figureS6", "Figure S6: a model of the trade-off",
        "A one-parameter family fits subspace samples well; on CIFAR-100 its exponent is 0.22.",
        published={"exponent": published.EXPONENT},
        **_item(("fit", "exponent"), ("diversity",), "cifar100",
                printed={"exponent, CIFAR-100": "0.22", "exponent": "0.22 (ResNet20v1, CIFAR-100)"}),
        notes=("Equations 3 and 4 of appendix D.3 are exchanged and misprinted; they are taken from the text.",
               "Well: three quarters of the variance of diversity. The exponent is printed for one network on "
               "CIFAR-100; on other data only its meaning is judged, that it is below 1."),
    ),
]  # fmt: skip
