"""Rules of the project that prose would not hold: directions of imports, sizes of files, documented names."""

import ast
import graphlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import pluribus

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "pluribus"
GENERATED = {
    ".git",
    ".venv",
    "build",
    "pluribus-runs",
    "dist",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
}

# What each module may import of ours, at most. A new module gets a line here.
ALLOWED: dict[str, set[str]] = {
    "masks": set(),
    "terms": set(),
    "trees": set(),
    "redraw": set(),
    "layers": set(),
    "anatomy": {"trees"},
    "models": set(),
    "columns": set(),
    "regression": {"columns"},
    "prediction": {"columns", "regression"},
    "dry": {"anatomy", "trees"},
    "symbols": {"anatomy", "dry", "scaling", "terms", "trees"},
    "scaling": {"terms"},
    "thinning": {"anatomy", "dry", "redraw", "scaling", "symbols", "terms", "trees"},
    "surgery": {"layers", "redraw", "trees"},
    "probe": {"layers", "surgery", "trees"},
    "running": {"surgery", "trees"},
    "pooled": {"prediction", "trees"},
    "auto": {"race", "running", "trees"},
    "ensemble": {
        *("auto", "layers", "pooled", "prediction", "probe", "running", "summary", "surgery", "trees"),
    },
    "members": {"ensemble", "surgery", "trees"},
    "dropout": {"ensemble", "layers", "surgery", "trees"},
    "grouping": {"layers", "redraw", "surgery"},
    "choosing": {"ensemble", "layers", "probe", "surgery", "trees"},
    "joint": {"auto", "ensemble", "layers", "probe", "redraw", "surgery", "trees"},
    "cost": {"ensemble", "trees"},
    "methods": {
        *("choosing", "dropout", "ensemble", "grouping", "joint", "layers", "masks", "members"),
        *("probe", "redraw", "surgery", "thinning", "trees"),
    },
    "files": {"ensemble", "members", "methods", "surgery", "thinning"},
    "metrics": {"columns", "prediction"},
    "summary": {"columns", "metrics", "prediction", "regression", "trees"},
    "streaming": {"columns", "metrics", "prediction", "summary"},
    "evaluation": {"columns", "metrics", "prediction", "streaming", "summary"},
    "calibrators": {"prediction"},
    "calibration": {"calibrators", "metrics", "prediction"},
    "conformal": {"calibration", "prediction"},
    "landscape": {"ensemble"},
    "answers": {"ensemble", "prediction", "trees"},
    "race": set(),
    "winograd": set(),
    "kernels": {"winograd"},
    "graphs": {"layers", "surgery", "trees"},
    "folding": {"graphs", "layers"},
    "liveness": {"folding"},
    "stacking": {"folding", "kernels", "layers", "liveness"},
    "lowering": {"folding", "graphs", "kernels", "liveness", "stacking"},
    "tuning": {"kernels", "race", "trees", "winograd"},
    "freeze": {
        *("answers", "cost", "ensemble", "folding", "graphs", "kernels", "layers", "lowering", "prediction", "race"),
        *("summary", "surgery", "trees", "tuning"),
    },
    "draws": {"trees"},
    "tracing": {"ensemble", "surgery", "trees"},
    "export": {"answers", "draws", "ensemble", "freeze", "outside", "surgery", "tracing", "trees"},
    "activations": {"trees"},
    "candidates": {
        *("activations", "choosing", "cost", "dropout", "ensemble", "grouping", "layers", "masks", "methods"),
        *("surgery", "thinning", "trees"),
    },
    "planning": {"candidates", "cost", "methods", "surgery", "trees"},
    "outside": set(),
    "results": set(),
    "splits": set(),
    "sources": {"splits"},
    "letters": {"outside", "sources", "splits"},
    "tables": {"outside", "sources", "splits"},
    "readers": {"outside", "sources", "splits"},
    "pictures": {"outside", "sources", "splits"},
    "toys": {"outside", "sources"},
    "dividing": {"pictures", "sources", "splits", "tables"},
    "data": {"dividing", "letters", "outside", "pictures", "readers", "sources", "splits", "tables", "toys"},
    "filters": set(),
    "jpeg": set(),
    "weather": {"filters"},
    "corruptions": {"filters", "jpeg", "weather"},
    "augment": {"outside"},
    "recipes": set(),
    "loading": {"trees"},
    "optimizers": {"ensemble"},
    "trainer": {"ensemble", "loading", "optimizers", "outside", "prediction", "trees"},
    "training": {"ensemble", "loading", "optimizers", "outside", "prediction", "recipes", "trainer"},
    "figures": set(),
    "intervals": set(),
    "measures": {"intervals", "metrics", "results"},
    "verdict": {"intervals", "measures", "results"},
    "drawing": set(),
    "panels": {"drawing", "measures", "results"},
    "diversity_charts": {"drawing", "panels", "results"},
    "regression_charts": {"drawing", "measures", "panels", "results"},
    "sweeps": {"drawing", "measures", "panels", "results"},
    "charts": {
        *("diversity_charts", "drawing", "measures", "metrics", "panels"),
        *("regression_charts", "results", "sweeps"),
    },
    "report": {"charts", "drawing", "measures", "outside", "panels", "results", "verdict"},
    "networks": {"models", "outside", "surgery", "thinning"},
    "runs": {
        *("augment", "corruptions", "cost", "data", "ensemble", "evaluation", "loading", "methods", "networks"),
        *("prediction", "recipes", "summary", "training"),
    },
    "study": {"data", "metrics", "outside", "recipes", "results", "runs"},
    "options": set(),
    "terminal": {"measures", "results", "runs", "study", "verdict"},
    "bundle": {"conformal", "data", "ensemble", "files", "freeze", "networks", "prediction", "runs", "tracing"},
    "deploying": {"bundle", "export", "networks", "options", "planning"},
    "reproduce": {"study"},
}
ALLOWED["__main__"] = {"cli"}
ALLOWED["cli"] = set(ALLOWED) - {"__main__"}
ALLOWED["__init__"] = set(ALLOWED) - {"cli", "__main__"}

MODULES = sorted(path.stem for path in SOURCE.glob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_line_in_the_table_allows(module):
    assert module in ALLOWED, f"src/pluribus/{module}.py is new: say in ALLOWED what it may import."
    assert own_imports(module) <= ALLOWED[module]


def own_imports(module: str) -> set[str]:
    return set(names_in(ast.parse((SOURCE / f"{module}.py").read_text()))) - {"__version__"}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Give the modules of ours that a syntax tree imports, at its top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ("pluribus." if node.level else "") + (node.module or "")
            inside = start.rstrip(".") == "pluribus"
            paths = [f"pluribus.{alias.name}" for alias in node.names] if inside else [start]
        else:
            continue
        yield from (path.split(".")[1] for path in paths if path.startswith("pluribus."))


@pytest.mark.parametrize(
    "line",
    [
        "from .cli import x",
        "from . import cli",
        "import pluribus.cli",
        "from pluribus.cli import x",
        "from pluribus import cli",
    ],
)
def test_every_form_of_import_is_seen(line):
    assert list(names_in(ast.parse(f"def f():\n    {line}"))) == ["cli"]


def test_imports_have_one_direction():
    graphlib.TopologicalSorter(ALLOWED).prepare()


def test_nothing_imports_the_command_line_but_its_entrance():
    assert [module for module in MODULES if "cli" in own_imports(module)] == ["__main__"]


def test_the_package_is_flat():
    assert [path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"] == []


def test_every_file_of_code_is_under_500_lines():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files(".py")}
    assert {path: lines for path, lines in lengths.items() if lines >= 500} == {}


def files(*suffixes: str) -> Iterator[Path]:
    """Give the project's own files with one of these suffixes; without suffixes, all."""
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            if path.name in GENERATED or path.name.endswith(".egg-info"):
                continue
            if path.is_dir():
                pending.append(path)
            elif not suffixes or path.suffix in suffixes:
                yield path


def test_public_names_exist_and_are_sorted_out_of_private_ones():
    assert [name for name in pluribus.__all__ if not hasattr(pluribus, name)] == []
    assert len(pluribus.__all__) == len(set(pluribus.__all__))


@pytest.mark.parametrize("name", pluribus.__all__)
def test_public_name_has_a_docstring(name):
    value = getattr(pluribus, name)
    if callable(value) or inspect.ismodule(value):
        assert inspect.getdoc(value), f"pluribus.{name} has no docstring"


@pytest.mark.parametrize("name", pluribus.__all__)
def test_public_name_is_mentioned_in_the_documentation(name):
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    word = re.compile(rf"\b{re.escape(name)}\b")
    assert any(word.search(page.read_text()) for page in pages), f"no page speaks of {name}"


def test_the_version_has_one_source():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert pluribus.__version__ == stated


def test_importing_loads_nothing_heavier_than_torch_and_numpy():
    loaded = loaded_by("import torch, numpy, pluribus")
    without = loaded_by("import torch, numpy")
    packages = {name.partition(".")[0] for name in loaded - without}
    assert packages - set(sys.stdlib_module_names) <= {"pluribus", "torch", "numpy"}
    assert (loaded - without) & HEAVY_PARTS == set()


HEAVY_PARTS = {"torch._dynamo", "torch._inductor", "torch.onnx", "torch.fx.experimental.symbolic_shapes"}


def loaded_by(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_no_file_names_a_path_of_one_machine_or_a_package_registry():
    paths, hosts = r"(?<![\w.])/(?:work|root|home|opt|Users)/\w|\.\./shared", r"pypi\.org|pythonhosted\.org"
    forbidden = re.compile(f"{paths}|{hosts}")
    found = {}
    for path in files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if match := forbidden.search(text):
            found[str(path.relative_to(ROOT))] = match.group()
    assert found == {}
