"""The figures of Fort et al., "Deep Ensembles: A Loss Landscape Perspective", each measured by one function.

A function takes a `Material`, runs and data, and gives a `Measurement`: numbers that the paper's claims are judged by,
and arrays that its pictures are drawn from. The laboratory's page, `pluribus reproduce` and `ls.measure` show the same.
None is given where the material cannot tell. What is asked of the numbers stands in `questions.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from ...core.ensemble import Ensemble
from ...methods.building import check_whole
from ...training.batching import mix_seeds
from ..checkpoints import Trajectory
from ..common.examples import Examples, labels_of, target_labels
from ..common.networks import network_of, networks_of
from ..diversity_accuracy_plane import DiversityAccuracy, diversity_accuracy, family, fit_exponent, limits
from ..material import Material, first_rows
from ..paths import Along, Path, along, line, stitched, tunnel
from ..planes import Surface, plane, surface
from ..recorded_training import trajectories
from ..sampling import (
    Sampler,
    diagonal_gaussian,
    dropout_subspace,
    low_rank_gaussian,
    low_rank_random,
    random_subspace,
    solutions,
    weight_average,
)
from ..similarity import answers_and_targets, cosine, disagreement, embedding, ratios
from .findings import ASKED, Finding
from .quality_curves import BASE, rows_of_part, sample_runs
from .randomness import KINDS, answer_together, chain_against_runs, randomness, shared_information

SUBSPACES = {"random": "random", "dropout": "dropout", "diagonal": "diagonal Gaussian", "low_rank": "low-rank Gaussian"}
CURVES = {BASE: "solutions", **SUBSPACES, "low_rank_random": "low-rank random", "weight_average": "weight averages"}

SPREADS = {
    "independent": "independent runs",
    "trajectory": "one trajectory",
    **SUBSPACES,
}  # whose divergence is compared

DRAWN = 5  # networks of each kind whose divergence is compared: like with like
KEEP = (0.9, 1.0)  # shares of weights that dropout keeps
REACH = (0.02, 0.2)  # distances of random samples, relative to the weight vector
REACHES = (0.05, 0.1, 0.2, 0.3)  # the same, for the plane of diversity
KEPT = (0.98, 0.95, 0.9, 0.8)  # shares of weights that are kept by dropout, for the same
RATES = (0.25, 1.0, 4.0)  # learning rates, relative to that of the runs
CYCLES = 3  # of a chain


@dataclass(frozen=True)
class Measurement:
    """What was measured of one figure of the paper.

    Args:
        values: numbers by name, which claims are judged by
        arrays: what its pictures are drawn from, by name

    >>> Measurement({"cosine": 0.02}).values["cosine"]
    0.02
    """

    values: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


# ---------------------------------------------------------------- Figures 2 and 3


def weights(material: Material) -> Measurement:
    """Cosines between the weights of checkpoints, within and across runs: Figures 2 (a) and 3."""
    material.say("cosines between weights")
    networks, named = material.shown()
    across = _pairs(cosine(solutions(material.runs)))
    values = {"cosine": float(np.abs(across).max()), "cosine_mean": float(across.mean())}
    if material.recorded:
        values["cosine_within"] = float(np.mean([cosine(_late(run))[:-1, -1].mean() for run in material.runs]))
    return Measurement(values, {"matrix": cosine(networks), **named})


def functions(material: Material) -> Measurement:
    """How often checkpoints give different labels, within and across runs: Figures 2 (b), 3 and S1."""
    material.say("disagreement of predictions")
    networks, named = material.shown()
    ends, half = solutions(material.runs), 0.5 / len(material.test[1])
    apart = _pairs(disagreement(ends, data=material.test))
    said, target = _answers(ends, material.test)
    own = (labels_of(said) == target).double().mean(1).numpy()
    values = {"apart": float(apart.mean()), "accuracy": float(own.mean())}
    values["together"] = float((said.exp().mean(0).argmax(-1) == target).double().mean())
    values["different"] = float(apart.mean() / max(1 - own.mean(), half))
    if material.recorded:
        within = [disagreement(_late(run), data=material.test)[:-1, -1].mean() for run in material.runs]
        values |= {"within": float(np.mean(within)), "across": float((apart.mean() + half) / (np.mean(within) + half))}
    return Measurement(values, {"matrix": disagreement(networks, data=material.test), **named})


def function_map(material: Material) -> Measurement | None:
    """t-SNE of trajectories and of samples of four subspaces around each: Figures 2 (c) and 4."""
    if not material.recorded:
        return None
    material.say("t-SNE of predictions")
    networks, named = material.shown()
    samplers, half, ends = subspace_samplers(material), 0.5 / len(material.test[1]), solutions(material.runs)
    held = {
        name: [draw(run, 3, data=material.train, seed=material.seed + i) for i, run in enumerate(material.runs)]
        for name, draw in samplers.items()
        if name in SUBSPACES
    }
    values = {}
    for name, own in held.items():
        apart = [disagreement(one, ends, data=material.test) for one in own]
        others = [np.delete(gap, i, 1).min(1) for i, gap in enumerate(apart)]
        found = [(other + half) / (gap[:, i] + half) for i, (gap, other) in enumerate(zip(apart, others, strict=True))]
        values[f"stays_{name}"] = float(np.exp(np.log(found).mean()))
    sampled = [one for own in held.values() for one in own]
    places = embedding([*networks, *sampled], data=material.test, seed=material.seed)
    arrays = {"points": np.concatenate(places[: len(networks)]), **named}
    arrays["samples"] = np.stack(places[len(networks) :]).reshape(len(held), len(networks), -1, 2)
    return Measurement(values, arrays)


# ---------------------------------------------------------------- Figures 5, S1, S2 and S3


def cut(material: Material) -> Surface:
    """The plane through the origin and the solutions of the first two runs, with all that is measured on it."""
    material.say(f"a surface of {material.grid} x {material.grid} networks")
    first, second = material.runs[:2]
    cover = material.runs[:2] if material.recorded else None
    return surface(plane(first, second), first_rows(material.test), material.grid, cover=cover, refresh=material.train)


def plane_between(material: Material) -> Measurement:
    """Loss, accuracy and agreement on the plane of two solutions, with Gaussian samples on it: Figures 5 and S1."""
    found, (first, second) = material.once(cut), material.runs[:2]
    arrays = {name: np.asarray(getattr(found, name)) for name in ("u", "v", "loss", "accuracy", "agreement", "points")}
    extent = (float(found.u[0]), float(found.u[-1])), (float(found.v[0]), float(found.v[-1]))
    train = surface(found.plane, first_rows(material.train), material.grid, extent=extent, measures=["loss"],
                    refresh=material.train)  # fmt: skip
    arrays["train loss"] = np.asarray(train.loss)
    losses = [_loss(run, material.test) for run in (first, second)]
    middle = along(line(first, second), material.test, points=1, refresh=material.train)
    ridge = float(np.asarray(middle.loss)[0]) - float(np.mean(losses))
    values = {"similar": abs(losses[0] - losses[1]) / max(ridge, 1e-9), "ridge": ridge}
    if material.recorded:
        half, ends = 0.5 / len(material.test[1]), solutions([first, second])
        later = (run.take(range(min(len(run) // 2, len(run) - 2), len(run) - 1)) for run in (first, second))
        late = [disagreement(networks, ends, data=material.test).mean(0) for networks in later]
        own, other = late[0][0] + late[1][1], late[0][1] + late[1][0]
        values["own"] = float((other + 2 * half) / (own + 2 * half))
        samples = low_rank_gaussian(first, max(material.samples, 5), rank=_rank(first), data=material.train,
                                    seed=material.seed)  # fmt: skip
        arrays |= {"path 0": found.project(first), "path 1": found.project(second), "samples": found.project(samples)}
    return Measurement(values, arrays)


def dig(material: Material) -> Path:
    """The tunnel between the solutions of the first two runs."""
    material.say("a tunnel between two solutions")
    first, second = material.runs[:2]
    return tunnel(first, second, material.train, steps=material.steps, seed=material.seed)


def _along_the_tunnel(material: Material) -> Along:
    """Accuracy and labels along the tunnel, on test rows."""
    return along(material.once(dig), material.test, points=25, refresh=material.train)


def connection(material: Material) -> Measurement:
    """Loss on training rows, accuracy and agreement on test rows, along the straight line and a tunnel: Figure S2."""
    straight = line(*material.runs[:2])
    found = {"line": along(straight, material.test, refresh=material.train), "tunnel": material.once(_along_the_tunnel)}
    arrays: dict[str, np.ndarray] = {"t": found["line"].t}
    heights = {}
    for name, way in (("line", straight), ("tunnel", material.once(dig))):
        trained = along(way, first_rows(material.train, 1000), refresh=material.train)
        heights[name] = max(trained.barrier, 0.0)
        arrays |= {f"{name} loss": np.asarray(trained.loss), f"{name} accuracy": np.asarray(found[name].accuracy)}
        arrays[f"{name} agreement"] = np.asarray(found[name].agreement)
    return Measurement({"barrier": heights["line"], "tunnel": heights["tunnel"] / max(heights["line"], 1e-12)}, arrays)


def stitched_cut(material: Material) -> Measurement:
    """Loss, accuracy and agreement on the triangles of the tunnel's pieces and the origin: Figure S3."""
    path, grid = material.once(dig), (material.grid, material.grid // 2 + 1)
    material.say(f"a stitched cut of {grid[0]} x {grid[1]} networks")
    found = stitched(path, first_rows(material.test), grid, refresh=material.train)
    kept = ("loss", "accuracy", "agreement", "fan", "corners")
    along_it, half = material.once(_along_the_tunnel), 0.5 / len(material.test[1])
    agreement, accuracy = np.asarray(along_it.agreement), np.asarray(along_it.accuracy)
    middle, ends = 1 - agreement[:, len(along_it.t) // 2], 1 - agreement[0, -1]
    values = {"along": float((middle.min() + half) / (ends + half)), "lowest": float(accuracy.min())}
    return Measurement(values, {name: np.asarray(getattr(found, name)) for name in kept})


# ---------------------------------------------------------------- Figures 6, 7 and S6


def diversity_plane(material: Material) -> Measurement:
    """Accuracy and difference from one solution, of samples around it and of other solutions: Figures 6, 7 and S6.

    "share": how much of the diversity that can be reached at its accuracy a network has; the family is fitted to all
    samples.
    """
    material.say("samples around one solution")
    run, seed = material.runs[0], material.seed
    length, count = _length(run), max(material.samples, 3)
    kinds: dict[str, list[Any]] = {
        "random": [random_subspace(run, 2, share * length, data=material.train, seed=seed) for share in REACHES],
        "dropout": [dropout_subspace(run, 2, share, data=material.train, seed=seed) for share in KEPT],
    }
    if material.recorded:
        kinds["diagonal"] = [diagonal_gaussian(run, count, data=material.train, seed=seed)]
        kinds["low_rank"] = [low_rank_gaussian(run, count, rank=_rank(run), data=material.train, seed=seed)]
    kinds["independent"] = [solutions(material.runs[1:])]
    points = {
        name: _join([diversity_accuracy(run, one, material.test) for one in held]) for name, held in kinds.items()
    }
    share = {name: attained_share(found) for name, found in points.items()}
    sampled = [name for name in points if name != "independent"]
    values = {f"apart_{name}": share["independent"] - share[name] for name in sampled}
    values["apart"] = share["independent"] - max(share[name] for name in sampled)
    values |= {f"share_{name}": value for name, value in share.items()}
    values |= _fit_family(_join([points[name] for name in sampled]))
    arrays = {name: np.stack([found.accuracy, found.disagreement], 1) for name, found in points.items()}
    first = points["independent"]
    arrays["reference"] = np.array([first.reference_accuracy, first.classes])
    if "exponent" in values:
        arrays["exponent"] = np.array(values["exponent"])
    return Measurement(values, arrays)


def _join(found: Sequence[DiversityAccuracy]) -> DiversityAccuracy:
    accuracy, apart = (np.concatenate([getattr(one, name) for one in found]) for name in ("accuracy", "disagreement"))
    return DiversityAccuracy(accuracy, apart, found[0].reference_accuracy, found[0].classes)


def attained_share(found: DiversityAccuracy) -> float:
    """The mean share of the diversity between the limits that points reach at their accuracy: 0 is that of noise."""
    if found.reference_accuracy <= 1 / found.classes:
        return 0.0  # a reference that knows nothing has no limits
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


# ---------------------------------------------------------------- Figures 8, 9 and 10


def subspace_samplers(material: Material) -> dict[str, Sampler]:
    """The samplers of section 5; those along a trajectory only where one was recorded."""
    known: dict[str, Sampler] = {
        "random": partial(_random, material),
        "dropout": partial(dropout_subspace, keep=KEEP),
        "low_rank_random": partial(_random, material, low_rank=True),
    }
    if material.recorded:
        known |= {"diagonal": diagonal_gaussian, "weight_average": weight_average}
        known["low_rank"] = partial(low_rank_gaussian, rank=_rank(material.runs[0]))
    return {name: known[name] for name in CURVES if name in known}


def _random(
    material: Material, run: Any, size: int, *, low_rank: bool = False, data: Any = None, seed: int = 0
) -> Ensemble:
    """Random samples around a run that are accurate enough on validation rows, or a low-rank approximation of them."""
    length, least = _length(run), material.least
    if least is None:
        said, target = _answers(network_of("landscape", run), material.validation)
        least = 0.92 * float((labels_of(said)[0] == target).double().mean())
    reach = (REACH[0] * length, REACH[1] * length) if material.reach is None else material.reach
    how: dict[str, Any] = {"distance": reach, "accept": (material.validation, least), "data": data, "seed": seed}
    if low_rank:
        return low_rank_random(run, size, tries=500, **how)
    return random_subspace(run, size, tries=max(200, 20 * size), **how)


def _sampled(material: Material) -> dict[str, list[Any]]:
    material.say("samples around every solution")
    found: dict[str, list[Any]] = sample_runs(
        material.runs, subspace_samplers(material), material.samples, material.train, material.seed
    )
    return found


def ensemble_size(material: Material) -> Measurement | None:
    """Accuracy and Brier score against the number of runs, of solutions, subspaces and both: Figure 8.

    What the best subspace adds to an ensemble is told of the one that is best on validation rows.
    """
    if not material.recorded:
        return None
    held, every = material.once(_sampled), len(material.runs)
    material.say("quality against the number of runs")
    rows = rows_of_part(held, material.test, range(1, every + 1), seed=material.seed)
    chosen = rows_of_part(held, material.validation, [every], seed=material.seed)
    best = min((row for row in chosen if row["sampler"] != BASE), key=lambda row: row["brier"])["sampler"]
    values: dict[str, float] = {}
    for metric, sign in METRICS.items():
        at = {(row["sampler"], row["size"]): sign * row[metric] for row in rows}  # the larger, the better
        alone = {name: at[name, 1] for name in held if name != BASE}
        values |= {
            f"ensemble_{metric}": at[BASE, every] - max(alone.values()),
            f"both_{metric}": at[best, every] - at[BASE, every],
            f"random_best_{metric}": alone["random"] - max(alone["dropout"], alone["diagonal"]),
            f"random_both_{metric}": at["random", every] - at[BASE, every],
            f"one_{metric}": sign * at[BASE, 1], f"all_{metric}": sign * at[BASE, every],
        }  # fmt: skip
    return Measurement(values, {metric: _by_kind(rows, metric, "size") for metric in METRICS})


METRICS = {"accuracy": 1.0, "brier": -1.0}  # and whether larger is better


def under_shift(material: Material) -> Measurement | None:
    """Accuracy, Brier score and Jensen-Shannon divergence against the severity of corruptions: Figures 9 and 10.

    Divergences are those of as many networks of every kind; on outside data they are told, too.
    """
    if not material.recorded:
        return None
    held, spreads, every = material.once(_sampled), _spreads(material), len(material.runs)
    values = _outside_spreads(material, spreads)
    shifted = material.shifted or (material.images is not None and material.corruptions)
    if not shifted:
        return Measurement(values) if values else None
    material.say("quality under corruptions")
    rows, apart = [], []
    for name, severity, part in (("", 0, material.test), *material.shifts()):
        rows += rows_of_part(held, part, sorted({1, every}), name, severity, seed=material.seed)
        apart.append([severity, *(_divergence(one, part) for one in spreads.values())])
    for metric, sign in METRICS.items():
        at = {name: sign * _mean(rows, metric, sampler=name, size=1) for name in held if name != BASE}
        both = {name: sign * _mean(rows, metric, sampler=name, size=every) for name in held}
        values[f"shifted_{metric}"] = both[BASE] - max(at.values())
    by_severity = np.array(apart)  # sets, (severity, divergence of each kind)
    severities = np.unique(by_severity[:, 0])
    jsd = np.stack([by_severity[by_severity[:, 0] == level].mean(0) for level in severities])
    independent, samples = jsd[:, 1], jsd[:, 2:].max(1)
    values["shifted_jsd"] = float(independent[1:].mean() / samples[1:].mean())
    values["grows"] = float((independent[-1] - samples[-1]) - (independent[0] - samples[0]))
    arrays = {metric: _by_kind(rows, metric, "severity", size=every) for metric in METRICS}
    arrays |= {f"one {metric}": _by_kind(rows, metric, "severity", size=1) for metric in METRICS}
    return Measurement(values, arrays | {"jsd": jsd.T})


def _spreads(material: Material) -> dict[str, Any]:
    """As many networks of every kind: independent runs, one trajectory, and samples around its end."""
    run, count, seed = material.runs[0], min(DRAWN, len(material.runs), len(material.runs[0])), material.seed
    samplers: dict[str, Sampler] = {
        **subspace_samplers(material),
        "low_rank": partial(low_rank_gaussian, rank=_rank(run, 5)),
    }
    found: dict[str, Any] = {"independent": solutions(material.runs[:count])}
    found["trajectory"] = run.take(range(len(run) - count, len(run)))
    return found | {name: samplers[name](run, count, data=material.train, seed=seed) for name in SUBSPACES}


def _outside_spreads(material: Material, spreads: Mapping[str, Any]) -> dict[str, float]:
    """How much more divergent one kind is than the next on outside data, in the paper's order."""
    if material.outside is None:
        return {}
    found = {name: _divergence(held, material.outside) for name, held in spreads.items()}
    return {
        "independent": found["independent"] / found["trajectory"],
        "random": found["independent"] / found["random"],
        "trajectory": found["trajectory"] / found["low_rank"],
        "random_low_rank": found["random"] / found["low_rank"],
        "low_rank": found["low_rank"] / found["diagonal"],
        **{f"jsd_{name}": value for name, value in found.items()},
    }


def _mean(rows: Sequence[Mapping[str, Any]], metric: str, **wanted: Any) -> float:
    """Over all corruptions and severities above 0."""
    found = [row[metric] for row in rows if row["severity"] and all(row[key] == value for key, value in wanted.items())]
    return float(np.mean(found))


def _by_kind(rows: Sequence[Mapping[str, Any]], metric: str, axis: str, **wanted: Any) -> np.ndarray:
    """The metric against an axis, means over all else: the axis, then a row for each kind, nan if not measured."""
    picked = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    places = sorted({row[axis] for row in picked})
    curves = [[np.mean([row[metric] for row in picked if row["sampler"] == name and row[axis] == at] or [np.nan])
               for at in places] for name in CURVES]  # fmt: skip
    return np.array([places, *curves], float)


# ---------------------------------------------------------------- Figures S4 and S5


def sources_of_difference(material: Material) -> Measurement | None:
    """Disagreement of runs by what differs between them, against the learning rate: Figure S4."""
    training, runs = material.training, material.retrained
    if training is None or runs < 2:
        return None
    rates = list(material.rates or [factor * training.lr for factor in RATES])
    epochs = max(training.epochs // 2, 1) if not material.rates else training.epochs
    model = training.build()
    kinds = [kind for kind in KINDS if kind != "neither" or next(model.parameters()).device.type != "cpu"]
    material.say(f"{runs} runs of {epochs} epochs for each of {len(kinds)} kinds at {len(rates)} learning rates")
    found = randomness(
        model, material.train, material.test, runs=runs, rates=rates, kinds=kinds, seed=mix_seeds(material.seed, 3),
        **training.options(epochs),
    )  # fmt: skip
    half = 0.5 / len(material.test[1])
    apart = {kind: np.array([found.mean(kind, rate) for rate in rates]) for kind in kinds}
    start, order = apart["initialisation"], apart["batches"]
    values = {"initialisation": float(start.mean()), "batches": float(order.mean())}
    values["dominant"] = float((start.mean() + half) / (order.mean() + half))
    values["higher"] = float((order[-1] + half) / (order[0] + half))
    return Measurement(values, {"rates": np.array(rates), **apart})


def one_chain(material: Material) -> Measurement | None:
    """Disagreement between the cycles of a chain of cSG-MCMC, and between independent chains: Figure S5."""
    training, chains = material.training, material.retrained
    if training is None or chains < 2:
        return None
    how = {"epochs": max(training.epochs // 2, 1), "batch_size": training.batch_size, **material.chain}
    epochs = CYCLES * how.pop("epochs")
    material.say(f"{chains} chains of cSG-MCMC of {CYCLES} cycles in {epochs} epochs")
    found = chain_against_runs(
        training.build(), material.train, material.test, chains=chains, cycles=CYCLES, epochs=epochs,
        temperature=1 / material.train_rows, seed=mix_seeds(material.seed, 9), **how,
    )  # fmt: skip
    half = 0.5 / len(material.test[1])
    ratio = (np.mean(found["between"]) + half) / (np.mean(found["within"]) + half)
    values = {"runs": float(ratio), "chain_accuracy": float(np.mean(found["accuracy"]))}
    return Measurement(values, {name: np.array(found[name]) for name in ("within", "between")})


MEASURES: dict[str, Callable[[Material], Measurement | None]] = {
    "weights": weights,
    "functions": functions,
    "map": function_map,
    "plane": plane_between,
    "tunnel": connection,
    "stitched": stitched_cut,
    "diversity": diversity_plane,
    "size": ensemble_size,
    "shift": under_shift,
    "randomness": sources_of_difference,
    "chain": one_chain,
}


# ---------------------------------------------------------------- from Python


def findings(
    model: Any,
    train: Any,
    validation: Any,
    test: Any,
    outside: Any,
    *,
    seeds: int = 3,
    runs: int = 3,
    epochs: int = 10,
    lr: float = 1.6e-3,
    distance: float | tuple[float, float] | None = None,
    floor: float | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> list[Finding]:
    """The findings of Fort et al., tested with intervals over seeds; the rate is halved at each quarter of training.

    With a constant rate, disagreement within a trajectory is as large as across trajectories.

    Args:
        model: a model, or a function without arguments that builds one
        train: (x, y): what the runs are trained on
        validation: what random samples are accepted by
        test: (x, y): what they are evaluated on
        outside: x of other data, where divergences are measured
        seeds: independent repetitions, each with `runs` runs
        epochs: of each run
        lr: at the start
        distance: of random samples; by default from 0.02 to 0.2 of the length of the weight vector
        floor: the least accuracy of random samples on validation rows; by default 0.92 of their solution's
        progress: called with a line of text when a part is done
        options: as for `trajectories`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> rows = (x, y), (x, y), (x, y), 5 * x
    >>> found = findings(nn.Linear(4, 3), *rows, seeds=2, runs=2, epochs=6, floor=0.0)
    >>> {finding.verdict for finding in found} <= {"holds", "does not hold", "open"}
    True
    """
    seeds = check_whole("findings", "seeds", seeds)
    parts = {
        name: Examples("findings", part, labelled=name != "outside")
        for name, part in (("train", train), ("validation", validation), ("test", test), ("outside", outside))
    }
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        if progress is not None:
            progress(f"seed {seed + 1} of {seeds}")
        made = trajectories(
            model, train, parts["test"], runs=runs, epochs=epochs, lr=lr, seed=mix_seeds(seed, 7), keep=None,
            **{"schedule": "quarters", **options},
        )  # fmt: skip
        given = {name: (torch.cat([x for x, _ in part.batches]), part.targets) for name, part in parts.items()}
        material = Material(
            list(made), given["train"], given["validation"], given["test"], outside=given["outside"][0], reach=distance,  # type: ignore[arg-type]
            least=floor, seed=seed,
        )  # fmt: skip
        for name in ("weights", "functions", "tunnel", "stitched", "size", "shift"):
            measured = MEASURES[name](material)
            for key, value in (measured.values if measured else {}).items():
                found.setdefault(key, []).append(value)
    asked = {key: one for name in FOUND for key, one in ASKED[name].items()}
    return [Finding(one[0], one[1], found[name], *one[2:]) for name, one in asked.items() if name in found]


FOUND = ("functions", "shift", "size", "weights", "tunnel", "stitched")


def _pairs(matrix: np.ndarray) -> np.ndarray:
    found: np.ndarray = matrix[np.triu_indices(len(matrix), 1)]
    return found


def _late(run: Trajectory) -> Any:
    """The last quarter of a run."""
    return run.take(range(len(run) - max(len(run) // 4, 2), len(run)))


def _rank(run: Trajectory, most: int = 4) -> int:
    """The rank of the paper, or what the checkpoints at the end allow: no earlier ones are taken for its sake."""
    return max(min(most, len(run.last("landscape", None)) - 1), 1)


def _length(run: Any) -> float:
    return float(networks_of("landscape", network_of("landscape", run)).weights[0].norm())


def _answers(held: Any, part: Any) -> Any:
    """The logarithms of all networks' probabilities, and the labels."""
    said, _, targets = answers_and_targets("landscape", held, part)
    return said, None if targets is None else target_labels(targets, said.shape[-1])


def _loss(run: Any, part: Any) -> float:
    said, target = _answers(network_of("landscape", run), part)
    return float(-said[0].double()[range(len(target)), target].mean())


def _divergence(held: Any, part: Any) -> float:
    """The Jensen-Shannon divergence of all networks, in nats."""
    return max(shared_information(answer_together("landscape", held, part)), 1e-9)  # so that ratios are finite
