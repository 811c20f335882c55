"""Figures about the members of one network, each measured by one function: MIMO, Masksembles and Packed-Ensembles.

As in `fort.py`, a function takes a `Material` and gives a `Measurement`, or None where the material cannot tell; what
is asked of its numbers stands in `questions.toml`. Networks are trained as the material says, from its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...core.ensemble import Ensemble
from ...methods import deep, masksembles, mc_dropout, mimo, multihead, packed
from ...training.batching import mix_seeds
from ...uncertainty.evaluation import evaluate
from ..analyses.settings import masked_layers, member_figures, train_from_seeds, weight_share
from ..material import Material, first_rows, material_of
from ..paths import along, line
from ..planes import surface
from ..recorder import courses
from ..similarity import disagreement, embedding
from ..subnetworks import separation, subnetwork_plane, subnetworks
from . import fort
from .fort import Measurement
from .randomness import randomness

MEMBERS = 3  # of one network, so that a plane goes through them
PAIRS = [(0, 1), (0, 2), (1, 2)]
OWNED = 0.9  # of a unit's variance, from one input: it is separated
KINDS: dict[str, Callable[..., Ensemble]] = {"mimo": mimo, "multihead": multihead}
SOURCES = ("both", "initialisation", "batches", "neither")  # neither: on a GPU its algorithms alone, on a CPU nothing


def _train(material: Material, make: Callable[[], Ensemble], record: bool = False, **options: Any) -> Any:
    """What `make` gives, trained as the runs were; with `record` also where its members went."""
    assert material.training is not None
    seeds, how = (mix_seeds(material.seed, 21), mix_seeds(material.seed, 22)), material.training.whole() | options
    if not record:
        return train_from_seeds("landscape", "members", make, material.train, seeds, how)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds[0])
        made = make()
        return made, courses(made, material.train, first_rows(material.test), seed=seeds[1], **how)


def _model(material: Material) -> tuple[Any, Any]:
    """A network, and two rows to try it on."""
    assert material.training is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_seeds(material.seed, 20))
        return material.training.build(), first_rows(material.train, 2)[0]


def members_of_one(material: Material) -> dict[str, Any]:
    """MIMO and the naive multihead with three members, trained, and the courses of their members."""
    model, example = _model(material)
    made = {}
    for name, method in KINDS.items():
        material.say(f"{MEMBERS} members in one network: {name}")
        repeated = {"batch_repetition": material.extra.get("repetition", 1)} if method is mimo else {}
        make = partial(method, model, MEMBERS, example=example, init="different", **repeated)
        made[name] = _train(material, make, record=True)
    return made


def basins(material: Material) -> Measurement | None:
    """How high it is between three members of one network, how often they disagree, their plane: MIMO, Figure 3."""
    if material.training is None:
        return None
    values, arrays, few = dict[str, float](), dict[str, np.ndarray](), first_rows(material.test)
    for name, (made, _) in material.once(members_of_one).items():
        material.say(f"a surface of {material.grid} x {material.grid} networks: {name}")
        parts, quality = subnetworks(made), member_figures(made, material.test)
        heights = [along(line(parts.take([i]), parts.take([j])), few, points=9).barrier for i, j in PAIRS]
        values |= {f"{name}_barrier": float(np.mean(heights)), f"{name}_apart": quality["disagreement"]}
        values |= {f"{name}_alone": quality["member_accuracy"], f"{name}_together": quality["accuracy"]}
        plane = subnetwork_plane(made)
        found = surface(plane, few, material.grid, refresh=material.train)
        arrays |= {f"{name} {key}": np.asarray(getattr(found, key))
                   for key in ("u", "v", "accuracy", "agreement", "points")}  # fmt: skip
        arrays |= {f"{name} origin": np.asarray(plane.origin), f"{name} away": np.array(plane.origin_distance)}
        arrays[f"{name} axes"] = np.array(plane.axes)
    half = 0.5 / len(material.test[1])
    values["disagree"] = (values["mimo_apart"] + half) / (values["multihead_apart"] + half)
    return Measurement(values, arrays)


def member_courses(material: Material) -> Measurement | None:
    """Where the members of one network go in function space while it is trained: MIMO, Figure 4, middle."""
    if material.training is None:
        return None
    values, arrays, half = dict[str, float](), dict[str, np.ndarray](), 0.5 / len(first_rows(material.test)[1])
    for name, (_, told) in material.once(members_of_one).items():
        across = np.mean([disagreement(told[i], told[j])[-1, -1] for i, j in PAIRS])
        late = max(len(told[0].steps) // 4, 1)
        within = np.mean([disagreement(one)[-1 - late : -1, -1].mean() for one in told])
        values[f"{name}_courses"] = float((across + half) / (within + half))
        arrays |= {f"{name} points": np.stack(embedding(told, "pca")), "step": np.array(told[0].steps)}
    return Measurement(values, arrays)


def units(material: Material) -> Measurement | None:
    """Which units of a MIMO network vary with whose input, with two and three members: MIMO, Figure 4, left."""
    if material.training is None:
        return None
    model, example = _model(material)
    repetition = material.extra.get("repetition", 1)
    pair = partial(mimo, model, 2, example=example, batch_repetition=repetition, init="different")
    made = {2: _train(material, pair), 3: material.once(members_of_one)["mimo"][0]}
    values, arrays = dict[str, float](), dict[str, np.ndarray]()
    for size, ensemble in made.items():
        found = separation(ensemble, first_rows(material.test))
        total = found.variance.sum(0)
        arrays[f"shares {size}"] = found.variance / np.where(total > 0, total, 1)
        arrays |= {f"owner {size}": found.owner, f"layer {size}": found.layer}
        arrays["layers"] = np.array(found.layers)
        values[f"separated_{size}"] = found.separated(OWNED)
    return Measurement(values, arrays)


def sparsity_path(material: Material) -> Measurement | None:
    """Sparsity, accuracy and log-likelihood for each number of members and strength of L1: MIMO, Figure 9."""
    if material.training is None:
        return None
    model, example = _model(material)
    sizes, strengths = material.extra.get("sizes", (1, MEMBERS)), material.extra.get("l1", (0.0, 1e-4, 5e-4, 2e-3))
    repetition, curves = material.extra.get("repetition", 1), {}
    for size in sizes:
        make = partial(mimo, model, size, example=example, batch_repetition=repetition, init="different")
        rows = []
        for l1 in strengths:
            made = _train(material, make, l1=l1, weight_decay=0.0)
            figures = member_figures(made, material.test)
            rows.append([1 - weight_share(made), figures["accuracy"], figures["log_likelihood"]])
        curves[size] = rows
    values = {
        f"sparse_{name}": lost
        for column, name in ((1, "accuracy"), (2, "likelihood"))
        if (lost := lost_more(curves[sizes[-1]], curves[sizes[0]], column)) is not None
    }
    return Measurement(values, {f"M = {size}": np.array(rows) for size, rows in curves.items()})


def lost_more(many: Sequence[Sequence[float]], one: Sequence[Sequence[float]], column: int) -> float | None:
    """How much more is lost by many members than by one, on average over the sparsity that both reach.

    Rows are (sparsity, figures, ...), the first without L1; a loss is relative to that row. None where the paths have
    no sparsity in common.

    >>> lost_more([[0.0, 0.9], [0.5, 0.7]], [[0.0, 0.9], [0.5, 0.8]], 1)
    0.05
    """
    paths = [np.array(sorted(map(tuple, path))) for path in (many, one)]
    low, high = max(path[0, 0] for path in paths), min(path[-1, 0] for path in paths)
    if not low < high:
        return None
    places = np.linspace(low, high, 21)
    losses = [start[0][column] - np.interp(places, path[:, 0], path[:, column])
              for start, path in zip((many, one), paths, strict=True)]  # fmt: skip
    return round(float((losses[0] - losses[1]).mean()), 12)


def many_masks(material: Material) -> Measurement | None:
    """Many masks next to MC-Dropout, and masks without overlap next to independent networks: Masksembles, Figure 5."""
    if material.training is None:
        return None
    model, example = _model(material)
    sizes = material.extra.get("masks", (2, 8, 32))
    layers = masked_layers(model, example)
    makers: dict[str, Callable[[], Ensemble]] = {
        **{f"{size} masks": partial(masksembles, model, size, 2.0, example=example) for size in sizes},
        "MC-Dropout": partial(mc_dropout, model, sizes[-1], 0.5, where=layers, example=example),
        "masks without overlap": partial(masksembles, model, 4, 10.0, 1.0, example),
        "independent networks": partial(deep, model, 4),
    }
    rows = {}
    for name, make in makers.items():
        material.say(name)
        rows[name] = _judge(_train(material, make), material)
    values = dict[str, float]()
    for name, ours, theirs in (("dropout", f"{sizes[-1]} masks", "MC-Dropout"),
                               ("deep", "masks without overlap", "independent networks")):  # fmt: skip
        values[f"{name}_accuracy"] = rows[ours]["accuracy"] - rows[theirs]["accuracy"]
        spread = [max(rows[one]["mutual_information"], 1e-9) for one in (ours, theirs)]
        values[f"{name}_information"] = float(np.log(spread[0] / spread[1]))
    return Measurement(values, _table(rows))


def selection(material: Material) -> Measurement | None:
    """The epoch that is best for the ensemble, and each member's best: Packed-Ensembles, appendix K."""
    if material.training is None:
        return None
    model, example = _model(material)
    make = partial(packed, model, 4, alpha=2, gamma=material.extra.get("gamma", 1), example=example)
    rows = {
        select: _judge(_train(material, make, validation=material.validation, select=select), material)
        for select in ("ensemble", "member")
    }
    values = {"selection": rows["ensemble"]["accuracy"] - rows["member"]["accuracy"]}
    values["selection_nll"] = rows["ensemble"]["nll"] - rows["member"]["nll"]
    return Measurement(values, _table(rows))


def packed_sources(material: Material) -> Measurement | None:
    """What makes packed members differ, which are trained one by one: Packed-Ensembles, Table 7."""
    training = material.training
    if training is None or material.outside is None:
        return None
    model, example = _model(material)
    member = packed(model, 4, alpha=2, gamma=material.extra.get("gamma", 1), example=example).member(0)
    found = randomness(
        member, material.train, material.test, runs=material.extra.get("runs", 4), rates=[training.lr], kinds=SOURCES,
        outside=material.outside, seed=mix_seeds(material.seed, 5), **training.options(training.epochs),
    )  # fmt: skip
    rows = {row["kind"]: row for row in found.rows}
    both, values = rows["both"], dict[str, float]()
    for kind in ("initialisation", "batches"):
        values[f"enough_{kind}"] = rows[kind]["mutual_information"] / max(both["mutual_information"], 1e-9)
        values |= {f"{figure}_{kind}": both[figure] - rows[kind][figure] for figure in ("accuracy", "aupr")}
    kept = ("accuracy", "nll", "ece", "aupr", "mutual_information", "outside")
    return Measurement(values, _table({kind: {name: row[name] for name in kept} for kind, row in rows.items()}))


def _judge(ensemble: Ensemble, material: Material) -> dict[str, float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the draws of MC-Dropout
        prediction = ensemble.predict(material.test[0], batch_size=500)
    return evaluate(prediction, material.test[1], metrics=["accuracy", "nll", "ece", "mutual_information"])


def _table(rows: Mapping[str, Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Rows of a table as arrays: their names, the names of the metrics, and the values."""
    metrics = list(next(iter(rows.values())))
    return {"rows": np.array(list(rows)), "metrics": np.array(metrics),
            "values": np.array([[row[name] for name in metrics] for row in rows.values()])}  # fmt: skip


MEASURES: dict[str, Callable[[Material], Measurement | None]] = {  # for the page, the court and Python
    **fort.MEASURES,
    "subnetworks": basins,
    "courses": member_courses,
    "units": units,
    "sparse": sparsity_path,
    "dropout": many_masks,
    "selection": selection,
    "sources": packed_sources,
}


def measure(name: str, runs: Any, data: Any, *, train: Any = None, **settings: Any) -> Measurement:
    """The numbers and arrays of one figure of a paper, measured on networks and data of your own.

    Args:
        name: of Fort et al. weights, functions, map, plane, tunnel, stitched, diversity, size, shift, randomness or
            chain; of MIMO subnetworks, courses, units or sparse; of Masksembles dropout; of Packed-Ensembles selection
            or sources. All but the first nine train networks, and need `training=`
        runs: trajectories or networks: a list, or an Ensemble
        data, train, settings: as for `page`

    >>> x, y = torch.randn(24, 4), torch.arange(24) % 3
    >>> found = measure("weights", [nn.Linear(4, 3), nn.Linear(4, 3)], (x, y))
    >>> found.values["cosine"] < 1, found.arrays["matrix"].shape
    (True, (2, 2))
    """
    if name not in MEASURES:
        raise ValueError(f"measure: {name!r} is unknown. Choose from {', '.join(MEASURES)}.")
    found = MEASURES[name](material_of("measure", runs, data, train=train, **settings))
    if found is None:
        raise ValueError(f"measure: these networks cannot tell {name!r}: it needs recorded training, or training=.")
    return found
