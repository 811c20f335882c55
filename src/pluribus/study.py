"""Methods x settings x data x seeds: one result file per run. A study that was stopped goes on where it was."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .data import Data, path_of
from .metrics import METRICS
from .outside import outside
from .recipes import recipe
from .results import Damaged, Result, read, write
from .runs import BASELINES, Conditions, Run, arguments, built, check_outputs, compute, loaded

TRIES = 3  # of a run whose worker died
TRAINING_AXES = ("epochs", "batch_size", "lr", "weight_decay", "l1", "l2", "clip")
AXES = ("size", "width", "dropout", *TRAINING_AXES)  # of any method
Computed = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Study(Conditions):
    """What is compared: every method, with every setting of the sweep, on every data set, with every seed.

    Args:
        data: names or "kind:path" (see `data.load`)
        model: a name (see `networks.network`); None: a small network that fits the data
        methods: names in METHODS or BASELINES
        sweep: values by setting: an argument of a method, or one of AXES; a method that does not take a setting
            runs without it
        choose: a metric on the validation part by which one setting of each method is chosen; None: all are shown
    """

    data: Sequence[str] = ("digits",)
    model: str | None = None
    methods: Sequence[str] = ("single", "deep", "packed")
    seeds: Sequence[int] = (0,)
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    choose: str | None = None

    def runs(self) -> list[Run]:
        """Every run, in the order in which they start: all methods with the first seed, then with the next."""
        _check(self)
        runs = (
            run
            for seed, data, method in itertools.product(self.seeds, self.data, self.methods)
            for run in self._swept(data, method, seed)
        )
        return list({run.name: run for run in runs}.values())  # what is named twice runs once

    def _swept(self, data: str, method: str, seed: int) -> Iterator[Run]:
        taken = [axis for axis in self.sweep if _takes(method, axis)]
        common = {one.name: getattr(self, one.name) for one in dataclasses.fields(Conditions)}
        for values in itertools.product(*(self.sweep[axis] for axis in taken)):
            chosen = dict(zip(taken, values, strict=True))
            label = " ".join([method, *(f"{axis}={value}" for axis, value in chosen.items())])
            settings = {axis: value for axis, value in chosen.items() if axis not in AXES}
            training = {axis: value for axis, value in chosen.items() if axis in TRAINING_AXES}
            conditions = {axis: value for axis, value in chosen.items() if axis in common}
            conditions["training"] = {**self.training, **training}
            yield Run(data, self.model or "auto", method, label, settings, seed, **{**common, **conditions})

    def _own(self) -> dict[str, Any]:
        """What every run of the study's folder has in common; runs of more seeds and methods may join them."""
        plain = {key: value for key, value in self.to_json().items() if key not in ("seeds", "methods", "choose")}
        return {**plain, "files": fingerprints(self)}

    def to_json(self) -> dict[str, Any]:
        """The study as plain values."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=list))

    @property
    def name(self) -> str:
        """A name for the study's folder: the same for the same study of the same files."""
        text = json.dumps({**self._own(), "seeds": list(self.seeds), "methods": list(self.methods)}, sort_keys=True)
        first = self.data[0].partition(":")[0] if self.data else "study"
        return f"{first}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass
class Outcome:
    """What a study has given so far: results in the order of the runs, and why others are missing."""

    results: list[Result] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)


def conduct(
    study: Study,
    folder: str | Path,
    *,
    jobs: int = 1,
    ray: str | None = None,
    command: str = "",
    report: Callable[[str, Run, str], None] = lambda event, run, text: None,
) -> Outcome:
    """Run what is missing in the folder, and give back everything.

    Args:
        jobs: how many runs at once, each in a process of its own
        ray: the address of a Ray cluster ("auto": the one that runs here, "local": a new one); the workers need the
            data at the same paths
        command: what was typed, for the page
        report: called with "kept", "damaged", "started", "done", "retried" or "failed", the run, and a text
    """
    runs, folder = study.runs(), Path(folder)
    prepare(study, runs)
    _claim(study, folder, command)
    outcome = Outcome()
    missing = [run for run in runs if not _kept(run, folder, outcome, report)]
    ways = _on_ray(missing, ray, study.threads) if ray else _in_processes(missing, jobs) if jobs > 1 else _here(missing)
    for event, run, value in ways:
        if event == "done":
            write(_path(folder, run), *value)
            value = _line(value[0])
        elif event == "failed":
            outcome.failed[run.name] = value
        report(event, run, value)
    outcome.results = [read(_path(folder, run)) for run in runs if run.name not in outcome.failed]
    return outcome


def prepare(study: Study, runs: Sequence[Run]) -> dict[str, Data]:
    """Load the data and build every ensemble once, so that what cannot work is said before anything runs."""
    found: dict[str, Data] = {}
    seen: set[str] = set()
    for run in runs:
        name = dataclasses.replace(run, seed=0).name
        if name in seen:
            continue
        seen.add(name)
        data = found[run.data] = loaded(run)
        with torch.random.fork_rng(devices=[]):
            check_outputs(run, data, built(run, data))
    if study.choose is not None:
        _check_choice(study.choose, list(found.values()))
    return found


def _check_choice(metric: str, data: Sequence[Data]) -> None:
    for one in data:
        if METRICS[metric].task not in ("any", one.task):
            raise ValueError(
                f"compare: --choose {metric} is a metric of {METRICS[metric].task}, but {one.name} is {one.task}."
            )
        if not len(one.validation):
            raise ValueError(f"compare: --choose needs validation data, but {one.name} has none.")


def chosen(results: Sequence[Result], metric: str) -> list[Result]:
    """Of each method on each data set, the runs of the setting that is best on the validation part.

    The mean over seeds is compared; the test part has no say in it.
    """
    if metric not in METRICS:
        raise ValueError(f"choose: the metric {metric!r} is unknown. Choose from {', '.join(METRICS)}.")
    sign = -1 if METRICS[metric].better == "higher" else 1
    groups: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for result in results:
        record = result.record
        groups.setdefault((record["data"], record["method"]), {}).setdefault(record["label"], []).append(result)

    def judged(runs: list[Result]) -> float:
        values = [run.record["validation"].get(metric) for run in runs]
        if None in values:
            raise ValueError(
                f"choose: {metric} was not measured on validation data for {runs[0].record['label']!r}. "
                "Give validation data, or leave choose out."
            )
        return sign * float(np.mean(np.array(values, float)))

    return [run for labels in groups.values() for run in min(labels.values(), key=judged)]


# ---------------------------------------------------------------- ways to run

Event = tuple[str, Run, Any]


def _here(runs: Sequence[Run]) -> Iterator[Event]:
    for run in runs:
        yield "started", run, ""
        yield _tried(run, partial(compute, run))


def _in_processes(runs: Sequence[Run], jobs: int) -> Iterator[Event]:
    """A pool of processes; when one dies, the pool is made anew and what was under way is tried again."""
    waiting, tries = list(runs), dict.fromkeys((run.name for run in runs), 0)
    while waiting:
        under_way: dict[Future[Computed], Run] = {}
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_watch, initargs=(os.getpid(),))
        try:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    future = pool.submit(compute, waiting[0])  # a broken pool refuses it: then it waits on
                    run = under_way[future] = waiting.pop(0)
                    tries[run.name] += 1
                    yield "started", run, ""
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    event = _tried(under_way[future], future.result)
                    run = under_way.pop(future)
                    yield event
        except BrokenProcessPool:
            for run in under_way.values():
                if tries[run.name] < TRIES:
                    waiting.insert(0, run)
                    yield "retried", run, f"its process died; try {tries[run.name] + 1} of {TRIES}"
                else:
                    yield "failed", run, f"its process died {TRIES} times (out of memory?)"
        finally:
            _stop(pool)


def _watch(parent: int) -> None:
    """In a worker: end when the study's own process is gone, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _stop(pool: ProcessPoolExecutor) -> None:
    """End the processes now: a run that is cut short is repeated."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def _on_ray(runs: Sequence[Run], address: str, threads: int) -> Iterator[Event]:
    ray = outside("ray", "--ray", "ray")
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(address=None if address == "local" else address, log_to_driver=False, configure_logging=False)
    try:
        remote = ray.remote(num_cpus=threads, max_retries=TRIES - 1, retry_exceptions=False)(compute)
        under_way = {remote.remote(run): run for run in runs}
        for run in runs:
            yield "started", run, "handed to Ray"
        while under_way:
            (done, *_), _ = ray.wait(list(under_way), num_returns=1)
            run = under_way.pop(done)
            yield _tried(run, partial(_unwrapped, ray, done))
    finally:
        if started_here:
            ray.shutdown()


def _unwrapped(ray: Any, done: Any) -> Computed:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(getattr(error, "cause", None), Exception) else error from None
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"its worker died {TRIES} times ({error})") from None


def _tried(run: Run, give: Callable[[], Computed]) -> Event:
    """The run's result, or why there is none; one run that fails does not stop the others."""
    try:
        return "done", run, give()
    except (BrokenProcessPool, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a model or its data may raise
        return "failed", run, f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------- the folder


def _path(folder: Path, run: Run) -> Path:
    return folder / "results" / f"{run.name}.npz"


def _kept(run: Run, folder: Path, outcome: Outcome, report: Callable[[str, Run, str], None]) -> bool:
    """Whether the run is done already; a damaged file is named and its run repeated."""
    if not _path(folder, run).exists():
        return False
    try:
        report("kept", run, _line(read(_path(folder, run)).record))
        return True
    except Damaged as error:
        outcome.damaged.append(error)
        report("damaged", run, str(error))
        return False


def _line(record: Mapping[str, Any]) -> str:
    names = ("accuracy", "nll") if record["task"] == "classification" else ("rmse", "nll")
    figures = ", ".join(f"{name} {record['metrics'][name]['value']:.4g}" for name in names)
    return f"{figures} in {record['seconds']['training'] + record['seconds']['evaluation']:.0f} s"


def _claim(study: Study, folder: Path, command: str) -> None:
    """The folder belongs to one study; another is refused, so that results do not mix."""
    path = folder / "study.json"
    mine = study._own()
    if path.exists():
        try:
            found = json.loads(path.read_text())
            keys = [key for key in mine if mine[key] != found.get(key)]
        except (ValueError, AttributeError):
            keys = []  # cut short by a kill: the results have their own names
        if keys == ["files"]:
            changed = [name for name, mark in mine["files"].items() if found["files"].get(name) != mark]
            raise ValueError(
                f"compare: {', '.join(changed)} changed since the study in {str(folder)!r} began. "
                "Choose another folder."
            )
        if keys:
            raise ValueError(
                f"compare: the folder {str(folder)!r} holds another study, which differs in {', '.join(keys)}. "
                "Choose another folder."
            )
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".study.{os.getpid()}")
    try:
        temporary.write_text(json.dumps({**mine, **study.to_json(), "command": command}, indent=1))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def fingerprints(study: Study) -> dict[str, str]:
    """A mark of each file or folder that the study reads: another content, another mark."""
    specs = [*study.data, *(spec for key in ("outside", "shifted", "variants") for spec in study.source.get(key, ()))]
    paths = [path for spec in specs if (path := path_of(spec, study.source.get("folder"))) is not None]
    if study.model and study.model.startswith("python:"):
        paths += [path for path in [Path(study.model.split(":")[1])] if path.is_file()]
    return {str(path): _mark(path) for path in paths}


def _mark(path: Path) -> str:
    """Of a small file its content, otherwise sizes and times of all files."""
    if path.is_file() and path.stat().st_size < 2**26:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    text = "\n".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _takes(method: str, axis: str) -> bool:
    """Whether a method's runs differ by this setting."""
    return axis in arguments(method) or (axis in AXES and axis != "size")


def _check(study: Study) -> None:
    for what, values in (("data", study.data), ("methods", study.methods), ("seeds", study.seeds)):
        if not values:
            raise ValueError(f"compare: there must be at least one of {what}, but there is none.")
    for method in study.methods:
        if method not in BASELINES:
            raise ValueError(f"compare: the method {method!r} is unknown. Choose from {', '.join(BASELINES)}.")
    recipe(study.recipe).changed(**study.training)
    for axis in study.sweep:
        if axis not in AXES and not any(axis in arguments(method) for method in study.methods):
            known = sorted(set(AXES).union(*(arguments(method) for method in study.methods)))
            raise ValueError(
                f"compare: none of {', '.join(study.methods)} takes {axis!r}. Choose from {', '.join(known)}."
            )
    if study.choose is not None and study.choose not in METRICS:
        raise ValueError(f"compare: the metric {study.choose!r} is unknown. Choose from {', '.join(METRICS)}.")
