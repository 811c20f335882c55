"""The first screen: what it says, that its parts follow one rule, and that it fits a screen, a phone and a sheet."""

import base64
import math
import re
from itertools import combinations

import fakes
import numpy as np
import pytest
from browser import show, unfold
from scipy import stats

from pluribus.report.charts.outside import roc_chart, shift_chart
from pluribus.report.charts.quality import frontier, gain_chart
from pluribus.report.figure import number_styles
from pluribus.report.first_screen import compose_screen
from pluribus.report.page import report
from pluribus.results.store import Result, group_runs
from pluribus.results.verdict import verdicts

COSTS = {"single": 1, "deep": 4, "packed": 1.1, "mimo": 1.02}


def study(seeds: int = 4, **values: list[float]) -> list[Result]:
    """Runs with these NLLs, one for each seed, and no columns."""
    runs = []
    for label, own in values.items():
        for seed, nll in enumerate(own[:seeds]):
            record = dict(fakes.classification(label, seed=seed, examples=30).record)
            record["metrics"] = {"nll": {"value": nll}, "accuracy": {"value": 0.9 - nll / 10}}
            runs.append(Result(record))
    return runs


def summary_of(runs):
    return compose_screen(verdicts(runs)[0])


CLEAR = {"single": [0.20, 0.21, 0.19, 0.20], "deep": [0.15, 0.16, 0.14, 0.151], "packed": [0.151, 0.159, 0.141, 0.15]}
NOISE = {"single": [0.20, 0.21, 0.19, 0.20], "deep": [0.15, 0.26, 0.14, 0.24]}


# ---------------------------------------------------------------- words


def test_the_sentence_says_what_to_use_what_it_gains_and_what_it_costs():
    found = summary_of(study(**CLEAR))
    assert found.sentence == "Use packed: it cuts log-loss (NLL) by 25 %, and a prediction takes 1.2 times as long."
    assert [tile[:2] for tile in found.tiles] == [("Gain", "−25 %"), ("Cost", "1.2x"), ("How sure", "clear")]
    gaps = np.array(CLEAR["packed"]) - CLEAR["single"]
    low, high = stats.t.interval(0.95, len(gaps) - 1, gaps.mean(), stats.sem(gaps))
    ends = [float(share) for share in re.findall(r"(\d+) %", found.tiles[2][2])[:2]]
    assert ends == [round(-100 * high / 0.2), round(-100 * low / 0.2)]


def test_where_nothing_is_shown_the_page_says_what_more_seeds_could_show():
    found = summary_of(study(**NOISE))
    gaps = np.array(NOISE["deep"]) - NOISE["single"]
    half = stats.t.ppf(0.975, 4) * gaps.std(ddof=1) / math.sqrt(5)  # five seeds of the same spread
    assert found.sentence.startswith("Keep the single network: nothing here is clearly better. With 5 seeds")
    assert float(re.search(r"difference of ([\d.]+) in log-loss", found.sentence)[1]) == pytest.approx(half, rel=0.05)
    assert [tile[1] for tile in found.tiles] == ["none shown", "1x", "inconclusive"]
    now = stats.t.ppf(0.975, 3) * gaps.std(ddof=1) / 2
    assert float(found.tiles[2][2].split()[-1]) == pytest.approx(now, rel=0.05)
    assert "differences of deep" in found.tiles[2][2]  # another method's differences may vary less, and be shown


def test_one_seed_is_never_called_clear():
    runs = [fakes.classification(label, skill=skill) for label, skill in (("single", 2.0), ("deep", 4.0))]
    found = summary_of(runs)
    assert found.sentence.startswith("Use deep") and "one training run of each" in found.sentence
    assert found.tiles[2][1] == "one seed" and any("--seeds 5" in text for text in found.changes)


def test_gains_of_accuracy_are_points_and_of_densities_plain_numbers():
    runs = study(**CLEAR)
    for run in runs:
        del run.record["metrics"]["nll"]
    assert "it raises accuracy by 0.50 points" in summary_of(runs).sentence
    tables = [
        fakes.regression(label, seed=s, noise=n) for label, n in (("single", 0.4), ("deep", 0.1)) for s in range(4)
    ]
    assert re.search(r"it cuts NLL by 1\.\d+, and", summary_of(tables).sentence)  # may be negative: no percent


def test_what_would_change_the_advice_names_other_budgets_and_close_rivals():
    dear = study(single=CLEAR["single"], deep=CLEAR["deep"], mimo=[0.199, 0.208, 0.188, 0.2])
    changes = summary_of(dear).changes
    assert changes[0].startswith("At single-network cost (up to 1.25x its mult-adds and time), no method is clearly")
    rivals = study(single=CLEAR["single"], packed=CLEAR["packed"], deep=[0.13, 0.14, 0.13, 0.155])
    said = summary_of(rivals)
    assert said.choice.label == "packed" and said.top.label == "deep"
    assert said.changes[0].startswith("Best at any cost: deep, NLL 0.1")
    assert re.match(r"deep may be better than packed: about \d+ seeds should decide it\.", said.changes[1])


# ---------------------------------------------------------------- charts


def test_the_chart_shows_paired_gains_with_the_intervals_of_scipy():
    values = {**CLEAR, "mimo": [0.23, 0.24, 0.21, 0.235], "treenet": [0.19, 0.23, 0.17, 0.2]}
    found = summary_of(study(**values))
    figure = gain_chart(found.verdict.found, found.choice)
    rows = {row[0]: row for row in figure.rows}
    assert list(rows) == sorted(rows, key=lambda label: np.mean(values[label]))  # the best on top
    words = {"packed": "better", "deep": "better", "treenet": "unclear", "mimo": "worse"}
    assert {label: row[2] for label, row in rows.items()} == words
    for label, row in rows.items():
        test = stats.ttest_rel(CLEAR["single"], values[label])
        interval = test.confidence_interval(0.95)
        shown = [float(number.replace("−", "-")) for number in re.findall(r"[−\d.]+", row[1])]
        mean = np.mean(CLEAR["single"]) - np.mean(values[label])
        assert shown == pytest.approx([mean, interval.low, interval.high], abs=6e-3)
        kind = {"better": "c1", "unclear": "c0", "worse": "c2"}[row[2]]
        assert re.search(rf'<path class="mark {kind} n\d"[^>]*><title>{label}: gain', figure.panels[0].svg)
    assert figure.panels[0].svg.count('class="marked"') == 1 and "zero" in figure.panels[0].svg


def test_the_frontier_is_what_nothing_beats():
    rng = np.random.default_rng(0)
    for higher in (False, True):
        points = [tuple(point) for point in rng.integers(1, 9, size=(12, 2)).astype(float)]
        sign = -1 if higher else 1
        edge = {
            (x, y)
            for x, y in points
            if not any(a <= x and sign * b <= sign * y and (a, b) != (x, y) for a, b in points)
        }
        assert edge <= set(frontier(points, higher)) and set(frontier(points, higher)[::2]) <= {*points}


def test_an_auroc_below_chance_is_called_so_and_gets_no_star():
    runs = [fakes.classification(label, seed=s) for label in ("single", "deep") for s in range(2)]
    for run in runs:
        inside, outside = run.columns["inside/msp"], run.columns["outside/letters/msp"]
        run.columns["inside/msp"], run.columns["outside/letters/msp"] = outside, inside
        for found in run.record["outside"]["letters"].values():
            found["auroc"] = 1 - found["auroc"] - (0.2 if run.record["label"] == "deep" else 0)
    html = report(runs)
    cells = re.findall(r'<td [^>]*data-title="AUROC OOD, % ↑".*?</td>', html)
    assert len(cells) == 2 and all("worse than chance" in cell and "★" not in cell for cell in cells)
    groups = group_runs(runs)["digits", "lenet"]
    assert "Worse than chance: single on letters, deep on letters" in roc_chart(groups, number_styles(groups)).caption


def test_shift_is_drawn_as_means_by_severity():
    groups = group_runs(fakes.many(2))["digits", "lenet"]
    figure = shift_chart(groups, number_styles(groups))
    assert len(figure.panels) == 2
    deep = next(group for group in groups if group.label == "deep")
    third = [
        row["ece"] for run in deep.runs for rows in run.record["shift"].values() for row in rows if row["severity"] == 3
    ]
    (told,) = (row[2] for row in figure.rows if row[:2] == ["deep", "ECE"])
    assert f"3: {np.mean(third):.4f}" in told and told.startswith("0: ")


# ---------------------------------------------------------------- one rule


@pytest.mark.parametrize("seed", range(12))
def test_stars_and_advice_agree(seed):
    rng = np.random.default_rng(seed)
    means = dict(zip(COSTS, 0.2 + 0.05 * rng.normal(size=4), strict=True))
    means["packed"] = means["deep"] if seed % 2 else means["packed"]  # tied: the cheaper one is recommended
    luck = 0.01 * rng.normal(size=5)
    values = {label: list(mean + luck + rng.uniform(0, 0.03) * rng.normal(size=5)) for label, mean in means.items()}
    runs = study(5, **values)
    html, found = report(runs), summary_of(runs)
    rows = dict(
        re.findall(r'<tr role="row"[^>]*><th [^>]*data-sort="(\w+)">(.*?)</tr>', html.split("Further")[0], re.S)
    )
    cells = {label: re.search(r'data-title="NLL ↓".*?</td>', row, re.S)[0] for label, row in rows.items()}
    stars = {label for label, cell in cells.items() if "★" in cell}
    recommended = {label for label, row in rows.items() if ">recommended<" in row}
    assert recommended == {found.choice.label} and set(rows) == set(COSTS)
    clear = [label for label in COSTS if label != "single" and _beats(values[label], values["single"])]
    assert bool(clear) == (found.choice.label != "single")
    if clear:
        assert recommended <= stars and "single" not in stars
        best = min(clear, key=lambda label: np.mean(values[label]))
        assert stars == {label for label in COSTS if not _beats(values[best], values[label])}


def _beats(first, second) -> bool:
    return bool(stats.ttest_rel(first, second).confidence_interval(0.95).high < 0)


# ---------------------------------------------------------------- in Chromium


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "page.html"
    report(fakes.many(3), path)
    return path


def test_the_page_on_a_phone_is_short_until_it_is_unfolded(driver, many):
    show(driver, many, width=390)
    assert driver.execute_script("return document.documentElement.scrollHeight") <= 8000


def test_the_first_screen_prints_on_one_sheet(driver, many):
    show(driver, many)
    for paper in ({"paperWidth": 8.5, "paperHeight": 11}, {"paperWidth": 8.27, "paperHeight": 11.69}):
        printed = driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, **paper})
        pages = re.findall(rb"/Type /Page\b", base64.b64decode(printed["data"]))
        assert len(pages) == 2  # the sheet, then quality versus cost; what is folded is not printed


SHOWN = """
    const seen = [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility());
    return [...new Set(seen.map(e => e.textContent.trim()))];
"""


def test_single_recommended_and_best_are_shown_first_and_all_on_request(driver, many):
    show(driver, many)
    driver.execute_script("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    for place in (".sortable .who", ".legend button"):
        assert sorted(driver.execute_script(SHOWN, place)) == ["deep", "packed alpha=2", "single"]
    driver.find_element("css selector", ".all input").click()
    for place in (".sortable .who", ".legend button", ".panels.small figcaption"):
        assert len([name for name in driver.execute_script(SHOWN, place) if "·" not in name]) >= 12
    chosen = driver.find_element("css selector", "tr.chosen").get_attribute("textContent")
    assert "packed alpha=2" in chosen and "recommended" in chosen


COLOURS = """
    return [...document.querySelectorAll(".figure")].map(figure => {
        const marks = [...figure.querySelectorAll(".chart :is(.mark, .line[class*=' n'], .whisker)")];
        const paint = m => { const s = getComputedStyle(m); return s.fill === "none" ? s.stroke : s.fill; };
        return [...new Set(marks.filter(m => m.checkVisibility()).map(paint))];
    }).filter(colours => colours.length);
"""


@pytest.mark.parametrize("dark", [False, True])
def test_no_more_than_four_hues_and_protanopes_tell_them_apart(driver, many, dark):
    show(driver, many, dark=dark)
    unfold(driver)
    found = driver.execute_script(COLOURS)
    assert len(found) >= 8 and all(len(colours) <= 4 for colours in found)
    script = "const style = getComputedStyle(document.documentElement);"
    script += "return arguments[0].map(name => style.getPropertyValue(name).trim())"
    hues = driver.execute_script(script, ["--c0", "--c1", "--c2", "--c3"])
    inks = [[int(hue[i : i + 2], 16) for i in (1, 3, 5)] for hue in hues]
    assert {f"rgb({', '.join(map(str, ink))})" for ink in inks} >= {colour for colours in found for colour in colours}
    distances = [colour_distance(*pair) for pair in combinations(inks, 2)]
    assert min(distances) > 25, distances
    assert colour_distance([143, 100, 0], [107, 110, 0]) < 10  # two that were confused


def colour_distance(first, second) -> float:
    """CIE 1976 between two colours as a protanope sees them (Machado et al., 2009, severity 1)."""
    see = np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]])
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])

    def lab(colour):
        c = np.array(colour) / 255
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        x, y, z = np.cbrt(to_xyz @ np.clip(see @ linear, 0, 1) / [0.9505, 1, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    return float(np.linalg.norm(lab(first) - lab(second)))


@pytest.mark.slow
def test_300_runs_open_in_three_seconds(driver, tmp_path):
    labels = [f"packed alpha={a}" for a in range(1, 24)] + ["single", "deep"]
    runs = [
        fakes.classification(label, seed=s, examples=40, settings={"alpha": i + 1}, pictures=s == 0)
        for i, label in enumerate(labels)
        for s in range(12)
    ]
    assert len(runs) == 300
    report(runs, tmp_path / "page.html")
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})  # other programs do not count
    show(driver, tmp_path / "page.html")
    driver.execute_script("return document.documentElement.scrollHeight")
    opened = busy(driver)
    unfold(driver)
    driver.execute_script("return document.documentElement.scrollHeight")
    assert 0 < opened < 3 and busy(driver) - opened < 3


def busy(driver) -> float:
    """The seconds that the page has worked so far."""
    found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(one["value"] for one in found if one["name"] == "TaskDuration")
