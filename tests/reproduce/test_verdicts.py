"""Rules of judgement, against hand-made intervals and scipy."""

import math

import numpy as np
import pytest
import scipy.stats

from pluribus import landscape as ls
from pluribus.reproduce.parts import Context
from pluribus.reproduce.registry import CLAIMS
from pluribus.reproduce.running import scope_of
from pluribus.reproduce.studies import Compared
from pluribus.results.intervals import t_interval
from pluribus.results.judgements import FAILS, HOLDS, OPEN, above, all_of, below, equal, most_of
from pluribus.results.store import Group, Result
from pluribus.uncertainty.resampling import Interval


def test_a_bar_is_passed_only_where_the_interval_leaves_it_out():
    assert above(Interval(2, 1, 3), 0.5) == HOLDS
    assert above(Interval(2, 1, 3), 1.5) == OPEN
    assert above(Interval(2, 1, 3), 4) == FAILS
    assert below(Interval(2, 1, 3), 4) == HOLDS
    assert below(Interval(2, 1, 3), 0.5) == FAILS
    assert above(Interval(2.0)) == below(Interval(2.0)) == OPEN


def test_equal_means_within_the_margin_and_not_merely_not_different():
    assert equal(Interval(0.1, -0.2, 0.4), 0.5) == HOLDS
    assert equal(Interval(0.1, -0.9, 1.1), 0.5) == OPEN
    assert equal(Interval(0.3, 0.1, 0.45), 0.5) == HOLDS  # told from zero, and still small
    assert equal(Interval(-2, -3, -1), 0.5) == FAILS
    assert equal(Interval(0.1), 0.5) == OPEN


def test_several_parts_in_one():
    assert all_of([HOLDS, HOLDS]) == HOLDS
    assert all_of([HOLDS, OPEN]) == OPEN
    assert all_of([OPEN, FAILS]) == FAILS
    assert all_of([]) == OPEN
    assert most_of([HOLDS] * 5 + [FAILS] * 4) == HOLDS
    assert most_of([HOLDS] * 4 + [FAILS] * 5) == FAILS
    assert most_of([HOLDS] * 4 + [OPEN] * 4 + [FAILS]) == OPEN


def test_the_interval_over_splits_is_that_of_nadeau_and_bengio():
    values = np.random.default_rng(0).normal(0.3, 1.0, 20)
    found = t_interval(values.tolist(), overlap=1 / 9)
    plain = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    widening = math.sqrt((1 / 20 + 1 / 9) / (1 / 20))
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx((plain.high - plain.low) * widening)


def test_differences_between_methods_are_intervals_over_seeds_alone():
    generator = np.random.default_rng(0)

    def group(label, values):
        columns = {"test/target": np.arange(90) % 3, "test/log_likelihood": generator.normal(-1, 1, 90)}
        metrics = [{"nll": {"value": value}} for value in values]
        runs = [
            Result({"seed": i, "metrics": one, "method": label, "task": "classification"}, columns)
            for i, one in enumerate(metrics)
        ]
        return Group(label, tuple(runs))

    first, second = [0.41, 0.44, 0.40, 0.46], [0.5, 0.47, 0.48, 0.49]
    found = Compared({"a": group("a", first), "b": group("b", second)}).difference("a", "b", "nll")
    wanted = scipy.stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))


class Everything(ls.Measured):
    """Any metric of the settings that there are, drawn at random."""

    def values(self, setting, figure):
        if setting not in self.settings:
            raise ValueError(f"{setting} is not run")
        return np.random.default_rng(sum(map(ord, f"{setting}{figure}"))).uniform(0.1, 1, 3).tolist()


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if hasattr(claim.experiment, "studies")])
def test_every_part_of_a_claim_is_about_settings_that_are_run(name, scale, tmp_path):
    """So that each item has a verdict with a scope: no part is inconclusive for want of a setting."""
    claim, labels = CLAIMS[name], {}
    for study in claim.experiment.studies(Context(scale, tmp_path)):
        network = study.model.partition("?")[0]
        where = "" if claim.experiment.merge else f"{study.data}, {network}"
        for run in study.runs():
            label = run.method if run.method in claim.experiment.choose else run.label
            labels.setdefault(where, []).append(f"{label}, {network}" if claim.experiment.merge else label)
    found = {where: Everything([{"setting": label} for label in own]) for where, own in labels.items()}
    said = claim.judge(found).found
    parts = [line for line in said if line.endswith((", holds.", ", does not hold.", ", inconclusive."))]
    assert parts and all("[" in line for line in parts), parts
    assert " on " in scope_of(claim, scale) and scope_of(claim, scale).endswith("seeds")
