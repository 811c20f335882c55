"""A headless Chromium for tests of the page; skips with the reason where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb"),
]


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A driver with its own profile folder, closed at the end."""
    selenium = pytest.importorskip("selenium.webdriver", reason="the page is tested with selenium")
    programs = [
        next(filter(None, map(shutil.which, names)), None)
        for names in (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))
    ]
    if None in programs:
        pytest.skip("the page is tested in Chromium: install chromium and chromedriver")
    options = selenium.ChromeOptions()
    options.binary_location = programs[0]
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(executable_path=programs[1]))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: Any, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
    """Open a file at a width of the window, in light or dark."""
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(path.resolve().as_uri())


def unfold(driver: Any) -> None:
    """Open everything that folds, and show all methods."""
    driver.execute_script("""
        document.querySelectorAll("details").forEach(part => { part.open = true; });
        document.querySelectorAll(".all input").forEach(box => { box.checked = true; });""")


def picture(driver: Any, path: Path) -> None:
    """The whole page as a PNG file, for a person to look at."""
    import base64

    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(shot["data"]))
