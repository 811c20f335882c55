"""`upgrade`: what a trained network gains as an ensemble, found within a budget and said with intervals."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .._common.names import say_unknown
from .._common.trees import as_batch, map_rows, rows_of
from ..core.ensemble import Ensemble
from ..data.dataset import divide
from ..deploy.budget.counting import cost
from ..deploy.feature_distance import FeatureDistance, feature_distance
from ..deploy.freezing.frozen import freeze
from ..deploy.promises import evidence_of
from ..landscape.checkpoints import Trajectory
from ..landscape.recorded_training import trajectory
from ..methods import single
from ..methods.building import check_model, check_size
from ..methods.method_info import REFUSALS, first_line
from ..surgery.copying import duplicate
from ..training.batching import loader, pair_of
from ..training.fitting import fit
from ..uncertainty.abstention import abstain
from ..uncertainty.calibration import Calibrated, calibrate, join_observed, observe
from ..uncertainty.calibration_maps import Variance
from ..uncertainty.checks import check_share
from ..uncertainty.evaluation import Comparison, compare, evaluate
from ..uncertainty.metrics import aurc, auroc
from ..uncertainty.regression import Regression
from ..uncertainty.resampling import percentile_interval
from .outcome import GOALS, NETWORK, SCALED, TUNED, Tried, Upgrade, uncertainty
from .ways import Given, Way, ways

Found = TypeVar("Found")

SHARES = {"choose": 0.4, "promise": 0.3, "judge": 0.3}  # of the validation rows

LEAST = 50  # validation rows: fewer tell nothing apart

LOOKED_AT = 256  # training rows on which conversions must keep the network's answers; of a loader its first batch

CHECKPOINTS, BYTES = 20, 4 * 2**30  # of the network's own fine-tuning, and what they may take


def upgrade(
    model: nn.Module,
    train: Any,
    validation: Any,
    budget: Any = 2,
    *,
    goal: str = "likelihood",
    outside: Any = None,
    size: int = 4,
    methods: Sequence[str] | None = None,
    task: str = "classification",
    test: Any = None,
    coverage: float = 0.9,
    risk: float = 0.05,
    lr: float = 1e-4,
    batch_size: int = 32,
    criterion: Any = None,
    optimizer: Any = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Upgrade:
    """The best ensemble that keeps the weights of a trained network, calibrated and frozen, with its measured gain.

    Every way starts near the network, is judged as it starts and after fine-tuning, each time with its scale fitted
    (temperature; in regression the variance), and the one with the lowest held-out NLL is set against the network
    itself. Where the interval of the difference to the network, as it is or with its own scale fitted, leaves no gain,
    the network is enough, and is what comes back. Validation rows are divided: 40 % choose and calibrate, 30 % set the
    conformal threshold and the one for abstaining, 30 % judge. The model is not changed.

    Where uncertainty is what is wanted, `goal` says so. Then the network with a distance in its own features, which
    needs no training, is tried as well (`pb.feature_distance`).

    Shapes:
        train, validation, test: x (rows, *features) and y (rows); outside: x (rows, *features), or the same
        upgraded.predict(x).mean, upgraded.sets(x): (batch, classes)

    Args:
        model: the trained network
        train: (x, y), a data set or a loader of (x, y): what it is fine-tuned on
        validation: the same; rows that the network was not trained on
        budget: epochs of fine-tuning for each way (0: none); or a time for all of them together, such as "20min"
        goal: what is to be best: "likelihood" (NLL), "ood" (AUROC against the outside data) or "abstain" (the area
            under the risk-coverage curve)
        outside: rows unlike the data: half of them choose, half judge
        size: how many members
        methods: which ways to try; default: all, see `upgrading.ways`
        task: "classification", or what else an `Ensemble.task` may be
        test: further rows, to judge on in place of the validation's 30 %
        coverage: of the sets or intervals
        risk: the share of errors to keep to by abstaining
        lr: of the network's own weights; a method that adds its own may state a multiple of it
        batch_size: rows in a training step
        criterion, optimizer, device, seed: as for `fit`
        say: what is told of the progress

    >>> x = torch.randn(300, 4)
    >>> upgraded = upgrade(nn.Linear(4, 3), (x, x[:, :3].argmax(1)), (x, x[:, :3].argmax(1)), budget=1)
    >>> upgraded.predict(x).mean.shape, upgraded.sets(x).shape
    (torch.Size([300, 3]), torch.Size([300, 3]))
    """
    check_model("upgrade", model)
    size, allowed = check_size("upgrade", size), Budget.of(budget)
    check_share("upgrade", "coverage", coverage)
    check_share("upgrade", "risk", risk)
    if goal not in GOALS:
        raise ValueError(f"upgrade: the goal {say_unknown(goal, GOALS)}")
    if goal == "ood" and outside is None:
        raise ValueError(
            'upgrade: goal="ood" needs data unlike the training data. Give outside= (command line: --outside).'
        )
    if goal == "abstain" and task != "classification":
        raise ValueError(f'upgrade: goal="abstain" needs one class for each row, but the task is {task}.')
    chosen = _choose_ways(methods, goal)
    network = single(duplicate(model).eval())
    network.task = task
    held = _HeldOut(validation, test, outside, batch_size, device, seed, network)
    x, _ = pair_of(next(iter(loader(train, LOOKED_AT))))
    given = Given(network.member(0), size, x, train, seed, task)
    options = {"lr": lr, "batch_size": batch_size, "criterion": criterion, "optimizer": optimizer, "seed": seed}
    search = _Search(held, given, task, allowed, {**options, "device": device, "schedule": "constant"}, say, goal)
    search.judge(NETWORK, "at once", network, held.first)
    search.go(chosen)
    return search.finish(network, coverage, risk)


@dataclass
class _Judged:
    """An ensemble with its scaled predictions of the held-out rows, and where it stands in the table."""

    tried: Tried
    ensemble: Ensemble
    calibrated: Calibrated
    predicted: dict[str, Any]  # by part, as `_HeldOut` divides it
    scores: dict[str, Tensor]  # the uncertainty of the rows of each part, and of both halves of the outside data
    distance: FeatureDistance | None = None

    def scaled(self) -> Any:
        """The scaled prediction of the rows that judge."""
        return self.calibrated.apply(self.predicted["judge"])


@dataclass
class _Search:
    held: _HeldOut
    given: Given
    task: str
    budget: Budget
    options: dict[str, Any]
    say: Callable[[str], None]
    goal: str = "likelihood"
    table: list[Tried] = field(default_factory=list)
    judged: dict[str, _Judged] = field(default_factory=dict)  # the best, and the network itself in its two stages

    def __post_init__(self) -> None:
        self.row = map_rows(self.given.x, rows_of(as_batch(self.given.x)), lambda t: t[:1])
        self.mult_adds = cost(self.given.model, self.row).mult_adds  # of the network itself

    def go(self, chosen: dict[str, Way]) -> None:
        """Every way in turn; one that refuses is noted and left."""
        run, after = None, [way for way in chosen.values() if way.of_run]
        trainings = sum(way.trains for way in chosen.values()) + bool(after)
        for key, way in chosen.items():
            name, started = way.shown or key, time.monotonic()
            try:
                if way.of_run is not None:
                    if self.budget.epochs == 0:
                        raise ValueError("it needs fine-tuning, which the budget does not allow")
                    if run is None:
                        run, trainings = self._trajectory(trainings), trainings - 1
                    self._judge_made(name, "fine-tuned", way.of_run(run, self.given), started)
                    continue
                if way.distance:
                    found = feature_distance(self.given.model, self.given.train, way.distance)
                    self.judge(name, "at once", single(self.given.model), self.held.first, started, found)
                    continue
                assert way.at_once is not None
                ensemble = way.at_once(self.given)
                self._judge_made(name, "at once", ensemble, started)
                if way.trains and self.budget.epochs != 0:
                    self._tune(ensemble, way.rate, trainings)
                    self._judge_made(name, "fine-tuned", ensemble, started)
            except (*REFUSALS, ImportError) as error:  # also a package of it that is not installed
                self.table.append(Tried(key, reason=first_line(error)))
                self.say(f"{key}: {first_line(error)}")
            trainings -= way.trains

    def _tune(self, ensemble: Ensemble, rate: float, left: int) -> None:
        given = {**self.options, "lr": self.options["lr"] * rate, **self.budget.options(left)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fit:", category=RuntimeWarning)  # it is an error here
            history = fit(ensemble, self.given.train, select=None, **given)
        if history.failure:
            raise ValueError(history.failure)

    def _trajectory(self, left: int) -> Trajectory:
        """The checkpoints of the network's own fine-tuning, as many as memory is set aside for."""
        size = sum(tensor.nbytes for tensor in self.given.model.state_dict().values())
        kept = max(min(CHECKPOINTS, BYTES // max(size, 1)), 1)
        given = {**self.options, **self.budget.options(left)}
        batches = len(loader(self.given.train, self.options["batch_size"]))
        every = max(1, batches * min(self.budget.epochs or 1, 100) // CHECKPOINTS)
        return trajectory(self.given.model, self.given.train, every=every, keep=kept, task=self.task, **given)

    def _judge_made(self, name: str, stage: str, ensemble: Ensemble, started: float) -> None:
        ensemble.task = self.task
        ensemble.eval()
        self.judge(name, stage, ensemble, self.held.predict(ensemble), started)

    def judge(
        self, name: str, stage: str, ensemble: Ensemble, predicted: dict[str, Any], started: float | None = None,
        distance: FeatureDistance | None = None,
    ) -> None:  # fmt: skip
        """Fit the scale, note the figures, and keep the ensemble if it is the best so far."""
        ensemble.task, targets = self.task, self.held.targets
        how: Any = {"method": "variance"} if isinstance(predicted["choose"], Regression) else SCALING
        scaled = calibrate(predicted["choose"], targets["choose"], seed=self.given.seed, **how)
        if distance is None:
            scores = {name: uncertainty(scaled.apply(part)) for name, part in predicted.items()}
        else:
            scores = self.held.distances(distance)
        figures = evaluate(scaled.apply(predicted["judge"]), targets["judge"])
        judged = _Judged(Tried(name), ensemble, scaled, predicted, scores, distance)
        chosen_by = next(row["nll"] for row in scaled.table if row["method"] == scaled.method)
        if self.goal != "likelihood":
            chosen_by = self.loss(judged, "choose")
        if "outside judge" in scores:
            figures["auroc"] = auroc(scores["judge"], scores["outside judge"])
        if distance is not None and "aurc" in figures:
            figures["aurc"] = aurc(scores["judge"], self.wrong(judged, "judge"))
        factor = cost(ensemble, self.row).mult_adds / max(self.mult_adds, 1)
        seconds = 0.0 if started is None else time.monotonic() - started
        judged.tried = Tried(name, stage, ensemble.size, chosen_by, figures, factor, seconds)
        self.table.append(judged.tried)
        reached = "" if self.goal == "likelihood" else f", {GOALS[self.goal]} {self.loss(judged, 'judge'):.4f}"
        self.say(f"{name}, {stage}: NLL {figures['nll']:.4f}{reached}")
        if name == NETWORK:
            self.judged[SCALED if stage == "at once" else TUNED] = judged
        if BEST not in self.judged or chosen_by < self.judged[BEST].tried.chosen_by:
            # It may be trained further: what is kept is as it was judged.
            self.judged[BEST] = replace(judged, ensemble=duplicate(ensemble))  # type: ignore[arg-type]

    def wrong(self, judged: _Judged, part: str) -> Tensor:
        """Which answers of a part are wrong."""
        return (judged.predicted[part].label != self.held.targets[part]).double()

    def loss(self, judged: _Judged, part: str, rows: Any = slice(None), others: Any = slice(None)) -> float:
        """What the goal is to make low, on some rows of a part and, for "ood", of its half of the outside data."""
        score = judged.scores[part][rows]
        if self.goal == "ood":
            return 1 - auroc(score, judged.scores[f"outside {part}"][others])
        return aurc(score, self.wrong(judged, part)[rows])

    def finish(self, network: Ensemble, coverage: float, risk: float) -> Upgrade:
        """The best against the network itself, and everything that stands around what answers."""
        base, best, targets = self.judged[SCALED], self.judged[BEST], self.held.targets
        gains = {} if best.tried is base.tried else self._gains(best)
        enough = is_enough(gains)
        answering = base if enough else best
        notes: list[str] = []
        ensemble = network if enough else best.ensemble
        frozen = _try(lambda: freeze(ensemble, self.given.x), notes, REFUSALS)
        notes = [*filter(None, [self.held.leak()]), *(f"It was not frozen: {note}" for note in notes)]
        calibrated = replace(answering.calibrated, ensemble=frozen or ensemble)
        promised, scores = calibrated.apply(answering.predicted["promise"]), answering.scores["promise"]
        scaling = calibrated.scaling
        scale = scaling.factor if isinstance(scaling, Variance) else scaling.value
        evidence = _try(lambda: evidence_of(promised, targets["promise"], scale), notes)
        promise = None if evidence is None else _try(lambda: evidence.conformal(coverage), notes)
        by = scores if self.goal == "abstain" and answering.distance is not None else "msp"
        threshold = None
        if not isinstance(promised, Regression):
            threshold = _try(lambda: abstain(promised, targets["promise"], risk, score=by), notes)
        limit = _limit(scores) if "outside judge" in answering.scores else None
        name, rows = f"{best.tried.name}, {best.tried.stage}", {name: len(rows) for name, rows in targets.items()}
        return Upgrade(name, enough, ensemble, frozen, calibrated, promise, threshold, gains, self.table, notes, rows,
                       self.goal, answering.distance, limit, evidence)  # fmt: skip

    def _gains(self, best: _Judged) -> dict[str, Comparison]:
        """How much lower the goal's metric of the best is than the network's as it is, scaled, and fine-tuned."""
        own = {name: one for name, one in self.judged.items() if name != BEST and one.tried is not best.tried}
        if self.goal != "likelihood":
            return {
                name: self._compare_losses(best, other) for name, other in {NETWORK: self.judged[SCALED], **own}.items()
            }
        others = {NETWORK: self.judged[SCALED].predicted["judge"], **{name: one.scaled() for name, one in own.items()}}
        found, target = best.scaled(), self.held.targets["judge"]
        return {name: compare(found, other, target, metric="nll") for name, other in others.items()}

    def _compare_losses(self, first: _Judged, second: _Judged) -> Comparison:
        """The difference of the goal's metric on the rows that judge, by a paired bootstrap."""
        generator = torch.Generator().manual_seed(self.given.seed)
        rows, others = len(first.scores["judge"]), len(first.scores.get("outside judge", ()))
        drawn = []
        for _ in range(RESAMPLES):
            some = [torch.randint(max(count, 1), (count,), generator=generator) for count in (rows, others)]
            drawn.append(self.loss(first, "judge", *some) - self.loss(second, "judge", *some))
        value, low, high = percentile_interval(self.loss(first, "judge") - self.loss(second, "judge"), drawn)
        below = sum(one <= 0 for one in drawn) / RESAMPLES
        return Comparison(value, low, high, min(1.0, 2 * min(below, 1 - below) + 1 / RESAMPLES))


def is_enough(gains: Mapping[str, Comparison]) -> bool:
    """Whether no gain is shown over the network as it is, or over the network with its scale fitted."""
    return not gains or not all(gains[name].high < 0 for name in (NETWORK, SCALED))


BEST = "best"

RESAMPLES = 500

SCALING = {"method": "temperature", "when": "before"}  # before pooling: members keep their disagreement


# ---------------------------------------------------------------- held-out rows


class _HeldOut:
    """The validation rows, divided; every ensemble sees the same ones in the same order."""

    def __init__(
        self, validation: Any, test: Any, outside: Any, batch_size: int, device: Any, seed: int, network: Ensemble
    ):
        self.device = device
        self.order: dict[str, Tensor] = {}  # the targets of each source, in their order
        self.sources = {"validation": loader(validation, batch_size)}
        if test is not None:
            self.sources["test"] = loader(test, batch_size)
        found = {name: self._observe(name, network) for name in self.sources}
        for name, source in self.sources.items():
            self._check_order(name, torch.cat([torch.as_tensor(pair_of(batch)[1]) for batch in source]))
        targets = self.order["validation"]
        if len(targets) < LEAST:
            raise ValueError(
                f"upgrade: the validation data must have at least {LEAST} rows, to choose, to calibrate and to "
                f"evaluate, but has {len(targets)}."
            )
        classes = not isinstance(found["validation"], Regression) and targets.ndim == 1
        shares = [SHARES["choose"], SHARES["promise"]] if test is None else [SHARES["choose"] + SHARES["judge"]]
        self.rows = dict(zip(SHARES, divide(targets, shares, seed, stratified=classes), strict=False))
        self.targets = {name: targets[rows] for name, rows in self.rows.items()}
        if test is not None:
            self.targets["judge"] = self.order["test"]
        if outside is not None:
            outside = (outside, torch.zeros(len(outside))) if isinstance(outside, Tensor) else outside
            self.sources["outside"] = loader(outside, batch_size)
            found["outside"] = self._observe("outside", network)
        self.first = self._divide(found)

    def predict(self, ensemble: Ensemble) -> dict[str, Any]:
        """What the ensemble says of the rows of each part."""
        return self._divide({name: self._observe(name, ensemble) for name in self.sources})

    def distances(self, distance: FeatureDistance) -> dict[str, Tensor]:
        """The distance of every row, by part."""
        return self._divide({name: distance.score(source) for name, source in self.sources.items()})

    def leak(self) -> str:
        """A note where the network is much surer of validation rows than of test rows: it may have trained on them."""
        if "test" not in self.sources:
            return ""
        found = {name: self.first[name].log_likelihood(self.targets[name]).double() for name in self.targets}
        parts = [torch.cat([found["choose"], found["promise"]]), found["judge"]]
        gap = parts[0].mean() - parts[1].mean()
        error = sum(part.var() / len(part) for part in parts) ** 0.5
        if not gap > SURER * error:
            return ""
        return (
            f"The network's NLL is {-parts[0].mean():.3g} on validation rows and {-parts[1].mean():.3g} on test rows: "
            "was it trained on the validation rows? Then no promise holds. Give rows that it has not seen."
        )

    def _divide(self, found: dict[str, Any]) -> dict[str, Any]:
        """By part: of the outside data one half chooses, the other judges."""
        parts = {name: found["validation"][rows] for name, rows in self.rows.items()}
        parts |= {"judge": found["test"]} if "test" in found else {}
        if "outside" in found:
            parts |= {"outside choose": found["outside"][::2], "outside judge": found["outside"][1::2]}
        return parts

    def _observe(self, name: str, ensemble: Ensemble) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # of dropout
            found, targets = join_observed(observe("upgrade", ensemble, self.sources[name], device=self.device))
        self._check_order(name, targets)
        return found

    def _check_order(self, name: str, targets: Tensor) -> None:
        first = self.order.setdefault(name, targets)
        if not torch.equal(first.nan_to_num(), targets.to(first.dtype).nan_to_num()):
            raise ValueError(
                f"upgrade: the {name} data must give the same rows in the same order each time, but does not. Give "
                "(x, y), a data set, or a loader that does not shuffle."
            )


SURER = 3.0  # standard errors


def _choose_ways(methods: Sequence[str] | None, goal: str) -> dict[str, Way]:
    known = {name: way for name, way in ways().items() if goal != "likelihood" or not way.distance}
    for name in methods or ():
        if name not in known:
            raise ValueError(f"upgrade: the method {name!r} is unknown. Choose from {', '.join(known)}.")
    return known if methods is None else {name: known[name] for name in methods}


def _limit(scores: Tensor) -> float:
    """What at most 5 % of rows like these exceed: the conformal quantile, infinite for fewer than 19 rows."""
    rank = math.ceil((len(scores) + 1) * (1 - FALSE_ALARMS))
    return scores.sort().values[rank - 1].item() if rank <= len(scores) else math.inf


FALSE_ALARMS = 0.05


def _try(find: Callable[[], Found], notes: list[str], refusals: Any = (ValueError, TypeError)) -> Found | None:
    """What is found, or a note of why it cannot be."""
    try:
        return find()
    except refusals as error:
        notes.append(first_line(error))
        return None


UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}

ENDLESS = 1_000_000  # epochs, where time ends training


@dataclass
class Budget:
    """Epochs for each training, or seconds for all of them from the first one on.

    >>> Budget.of(3).epochs, Budget.of("1.5h").seconds
    (3, 5400.0)
    """

    epochs: int | None = None
    seconds: float | None = None
    started: float | None = field(default=None, repr=False)

    @classmethod
    def of(cls, value: Any) -> Budget:
        """From a whole number of epochs, a time such as "90s", "20min" or "1.5h", or a timedelta."""
        if isinstance(value, timedelta):
            value = f"{value.total_seconds()}s"
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(epochs=value)
        if isinstance(value, str):
            found = re.fullmatch(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(UNITS)})?\s*", value)
            if found and not found[2] and found[1].isdigit():
                return cls(epochs=int(found[1]))
            if found and found[2] and float(found[1]) > 0:
                return cls(seconds=float(found[1]) * UNITS[found[2]])
        raise ValueError(
            "upgrade: budget must be a whole number of epochs per method (0: no fine-tuning), or a time for all of "
            f'them, such as "20min" or "1.5h", but it is {value!r}.'
        )

    def options(self, left: int) -> dict[str, Any]:
        """Arguments of `fit` for the next of so many trainings that are left: an equal share of the time that is."""
        if self.epochs is not None:
            return {"epochs": self.epochs}
        from lightning.pytorch.callbacks import Timer

        assert self.seconds is not None
        now = time.monotonic()
        self.started = now if self.started is None else self.started
        share = max(self.seconds - (now - self.started), 0.0) / left
        timer = Timer(timedelta(seconds=max(share, 0.001)), interval="step", verbose=False)
        return {"epochs": ENDLESS, "callbacks": [timer]}
