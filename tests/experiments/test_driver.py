"""The driver: what is missing is trained once, failures are kept with their reason, hopeless runs are left out."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from small_cells import Here, drive, small_runs, small_tasks

from spectail._utils.errors import MissingWeights
from spectail.data import datasets
from spectail.experiments import task as task_module
from spectail.experiments.cells import printed_cell
from spectail.experiments.index import Index
from spectail.experiments.scales import sized
from spectail.experiments.task import Outcome, task_of
from spectail.training import build
from spectail.training.loop import train


@pytest.fixture
def index(tmp_path):
    with Index(tmp_path / "index.sqlite", write=True) as found:
        yield found


def test_what_is_missing_is_trained_and_nothing_twice(tmp_path, index):
    tasks = small_tasks(tmp_path / "runs")
    driver, said = drive(index, tasks[:1])
    assert (driver.tally.done, driver.tally.kept, len(said)) == (1, 0, 1)
    driver, said = drive(index, tasks)
    assert (driver.tally.done, driver.tally.kept, len(said)) == (1, 1, 1)
    records = {record.results["method"]: record for record in index.records()}
    assert {record.status for record in records.values()} == {"done"}
    plain = train(small_runs()[0].config(tmp_path / "alone", device="cpu", workers=0))
    assert records["ce"].results["per_class"] == plain["per_class"]
    assert records["ce"].about["data"] == plain["identity"]
    assert driver.outcomes[tasks[0].name].results == records["ce"].results
    kept = {path.name for path in Path(records["ce"].folder).iterdir()}
    assert kept >= {"results.json", "predictions.npz", "config.yaml"}
    assert not kept & {"checkpoints", "model.safetensors"}


def test_a_run_loads_its_data_once_and_a_plan_identifies_each_set_once(tmp_path, index, monkeypatch):
    loaded = []

    def load(config, **options):
        loaded.append(config.imbalance)
        return datasets.load(config, **options)

    monkeypatch.setattr(build, "load", load)
    drive(index, small_tasks(tmp_path, ("ce", "car"), (0, 1)))
    assert loaded == [4.0] * 4
    drive(index, small_tasks(tmp_path, ("ce", "car"), (0, 1, 2)))
    assert loaded == [4.0] * 7  # once to know which images they are, and two new runs


def test_results_whose_index_is_gone_are_found_in_their_folders(tmp_path, index, monkeypatch):
    tasks = small_tasks(tmp_path / "runs")
    drive(index, tasks)
    before = index.records()
    monkeypatch.setattr("spectail.training.loop.Trainer", None)  # nothing is trained
    with Index(tmp_path / "new.sqlite", write=True) as new:
        driver, _ = drive(new, tasks)
        assert driver.tally.done == 2
        assert [(old.key, old.results) for old in before] == [(one.key, one.results) for one in new.records()]


def test_other_images_are_another_run(tmp_path, index, monkeypatch):
    drive(index, small_tasks(tmp_path, ("ce",)))
    tasks = small_tasks(tmp_path, ("ce",))
    other = [replace(task, config=replace(task.config, data=replace(task.config.data, data_seed=5))) for task in tasks]
    driver, _ = drive(index, other)  # the same name, as if the files had changed
    assert (driver.tally.done, driver.tally.kept) == (1, 0)
    assert len({record.about["data"] for record in index.records()}) == 2


def test_a_run_that_fails_is_kept_with_its_reason_and_the_rest_goes_on(tmp_path, index):
    bad = small_tasks(tmp_path, ("ce",), extra=(("optim.lr", -1.0),))
    driver, said = drive(index, [*bad, *small_tasks(tmp_path, ("ce",))])
    assert (driver.tally.done, len(driver.tally.failures)) == (1, 1)
    failed = next(record for record in index.records() if record.status == "failed")
    assert failed.error == "--lr must be more than 0; got -1.0."
    assert said[0] == f"failed: {bad[0].title}"
    assert driver.tally.failures == {bad[0].name: (bad[0].title, failed.error)}
    engine = Here()
    again, _ = drive(index, bad, engine)
    assert again.tally.failures[bad[0].name][1] == f"{failed.error} (earlier; --retry tries it again)"
    assert [task.only_identify for task in engine.tasks] == [True]
    drive(index, bad, retry=True)
    assert [(record.key, record.attempts) for record in index.records() if record.status == "failed"] == [
        (failed.key, 2)
    ]


def test_a_run_whose_process_dies_is_tried_again_and_then_failed(tmp_path, index):
    (task,) = small_tasks(tmp_path, ("ce",))
    engine = Here([Outcome("died", error="killed"), Outcome("died", error="killed")])
    driver, said = drive(index, [task], engine)
    assert (driver.tally.done, [one.attempt for one in engine.tasks]) == (1, [1, 2, 3])
    assert said[:2] == [f"{task.title}: trying again: killed"] * 2
    (other,) = small_tasks(tmp_path, ("car",))
    driver, said = drive(index, [other], Here([Outcome("died", error="x\nkilled")] * 3))
    assert driver.tally.failures == {other.name: (other.title, "killed (after 3 attempts)")}
    engine = Here()
    driver, _ = drive(index, [other], engine)  # nobody knows its images, and yet it waits for --retry
    assert [task.only_identify for task in engine.tasks] == [True]
    assert len(driver.tally.failures) == 1
    driver, _ = drive(index, [other], Here([Outcome("died")]), retries=0, retry=True)
    assert len(driver.tally.failures) == 1


def test_a_stopped_run_leaves_no_record(tmp_path, index):
    driver, _ = drive(index, small_tasks(tmp_path, ("ce",)), Here([Outcome("stopped")]))
    assert (driver.tally.done, driver.tally.failures, index.records()) == (0, {}, [])


def test_a_running_run_is_in_the_index(tmp_path, index):
    seen = []

    class Looks(Here):
        def carry_out(self, waiting, begun):
            for task, outcome in super().carry_out(waiting, begun):
                seen.extend((record.status, record.about["name"] == task.name) for record in index.records())
                yield task, outcome

    drive(index, small_tasks(tmp_path, ("ce",)), Looks())
    assert seen == [("running", True)]
    assert [record.status for record in index.records()] == ["done"]


def test_runs_without_data_are_left_out_with_the_sentence(tmp_path, index):
    cell = printed_cell(("scratch", "inat2018", None, "vit_small", "CE"))
    run = replace(small_runs(("ce",))[0], cell=cell, sized=sized(cell, "quick"))
    tasks = [task_of(replace(run, seed=seed), tmp_path, {"device": "cpu"}) for seed in (0, 1)]
    engine = Here()
    driver, said = drive(index, [*tasks, *small_tasks(tmp_path, ("ce",))], engine)
    assert (driver.tally.done, driver.tally.left, len(engine.tasks)) == (1, 2, 2)  # the second was not even tried
    assert said[0].startswith("left out, inat2018 is not there: ")
    assert [outcome.absent for outcome in driver.tally.no_data.values()] == [True]


def test_data_that_are_there_but_wrong_are_left_out_with_the_real_reason(tmp_path, index):
    bad = small_tasks(tmp_path, ("ce",), (0, 1), extra=(("data.num_classes", 1),))
    driver, said = drive(index, bad)
    assert (driver.tally.done, driver.tally.failures, driver.tally.left) == (0, {}, 2)
    assert len(said) == 1
    assert said[0].startswith("left out, glyphs-lt cannot be used: ")
    assert not any(outcome.absent for outcome in driver.tally.no_data.values())


def test_weights_that_cannot_be_fetched_are_no_failure_of_a_cell(tmp_path, index, monkeypatch):
    tried = []

    def offline(config, **_):
        tried.append(config.seed)
        raise MissingWeights("the weights of small-cnn could not be fetched. Give them as a file with --init.")

    monkeypatch.setattr(task_module, "train", offline)
    tasks = small_tasks(tmp_path, ("ce",), (0, 1, 2))
    model = replace(tasks[0].config.model, pretrained=True)
    driver, said = drive(index, [replace(task, config=replace(task.config, model=model)) for task in tasks])
    assert (driver.tally.left, driver.tally.failures, tried) == (3, {}, [0])
    assert said == [
        "left out, all runs of small-cnn: the weights of small-cnn could not be fetched. "
        "Give them as a file with --init."
    ]
    assert index.records() == []


def test_missing_weights_leave_out_only_what_needs_them(tmp_path, index):
    scratch, pretrained = small_tasks(tmp_path, ("ce",), (0, 1))
    model = replace(pretrained.config.model, pretrained=True)
    pretrained = [replace(task, config=replace(task.config, model=model)) for task in (pretrained, pretrained)]
    driver, _ = drive(index, [*pretrained, scratch], Here([Outcome("no weights", error="offline")]))
    assert (driver.tally.left, driver.tally.done) == (2, 1)


def test_a_folder_of_its_own_that_is_gone_or_has_other_images(tmp_path, index):
    """As `compare` has them: named by the method, not by content."""
    (task,) = (replace(task, words="") for task in small_tasks(tmp_path / "ce", ("ce",)))
    assert drive(index, [task])[0].tally.done == 1
    assert drive(index, [task])[0].tally.kept == 1
    shutil.rmtree(tmp_path / "ce")
    assert drive(index, [task])[0].tally.done == 1
    other = replace(task, config=replace(task.config, data=replace(task.config.data, data_seed=5)))
    driver, _ = drive(index, [other])
    ((_, reason),) = driver.tally.failures.values()
    assert "was started with other settings" in reason or "holds a run on other images" in reason


def test_a_device_that_is_not_here_is_no_fault_of_the_data(tmp_path, index):
    (task,) = small_tasks(tmp_path, ("ce",))
    driver, _ = drive(index, [replace(task, config=replace(task.config, device="cuda:99"))])
    ((_, reason),) = driver.tally.failures.values()
    assert "--device cuda:99" in reason
