"""Adding a method touches one file and one entry of METHODS: everything else finds it there."""

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from places import ROOT
from small import mlp
from torch import nn

import pluribus as pb
from pluribus.cli.app import main
from pluribus.methods.method_info import call_method, info_of
from pluribus.report.figures import assign_styles
from pluribus.results.store import BASELINE
from pluribus.study.baselines import build_ensemble, entries
from pluribus.study.run import load_data
from pluribus.study.settings import Run

BLOCK = re.search(r"(?s)```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding a method")[2])
SOURCE = BLOCK.group(1)  # what contributors are shown is what works
FACTS = """
@method_info(
    study_settings=lambda model, dropout: {"spread": 0.25},
    candidates=lambda request: candidates_by_size(own_biases, request, spread=0.5),
    baselines={"half_own_biases": Baseline("members that own their biases, in half the width", width=0.5)},
)
def own_biases("""
IMPORTS = "from .method_info import Baseline, candidates_by_size, method_info\nimport torch\n"
STATED = SOURCE.replace("import torch\n", IMPORTS, 1).replace("def own_biases(", FACTS.lstrip(), 1)
X = torch.randn(5, 6)


def add(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Write the method to a file of its own, import it as one of the package, and enter it in METHODS."""
    path = folder / "_own_biases.py"
    path.write_text(source)
    specification = importlib.util.spec_from_file_location("pluribus.methods._own_biases", path)
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, specification.name, module)
    specification.loader.exec_module(module)
    monkeypatch.setitem(pb.METHODS, "own_biases", module.own_biases)
    return module.own_biases


@pytest.fixture
def method(tmp_path, monkeypatch):
    return add(SOURCE, tmp_path, monkeypatch)


@pytest.fixture
def stated(tmp_path, monkeypatch):
    return add(STATED, tmp_path, monkeypatch)


@pytest.fixture
def pluribus(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["pluribus", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code in (0, None)
        return capsys.readouterr().out

    return run


def test_a_plan_counts_it_as_it_is(method):
    model = mlp()
    rows = pb.plan(model, X, sizes=[2, 5], methods=["own_biases"]).rows
    assert [row["size"] for row in rows] == [2, 5]
    biases = sum(p.numel() for name, p in model.named_parameters() if name.endswith("bias"))
    everything = sum(p.numel() for p in model.parameters())
    assert [row["parameters"] for row in rows] == [everything + biases, everything + 4 * biases]
    assert rows[0]["call"] == "pb.own_biases(model, 2)"
    assert "own_biases" in {row["method"] for row in pb.plan(model, X).rows}


def test_it_is_frozen_saved_and_loaded(method, tmp_path):
    model = mlp()
    ensemble = method(model, 3).eval()
    expected = ensemble(X)
    torch.testing.assert_close(pb.freeze(ensemble, X)(X), expected, rtol=1e-4, atol=1e-5)
    pb.save(ensemble, tmp_path / "ensemble.safetensors")
    loaded = pb.load(tmp_path / "ensemble.safetensors", model)
    assert loaded.method == "own_biases"
    torch.testing.assert_close(loaded(X), expected, rtol=0, atol=0)


QUICK = ("--data", "moons", "--model", "mlp", "--size", "2", "--epochs", "1")


def test_it_is_compared_and_shown(method, pluribus):
    out = pluribus("compare", *QUICK, "--jobs", "1", "--methods", "single,own_biases", "--json", "--out", "study")
    rows = {row["label"]: row for row in json.loads(out)["rows"]}
    assert rows.keys() == {"single", "own_biases", "single + kNN", "single + Mahalanobis"}
    assert rows["own_biases"]["parameters"] > rows["single"]["parameters"]
    assert "own_biases" in Path("study/report.html").read_text()


@pytest.mark.parametrize("command", ["compare", "train", "plan"])
def test_the_help_of_a_command_names_it(method, pluribus, command):
    assert "own_biases" in pluribus(command, "--help")


def test_it_has_a_colour_that_no_other_method_has(method):
    styles = assign_styles(pb.METHODS)
    assert len({style.colour for style in styles.values()}) == len(pb.METHODS)


def test_what_it_states_of_itself_is_used_everywhere(stated, pluribus):
    assert [row["settings"] for row in pb.plan(mlp(), X, methods=["own_biases"], sizes=[2]).rows] == [{"spread": 0.5}]
    assert "half_own_biases" in pluribus("compare", "--help")
    whole, half = (
        build_ensemble(run, load_data(run))
        for name in ("own_biases", "half_own_biases")
        for run in [Run("moons", "mlp", name)]
    )
    assert whole.settings["spread"] == 0.25
    assert (whole.module.fc1.out_features, half.module.fc1.out_features) == (200, 100)


@pytest.mark.slow
def test_a_contributor_changes_nothing_else(tmp_path):
    """On a copy of the package, also where runs are in processes of their own; the contract tests run over it."""
    shutil.copytree(ROOT / "src" / "pluribus", tmp_path / "pluribus", ignore=shutil.ignore_patterns("__pycache__"))
    methods = tmp_path / "pluribus" / "methods"
    (methods / "_own_biases.py").write_text(SOURCE)
    table = (methods / "__init__.py").read_text()
    table = table.replace("from ._packed", "from ._own_biases import own_biases\nfrom ._packed", 1)
    (methods / "__init__.py").write_text(table.replace("(single, ", "(own_biases, single, ", 1))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    run = functools.partial(subprocess.run, env=environment, check=True, timeout=300)
    run([sys.executable, "-m", "pluribus", "compare", *QUICK, "--jobs", "2", "--methods", "single,own_biases"],
        cwd=tmp_path)  # fmt: skip
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "own_biases", "-m", "not slow",
         "tests/contract/test_methods.py"], cwd=ROOT)  # fmt: skip


# ---------------------------------------------------------------- what the methods state of themselves


@pytest.mark.parametrize("name", pb.METHODS)
def test_a_method_is_called_by_the_name_of_its_function(name):
    assert pb.METHODS[name].__name__ == name


def test_no_two_things_that_can_be_compared_have_one_name():
    stated = [other for method in pb.METHODS.values() for other in info_of(method).baselines]
    assert len(entries()) == len(pb.METHODS) + len(stated)


def test_no_two_methods_have_one_colour_or_one_marker():
    for looks in zip(*assign_styles(pb.METHODS).values(), strict=True):
        assert len(set(looks)) == len(looks)


def test_all_others_are_compared_with_the_method_that_a_plan_does_not_offer():
    assert list(info_of(pb.METHODS[BASELINE]).candidates(None)) == []


@pytest.mark.parametrize("name", pb.METHODS)
def test_a_method_takes_a_model_with_an_ensemble_inside_only_where_it_states_so(name):
    method = pb.METHODS[name]
    inner = pb.deep(nn.Linear(6, 8), 2)
    inner.run = "loop"
    model = nn.Sequential(inner.pooled(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    make = functools.partial(call_method, method, model, 2, info_of(method).study_settings(model, None), X)
    if info_of(method).nests:
        ensemble = make()
        ensemble.run = "loop"
        assert ensemble(X).shape[1:] == (5, 3)
    else:
        with pytest.raises(ValueError, match=f"{name}: .*ensemble"):
            make()
