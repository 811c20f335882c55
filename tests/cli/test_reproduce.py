"""`pluribus reproduce`: lists, runs, judges, and says in one line what is wrong."""

import json

import pytest


def test_without_an_item_all_are_listed(pluribus, tmp_path):
    code, out, _ = pluribus("reproduce", "--out", tmp_path)
    assert code == 0 and "packed/table11" in out and "fort/figureS6" in out and "72 items;" in out


def test_an_item_is_run_judged_and_kept(pluribus, tmp_path):
    code, out, _ = pluribus("reproduce", "masksembles/figure1", "--out", tmp_path)
    assert code == 0 and "HOLDS" in out and "0.44" in out and "masksembles-figure1-smoke.html" in out
    code, out, err = pluribus("reproduce", "masksembles/figure1", "--out", tmp_path, "--json")
    assert json.loads(out)["judgement"] == "holds" and not err
    code, out, _ = pluribus("reproduce", "--out", tmp_path)
    assert "holds (computed exactly)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["packed/table99"], "'packed/table99' is unknown. Did you mean 'packed/table9'? Choose from packed/figure1"),
        (["packed/table11", "--scale", "huge"], "'huge' is unknown. Choose from smoke, laptop, paper"),
        (["fort/figure4", "--scale", "laptop", "--data-dir", "nowhere"], "not found"),
        (["packed/table11", "--scale", "laptop", "--data-dir", "nowhere"], "yacht, bostonHousing"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(pluribus, tmp_path, arguments, message):
    code, out, err = pluribus("reproduce", *arguments, "--out", tmp_path)
    assert code == 2 and message in err.replace("\n", "") and "Traceback" not in err and not out


def test_stored_results_that_do_not_fit_are_named(pluribus, tmp_path):
    pluribus("reproduce", "masksembles/figure1", "--out", tmp_path)
    folder = tmp_path / "masks-figure1-smoke"
    (folder / "S=2.npz").replace(folder / "S=3.npz")
    code, _, err = pluribus("reproduce", "masksembles/figure1", "--out", tmp_path)
    assert code == 2 and "does not fit masks-figure1, part S=3" in err.replace("\n", "")
