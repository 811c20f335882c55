"""Packages that may be missing or broken: the error says which use needs what, and the way out."""

import subprocess
import sys
from pathlib import Path

import pytest

from pluribus._common.optional import require

SOURCE = Path(__file__).parents[2] / "src"
# What importing torchvision beside a torch that it was not built for ends in.
BROKEN = 'raise RuntimeError("operator torchvision::nms does not exist")\n'
USES = {
    "timm": "pluribus.models.by_name.build_network('timm:resnet18', (3, 32, 32), 10)",
    "lightning": "pb.fit(pb.single(torch.nn.Linear(2, 2)), (torch.zeros(4, 2), torch.zeros(4).long()), epochs=1)",
}


def test_a_missing_package_is_named_with_its_use_and_its_extra():
    with pytest.raises(ModuleNotFoundError, match=r"flying needs no_such_wings, .* pip install '\.\[air\]'"):
        require("no_such_wings.feathers", "flying", "air")


def test_what_a_package_lacks_itself_is_not_blamed_on_it(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_part'"):
        require("half_installed", "anything", "all")


def test_a_torchvision_that_does_not_fit_is_named_where_it_breaks_a_package(tmp_path):
    """Both packages import torchvision, lightning by way of torchmetrics; torchvision is broken."""
    add_package(tmp_path, "torchvision", BROKEN)
    for package in USES:
        add_package(tmp_path, package, "import torchvision\n")
    for package, error in zip(USES, errors(tmp_path), strict=True):
        assert error.startswith("ImportError")
        assert f"needs {package}, which imports torchvision" in error
        assert "does not match this version of torch (operator torchvision::nms does not exist)" in error
        assert "pip uninstall torchvision" in error


def test_a_use_without_its_package_names_the_extra(tmp_path):
    found = errors(tmp_path, hidden=USES)
    for package, extra, error in zip(USES, ("timm", "train"), found, strict=True):
        assert error.startswith("ModuleNotFoundError")
        assert f"needs {package}, which is not installed. From a clone: pip install '.[{extra}]'" in error


def add_package(folder, name, code):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)


def errors(folder, hidden=()):
    """What each use ends in, in a process without the help that the tests have: `-S` runs no sitecustomize."""
    paths = [str(folder), str(SOURCE), *(path for path in sys.path if path.endswith("-packages"))]
    lines = [
        f"import sys; sys.path[:0] = {paths!r}; sys.modules.update(dict.fromkeys({list(hidden)!r}))",
        "import torch, pluribus as pb, pluribus.models.by_name",
    ]
    for use in USES.values():
        lines += ["try:", f"    {use}", "except Exception as error:", "    print(type(error).__name__, error)"]
    command = [sys.executable, "-S", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
