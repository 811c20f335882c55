"""Studies: the same numbers by any way of running them, stopped or not; bad input is said before anything runs."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
from places import SUPPORT

from pluribus.results.store import Result, read, read_all
from pluribus.study.baselines import build_ensemble, entries
from pluribus.study.folder import conduct
from pluribus.study.grid import Study, choose_settings
from pluribus.study.run import compute, load_data
from pluribus.study.settings import Run
from pluribus.training.recipes import RECIPES

SMALL = {
    "data": ("moons",),
    "model": "mlp",
    "methods": ("single", "deep", "masksembles"),
    "size": 2,
    "training": {"epochs": 1, "batch_size": 64},
}


def same(first: Path, second: Path) -> None:
    """All results are equal, but for how long things took."""
    one, two = ({r.path.name: r for r in read_all(folder)[0]} for folder in (first, second))
    assert one.keys() == two.keys()
    for name in one:
        assert timeless(one[name].record) == timeless(two[name].record), name
        assert one[name].columns.keys() == two[name].columns.keys()
        for column in one[name].columns:
            np.testing.assert_array_equal(one[name].columns[column], two[name].columns[column], err_msg=column)


def timeless(record: dict) -> dict:
    return {**record, "cost": untimed(record["cost"]), "seconds": None}


def untimed(cost: dict) -> dict:
    """A tree of costs without times."""
    kept = {k: v for k, v in cost.items() if "latency" not in k}
    return {k: untimed(v) if isinstance(v, dict) else v for k, v in kept.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    conduct(Study(**SMALL), folder)
    return folder


class TestRuns:
    def test_there_is_one_run_for_each_method_setting_data_set_and_seed(self):
        study = Study(
            data=["moons", "iris"], methods=["single", "packed"], sweep={"alpha": [1, 2], "lr": [0.1]}, seeds=[0, 1]
        )
        labels = [run.label for run in study.runs()]
        assert len(labels) == 2 * 2 * (1 + 2)
        assert set(labels) == {"single lr=0.1", "packed alpha=1 lr=0.1", "packed alpha=2 lr=0.1"}
        assert len({run.name for run in study.runs()}) == len(labels)

    def test_axes_reach_the_method_the_network_and_the_training(self):
        study = Study(**SMALL | {"methods": ["packed"]}, sweep={"alpha": [1], "width": [0.5], "l2": [0.1], "size": [3]})
        (run,) = study.runs()
        assert (run.settings, run.width, run.training["l2"], run.size) == ({"alpha": 1}, 0.5, 0.1, 3)
        ensemble = build_ensemble(run, load_data(run))
        assert ensemble.size == 3
        assert ensemble.member(0).fc1.out_features == -(-100 // 3)

    def test_a_size_that_is_said_wins_over_that_of_the_recipe(self):
        (name,) = [name for name, one in RECIPES.items() if one.settings("deep").get("size") == 3]
        sizes = {}
        for said in (None, 2, 5):
            (run,) = Study(**SMALL | {"methods": ["deep"], "size": said, "recipe": name}).runs()
            sizes[said] = build_ensemble(run, load_data(run)).size
        assert sizes == {None: 3, 2: 2, 5: 5}
        study = Study(**SMALL | {"methods": ["deep"], "recipe": name}, sweep={"size": [2, 4]})
        assert [build_ensemble(run, load_data(run)).size for run in study.runs()] == [2, 4]

    @pytest.mark.parametrize("method", entries())
    def test_every_method_and_baseline_gives_a_complete_record(self, method):
        record, columns = compute(Run("moons", "mlp", method, method, size=2, training={"epochs": 3}))
        assert record["method"] == method
        assert 0.6 <= record["metrics"]["accuracy"]["value"] <= 1
        assert record["metrics"]["nll"]["low"] < record["metrics"]["nll"]["value"] < record["metrics"]["nll"]["high"]
        assert set(record["outside"]["around"]) >= {"msp", "mutual_information"}
        assert len(columns["test/label"]) == len(columns["test/target"]) == len(load_data(Run("moons")).test)

    def test_baselines_are_what_the_papers_call_so(self):
        width = {name: self.hidden(name) for name in ("single", "thin", "wide", "wide_mimo", "thin_ensemble")}
        assert width == {"single": 200, "thin": 100, "wide": 400, "wide_mimo": 400, "thin_ensemble": 100}
        record, _ = compute(Run("moons", "mlp", "dropout_single_pass", "d", training={"epochs": 1}))
        assert (record["size"], record["cost"]["forward_passes"]) == (1, 1.0)

    def test_a_rate_of_dropout_is_chosen_on_the_validation_part(self):
        """Masksembles, section 4.2; the test part has no say."""
        study = Study(**SMALL | {"methods": ["mc_dropout"]}, sweep={"rate": [0.1, 0.9]}, choose="nll")
        results = [Result(compute(run)[0]) for run in study.runs()]
        losses = {result.record["label"]: result.record["validation"]["nll"] for result in results}
        assert set(losses) == {"mc_dropout rate=0.1", "mc_dropout rate=0.9"}
        assert [r.record["label"] for r in choose_settings(results, "nll")] == [min(losses, key=losses.get)]

    @staticmethod
    def hidden(method: str) -> int:
        run = Run("moons", "mlp", method, method, size=2)
        return build_ensemble(run, load_data(run)).module.fc1.weight.shape[-2]

    def test_the_same_seed_gives_the_same_result_and_another_seed_another(self):
        first, second, third = (compute(Run("iris", "mlp", training={"epochs": 2}, seed=seed)) for seed in (0, 0, 1))
        assert timeless(first[0]) == timeless(second[0])
        np.testing.assert_array_equal(first[1]["test/total"], second[1]["test/total"])
        assert not np.array_equal(first[1]["test/total"], third[1]["test/total"])

    def test_regression_is_judged_in_the_units_of_the_target(self):
        record, columns = compute(Run("diabetes", "mlp", "deep", "deep", size=2, training={"epochs": 5}))
        error = np.sqrt(np.mean((columns["test/mean"] - columns["test/target"]) ** 2))
        assert record["metrics"]["rmse"]["value"] == pytest.approx(error, rel=1e-5)
        assert columns["test/target"].mean() > 100  # not standardised
        spread = columns["test/target"].std()
        assert 0.3 * spread < error < 2 * spread

    def test_a_baseline_of_a_regression_is_one_too(self):
        record, _ = compute(Run("diabetes", "mlp", "dropout_single_pass", "d", training={"epochs": 1}))
        assert (record["size"], record["task"]) == (1, "regression")
        assert record["metrics"]["rmse"]["value"] > 10  # in the units of the target

    def test_images_are_shifted_and_kept_for_the_page(self):
        run = Run("digits", "mlp", training={"epochs": 1}, corruptions=("contrast",), severities=(1, 5), shift_rows=100)
        record, columns = compute(run)
        assert [row["severity"] for row in record["shift"]["contrast"]] == [1, 5]
        assert columns["examples/pictures"].shape[1:] == (28, 28)
        wrong = columns["examples/index"][columns["examples/reason"] == "mistake"]
        assert (columns["test/label"][wrong] != columns["test/target"][wrong]).all()


class TestWays:
    @pytest.mark.slow
    def test_processes_give_the_same_results_as_one(self, undisturbed, tmp_path):
        outcome = conduct(Study(**SMALL), tmp_path, jobs=2)
        assert outcome.failed == {}
        same(undisturbed, tmp_path)

    def test_a_study_that_is_done_runs_nothing(self, undisturbed):
        events = []
        conduct(Study(**SMALL), undisturbed, report=lambda event, run, text: events.append(event))
        assert events == ["kept"] * 3

    def test_what_is_missing_is_run_and_the_rest_is_kept(self, undisturbed, tmp_path):
        conduct(Study(**SMALL), tmp_path)
        gone = sorted((tmp_path / "results").glob("*deep*"))[0]
        gone.unlink()
        events = []
        conduct(Study(**SMALL), tmp_path, report=lambda event, run, text: events.append((event, run.method)))
        assert ("done", "deep") in events
        assert ("kept", "single") in events
        same(undisturbed, tmp_path)

    def test_a_damaged_result_is_named_and_its_run_repeated(self, undisturbed, tmp_path):
        conduct(Study(**SMALL), tmp_path)
        path = sorted((tmp_path / "results").glob("*deep*"))[0]
        path.write_bytes(path.read_bytes()[:-200])
        outcome = conduct(Study(**SMALL), tmp_path)
        assert [error.path for error in outcome.damaged] == [path]
        same(undisturbed, tmp_path)

    @pytest.mark.slow
    def test_a_worker_that_dies_is_tried_again(self, undisturbed, tmp_path, monkeypatch):
        import pluribus.study.folder as module

        marker = tmp_path / "died"
        monkeypatch.setenv("PLURIBUS_TEST_MARKER", str(marker))
        monkeypatch.setattr(module, "compute", dies_once)
        events = []
        study = Study(**SMALL)
        outcome = conduct(study, tmp_path / "study", jobs=2, report=lambda event, run, text: events.append(event))
        assert marker.exists()
        assert "retried" in events
        assert outcome.failed == {}
        same(undisturbed, tmp_path / "study")

    def test_a_run_that_a_broken_pool_refuses_is_not_lost(self, undisturbed, tmp_path, monkeypatch):
        """A process may die between two runs: the pool then says so when it is handed the next."""

        class Pool:
            refused = 0

            def __init__(self, jobs, **_): ...

            def submit(self, function, run):
                if run.method != "single" and Pool.refused < 2:
                    Pool.refused += 1
                    raise BrokenProcessPool("a process died")
                future = Future()
                future.set_result(function(run))
                return future

            def shutdown(self, **_): ...

        monkeypatch.setattr("pluribus.training.executors.ProcessPoolExecutor", Pool)
        outcome = conduct(Study(**SMALL), tmp_path, jobs=2)
        assert (Pool.refused, outcome.failed) == (2, {})
        same(undisturbed, tmp_path)

    def test_a_run_that_fails_does_not_stop_the_others(self, tmp_path, monkeypatch):
        import pluribus.study.folder as module

        monkeypatch.setattr(module, "compute", fails_for_deep)
        outcome = conduct(Study(**SMALL), tmp_path)
        assert list(outcome.failed.values()) == ["RuntimeError: no memory"]
        assert [result.record["method"] for result in outcome.results] == ["single", "masksembles"]

    def test_a_full_disk_stops_the_study_and_keeps_what_is_done(self, tmp_path, monkeypatch):
        import pluribus.study.folder as module

        real, written = module.write, []

        def full(path, record, columns):
            if written:
                raise OSError(28, "the result could not be written (No space left on device)", str(path))
            written.append(path)
            real(path, record, columns)

        monkeypatch.setattr(module, "write", full)
        with pytest.raises(OSError, match="No space left"):
            conduct(Study(**SMALL), tmp_path)
        assert len(read_all(tmp_path)[0]) == 1

    @pytest.mark.slow
    def test_two_ray_workers_give_the_same_results_as_one_process(self, undisturbed, tmp_path):
        script = (
            "import sys, json, ray; from pluribus.study import Study, conduct\n"
            "ray.init(address='local', num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
            "outcome = conduct(Study(**json.loads(sys.argv[1])), sys.argv[2], ray='auto')\n"
            "sys.exit(bool(outcome.failed))"
        )
        run = [sys.executable, "-c", script, json.dumps(SMALL), str(tmp_path)]
        subprocess.run(run, check=True, timeout=300, cwd=SUPPORT)
        same(undisturbed, tmp_path)

    @pytest.mark.slow
    def test_ten_kills_at_random_moments_lose_nothing(self, tmp_path):
        study = SMALL | {"methods": ("single", "deep", "packed", "masksembles", "multihead"), "seeds": [0, 1]}
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        script = (
            "import sys, json; from pluribus.study import Study, conduct\n"
            "if __name__ == '__main__':\n"
            "    conduct(Study(**json.loads(sys.argv[1])), sys.argv[2], jobs=2)"
        )
        program = tmp_path / "program.py"
        program.write_text(script)

        def start(folder: Path) -> subprocess.Popen:
            command = [sys.executable, str(program), json.dumps(study), str(folder)]
            return subprocess.Popen(command, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

        assert start(whole).wait(timeout=400) == 0
        chance = random.Random(0)
        seen: dict[str, bytes] = {}
        for _ in range(10):
            process = start(killed)
            wanted = len(seen) + chance.choice([0, 0, 1])
            for _ in range(1200):  # until the study is under way and, now and then, another run is done
                done = len(list((killed / "results").glob("*.npz")))
                if process.poll() is not None or ((killed / "study.json").exists() and done >= wanted):
                    break
                time.sleep(0.1)
            time.sleep(chance.uniform(0, 6))
            with contextlib.suppress(ProcessLookupError):  # it may be done
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for path in sorted((killed / "results").glob("*.npz")):
                content = path.read_bytes()
                assert seen.setdefault(path.name, content) == content, "a finished run was written again"
                read(path)
        assert 0 < len(seen), "no run was ever finished: the kills came too early to show anything"
        assert start(killed).wait(timeout=400) == 0
        same(whole, killed)


def dies_once(run, folder=None, keep=None):
    marker = Path(os.environ["PLURIBUS_TEST_MARKER"])
    if run.method == "deep" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(run)


def fails_for_deep(run, folder=None, keep=None):
    if run.method == "deep":
        raise RuntimeError("no memory")
    return compute(run)


class TestChoosing:
    def test_the_setting_is_chosen_on_validation_data(self, tmp_path):
        study = Study(**SMALL | {"methods": ["deep"], "training": {"epochs": 3}}, sweep={"lr": [1e-6, 1e-2]})
        results = conduct(study, tmp_path).results
        assert {run.record["label"] for run in choose_settings(results, "nll")} == {"deep lr=0.01"}

    def test_it_is_chosen_by_validation_and_not_by_test(self, tmp_path):
        study = Study(**SMALL | {"methods": ["deep"]}, sweep={"lr": [1e-3, 1e-2]})
        results = conduct(study, tmp_path).results
        for result, figure in zip(results, (0.1, 0.9), strict=True):
            result.record["validation"]["nll"] = figure
        assert {run.record["label"] for run in choose_settings(results, "nll")} == {"deep lr=0.001"}


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"methods": ["depe"]},
                "the method 'depe' is unknown. Did you mean 'deep'? Choose from single, deep, packed",
            ),
            ({"methods": []}, "no methods given"),
            ({"model": "resnet19"}, "'resnet19' is unknown. Did you mean 'resnet18'? Choose from mlp, lenet"),
            ({"data": ["mnst"]}, "mnst"),
            ({"sweep": {"alfa": [1]}}, "none of single, deep, masksembles takes 'alfa'"),
            ({"choose": "nlll"}, "the metric 'nlll' is unknown"),
            ({"training": {"rate": 1}}, "'rate' is unknown. Choose from epochs"),
            ({"model": "resnet18"}, "takes images"),
            ({"recipe": "x"}, "recipe: 'x' is unknown"),
        ],
    )
    def test_what_cannot_work_is_said_before_anything_runs(self, changes, message, tmp_path):
        with pytest.raises(ValueError) as error:
            conduct(Study(**SMALL | changes), tmp_path / "study")
        assert message in str(error.value)
        assert not (tmp_path / "study").exists()

    def test_a_folder_of_another_study_is_refused(self, undisturbed):
        with pytest.raises(ValueError, match="holds a different study; these differ: size"):
            conduct(Study(**SMALL | {"size": 3}), undisturbed)


# ---------------------------------------------------------------- settings of methods


def test_settings_of_a_method_reach_its_runs_and_give_way_to_a_sweep():
    study = Study(methods=["mimo", "deep"], settings={"mimo": {"batch_repetition": 4, "size": 2}}, sweep={"size": [3]})
    mimo = next(run for run in study.runs() if run.method == "mimo")
    assert mimo.settings == {"batch_repetition": 4} and mimo.size == 3
    plain = Study(methods=["mimo"], settings={"mimo": {"batch_repetition": 4, "size": 2}}).runs()[0]
    assert plain.settings == {"batch_repetition": 4, "size": 2} and plain.label == "mimo"


def test_a_study_without_settings_is_the_study_of_before():
    assert "settings" not in Study().to_json()
    assert Study(settings={"deep": {"init": "same"}}).name != Study().name


def test_settings_that_a_method_does_not_take_are_refused():
    with pytest.raises(ValueError, match="deep does not take alpha"):
        Study(methods=["deep"], settings={"deep": {"alpha": 2}}).runs()
