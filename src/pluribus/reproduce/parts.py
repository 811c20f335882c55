"""An experiment in parts: each is computed once and stored, so that it can be gone on with and judged again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._common.atomic import move_aside, refuse_links
from .._common.signed_files import write_npz
from .._common.untrusted import check_shape, parse_json
from ..data.unpacking import read_npz
from ..report.claims import COMPUTED
from ..training.batching import mix_seeds
from ..training.executors import run_here, run_in_processes, run_on_ray

SCALES = ("smoke", "laptop", "paper")
EXACT = dict.fromkeys(SCALES, COMPUTED)  # the costs of what needs no training
RECORD = {"experiment": str, "part": str, "settings": {str: Any}, "figures": {str: Any}, "seconds": (int, float)}


TITLES = {  # of networks and data
    "lenet": "LeNet-5", "resnet20": "ResNet-20", "resnet50": "ResNet-50", "resnext50": "ResNeXt-50", "mlp": "an MLP",
    "small_cnn": "SmallCNN", "medium_cnn": "MediumCNN", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100", "imagenet": "ImageNet", "sklearn_digits": "digits",
}  # fmt: skip

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def say_scope(networks: Iterable[tuple[str, float]], data: Iterable[str], seeds: int) -> str:
    """What a verdict is about.

    >>> say_scope([("lenet", 8)], ["fashion_mnist"], 5)
    'LeNet-5 x8 on Fashion-MNIST, five seeds'
    """
    named = [TITLES.get(name, name) + (f" x{width:g}" if width != 1 else "") for name, width in networks]
    where = [TITLES.get(name, name) for name in data]
    number = NUMBERS[seeds] if seeds < len(NUMBERS) else str(seeds)
    return f"{' and '.join(dict.fromkeys(named))} on {' and '.join(dict.fromkeys(where))}, {number} seeds"


@dataclass(frozen=True)
class Context:
    """Where and how an experiment is carried out."""

    scale: str
    folder: Path  # of all experiments; each has its own in it
    data: Path | None = None  # where data sets are looked for
    jobs: int = 1  # how many parts at once, each in a process of its own
    ray: str | None = None  # the address of a Ray cluster
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)  # told what is being done


@dataclass(frozen=True)
class Part:
    """A piece of an experiment: everything that its result depends on, in plain values."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # parts whose results it is computed from


@dataclass(frozen=True)
class Stored:
    """What a part gave: plain values, arrays by name, and the seconds of one processor that it took."""

    figures: dict[str, Any]
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: float = 0.0


Given = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass(frozen=True)
class InParts:
    """An experiment that is computed part by part.

    Args:
        name: of its folder
        plan: the parts of a scale, each after those that it needs
        compute: from a part, the folder of the data and the parts it needs to plain values and arrays
        check: refuses data that is missing before anything is computed
    """

    name: str
    plan: Callable[[str], list[Part]]
    compute: Callable[[Part, Path | None, Mapping[str, Stored]], Given]
    check: Callable[[str, Path | None], None] = lambda scale, data: None

    def scope(self, scale: str) -> str:
        """The networks, data and seeds of a scale; "" where parts are no networks of several seeds."""
        parts = [part.settings for part in self.plan(scale)]
        if not all({"model", "data", "seed"} <= one.keys() for one in parts):
            return ""
        networks, data = [(one["model"], 1.0) for one in parts], [one["data"] for one in parts]
        return say_scope(networks, data, len({one["seed"] for one in parts}))

    def carry_out(self, context: Context) -> dict[str, Stored]:
        """Every part by its name: what is stored is read, what is missing is computed."""
        parts, found = self.plan(context.scale), dict[str, Stored]()
        folder = context.folder / f"{self.name}-{context.scale}"
        refuse_links("reproduce", context.folder, folder.name)
        for part in parts:
            if os.path.lexists(path := part_path(folder, part)):
                try:
                    found[part.name] = read_part(path, self.name, part)
                except DamagedPart as error:
                    context.say(f"{error} It is computed again.")
                    move_aside(path)
        missing = [part for part in parts if part.name not in found]
        if missing:
            self.check(context.scale, context.data)
            context.say(f"{self.name}: {len(missing)} of {len(parts)} parts to compute")
        at_once = context.jobs > 1 or context.ray is not None
        for wave in _waves(missing, found) if at_once else [[part] for part in missing]:
            for part, (figures, columns), seconds in _carry_out(self, wave, found, context):
                write_part(part_path(folder, part), self.name, part, figures, columns, seconds)
                found[part.name] = Stored(figures, columns, seconds)
                context.say(f"{self.name}: {part.name} in {seconds:.0f} s")
        return {part.name: found[part.name] for part in parts}


@dataclass(frozen=True)
class _Task:
    part: Part
    data: Path | None
    needed: dict[str, Stored]

    @property
    def name(self) -> str:
        return self.part.name


def _carry_out(experiment: InParts, parts: Sequence[Part], found: Mapping[str, Stored], context: Context) -> Any:
    tasks = [_Task(part, context.data, {name: found[name] for name in part.needs}) for part in parts]
    compute = partial(_compute_timed, experiment.compute)
    if context.ray:
        events = run_on_ray(compute, tasks, context.ray, 1)
    else:
        events = run_in_processes(compute, tasks, context.jobs) if context.jobs > 1 else run_here(compute, tasks)
    failed = []
    for event, task, given in events:
        if event == "done":
            yield task.part, *given
        elif event == "failed":
            failed.append(f"{task.name}: {given}")
    if failed:
        raise ValueError(f"reproduce: {len(failed)} parts of {experiment.name} failed; {failed[0]}")


def _compute_timed(compute: Callable[..., Given], task: _Task) -> tuple[Given, float]:
    """What a part gives, with one thread, and the seconds of the processor; whatever it draws follows its seed."""
    threads, started = torch.get_num_threads(), time.process_time()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seeds(task.part.settings.get("seed", 0), 1))
            return compute(task.part, task.data, task.needed), time.process_time() - started
    finally:
        torch.set_num_threads(threads)


def _waves(missing: Sequence[Part], found: Mapping[str, Stored]) -> Any:
    """Parts that can be computed at once, then those that need them."""
    left, there = list(missing), set(found)
    while left:
        ready = [part for part in left if there.issuperset(part.needs)]
        assert ready, "a part needs one that is not planned"
        yield ready
        there.update(part.name for part in ready)
        left = [part for part in left if part.name not in there]


# ---------------------------------------------------------------- files


def part_path(folder: Path, part: Part) -> Path:
    """Where a part is stored."""
    return folder / f"{part.name}.npz"


def write_part(
    path: Path, experiment: str, part: Part, figures: dict[str, Any], columns: dict[str, np.ndarray], seconds: float
) -> None:
    """Write a part so that its file is complete or not there."""
    record = {"experiment": experiment, "part": part.name, "settings": dict(part.settings)}
    text = json.dumps(record | {"figures": figures, "seconds": seconds})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_npz(path, {"record": np.array(text), **columns})


class DamagedPart(ValueError):  # noqa: N818  it is what happened to the file
    """A part that cannot be read."""


def read_part(path: Path, experiment: str, part: Part) -> Stored:
    """What `write_part` wrote for this part; a file that is damaged, or of another part or setting, is named."""
    try:
        columns, _ = read_npz(path, own=True)
        record = parse_json(str(columns.pop("record", "")))
        check_shape(record, RECORD, "its record")
    except (ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ").rstrip(".")
        raise DamagedPart(f"reproduce: {str(path)!r} is damaged ({reason}).") from error
    expected = json.loads(json.dumps({"experiment": experiment, "part": part.name, **part.settings}))
    stored = {"experiment": record["experiment"], "part": record["part"], **record["settings"]}
    differing = sorted(key for key in expected.keys() | stored.keys() if expected.get(key) != stored.get(key))
    if differing:
        raise ValueError(
            f"reproduce: {str(path)!r} does not fit {experiment}, part {part.name}: it differs in "
            f"{', '.join(differing)}. Delete it, or choose another --out."
        )
    return Stored(record["figures"], columns, float(record["seconds"]))
