"""An experiment that is a study: methods under equal conditions, stored by run, as `pluribus compare` stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...landscape.analyses.trained_settings import CRITERIA
from ...results.quantities import Differences, estimate, value
from ...results.store import Group, group_runs
from ...study.folder import conduct
from ...study.grid import Study, choose_settings
from ...uncertainty.resampling import Interval
from .stored_parts import Context, say_scope


@dataclass(frozen=True)
class Compared:
    """The runs of a study on one data set, by label, and paired differences between them."""

    groups: dict[str, Group]
    differences: Differences = field(default_factory=Differences)
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
        """How much larger the quantity of the first is, paired."""
        return self.differences.between(self.groups[first], self.groups[second], name)

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
