"""Rules of the project that prose would not hold: directions of imports, sizes of files, documented names."""

import ast
import graphlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pluribus

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "pluribus"
TESTS = ROOT / "tests"
GENERATED = {
    ".git",
    "build",
    "pluribus-runs",
    "dist",
    "site",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
}

# The rule of directions, the whole of it: a folder imports from folders on lines above its own.
LAYERS = """
_common
uncertainty  surgery  data
core  models  results
methods  training  report
deploy  layers
landscape  integrations
upgrading
study
workflows
reproduce
cli
"""
RANK = {folder: rank for rank, line in enumerate(LAYERS.split("\n")) for folder in line.split()}
SOURCES = sorted(SOURCE.rglob("*.py"))


def test_a_folder_imports_only_from_folders_above_it():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {'.'.join(other)}"
        for path in SOURCES
        for room in path.relative_to(SOURCE).parts[:-1][:1]
        for other in imported(tree_of(path), path.relative_to(SOURCE).parts[:-1])
        if other[:1] not in [(), ("__version__",)] and other[0] != room and RANK.get(other[0], 99) >= RANK[room]
    ]
    assert wrong == []


@cache
def tree_of(path: Path) -> ast.Module:
    """Read a file of code once for all tests."""
    return ast.parse(path.read_text())


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Give the paths of ours that a file in `package` imports, at its top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            kept = len(package) - node.level + 1
            start = ["pluribus", *package[:kept]] if node.level else []
            start += node.module.split(".") if node.module else []
            paths = [[*start, alias.name] for alias in node.names]
        else:
            continue
        yield from (tuple(path[1:]) for path in paths if path[0] == "pluribus")


@pytest.mark.parametrize(
    "line",
    [
        "from .app import x",
        "from . import app",
        "from ..cli.app import x",
        "from .. import cli",
        "import pluribus.cli.app",
        "from pluribus.cli.app import x",
        "from pluribus import cli",
    ],
)
def test_every_form_of_import_is_seen(line):
    assert [path[0] for path in imported(ast.parse(f"def f():\n    {line}"), ("cli",))] == ["cli"]


def test_the_modules_of_a_folder_do_not_import_each_other_in_circles():
    graph = {}
    for path in SOURCES:
        *package, name = path.relative_to(SOURCE).with_suffix("").parts
        module = tuple(package) if name == "__init__" else (*package, name)
        graph[module] = {
            other[:length]
            for other in imported(tree_of(path), tuple(package))
            for length in range(2, len(other) + 1)
            if is_module(other[:length]) and other[:length] != module[:length]
        }
    graphlib.TopologicalSorter(graph).prepare()


def is_module(path: tuple[str, ...]) -> bool:
    return SOURCE.joinpath(*path).with_suffix(".py").exists()


def test_every_folder_is_a_package_with_a_docstring():
    folders = {path.parent for path in SOURCES}
    assert [str(f) for f in folders if not ast.get_docstring(tree_of(f / "__init__.py"))] == []


def test_no_folder_lies_deeper_than_two():
    assert [str(path) for path in SOURCES if len(path.relative_to(SOURCE).parts) > 3] == []


def test_no_module_has_the_name_of_a_public_function():
    functions = {name for name in pluribus.__all__ if not inspect.ismodule(getattr(pluribus, name))}
    assert {path.stem for path in SOURCE.iterdir()} & functions == set()


# A figure has the name of what it draws, `pb.landscape` compares networks as `pb.metrics` does members, and both loads
# read what their module knows: each is public, under its module's name.
SHARED_NAMES = {"agreement", "disagreement", "diversity_accuracy", "load", "reliability", "risk_coverage"}


def test_a_public_name_is_defined_in_one_module():
    modules: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in tree_of(path).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                modules.setdefault(node.name, set()).add(str(path.relative_to(SOURCE)))
    several = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in SHARED_NAMES} == {}


def test_tests_stand_in_the_folders_of_the_package():
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - {"contract", "examples", "support"} <= rooms


def files(*suffixes: str) -> Iterator[Path]:
    """Give the project's own files with one of these suffixes; without suffixes, all."""
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            if path.name in GENERATED or path.name.startswith(".venv") or path.name.endswith(".egg-info"):
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
    loaded = loaded_by("pluribus", after="torch, numpy")
    packages = {name.partition(".")[0] for name in loaded}
    assert "pluribus" in packages
    assert packages - set(sys.stdlib_module_names) <= {"pluribus", "torch", "numpy", "lazy_loader"}
    assert loaded & HEAVY_PARTS == set()


HEAVY_PARTS = {"torch._dynamo", "torch._inductor", "torch.onnx", "torch.fx.experimental.symbolic_shapes"}


def test_private_parts_of_torch_are_named_in_one_place():
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCES
        if path.stem not in ("torch_private", "torch_operators", "torch_symbolic")
        if (names := [*private_parts(tree_of(path))])
    }
    assert found == {}


def test_importing_core_touches_nothing_private_in_torch():
    """It uses private parts through `torch_private` alone, whose own statements name some only inside functions."""
    modules = loaded_by("pluribus.core.ensemble", after="torch, numpy")
    paths = [SOURCE.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in modules if name[:9] == "pluribus."]
    found = {path.stem: names for path in paths if path.exists() and (names := [*private_parts(at_import(path))])}
    assert len(paths) > 20 and found == {}


def at_import(path: Path) -> ast.Module:
    """What importing a file runs, roughly: no functions' bodies, nothing that is for type checkers alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = []
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    return tree


def private_parts(tree: ast.AST) -> Iterator[str]:
    """Give the names below torch with a part that is private or experimental."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and re.match("_|experimental", node.attr):
            names = [ast.unparse(node)]  # what comes before it is a node of its own
        yield from (name for name in names if re.match(r"(torch|nn|F|fx)\.(.+\.)?(_(?!_)|experimental)", name))
        yield from foreign_attributes(node)


def foreign_attributes(node: ast.AST) -> Iterator[str]:
    """Give the private attributes of objects, read by a dot or by `getattr`, that nothing of ours defines."""
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if isinstance(node, ast.Attribute):
        names = [node.attr] if node.attr.startswith("_") and ast.unparse(node) != "os._exit" else []
    elif called in ("getattr", "hasattr", "setattr") and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
        names = [node.args[1].value]
    else:
        names = []
    public = "_asdict"  # of named tuples
    yield from (name for name in names if re.match("_(?!_)", name) and name not in defined() and name != public)


@cache
def defined() -> set[str]:
    """Every name that the package defines, assigns or declares."""
    found = {"_processes"}  # of a pool of processes: Python has no public way to end them
    for node in (node for path in SOURCES for node in ast.walk(tree_of(path))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Dict):  # the body of a class that is made by `type`
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
    return found


@pytest.mark.parametrize(
    "line",
    [
        "module._forward_hooks",
        "x = tensor._base",
        'getattr(model, "_orig_mod", model)',
        "aten = torch.ops.aten; aten._to_copy",
        "torch._C._len_torch_dispatch_stack()",
        "x = torch.ops.mkldnn._convolution_pointwise.binary(x)",
        "isinstance(x, nn.modules.conv._ConvNd)",
        "from torch.utils import _pytree as pytree",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from torch.fx.experimental import sym_node",
        "import torch._dynamo",
    ],
)
def test_private_parts_of_torch_are_seen_however_they_are_reached(line):
    assert [*private_parts(ast.parse(f"def f():\n    {line}"))]


def test_no_other_room_asks_for_a_method_by_its_name():
    rooms = [path for path in SOURCES if path.relative_to(SOURCE).parts[0] != "methods"]
    found = {
        str(path.relative_to(SOURCE)): names
        for path in rooms
        if (names := [*asked_for(tree_of(path), set(pluribus.METHODS))])
    }
    assert found == {}


def asked_for(tree: ast.AST, methods: set[str]) -> Iterator[str]:
    """Give the methods that code compares something with, or whose own file it imports."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Compare, ast.match_case)):
            parts = [node] if isinstance(node, ast.Compare) else [node.pattern]
            texts = [part.value for one in parts for part in ast.walk(one) if isinstance(part, ast.Constant)]
            yield from (text for text in texts if isinstance(text, str) and text in methods)
        elif isinstance(node, ast.ImportFrom) and re.search(r"(^|\.)methods\._", node.module or ""):
            yield node.module


@pytest.mark.parametrize(
    "line",
    [
        'if ensemble.method == "mimo": pass',
        'return "mimo" != ensemble.method',
        'if method in ("treenet", "multihead"): pass',
        'match method:\n        case "packed" | "deep": pass',
        "from ..methods._mimo import mimo",
    ],
)
def test_every_form_of_asking_for_a_method_is_seen(line):
    assert [*asked_for(ast.parse(f"def f():\n    {line}"), set(pluribus.METHODS))]


def loaded_by(package: str, after: str) -> set[str]:
    code = f"import sys, {after}; before = set(sys.modules); import {package}; print(*set(sys.modules) - before)"
    command = [sys.executable, "-c", code]
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
