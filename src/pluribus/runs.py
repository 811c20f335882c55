"""One run of a study: build, train and judge one ensemble with one seed. What it gives depends on the run alone."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from . import methods
from .augment import Augment, augmentation
from .corruptions import corrupt
from .cost import Cost, cost
from .data import Data, Split, load
from .ensemble import Ensemble
from .evaluation import bootstrap, by_member, evaluate, ood
from .loading import mixed
from .networks import dropout_rate, last_part, network, usual
from .prediction import Regression
from .recipes import Recipe, recipe
from .summary import Summary
from .training import fit

ROWS = 256  # that are predicted at once
PICTURES = 12  # examples of each kind that are kept for the page
SCORES = ("msp", "entropy", "mutual_information", "max_logit")
REGRESSION_SCORES = ("total", "epistemic")
INTERVALS = ("accuracy", "nll", "brier", "ece", "aurc", "rmse", "mae", "crps", "coverage")
RESAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What is the same for all runs that are compared.

    Args:
        size: how many members
        recipe, training: a name in RECIPES, and what is changed in it, such as {"epochs": 5}
        source: further arguments of `data.load`: folder, target, outside, shifted, image_size, broken, ...
        corruptions, severities, shift_rows: how the test part is shifted, and how many of its rows
        threads: of each run; the same for any number of jobs, so that results are the same
    """

    size: int = 4
    width: float = 1.0
    dropout: float | None = None
    recipe: str = "default"
    training: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    corruptions: Sequence[str] = ()
    severities: Sequence[int] = (1, 2, 3, 4, 5)
    shift_rows: int = 1000
    threads: int = 1
    device: str = "cpu"


@dataclass(frozen=True)
class Run(Conditions):
    """Everything that a result depends on; plain values only.

    Args:
        model: a name (see `networks.network`); "auto": a small network that fits the data
        method: a name in METHODS or BASELINES
        label: what tables call it; runs that differ by their seed only have the same label
        settings: arguments of the method
    """

    data: str = "digits"
    model: str = "auto"
    method: str = "single"
    label: str = "single"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def name(self) -> str:
        """A name for the run's file: readable, and unlike that of any other run."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, default=list)
        readable = re.sub(r"[^\w.=+-]+", "-", f"{self.data}-{self.label}-seed={self.seed}").strip("-")[:80]
        return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def compute(run: Run) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Train and judge: the record and the columns of a result file (see `results`)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    try:
        with torch.random.fork_rng(devices=[]):
            data = loaded(run)
            ensemble, history, seconds = trained(run, data)
            return judged(run, data, ensemble, history, seconds)
    finally:
        torch.set_num_threads(threads)


def trained(run: Run, data: Data, **options: Any) -> tuple[Ensemble, Any, float]:
    """A new ensemble after training, its history, and how long that took; options as for `fit`."""
    torch.manual_seed(mixed(run.seed, 1))
    ensemble = built(run, data)
    plan = planned(run)
    normalise = Normalised(data.train, data) if plan.augment is None else data.train
    validation = Normalised(data.validation, data) if len(data.validation) else None
    history = fit(
        ensemble, normalise, validation, recipe=plan, augment=_augment(plan, data), seed=run.seed,
        device=None if run.device == "cpu" else run.device, **options,
    )  # fmt: skip
    if run.method == "dropout_single_pass":
        ensemble = methods.single(ensemble.module)
    return ensemble, history, history.seconds


def planned(run: Run) -> Recipe:
    """The recipe that the run's method gets."""
    return recipe(run.recipe).changed(**run.training).of(BASELINES[run.method].method)


def loaded(run: Run) -> Data:
    """The run's data; the last one stays in memory for the next run."""
    return _loaded(run.data, json.dumps(dict(run.source), sort_keys=True))


@lru_cache(maxsize=1)
def _loaded(spec: str, source: str) -> Data:
    return load(spec, **json.loads(source))


def outputs_of(data: Data) -> int:
    """How many numbers a network gives for a row: the classes, or a mean and a variance."""
    return len(data.classes) if data.task == "classification" else 2


def built(run: Run, data: Data) -> Ensemble:
    """The run's ensemble, untrained; chance is torch's own."""
    baseline = BASELINES[run.method]
    model = plain(run, data, baseline.width)
    ensemble = baseline.make(run, model, data.normalise(data.train[:2][0]))
    ensemble.task = "classification" if data.task == "classification" else "gaussian"
    return ensemble


def check_outputs(run: Run, data: Data, ensemble: Ensemble) -> None:
    """Refuse a network whose outputs do not fit the data."""
    given = ensemble.eval()(data.normalise(data.train[:2][0]))
    if not isinstance(given, Tensor) or given.shape[-1] != outputs_of(data):
        shape = tuple(given.shape[2:]) if isinstance(given, Tensor) else type(given).__name__
        what = f"{len(data.classes)} classes" if data.classes else "a mean and a variance"
        raise ValueError(
            f"model: {run.model} must give {outputs_of(data)} numbers for each row ({what}), but it gives {shape}."
        )


def plain(run: Run, data: Data, width: float = 1.0) -> nn.Module:
    """The run's network itself; "auto" is a small one that fits the data."""
    return network(model_of(run, data), data.shape, outputs_of(data), width=run.width * width, dropout=run.dropout)


def model_of(run: Run, data: Data) -> str:
    """The name of the run's network."""
    return usual(data.shape) if run.model == "auto" else run.model


def _make(run: Run, model: nn.Module, example: Tensor) -> Ensemble:
    method = BASELINES[run.method].method
    function = methods.METHODS[method]
    takes = inspect.signature(function).parameters
    settings: dict[str, Any] = {"size": run.size, **recipe(run.recipe).settings(method), **run.settings}
    if method == "treenet":
        settings.setdefault("branch", last_part(model))
    elif method == "mimo":
        settings.setdefault("init", "different")  # it is trained from its start
    elif method == "mc_dropout" and settings.get("rate") is None:
        settings["rate"] = run.dropout or (None if dropout_rate(model) else 0.1)
    if "example" in takes:
        settings["example"] = example
    return function(model, **{name: value for name, value in settings.items() if name in takes})


def _one_draw(run: Run, model: nn.Module, example: Tensor) -> Ensemble:
    return _make(dataclasses.replace(run, size=1), model, example)


def arguments(method: str) -> set[str]:
    """The settings that a method takes."""
    takes = inspect.signature(methods.METHODS[BASELINES[method].method]).parameters
    return set(takes) - {"model", "example", "generator", "widths"}


class Normalised(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A part of the data with its inputs normalised, a whole batch at a time."""

    whole_batches = True

    def __init__(self, split: Split, data: Data):
        self.split, self.data = split, data

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, rows: Any) -> tuple[Tensor, Tensor]:
        x, y = self.split[rows]
        return self.data.normalise(x), y


def _augment(plan: Recipe, data: Data) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    if plan.augment is None or data.kind != "images":
        return None if plan.augment is None else (lambda x, y: (data.normalise(x), y))
    if isinstance(plan.augment, str):
        return augmentation(plan.augment, data.mean, data.std, len(data.classes))
    return Augment(data.mean, data.std, classes=len(data.classes), **plan.augment)


# ---------------------------------------------------------------- judging


def judged(
    run: Run, data: Data, ensemble: Ensemble, history: Any, seconds: float
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The record and the columns of a trained ensemble."""
    started = time.monotonic()
    inside = summarised(ensemble, data, data.test)
    columns = {f"test/{name}": column for name, column in _columns(inside).items()}
    outside = {name: summarised(ensemble, data, split, targets=False) for name, split in data.outside.items()}
    scores = SCORES if data.task == "classification" else REGRESSION_SCORES
    for score in scores if outside else ():
        columns[f"inside/{score}"] = inside.score(score).float().numpy()
        for name, summary in outside.items():
            columns[f"outside/{name}/{score}"] = summary.score(score).float().numpy()
    columns |= _examples(data, inside)
    record = {
        "run": run.name,
        **{key: value for key, value in dataclasses.asdict(run).items() if key not in ("training", "source")},
        "model": model_of(run, data),
        "size": ensemble.size,
        "task": data.task,
        "kind": data.kind,
        "classes": list(data.classes),
        "training": {k: v for k, v in dataclasses.asdict(planned(run)).items() if k not in ("methods", "source")},
        "metrics": _metrics(inside),
        "validation": evaluate(summarised(ensemble, data, data.validation)) if len(data.validation) else {},
        "members": by_member(inside, metrics=_of_members(data)),
        "shift": _shift(run, data, ensemble),
        "outside": {name: {score: ood(inside, other, score) for score in scores} for name, other in outside.items()},
        "variants": _variants(data, ensemble),
        "cost": _cost(run, data, ensemble),
        "seconds": {"training": seconds, "evaluation": time.monotonic() - started},
        "versions": _versions(),
        "history": history.rows,
        "best": history.best,
        "notes": [*data.notes, *ensemble.notes],
    }
    return record, columns


def summarised(ensemble: Ensemble, data: Data, split: Split, targets: bool = True) -> Summary:
    """What the metrics need of each row of a part of the data; regression in the units of the targets."""
    pairs = ((data.normalise(x), y) for x, y in split.batches(ROWS))
    return summary_of(ensemble, data, pairs, targets)


def summary_of(ensemble: Ensemble, data: Data, pairs: Iterator[tuple[Tensor, Tensor]], targets: bool) -> Summary:
    """The summary of the ensemble's predictions for batches of normalised inputs."""
    if data.task == "classification":
        return ensemble.predict(pairs if targets else ((x,) for x, _ in pairs), keep="summary")
    batches = list(pairs)
    scaled = ensemble.predict(iter(batches))
    assert isinstance(scaled, Regression) and scaled.variances is not None
    shift, scale = data.target_mean, data.target_std
    prediction = Regression(scaled.means.double() * scale + shift, scaled.variances.double() * scale**2)
    target = torch.cat([y for _, y in batches]).double() * scale + shift if targets else None
    return Summary(prediction, target)


def _columns(summary: Summary) -> dict[str, np.ndarray]:
    kept = ["target", "label", "confidence", "mean", "lower", "upper", "total", "aleatoric", "epistemic"]
    kept += ["log_likelihood", "squared_error", "member_label"]
    found = {name: getattr(summary, name).detach().cpu() for name in kept if name in summary.names}
    small = torch.int16 if (summary.classes or 0) < 2**15 else torch.int32
    return {n: (c.float() if c.is_floating_point() else c.to(small)).numpy() for n, c in found.items()}


def _metrics(summary: Summary) -> dict[str, dict[str, float | None]]:
    values = evaluate(summary)
    found: dict[str, dict[str, float | None]] = {}
    for name, value in values.items():
        ends = bootstrap(summary, metric=name, resamples=RESAMPLES) if name in INTERVALS else None
        found[name] = {"value": value, "low": ends and ends.low, "high": ends and ends.high}
    return found


def _of_members(data: Data) -> list[str] | None:
    return ["accuracy", "nll", "brier", "ece"] if data.task == "classification" else ["rmse", "nll"]


def _shift(run: Run, data: Data, ensemble: Ensemble) -> dict[str, list[dict[str, float]]]:
    """What is left of accuracy, likelihood and calibration on shifted pictures: made, or published ones."""
    found: dict[str, list[dict[str, float]]] = {}

    def row(severity: int, pairs: Iterator[tuple[Tensor, Tensor]]) -> dict[str, float]:
        names = ["accuracy", "nll", "ece"] if data.task == "classification" else ["rmse", "nll"]
        return {"severity": severity, **evaluate(summary_of(ensemble, data, pairs, targets=True), metrics=names)}

    for name, splits in data.shifted.items():
        found[name] = [
            row(i + 1, ((data.normalise(x), y) for x, y in split.batches(ROWS))) for i, split in enumerate(splits)
        ]
    for name in run.corruptions if data.kind == "images" else ():
        found[name] = [row(s, _corrupted(run, data, name, s)) for s in run.severities]
    return found


def _corrupted(run: Run, data: Data, name: str, severity: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows of the test part, corrupted in the same way for every method and seed."""
    split = data.test.take(_spread(len(data.test), run.shift_rows))
    for i, (x, y) in enumerate(split.batches(ROWS)):
        yield data.normalise(corrupt(x, name, severity, start=i * ROWS)), y


def _spread(rows: int, wanted: int) -> Tensor:
    """So many rows, evenly over all."""
    return torch.linspace(0, rows - 1, min(rows, wanted)).round().long()


def _variants(data: Data, ensemble: Ensemble) -> dict[str, dict[str, float]]:
    found = {}
    for name, split in data.variants.items():
        prediction: Any = ensemble.predict((data.normalise(x), y) for x, y in split.batches(ROWS))
        target = split.y
        if name in data.subsets:
            subset = torch.as_tensor(data.subsets[name])
            prediction = prediction.restrict(subset)
            target = torch.searchsorted(subset, target)
        found[name] = evaluate(prediction, target, metrics=["accuracy", "nll", "ece"])
    return found


def _examples(data: Data, summary: Summary) -> dict[str, np.ndarray]:
    """The most certain mistakes and the most uncertain examples."""
    if data.task == "classification":
        wrong = (summary.label != summary.target).nonzero().flatten()
        mistakes = wrong[summary.confidence[wrong].argsort(descending=True, stable=True)[:PICTURES]]
    else:
        surprise = (summary.mean - summary.target).abs() / summary.total.sqrt().clamp(min=1e-12)
        mistakes = surprise.argsort(descending=True, stable=True)[:PICTURES]
    uncertain = summary.total.argsort(descending=True, stable=True)[:PICTURES]
    index = torch.cat([mistakes, uncertain])
    reasons = ["mistake"] * len(mistakes) + ["uncertain"] * len(uncertain)
    found = {"examples/index": index.numpy(), "examples/reason": np.array(reasons)}
    if data.kind == "images":
        x = (data.test[index][0] * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        found["examples/pictures"] = (x[..., 0] if x.shape[-1] == 1 else x).numpy()
    else:
        found["examples/text"] = np.array([f"row {name}" for name in data.test.names(index)])
    return found


# ---------------------------------------------------------------- cost


def _cost(run: Run, data: Data, ensemble: Ensemble, rows: int = 32) -> dict[str, Any]:
    x = data.normalise(data.test[: min(rows, len(data.test))][0])
    single = plain(run, data).eval()
    own, one = cost(ensemble, x.to("meta")), cost(single, x.to("meta"))
    latency, other = _latencies([ensemble, methods.single(single)], x)
    return {
        **dataclasses.asdict(own),
        "latency": latency,
        "latency_rows": len(x),
        "relative": {**_relative(own, one), "latency": latency / other},
    }


def _relative(own: Cost, one: Cost) -> dict[str, float]:
    return {"parameters": own.parameters / one.parameters, "mult_adds": own.mult_adds / max(one.mult_adds, 1)}


@torch.no_grad()
def _latencies(models: Sequence[nn.Module], x: Tensor, repeats: int = 7) -> list[float]:
    """Median seconds of one batch, the models by turns; on one thread those of the process, whatever else runs."""
    clock = time.process_time if torch.get_num_threads() == 1 and not torch.cuda.is_available() else time.perf_counter
    x = x.to(next((p.device for p in models[0].parameters()), torch.device("cpu")))
    times: list[list[float]] = [[] for _ in models]
    for repeat in range(repeats + 1):
        for model, seen in zip(models, times, strict=True):
            model.eval().to(x.device)
            started = clock()
            model(x)
            if x.is_cuda:
                torch.cuda.synchronize()
            if repeat:  # the first is a warm-up
                seen.append(clock() - started)
    return [statistics.median(seen) for seen in times]


def _versions() -> dict[str, str]:
    from . import __version__

    return {
        "pluribus": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


# ---------------------------------------------------------------- what can be compared


@dataclass(frozen=True)
class Baseline:
    """A method, or one of the papers' baselines made of it."""

    method: str
    width: float = 1.0
    make: Callable[[Run, nn.Module, Tensor], Ensemble] = _make
    description: str = ""


BASELINES: dict[str, Baseline] = {
    **{name: Baseline(name) for name in methods.METHODS},
    "thin": Baseline("single", 0.5, description="one network of half the width (MIMO, section 4)"),
    "wide": Baseline("single", 2.0, description="one network of twice the width (MIMO, section 4)"),
    "dropout_single_pass": Baseline(
        "mc_dropout", make=_one_draw, description="trained with dropout, one pass without it (MIMO, appendix B)"
    ),
    "wide_mimo": Baseline("mimo", 2.0, description="MIMO in a network of twice the width"),
}
