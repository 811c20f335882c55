"""The command line, called as a shell calls it: what it prints, writes and exits with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pluribus.cli.app as cli

QUICK = ["--data", "moons", "--model", "mlp", "--size", "2", "--epochs", "1", "--jobs", "1"]


class TestCompare:
    def test_it_prints_the_table_and_writes_the_page(self, pluribus):
        code, out, _ = pluribus("compare", *QUICK, "--methods", "single,deep", "--out", "study")
        assert code == 0
        for word in ("single", "deep", "Accuracy", "NLL", "4", "Report: study/report.html"):
            assert word in out
        assert Path("study/report.html").stat().st_size > 50_000
        assert len(list(Path("study/results").glob("*.npz"))) == 2

    def test_json_is_all_that_a_script_gets(self, pluribus):
        code, out, err = pluribus("compare", *QUICK, "--methods", "single,packed", "--json")
        found = json.loads(out)
        assert (code, err) == (0, "")
        distances = {"single + kNN", "single + Mahalanobis"}
        assert {row["label"] for row in found["rows"]} == {"single", "packed", *distances}
        assert all(0 < row["nll"] < 5 and row["relative_parameters"] > 0.5 for row in found["rows"])
        assert Path(found["page"]).exists()

    def test_quiet_says_nothing(self, pluribus):
        assert pluribus("compare", *QUICK, "--methods", "single", "--quiet") == (0, "", "")

    def test_the_same_command_again_runs_nothing_anew(self, pluribus):
        pluribus("compare", *QUICK, "--methods", "single", "--quiet")
        (path,) = Path("pluribus-runs").rglob("*.npz")
        before = path.stat().st_mtime_ns
        _, _, err = pluribus("compare", *QUICK, "--methods", "single")
        assert "kept" in err
        assert path.stat().st_mtime_ns == before

    def test_sweeps_and_choosing(self, pluribus):
        arguments = ("--methods", "deep", "--sweep", "lr=1e-6,0.01", "--json")
        _, out, _ = pluribus("compare", *QUICK, *arguments)
        assert {row["label"] for row in json.loads(out)["rows"]} == {"deep lr=1e-06", "deep lr=0.01"}
        _, out, _ = pluribus("compare", *QUICK, *arguments, "--choose", "nll")
        assert {row["label"] for row in json.loads(out)["rows"]} == {"deep lr=0.01"}

    def test_regression_tables(self, pluribus):
        chance = np.random.default_rng(0)
        rows = ["size,town,price"] + [
            f"{s:.2f},{'ab'[i % 2]},{3 * s + (i % 2) + 0.1 * chance.normal():.3f}"
            for i, s in enumerate(chance.random(120))
        ]
        Path("houses.csv").write_text("\n".join(rows))
        code, out, _ = pluribus(
            "compare", "--data", "table:houses.csv", "--target", "price", "--model", "mlp", "--methods",
            "single,deep", "--size", "2", "--epochs", "3", "--jobs", "1",
        )  # fmt: skip
        assert code == 0
        assert "RMSE" in out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--methods", "deap"], "the method 'deap' is unknown. Did you mean 'deep'? Choose from single, deep"),
            (["--data", "cifar11"], "cifar11"),
            (["--data", "cifar10", "--data-dir", "nowhere"], "cifar-10-batches-py"),
            (["--model", "resnet1"], "'resnet1' is unknown"),
            (["--sweep", "alpha"], "must be NAME=VALUE,VALUE,..."),
            (["--corruptions", "rain"], "'rain' is unknown. Choose from some, all"),
            (["--recipe", "x"], "recipe: 'x' is unknown"),
            (["--size", "0"], "Invalid value for '--size'"),
            (["--nonsense"], "No such option"),
        ],
    )
    def test_bad_input_is_said_in_a_line_with_exit_code_2(self, pluribus, arguments, message):
        code, out, err = pluribus("compare", *QUICK, *arguments)
        assert code == 2
        assert message in err.replace("\n", " ")
        assert "Traceback" not in err
        assert not Path("pluribus-runs").exists()

    def test_data_that_changed_are_not_mixed_with_earlier_results(self, pluribus):
        table = lambda factor: "a,b\n" + "\n".join(f"{i},{factor * i}" for i in range(60))  # noqa: E731
        arguments = ("compare", "--data", "table:t.csv", "--target", "b", "--task", "regression", "--model", "mlp",
                     "--methods", "single", "--epochs", "1", "--jobs", "1", "--quiet")  # fmt: skip
        Path("t.csv").write_text(table(1))
        assert pluribus(*arguments, "--out", "study")[0] == 0
        Path("t.csv").write_text(table(5))
        code, _, err = pluribus(*arguments, "--out", "study")
        assert code == 2
        assert "t.csv changed since the study" in err.replace("\n", " ")

    def test_more_seeds_and_methods_join_a_study(self, pluribus):
        pluribus("compare", *QUICK, "--methods", "single", "--quiet", "--out", "study")
        code, _, err = pluribus("compare", *QUICK, "--methods", "single,deep,deep", "--seeds", "2", "--out", "study")
        assert code == 0
        assert err.count("kept") == 1
        assert len(list(Path("study/results").glob("*.npz"))) == 4

    def test_a_device_that_is_not_here_is_refused(self, pluribus):
        code, _, err = pluribus("compare", *QUICK, "--device", "nonsense")
        assert code == 2
        assert "--device: 'nonsense' cannot be used" in err.replace("\n", " ")

    def test_a_damaged_result_is_named_and_repeated(self, pluribus):
        pluribus("compare", *QUICK, "--methods", "single", "--quiet", "--out", "study")
        (path,) = Path("study/results").glob("*.npz")
        path.write_bytes(b"broken")
        code, _, err = pluribus("compare", *QUICK, "--methods", "single", "--out", "study")
        assert code == 0
        assert "damaged" in err
        assert path.stat().st_size > 1000

    @pytest.mark.slow
    def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(self, tmp_path):
        command = [sys.executable, "-m", "pluribus", "compare", *QUICK, "--seeds", "200", "--out", "study"]
        heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  a shell's background jobs ignore it
        process = subprocess.Popen(
            command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heard
        )
        results = tmp_path / "study" / "results"
        for _ in range(3000):
            if len(list(results.glob("*.npz"))) >= 2:
                break
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "finished runs are kept in study. Run the same command to resume." in err
        assert "Traceback" not in err


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A trained ensemble of digits, and pictures of them."""
    from PIL import Image

    from pluribus.data.catalogue import load

    folder = tmp_path_factory.mktemp("digits")
    sys_argv, sys.argv = sys.argv, ["pluribus", "train", "--out", str(folder / "model"), "--method", "packed"]
    sys.argv += ["--size", "2", "--epochs", "4", "--quiet", "--threads", "1", "--risk", "0.3"]
    try:
        with pytest.raises(SystemExit) as stop:
            cli.main()
    finally:
        sys.argv = sys_argv
    assert stop.value.code in (0, None)
    data = load("digits")
    x, y = data.test[:20]
    for i in range(20):
        Image.fromarray((x[i, 0].numpy() * 255).astype("uint8")).save(folder / f"{i:02}.png")
    return folder, y


class TestTrainAndPredict:
    def test_pictures_get_label_confidence_and_a_decision(self, pluribus, digits):
        folder, y = digits
        files = sorted(str(path) for path in folder.glob("*.png"))
        code, out, err = pluribus("predict", str(folder / "model"), *files, "--format", "jsonl")
        assert code == 0, err
        rows = [json.loads(line) for line in out.splitlines()]
        assert [Path(row["name"]).name for row in rows] == [Path(file).name for file in files]
        assert np.mean([row["label"] == str(int(label)) for row, label in zip(rows, y, strict=True)]) > 0.6
        assert {row["decision"] for row in rows} <= {"accept", "abstain"}
        assert all(0 <= row["epistemic"] and 0 < row["confidence"] <= 1 for row in rows)

    def test_a_table_is_predicted_row_by_row(self, pluribus):
        chance = np.random.default_rng(0)
        values = chance.random(150)
        Path("t.csv").write_text("a,b\n" + "\n".join(f"{v:.3f},{2 * v:.3f}" for v in values))
        code, _, err = pluribus(
            "train", "--out", "m", "--data", "table:t.csv", "--target", "b", "--method", "deep", "--size", "2",
            "--epochs", "40", "--lr", "0.01", "--quiet",
        )  # fmt: skip
        assert code == 0, err
        Path("new.csv").write_text("a\n0.2\n0.7\n")
        code, out, err = pluribus("predict", "m", "new.csv", "--format", "jsonl")
        assert code == 0, err
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["value"] for row in rows] == pytest.approx([0.4, 1.4], abs=0.25)
        assert all(row["low"] < row["value"] < row["high"] for row in rows)
        assert [row["name"] for row in rows] == ["0", "1"]
        Path("more.csv").write_text("a\n0.5\n")
        _, out, _ = pluribus("predict", "m", "new.csv", "more.csv", "--format", "jsonl")
        names = [json.loads(line)["name"] for line in out.splitlines()]
        assert names == ["new.csv: 0", "new.csv: 1", "more.csv: 0"]

    def test_a_folder_of_another_training_is_not_replaced_unawares(self, pluribus, digits):
        folder, _ = digits
        code, _, err = pluribus("train", "--out", str(folder / "model"), "--method", "packed", "--seed", "7")
        assert code == 2
        assert "holds a different training run; these differ:" in err.replace("\n", " ")
        assert "--overwrite" in err.replace("\n", " ")

    def test_what_is_no_model_or_no_file_is_said(self, pluribus, digits):
        folder, _ = digits
        code, _, err = pluribus("predict", "nothing", "x.png")
        assert code == 2
        assert "is not a trained ensemble" in err.replace("\n", " ")
        code, _, err = pluribus("predict", str(folder / "model"), "absent.png")
        assert code == 2
        assert "file not found: 'absent.png'" in err.replace("\n", " ")

    def test_training_that_diverges_is_said_and_no_model_is_written(self, pluribus):
        arguments = ["--data", "diabetes", "--model", "mlp", "--epochs", "3", "--lr", "1e30"]
        code, _, err = pluribus("train", "--out", "model", "--method", "deep", *arguments, "--quiet", "--threads", "1")
        assert code == 2 and "NaN or infinite" in err and "use a smaller lr" in err and "Traceback" not in err
        assert not list(Path("model").glob("*.safetensors"))
        code, _, err = pluribus("compare", *arguments, "--methods", "single", "--jobs", "1", "--quiet")
        assert code != 0 and "use a smaller lr" in err

    def test_a_network_that_does_not_fit_the_data_is_refused_before_anything_is_written(self, pluribus):
        Path("nets.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(2, 7)\n")
        arguments = ("--data", "moons", "--model", "python:nets.py:build", "--method", "deep")
        code, _, err = pluribus("train", "--out", "m", *arguments)
        assert code == 2
        assert "must give 2 numbers for each row (2 classes), but it gives (7,)" in err.replace("\n", " ")
        assert not Path("m").exists()

    def test_a_setting_that_the_method_does_not_take_is_refused(self, pluribus):
        code, _, err = pluribus("train", "--out", "m", "--method", "deep", "--set", "alpha=2")
        assert code == 2
        assert "deep takes no 'alpha'" in err.replace("\n", " ")


class TestDeploying:
    def test_plans_are_printed_and_keep_to_the_budget(self, pluribus):
        arguments = ("plan", "--model", "mlp", "--shape", "8", "--sizes", "2,4", "--methods", "deep,packed,multihead")
        code, out, err = pluribus(*arguments, "--parameters", "1.2")
        assert code == 0, err
        assert "packed" in out and "multihead" in out
        found = json.loads(pluribus(*arguments, "--parameters", "1.2", "--json")[1])
        assert all(row["relative"]["parameters"] <= 1.2 for row in found["rows"])
        absolute = json.loads(pluribus(*arguments, "--parameters", "6k", "--json")[1])
        assert all(row["parameters"] <= 6000 for row in absolute["rows"])
        assert {row["method"] for row in absolute["rows"]} != set()

    def test_a_plan_tries_what_it_suggests_on_the_data_and_says_the_next_command(self, pluribus):
        few = ("--sizes", "2", "--methods", "deep,multihead", "--epochs", "1")
        code, out, err = pluribus("plan", "--model", "mlp", "--data", "iris", *few)
        assert code == 0, err
        said = " ".join(out.split())
        assert "2 settings fit" in said and "iris, mlp" in said and "a first impression" in said
        assert "Next: pluribus compare --data iris --model mlp --methods single,deep,multihead --size 2" in said

    @pytest.mark.parametrize("text", ["much", "-1", "0"])
    def test_a_budget_that_is_none_is_refused(self, pluribus, text):
        code, _, err = pluribus("plan", f"--parameters={text}")
        assert code == 2
        assert "a multiple such as 1.5" in err.replace("\n", " ")

    def test_a_trained_ensemble_is_exported_with_its_normalisation(self, pluribus, digits):
        import onnxruntime

        folder, _ = digits
        code, out, err = pluribus("export", str(folder / "model"), "digits.onnx", "--json")
        assert code == 0, err
        assert json.loads(out)["difference"] < 1e-4
        file = str(folder / "05.png")
        _, line, _ = pluribus("predict", str(folder / "model"), file, "--format", "jsonl")
        from PIL import Image

        x = np.asarray(Image.open(file), dtype=np.float32)[None, None] / 255
        session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
        answers = dict(
            zip(json.loads(out)["outputs"], session.run(None, {json.loads(out)["inputs"][0]: x}), strict=True)
        )
        expected = json.loads(line)
        assert str(answers["label"][0]) == expected["label"]
        for name in ("confidence", "aleatoric", "epistemic"):
            assert answers[name][0] == pytest.approx(expected[name], abs=1e-5)


def test_report_writes_the_page_again(pluribus):
    pluribus("compare", *QUICK, "--methods", "single", "--quiet", "--out", "study")
    Path("study/report.html").unlink()
    code, out, _ = pluribus("report", "study")
    assert code == 0
    assert Path("study/report.html").exists()
    assert pluribus("report", "nowhere")[0] == 2


def test_data_lists_what_is_known_and_where_it_is_looked_for(pluribus):
    code, out, _ = pluribus("data", "--data-dir", "somewhere")
    assert code == 0
    assert "cifar10" in out and "somewhere" in out
    _, out, _ = pluribus("data", "--json")
    assert {row["name"] for row in json.loads(out)["data"]} >= {"digits", "cifar10", "folder"}


def test_the_version_is_printed(pluribus):
    import pluribus as package

    assert pluribus("--version")[:2] == (0, f"{package.__version__}\n")


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_what_the_command_line_needs_is_named_where_it_is_missing(package):
    code = f"import sys; sys.modules[{package!r}] = None; import pluribus.cli.app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"The command line needs {package}")
    assert "pip install '.[all]'" in done.stderr
    assert "Traceback" not in done.stderr
