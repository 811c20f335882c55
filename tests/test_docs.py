"""Code in the documentation runs: blocks of README.md and docs/, examples in docstrings."""

import doctest
import importlib
import inspect
import json
import os
import pkgutil
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest
import torch
import typer
from browser import chromium, show

import pluribus
from pluribus.cli.app import app

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
SLOW = [  # they take more than a second
    "calibration", "data", "deploy", "first-ensemble", "how-many", "inside", "integrations", "pretrained", "speed",
    "uncertainty", "why-ensembles-work",
]  # fmt: skip
BLOCK = re.compile(r"(?ms)^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*$")
NOT_RUN = re.compile(r"# not run: \S")


def parameter(page: Path):
    marks = [pytest.mark.slow] if page.stem in SLOW else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [parameter(page) for page in PAGES])
def test_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A real module: dataclasses and pickling look up the module of what a block defines.
    namespace = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, namespace.__name__, namespace)
    for line, code in blocks(page.read_text()):
        # Empty lines before the code make a traceback point into the page.
        exec(compile("\n" * line + code, str(page), "exec"), namespace.__dict__)


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Give the line number and the code of every block to run."""
    for block in BLOCK.finditer(text):
        code = textwrap.dedent(block["code"])
        if not NOT_RUN.match(code):
            yield text.count("\n", 0, block.start("code")), code


def test_blocks_are_found_with_their_lines():
    run = "a\n```python\nx = 1\n```\n- b\n  ```python\n  y = 2\n  ```\n"
    left_out = "```python\n# not run: needs a GPU\n1 / 0\n```\n```\nno code\n```\n"
    assert list(blocks(run + left_out)) == [(2, "x = 1\n"), (6, "y = 2\n")]


def test_a_block_is_left_out_only_with_a_reason():
    assert list(blocks("```python\n# not run:\n1\n```\n")) == [(1, "# not run:\n1\n")]


@pytest.mark.slow
def test_the_readme_shows_what_its_code_prints(capsys):
    text = README.read_text()
    ((line, code),) = blocks(text)
    exec(compile("\n" * line + code, str(README), "exec"), {})
    printed = capsys.readouterr().out
    shown = re.search(r"(?s)```text\n(.*?)```", text[text.index(code.splitlines()[-1]) :])[1]
    number = re.compile(r"(?<![\w.,])[\d,]+(?:\.\d+)?")
    assert number.sub("", printed) == number.sub("", shown)  # the words
    expected = [float(found.replace(",", "")) for found in number.findall(shown) if found != ","]
    assert len(expected) == 6
    # Chips differ in the last digits of a sum, and training carries them on.
    assert [float(n.replace(",", "")) for n in number.findall(printed) if n != ","] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    "name", ["pluribus", *(found.name for found in pkgutil.walk_packages(pluribus.__path__, "pluribus."))]
)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = {"torch": torch, "nn": torch.nn, "pb": pluribus}
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testmod(module, extraglobs=names, optionflags=options)
    assert failed == 0


def test_the_plan_names_every_folder_and_only_files_that_exist():
    source, page = ROOT / "src" / "pluribus", (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("src/pluribus/\n")[2].partition("```")[0]
    named = {match[1] for match in re.finditer(r"(?m)^ +(\w+)/", tree)}
    folders = {path.parent.name for path in source.rglob("__init__.py")} - {"pluribus"}
    assert named == folders
    files = set(re.findall(r"`(\w+/[\w/]+\.py)`", page))
    assert files and [f for f in files if not any((root / f).is_file() for root in (source, ROOT))] == []


def test_what_the_comparison_with_other_libraries_says_of_pluribus_is_true():
    script = runpy.run_path(str(ROOT / "docs" / "other_libraries.py"))
    ours, rows = script["ours"](), script["rows"]()
    assert len(rows) > 15
    assert [fact for fact, searched, cell, *_ in rows if script["faults"](searched, cell, ours)] == []


def test_every_public_name_stands_in_the_reference():
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    names = [name for name in pluribus.__all__ if not inspect.ismodule(getattr(pluribus, name))]
    assert [name for name in names if f"heading: pb.{name}\n" not in text] == []
    inside = pluribus.landscape.__all__
    assert [name for name in inside if f"heading: landscape.{name}\n" not in text] == []


@pytest.mark.parametrize("place", [pluribus, pluribus.landscape, pluribus.models, pluribus.metrics, pluribus.figures])
def test_every_public_function_and_class_has_an_example(place):
    names = getattr(place, "__all__", None) or [name for name in dir(place) if not name.startswith("_")]
    values = {name: getattr(place, name) for name in names}
    ours = {n: v for n, v in values.items() if (inspect.isfunction(v) or inspect.isclass(v)) and _is_ours(v)}
    assert ours and [name for name, value in ours.items() if ">>>" not in (value.__doc__ or "")] == []


def _is_ours(value):
    return value.__module__.startswith("pluribus.")


@pytest.mark.parametrize("place", [pluribus, pluribus.landscape])
def test_every_argument_of_a_public_name_is_explained(place):
    unknown = []
    for name in place.__all__:
        value = getattr(place, name)
        if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, dict)):
            words = set(re.findall(r"\w+", re.sub(r"(?m)^ *(>>>|\.\.\.).*$", "", value.__doc__ or "")))
            unknown += [f"{name}({a})" for a in inspect.signature(value).parameters if a not in words]
    assert unknown == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocstrings", reason="mkdocs and mkdocstrings, which build the site, are not installed")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: it hides warnings, and --strict then lets them pass.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder


def test_the_coverage_on_the_page_is_that_of_100_stored_splits_and_within_2_points():
    docs, found = ROOT / "docs", {}
    for split in map(json.loads, (docs / "results" / "coverage.jsonl").read_text().splitlines()):
        for name, value in split["values"].items():
            if name in ("predictor 0.9", "sklearn 0.9", "sets 0.9"):
                found.setdefault((split["table"], name), []).append(100 * value)
    page = (docs / "calibration.md").read_text()
    assert len(found) == 5 * 2 + 2 and {len(shares) for shares in found.values()} == {100}
    for (table, _), shares in found.items():
        assert abs(mean(shares) - 90) <= 2
        assert re.search(rf"(?m)^\| {table} \|.*\b{mean(shares):.1f} ± ", page)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(site):
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    assert {"index", "security", *(f"reference/{name}" for name in ("commands", "methods", "landscape"))} <= pages
    shown = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.ipynb")]
    assert {path.relative_to(ROOT).with_suffix("").as_posix() for path in shown} <= pages


def test_the_start_page_leads_to_the_page_for_drawing_where_it_was_built(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs, which builds the site, is not installed")
    hook = runpy.run_path(str(ROOT / "docs" / "site_pages.py"))["on_page_markdown"]
    page, config = (ROOT / "docs" / "index.md").read_text(), {"config_file_path": tmp_path / "mkdocs.yml", "nav": []}
    assert "draw-a-digit.html" not in hook(page, None, config)
    (tmp_path / "browser-build").mkdir()
    (tmp_path / "browser-build" / "digits.html").touch()
    assert "](draw-a-digit.html)" in hook(page, None, config)


@pytest.mark.slow
def test_the_page_of_the_commands_has_every_option(site):
    text = (site / "reference" / "commands.html").read_text()
    group = typer.main.get_command(app)
    for name in group.list_commands(typer.Context(group)):
        _, _, part = text.partition(f'<h2 id="pluribus-{name}">')
        options = [o for p in group.get_command(typer.Context(group), name).params if not p.hidden for o in p.opts]
        missing = [option for option in options if option.startswith("--") and option not in part.partition("<h2")[0]]
        assert part and missing == [], name


@pytest.mark.slow
def test_reading_the_site_fetches_nothing(site):
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    fetched = r'<(?:script|img|iframe|source|link(?! rel="(?:next|prev|canonical)"))[^>]*(?:src|href)="(https?:[^"]+)"'
    assert re.findall(fetched, text) == []


QUESTIONS = {
    "how to make a ViT uncertain": ("Start from a trained model", "In short: a pretrained ViT", "pb.lora(vit"),
    "what Masksembles costs at inference": ("Choosing a method", "What a prediction costs", "masksembles, scale 2"),
    "how to serve": ("Deploying", "Serve it", "ThreadingHTTPServer"),
    "how to add a method": ("Contributing", "Adding a method", "one entry of METHODS"),
    "which options compare has": ("Commands", "pluribus compare", "--seeds"),
    "whether the numbers can be trusted": ("Reproducing the papers", "Limits of the evidence", "not run"),
}


@pytest.mark.slow
def test_six_questions_are_answered_one_click_from_the_start_page(site, tmp_path):
    with chromium(tmp_path) as driver:
        for link, heading, words in QUESTIONS.values():
            show(driver, site / "index.html")
            driver.find_element("css selector", ".md-content").find_element("link text", link).click()
            content = driver.find_element("css selector", ".md-content").text
            assert heading in content and words in content, link
        show(driver, site / "reference" / "methods.html")
        driver.find_element("css selector", ".md-search__input").send_keys("masksembles")
        driver.implicitly_wait(30)
        assert driver.find_elements("css selector", ".md-search-result__item")  # without a server, without a network


def navigated() -> list[str]:
    """The pages that the navigation names, as files of the site."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return [f"{path.removesuffix('.md')}.html" for path in re.findall(r"[\w/-]+\.md", navigation)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_its_window(site, tmp_path, width):
    with chromium(tmp_path) as driver:
        wide = []
        for page in map(site.joinpath, navigated()):
            show(driver, page, width=width)
            if driver.execute_script("return document.documentElement.scrollWidth") > width:
                wide.append(str(page.relative_to(site)))
    assert wide == []


@pytest.mark.slow
def test_every_page_is_two_clicks_from_the_start_page(site):
    def linked(page: Path) -> set[Path]:
        content = page.read_text().partition('<article class="md-content__inner')[2].partition("</article>")[0]
        paths = re.findall(r'href="([^":#]+\.html)', content)
        return {(page.parent / path).resolve() for path in paths}

    once = linked(site / "index.html")
    twice = once.union(*(linked(page) for page in once), {(site / "index.html").resolve()})
    assert {(site / page).resolve() for page in navigated()} - twice == set()


@pytest.mark.slow
def test_the_command_for_people_with_a_gpu_writes_its_file(tmp_path):
    script, written = ROOT / "benchmarks" / "gpu.py", tmp_path / "gpu.json"
    command = [sys.executable, script, "--batch", "2", "--seconds", "0.01", "--device", "cpu", "--json", written]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    names = [result["name"] for result in found["results"]]
    ways = {"loop", "vmap", "grouped", "frozen"}
    assert {name.rpartition(", ")[2] for name in names if "plain CNN" in name} == ways
    assert {name.partition(",")[0] for name in names} >= {"deep", "masksembles"}
    assert all(result["ratio"] > 0 for result in found["results"])
    assert all(name in done.stdout for name in names) and "No GPU here" in done.stdout
    assert found["about"].keys() == {"torch", "pluribus", "python", "device", "threads"}
