"""The page of examples/browser in Chromium: it answers as our own prediction does, and fetches nothing."""

import json
import runpy
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from browser import chromium, show

import pluribus as pb

ROOT = Path(__file__).parents[2]
STROKES = [[(90, 60), (180, 60), (140, 220)], [(60, 200), (220, 120), (80, 80), (200, 240), (150, 30)]]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if shutil.which("npm") is None:
        pytest.skip("the runtime of the page comes from npm: install npm")
    folder = tmp_path_factory.mktemp("browser")
    script, arguments = ROOT / "examples" / "browser" / "build.py", sys.argv
    sys.argv = [str(script), str(folder)]
    try:
        with torch.random.fork_rng(devices=[]):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = arguments
    return folder


@pytest.fixture(scope="module")
def page(built, tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.set_script_timeout(60)
        show(driver, built / "digits.html", width=800, height=760)
        deadline = time.monotonic() + 60
        while driver.execute_script("return document.body.dataset.ready") != "yes":
            assert time.monotonic() < deadline, driver.get_log("browser")
            time.sleep(0.1)
        yield driver


@pytest.mark.slow
def test_the_page_answers_as_our_own_prediction_does(built, page):
    data = pb.data.load("digits")
    x = torch.cat([data.test[:10][0], data.outside["letters"][:10][0]])
    network = pb.models.small_cnn(10, 0.5, channels=1, image=28, dropout=0.0)
    ensemble = pb.load(built / "digits.safetensors", network)
    cascade = pb.cascade(ensemble, data.validation[:], margin=0.05)
    expected = cascade.predict(x)
    ask = "const done = arguments[1]; Promise.all(arguments[0].map(window.answer)).then(done, e => done(String(e)))"
    answers = page.execute_async_script(ask, x.flatten(1).tolist())
    assert [answer["label"] for answer in answers] == [[label] for label in expected.label.tolist()]
    assert [answer["members"][0] for answer in answers] == cascade.answers(x)["members"].tolist()
    for name in ("mean", "confidence", "total", "aleatoric", "epistemic"):
        theirs = torch.tensor([answer[name] for answer in answers]).view(len(x), -1)
        torch.testing.assert_close(theirs, getattr(expected, name).view(len(x), -1).float(), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_drawing_is_answered_and_nothing_is_fetched(page):
    shown = [draw(page, stroke) for stroke in STROKES]
    assert all(len(label) == 1 and label in "0123456789" and sure.endswith("% sure") for label, sure, *_ in shown)
    assert shown[0] != shown[1]
    assert all(float(aleatoric) >= 0 and float(epistemic) >= 0 for *_, aleatoric, epistemic in shown)
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    asked = [request["request"]["url"] for request in sent if request.get("documentURL", "").startswith("file:")]
    assert asked and [url for url in asked[1:] if not url.startswith(("blob:", "data:"))] == []
    assert [line for line in page.get_log("browser") if line["level"] == "SEVERE"] == []


def draw(page, stroke):
    """Draw with the mouse, and read what the page says: label, confidence and the two uncertainties."""
    actions = pytest.importorskip("selenium.webdriver").ActionChains(page, duration=20)
    page.find_element("id", "clear").click()
    board = page.find_element("id", "board")
    actions.move_to_element_with_offset(board, stroke[0][0] - 140, stroke[0][1] - 140).click_and_hold()
    for x, y in stroke[1:]:
        actions.move_to_element_with_offset(board, x - 140, y - 140)
    actions.release().perform()
    deadline = time.monotonic() + 20
    while page.find_element("id", "label").text == "–":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cells = [page.find_element("css selector", f"#{name} .number").text for name in ("aleatoric", "epistemic")]
    return [page.find_element("id", "label").text, page.find_element("id", "confidence").text, *cells]
