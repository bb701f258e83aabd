"""Several seeds: which runs belong together, means and spreads, and intervals against slow bootstraps and scipy."""

import csv
import io
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from test_page import Page

from spectail.data import load
from spectail.diagnosis import analyse, make_predictions
from spectail.diagnosis.statistics import student
from spectail.diagnosis.text_table import number
from spectail.report.page import write_report
from spectail.report.run_record import RunRecord
from spectail.report.seeds import Spread, group_runs, seed_tables, spread_text, study
from spectail.training.config_io import from_dict

SIZE = 6
LABELS = np.arange(240) % SIZE
COUNTS = [500, 200, 60, 40, 10, 5]


@pytest.fixture(scope="module")
def manifest():
    return load("glyphs-lt", num_classes=4, max_per_class=8, imbalance=4.0).manifest


@pytest.fixture(scope="module")
def make(manifest):
    def build(method="ce", seed=0, *, folder="x", worst_train=80.0, **car):
        content = {"method": method, "seed": seed, "output": f"runs/{method}-{seed}", "car": car}
        results = {"method": method, "worst_train": worst_train, "worst_ratio": seed / 10,
                   "car": {"preset": "paper"} if method == "car" else None}  # fmt: skip
        curves = [{"epoch": 1, "loss": 2.0 + seed, "lr": 0.1}, {"epoch": 2, "loss": float("nan"), "car": 0.5}]
        return RunRecord(Path(folder), from_dict(content), results, manifest, curves)

    return build


def predicted(skill, seed):
    draw = np.random.default_rng(seed)
    right = draw.random(len(LABELS)) < np.clip(skill - 0.08 * LABELS, 0.05, 0.95)
    return np.where(right, LABELS, (LABELS + draw.integers(1, SIZE, len(LABELS))) % SIZE)


def analysis(skill, seed, name):
    values = np.eye(SIZE)[predicted(skill, seed)] * 3
    return analyse(make_predictions(LABELS, values, class_counts=COUNTS, name=name))


@pytest.fixture(scope="module")
def two_by_three(make):
    runs = [make(method, seed) for seed in (0, 1, 2) for method in ("ce", "car")]
    found = [analysis(0.5 + 0.15 * (run.results["method"] == "car") + 0.05 * run.config.seed,
                      10 * run.config.seed + (run.results["method"] == "car"),
                      f"{run.results['method']}, seed {run.config.seed}") for run in runs]  # fmt: skip
    return found, runs, group_runs(runs)


# ---- groups


def test_runs_that_differ_in_the_seed_only(make):
    runs = [make("car", 1), make("ce", 0), make("car", 0), make("car", 0, alpha=3.0), make("ce", 2), make("focal", 0)]
    groups = {group.name: (group.places, group.seeds) for group in group_runs(runs)}
    assert groups == {"car (alpha 0.5)": ((2, 0), (0, 1)), "ce": ((1, 4), (0, 2)), "car (alpha 3.0)": ((3,), (0,)),
                      "focal": ((5,), (0,))}  # fmt: skip
    same = group_runs([make("car", 0), make("car", 1, alpha=0.5)])  # its value, said or not
    assert [group.seeds for group in same] == [(0, 1)]


def test_a_seed_that_comes_twice_is_not_counted_twice(make):
    groups = group_runs([make("ce", 0, folder="a"), make("ce", 0, folder="b"), make("ce", 1, folder="c")])
    assert [(group.name, group.places) for group in groups] == [("ce (a)", (0, 2)), ("ce (b)", (1,))]


# ---- figures


def test_mean_spread_and_the_median_run(two_by_three):
    found, runs, groups = two_by_three
    result = study(found, runs, groups, draws=10)
    for group, figures, shown in zip(result.groups, result.figures, result.shown, strict=True):
        for key in ("overall", "head", "medium", "tail", "worst_test", "ece"):
            values = [found[place].metrics[key] for place in group.places]
            assert figures[key].mean == pytest.approx(np.mean(values))
            assert figures[key].std == pytest.approx(np.std(values, ddof=1))
            assert figures[key].number == 3
        assert figures["worst_ratio"] == Spread(pytest.approx(0.1), pytest.approx(0.1), 3)
        overall = [found[place].metrics["overall"] for place in group.places]
        assert found[shown].metrics["overall"] == statistics.median(overall)
    assert spread_text(result.figures[0]["worst_ratio"], 3) == "0.100 ± 0.100 (3)"
    assert spread_text(Spread(12.25, None, 1)) == "12.3 (one seed)"
    assert spread_text(None) == "n/a"


# ---- intervals


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
def test_quantile_of_student(freedom):
    assert student(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-9)


def test_differences_of_the_means(two_by_three):
    found, runs, groups = two_by_three
    (pair,) = study(found, runs, groups, draws=10).pairs
    assert (pair.baseline, pair.name, pair.seeds) == ("ce", "car", (0, 1, 2))
    for key in ("overall", "balanced", "head", "medium", "tail", "bottom_10pct", "bottom_20pct"):
        gains = [found[2 * seed + 1].metrics[key] - found[2 * seed].metrics[key] for seed in range(3)]
        assert pair.differences[key].value == pytest.approx(np.mean(gains), abs=1e-9)
        wanted = scipy.stats.t.interval(0.95, 2, np.mean(gains), scipy.stats.sem(gains))
        assert (pair.over_seeds[key].low, pair.over_seeds[key].high) == pytest.approx(wanted, abs=1e-6)
    for entry in pair.per_class:
        mine = np.equal(LABELS, entry["index"])
        first, second = (
            np.mean([(run.predictions.predicted == LABELS)[mine].mean() for run in found[at::2]]) for at in (0, 1)
        )
        assert (entry["baseline"], entry["other"]) == pytest.approx((100 * first, 100 * second))
        assert entry["difference"] == pytest.approx(100 * (second - first))


def slow_bootstrap(found, draws, *, seeds):
    """Images one by one, then seeds one by one."""
    draw, means = np.random.default_rng(5), []
    right = np.array([run.predictions.predicted == LABELS for run in found])
    for _ in range(draws):
        rows = [at for label in range(SIZE) for at in draw.choice(np.flatnonzero(np.equal(LABELS, label)), 39)]
        gains = right[1::2][:, rows].mean(1) - right[::2][:, rows].mean(1)
        means.append(100 * np.mean(draw.choice(gains, 2) if seeds else gains))
    return np.quantile(means, [0.025, 0.975])


def test_the_bootstrap_draws_images_and_seeds(two_by_three):
    found, runs, groups = two_by_three
    pair = study(found, runs, groups, draws=1500).pairs[0].differences["overall"]
    wanted = slow_bootstrap(found, 1500, seeds=True)
    assert (pair.low, pair.high) == pytest.approx(wanted, abs=0.12 * (wanted[1] - wanted[0]))


def test_two_seeds_say_nothing_about_a_third(two_by_three):
    found, runs, _ = two_by_three
    result = study(found[:4], runs[:4], group_runs(runs[:4]), draws=1500)
    (pair,) = result.pairs
    assert not pair.judged
    assert pair.over_seeds["overall"] is None
    overall = pair.differences["overall"]
    wanted = slow_bootstrap(found[:4], 1500, seeds=False)
    assert (overall.low, overall.high) == pytest.approx(wanted, abs=0.12 * (wanted[1] - wanted[0]))
    assert seed_tables(result)[1].rows[0][1] == "2 seeds, over test images only"


def test_better_only_if_images_and_seeds_say_so(make):
    """A gain in every seed is clear; one that comes from a single seed is not, however many images there are."""
    runs = [make(method, seed) for seed in (0, 1, 2) for method in ("ce", "car")]
    base = LABELS.copy()
    base[::2] = (LABELS[::2] + 1) % SIZE
    better = base.copy()
    better[:60] = LABELS[:60]
    for gains, clear in (((better, better, better), True), ((LABELS, base, base), False)):
        rows = [value for gain in gains for value in (base, gain)]
        found = [analyse(make_predictions(LABELS, row, class_counts=COUNTS, name=str(at)))
                 for at, row in enumerate(rows)]  # fmt: skip
        assert study(found, runs, group_runs(runs), draws=200).pairs[0].clear("overall") is clear


def test_no_seed_in_common(make):
    runs = [make("ce", 0), make("ce", 1), make("car", 2), make("car", 3)]
    found = [analysis(0.6, at, str(at)) for at in range(4)]
    result = study(found, runs, group_runs(runs), draws=10)
    assert (result.pairs, result.unpaired) == ([], ["car"])
    other = analyse(make_predictions(LABELS[::-1], LABELS[::-1], class_counts=COUNTS, name="turned"))
    with pytest.raises(ValueError, match="must have the same labels in the same order"):
        study([*found[:3], other], runs, group_runs(runs))


# ---- the page


@pytest.fixture(scope="module")
def page(two_by_three, tmp_path_factory):
    found, runs, groups = two_by_three
    path = tmp_path_factory.mktemp("seeds") / "r.html"
    result = study(found, runs, groups, draws=50)
    write_report(found, path, runs=runs, study=result)
    return result, Page(path.read_text(encoding="utf-8"))


def test_the_page_of_several_seeds(two_by_three, page):
    found, _, _ = two_by_three
    result, read = page
    assert read.open == []
    assert "2 methods compared over 6 runs" in read.text
    values = [found[place].metrics["overall"] for place in (0, 2, 4)]
    assert f"{number(np.mean(values))} ± {number(np.std(values, ddof=1))} (3)" in read.text
    assert "95 % interval over test images and seeds" in read.text
    assert "over the seeds alone" in read.text
    assert "McNemar" not in read.text
    for place in result.shown:  # sections show one run of each method, and say which
        assert f"{found[place].predictions.name} (median of 3 seeds)" in read.text
    hidden = {0, 1, 2, 3, 4, 5} - set(result.shown)
    assert not any(f"{found[place].predictions.name} (median" in read.text for place in hidden)
    drawn = {int(attributes["data-run"]) for _, attributes in read.tags if "data-run" in attributes}
    assert drawn == set(result.shown)
    options = [attributes for tag, attributes in read.tags if tag == "option" and attributes["value"].isdecimal()]
    assert [int(entry["value"]) for entry in options] == list(range(6))  # the matrix has all runs
    assert [int(entry["value"]) for entry in options if "selected" in entry] == result.shown[:1]
    assert all(run["confusion"] is not None for run in read.data["runs"])
    assert read.data["groups"] == [{"name": "ce", "runs": [0, 2, 4]}, {"name": "car", "runs": [1, 3, 5]}]


def test_one_method_with_two_seeds_and_another_with_one(two_by_three, tmp_path):
    found, runs, _ = two_by_three
    chosen = [0, 1, 2]
    found, runs = [found[at] for at in chosen], [runs[at] for at in chosen]
    write_report(found, tmp_path / "r.html", runs=runs, study=study(found, runs, group_runs(runs), draws=50))
    read = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "95 % interval over test images only" in read.text
    assert "how another seed would come out could not be judged" in read.text
    assert f"{number(found[1].metrics['overall'])} (one seed)" in read.text


def test_one_method_alone(two_by_three, tmp_path):
    found, runs = two_by_three[0][::2], two_by_three[1][::2]
    write_report(found, tmp_path / "r.html", runs=runs, study=study(found, runs, group_runs(runs), draws=50))
    read = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    mean = np.mean([entry.metrics["overall"] for entry in found])
    assert f"{number(mean)} % of the test images are recognised on average over 3 seeds" in read.text
    assert "ce, 3 seeds: what it gets right" in read.text
    assert "(median of 3 seeds)" in read.text


def test_downloads_have_every_number(two_by_three, page):
    _, runs, _ = two_by_three
    result, read = page
    numbers = json.loads(read.file("report.json"), parse_constant=pytest.fail)
    assert [run["name"] for run in numbers["runs"]] == [run["name"] for run in read.data["runs"]]
    for entry, run in zip(numbers["runs"], runs, strict=True):
        assert entry["command"] == run.command
        assert entry["identity"] == run.manifest.identity
        assert entry["config"]["seed"] == run.config.seed
        assert entry["results"] == run.results
        assert entry["epochs"][0] == run.curves[0]
        assert entry["epochs"][1] == {"epoch": 2, "loss": None, "car": 0.5}  # JSON has no NaN
    seeds = numbers["seeds"]["pairs"][0]
    assert seeds["differences"]["overall"]["low"] == result.pairs[0].differences["overall"].low
    rows = list(csv.DictReader(io.StringIO(read.file("training.csv"))))
    assert len(rows) == 12
    assert rows[0] == {"run": "ce, seed 0", "row": "1", "epoch": "1", "loss": "2.0", "lr": "0.1", "car": ""}
    assert rows[1] == {"run": "ce, seed 0", "row": "2", "epoch": "2", "loss": "", "lr": "", "car": "0.5"}
    rows = list(csv.DictReader(io.StringIO(read.file("differences.csv"))))
    assert [(row["class"], float(row["difference"])) for row in rows] == [
        (entry["name"], entry["difference"]) for entry in result.pairs[0].per_class
    ]
    table = read.file("tables.md")
    assert "over seeds alone" in table
    assert "worst class in training | WR |" in table
    assert "| 80.0 | 0.200 |" in table  # of a run with seed 2


def test_settings_of_car_are_among_the_downloads(make, tmp_path):
    runs = [make("car", 0), make("car", 0, beta=0.9)]
    for run, overall in zip(runs, (50.0, 60.0), strict=True):
        run.results.update(overall=overall, tail=20.0, worst_test=0.0)
    found = [analysis(0.6, at, f"car {at}") for at in range(2)]
    write_report(found, tmp_path / "r.html", runs=runs)
    read = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    (panel,) = json.loads(read.file("report.json"))["settings"]
    assert panel["setting"] == "beta"
    assert [(point["value"], point["mean"]["overall"]) for point in panel["curves"][0]["points"]] == [
        (0.5, 50),
        (0.9, 60),
    ]
