"""A trained network and data by name, upgraded to a predictor: `pluribus upgrade`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.dataset import Data, NormalisedSplit
from ..deploy.predictor import RECORD, Predictor, make_predictor
from ..deploy.promises import ROWS, promises
from ..study.baselines import check_run, model_spec, start_network
from ..study.judging import summarise
from ..study.run import load_one_target
from ..study.settings import Run
from ..uncertainty.evaluation import evaluate
from ..upgrading.outcome import Upgrade
from ..upgrading.search import upgrade
from ..upgrading.ways import ways


def upgrade_predictor(
    conditions: Mapping[str, Any],
    data: str,
    model: str,
    budget: Any,
    *,
    goal: str = "likelihood",
    size: int = 4,
    methods: Sequence[str] | None = None,
    coverage: float = 0.9,
    risk: float = 0.05,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Predictor, Upgrade, list[str]]:
    """The predictor of the upgraded network, what was found, and what is to be said of the data.

    Args:
        conditions: of `Run`: where the data is, and the weights
        budget, goal: as for `upgrade`; the test rows of the data are those that judge
    """
    run = Run(data=data, model=model, seed=seed, **conditions)
    found = load_one_target("upgrade", run)
    if not len(found.validation):
        raise ValueError(
            f"upgrade: {data} has no validation rows, which choosing and guaranteeing need. Give --validation 0.2."
        )
    check_run(run, found)
    if goal == "abstain" and methods is None:  # a predictor accepts answers by its threshold of confidence
        methods = [name for name, way in ways().items() if not way.distance]
    if goal == "ood" and not found.outside:
        raise ValueError("upgrade: --goal ood needs data unlike the training data. Give --outside.")
    parts = {name: NormalisedSplit(getattr(found, name), found) for name in ("train", "validation", "test")}
    training = {name: run.training[name] for name in ("lr", "batch_size") if name in run.training}
    upgraded = upgrade(
        start_network(run, found), parts["train"], parts["validation"], budget, size=size, methods=methods, goal=goal,
        outside=_Outside(found) if goal == "ood" else None,
        task="classification" if found.classes else "gaussian", test=parts["test"], coverage=coverage, risk=risk,
        device=None if run.device == "cpu" else run.device, seed=seed, say=say, **training,
    )  # fmt: skip
    figures = evaluate(summarise(upgraded.ensemble, found, found.test, upgraded.evidence))
    about = {"method": upgraded.ensemble.method, "data": data, "figures": figures, "run": run.plain()}
    predictor = make_predictor(model_spec(run, found), found, upgraded.ensemble, about, promise=False)
    predictor.record |= _around(upgraded, coverage, risk)
    predictor.distance = upgraded.distance
    return predictor, upgraded, [*found.notes]


class _Outside:
    """Batches of all outside data, normalised, as often as asked."""

    def __init__(self, data: Data):
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for split in self.data.outside.values():
            yield from ((self.data.normalise(x), y) for x, y in split.batches(ROWS))


def check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder in which another predictor would be replaced."""
    if (folder / RECORD).exists() and not overwrite:
        raise ValueError(
            f"upgrade: {str(folder)!r} holds a trained ensemble. Choose another --out, or replace it with --overwrite."
        )


def _around(upgraded: Upgrade, coverage: float, risk: float) -> dict[str, Any]:
    """The scale, what is promised and the limit of the distance as plain values."""
    found: dict[str, Any] = {}
    if (evidence := upgraded.evidence) is not None:
        found = {"evidence": evidence.plain(), "scale": evidence.scale, **promises(evidence, coverage, risk)}
    if (distance := upgraded.distance) is not None and upgraded.limit is not None:
        kept = {name: getattr(distance, name) for name in ("kind", "head", "neighbours")}
        found["distance"] = {**kept, "limit": upgraded.limit}
    return found
