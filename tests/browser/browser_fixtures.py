"""Chromium for the tests of pages."""

import json
import os

import pytest
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage")  # fmt: skip


class Browser:
    """Chromium with a page from a file, and what a reader does with it."""

    def __init__(self, driver, downloads):
        self.driver, self.downloads = driver, downloads
        self.run = driver.execute_script
        self.command = driver.execute_cdp_cmd

    def open(self, path, width=1280, *, dark=False, touch=False):
        self.command("Emulation.setDeviceMetricsOverride",
                     {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})  # fmt: skip
        self.command("Emulation.setTouchEmulationEnabled", {"enabled": touch})
        self.media(dark=dark)
        self.logs()
        self.driver.get(path.as_uri())
        # a busy machine may answer between the load and the last script
        ready = WebDriverWait(self.driver, 10).until(
            lambda _: self.run("return document.documentElement.dataset.ready")
        )
        assert float(ready) > 0
        return self

    def media(self, *, dark=False, kind=""):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        features = [scheme, {"name": "prefers-reduced-motion", "value": "reduce"}]  # scrolling is instant
        self.command("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def logs(self):
        """What the console and the network have seen since the last look."""
        console = self.driver.get_log("browser")
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        requests = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return console, requests

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def show(self, selector):
        """Scroll an element to the middle of the window and give its place."""
        self.run(
            "document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector
        )
        return self.run("const b = document.querySelector(arguments[0]).getBoundingClientRect();"
                        "return [b.left, b.top, b.width, b.height]", selector)  # fmt: skip

    def click(self, selector):
        self.show(selector)  # away from the bar on top
        self.find(selector).click()

    def mouse(self, kind, x, y, **more):
        self.command("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def settle(self):
        """Wait until the next frame is drawn."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    downloads = tmp_path_factory.mktemp("downloads")
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
    yield Browser(driver, downloads)
    driver.quit()
