"""The studies that items share, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.corruptions.catalogue import BENCHMARK, CORRUPTIONS
from ..landscape.analyses.settings import CRITERIA
from ..landscape.studies.sweeps import SWEEPS
from ..report.claims import Claim
from ..results.quantities import difference, estimate, value
from ..results.store import Group, Result, group_runs
from ..study.folder import conduct
from ..study.grid import Study, choose_settings
from ..uncertainty.resampling import Interval
from .parts import Context, say_scope


@dataclass(frozen=True)
class Compared:
    """The runs of a study on one data set, by label, and paired differences between them."""

    groups: dict[str, Group]
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def joined(self, other: Compared) -> Compared:
        """Both as one, with the labels of both."""
        return Compared({**self.groups, **other.groups}, seconds=self.seconds + other.seconds,
                        notes=(*self.notes, *other.notes))  # fmt: skip

    @property
    def settings(self) -> list[str]:
        """The labels."""
        return list(self.groups)

    def interval(self, label: str, name: str) -> Interval:
        """The mean over seeds of a quantity, with its interval."""
        return estimate(self.groups[label], name)

    def difference(self, first: str, second: str, name: str) -> Interval:
        """How much larger the quantity of the first is, paired; of several seeds, over seeds alone (the protocol)."""
        one, other = self.groups[first], self.groups[second]
        if len(one.by_seed.keys() & other.by_seed) >= 2:
            one, other = (Group(own.label, tuple(Result(run.record) for run in own.runs)) for own in (one, other))
        return difference(one, other, name)

    def values(self, label: str, name: str) -> list[float]:
        """The quantity for each seed; "auroc entropy" is that of one criterion, for each seed and set of OOD data."""
        figure, _, score = name.partition(" ")
        if score in CRITERIA:
            return [scores[score][figure] for run in self.groups[label].runs
                    for scores in (run.record.get("outside") or {}).values()]  # fmt: skip
        return [value(run, name) for run in self.groups[label].by_seed.values()]

    def seeds(self, label: str) -> int:
        """How many."""
        return len(self.groups[label].by_seed)


@dataclass(frozen=True)
class StudyExperiment:
    """Studies at each scale: usually one, several where the paper has several networks or data sets.

    Args:
        scales: arguments of `Study` by scale
        merge: compare runs of all studies with each other; labels get the name of the network
        choose: a metric by method: of the method's settings, the one that is best on validation data stands for it

    Studies of the same data and network (with whatever options, "wide_resnet28_10?bias=true") are one comparison.
    """

    name: str
    scales: Mapping[str, Sequence[Mapping[str, Any]]]
    merge: bool = False
    choose: Mapping[str, str] = field(default_factory=dict)

    def studies(self, context: Context) -> list[Study]:
        """The studies of a scale; data are looked for in the context's folder."""
        folder = {} if context.data is None else {"folder": str(context.data)}
        return [
            Study(**{**given, "source": {**folder, **given.get("source", {})}}) for given in self.scales[context.scale]
        ]

    def scope(self, scale: str) -> str:
        """The networks (of a sweep over widths the widest), data and seeds of a scale."""
        studies = [Study(**given) for given in self.scales[scale]]
        sizes: dict[str, float] = {}
        for one in studies:
            name = str(one.model).partition("?")[0]
            sizes[name] = max(sizes.get(name, 0.0), *one.sweep.get("width", [one.width]), one.width)
        return say_scope(sizes.items(), [name for one in studies for name in one.data], len(studies[0].seeds))

    def carry_out(self, context: Context) -> dict[str, Compared]:
        """The runs of each study; equal studies of several items have one folder, and are run once."""
        found: dict[str, Compared] = {}
        for study in self.studies(context):
            network = str(study.model).partition("?")[0] + (f" x{study.width:g}" if study.width != 1 else "")
            where, compared = f"{', '.join(study.data)}, {network}", _conduct(self.name, study, context, self.choose)
            found[where] = found[where].joined(compared) if where in found else compared
        return {"all networks": merge_studies(found)} if self.merge else found


def merge_studies(found: Mapping[str, Compared]) -> Compared:
    """Studies of several networks as one, with labels such as "packed, resnet50"."""
    groups: dict[str, Group] = {}
    for where, compared in found.items():
        model = where.rpartition(", ")[2].partition(" ")[0]
        groups |= {f"{label}, {model}": group for label, group in compared.groups.items()}
    return Compared(groups, seconds=sum(one.seconds for one in found.values()))


def _conduct(name: str, study: Study, context: Context, choose: Mapping[str, str]) -> Compared:
    def report(event: str, run: Any, text: str) -> None:
        if event not in ("kept", "started"):
            context.say(f"{name}: {run.label}, seed {run.seed}: {event} {text}")

    folder = context.folder / "studies" / study.name
    outcome = conduct(study, folder, jobs=context.jobs, ray=context.ray, report=report)
    if outcome.failed:
        run, reason = next(iter(outcome.failed.items()))
        raise ValueError(f"reproduce: {len(outcome.failed)} runs of {name} failed; {run}: {reason}")
    (groups,) = group_runs(outcome.results).values()
    seconds = sum(sum((run.record.get("seconds") or {}).values()) for run in outcome.results)
    return choose_labels(Compared({group.label: group for group in groups}, seconds=seconds), choose)


def choose_labels(compared: Compared, choose: Mapping[str, str]) -> Compared:
    """With one label, its name, for each method of `choose`: that of the setting that is best on validation data."""
    groups, notes = dict(compared.groups), list(compared.notes)
    for method, metric in choose.items():
        labels = [label for label, group in groups.items() if group.record["method"] == method]
        if len(labels) < 2:
            continue
        best = choose_settings([run for label in labels for run in groups[label].runs], metric)[0].record["label"]
        kept = groups[best]
        groups = {label: group for label, group in groups.items() if label not in labels}
        groups[method] = Group(method, kept.runs)
        notes.append(f"{best} was chosen by {metric} on validation data, out of {len(labels)} settings.")
    return Compared(groups, seconds=compared.seconds, notes=tuple(notes))


Given = Mapping[str, Any]
SMOKE: dict[str, Any] = {
    "data": ["sklearn_digits"], "model": "mlp", "size": 3, "seeds": [0, 1], "training": {"epochs": 2, "lr": 0.003},
    "source": {"outside": ["noise"]}, "corruptions": ["gaussian_noise"], "severities": [1, 3], "shift_rows": 100,
}  # fmt: skip

ONE_SEED: dict[str, Any] = {"seeds": [0]}  # of studies with many or large networks, which would take most of the time

LAPTOP: dict[str, Any] = {  # a network that is large for its data: there Deep Ensembles beat the single network
    "data": ["fashion_mnist"], "model": "lenet", "width": 4.0, "size": 4, "seeds": [0, 1, 2],
    "training": {"epochs": 40, "batch_size": 128, "lr": 1e-3, "schedule": {"name": "cosine"}},
    "source": {"outside": ["kmnist"], "train_rows": 3000},
    "corruptions": list(BENCHMARK), "severities": [1, 3, 5], "shift_rows": 500,
}  # fmt: skip

LAPTOP_MASKS: dict[str, Any] = {
    **LAPTOP, "width": 2.0, "source": {"outside": ["kmnist"], "train_rows": 10_000}, "corruptions": list(CORRUPTIONS),
}  # fmt: skip

LAPTOP_RESIDUAL: dict[str, Any] = {  # layers that take groups
    **LAPTOP, "data": ["cifar10"], "model": "resnet20", "width": 2.0,
    "training": {**LAPTOP["training"], "epochs": 30, "augment": {"flip": True}},
    "source": {"outside": ["svhn"], "train_rows": 5000, "image_size": 16},
}  # fmt: skip

CIFAR: dict[str, Any] = {
    "size": 4,
    "seeds": list(range(5)),
    "corruptions": [],
}  # corrupted images are the published ones

IMAGENET: dict[str, Any] = {
    "data": ["imagenet"], "model": "resnet50", "size": 4, "seeds": [0], "corruptions": [],
}  # fmt: skip


# ---------------------------------------------------------------- fair tests: docs/protocol.md

FRESH = [200, 201, 202, 203, 204]  # seeds that no setting was chosen with
WIDTHS = [1, 2, 4, 8]

FAIR: dict[str, Any] = {
    **LAPTOP, "width": 1.0, "seeds": FRESH, "severities": [3], "shift_rows": 300,
    "training": {**LAPTOP["training"], "patience": 10, "best": "likeliest"},
}  # fmt: skip


FIXED: dict[str, Any] = {  # trained as the papers train: a schedule of a fixed length, and its last epoch
    **FAIR, "width": 4.0, "seeds": [210, 211, 212, 213, 214],
    "training": {**LAPTOP["training"], "best": "last"},
}  # fmt: skip


def fair(
    name: str, *studies: Given, smoke: Sequence[Given], base: Given = FAIR, choose: Mapping[str, str] | None = None
) -> StudyExperiment:
    """A fair test: studies of one network and data set as one comparison; "paper" is the same, for want of another."""
    tests = [{**base, **one} for one in studies]
    scales = {"smoke": [{**SMOKE, **ONE_SEED, **one} for one in smoke], "laptop": tests, "paper": tests}
    return StudyExperiment(name, scales, choose=choose or {})


def study(
    name: str, paper: Sequence[Given], *, smoke: Given | None = None, laptop: Given | None = None,
    choose: Mapping[str, str] | None = None, **given: Any,
) -> StudyExperiment:  # fmt: skip
    """An experiment with the same methods and sweep at each scale.

    Args:
        paper: the studies of `--scale paper`; what they say themselves holds
        smoke: what is different at `--scale smoke`
        laptop: the study of `--scale laptop`, by default LAPTOP
        choose: as for `StudyExperiment`
        given: arguments of `Study`; `settings` are for the smaller scales, where no recipe of the paper has them
    """
    shared = {key: value for key, value in given.items() if key != "settings"}
    return StudyExperiment(
        name,
        {
            "smoke": [{**SMOKE, **given, **(smoke or {})}],
            "laptop": [{**(laptop or LAPTOP), **given}],
            "paper": [{**shared, **one} for one in paper],
        },
        choose=choose or {},
    )


def sweep_study(name: str, question: str, paper: Sequence[Given], **given: Any) -> StudyExperiment:
    """The experiment of a sweep that the laboratory's page has as well; at `--scale smoke` with the page's values."""
    one = SWEEPS[question]
    usual = {"methods": list(one.methods), "sweep": one.values, "smoke": {"sweep": one.short}}
    size = {"size": one.size} if one.size != LAPTOP["size"] and "size" not in one.values else {}
    return study(name, paper, **{**usual, "settings": one.settings, **size, **given})


def swept(paper: str, question: str, item: str, title: str, **given: Any) -> Claim:
    """An item that says of a study what the laboratory's page says of one's own networks."""
    said = SWEEPS[question].claims[item]
    return Claim(paper, item, title, said.says, check=said.check, **given)


def cifar(data: str, model: str, recipe: str, **given: Any) -> dict[str, Any]:
    """A study of the paper's own scale on CIFAR, with SVHN outside and the published corruptions."""
    source = {"outside": ["svhn"], "shifted": [f"{data}_c"]}
    return {**CIFAR, "data": [data], "model": model, "recipe": recipe, "source": source, **given}
