"""The page of questions and its charts: lines of equal height lie where they should, and every value is told."""

import html as text
import json
import math
import re

import numpy as np
import pytest
from browser import show, unfold

from pluribus.report.charts.landscape import (
    contour_segments,
    fan_chart,
    heat_map,
    surface_chart,
)
from pluribus.report.claims import claims_page, section
from pluribus.report.figure import Figure, Panel

EVIL = '<script>alert("x")</script>'
U, V = np.linspace(-1, 1, 21), np.linspace(-1.5, 1.5, 31)
BOWL = U[:, None] ** 2 + V[None] ** 2
STYLES = {"run 0": 2, "run 1": 3}
PATHS = {"run 0": np.array([[-0.9, 0.0], [0.0, 0.2], [0.5, 0.5]]), "run 1": np.array([[-0.9, 0.0], [0.8, -1.0]])}


def titles(svg):
    return [text.unescape(one) for one in re.findall(r"<title>(.*?)</title>", svg)]


# ---------------------------------------------------------------- contours


@pytest.mark.parametrize("level", [0.27, 0.77])
def test_lines_of_a_bowl_are_closed_circles_of_the_right_length(level):
    pieces = contour_segments(U, V, BOWL, level)
    radii = [math.hypot(*point) for piece in pieces for point in piece]
    assert radii == pytest.approx([math.sqrt(level)] * len(radii), abs=0.01)
    length = sum(math.dist(*piece) for piece in pieces)
    assert length == pytest.approx(2 * math.pi * math.sqrt(level), rel=0.02)
    ends = [tuple(np.round(point, 9)) for piece in pieces for point in piece]
    assert all(ends.count(end) == 2 for end in ends)  # closed


def test_nothing_is_drawn_beside_what_is_not_finite():
    z = np.array([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0], [1.0, 1.0, math.inf]])
    assert contour_segments(np.arange(3.0), np.arange(3.0), z, 0.5) == []


# ---------------------------------------------------------------- charts


def test_every_value_of_a_surface_is_told_at_its_place():
    z = np.arange(12.0).reshape(3, 4)
    told = titles(surface_chart(np.arange(3.0), np.arange(4.0), z, "loss", others={"accuracy": z / 20}))
    expected = [f"({i}, {j}): loss {z[i, j]:.4g}, accuracy {z[i, j] / 20:.4g}" for i in range(3) for j in range(4)]
    assert told == expected


def test_the_darkest_place_is_the_highest_and_what_is_not_finite_is_hatched():
    z = BOWL.copy()
    z[3, 4] = math.nan
    svg = surface_chart(U, V, z, "loss")
    shades = [int(s) for s in re.findall(r'class="patch" style="--s:(\d+)', svg)]
    assert len(shades) == z.size - 1 and svg.count('class="gap"') == 1
    values = np.delete(BOWL.flatten(), 3 * len(V) + 4)
    assert np.corrcoef(np.argsort(np.argsort(shades)), np.argsort(np.argsort(values)))[0, 1] > 0.95
    assert shades[int(values.argmax())] == max(shades) and shades[int(values.argmin())] == min(shades)


def test_trajectories_lie_where_the_axes_say():
    svg = surface_chart(U, V, BOWL, "loss", paths=PATHS, styles=STYLES)
    (line,) = re.findall(r'<path class="line strong c2 n2"[^>]* d="M([^"]*)"', svg)
    points = np.array([[float(n) for n in point.split()] for point in line.split("L")])
    (a, b), (c, d) = (np.polyfit(PATHS["run 0"][:, k], points[:, k], 1) for k in (0, 1))
    found = re.findall(r'<rect[^>]* x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', svg)
    patches = np.array([[float(n) for n in one] for one in found])
    assert points[:, 0] == pytest.approx(a * PATHS["run 0"][:, 0] + b, abs=0.2) and a > 0 > c
    assert patches[0, 0] + patches[0, 2] / 2 == pytest.approx(a * U[0] + b, abs=1) and d > 0
    assert [t for t in titles(svg) if t.startswith("run 1, checkpoint 1: (0.8, -1)")]


def test_a_fan_stands_upright_and_tells_every_value_at_its_place():
    angles = np.linspace(0.3, 2.5, 5)
    corners = np.stack([np.cos(angles), np.sin(angles)], 1)
    places = corners[:, None] * np.linspace(0, 1.5, 4)[None, :, None]
    z = np.arange(20.0).reshape(5, 4)
    svg = fan_chart(places, z, "loss", corners=corners, ends=list(STYLES), styles=STYLES)
    told = [one for one in titles(svg) if "of the way" in one]
    assert told[7] == "0.25 of the way, 1.00 of the radius: loss 7" and len(told) == 20
    (line,) = re.findall(r'<path class="line strong plain"[^>]* d="M([^"]*)"', svg)
    drawn = np.array([[float(n) for n in point.split()] for point in line.split("L")])
    gaps, expected = (np.linalg.norm(p[:, None] - p[None], axis=-1) for p in (drawn, corners))
    assert gaps / gaps.max() == pytest.approx(expected / expected.max(), abs=0.01)  # turned, and not distorted
    assert drawn[0, 0] < drawn[-1, 0] and drawn[2, 1] == drawn[:, 1].min()  # from left to right, the middle on top


def test_a_matrix_names_both_networks_and_divides_the_runs():
    matrix = np.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.0]])
    svg = heat_map(matrix, [("run 0", ["epoch 1", "epoch 2"]), ("run 1", ["epoch 1"])], "cosine")
    assert titles(svg)[2] == "run 0, epoch 1 and run 1, epoch 1: cosine 0.100"
    assert svg.count('class="divide') == 2 and len(titles(svg)) == 9
    assert 'data-step-up="-3" data-step-right="1"' in svg


# ---------------------------------------------------------------- the page


def example(name="Is it <new>?", folder=None):
    surface = Panel(surface_chart(U, V, BOWL, "loss", paths=PATHS, styles=STYLES), "loss")
    matrix = Panel(heat_map(np.eye(4), [(name, ["a", "b"]), ("run 1", ["a", "b"])], "cosine"))
    figure = Figure("planes", name, "How to read it.", [surface, matrix], legend=[(2, name), (3, "run 1")],
                    header=["run", "loss"], rows=[[name, "0.1"]])  # fmt: skip
    return claims_page(
        name, [section("first", name, name, [name, "More."], [figure]), section("second", "And?", "Yes.")], folder,
        about=name, command=f"pluribus landscape --data {name}", settings={name: name}, notes=[name],
    )  # fmt: skip


def test_names_are_text_and_nothing_is_fetched():
    page = example(EVIL)
    assert EVIL not in page and page.count("<script>") == 1
    assert (
        re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*""", page) == []
        and "http:" not in page
        and "https:" not in page
    )


@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser_everything_is_drawn_and_nothing_complains(driver, tmp_path, width):
    example(folder=tmp_path / "page.html")
    driver.get_log("browser")
    driver.get_log("performance")
    show(driver, tmp_path / "page.html", width=width)
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome:"))] == []
    boxes = driver.execute_script(
        'return [...document.querySelectorAll("svg.chart")].map(s => s.getBoundingClientRect().toJSON())'
    )
    assert len(boxes) == 2 and all(box["width"] > 150 and box["right"] <= width for box in boxes)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_questions_are_folded_and_the_scorecard_opens_them(driver, tmp_path):
    example(folder=tmp_path / "page.html")
    show(driver, tmp_path / "page.html")
    opened = 'return [...document.querySelectorAll("details[open] > summary h2")].map((head) => head.textContent)'
    assert driver.execute_script(opened) == []
    driver.find_element("css selector", '.score a[href="#second"]').click()
    assert driver.execute_script(opened) == ["And?"]


def test_dark_shades_are_the_large_values_in_light_and_dark(driver, tmp_path):
    example(folder=tmp_path / "page.html")
    for dark in (False, True):
        show(driver, tmp_path / "page.html", dark=dark)
        pale, deep, back = driver.execute_script("""
            const found = [...document.querySelectorAll(".patch")];
            const by = (a, b) => a.style.getPropertyValue("--s") - b.style.getPropertyValue("--s");
            found.sort(by);
            const fill = (one) => getComputedStyle(one).fill;
            return [fill(found[0]), fill(found.at(-1)), getComputedStyle(document.body).backgroundColor];""")
        colours = [np.array([float(n) for n in re.findall(r"\d+(?:\.\d+)?", one)[:3]]) for one in (pale, deep, back)]
        scale = [255 if "srgb" in one else 1 for one in (pale, deep, back)]
        pale, deep, back = (c * s for c, s in zip(colours, scale, strict=True))
        assert deep.mean() + 80 < pale.mean() and (back.mean() < 60) == dark  # dark is more, on a dark page too


def test_a_surface_is_read_off_by_keys_and_by_pointing(driver, tmp_path):
    example(folder=tmp_path / "page.html")
    show(driver, tmp_path / "page.html", width=390)
    unfold(driver)
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    charts = driver.find_elements("css selector", ".readable")
    readouts = driver.find_elements("css selector", ".readout")
    assert len(charts) == len(readouts) == 2 and "arrow keys" in readouts[0].text
    places = []
    for key in (keys.ARROW_UP, keys.ARROW_UP, keys.ARROW_RIGHT, keys.ARROW_DOWN, keys.ARROW_LEFT):
        charts[0].send_keys(key)
        places.append([float(n) for n in re.match(r"\(([^,]*), ([^)]*)\)", readouts[0].text).groups()])
    middle, up, right, down, left = places
    step_u, step_v = U[1] - U[0], V[1] - V[0]
    assert up == pytest.approx([middle[0], middle[1] + step_v], abs=5e-3) and middle == pytest.approx([0, 0], abs=0.1)
    assert right == pytest.approx([up[0] + step_u, up[1]], abs=5e-3)
    assert down == pytest.approx([right[0], middle[1]], abs=5e-3) and left == pytest.approx(middle, abs=5e-3)
    assert driver.execute_script('return document.getElementById("status").textContent') == readouts[0].text
    for _ in range(40):
        charts[0].send_keys(keys.ARROW_UP)  # it stays inside
    assert "1.5)" in readouts[0].text
    patch = charts[1].find_elements("css selector", ".patch")[4]
    driver.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointerdown', {bubbles: true}))", patch)
    assert "cosine 0.000" in readouts[1].text and driver.get_log("browser") == []
