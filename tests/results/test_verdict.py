"""The verdict: intervals as other libraries give them, and no word that an interval does not bear."""

import math
import re

import fakes
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import pluribus as pb
from pluribus import metrics
from pluribus.results.comparison_phrases import relation
from pluribus.results.intervals import Spread, bootstrap_interval, t_interval
from pluribus.results.quantities import (
    difference,
    estimate,
    format_fixed,
    format_interval,
    format_short,
    format_value,
    value,
)
from pluribus.results.store import Group, Result, group_runs
from pluribus.results.verdict import one_pass, verdicts
from pluribus.uncertainty.resampling import Interval


def run(label: str, nll: float, seed: int = 0, **more: object) -> Result:
    """A run without columns whose NLL is known."""
    record = fakes.classification(label, seed=seed, examples=20, shift=False, outside=False).record
    return Result({**record, "metrics": {"nll": {"value": nll, "low": None, "high": None}}, **more})


def runs(**nlls: list[float]) -> list[Result]:
    return [run(label, nll, seed) for label, values in nlls.items() for seed, nll in enumerate(values)]


def texts(results: list[Result]) -> list[str]:
    (found,) = verdicts(results)
    return [sentence.text for sentence in found.sentences]


CLEAR = {
    "single": [0.200, 0.205, 0.203, 0.198],
    "deep": [0.110, 0.114, 0.112, 0.109],
    "packed": [0.113, 0.112, 0.115, 0.110],
    "mimo": [0.250, 0.251, 0.255, 0.247],
}


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 10, 29, 100])
@pytest.mark.parametrize("level", [0.01, 0.4, 0.8, 0.95, 0.999])
def test_the_t_interval_is_that_of_scipy(degrees, level):
    values = np.random.default_rng(degrees).normal(size=degrees + 1)
    expected = scipy.stats.t.interval(level, degrees, values.mean(), scipy.stats.sem(values))
    assert t_interval(values, level)[1:] == pytest.approx(expected, rel=1e-9)


def test_the_interval_over_seeds_is_that_of_a_paired_t_test():
    groups = group_runs(runs(**CLEAR))["digits", "lenet"]
    deep, packed = (next(group for group in groups if group.label == name) for name in ("deep", "packed"))
    expected = scipy.stats.ttest_rel(CLEAR["packed"], CLEAR["deep"]).confidence_interval(0.95)
    found = difference(packed, deep, "nll")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    mean = scipy.stats.t.interval(0.95, 3, np.mean(CLEAR["deep"]), scipy.stats.sem(CLEAR["deep"]))
    assert estimate(deep, "nll")[1:] == pytest.approx(mean)


def test_the_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(0).exponential(size=200)
    found = bootstrap_interval(lambda weights: weights @ values / weights.sum(1), 200)
    other = scipy.stats.bootstrap((values,), np.mean, method="percentile", n_resamples=4000, rng=1)
    assert found.value == pytest.approx(values.mean())
    assert found[1:] == pytest.approx(other.confidence_interval, abs=0.02)


@pytest.mark.parametrize("name", ["nll", "accuracy", "ece"])
def test_with_one_seed_the_difference_is_that_of_the_metrics_and_has_an_interval(name):
    pair = [fakes.classification(label, skill=skill) for label, skill in (("single", 3.0), ("deep", 3.3))]
    groups = [Group(one.record["label"], (one,)) for one in pair]
    found = difference(groups[1], groups[0], name)
    functions = {
        "nll": lambda c: metrics.nll(c["test/log_likelihood"]),
        "accuracy": lambda c: metrics.accuracy(c["test/label"], c["test/target"]),
        "ece": lambda c: metrics.ece(c["test/confidence"], c["test/label"] == c["test/target"]),
    }
    expected = functions[name](pair[1].columns) - functions[name](pair[0].columns)
    assert found.value == pytest.approx(expected, abs=1e-6) and found.low < found.value < found.high


def test_the_difference_of_errors_in_regression_is_bootstrapped_too():
    pair = [fakes.regression(label, noise=noise) for label, noise in (("single", 0.4), ("deep", 0.2))]
    found = difference(*(Group(one.record["label"], (one,)) for one in reversed(pair)), "rmse")
    errors = [math.sqrt(np.mean((r.columns["test/mean"] - r.columns["test/target"]) ** 2)) for r in pair]
    assert found.value == pytest.approx(errors[1] - errors[0]) and found.high < 0


def test_other_test_examples_are_not_paired():
    pair = [fakes.classification(label) for label in ("single", "deep")]
    pair[1].columns["test/target"] = np.roll(pair[1].columns["test/target"], 1)
    assert not difference(*(Group(one.record["label"], (one,)) for one in pair), "nll").known


def simulate(seeds: int, training: float, mean: float = 0.0, trials: int = 400, rows: int = 60):
    """Differences of two methods on the same rows: a row's own, a seed's own, and noise; all in plain numpy.

    The standard error over rows of one seed's difference is 1; that of `training` is in the same unit.
    """
    generator = np.random.default_rng(seeds)
    for _ in range(trials):
        of_rows = generator.normal(0, math.sqrt(rows / 2), (rows, 1))
        noise = generator.normal(0, math.sqrt(rows / 2), (rows, seeds))
        table = mean + generator.normal(0, training, seeds) + of_rows + noise
        drawn = generator.integers(rows, size=(100, rows))
        yield table.mean(0), table[drawn].mean(1)


def cover(seeds: int, training: float) -> float:
    found = [Spread.over(*one).interval() for one in simulate(seeds, training)]
    return float(np.mean([one.low <= 0 <= one.high for one in found]))


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 10])
def test_intervals_cover_what_they_say_where_training_varies_as_much_as_the_rows(seeds):
    assert cover(seeds, training=0.0) >= 0.94 and cover(seeds, training=1.0) >= 0.93


@pytest.mark.parametrize(("seeds", "least"), [(1, 0.80), (2, 0.84), (3, 0.87), (5, 0.89), (10, 0.91)])
def test_coverage_falls_and_comes_back_with_seeds_where_training_varies_twice_as_much(seeds, least):
    assert least <= cover(seeds, training=2.0) <= 0.98


def test_a_t_interval_over_seeds_leaves_the_rows_out():
    means = [one[0] for one in simulate(10, training=0.0)]
    plain = [t_interval(values.tolist()) for values in means]
    assert np.mean([one.low <= 0 <= one.high for one in plain]) < 0.8 < 0.93 < cover(10, training=0.0)


def test_more_seeds_have_more_power():
    power = []
    for seeds in (1, 2, 3, 5, 10):
        found = [Spread.over(*one).interval() for one in simulate(seeds, training=1.0, mean=4.0)]
        power.append(np.mean([one.low > 0 for one in found]))
    assert power[0] > 0.6 and power[2] > 0.9 and power == sorted(power)


def test_seeds_that_agree_do_not_turn_a_verdict_round():
    """One seed is better by 0.40 with the bootstrap interval [0.23, 0.61]; the next by 0.53, then by 1.23."""
    rows = np.random.default_rng(0).normal(0, 0.097, (1000, 1))
    gaps = np.array([0.40, 0.53, 1.23])
    for seeds in (1, 2, 3):
        found = Spread.over(gaps[:seeds], gaps[:seeds] + rows).interval()
        assert found.low > 0, (seeds, found)
    assert t_interval(gaps).low < 0  # the interval over seeds alone


def test_no_interval_has_no_width():
    pair = [fakes.classification(label) for label in ("single", "deep")]
    for one in pair:
        one.columns["test/label"] = one.columns["test/target"].copy()
        one.record["metrics"]["accuracy"] = {"value": 1.0, "low": 1.0, "high": 1.0}
    rows = len(pair[0].columns["test/target"])
    lowest = scipy.stats.binomtest(rows, rows).proportion_ci(method="exact").low
    groups = [Group(one.record["label"], (one,)) for one in pair]
    assert estimate(groups[0], "accuracy") == pytest.approx((1.0, lowest, 1.0))
    assert difference(*groups, "accuracy") == pytest.approx((0.0, lowest - 1, 1 - lowest))
    same = Group("copy", (Result({**pair[0].record, "label": "copy"}, pair[0].columns),))
    found = difference(same, groups[0], "nll")
    assert found.value == 0 and not found.known and relation(found, "nll") == "within noise"


def test_no_interval_leaves_the_range_of_its_metric():
    one = fakes.classification("single")
    one.record["metrics"]["ece"] = {"value": 0.002, "low": -0.03, "high": 0.06}  # bootstraps less their bias
    assert estimate(Group("single", (one,)), "ece") == (0.002, 0.0, 0.06)
    runs = [Result({**one.record, "seed": seed, "metrics": {"ece": {"value": seed / 2}}}, {}) for seed in (0, 1)]
    assert estimate(Group("single", tuple(runs)), "ece") == (0.25, 0.0, 1.0)  # by Student's t to 3.4


def test_a_hundred_right_of_a_hundred_is_not_certain():
    right = pb.Classification.from_probabilities(torch.eye(2)[None, torch.arange(100) % 2])
    found = pb.bootstrap(right, torch.arange(100) % 2)
    assert found == pytest.approx((1.0, 0.9638, 1.0), abs=1e-4)
    assert pb.bootstrap(right, 1 - torch.arange(100) % 2) == pytest.approx((0.0, 0.0, 1 - 0.9638), abs=1e-4)


def test_a_clear_gain_that_is_too_small_for_its_cost_is_no_practical_difference():
    values = {"single": [0.2000, 0.2001, 0.2002], "deep": [0.1990, 0.1991, 0.1993], "packed": [0.1991, 0.1991, 0.1993]}
    (found,) = verdicts([run(label, nll, seed) for label, nlls in values.items() for seed, nll in enumerate(nlls)])
    said = [sentence.text for sentence in found.sentences]
    (small,) = [text for text in said if text.startswith("No practical difference")]
    assert "less than 0.002: deep (better by 0.001" in small and "at 4x the cost" in small
    assert found.recommended == "packed"  # at 1.1x the cost, any gain is welcome


def test_equal_differences_in_every_seed_do_not_make_an_interval_of_no_width():
    groups = group_runs(runs(single=[0.25, 0.5], deep=[0.125, 0.375]))["digits", "lenet"]
    found = difference(groups[1], groups[0], "nll")
    assert found.value == pytest.approx(-0.125) and not found.known


def test_the_advice_comes_first_the_cheapest_that_matches_the_best_with_its_gain_and_cost():
    assert texts(runs(**CLEAR))[0] == "Use packed: NLL 0.113, down from 0.202 for a single network, at 1.1x the cost."


def test_what_is_shown_to_be_worse_than_the_best_is_not_advised_though_it_is_cheaper():
    found = texts(runs(**{**CLEAR, "packed": [0.150, 0.152, 0.151, 0.149]}))
    assert found[0] == "Use deep: NLL 0.111, down from 0.202 for a single network, at 4x the cost."


def test_every_method_that_beats_the_single_network_is_named_with_gain_and_cost():
    (found,) = [text for text in texts(runs(**CLEAR)) if text.startswith("Better than")]
    number = r"0\.0\d+ \[0\.0\d+, 0\.\d+\], at"
    assert re.fullmatch(
        rf"Better than the single network \(NLL 0.202\): deep by {number} 4x the cost; packed by {number} 1\.1x the "
        "cost.",
        found,
    )


def test_what_is_within_noise_of_the_winner_is_said_with_its_share_of_the_cost():
    found = "Statistically tied with the best, deep: packed (difference 0.001 [−0.003, 0.005], 27 % of its cost)."
    assert found in texts(runs(**CLEAR))


def test_a_large_difference_that_few_seeds_do_not_show_is_not_called_equal():
    found = texts(runs(single=[0.20, 0.21], deep=[0.10, 0.112], mimo=[0.3, 0.6]))
    (said,) = [text for text in found if text.startswith("Inconclusive")]
    assert re.match(
        r"Inconclusive against the single network \(NLL 0\.2\d*\): mimo looks worse, 0\.45 \(about \d+ seeds should",
        said,
    )
    assert not any("No clear difference" in text and "mimo" in text for text in found)


@pytest.mark.parametrize("gaps", [[1.0, 2.0, 3.0], [0.2, 1.0], [-0.3, 0.1, -0.2, -0.25]])
def test_so_many_seeds_with_the_same_mean_and_spread_would_settle_it(gaps):
    mean, spread = np.mean(gaps), np.std(gaps, ddof=1)
    half = {n: scipy.stats.t.ppf(0.975, n - 1) * spread / np.sqrt(n) for n in range(2, 21)}
    expected = next((n for n in half if n > len(gaps) and half[n] < abs(mean)), None)
    assert Spread.over(gaps).seeds_to_settle() == expected


def test_one_seed_or_equal_means_are_settled_by_no_number_of_seeds():
    assert Spread.over([0.1]).seeds_to_settle() is None
    assert Spread.over([-1.0, 1.0]).seeds_to_settle() is None
    assert Spread.over([0.01, 1.0, -1.0]).seeds_to_settle() is None


def test_the_advice_names_the_best_for_one_pass_and_the_best_of_all():
    budget = [one.text for one in verdicts(runs(**CLEAR))[0].sentences if one.topic == "budget"]
    assert budget[0].startswith("Best at single-network cost (up to 1.25x its mult-adds and time): packed, NLL 0.11")
    assert budget[1].startswith("Best at any cost: deep, NLL 0.111")


def test_where_nothing_beats_the_single_network_that_is_said():
    assert texts(runs(single=[0.2, 0.21], deep=[0.3, 0.32]))[0].startswith(
        "Keep the single network: it has the lowest NLL, 0.2"
    )
    found = texts(runs(single=[0.20, 0.21, 0.19], deep=[0.19, 0.22, 0.18], packed=[0.30, 0.33, 0.31]))
    assert found[0] == "Keep the single network: no method is clearly better than its NLL of 0.20."
    assert any(
        text.startswith("At single-network cost (up to 1.25x its mult-adds and time), no method") for text in found
    )


def test_a_wide_interval_is_not_called_a_match():
    found = texts(runs(single=[0.20, 0.21, 0.20], deep=[0.18, 0.19, 0.185], packed=[0.1, 0.3, 0.2]))
    assert not any("tied" in text and "packed" in text for text in found)
    assert any(text.startswith("No clear difference from the best, deep: packed") for text in found)


@given(st.lists(st.lists(st.floats(0.01, 2), min_size=3, max_size=3), min_size=3, max_size=3))
def test_nothing_is_called_better_or_worse_against_its_interval(values):
    results = runs(**dict(zip(("single", "deep", "packed"), values, strict=True)))
    groups = {group.label: group for group in group_runs(results)["digits", "lenet"]}
    for text in texts(results):
        kind, _, rest = text.partition(": ")
        named = [label for label in ("deep", "packed") if f"{label} " in rest]
        if kind.startswith(("Better", "Worse")):
            for label in named:
                gap = difference(groups[label], groups["single"], "nll")
                assert gap.high < 0 if kind.startswith("Better") else gap.low > 0
        if kind.startswith(("Statistically tied with the best", "No clear difference from the best")):
            best = re.search(r"the best, (\w+)", kind)[1]
            for label in named:
                gap = difference(groups[label], groups[best], "nll")
                assert gap.low <= 0 <= gap.high or gap.value == 0 and not gap.known
        if kind.startswith("Use "):
            assert difference(groups[kind.removeprefix("Use ")], groups["single"], "nll").high < 0


def test_words_follow_the_direction_of_the_metric():
    up, down, unclear = Interval(0.1, 0.05, 0.2), Interval(-0.1, -0.2, -0.05), Interval(0.1, -0.1, 0.3)
    assert [relation(gap, "accuracy") for gap in (up, down, unclear)] == ["better", "worse", "within noise"]
    assert [relation(gap, "nll") for gap in (up, down, unclear)] == ["worse", "better", "within noise"]
    assert relation(Interval(0.1), "nll") == "" and relation(up, "disagreement") == ""


def test_without_columns_and_with_one_seed_nothing_is_claimed():
    found = texts(runs(single=[0.2], deep=[0.1]))
    assert any(text.startswith("Not compared with the single") and "fewer than 20 stored" in text for text in found)
    assert not any(text.startswith(("Use", "Better")) for text in found)


def test_each_data_set_has_its_own_verdict():
    results = [fakes.classification(label) for label in ("single", "deep")]
    results += [fakes.regression(label, seed=seed) for label in ("single", "deep") for seed in (0, 1)]
    found = verdicts(results)
    assert [(one.data, one.task) for one in found] == [("digits", "classification"), ("houses", "regression")]


def test_an_infinite_nll_leaves_the_error_to_decide():
    results = [fakes.regression(label, seed=seed) for label in ("single", "deep") for seed in (0, 1)]
    for result in results:
        result.record["metrics"]["nll"]["value"] = math.inf
    assert verdicts(results)[0].found.metric == "rmse"


def test_runs_that_failed_to_converge_do_not_stop_the_verdict():
    results = [*runs(single=[0.2, 0.21], deep=[0.1, 0.12]), run("mimo", math.nan), run("mimo", math.nan, 1)]
    assert texts(results)[0].startswith("Use deep: NLL 0.11, down from 0.21 for a single network")
    assert "nothing to compare" in texts([run("single", math.nan)])[0]


def test_means_over_shift_and_outside_sets_are_plain_means():
    result = fakes.classification("deep")
    rows = [row for corruption in result.record["shift"].values() for row in corruption]
    assert value(result, "cacc") == pytest.approx(np.mean([row["accuracy"] for row in rows]))
    inner, outer = result.columns["inside/msp"], result.columns["outside/letters/msp"]
    assert value(result, "auroc") == pytest.approx(metrics.auroc(inner, outer))


def test_numbers_are_printed_with_what_their_intervals_support():
    assert format_interval(Interval(0.1123, 0.1081, 0.1169), "nll") == "0.112 [0.108, 0.117]"
    assert format_interval(Interval(0.9, 0.85, 0.95), "accuracy") == "90.0 % [85.0, 95.0]"
    assert format_interval(Interval(0.1123), "nll") == "0.112"
    assert format_interval(Interval(0.00412, 0.00411, 0.00413), "ece") == "0.0041"  # no width that digits do not show
    assert format_interval(Interval(0.05, 0.0012, 0.11), "nll") == "0.050 [0.001, 0.110]"  # it leaves zero out
    assert format_interval(Interval(0.05, -0.0012, 0.11), "nll") == "0.05 [0.00, 0.11]"
    assert format_interval(Interval(61706, 61706, 61706), "parameters") == "61.7 k"
    assert format_interval(Interval(61706, 60000, 63412), "parameters") == "61.7 k [60.0 k, 63.4 k]"
    assert [format_short(n) for n in (61706, 999.9, 1.2e6, 0.0123)] == ["61.7 k", "1.00 k", "1.20 M", "0.0123"]
    assert format_fixed(-0.0001, 2) == "0.00" and format_value(math.inf, "nll") == "∞"


def test_a_method_whose_validation_loss_still_fell_is_named_with_more_epochs_to_try():
    falling = [{"epoch": i, "validation_nll": 2.0 / (i + 1)} for i in range(10)]
    settled = [{"epoch": i, "validation_nll": 2.0 / min(i + 1, 4)} for i in range(10)]
    results = runs(single=[0.2, 0.21], deep=[0.1, 0.12])
    for result in results:
        result.record["history"] = falling if result.record["label"] == "deep" else settled
    assert "Still improving when training ended: deep. Try --epochs 20." in texts(results)
    for result in results:
        result.record["history"] = settled
    assert not any("Still improving" in text for text in texts(results))


def deployed(label: str, mult_adds: float, latency: float) -> Group:
    record = fakes.classification(label, examples=20, shift=False, outside=False).record
    record["cost"]["deployed"]["relative"] |= {"mult_adds": mult_adds, "latency": {"1": 9.0, "32": latency}}
    return Group(label, (Result(record),))


@pytest.mark.parametrize(
    ("mult_adds", "latency", "cheap"),
    [(1.25, 1.25, True), (1.18, 1.2, True), (1.26, 1.0, False), (1.0, 1.26, False), (1.0, math.nan, True)],
)
def test_one_pass_is_at_most_a_quarter_more_of_deployed_latency_and_mult_adds(mult_adds, latency, cheap):
    assert one_pass(deployed("packed", mult_adds, latency)) is cheap


def test_the_cost_is_that_of_the_frozen_network_and_of_older_records_that_of_the_ensemble():
    group = deployed("masksembles", 5.8, 3.0)
    record = group.record
    record["cost"]["relative"] = {"mult_adds": 12.1, "latency": 9.0}
    names = ("relative_mult_adds", "relative_latency", "relative_latency_1", "unfrozen_mult_adds", "unfrozen_latency")
    assert [value(group.runs[0], name) for name in names] == [5.8, 3.0, 9.0, 12.1, 9.0]
    del record["cost"]["deployed"]
    assert [value(group.runs[0], name) for name in names[:2]] == [12.1, 9.0]
    assert math.isnan(value(group.runs[0], "relative_latency_1")) and math.isnan(value(group.runs[0], "memory"))


def test_an_auroc_below_one_half_is_called_worse_than_chance():
    results = [fakes.classification(label, seed=seed) for label in ("single", "deep") for seed in range(2)]
    for result in results:
        for scores in result.record["outside"].values():
            scores["msp"]["auroc"] = 0.4 + 0.01 * result.record["seed"]
    (found,) = [text for text in texts(results) if "OOD data" in text]
    assert found.startswith("No method detects OOD data") and found.endswith("worse than chance.")


def test_intervals_that_cover_too_little_are_in_the_verdict_and_others_are_not():
    short, right = fakes.regression("single", noise=0.4), fakes.regression("deep", noise=0.4)
    short.record["metrics"]["coverage"] = {"value": 0.8, "low": 0.75, "high": 0.85}
    right.record["metrics"]["coverage"] = {"value": 0.88, "low": 0.84, "high": 0.92}
    (said,) = [text for text in texts([short, right]) if text.startswith("The 90 % intervals")]
    assert "single (80.0 % [75.0, 85.0])" in said and "deep" not in said
