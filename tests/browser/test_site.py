"""The documentation site in Chromium: pages fit a phone and a desktop, and everything on them is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser.browser_fixtures import browser  # noqa: F401 - a fixture
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[2]
PAGES = ("index", "choosing", "results", "migration", "methods/car-balanced", "api/car", "car-explained", "experiments")
# on a phone the window grows with a page that is too wide: both are compared with the width of the screen
SIZES = "return [document.documentElement.scrollWidth, innerWidth]"
WIDE = """
const scrolls = box => box && box !== document.body && box !== document.documentElement && (
    ['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(box).overflowX) || scrolls(box.parentElement));
return [...document.querySelectorAll('.md-content *')]
    .filter(one => one.getBoundingClientRect().right > arguments[0] + 1 && !scrolls(one.parentElement))
    .map(one => one.outerHTML.slice(0, 120));
"""
IMAGES = """
const done = arguments[arguments.length - 1];
const images = [...document.querySelectorAll('.md-content img')];
images.forEach(one => { one.loading = 'eager'; });
Promise.all(images.map(one => one.decode().catch(() => 0)))
    .then(() => done(images.map(one => [one.src, one.naturalWidth])));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as ``make docs`` builds it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, (built.stdout + built.stderr)[-3000:]
    return folder


def visit(browser, path, width):
    browser.command("Emulation.setDeviceMetricsOverride",
                    {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})  # fmt: skip
    browser.media()
    browser.logs()
    browser.driver.get(path.as_uri())
    browser.settle()


@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_is_whole(name, width, site, browser):
    visit(browser, site / f"{name}.html", width)
    (title,) = browser.find_all("h1")
    assert title.is_displayed()
    assert title.text.strip()
    images = browser.driver.execute_async_script(IMAGES)
    assert not [source for source, size in images if not size]
    assert max(browser.run(SIZES)) <= width, browser.run(WIDE, width)
    assert not browser.run(WIDE, width)
    console, requests = browser.logs()
    wrong = [entry["message"] for entry in console if entry["level"] == "SEVERE" and own(entry["message"])]
    assert not wrong
    assert all(request.startswith(("file:", "data:", "blob:")) for request in requests)


def own(message):
    """A page from a folder may not fetch the theme's search index: browsers forbid it, and the theme knows."""
    return "search/search_index" not in message and "/assets/javascripts/" not in message


def test_the_checks_see_what_is_wrong(browser, tmp_path):
    """A page that is too wide and lacks its picture; a wide table in a box of its own is no fault."""
    page = tmp_path / "wrong.html"
    wide = "<div style='width: 900px'>wide</div>"
    page.write_text(
        f"<!doctype html><meta name=viewport content='width=device-width'><div class=md-content><h1>T</h1>{wide}"
        f"<div id=box style='overflow-x: auto'>{wide}</div><img src='missing.png'></div>"
    )
    visit(browser, page, 375)
    assert len(browser.run(WIDE, 375)) == 1
    assert max(browser.run(SIZES)) > 375
    ((_, size),) = browser.driver.execute_async_script(IMAGES)
    assert size == 0
    console, _ = browser.logs()
    assert any(entry["level"] == "SEVERE" and own(entry["message"]) for entry in console)


def test_search_answers_from_a_folder_on_disk(site, browser):
    visit(browser, site / "index.html", 1280)
    field = browser.find(".md-search__input")
    browser.driver.execute_script("arguments[0].focus()", field)
    field.send_keys("onnx")
    WebDriverWait(browser.driver, 20).until(lambda _: browser.find_all(".md-search-result__item"))
