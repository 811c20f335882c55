"""Every script of examples/ runs as a user runs it, and stands on the page of the gallery with what it gives."""

import ast
import os
import re
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import pluribus as pb

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.relative_to(ROOT / "examples").as_posix() for path in (ROOT / "examples").rglob("*.py"))
NEEDS = {"ray_cluster.py": "ray", "timm_fine_tuning.py": "timm", "text_classifier.py": "transformers"}
ELSEWHERE = {"browser/build.py"}  # needs npm: tests/examples/test_browser.py
PAGE = (ROOT / "docs" / "gallery.md").read_text()


def test_there_are_fifteen_scripts_and_more():
    assert len(SCRIPTS) >= 15


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_says_what_one_learns_and_stands_on_the_page(script):
    source = (ROOT / "examples" / script).read_text()
    described = ast.get_docstring(ast.parse(source)) or ""
    assert len(described.split("\n\n")) >= 2, "a sentence of what it is, and what one learns"
    assert f"](../examples/{script})" in PAGE
    for picture in re.findall(r'savefig\("([\w.]+)"', source):
        assert f"`{picture}`" in described
        assert re.search(rf"!\[[^\]]+\]\((?:gallery|images)/{picture}\)", PAGE), picture


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_imports_nothing_private(script):
    tree = ast.parse((ROOT / "examples" / script).read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    public = r"pluribus(\.(data(\.corruptions)?|study|integrations\.\w+))?"
    assert [m for m in modules if m.startswith("pluribus") and not re.fullmatch(public, m)] == []


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(set(SCRIPTS) - ELSEWHERE))
def test_the_script_runs_and_gives_what_it_promises(script, tmp_path, monkeypatch, capfd):
    if script in NEEDS:
        pytest.importorskip(NEEDS[script])
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script])
    known, threads = dict(pb.METHODS), torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]), patch.dict(os.environ):
            runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    finally:
        pb.METHODS.clear()
        pb.METHODS.update(known)
        torch.set_num_threads(threads)
        matplotlib.pyplot.close("all")
    assert capfd.readouterr().out.strip()
    source = (ROOT / "examples" / script).read_text()
    for picture in re.findall(r'savefig\("([\w.]+)"', source):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
