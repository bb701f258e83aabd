"""The report as people use it, in Chromium: offline, at phone and desktop width, light and dark, with hostile names."""

import csv
import json
import re
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from browser.browser_fixtures import browser  # noqa: F401 - a fixture
from training.runs import FLAGS

from spectail.cli.main import main
from spectail.diagnosis.advice import Advice, ClassPair, Duplicate, LabelIssue, MoreImages
from spectail.diagnosis.analysis import analyse
from spectail.diagnosis.comparison import compare
from spectail.diagnosis.prediction_files import read_predictions
from spectail.diagnosis.predictions import make_predictions
from spectail.report.page import write_report
from spectail.report.run_record import read_run

CANVAS = "#matrix canvas"
NASTY = (
    "</script><script>window.hit=1</script>", '"><img src=x onerror="window.hit=1">', "' onmouseover='window.hit=1",
    "<!-- comment", "long " * 60, "line\u2028break",
)  # fmt: skip


def random_predictions(size=60, images=3000, seed=0, name="model"):
    labels = np.concatenate([np.arange(size), np.random.default_rng(7).integers(0, size, images - size)])
    logits = np.random.default_rng(seed).normal(size=(images, size)) + 2.5 * np.eye(size)[labels] * (
        labels[:, None] % 3
    )
    counts = [max(300 >> label, 1) for label in range(size)]
    return make_predictions(
        labels, logits, name=name, class_names=[f"class {label}" for label in range(size)], class_counts=counts
    )


def hostile_advice():
    """Advice of every kind under hostile names, the longest of them too."""
    return Advice(
        100,
        tuple(LabelIssue(place, name, name, name, 0.9) for place, name in enumerate(NASTY)),
        tuple(ClassPair(name, name, 31, 120, 18.9, 34.3, 2.0) for name in NASTY),
        tuple(MoreImages(name, 5, 40.0, 13.0, 9.0, 17.0) for name in NASTY),
        tuple(Duplicate("two splits", (name, name), (1, 2), (name, None), ("train", name)) for name in NASTY),
        4.5,
        NASTY,
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of one classifier, of two, of four, of seeds, of a real run under hostile names, of many classes."""
    folder = tmp_path_factory.mktemp("pages")
    one, two = analyse(random_predictions()), analyse(random_predictions(seed=1, name="other"))
    write_report([one], folder / "one.html")
    write_report([one, two], folder / "two.html", comparison=compare([one, two]))
    four = [one, two, *(analyse(random_predictions(seed=seed, name=f"number {seed}")) for seed in (2, 3))]
    write_report(four, folder / "four.html", comparison=compare(four))
    assert main(["train", *FLAGS, "--quiet", "--output", str(folder / "run")]) == 0
    for seed in (0, 1, 2):
        shutil.copytree(folder / "run", folder / f"seed{seed}")
        config = folder / f"seed{seed}" / "config.yaml"
        (config.parent / "digests.json").unlink()  # the change is meant
        config.write_text(re.sub(r"(?m)^seed: \d+", f"seed: {seed}", config.read_text()))
    seeds = [str(folder / f"seed{seed}") for seed in (0, 1, 2)]
    assert main(["report", *seeds, "--output", str(folder / "seeds.html")]) == 0
    hostile_advice().save(folder / "run")
    predictions = replace(read_predictions(folder / "run", name="<u>run</u>"), class_names=NASTY)
    write_report([analyse(predictions)], folder / "nasty.html", runs=[read_run(folder / "run")])
    many = np.arange(2100).repeat(2)
    found = make_predictions(many, np.where(np.arange(4200) % 2, (many + 7) % 2100, many), class_counts=[9] * 2100)
    write_report([analyse(found)], folder / "many.html")
    return folder


ALL = ("one", "two", "four", "seeds", "nasty", "many")


@pytest.mark.parametrize("name", ALL)
def test_silent_and_offline(name, pages, browser):
    browser.open(pages / f"{name}.html")
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    browser.settle()
    console, requests = browser.logs()
    assert console == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in requests) == 1


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
@pytest.mark.parametrize("name", ALL)
def test_nothing_sticks_out(name, width, pages, browser):
    browser.open(pages / f"{name}.html", width)
    browser.run("document.querySelectorAll('details').forEach((entry) => { entry.open = true; })")
    assert browser.run("return document.documentElement.scrollWidth") == width
    beyond = browser.run("""
        return [...document.querySelectorAll("main *")].filter((node) => {
          const box = node.getBoundingClientRect();
          let cut = false; // by an element around it that hides or scrolls what is too wide
          for (let at = node.parentElement; at && !cut; at = at.parentElement)
            cut = getComputedStyle(at).overflowX !== "visible";
          return box.width && (box.right > innerWidth + 1 || box.left < -1) && !cut;
        }).map((node) => node.outerHTML.slice(0, 120));""")
    assert beyond == []


@pytest.mark.parametrize(("width", "columns"), [(375, 1), (1280, 2)])
def test_four_stand_two_by_two(width, columns, pages, browser):
    browser.open(pages / "four.html", width)
    tracks = browser.run("""return [...document.querySelectorAll(".columns.of-4")].map(
        (node) => getComputedStyle(node).gridTemplateColumns.split(" ").length)""")
    assert tracks == [columns] * 5
    lefts = browser.run("""return [...document.querySelectorAll("#worst .of-run")].map(
        (node) => Math.round(node.getBoundingClientRect().left))""")
    assert len(set(lefts)) == columns
    assert lefts[0] == lefts[2]


def test_names_of_the_small_matrix_are_whole(pages, browser):
    """Up to thirty letters at desktop width."""
    browser.open(pages / "one.html")
    cut = """
        const name = document.querySelector(".ten thead bdi"), frame = name.parentElement;
        name.textContent = arguments[0];
        return frame.scrollHeight > frame.clientHeight + 1;"""
    assert not browser.run(cut, "left square bracket, upper")
    assert browser.run(cut, "very " * 40)  # shortened, not sticking out
    assert browser.find(".ten thead span").rect["height"] <= 13 * 16 + 1


def test_several_seeds(pages, browser):
    browser.open(pages / "seeds.html")
    assert re.search(r"[\d.]+ ± 0\.0 \(3\)", browser.find(".seeds").text)
    heads = [cell.text for cell in browser.find_all("#classes thead th")]
    assert heads[1] == "ce, mean of 3 seeds: right, %"
    accuracy = browser.run("return report.runs[0].accuracy.filter((value) => value !== null)")
    assert column(browser, 2) == [f"{value:.1f}" for value in sorted(accuracy)]  # copies: the mean is each of them
    options = browser.find_all("[data-control=run] option")
    assert [option.text for option in options] == ["ce, seed 0", "ce, seed 1", "ce, seed 2"]
    picture = "return document.querySelector(arguments[0]).toDataURL()"
    before = browser.run(picture, CANVAS)
    browser.run(
        "const s = document.querySelector('[data-control=run]'); s.value = '2'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.run(picture, CANVAS) == before
    assert browser.logs()[0] == []


def zoom_of(browser):
    browser.settle()
    return float(browser.find(CANVAS).get_attribute("data-zoom"))


def test_zoom_and_pan(pages, browser):
    browser.open(pages / "one.html")
    left, top, width, height = browser.show(CANVAS)
    x, y = left + width * 0.75, top + height * 0.25
    assert zoom_of(browser) == 1
    picture = browser.run("return document.querySelector(arguments[0]).toDataURL()", CANVAS)
    wheel = {"deltaX": 0, "deltaY": -100}
    browser.mouse("mouseWheel", x, y, **wheel)  # not chosen yet: the page scrolls
    assert zoom_of(browser) == 1
    browser.click('[data-control="in"]')
    assert zoom_of(browser) == pytest.approx(1.6)
    left, top, width, height = browser.show(CANVAS)
    x, y = left + width * 0.75, top + height * 0.25
    assert browser.run("return document.querySelector(arguments[0]).toDataURL()", CANVAS) != picture
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    browser.mouse("mouseWheel", x, y, **wheel)
    assert (closer := zoom_of(browser)) > 2
    before = browser.find(CANVAS).get_attribute("data-origin")
    browser.mouse("mousePressed", x, y, button="left", clickCount=1)
    browser.mouse("mouseMoved", x - 60, y + 10, button="left")
    browser.mouse("mouseReleased", x - 60, y + 10, button="left", clickCount=1)
    assert zoom_of(browser) == closer
    after = browser.find(CANVAS).get_attribute("data-origin")
    moved = np.subtract(*([float(part) for part in origin.split(",")] for origin in (after, before)))
    margin = int(browser.find(CANVAS).get_attribute("data-margin"))
    assert moved[0] == pytest.approx(60 / (width - margin) / closer, rel=0.05)
    browser.find(CANVAS).send_keys("-")
    assert zoom_of(browser) == pytest.approx(closer / 1.5, rel=1e-3)
    browser.click('[data-control="whole"]')
    assert zoom_of(browser) == 1
    assert not browser.find('[data-control="out"]').is_enabled()
    assert browser.logs()[0] == []


def test_pinch(pages, browser):
    browser.open(pages / "one.html", 375, touch=True)
    left, top, width, height = browser.show(CANVAS)
    x, y = left + width / 2, top + height / 2

    def fingers(kind, *offsets):
        points = [{"x": x + offset, "y": y, "id": place} for place, offset in enumerate(offsets)]
        browser.command("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", -20, 20)
    for spread in (30, 40, 60):
        fingers("touchMove", -spread, spread)
    fingers("touchEnd")
    assert zoom_of(browser) == pytest.approx(3, rel=0.01)
    browser.command("Emulation.setTouchEmulationEnabled", {"enabled": False})


@pytest.mark.parametrize("order", ["count", "cluster", "label"])
def test_a_cell_reads_what_was_counted(order, pages, browser):
    found = random_predictions()
    browser.open(pages / "one.html")
    browser.run("const s = document.querySelector('[data-control=order]'); s.value = arguments[0];"
                "s.dispatchEvent(new Event('change'))", order)  # fmt: skip
    places = browser.run(
        "return JSON.parse(document.getElementById('report-data').textContent).runs[0].orders[arguments[0]]", order
    )
    left, top, width, _ = browser.show(CANVAS)
    margin = int(browser.find(CANVAS).get_attribute("data-margin"))
    for column, row in ((0, 0), (3, 3), (10, 40), (59, 2), (31, 30)):
        cell = (width - margin) / 60
        browser.mouse("mouseMoved", left + margin + (column + 0.5) * cell, top + margin + (row + 0.5) * cell)
        true, predicted = places[column], places[row]
        count = int(((found.labels == true) & (found.predicted == predicted)).sum())
        total = int((found.labels == true).sum())
        text = browser.find("#matrix .readout").text
        said = "recognised" if true == predicted else f"taken for class {predicted}"
        assert text == f"class {true} {said}: {count} of {total} images ({100 * count / total:.1f} %)."


def test_another_run_in_the_matrix(pages, browser):
    browser.open(pages / "two.html")
    picture = browser.run("return document.querySelector(arguments[0]).toDataURL()", CANVAS)
    browser.run(
        "const s = document.querySelector('[data-control=run]'); s.value = '1'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.run("return document.querySelector(arguments[0]).toDataURL()", CANVAS) != picture


def column(browser, place):
    return [cell.text for cell in browser.find_all(f"#classes tbody td:nth-child({place})")]


def test_sort_and_filter(pages, browser):
    found = random_predictions()
    browser.open(pages / "one.html")
    right = np.array([(found.predicted[found.labels == label] == label).mean() for label in range(60)])
    assert column(browser, 2) == [f"{100 * value:.1f}" for value in np.sort(right)[:25]]
    heads = browser.find_all("#classes thead th")
    browser.click("#classes th:nth-child(2) button")
    assert column(browser, 2) == [f"{100 * value:.1f}" for value in np.sort(right)[::-1][:25]]
    assert heads[1].get_attribute("aria-sort") == "descending"
    browser.click("#classes th:nth-child(1) button")
    assert heads[1].get_attribute("aria-sort") is None
    assert column(browser, 1)[:3] == ["class 0", "class 1", "class 10"]
    browser.click('#classes [data-group="tail"]')
    assert set(column(browser, 4)) == {"tail"}
    browser.find("#classes input").send_keys("CLASS 3")
    assert column(browser, 1) == [f"class {label}" for label in range(30, 40)]
    browser.find("#classes input").clear()
    browser.find("#classes input").send_keys("nothing like it")
    assert column(browser, 1) == []
    assert browser.find("#classes .shown").text == "0 to 0 of 0 classes"


def test_all_mistakes_of_a_class_on_request(pages, browser):
    browser.open(pages / "one.html")
    button = browser.find("#classes td button")
    count = int(button.text)
    browser.click("#classes td button")
    for _ in range(50):  # it is unpacked when it is asked for
        if len(browser.find_all("#classes .mistakes li")) == count:
            break
        time.sleep(0.1)
    assert len(browser.find_all("#classes .mistakes li")) == count
    assert " taken for " in browser.find("#classes .mistakes li").text
    browser.click("#classes td button")
    assert browser.find_all("#classes .mistakes") == []


def test_pages_of_the_table(pages, browser):
    browser.open(pages / "many.html")
    assert browser.find("#classes .shown").text == "1 to 25 of 2,100 classes"
    first = column(browser, 1)
    browser.click('#classes [data-move="1"]')
    assert browser.find("#classes .shown").text == "26 to 50 of 2,100 classes"
    assert set(first).isdisjoint(column(browser, 1))
    browser.click('#classes [data-move="-1"]')
    assert column(browser, 1) == first


def test_the_scatter_plot_names_a_class(pages, browser):
    found = random_predictions()
    browser.open(pages / "one.html")
    browser.show(".scatter svg")
    svg = browser.find(".scatter svg")
    svg.send_keys("\ue014")  # arrow to the right
    text = browser.find(".scatter .tip").text
    name, accuracy = re.match(r"class (\d+)\n([\d.]+) % right", text).groups()
    own = found.predicted[found.labels == int(name)]
    assert float(accuracy) == pytest.approx(100 * (own == int(name)).mean(), abs=0.06)
    left, top, width, height = browser.show(".scatter .mark")
    browser.mouse("mouseMoved", left + width / 2, top + height / 2)
    assert browser.find(".scatter .tip").is_displayed()


def test_hostile_names_stay_text(pages, browser):
    browser.open(pages / "nasty.html")
    browser.show(CANVAS)
    for selector in ("#classes thead th:nth-child(1) button", '[data-control="in"]'):
        browser.click(selector)
    browser.show(".scatter svg")
    for _ in range(6):
        browser.find(".scatter svg").send_keys("\ue014")
    left, top, width, height = browser.show(CANVAS)
    browser.mouse("mouseMoved", left + width / 4, top + height / 2)
    assert browser.run("return window.hit") is None
    assert browser.run("return document.scripts.length") == 2
    assert browser.run("return document.querySelectorAll('[onmouseover], [onerror], img[src=x]').length") == 0
    assert browser.logs()[0] == []
    text = browser.run("return document.getElementById('classes').textContent")
    assert all(name in text for name in NASTY[:4])
    assert NASTY[0] in browser.find("#worst").get_attribute("textContent")
    described = browser.run("return [...document.querySelectorAll('#worst img')].map((node) => node.alt).join()")
    assert any(name in described for name in NASTY[:4])
    assert "<u>run</u>" in browser.find("h1").text
    assert len(browser.find_all("#worst img")) > 5
    assert all(browser.run("return [...document.images].map((node) => node.complete && node.naturalWidth > 0)"))


def luminance(rgb):
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in np.array(rgb) / 255]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def numbers(colour):
    return [float(value) for value in re.findall(r"[\d.]+", colour)[:3]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_light_and_dark_can_be_read(dark, pages, browser):
    browser.open(pages / "nasty.html", dark=dark)
    background = luminance(numbers(browser.run("return getComputedStyle(document.body).backgroundColor")))
    assert background < 0.05 if dark else background > 0.8
    low = []
    seen = browser.run("""
        const colour = (node) => getComputedStyle(node).backgroundColor;
        const words = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        return [...document.querySelectorAll("main *, header *, nav a, footer p")]
          .filter((node) => words(node) && node.checkVisibility() && !node.disabled && !node.closest(".ten td"))
          .map((node) => {
            let behind = node;
            while (colour(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
            const style = getComputedStyle(node), svg = node.namespaceURI.endsWith("svg");
            return [svg ? style.fill : style.color, colour(behind), node.outerHTML.slice(0, 80)];
          });""")
    assert len(seen) > 200
    for front, behind, text in seen:
        a, b = sorted((luminance(numbers(front)), luminance(numbers(behind))))
        if (b + 0.05) / (a + 0.05) < 4.5:
            low.append((round((b + 0.05) / (a + 0.05), 2), front, behind, text))
    assert low == []


def test_the_canvas_follows_the_scheme(pages, browser):
    browser.open(pages / "one.html")
    corner = "return [...document.querySelector(arguments[0]).getContext('2d').getImageData(2, 2, 1, 1).data]"
    light = browser.run(corner, CANVAS)
    browser.media(dark=True)
    browser.settle()
    dark = browser.run(corner, CANVAS)
    assert sum(light[:3]) > 600
    assert sum(dark[:3]) < 200


def test_print(pages, browser):
    browser.open(pages / "one.html", dark=True)
    browser.media(dark=True, kind="print")
    assert not browser.find("nav").is_displayed()
    assert not browser.find("#downloads").is_displayed()
    assert numbers(browser.run("return getComputedStyle(document.body).backgroundColor")) == [255, 255, 255]
    pdf = browser.command("Page.printToPDF", {"printBackground": True})["data"]
    assert len(pdf) > 50_000
    browser.media()


def downloaded(browser, name):
    path = browser.downloads / name
    path.unlink(missing_ok=True)
    browser.click(f'[data-file="{name}"]')
    for _ in range(100):
        if path.exists() and path.stat().st_size:
            return path.read_text(encoding="utf-8")
        time.sleep(0.1)
    raise AssertionError(f"{name} was not downloaded")


def test_downloads(pages, browser):
    found = random_predictions()
    browser.open(pages / "one.html")
    content = json.loads(downloaded(browser, "report.json"))
    assert content["analyses"][0]["metrics"]["overall"] == pytest.approx(100 * (found.predicted == found.labels).mean())
    rows = list(csv.DictReader(downloaded(browser, "classes.csv").splitlines()))
    assert [row["class"] for row in rows] == [f"class {label}" for label in range(60)]
    assert "tabular" in downloaded(browser, "tables.tex")
    assert "**Accuracy in percent" in downloaded(browser, "tables.md")
    assert browser.logs()[0] == []


def test_the_command_can_be_copied(pages, browser):
    browser.open(pages / "nasty.html")
    shown = browser.find("#command0").text
    assert " ".join(shown.split()) == read_run(pages / "run").command
    browser.click("[data-copy]")
    browser.settle()
    assert browser.find("[data-copy]").text in ("Copied", "Selected: press Ctrl+C")
