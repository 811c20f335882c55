"""A seed reaches everything that is drawn: the same item with two seeds starts from two networks."""

import dataclasses

import numpy as np
import pytest
import torch

from pluribus.core.ensemble import Ensemble
from pluribus.landscape import cycles
from pluribus.reproduce import uci
from pluribus.reproduce.parts import Context, _compute_timed, _Task
from pluribus.reproduce.registry import CLAIMS
from pluribus.study.run import compute
from pluribus.training import fitting

EXPERIMENTS = {claim.experiment.name: claim.experiment for claim in CLAIMS.values() if not claim.exact}
STUDIES = {name: one for name, one in EXPERIMENTS.items() if hasattr(one, "studies")}
IN_PARTS = {name: one for name, one in EXPERIMENTS.items() if name not in STUDIES}


class Started(Exception):  # noqa: N818
    """Training is about to begin."""


@pytest.fixture
def starts(monkeypatch):
    """The weights of every network whose training begins; it does not go on unless `starts.goes_on`."""
    found = Starts()
    fit = fitting._fit

    def note(module):
        module = module.module if isinstance(module, Ensemble) else module
        found.append({name: p.detach().clone() for name, p in module.named_parameters() if p.ndim > 1})
        if not found.goes_on:
            raise Started

    def fit_noted(trainer, module, *rest):
        note(module.ensemble)
        return fit(trainer, module, *rest)

    monkeypatch.setattr(fitting, "_fit", fit_noted)
    monkeypatch.setattr(uci, "train_stacked_", lambda ensemble, *args, **kwargs: note(ensemble))
    monkeypatch.setattr(cycles, "statistics_layers", lambda module: note(module) or [])
    return found


class Starts(list):
    goes_on = False


def all_differ(first, second) -> bool:
    """Whether no matrix or filter of one network is the other's; constants, as scales of 1 in stacks, do not count."""
    drawn = [name for name, weight in first.items() if weight.std() > 0]
    return bool(drawn) and all(not torch.equal(first[name], second[name]) for name in drawn)


def begin(starts, work) -> dict:
    starts.clear()
    with pytest.raises(Started):
        work()
    return starts[0]


@pytest.mark.parametrize("name", STUDIES)
def test_runs_of_a_study_that_differ_by_their_seed_start_from_two_networks(name, starts, tmp_path):
    for study in STUDIES[name].studies(Context("smoke", tmp_path)):
        firsts = {run.method: run for run in reversed(study.runs())}
        for run in firsts.values():
            one, other = (
                begin(starts, lambda seed=seed, run=run: compute(dataclasses.replace(run, seed=seed)))
                for seed in (0, 1)
            )
            assert all_differ(one, other), run.label


@pytest.mark.parametrize("name", IN_PARTS)
def test_parts_of_an_experiment_that_differ_by_their_seed_start_from_two_networks(name, starts):
    experiment, pairs = IN_PARTS[name], 0
    for part in experiment.plan("smoke"):
        if part.settings.get("seed", 1):
            continue
        twins = part, dataclasses.replace(part, settings={**part.settings, "seed": 1})
        one, other = (
            begin(starts, lambda twin=twin: _compute_timed(experiment.compute, _Task(twin, None, {}))) for twin in twins
        )
        assert all_differ(one, other), part.name
        again = begin(starts, lambda twin=twins[0]: _compute_timed(experiment.compute, _Task(twin, None, {})))
        assert all(torch.equal(weight, again[key]) for key, weight in one.items())
        pairs += 1
    assert pairs or name in INSIDE, name


INSIDE = ("masks-transition", "mimo-bias", "uci", "packed-sparsity")  # whose seeds are inside of a part, or none


@pytest.mark.slow
def test_the_seeds_of_figure_4_of_masksembles_start_from_two_networks(starts):
    starts.goes_on = True
    experiment = EXPERIMENTS["masks-transition"]
    part = next(part for part in experiment.plan("smoke") if part.name == "grid")
    _compute_timed(experiment.compute, _Task(part, None, {}))
    assert len(starts) == 6 * 2 == 6 * part.settings["seeds"]  # one network, four overlaps, independent networks
    for first, second in zip(starts[:6], starts[6:], strict=True):
        assert any(first[name].shape != second[name].shape for name in first) or all_differ(first, second)


def test_the_repeats_of_figure_2_of_mimo_are_networks_of_their_own():
    experiment = EXPERIMENTS["mimo-bias"]
    (part,) = experiment.plan("smoke")
    (_, columns), _ = _compute_timed(experiment.compute, _Task(part, None, {}))
    said = columns["predictions"]
    repeats = said.shape[1] if said.shape[1] == part.settings["repeats"] else said.shape[0]
    assert repeats == part.settings["repeats"]
    first, second = (said.take(i, axis=1 if said.shape[1] == repeats else 0) for i in (0, 1))
    assert float(np.abs(first - second).min(axis=-1).max()) > 0


def test_splits_of_a_table_start_from_two_networks(starts):
    experiment = EXPERIMENTS["uci"]
    for settings in ({"table": "diabetes", "kind": kind, "hidden": 20} for kind in ("deep", "packed")):
        one, other = (
            begin(starts, lambda first=first, settings=settings: uci._judge(
                {**settings, "first": first, "last": first + 1}, uci.Hyperparameters(0.01, 1, 0.0), None))
            for first in (0, 1)
        )  # fmt: skip
        assert all_differ(one, other)
    assert experiment.plan("smoke")


@pytest.mark.parametrize("name", ["mimo-members", "mimo-sparsity-path"])
def test_members_of_mimo_start_apart_in_a_body_that_follows_the_seed(name, starts):
    """Members: their slices of the first and the last layer, cut out of the weights by hand."""
    experiment = EXPERIMENTS[name]
    part = experiment.plan("smoke")[0]
    settings = {**part.settings, "model": "resnet20", **({"sizes": [3]} if "sizes" in part.settings else {})}
    twins = [dataclasses.replace(part, settings={**settings, "seed": seed}) for seed in (0, 1)]
    one, other = (
        begin(starts, lambda twin=twin: _compute_timed(experiment.compute, _Task(twin, None, {}))) for twin in twins
    )
    weights = list(one.values())
    assert len(weights) > 2 and all_differ(one, other)
    for whole, dim in ((weights[0], 1), (weights[-1], 0)):
        pieces = whole.chunk(3, dim)
        assert all(not torch.equal(pieces[i], pieces[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
