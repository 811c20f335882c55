"""The items of Fort et al., Deep Ensembles: A Loss Landscape Perspective."""

from __future__ import annotations

from typing import Any

from .checks.findings import CHANCE, FORT, check_seeds, harder_minus_easier
from .checks.pictures import (
    chains_picture,
    diversity_picture,
    embedding_picture,
    epochs_picture,
    functions_picture,
    paths_picture,
    radial_picture,
    runs_picture,
    shifted_picture,
    sizes_picture,
    sources_picture,
)
from .claims import Claim
from .experiments.fort_landscape import HARDER, LANDSCAPE, ON_IMAGENET, SUBSPACES
from .experiments.sources_of_randomness import CHAINS, SOURCES_OF_CHANCE
from .experiments.stored_parts import InParts
from .published import fort as published

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


def _claim(item: str, title: str, says: str, **given: Any) -> Claim:
    return Claim("fort", item, title, says, **{"settings": SETTINGS, "costs": COSTS, **given})


def _item(*names: str, experiment: InParts = LANDSCAPE, **given: Any) -> dict[str, Any]:
    return {"experiment": experiment, "check": check_seeds(FORT, *names, **given)}


ITEMS = [
    _claim(
        "figure2", "Figure 2: similarity along a trajectory, SmallCNN",
        "Functions along one trajectory are much more alike than those of different initialisations.",
        published={"accuracy": published.ACCURACY}, **_item("across", pictures=epochs_picture),
        notes=("SmallCNN trains for 10 epochs in section 3's list and for 40 in its text.",),
    ),
    _claim(
        "figure3", "Figure 3: weights and predictions of different initialisations",
        "Solutions of different initialisations are nearly orthogonal in weight space and disagree in function space.",
        **_item("cosine", "across", pictures=runs_picture),
    ),
    _claim(
        "figure4", "Figure 4: t-SNE of trajectories and subspaces",
        "Functions sampled from a subspace stay in the neighbourhood of their own run.",
        settings={**SETTINGS, "subspaces": "random, dropout, diagonal Gaussian, low-rank Gaussian"},
        **_item(*(f"stays_{name}" for name in SUBSPACES), pictures=embedding_picture),
        notes=("The paper shows it only by t-SNE; what is judged here is disagreement with the solutions.",),
    ),
    _claim(
        "figure5", "Figure 5: radial landscape between two optima, MediumCNN",
        "Solutions along a trajectory are much more like their own optimum than like the other.",
        **_item("own", pictures=radial_picture),
    ),
    _claim(
        "figure6", "Figure 6: diversity against accuracy, CIFAR-10",
        "Independent solutions achieve a better trade-off of diversity and accuracy than four subspace methods.",
        **_item(*(f"apart_{name}" for name in SUBSPACES), pictures=diversity_picture),
        notes=("Trade-off: the share reached, at that accuracy, of the diversity between the limits of "
               "appendix D.",),
    ),
    _claim(
        "figure7", "Figure 7: diversity against accuracy, CIFAR-100 and ImageNet",
        "On harder problems, independent solutions stand out more from subspace samples.",
        settings={**SETTINGS, **IMAGENET}, costs=HOURS,
        **_item("harder", experiment=HARDER, pictures=diversity_picture, derive=harder_minus_easier),
        notes=("At laptop scale the harder problem is CIFAR-10 and the easier one Fashion-MNIST; at the paper's "
               "CIFAR-100 and CIFAR-10.",),
    ),
    _claim(
        "figure8", "Figure 8: ensembles, subspaces, and both, against ensemble size",
        "Subspace sampling and ensembling are complementary, and ensembling gains more.",
        settings={**SETTINGS, "network": "MediumCNN", "samples": 10, "rank": 4},
        **_item("ensemble", "both", pictures=sizes_picture),
    ),
    _claim(
        "figure9", "Figure 9: under corruptions, and Jensen-Shannon divergence",
        "Divergence is highest between independent solutions, then trajectory and random samples, low-rank, diagonal.",
        published={"divergence on SVHN": published.DIVERGENCE},
        **_item("shifted", "independent", "random", "trajectory", "random_low_rank", "low_rank",
                pictures=shifted_picture),
        notes=("The paper writes the sum over members; its figures are means.",
               "Here: three corruptions at severity 3; the paper has all of CIFAR-10-C."),
    ),
    _claim(
        "figure10", "Figure 10: ImageNet and ImageNet-C",
        "On ImageNet, random subspaces are the best subspaces and complement ensembling.",
        settings=IMAGENET, costs=HOURS,
        **_item("random_best", "random_both", experiment=ON_IMAGENET, pictures=sizes_picture),
        notes=("At smaller scales it is judged on the runs of the other figures.",),
    ),
    _claim(
        "figureS1", "Figure S1: radial landscape, training and validation loss",
        "Optima with similar loss are different functions.",
        **_item("similar", "different", pictures=radial_picture),
        notes=("Different: they disagree on more than half as many rows as they err on.",),
    ),
    _claim(
        "figureS2", "Figure S2: the line and the tunnel between two optima",
        "The straight line between optima has a barrier; an optimised path avoids it.",
        **_item("barrier", "tunnel", pictures=paths_picture),
    ),
    _claim(
        "figureS3", "Figure S3: functions along the tunnel",
        "Along the low-loss path, the function does not stay the same.",
        **_item("along", pictures=functions_picture),
    ),
    _claim(
        "figureS4", "Figure S4: initialisation and shuffling",
        "Both add diversity, initialisation more so; shuffling adds more at higher learning rates.",
        costs={**COSTS, "laptop": "about 10 minutes on one core"}, experiment=SOURCES_OF_CHANCE,
        check=check_seeds(CHANCE, "initialisation", "batches", "dominant", "higher", pictures=sources_picture),
    ),
    _claim(
        "figureS5", "Figure S5: cSG-MCMC",
        "Deep Ensembles are more diverse than the cycles of cSG-MCMC.",
        settings={"network": "ResNet-18", "chains": "3 starts, 3 cycles of 50 epochs", "data": "CIFAR-10, CIFAR-100"},
        costs={**COSTS, "laptop": "about 6 minutes on one core"}, experiment=CHAINS,
        check=check_seeds(CHANCE, "runs", pictures=chains_picture),
    ),
    _claim(
        "figureS6", "Figure S6: a model of the trade-off",
        "A one-parameter family fits subspace samples well; on CIFAR-100 its exponent is 0.22.",
        published={"exponent": published.EXPONENT},
        **_item("fit", "exponent", pictures=diversity_picture, printed={"exponent": "0.22 (ResNet20v1, CIFAR-100)"}),
        notes=("Equations 3 and 4 of appendix D.3 are exchanged and misprinted; they are taken from the text.",
               "Well: three quarters of the variance of diversity. The exponent is printed for one network on "
               "CIFAR-100; on other data only its meaning is judged, that it is below 1."),
    ),
]  # fmt: skip
