"""A figure is measured and judged once: the laboratory's page, `pluribus reproduce` and Python have the same."""

from dataclasses import replace

import numpy as np
import pytest

from pluribus import landscape as ls
from pluribus.landscape.laboratory.exploration import ON_REQUEST, QUESTIONS, SECTIONS
from pluribus.landscape.studies.comparisons import expect
from pluribus.landscape.studies.findings import ASKED
from pluribus.landscape.studies.members import MEASURES
from pluribus.landscape.studies.sweeps import SWEEPS
from pluribus.reproduce.parts import Context
from pluribus.reproduce.registry import CLAIMS

PAPER = {"Durasov": "masksembles", "Laurent": "packed", "Havasi": "mimo"}


def drawn(sweep):
    """Metrics of every setting of the page, drawn at random for three seeds."""
    generator = np.random.default_rng(0)
    metrics = dict.fromkeys(metric for said in sweep.claims.values() for metric in (*said.metrics, "nll", "ece"))
    scores = [f"{figure} {score}" for figure in ("auroc", "aupr")
              for score in ("msp", "max_logit", "entropy", "mutual_information", "variation_ratio")]  # fmt: skip
    names = (*metrics, *scores, "disagreement", "disagreement_by_error", "parameters", "auroc", "aupr")
    return ls.Measured([
        {"setting": label, "seed": seed, **{name: float(generator.uniform(0.1, 1)) for name in names}}
        for label, *_ in sweep.labels() for seed in range(3)
    ])  # fmt: skip


@pytest.mark.parametrize("name", SWEEPS)
def test_the_court_and_the_page_say_the_same_of_the_same_numbers(name):
    sweep = replace(SWEEPS[name], brief=None)  # all settings
    measured = drawn(sweep)
    page = sweep.verdict(measured).found
    for item, said in sweep.claims.items():
        claim = CLAIMS[f"{PAPER[sweep.source.split()[0]]}/{item}"]
        assert claim.says == said.says
        if item == "table6":  # five settings there, one on the page
            continue
        court = claim.judge({"": measured}).found
        parts = [line for line in court if ", holds." in line or ", does not hold." in line or "[" in line]
        assert parts and set(parts) <= set(page), (item, parts, page)


def test_the_court_runs_the_settings_of_the_page_where_it_is_as_quick(tmp_path):
    """At the scale smoke it runs fewer settings of some questions, and Table 5 without its baselines."""
    fewer = {"packed/table5", "packed/figure7", "mimo/figure6b", "mimo/figure7", "mimo/figure8"}
    fewer |= {f"masksembles/figure{i}" for i in (9, 13, 14)}
    for sweep in SWEEPS.values():
        for item in (f"{PAPER[sweep.source.split()[0]]}/{item}" for item in sweep.claims if item != "table6"):
            studies = CLAIMS[item].experiment.studies(Context("smoke", tmp_path))
            ours = {run.label for study in studies for run in study.runs()}
            page = {label for label, *_ in sweep.labels()}
            assert ours and (item in fewer or page <= ours), (item, page - ours)


def test_every_measurement_is_a_section_with_something_asked():
    assert set(SECTIONS) == set(MEASURES) == set(ASKED)
    assert set(MEASURES) <= set(QUESTIONS | ON_REQUEST)
    planned = {
        name
        for claim in CLAIMS.values() if not hasattr(claim.experiment, "studies")
        for part in claim.experiment.plan("paper") for name in part.settings.get("measures", ())
    }  # fmt: skip
    assert planned == set(MEASURES)


def test_intervals_of_shares_end_at_0_and_1():
    rows = [
        {"setting": "single", "seed": seed, "accuracy": value, "nll": 0.1 + seed}
        for seed, value in enumerate((0.5, 1.0))
    ]
    verdict = expect(metrics=("accuracy", "nll"))({"": ls.Measured(rows)}, {})
    assert verdict.header == ["method", "Accuracy", "NLL"]
    assert verdict.rows[0][1].endswith("[0.0, 100.0]") and "[0.00, " in verdict.rows[0][2]


def test_mimo_has_three_members_and_batch_repetition_4_at_the_scale_laptop(tmp_path):
    for item in ("mimo/table1", "mimo/table2", "mimo/figure4"):
        (study,) = CLAIMS[item].experiment.studies(Context("laptop", tmp_path))
        (run, *_) = [run for run in study.runs() if run.method == "mimo"]
        assert (run.settings["size"], run.settings["batch_repetition"]) == (3, 4)
