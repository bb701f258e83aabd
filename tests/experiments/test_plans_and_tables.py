"""Slices, names of runs, and tables: numbers by hand, and nothing mixed that does not belong together."""

import csv
import io
import statistics

import pytest

from spectail.experiments.catalog import find_experiment
from spectail.experiments.planning import Slice, by_name, make_plan
from spectail.experiments.runs import _bare, code_version
from spectail.experiments.scales import Overrides
from spectail.experiments.store import Record
from spectail.experiments.tables import as_csv, as_table, from_csv, make_rows

WGR = find_experiment("wgr-lt")


def plan_of(name="wgr-lt", scale="quick", seeds=(0, 1), changes=None, **choice):
    experiment = find_experiment(name)
    return make_plan(experiment, Slice(**choice).of(experiment), scale, seeds, changes or Overrides())


def record(run, results, data="images", code=None, status="done", finished=1.0):
    about = run.about(data, code or code_version())
    return Record(run.key(data, about["code"]), about, status, None, 1, 0.0, finished, results, "somewhere", None)


def test_slices_are_what_was_asked_for():
    assert len(Slice().of(WGR)) == 20
    assert {cell.label for cell in Slice(method=("CAR*",)).of(WGR)} == {"CAR", "CAR + ConCutMix"}
    assert {cell.label for cell in Slice(method=("cmo", "focal"), dataset=("cifar100-lt",)).of(WGR)} == {"CMO", "Focal"}
    assert {cell.imbalance for cell in Slice(imbalance=(50,)).of(find_experiment("lt-ratio"))} == {50.0}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"method": ("CMOO",)}, r"--method CMOO: wgr-lt has no such cell; near it are .*CMO"),
        ({"dataset": ("cifar10-lt",)}, r"near it are .*cifar100-lt"),
        ({"imbalance": (77.0,)}, r"--imbalance 77"),
        ({"backbone": ("vit_smal",)}, "vit_small"),
    ],
)
def test_an_unknown_cell_names_the_nearest(choice, words):
    with pytest.raises(ValueError, match=words):
        Slice(**choice).of(WGR)


def test_the_name_of_a_run_is_everything_that_decides_it(tmp_path):
    one = plan_of(method=("CAR",), dataset=("cifar100-lt",))
    names = [run.name for run in one.runs]
    assert len(set(names)) == 2
    assert [run.name for run in plan_of(method=("CAR",), dataset=("cifar100-lt",)).runs] == names
    assert not set(names) & {run.name for run in plan_of(method=("CAR",), scale="short").runs}
    weights = tmp_path / "a.safetensors"
    weights.write_bytes(b"weights")
    moved = tmp_path / "b.safetensors"
    moved.write_bytes(b"weights")
    other = tmp_path / "c.safetensors"
    other.write_bytes(b"other weights")
    a, b, c = (plan_of(method=("CAR",), changes=Overrides(init=path)).runs[0] for path in (weights, moved, other))
    assert a.name == b.name != c.name
    assert a.key("x", "1") != a.key("y", "1") != a.key("y", "2")


def test_weights_that_are_not_there_are_a_sentence(tmp_path):
    run = plan_of(changes=Overrides(init=tmp_path / "none")).runs[0]
    with pytest.raises(ValueError, match="the weights .*none cannot be read"):
        _ = run.name


def test_comments_do_not_change_the_version_of_the_code():
    one = 'def f(x):\n    """Words."""\n    return x + 1\n'
    assert _bare(one) == _bare("# why\ndef f(x):\n    return (x + 1)  # because\n")
    assert _bare(one) != _bare(one.replace("1", "2"))
    assert code_version() == code_version()


def test_a_table_has_the_mean_and_the_published_number():
    plan = plan_of(seeds=(0, 1, 2), method=("CAR",), dataset=("cifar100-lt",))
    values = [(90.0, 10.0), (92.0, 14.0), (97.0, 12.0)]
    records = [
        record(run, {"worst_train": train, "worst_test": test, "worst_ratio": test / train})
        for run, (train, test) in zip(plan.runs, values, strict=True)
    ]
    rows, remarks = make_rows(plan, records)
    (row,) = rows
    assert not remarks
    train = row.figures[0]
    assert train.mean == pytest.approx(93.0)
    assert train.std == pytest.approx(statistics.stdev([90, 92, 97]))
    assert row.seeds == (0, 1, 2)
    lines = list(csv.DictReader(io.StringIO(as_csv(plan, rows))))
    test = next(line for line in lines if line["metric"] == "worst_test")
    assert float(test["mean"]) == pytest.approx(12.0)
    assert float(test["difference"]) == pytest.approx(12.0 - float(test["published"]))
    assert (test["scale"], test["seeds"]) == ("quick", "3")
    table = as_table(plan, rows)
    assert "worst test (quick)" in table.header
    assert "93.0 ± 3.6" in table.rows[0]
    (read,) = from_csv(as_csv(plan, rows))
    assert (read.cell.label, read.seeds, read.figures) == (row.cell.label, row.seeds, row.figures)
    assert as_table(plan, [read]).rows == table.rows


def test_results_of_other_images_code_or_state_never_stand_in_a_row():
    plan = plan_of(seeds=(0, 1, 2, 3), method=("CAR",), dataset=("cifar100-lt",))
    good = {"worst_train": 90.0, "worst_test": 10.0, "worst_ratio": 1 / 9}
    bad = {"worst_train": 1.0, "worst_test": 1.0, "worst_ratio": 1.0}
    first, second, third, fourth = plan.runs
    records = [
        record(first, good),
        record(second, good),
        record(third, bad, data="other images"),
        record(fourth, bad, code="0.0.1+old"),
        record(first, bad, status="failed", finished=9.0),
    ]
    rows, remarks = make_rows(plan, records)
    assert rows[0].seeds == (0, 1)
    assert rows[0].figures[0].values == (90.0, 90.0)
    assert any("other images" in text or "1 results" in text for text in remarks)
    old, remarks = make_rows(plan, records, any_code=True)
    assert old[0].seeds == (0, 1, 3)
    assert any("2 versions of the code" in text for text in remarks)
    assert len(by_name(records)[first.name]) == 2


def test_the_scales_never_share_a_number():
    runs = {scale: {run.name for run in plan_of("lt-main", scale, (0,)).runs} for scale in ("quick", "short", "paper")}
    assert len(runs["quick"] | runs["short"] | runs["paper"]) == sum(map(len, runs.values()))


def test_validation_figures_are_read_where_they_are():
    plan = plan_of("sweeps", seeds=(0,), dataset=("glyphs-lt",), method=("CAR, beta 0.5",))
    found = {
        "val": {"balanced": 31.0, "head": 60.0, "tail": 5.0, "bottom_10pct": 1.0, "worst_test": 0.0},
        "overall": 99.0,
    }
    rows, _ = make_rows(plan, [record(plan.runs[0], found)])
    assert [figure.mean for figure in rows[0].figures] == [31.0, 60.0, 5.0, 1.0, 0.0]
