"""The page: complete in itself, safe with any name, and used in a real browser."""

import json
import re
from html.parser import HTMLParser

import fakes
import numpy as np
import pytest
from browser import show, unfold

from pluribus._common.signed_files import write_npz, write_signed_json
from pluribus.report.charts import CHARTS
from pluribus.report.charts.sweeps import compute_gains
from pluribus.report.figure import number_styles
from pluribus.report.page import report
from pluribus.report.svg import HUES, SHAPES, Axis, dash, marker, tick_text
from pluribus.results.store import Result, group_runs, write

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'
FEW = (("single", 3.0), ("deep", 3.3), ("packed", 3.25), ("mimo", 2.9))


def few(**settings: object) -> list[Result]:
    return [fakes.classification(label, seed=s, skill=skill, **settings) for label, skill in FEW for s in range(2)]


def evil() -> list[Result]:
    """Runs whose every name is HTML."""
    found = []
    for label in ("single", EVIL):
        result = fakes.classification(label, method="single" if label == "single" else "deep", data=f"{EVIL} data")
        result.record.update(model=EVIL, classes=[EVIL] * 10, notes=[EVIL], training={EVIL: EVIL})
        result.record["outside"] = {EVIL: result.record["outside"]["letters"]}
        result.record["versions"] = {EVIL: EVIL}
        for score in ("msp", "mutual_information"):
            result.columns[f"outside/{EVIL}/{score}"] = result.columns.pop(f"outside/letters/{score}")
        found.append(result)
    return found


# ---------------------------------------------------------------- without a browser


class Elements(HTMLParser):
    """Start tags with their attributes, in order."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_page_is_small_and_names_no_address():
    html = report(fakes.many(3))
    assert len(html) < 1_000_000
    assert re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*""", html) == []
    assert "http:" not in html and "https:" not in html


def test_names_that_contain_html_are_text_everywhere():
    html = report(evil(), title=EVIL)
    tags = [tag for tag, _ in Elements(html).found]
    assert tags.count("script") == 1 and all("onerror" not in attributes for _, attributes in Elements(html).found)
    assert EVIL not in html and "&lt;script&gt;" in html


def test_a_folder_is_read_and_its_damaged_files_are_named(tmp_path):
    folder = fakes.study(tmp_path, few(examples=60))
    (folder / "results" / "broken.npz").write_bytes(b"PK")
    write_signed_json(folder / "study.json", {"command": "pluribus compare --data digits --seeds 2"})
    html = report(folder, folder / "report.html")
    assert (folder / "report.html").read_text() == html
    assert "broken.npz" in html and "pluribus compare --data digits --seeds 2" in html


def test_no_results_is_an_error_with_a_way_out(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="at least one result.*broken.npz damaged.*Run a comparison"):
        report(tmp_path)
    with pytest.raises(ValueError, match="at least one result"):
        report([])


def test_what_is_missing_is_left_out_with_a_sentence():
    html = report([fakes.classification(label, shift=False, outside=False, pictures=False) for label, _ in FEW])
    assert "The study has no shifted data" in html and "The study has no out-of-distribution (OOD) data" in html
    assert "Under distribution shift" not in html and "OOD detection (ROC)" not in html
    assert "Examples</summary>" not in html


def test_runs_without_columns_or_with_nan_still_give_a_page():
    bare = [Result(result.record) for result in few()]
    assert "stored no finite values" in report(bare)
    broken = fakes.classification("mimo", seed=0)
    broken.record["metrics"]["nll"] = {"value": float("nan"), "low": None, "high": None}
    broken.columns["test/confidence"] = np.full(300, np.nan)
    assert "–" in report([fakes.classification("single"), fakes.classification("deep"), broken])


def test_a_record_with_only_what_is_needed_gives_a_page():
    needed = ("run", "method", "label", "settings", "data", "task", "seed", "metrics")
    record = {key: fakes.classification().record[key] for key in needed} | {"cost": {}}
    assert "One seed: intervals of differences" in report([Result(record)])


def test_every_chart_of_the_table_is_drawn_for_some_run():
    classification = group_runs(fakes.many(1))["digits", "lenet"]
    tables = [fakes.regression(label) for label in ("single", "deep")]
    for result in tables:
        result.record["shift"] = {"2020": [{"severity": severity, "rmse": 0.1 * severity} for severity in (1, 2)]}
    regression = group_runs(tables)["houses", "lenet"]
    drawn = {
        name
        for name, kind in CHARTS.items()
        for groups in (classification, regression, widths())
        if kind.function(groups, number_styles(groups))
    }
    assert drawn == set(CHARTS)


def widths():
    runs = []
    for method, gain in (("single", 0.0), ("packed", -0.1), ("deep", 0.3)):
        for width in (1, 2):
            result = fakes.classification(f"{method} width={width}", method=method)
            result.record["width"] = width
            result.record["metrics"]["nll"] = {"value": 1.0 - gain * width, "low": None, "high": None}
            runs.append(Result(result.record))
    return group_runs(runs)["digits", "lenet"]


def test_a_sweep_of_widths_shows_the_gain_over_the_single_network_of_that_width():
    gains = {label: [(x, round(gain.value, 6)) for x, gain in line]
             for label, line in compute_gains(widths(), "nll").items()}  # fmt: skip
    assert gains == {"deep": [(1, 0.3), (2, 0.6)], "packed": [(1, -0.1), (2, -0.2)], "thin single": [(2, 0.0)]}
    assert compute_gains([group for group in widths() if group.record["method"] != "single"], "nll") == {}


def test_the_sweep_shows_the_setting_that_differs():
    groups = group_runs(fakes.many(1))["digits", "lenet"]
    figure = CHARTS["sweeps"].function(groups, number_styles(groups))
    assert [row[:2] for row in figure.rows] == [[f"packed alpha={alpha}", str(alpha)] for alpha in (1, 2, 3)]
    assert all("against alpha" in panel.svg for panel in figure.panels)


def test_labels_have_one_style_each_that_no_other_has():
    groups = [group for groups in group_runs(fakes.many(1)).values() for group in groups]
    found = number_styles(groups, "packed alpha=2", "deep")
    assert (found["single"], found["packed alpha=2"], found["deep"]) == (0, 1, 3)
    assert len(set(found.values())) == len(found)
    others = [number for label, number in found.items() if label not in ("single", "packed alpha=2", "deep")]
    assert all(number % HUES == 0 and number >= HUES for number in others)  # grey
    looks = {(style % HUES, marker(style, 0, 0, 1)) for style in range(HUES * SHAPES)}
    assert len(looks) == HUES * SHAPES
    assert len({(style % HUES, dash(style)) for style in range(20)}) == 20


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 7e5), (0.97, 0.981), (1e-6, 2e-6), (5, 5)])
def test_ticks_are_inside_and_told_apart(low, high):
    axis = Axis(low, high)
    texts = [tick_text(axis.ticks)(tick) for tick in axis.ticks]
    assert 2 <= len(axis.ticks) <= 8 and len(set(texts)) == len(texts)
    assert all(0 <= axis.share(tick) <= 1 for tick in axis.ticks)


# ---------------------------------------------------------------- in Chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages by name: many methods; two data sets with two seeds; names of HTML."""
    folder = tmp_path_factory.mktemp("pages")
    both = few() + [fakes.regression(label, seed=s) for label in ("single", "deep", "packed") for s in range(2)]
    for name, results in (("many", fakes.many(2)), ("both", both), ("evil", evil())):
        report(results, folder / f"{name}.html", **({"title": EVIL} if name == "evil" else {}))
    return folder


@pytest.mark.parametrize("name", ["many", "both", "evil"])
def test_the_browser_has_no_complaint_and_fetches_nothing(driver, pages, name):
    driver.get_log("browser")
    driver.get_log("performance")
    show(driver, pages / f"{name}.html")
    assert driver.get_log("browser") == []
    assert driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert asked and [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", ["many", "both"])
def test_every_chart_is_drawn(driver, pages, name):
    show(driver, pages / f"{name}.html")
    unfold(driver)
    found = driver.execute_script("""
        return [...document.querySelectorAll("svg.chart")].map(svg => {
            const box = svg.getBoundingClientRect();
            const marks = [...svg.querySelectorAll(".mark, .bubble, .bar, .patch, .line, .box")];
            const seen = marks.filter(m => {
                const b = m.getBBox(), style = getComputedStyle(m);
                const painted = [style.fill, style.stroke].some(paint => paint !== "none" && paint !== "");
                return painted && b.width + b.height > 0;
            });
            const place = m => m.getBoundingClientRect();
            const inside = seen.every(m => place(m).left >= box.left - 12 && place(m).right <= box.right + 12);
            return [box.width, box.height, seen.length, inside, svg.getAttribute("aria-label")];
        })""")
    assert len(found) >= 15
    for width, height, marks, inside, words in found:
        assert width > 100 and height > 60 and marks > 0 and inside and words, words


def test_series_have_the_colour_of_their_label_in_every_chart(driver, pages):
    show(driver, pages / "many.html")
    unfold(driver)
    colours = driver.execute_script("""
        const found = {};
        for (const mark of document.querySelectorAll(".chart .mark, .swatch .mark")) {
            const number = [...mark.classList].find(name => /^n\\d+$/.test(name));
            const style = getComputedStyle(mark);
            (found[number] ??= new Set()).add(mark.classList.contains("open") ? style.stroke : style.fill);
        }
        return Object.fromEntries(Object.entries(found).map(([key, value]) => [key, [...value]]))""")
    assert len(colours) >= 12 and all(len(found) == 1 for found in colours.values())


def column(driver, number):
    cells = (
        f"[...document.querySelectorAll('table.sortable')[0].tBodies[0].rows].map(r => r.cells[{number}].dataset.sort)"
    )
    return driver.execute_script(f"return {cells}")


def sort_states(driver):
    return driver.execute_script(
        "const heads = document.querySelector('table.sortable').tHead.rows[0].cells;"
        "return [...heads].map(head => head.getAttribute('aria-sort'))"
    )


def test_a_click_sorts_and_the_next_turns_the_order(driver, pages):
    show(driver, pages / "many.html")
    unfold(driver)
    buttons = driver.find_element("css selector", "table.sortable").find_elements("css selector", "thead button")
    assert sort_states(driver).count("none") == len(sort_states(driver))
    buttons[1].click()  # accuracy: the highest first
    values = [float(value) for value in column(driver, 1)]
    assert values == sorted(values, reverse=True) and sort_states(driver)[1] == "descending"
    buttons[1].click()
    assert [float(value) for value in column(driver, 1)] == sorted(values) and sort_states(driver)[1] == "ascending"
    buttons[2].click()  # NLL: the lowest first
    values = [float(value) for value in column(driver, 2)]
    assert values == sorted(values) and sort_states(driver)[1:3] == ["none", "ascending"]
    for number, button in enumerate(buttons[3:], 3):
        driver.execute_script("arguments[0].click()", button)
        values = [float(value) for value in column(driver, number)]
        assert values in (sorted(values), sorted(values, reverse=True)), number
    buttons[2].click()
    assert "Sorted by NLL" in driver.find_element("id", "status").get_attribute("textContent")


def test_the_keyboard_reaches_the_verdict_and_then_the_table(driver, pages):
    from selenium.webdriver.common.keys import Keys

    show(driver, pages / "both.html")
    body = driver.find_element("tag name", "body")
    body.send_keys(Keys.TAB)
    first = driver.switch_to.active_element
    assert first.text == "Skip to the verdict" and first.rect["x"] >= 0
    outline = driver.execute_script("return getComputedStyle(document.activeElement).outlineWidth")
    assert float(outline.removesuffix("px")) >= 2
    first.send_keys(Keys.ENTER)
    assert driver.execute_script("return document.activeElement.id") == "main"


def test_a_legend_entry_brings_its_series_forward(driver, pages):
    show(driver, pages / "both.html")
    unfold(driver)
    entries = driver.find_elements("css selector", ".legend button")
    driver.execute_script("arguments[0].focus(); arguments[0].click()", entries[1])
    state = driver.execute_script(
        """
        const series = arguments[0].dataset.series, figure = arguments[0].closest(".figure");
        const marks = [...figure.querySelectorAll(".panels [class*=' n']")];
        return [arguments[0].getAttribute("aria-pressed"),
            marks.every(m => m.classList.contains("dimmed") !== m.classList.contains("n" + series)),
            marks.some(m => m.classList.contains("dimmed"))]""",
        entries[1],
    )
    assert state == ["true", True, True]


CONTRAST = """
    const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const numbers = text => text.match(/[\\d.]+/g).map(n => Number(n) * (text.startsWith("color(srgb") ? 255 : 1));
    const behind = element => {
        for (let e = element; e; e = e.parentElement) {
            const colour = numbers(getComputedStyle(e).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || element.closest("script, .hidden, title")) continue;
        const inside = element.closest("svg");
        const ink = numbers(getComputedStyle(element)[inside ? "fill" : "color"]);
        let ground = behind(inside || element);
        if (element.classList.contains("cell-text")) {  // it stands on a shaded cell
            ground = numbers(getComputedStyle(element.previousElementSibling).fill).slice(0, 3);
        }
        const [a, b] = [luminance(ink), luminance(ground)].sort((x, y) => y - x);
        found.push([(a + 0.05) / (b + 0.05), element.tagName, walker.currentNode.data.trim().slice(0, 40)]);
    }
    return found.sort((x, y) => x[0] - y[0]);
"""


@pytest.mark.parametrize("name", ["many", "both"])
def test_text_has_enough_contrast_in_light_and_dark(driver, pages, name):
    grounds = []
    for dark in (False, True):
        show(driver, pages / f"{name}.html", dark=dark)
        unfold(driver)
        found = driver.execute_script(CONTRAST)
        assert len(found) > 100 and found[0][0] >= 4.5, found[:3]
        grounds.append(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


def test_marks_have_enough_contrast_in_light_and_dark(driver, pages):
    for dark in (False, True):
        show(driver, pages / "many.html", dark=dark)
        names = [f"--c{i}" for i in range(HUES)] + ["--back"]
        script = "const style = getComputedStyle(document.documentElement);"
        script += "return arguments[0].map(name => style.getPropertyValue(name).trim())"
        *inks, back = driver.execute_script(script, names)
        assert all(contrast(ink, back) >= 3 for ink in inks) and len(set(inks)) == HUES


def contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    one, other = sorted((luminance(first), luminance(second)))
    return (other + 0.05) / (one + 0.05)


def test_names_of_html_are_shown_as_text(driver, pages):
    show(driver, pages / "evil.html")
    assert driver.title == EVIL and driver.find_element("tag name", "h1").text == EVIL
    assert len(driver.find_elements("css selector", "body script")) == 1
    sources = driver.execute_script("return [...document.images].map(i => i.getAttribute('src').slice(0, 14))")
    assert sources and set(sources) == {"data:image/png"}
    assert EVIL in driver.find_element("css selector", "table.sortable tbody").get_attribute("textContent")


@pytest.mark.parametrize("name", ["many", "both", "evil"])
def test_a_screen_reader_finds_its_way(driver, pages, name):
    show(driver, pages / f"{name}.html")
    unfold(driver)
    check = driver.execute_script("""
        const all = selector => [...document.querySelectorAll(selector)];
        const ids = all("[id]").map(e => e.id);
        return {
            lang: document.documentElement.lang,
            landmarks: ["header", "main", "footer"].map(name => all(name).length),
            levels: all("h1, h2, h3, h4").map(h => Number(h.tagName[1])),
            images: all("img").every(i => i.alt && i.complete && i.naturalWidth > 0),
            charts: all("svg.chart").every(s => s.getAttribute("role") === "img" && s.getAttribute("aria-label")),
            decoration: all("svg:not(.chart)").every(s => s.getAttribute("aria-hidden") === "true"),
            buttons: all("button").every(b => b.textContent.trim()),
            summaries: all("details").every(d => d.querySelector("summary")?.textContent.trim()),
            scopes: all("th").every(t => t.scope),
            regions: all("[role=region], section, nav").every(r => r.getAttribute("aria-label")
                || document.getElementById(r.getAttribute("aria-labelledby"))),
            scrolling: all(".scroll").every(s => s.tabIndex === 0),
            links: all("a").every(a => a.textContent.trim() && document.querySelector(a.getAttribute("href"))),
            unique: new Set(ids).size === ids.length,
        }""")
    assert check.pop("lang") == "en" and check.pop("landmarks") == [1, 1, 1]
    levels = check.pop("levels")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert {key for key, value in check.items() if not value} == set()


# ---------------------------------------------------------------- odd records


ODD = {
    "no severity": {"shift": {"blur": [{"accuracy": 0.5}]}},
    "a severity that is none": {"shift": {"blur": [{"severity": None, "accuracy": 0.5}]}},
    "a severity of a billion": {"shift": {"blur": [{"severity": 10**9, "accuracy": 0.5}]}},
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_record_is_named_and_the_page_is_made(tmp_path, name):
    for label in ("single", "deep"):
        run = fakes.classification(label, examples=30)
        write(tmp_path / "results" / f"{label}.npz", run.record, run.columns)
    _rewrite_record(tmp_path / "results" / "deep.npz", **ODD[name])
    html = report(tmp_path)
    assert "deep.npz: " in html and "severit" in html and "Only one method ran: single" in html


def _rewrite_record(path, **changes):
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    arrays["record"] = np.array(json.dumps({**json.loads(str(arrays["record"])), **changes}))
    write_npz(path, arrays)
