"""Fort et al.: runs are trained once for each seed, and every figure of the paper is measured on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...landscape.checkpoints import Trajectory
from ...landscape.diversity_accuracy_plane import DiversityAccuracy, diversity_accuracy, family, fit_exponent, limits
from ...landscape.paths import Path as Tunnel
from ...landscape.paths import along, line
from ...landscape.planes import plane, surface
from ...landscape.recorded_training import trajectories
from ...landscape.sampling import diagonal_gaussian, dropout_subspace, low_rank_gaussian, random_subspace, solutions
from ...landscape.similarity import cosine, disagreement, embedding, ratios
from ...landscape.studies.findings import find_tunnel, finding_figures
from ...landscape.studies.quality_curves import BASE, quality
from ...training.batching import mix_seeds
from .seeded_experiment import Prepared, fit_options, in_seeds, prepare_rows, seed_parts
from .stored_parts import Given, Part

TINY: dict[str, Any] = {
    "data": "sklearn_digits", "outside": "noise", "model": "mlp", "rows": 300, "runs": 3, "epochs": 8, "lr": 3e-3,
    "batch_size": 32, "seeds": 2, "grid": 5, "corruptions": ["gaussian_noise"],
}  # fmt: skip

LAPTOP: dict[str, Any] = {
    "data": "cifar10", "outside": "svhn", "model": "small_cnn", "rows": 5000, "runs": 3, "epochs": 20, "lr": 1.6e-3,
    "batch_size": 128, "seeds": 3, "grid": 13, "corruptions": ["gaussian_noise", "motion_blur", "contrast"],
}  # fmt: skip

PAPER: dict[str, Any] = {
    **LAPTOP, "model": "medium_cnn", "rows": 50_000, "runs": 5, "epochs": 40, "seeds": 5, "grid": 25,
    "recipe": "fort/cifar10/medium_cnn",
}  # fmt: skip

SETTINGS = {"smoke": TINY, "laptop": LAPTOP, "paper": PAPER}

IMAGENET: dict[str, Any] = {**PAPER, "data": "imagenet", "model": "resnet50v2", "rows": 1_281_167, "epochs": 160,
                            "outside": "textures", "recipe": "fort/imagenet/resnet50v2"}  # fmt: skip

EASIER: dict[str, dict[str, Any]] = {  # a problem that is easier than the first; the rest of the settings is the same
    "smoke": {"data": "digits", "outside": "letters"},
    "laptop": {"data": "fashion_mnist", "outside": "notmnist"},
    "paper": {"data": "cifar10", "outside": "svhn", "recipe": "fort/cifar10/resnet20"},
}

HARD = {"data": "cifar100", "model": "resnet20", "recipe": "fort/cifar100/resnet20"}  # at the paper's scale

SUBSPACES = ("random", "dropout", "diagonal", "low_rank")

SAMPLES = 3  # of each subspace

REACH = (0.05, 0.1, 0.2, 0.3)  # distances of random samples, relative to the weight vector, for the plane of diversity

KEPT = (0.98, 0.95, 0.9, 0.8)  # shares of weights that are kept by dropout, for the same


def compute_landscape(given: Mapping[str, Any], folder: Path | None) -> Given:
    """The figures of one seed by name, and what the pictures are drawn from."""
    own = prepare_rows(given, folder)
    runs = train_runs(given, own)
    values, columns = dict[str, float](), dict[str, np.ndarray]()
    for measured in (_diversity,) if given.get("only") == "diversity" else MEASURED:
        figures, arrays = measured(runs, own, given)
        values, columns = {**values, **figures}, {**columns, **arrays}
    return {"values": values, "classes": len(own.data.classes)}, columns


def train_runs(given: Mapping[str, Any], own: Prepared) -> list[Trajectory]:
    """Independent runs with all their checkpoints, by the recipe, or with a rate that is halved at each quarter."""
    return trajectories(
        own.model, own.train, own.test, runs=given["runs"], seed=mix_seeds(given["seed"], 7), keep=None,
        **fit_options(given, schedule="quarters"),
    )  # fmt: skip


def _sample_subspaces(run: Trajectory, own: Prepared, seed: int) -> dict[str, Any]:
    """Networks of each subspace around a run; random ones at a tenth of the length of the weight vector."""
    return {
        "random": random_subspace(run, SAMPLES, data=own.train, seed=seed),
        "dropout": dropout_subspace(run, SAMPLES, (0.9, 1.0), data=own.train, seed=seed),
        "diagonal": diagonal_gaussian(run, SAMPLES, data=own.train, seed=seed),
        "low_rank": low_rank_gaussian(run, SAMPLES, data=own.train, seed=seed),
    }


def _found(runs: Sequence[Trajectory], own: Prepared, given: Mapping[str, Any]) -> Any:
    """The findings of `landscape/studies/findings.py`, and what the runs say of the test rows."""
    path = find_tunnel(runs, own.train)
    values = finding_figures(runs, own.train, own.validation, own.test, own.outside, path=path, seed=given["seed"])
    said = np.stack([run.outputs[-1].numpy() for run in runs])
    columns = {"probabilities": said.astype(np.float16), "targets": own.test[1].numpy()}
    return values, columns | _similarity(runs, own) | _measure_paths(runs, path, own)


def _similarity(runs: Sequence[Trajectory], own: Prepared) -> dict[str, np.ndarray]:
    """Cosines and disagreements between the checkpoints of the first run, and between the ends of all."""
    ends = solutions(runs)
    return {
        "epochs cosine": cosine(runs[0]), "epochs disagreement": disagreement(runs[0]),
        "runs cosine": cosine(ends), "runs disagreement": disagreement(ends, data=own.test),
    }  # fmt: skip


def _measure_paths(runs: Sequence[Trajectory], path: Tunnel, own: Prepared) -> dict[str, np.ndarray]:
    """Loss and the ends' labels along the straight line and along the tunnel, on test rows."""
    columns: dict[str, np.ndarray] = {}
    for name, way in (("line", line(runs[0], runs[1])), ("tunnel", path)):
        found = along(way, own.test, points=9, refresh=own.train)
        assert found.loss is not None and found.agreement is not None
        columns |= {f"{name} t": found.t, f"{name} loss": found.loss, f"{name} agreement": found.agreement}
    return columns


# ---------------------------------------------------------------- Figure 4


def _neighbourhood(runs: Sequence[Trajectory], own: Prepared, given: Mapping[str, Any]) -> Any:
    """How much further samples are from the nearest other solution than from their own; and everything in a plane."""
    half, ends, values = 0.5 / len(own.test[1]), solutions(runs), {}
    held = [_sample_subspaces(run, own, given["seed"] + i) for i, run in enumerate(runs)]
    for name in SUBSPACES:
        found = []
        for i, each in enumerate(held):
            apart = disagreement(each[name], ends, data=own.test)
            others = np.delete(apart, i, 1).min(1)
            found.append((others + half) / (apart[:, i] + half))
        values[f"stays_{name}"] = float(np.exp(np.log(found).mean()))
    places = embedding([*runs, *(each[name] for each in held for name in SUBSPACES)], data=own.test, seed=given["seed"])
    return values, {"runs": np.stack(places[: len(runs)]), "samples": np.stack(places[len(runs) :])}


# ---------------------------------------------------------------- Figures 5 and S1


def _radial(runs: Sequence[Trajectory], own: Prepared, given: Mapping[str, Any]) -> Any:
    """The plane of the origin and two optima: whose labels networks give, and how loss and labels differ."""
    first, second = runs[:2]
    few = (own.test[0][:500], own.test[1][:500])
    found = surface(plane(first, second), few, given["grid"], cover=[first, second], refresh=own.train)
    assert found.loss is not None and found.accuracy is not None and found.agreement is not None
    half = 0.5 / len(own.test[1])
    ends = solutions([first, second])
    late = [disagreement(run.take(range(len(run) // 2, len(run) - 1)), ends, data=own.test) for run in (first, second)]
    own_side, other = late[0][:, 0].mean() + late[1][:, 1].mean(), late[0][:, 1].mean() + late[1][:, 0].mean()
    path = along(line(first, second), own.test, points=3, refresh=own.train)
    loss, accuracy = np.asarray(path.loss), np.asarray(path.accuracy)
    error = 1 - float((accuracy[0] + accuracy[-1]) / 2)
    ridge = loss[1] - (loss[0] + loss[-1]) / 2
    values = {
        "own": float((other + 2 * half) / (own_side + 2 * half)),
        "similar": float(abs(loss[0] - loss[-1]) / max(ridge, 1e-9)),
        "different": float(disagreement(ends, data=own.test)[0, 1] / max(error, half)),
    }
    columns = {f"plane {name}": getattr(found, name) for name in ("u", "v", "loss", "accuracy", "agreement", "points")}
    return values, columns | {"plane paths": np.stack([found.project(run) for run in (first, second)])}


# ---------------------------------------------------------------- Figures 6, 7 and S6


def _diversity(runs: Sequence[Trajectory], own: Prepared, given: Mapping[str, Any]) -> Any:
    """How much of the attainable diversity each kind reaches, and the family that fits the samples."""
    run, seed = runs[0], given["seed"]
    length = float(run.solution_row().weights[0].norm())
    kinds = {
        "random": [random_subspace(run, 2, share * length, data=own.train, seed=seed) for share in REACH],
        "dropout": [dropout_subspace(run, 2, share, data=own.train, seed=seed) for share in KEPT],
        "diagonal": [diagonal_gaussian(run, SAMPLES, data=own.train, seed=seed)],
        "low_rank": [low_rank_gaussian(run, SAMPLES, data=own.train, seed=seed)],
        "independent": [solutions(runs[1:])],
    }
    points = {name: _join([diversity_accuracy(run, one, own.test) for one in held]) for name, held in kinds.items()}
    share = {name: attained_share(found) for name, found in points.items()}
    values = {f"apart_{name}": share["independent"] - share[name] for name in SUBSPACES}
    values["apart"] = share["independent"] - max(share[name] for name in SUBSPACES)
    columns = {f"diversity {name}": np.stack([found.accuracy, found.disagreement], 1) for name, found in points.items()}
    columns["reference"] = np.array(points["independent"].reference_accuracy)
    return values | _fit_family(_join([points[name] for name in SUBSPACES])), columns


def _join(found: Sequence[DiversityAccuracy]) -> DiversityAccuracy:
    accuracy, apart = (np.concatenate([getattr(one, name) for one in found]) for name in ("accuracy", "disagreement"))
    return DiversityAccuracy(accuracy, apart, found[0].reference_accuracy, found[0].classes)


def attained_share(found: DiversityAccuracy) -> float:
    """The mean share of the diversity between the limits that points reach at their accuracy: 0 is that of noise."""
    low, high = limits(found.accuracy, found.reference_accuracy, found.classes, normalised=False)
    low = np.nan_to_num(low)  # above the reference's accuracy no noise leads: nothing is subtracted
    return float(ratios(found.disagreement - low, np.maximum(high - low, 1e-12)).mean())


def _fit_family(found: DiversityAccuracy) -> dict[str, float]:
    """The exponent of the family, and the share of the points' variance that it explains, where there are enough."""
    try:
        exponent = fit_exponent(found)
    except ValueError:  # no sample is less accurate than the reference
        return {}
    below = found.accuracy < found.reference_accuracy
    seen = found.diversity[below]
    said = family(found.accuracy[below], found.reference_accuracy, found.classes, exponent)
    known = np.isfinite(said) & np.isfinite(seen)
    if known.sum() < 3:
        return {"exponent": exponent}
    left = np.square(seen[known] - said[known]).sum() / max(np.square(seen[known] - seen[known].mean()).sum(), 1e-12)
    return {"exponent": exponent, "fit": float(1 - left)}


# ---------------------------------------------------------------- Figures 9 and 10


def _subspaces(runs: Sequence[Trajectory], own: Prepared, given: Mapping[str, Any]) -> Any:
    """What ensembles, subspaces and both are worth on test rows, as they are and corrupted."""
    samplers = {
        "random": random_subspace, "dropout": partial(dropout_subspace, keep=(0.9, 1.0)),
        "diagonal": diagonal_gaussian, "low_rank": low_rank_gaussian,
    }  # fmt: skip
    few = (own.plain[0][:500], own.plain[1][:500])
    found = quality(
        runs, samplers, few, range(1, len(runs) + 1), given["corruptions"], samples=SAMPLES, severities=[3],
        normalise=own.data.normalise, refresh=own.train, seed=given["seed"],
    )  # fmt: skip
    shifted = {(name, size): _mean(found.rows, "accuracy", name, size, True)
               for name in (BASE, *SUBSPACES) for size in (1, len(runs))}  # fmt: skip
    nll = {(name, size): _mean(found.rows, "nll", name, size, False)
           for name in (BASE, *SUBSPACES) for size in (1, len(runs))}  # fmt: skip
    whole = len(runs)
    return {
        "shifted": shifted[BASE, whole] - max(shifted[name, 1] for name in SUBSPACES),
        "random_best": min(nll[name, 1] for name in ("dropout", "diagonal")) - nll["random", 1],
        "random_both": nll[BASE, whole] - nll["random", whole],
    }, {"sizes nll": _curves(found.rows, "nll", False), "sizes accuracy": _curves(found.rows, "accuracy", True)}


def _curves(rows: Sequence[Mapping[str, Any]], figure: str, shifted: bool) -> np.ndarray:
    """The figure of plain runs and of each subspace, against the number of runs: (kinds, sizes)."""
    sizes = sorted({row["size"] for row in rows})
    return np.array([[_mean(rows, figure, name, size, shifted) for size in sizes] for name in (BASE, *SUBSPACES)])


def _mean(rows: Sequence[Mapping[str, Any]], figure: str, sampler: str, size: int, shifted: bool) -> float:
    found = [row[figure] for row in rows
             if row["sampler"] == sampler and row["size"] == size and (row["severity"] > 0) == shifted]  # fmt: skip
    return float(np.mean(found))


# ---------------------------------------------------------------- the experiments

MEASURED = (_found, _neighbourhood, _radial, _diversity, _subspaces)


def plan_landscape(scale: str) -> list[Part]:
    """A part for each seed."""
    return seed_parts(SETTINGS[scale])


def plan_harder(scale: str) -> list[Part]:
    """The same, and a part for each seed on a problem that is easier."""
    hard = {**SETTINGS[scale], **(HARD if scale == "paper" else {})}
    easy = {**hard, **EASIER[scale], "only": "diversity"}
    return [*seed_parts(hard, "hard-" if scale == "paper" else ""), *seed_parts(easy, "easier-")]


def plan_imagenet(scale: str) -> list[Part]:
    """On ImageNet at the paper's scale, and as the others at smaller ones."""
    return seed_parts(IMAGENET, "imagenet-") if scale == "paper" else plan_landscape(scale)


NAME = "fort-landscape"  # one folder: what one item has computed, the others read

LANDSCAPE = in_seeds(NAME, plan_landscape, compute_landscape)

HARDER = in_seeds(NAME, plan_harder, compute_landscape)

ON_IMAGENET = in_seeds(NAME, plan_imagenet, compute_landscape)
