"""The report and the site for everybody: axe-core finds nothing serious, in any colours, on a phone and a desktop."""

import os
from pathlib import Path

import numpy as np
import pytest
from browser.browser_fixtures import browser  # noqa: F401 - a fixture
from browser.test_site import site  # noqa: F401 - a fixture

from spectail.diagnosis import analyse, make_predictions
from spectail.report.page import write_report

AXE = Path(os.environ["SPECTAIL_AXE"])
PAGES = ("index", "theory", "cost", "data", "own-loop", "api/car", "cli/train", "methods/car")
RUN = """
const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(found.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.slice(0, 3).map((node) => node.html.slice(0, 150))])));
"""


def serious(browser, path, width, dark):
    browser.command("Page.setBypassCSP", {"enabled": True})  # the report lets no script in but its own
    browser.command("Emulation.setDeviceMetricsOverride",
                    {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})  # fmt: skip
    browser.media(dark=dark)
    browser.driver.get(path.as_uri())
    browser.run("localStorage.clear()")  # the site keeps the colours of the first visit
    browser.driver.get(path.as_uri())
    browser.driver.set_script_timeout(120)
    browser.driver.execute_async_script("setTimeout(arguments[0], 400)")
    browser.command("Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8")})
    return browser.driver.execute_async_script(RUN)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (375, True)])
@pytest.mark.parametrize("name", PAGES)
def test_the_site(name, width, dark, site, browser):
    assert serious(browser, site / f"{name}.html", width, dark) == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (375, False), (375, True)])
def test_the_report(width, dark, tmp_path, browser):
    draw = np.random.default_rng(0)
    labels = np.arange(600) % 12
    logits = draw.normal(size=(600, 12)) + 2.5 * np.eye(12)[labels] * (labels[:, None] % 3)
    counts = [max(300 >> label, 1) for label in range(12)]
    names = [f"class {label}" for label in range(12)]
    write_report(
        [analyse(make_predictions(labels, logits, class_names=names, class_counts=counts))], tmp_path / "a.html"
    )
    assert serious(browser, tmp_path / "a.html", width, dark) == []
