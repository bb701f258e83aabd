"""Slices, names of runs, and tables: numbers by hand, and nothing mixed that does not belong together."""

import csv
import io
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

import spectail
from spectail.diagnosis.text_table import Table, to_latex
from spectail.experiments.catalog import EXPERIMENTS, find_experiment
from spectail.experiments.cost import AROUND, HEAD_STEP, StepTimes, estimate, learn, training_images
from spectail.experiments.index import Record
from spectail.experiments.planning import Slice, by_name, make_plan, outside
from spectail.experiments.published import value_of
from spectail.experiments.runs import _bare, code_version, hash_of_code, key_of
from spectail.experiments.scales import ABOUT, BATCH, Overrides
from spectail.experiments.tables import as_csv, as_table, from_csv, layout, make_rows
from spectail.training.config_io import preset

WGR = find_experiment("wgr-lt")


def plan_of(name="wgr-lt", scale="quick", seeds=(0, 1), changes=None, **choice):
    experiment = find_experiment(name)
    return make_plan(experiment, Slice(**choice).of(experiment), scale, seeds, changes or Overrides())


def record(run, results, data="images", code=None, status="done", finished=1.0):
    version = code or code_version()
    about = {"name": run.name, "data": data, "code": version, "scale": run.scale, "seed": run.seed,
             "cell": str(run.cell)}  # fmt: skip
    return Record(key_of(run.name, data, version), about, status, 1, 0.0, finished, results, "somewhere", None)


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
    a, b, c = (plan_of("lt-pretrained", method=("CAR",), changes=Overrides(init=path)).runs[0]
               for path in (weights, moved, other))  # fmt: skip
    assert a.name == b.name != c.name
    assert len({key_of(name, data, code) for name in (a.name, c.name) for data in "xy" for code in "12"}) == 8


def test_weights_that_are_not_there_are_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="the weights .*none cannot be read"):
        plan_of("lt-pretrained", changes=Overrides(init=tmp_path / "none"))


def test_weights_are_for_cells_that_start_from_some():
    scratch = plan_of(changes=Overrides(init=Path("w.safetensors")))
    assert not scratch.runs
    assert set(scratch.refused.values()) == {"it trains from scratch, and --init gives weights"}


def test_what_changes_nothing_is_the_same_run():
    usual = plan_of(method=("CAR",), scale="paper")
    same = plan_of(method=("CAR",), scale="paper", changes=Overrides(batch_size=128, data_seed=0, epochs=200))
    assert [run.name for run in same.runs] == [run.name for run in usual.runs]
    assert same.label(same.cells[0]) == "paper"
    for name in ("scratch", "finetune", "probe", "demo"):
        assert preset(name).optim.batch_size == BATCH.get(name, 128)


def test_a_table_of_backbones_is_refused_where_all_would_be_one_model():
    table = plan_of("backbone", seeds=(0,))
    assert not table.runs
    assert all(reason.startswith("it would be the same run for 5 backbones, of resnet20")
               for reason in table.refused.values())  # fmt: skip
    assert len(plan_of("backbone", seeds=(0,), backbone=("resnet",)).runs) == len(table.cells) // 5
    assert len(plan_of("backbone", "short", (0,)).runs) == len(table.cells)


def test_comments_do_not_change_the_version_of_the_code():
    one = 'def f(x):\n    """Words."""\n    return x + 1\n'
    assert _bare(one) == _bare("# why\ndef f(x):\n    return (x + 1)  # because\n")
    assert _bare(one) != _bare(one.replace("1", "2"))
    assert _bare(one) == _bare("from .elsewhere import x\n" + one)
    assert code_version() == code_version()


@pytest.fixture
def house(tmp_path):
    """A copy of the package, to be changed."""
    return Path(shutil.copytree(Path(spectail.__file__).parent, tmp_path / "house"))


def test_the_version_of_the_code_follows_its_content_and_not_its_place(house):
    before = hash_of_code(house)
    assert code_version().endswith(before[:8])
    (house / "losses" / "focal.py").rename(house / "losses" / "renamed.py")
    (house / "new_room").mkdir()
    (house / "losses" / "ldam.py").rename(house / "new_room" / "ldam.py")
    assert hash_of_code(house) == before
    for room in ("cli/predict.py", "report/page.py", "diagnosis/tables.py"):
        (house / room).write_text("changed = 1\n")
    assert hash_of_code(house) == before
    moved = house / "new_room" / "ldam.py"
    text = moved.read_text()
    moved.write_text(text.replace("0.25", "0.26"))
    assert text != moved.read_text()
    assert hash_of_code(house) != before


def test_a_new_room_counts_and_one_that_is_gone_is_noticed(house):
    before = hash_of_code(house)
    (house / "new.py").write_text("added = 1\n")
    assert hash_of_code(house) != before
    (house / "diagnosis").rename(house / "moved")
    with pytest.raises(RuntimeError, match="leaves out diagnosis, which .* does not have"):
        hash_of_code(house)


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
    assert "worst class (quick)" in table.header
    assert "93.0 ± 3.6" in table.rows[0]
    (read,) = from_csv(as_csv(plan, rows))
    assert (read.cell.label, read.seeds, read.figures) == (row.cell.label, row.seeds, row.figures)
    assert as_table(plan, [read]).rows == table.rows
    written = value_of(row.cell.place, "worst_test")
    assert str(written) in table.rows[0]  # with the digits that the paper prints
    assert "a: ResNet-20 at 32 x 32 instead of" in table.notes
    assert to_latex(table).splitlines()[-1].startswith(r"\par\smallskip{\footnotesize a: ResNet-20 at 32 x 32")


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
    figures = {"balanced": 31.0, "head": 60.0, "medium": 20.0, "tail": 5.0, "worst_test": 0.0}
    found = {"val": figures | {"bottom_10pct": 1.0, "bottom_20pct": 2.0}, "overall": 99.0}
    rows, _ = make_rows(plan, [record(plan.runs[0], found)])
    assert {figure.metric.removeprefix("val_"): figure.mean for figure in rows[0].figures}.items() <= found[
        "val"
    ].items()
    assert [figure.mean for figure in rows[0].figures[:2]] == [31.0, 60.0]


def with_line(tail, shifts=(-1.0, 0.0, 1.0)):
    line = {"shifts": list(shifts), "tail": [tail - 5, tail, tail + 5.123456789], "overall": [40.0, 50.0, 45.0]}
    return {"tail": tail, "overall": 50.0, "line": line, "val": {"tail": 1.0, "line": {"tail": [9.0] * 3}}}


def test_lines_are_read_from_results_and_kept_in_the_file():
    plan = plan_of("trade-off", seeds=(0, 1), dataset=("glyphs-lt",), imbalance=(100.0,), method=("CE", "car"))
    cells = list(dict.fromkeys(run.cell for run in plan.runs))
    records = [record(run, with_line(10.0 * cells.index(run.cell) + run.seed)) for run in plan.runs]
    rows, _ = make_rows(plan, records)
    tail = {figure.metric: figure for figure in rows[0].figures}["tail"]
    assert (rows[0].shifts, tail.line) == ((-1.0, 0.0, 1.0), ((-5.0, 0.0, 5.123456789), (-4.0, 1.0, 6.123456789)))
    assert {figure.metric: figure for figure in rows[0].figures}["ece"].line == ()
    read = from_csv(as_csv(plan, rows))
    assert [entry.cell for entry in read] == [entry.cell for entry in rows]
    for one, other in zip(read, rows, strict=True):
        assert one.shifts == other.shifts
        for mine, yours in zip(one.figures, other.figures, strict=True):
            assert np.asarray(mine.line) == pytest.approx(np.asarray(yours.line), rel=1e-5)


def test_a_line_that_some_seed_lacks_or_that_has_other_shifts_is_none():
    plan = plan_of("trade-off", seeds=(0, 1), dataset=("glyphs-lt",), imbalance=(100.0,), method=("CE",))
    for other in ({"tail": 1.0, "overall": 2.0}, with_line(1.0, (-2.0, 0.0, 2.0))):
        records = [record(plan.runs[0], with_line(3.0)), record(plan.runs[1], other)]
        (row,) = make_rows(plan, records)[0]
        assert (row.shifts, {figure.line for figure in row.figures}) == ((), {()})


def test_lines_of_held_out_images_are_those_of_the_validation_figures():
    plan = plan_of("selection", seeds=(0,), dataset=("glyphs-lt",), imbalance=(100.0,), method=("CE",))
    found = with_line(3.0)
    found["val"]["line"]["shifts"] = [0.0, 0.1, 0.2]
    (row,) = make_rows(plan, [record(plan.runs[0], found)])[0]
    assert row.shifts == (0.0, 0.1, 0.2)
    assert {figure.metric: figure.line for figure in row.figures}["val_tail"] == ((9.0, 9.0, 9.0),)


def test_all_experiments_can_be_sliced():
    every = [make() for make in EXPERIMENTS.values()]
    found = Slice(dataset=("cifar100-lt",), method=("ce", "cmo")).of_all(every)
    assert [one.name for one, _ in found] == [
        one.name
        for one in every
        if any(c.dataset == "cifar100-lt" and c.method in ("ce", "cmo") and c.label != "RS" for c in one.cells)
    ]
    for one, cells in found:
        expected = [
            c for c in one.cells if c.dataset == "cifar100-lt" and c.method in ("ce", "cmo") and c.label != "RS"
        ]
        assert cells == expected
    with pytest.raises(ValueError, match=r"--method cmoo: no experiment has such a cell; near it are cmo"):
        Slice(method=("ce", "cmoo")).of_all(every)
    with pytest.raises(ValueError, match=r"no experiment has a cell to which all of --dataset, --imbalance apply"):
        Slice(dataset=("inat2018",), imbalance=(50.0,)).of_all(every)


@pytest.mark.parametrize(
    ("name", "scale", "changes", "label"),
    [
        ("wgr-lt", "paper", {}, "paper"),
        ("wgr-lt", "paper", {"epochs": 1}, "paper, changed"),
        ("wgr-lt", "paper", {"epochs": 200}, "paper"),  # what the paper does
        ("wgr-lt", "paper", {"batch_size": 128}, "paper"),
        ("wgr-lt", "short", {"model": "resnet20"}, "short, changed"),
        ("wgr-lt", "paper", {"batch_size": 8}, "paper, changed"),
        ("combinations", "paper", {}, "paper, own set"),
        ("combinations", "quick", {"epochs": 1}, "quick, own set, changed"),
    ],
)
def test_a_number_is_called_by_its_scale_only_where_it_is_of_that_scale(name, scale, changes, label):
    dataset = "glyphs-lt" if name == "combinations" else "cifar100-lt"
    plan = plan_of(name, scale, (0,), Overrides(**changes), dataset=(dataset,), method=("CAR",))
    rows, _ = make_rows(plan, [])
    assert {row.scale for row in rows} == {label}
    table = as_table(plan, rows)
    assert f"Scale {label};" in table.title
    assert all(line["scale"] == label for line in csv.DictReader(io.StringIO(as_csv(plan, rows))))
    if name == "combinations":  # nothing is published beside it
        assert {row[table.header.index("scale")] for row in table.rows} == {label}
    if name == "wgr-lt":
        assert f"worst class ({label})" in table.header
        assert label == "paper" or "worst class (paper)" not in table.header


def test_rows_of_different_scales_each_say_their_own():
    paper, changed = (plan_of("wgr-lt", "paper", (0,), over, dataset=("cifar100-lt",), method=("CAR",))
                      for over in (Overrides(), Overrides(epochs=1)))  # fmt: skip
    table = as_table(paper, [*make_rows(paper, [])[0], *make_rows(changed, [])[0]])
    assert table.header[:2] == ("method", "scale")
    assert [row[:2] for row in table.rows] == [("CAR", "paper"), ("CAR", "paper, changed")]
    assert not any("(paper" in name for name in table.header)


def test_code_and_data_of_a_row_are_in_the_file_and_read_back():
    plan = plan_of(seeds=(0, 1), method=("CAR",), dataset=("cifar100-lt",))
    found = {"worst_train": 90.0, "worst_test": 10.0, "worst_ratio": 1 / 9}
    records = [record(plan.runs[0], found, data="d1", code="1+b"), record(plan.runs[1], found, data="d1", code="1+a")]
    rows, _ = make_rows(plan, records, any_code=True)
    text = as_csv(plan, rows)
    line = next(csv.DictReader(io.StringIO(text)))
    assert (line["code"], line["data"]) == ("1+a 1+b", "d1")
    (read,) = from_csv(text)
    assert (read.code, read.data) == (("1+a", "1+b"), ("d1",))
    lines = list(csv.DictReader(io.StringIO(text)))
    old = io.StringIO()
    writer = csv.DictWriter(old, [name for name in lines[0] if name not in ("code", "data")], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(lines)
    (read,) = from_csv(old.getvalue())  # a file from before
    assert (read.code, read.data, read.figures) == ((), (), rows[0].figures)


def test_what_is_outside_of_a_plan():
    plan, more = plan_of(seeds=(0,), method=("CAR",)), plan_of(seeds=(0, 1), method=("CAR",))
    records = [record(run, {}, status="failed") for run in more.runs]
    records.append(record(more.runs[1], {}, code="0.0.1+old"))
    names = {run.name for run in more.runs} - {run.name for run in plan.runs}
    assert {one.about["name"] for one in outside([plan], records)} == names
    assert len(outside([plan], records)) == 2
    assert len(outside([plan], records, any_code=True)) == 3


@pytest.mark.parametrize("width", [40, 60, 80, 130, 400])
def test_a_table_is_cut_between_columns_and_never_in_a_word(width):
    header = ("method", "overall (quick, changed)", "published", "difference", "above tau line, equal lowest 10 %",
              "ECE", "seeds", "notes")  # fmt: skip
    rows = [("CAR class-wise, alpha 2", "41.5 ± 0.3", "44.0", "-2.5", "-16.3 ± 0.2", "3.1 ± 0.4", "3", "a b"),
            ("CE", "", "1.0", "", "", "", "0", "works on images, and this scale trains a head")]  # fmt: skip
    parts = layout(Table("", header, rows), width)
    places = [place for part in parts for place, _ in part]
    assert [place for place in places if place] == list(range(1, len(header)))  # every column once
    assert all(part[0][0] == 0 for part in parts)  # but that of the method in each part
    assert any({1, 2, 3} <= {place for place, _ in part} for part in parts)
    assert (len(parts) == 1) == (width >= 130)
    for part in parts:
        total = sum(size + 3 for _, size in part) + 1
        assert total <= width or len(part) <= 4  # a column and its published number are never parted
        for place, size in part:
            longest = [max(map(len, row[place].split()), default=0) for row in rows]
            whole = [len(row[place]) for row in rows] if 0 < place < 7 else longest
            assert size >= max(*whole, *map(len, header[place].split()))


def probe_plan(seeds=(0,), **choice):
    return plan_of("lt-pretrained", "quick", seeds, dataset=("cifar100-lt",), **choice)


def test_features_are_paid_for_once_and_heads_learn_from_finished_runs(tmp_path):
    plan = probe_plan((0, 1), method=("ce", "focal"))
    times = StepTimes(tmp_path / "none.json")
    images = training_images({"dataset": "cifar100-lt", "imbalance": 100.0})
    rough = images * ABOUT * HEAD_STEP + AROUND
    unknown = estimate(plan.runs, times)
    assert (unknown.unknown, unknown.passes) == (0, 1)
    assert unknown.total == pytest.approx(4 * rough)
    assert unknown.words.endswith(" + features, not measured")
    times.known["vit_small_patch16_224 224"] = 0.3
    whole = estimate(plan.runs, times)
    assert (whole.unknown, whole.passes) == (0, 0)
    assert whole.total == pytest.approx(4 * rough + (images + 10_000) * 0.3 / 3)
    done = [run for run in plan.runs if run.seed == 0]
    seconds = {"ce": 50.0, "focal": 7.0}
    learn(times, plan, [record(run, {"seconds": seconds[run.cell.method]}) for run in done])
    left = [run for run in plan.runs if run.seed == 1]
    assert estimate(left, times).total == pytest.approx(50 + 7 + 2 * AROUND)  # and the features are there


def test_safa_takes_its_time_on_features(tmp_path):
    times = StepTimes(tmp_path / "none.json")
    times.features.add(("vit_small_patch16_224", 224, "cifar100-lt"))
    slow, plain = (estimate(probe_plan(method=(name,)).runs, times).total for name in ("safa-r", "ce"))
    assert 200 < slow < 320  # 132 s measured for 12 epochs
    assert plain < 10


def test_devices_that_are_not_here_are_a_sentence(tmp_path):
    import torch

    with pytest.raises(ValueError, match="--device must be auto, cpu, cuda, cuda:N or mps; got 'gpu'"):
        StepTimes(tmp_path / "t.json").measure("resnet20", 32, "gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="--device cuda is not available here"):
            StepTimes(tmp_path / "t.json").measure("resnet20", 32, "cuda")
