"""The page as people use it: values on pointing and by keys, what they take away, and how it looks on a phone."""

import csv
import io
import re
import time
from xml.etree import ElementTree

import fakes
import numpy as np
import pytest
from browser import show, unfold

from pluribus.report.page import report

EVERY = [("single", 3.0), ("deep", 3.3), ("mimo", 2.9), ("packed", 3.25)]
SCREENS = [(1280, False), (768, False), (390, False), (1280, True), (390, True)]


@pytest.fixture(scope="module")
def runs():
    classification = [fakes.classification(label, seed=s, skill=skill) for label, skill in EVERY for s in range(2)]
    return classification + [fakes.regression(label, seed=s) for label in ("single", "deep") for s in range(2)]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    report(runs, path)
    return path


def press(driver, key):
    driver.execute_script(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))", key
    )


def told(driver):
    return driver.execute_script(
        "return document.querySelector('.tip').hidden ? '' : document.querySelector('.tip').textContent"
    )


# ---------------------------------------------------------------- values


WALK = """
    const found = [];
    for (const panels of document.querySelectorAll(".panels")) {
        const charts = [...panels.querySelectorAll(".chart:not(.readable)")];  // those have tests of their own
        if (!charts.length) continue;
        const stops = charts.filter(chart => chart.tabIndex === 0).length, seen = new Set(), words = new Set();
        charts[0].focus();
        for (let i = 0, last = ""; i < 3000; i++) {
            const tip = document.querySelector(".tip");
            if (tip.hidden) break;
            seen.add(charts.indexOf(document.activeElement));
            const place = charts.indexOf(document.activeElement) + document.getElementById("status").textContent;
            words.add(tip.textContent);
            if (place === last) break;  // the end
            last = place;
            const key = new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true});
            document.activeElement.dispatchEvent(key);
        }
        found.push([panels.parentElement.querySelector("h3").textContent, charts.length, stops, seen.size, words.size]);
    }
    return found;
"""


def test_keys_reach_a_value_in_every_chart_and_a_figure_is_one_stop(driver, page):
    show(driver, page, width=1280)
    unfold(driver)
    found = driver.execute_script(WALK)
    assert len(found) >= 14
    for title, charts, stops, seen, words in found:
        assert stops == 1 and seen == charts and words >= 1, title


def test_a_line_tells_the_values_it_is_drawn_from(driver, page, runs):
    show(driver, page, width=1280)
    unfold(driver)
    wrong = [
        np.mean(run.columns["test/label"] != run.columns["test/target"])
        for run in runs
        if run.record["label"] == "deep" and run.record["data"] == "digits"
    ]
    chart = driver.find_element("css selector", ".figure:has([id$=risk-coverage]) .chart")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", chart)
    first = told(driver) or (press(driver, "ArrowRight") or told(driver))
    assert first.startswith("single: share answered")
    while not told(driver).startswith("deep: "):
        press(driver, "ArrowDown")
    while not told(driver).startswith("deep: share answered 1,"):
        before = told(driver)
        press(driver, "ArrowRight")
        assert told(driver) != before
    assert float(told(driver).rsplit(" ", 1)[1]) == pytest.approx(np.mean(wrong), rel=1e-3)
    assert driver.find_element("id", "status").get_attribute("textContent") == told(driver)
    press(driver, "Escape")
    assert told(driver) == ""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_pointing_at_a_mark_and_near_a_line_tells_values(driver, page, width, dark):
    show(driver, page, width=width, dark=dark)
    unfold(driver)
    places = driver.execute_script("""
        const by = id => document.querySelector(`.figure:has([id$=${id}]) .chart`);
        const line = by("roc").querySelector("[data-read]"), mark = by("gain").querySelector(".mark");
        line.scrollIntoView({block: "center"});
        const point = line.getPointAtLength(line.getTotalLength() / 2).matrixTransform(line.getScreenCTM());
        mark.scrollIntoView({block: "center"});
        const box = mark.getBoundingClientRect();
        return {line: [point.x + 3, point.y + 3], mark: [box.x + 4, box.y + 4]};
    """)
    point(driver, places["mark"])
    assert re.match(r"\w+: gain [\d.−]+ \[.*\], (better|unclear|worse), cost [\d.]+x$", told(driver))
    box = driver.execute_script("return document.querySelector('.tip').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0 and box["right"] <= width
    line = ".figure:has([id$=roc]) [data-read]"
    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", line)
    point(driver, places["line"])
    assert re.match(r"\w+: share of test data rejected [\d.]+, share of letters rejected [\d.]+$", told(driver))
    point(driver, [1, 1])
    assert told(driver) == ""


def point(driver, place):
    mouse = {"type": "mouseMoved", "x": place[0], "y": place[1]}
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", mouse)


# ---------------------------------------------------------------- what is taken away


def take(driver, folder, section, kind):
    """The content of the file that a button saves."""
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    before = set(folder.iterdir())
    found = section.find_elements("css selector", ":is(.take, .take *) button, :scope > button")
    button = next(b for b in found if b.get_attribute("textContent").startswith(kind))
    driver.execute_script("arguments[0].click()", button)
    for _ in range(200):
        new = [file for file in set(folder.iterdir()) - before if not file.name.endswith(".crdownload")]
        if new and new[0].stat().st_size:
            return new[0]
        time.sleep(0.02)
    raise AssertionError(f"no file came of {kind}")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_figure_is_saved_as_svg_and_png_in_light_colours(driver, page, tmp_path, width, dark):
    image = pytest.importorskip("PIL.Image")
    show(driver, page, width=width, dark=dark)
    section = driver.find_element("css selector", ".figure:has([id$=trade-off])")
    file = take(driver, tmp_path, section, "SVG")
    assert file.name == "quality-versus-cost.svg"
    root = ElementTree.parse(file).getroot()
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert {"single", "deep", "packed", "mimo", "NLL"} <= set(texts)  # the legend and the axes
    marks = [e for e in root.iter(f"{space}path") if e.find(f"{space}title") is not None]
    assert {mark.get("fill") for mark in marks} >= {"rgb(10, 79, 163)"}  # the blue of what is recommended, in dark too
    text = file.read_text()
    assert "var(" not in text and "class=" not in text and "color(" not in text and "href" not in text
    png = image.open(take(driver, tmp_path, section, "PNG"))
    assert png.size == tuple(3 * round(float(root.get(side))) for side in ("width", "height"))
    colours = {colour for count, colour in png.convert("RGB").getcolors(2**20) if count > 50}
    assert (255, 255, 255) in colours and (10, 79, 163) in colours
    assert driver.get_log("browser") == [] and not driver.execute_script(
        "return 'take' in document.documentElement.dataset"
    )


def test_every_figure_of_the_page_becomes_a_picture(driver, page):
    show(driver, page)
    unfold(driver)
    found = driver.execute_script("return [...document.querySelectorAll('.figure')].map(f => picture(f).text)")
    assert len(found) >= 16
    for text in found:
        root = ElementTree.fromstring(text)
        assert float(root.get("width")) > 200 and len(list(root.iter())) > 10 and "var(" not in text
        assert ("url(#" in text) == ("<pattern" in text)


def test_a_table_is_saved_with_the_numbers_of_the_results(driver, page, tmp_path, runs):
    show(driver, page)
    main = driver.find_element("css selector", "#data-0 .sheet > .take")
    file = take(driver, tmp_path, main, "CSV")
    rows = list(csv.DictReader(io.StringIO(file.read_bytes().decode("utf-8-sig"), newline="")))
    assert [row["method"] for row in rows] == [label for label, _ in EVERY] and {row["seeds"] for row in rows} == {"2"}
    for row in rows:
        own = [
            r.record["metrics"]["nll"]["value"]
            for r in runs
            if (r.record["label"], r.record["data"]) == (row["method"], "digits")
        ]
        assert float(row["nll"]) == pytest.approx(np.mean(own)) and float(row["nll_low"]) < float(row["nll_high"])
    assert float(rows[1]["relative_mult_adds"]) == pytest.approx(4)
    tex = take(driver, tmp_path, main, "LaTeX").read_text()
    lines = [line.strip() for line in tex.splitlines() if line.strip().endswith("\\\\")]
    columns = re.search(r"begin{tabular}{(\w+)}", tex)[1]
    assert len(lines) == 1 + len(EVERY) and {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(columns)}
    assert "NLL $\\downarrow$" in lines[0] and "Accuracy \\% $\\uparrow$" in lines[0] and "\\textbf{" in tex
    assert not re.search(r"(?<!\\)%(?! \\usepackage)", tex) and tex.isascii()


# ---------------------------------------------------------------- how it looks


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_the_page_and_its_first_table_fit_the_screen(driver, page, width, dark):
    show(driver, page, width=width, dark=dark)
    unfold(driver)
    body, box = driver.execute_script("""
        const fits = e => e.scrollWidth <= e.clientWidth;
        return [fits(document.documentElement), fits(document.querySelector("table.sortable").closest(".scroll"))]""")
    assert body and box
    hidden = driver.execute_script("""
        return [...document.querySelectorAll("table.sortable")[0].querySelectorAll("td")].filter(cell => {
            const box = cell.getBoundingClientRect();
            return box.width < 20 || box.height < 20;
        }).length""")
    assert hidden == 0


def test_on_a_phone_each_value_has_its_name_and_rows_can_be_sorted(driver, page):
    show(driver, page, width=390)
    label = "getComputedStyle(document.querySelector('table.sortable tbody td'), '::before').content"
    assert driver.execute_script(f"return {label}") == '"Accuracy, % ↑"'
    names = (
        "return [...document.querySelectorAll('table.sortable')[0].tBodies[0].rows].map(r => r.cells[0].dataset.sort)"
    )
    unfold(driver)
    driver.find_elements("css selector", "table.sortable thead button")[0].click()
    assert driver.execute_script(names) == sorted(label for label, _ in EVERY)
    parts = "[...document.querySelector('table.sortable').querySelectorAll('td, th, tr')]"
    assert driver.execute_script(f"return {parts}.every(part => part.getAttribute('role'))")


# ---------------------------------------------------------------- words
