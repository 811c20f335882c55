"""Which methods and settings fit a budget: counted exactly on the meta device, before anything is trained."""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from ..._common.names import say_unknown
from ..._common.text_tables import align_columns
from ..._common.timing import medians
from ..._common.trees import as_batch, map_tensors, tensors_of
from ...core.ensemble import Ensemble
from ...methods import METHODS
from ...methods import single as baseline
from ...methods.method_info import REFUSALS, Candidate, PlanRequest, call_method
from ..freezing.call_signature import Unfit
from ..freezing.frozen import count_without_masked, freeze
from .candidates import CostFigures, Counted, count_candidates
from .counting import cost, duplicate_mapped, short_count

SHOWN = 10  # rows that are printed

THIN, FEW_PARAMETERS = 0.5, 100_000  # of the network, and numbers: members below both are too small

# The capacity curve (docs/capacity.md): NLL over that of a large network, 11 k to 2.8 M parameters, and what four
# independent members gain; methods that share weights gain about a third of it.
SHORT, SHORT_AT, STEEP, GAIN, LEAST_GAIN = 0.1, 44_000, 0.75, 0.1, 1 / 3

NEAR = 0.05  # what misses by no more is shown beside what fits


@dataclass(frozen=True)
class Plan:
    """The settings that fit a budget, the cheapest first; `print` shows the most promising as a table.

    Args:
        rows: the settings that fit: mult-adds rising, then parameters, then more members first; `forecast` is the NLL
            that the capacity curve lets one expect, relative to the network's own (below 1: better)
        misses: those that do not, the nearest first; `misses` in a row says by which factor
        refused: methods that cannot be applied to the model, with the reason
        single: the model's own figures
        budget: the limits, absolute
        notes: what a reader of the table should know
        seconds: how long it took

    >>> found = pb.plan(nn.Linear(8, 2), torch.zeros(1, 8), mult_adds=2.0, sizes=(2,), methods=["deep"])
    >>> [(row["method"], row["size"]) for row in found.rows]
    [('deep', 2)]
    """

    rows: list[dict[str, Any]]
    misses: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    single: dict[str, Any]
    budget: dict[str, float]
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        near = [row for row in self.misses if max(row["misses"].values()) <= 1 + NEAR] if self.rows else self.misses
        limits = ", ".join(f"{name} <= {_number(name, value)}" for name, value in self.budget.items())
        fit = f"{len(self.rows)} {'setting fits' if len(self.rows) == 1 else 'settings fit'}"
        head = f"{fit}: {limits}, in" if limits else f"{fit} (no budget), in"
        parts = [f"{head} {self.seconds:.1f} s; the single network comes first, for comparison"]
        if self.rows:
            parts.append(table([self.single, *self.best]))
            more = len(self.rows) - SHOWN
            parts += [f"{more} more {'fits' if more == 1 else 'fit'}: see to_json() or --json."] if more > 0 else []
        elif self.budget:
            parts.append("Nothing fits. The nearest:")
        if near and self.budget:
            parts += ["Just above the budget:"] if self.rows else []
            parts.append(table(near[:5], misses=True))
        if thin := [f"{row['method']} M = {row['size']}" for row in self.best if self.is_thin(row)]:
            parts.append(
                f"Probably worse than the network itself, because each member has less than half of a small network: "
                f"{', '.join(dict.fromkeys(thin))}. Use a wider network, fewer members or a larger budget."
            )
        for row in self.refused:
            settings = "".join(f" {k}={v}" for k, v in row["settings"].items())
            parts.append(f"{row['method']}{settings} cannot be used: {row['reason']}")
        return "\n".join([*parts, *self.notes])

    @property
    def best(self) -> list[dict[str, Any]]:
        """The rows that are printed: of each method what promises most, then the next of each, up to ten."""
        promising = sorted(self.rows, key=lambda row: (self.is_thin(row), row["forecast"], *_order(row)))
        before: dict[str, int] = {}
        turns: dict[int, int] = {}
        for row in promising:
            turns[id(row)] = before[row["method"]] = before.get(row["method"], -1) + 1
        chosen = {id(row) for row in sorted(promising, key=lambda row: turns[id(row)])[:SHOWN]}
        return [row for row in promising if id(row) in chosen]

    def is_thin(self, row: Mapping[str, Any]) -> bool:
        """Whether members are too small for a gain to be likely: under half of a network that is small itself.

        Members with half of the channels of a LeNet lost against it, those of a ResNet did not (docs/capacity.md).
        """
        return row["capacity"] < THIN and row["capacity"] * self.single["parameters"] < FEW_PARAMETERS

    def to_json(self, indent: int | None = None) -> str:
        """Everything as JSON.

        >>> found = pb.plan(nn.Linear(8, 2), torch.zeros(1, 8), mult_adds=2.0, sizes=(2,), methods=["deep"])
        >>> '"method": "deep"' in found.to_json()
        True
        """
        return json.dumps({**asdict(self), "seconds": round(self.seconds, 2)}, indent=indent)


def plan(
    model: nn.Module | Callable[[], nn.Module],
    example: Any,
    *,
    parameters: float | None = None,
    mult_adds: float | None = None,
    memory: float | None = None,
    latency: float | None = None,
    relative: bool = True,
    training: bool = False,
    sizes: Sequence[int] = (2, 3, 4, 8),
    methods: Sequence[str] | None = None,
    alphas: Sequence[float] = (2, 3),
    gammas: Sequence[int] = (1, 2),
    scales: Sequence[float] = (1.5, 2.0, 3.0),
    capacities: Sequence[float] = (),
    branches: Sequence[str] | None = None,
    rate: float = 0.1,
    measure: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """The methods and settings that fit a budget, for a model and an example.

    Parameters and mult-adds are exact: they are what `pb.cost` says of the ensemble. They are counted on the meta
    device, where nothing is allocated: a model built there, or a function that builds one, is planned as well.

    | figure | what |
    |---|---|
    | parameters, mult_adds, forward_passes | those of `pb.cost`; mult-adds of one example |
    | memory | bytes of a prediction on the example: parameters, buffers, and the most results alive at once |
    | training_memory | bytes of a training step: parameters four times (gradient, two moments of Adam), buffers, and every result of the forward passes |
    | capacity | parameters that one member computes with, relative to the model |
    | width | channels that one member has, relative to the model |
    | iou | expected intersection over union of two masks, 1 / (2 S - 1) |
    | latency | median seconds of a prediction on the example once frozen, measured in turn with the frozen model |

    Shapes:
        example: (batch, *features), or what else one call takes

    Args:
        model: a model, also on the meta device, or a function without arguments that builds one
        example: what one call takes, rows first; memory and latency are those of this batch
        parameters, mult_adds, memory, latency: upper limits, inclusive
        relative: limits are multiples of the model's own figures; False: numbers, bytes and seconds
        training: `memory` is that of a training step
        sizes: numbers of members to plan for
        methods: by default all
        alphas, gammas: for packed; gamma where the model says which layers take it
        scales: for masksembles
        capacities: for masksembles whose layers grow, so that each mask keeps that fraction of the original width; their
            widths are drawn, so the figures are those of the expected widths
        branches: for treenet; by default three points of the model where the branches begin
        rate: of MC-Dropout where the model has no dropout of its own
        measure: measure the latency of what fits, also without a limit
        progress: called with what is done next, in words

    >>> found = plan(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)), torch.zeros(4, 8), mult_adds=1.0)
    >>> all(row["relative"]["mult_adds"] <= 1 for row in found.rows)
    True
    """  # noqa: E501
    began = time.perf_counter()
    limits = {"parameters": parameters, "mult_adds": mult_adds, "memory": memory, "latency": latency}
    _check_arguments(sizes, methods, limits)
    made, x, notes = _without_values(model, example)
    options: dict[str, Any] = {"alphas": alphas, "gammas": gammas, "scales": scales, "capacities": capacities}
    request = PlanRequest(made, x, list(sizes), {**options, "branches": branches, "rate": rate})
    base, found = count_candidates(request, list(METHODS if methods is None else methods), progress)
    kind = "training_memory" if training else "memory"
    single = _row(Counted(baseline.__name__, Candidate({}, 1), base), base)
    rows = [_row(_as_deployed(counted, x), base) for counted in found if counted.figures is not None]
    budget = {}
    for name, limit in limits.items():
        if limit is not None and name != "latency":
            budget[name] = limit * single[kind if name == "memory" else name] if relative else limit
    if latency is not None or measure:
        fitting = [row for row in rows if not _misses(row, budget, kind)]
        notes += _measure(model, example, single, fitting, progress)
        if latency is not None:
            budget["latency"] = latency * single["latency"] if relative else latency
    for row in rows:
        row["misses"] = _misses(row, budget, kind)
    refused = [
        {"method": c.method, "settings": dict(c.candidate.settings), "reason": c.reason}
        for c in found
        if c.figures is None
    ]
    fits = sorted((row for row in rows if not row["misses"]), key=_order)
    others = sorted((row for row in rows if row["misses"]), key=lambda row: (max(row["misses"].values()), *_order(row)))
    return Plan(fits, others, refused, single, budget, notes, time.perf_counter() - began)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["mult_adds"], row["parameters"], -row["size"], row["method"], str(row["settings"])


def _check_arguments(sizes: Sequence[int], methods: Sequence[str] | None, limits: Mapping[str, float | None]) -> None:
    unknown = [name for name in methods or () if name not in METHODS]
    if unknown:
        raise ValueError(f"plan: the method {say_unknown(unknown[0], METHODS)}")
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 2 for size in sizes):
        raise ValueError(f"plan: sizes must be whole numbers of at least 2, but they are {list(sizes)!r}.")
    for name, value in limits.items():
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise ValueError(f"plan: {name} must be a positive number, but it is {value!r}.")


def _without_values(model: Any, example: Any) -> tuple[nn.Module, Any, list[str]]:
    """The model without values and the example likewise; with them, as copies, where the model looks at values."""
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise TypeError(f"plan: the model must be an nn.Module or a function that builds one, not {type(model)}.")
        with torch.device("meta"):
            model = model()
    try:
        cost(model, example)  # with values, where it asks for them
    except REFUSALS as error:
        raise ValueError(str(error).replace("cost:", "plan:", 1)) from error
    batch = map_tensors(example, lambda t: t.detach().to("meta"))
    try:
        made = duplicate_mapped(model, lambda t: t.detach().to("meta"))
        cost(made, batch)
        return made, batch, []
    except REFUSALS:
        return model, example, ["The model depends on values, so it was run on real ones, not on the meta device."]


# -------------------------------------------------------------------- rows


def _as_deployed(counted: Counted, x: Any) -> Counted:
    """The mult-adds without the channels that masks drop, which `freeze` cuts."""
    candidate, figures = counted.candidate, counted.figures
    if not candidate.masks or figures is None or candidate.family is None:
        return counted
    try:
        left = count_without_masked(candidate.family(candidate.size).eval(), x, candidate.masks)
    except Unfit:
        return counted
    return replace(counted, figures=replace(figures, mult_adds=left))


def _row(counted: Counted, base: CostFigures) -> dict[str, Any]:
    candidate, figures = counted.candidate, counted.figures
    assert figures is not None
    row: dict[str, Any] = {
        "method": counted.method,
        "size": candidate.size,
        "settings": dict(candidate.settings),
        "parameters": figures.parameters,
        "mult_adds": figures.mult_adds,
        "forward_passes": figures.passes,
        "memory": figures.memory,
        "training_memory": figures.training_memory,
        "capacity": round(counted.capacity, 4),
        "width": round(candidate.width, 4),
        "iou": candidate.iou,
        "expected": candidate.expected,
        "latency": None,
        "call": _call(counted.method, candidate),
    }
    row["forecast"] = 1.0 if candidate.size < 2 else forecast_nll(row, base.parameters)
    row["relative"] = {
        name: round(row[name] / max(getattr(base, name), 1), 6)
        for name in ("parameters", "mult_adds", "memory", "training_memory")
    }
    return row


def forecast_nll(row: Mapping[str, Any], network: int) -> float:
    """The NLL to expect, relative to that of the network with so many parameters.

    Smaller members lose by the capacity curve; members gain by their number, and by how much of them is their own.
    A guess from one task, to order settings by: `pluribus plan --data` tries the first ones.

    >>> thin, whole = ({"parameters": 8 * n, "capacity": n / 19_000, "size": 8} for n in (19_000 / 16, 19_000))
    >>> forecast_nll(thin, 19_000) > 1 > forecast_nll(whole, 19_000)
    True
    """
    member = max(row["capacity"] * network, 1)
    lost = SHORT * ((SHORT_AT / member) ** STEEP - (SHORT_AT / max(network, 1)) ** STEEP)
    own = (row["parameters"] - member) / max((row["size"] - 1) * member, 1)
    share = LEAST_GAIN + (1 - LEAST_GAIN) * min(max(own, 0.0), 1.0)
    return round(1 + lost - GAIN * share * (1 - 1 / row["size"]), 4)


def _call(method: str, candidate: Candidate) -> str:
    """The code that makes the ensemble."""
    parameters = inspect.signature(METHODS[method]).parameters
    given = [str(candidate.size)] if "size" in parameters else []
    given += [f"{name}={value!r}" for name, value in candidate.settings.items()]
    if "example" in parameters and parameters["example"].kind is not inspect.Parameter.KEYWORD_ONLY:  # it is needed
        given.append("example=x")
    return f"pb.{method}({', '.join(['model', *given])})"


def _misses(row: Mapping[str, Any], budget: Mapping[str, float], kind: str) -> dict[str, float]:
    """The factor by which the row exceeds each limit."""
    found = {}
    for name, limit in budget.items():
        value = row[kind if name == "memory" else name]
        if value is not None and value > limit * (1 + 1e-12):
            found[name] = value / limit
    return found


# -------------------------------------------------------------------- measuring


@torch.no_grad()
def _measure(
    model: Any, example: Any, single: dict[str, Any], rows: list[dict[str, Any]], progress: Callable[[str], None]
) -> list[str]:
    """Write the measured latency into the rows, and a note where a network could not be run."""
    model = model if isinstance(model, nn.Module) else model()
    if any(tensor.is_meta for tensor in (*model.parameters(), *tensors_of(as_batch(example)))):
        raise ValueError(
            "plan: latency is measured, so model and example need values, but they are on the meta device. "
            "Give them on a real device, or leave latency and measure out."
        )
    notes = []
    args, kwargs = as_batch(example)
    device = tensors_of((args, kwargs))[0].device

    def latencies(*networks: nn.Module) -> list[float]:
        return medians([partial(network, *args, **kwargs) for network in networks], device)

    alone = freeze(baseline(model), example)
    times = []
    for number, row in enumerate(rows):
        progress(f"measuring {row['call']}, {number + 1} of {len(rows)}")
        try:
            made = freeze(build_planned(row, model, example), example)
            ours, theirs = latencies(alone, made)
        except REFUSALS as error:
            notes.append(f"{row['call']} was not measured: {error}")
            continue
        times.append(ours)
        row["latency"], row["mult_adds"] = theirs, made.mult_adds[1]
        row["relative"]["mult_adds"] = round(row["mult_adds"] / max(single["mult_adds"], 1), 6)
        row["relative"]["latency"] = round(theirs / ours, 4)
    single["latency"] = median(times) if times else latencies(alone)[0]
    single["relative"]["latency"] = 1.0
    for row in rows:  # each was measured beside the model: what the machine did meanwhile cancels
        if row["latency"] is not None:
            row["latency"] = row["relative"]["latency"] * single["latency"]
    return notes


def build_planned(row: Mapping[str, Any], model: nn.Module, example: Any) -> Ensemble:
    """The ensemble that a row of a plan describes."""
    return call_method(METHODS[row["method"]], model, row["size"], row["settings"], example)


# -------------------------------------------------------------------- printing


def table(rows: Sequence[Mapping[str, Any]], *, misses: bool = False) -> str:
    """Rows as aligned text."""
    return align_columns([cells(row, misses) for row in rows], left=("method", "settings", "misses by"))


def cells(row: Mapping[str, Any], misses: bool = False) -> dict[str, str]:
    """One row as text by column."""
    shown = {k: v for k, v in row["settings"].items() if v is not None}
    relative = row["relative"]
    texts = {
        "method": row["method"],
        "M": str(row["size"]),
        "settings": ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items()),
        "parameters": short_count(row["parameters"]),
        "x": f"{relative['parameters']:.3f}",
        "mult-adds": short_count(row["mult_adds"]),
        "x ": f"{relative['mult_adds']:.3f}",
        "passes": f"{row['forward_passes']:g}",
        "memory": _number("memory", row["memory"]),
        "training": _number("memory", row["training_memory"]),
        "capacity": f"{row['capacity']:.3f}",
        "forecast": f"{row['forecast']:.2f}",
        "width": f"{row['width']:.3f}",
        "IoU": "" if row["iou"] is None else f"{row['iou']:.3f}",
        "latency": "" if row["latency"] is None else f"{1e3 * row['latency']:.2f} ms",
        "x  ": "" if row["latency"] is None else f"{relative['latency']:.2f}",
    }
    if misses:
        texts["misses by"] = ", ".join(f"{k} {100 * (v - 1):.3g} %" for k, v in row["misses"].items())
    return texts


def _number(name: str, value: float) -> str:
    if name == "latency":
        return f"{1e3 * value:.2f} ms"
    if name == "memory":
        return f"{value / 2**20:.1f} MiB" if value >= 2**20 else f"{value / 2**10:.1f} KiB"
    return short_count(value)
