"""Rehearsals: a run's own settings, every stage resumed, nothing left behind, a sentence for what fails."""

from dataclasses import replace

import numpy as np
import pytest
from small_cells import Here, drive, small_tasks

from spectail.cli import many_runs
from spectail.cli.main import main
from spectail.data.config import DataConfig
from spectail.experiments.catalog import find_experiment
from spectail.experiments.devices import image_flops
from spectail.experiments.index import Index
from spectail.experiments.planning import make_plan
from spectail.experiments.rehearsal import rehearsal_of, synthetic_data
from spectail.experiments.scales import Overrides
from spectail.experiments.task import carry_out, task_of
from spectail.methods.base import Method
from spectail.training import checkpoint
from spectail.training.config_io import differences

SHORTENED = {"optim.epochs", "optim.batch_size", "options.stage2_epochs", "options.stage2_batch_size",
             "options.meta_batch_size"}  # fmt: skip


class StopsLate(Method):
    def loss(self, model, batches, step):
        if step.epoch == 1:
            raise ValueError("the second epoch is too much.")
        return super().loss(model, batches, step)


class Diverges(Method):
    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        return found._replace(loss=found.loss / 0)


@pytest.fixture
def index(tmp_path):
    with Index(tmp_path / "index.sqlite", write=True) as found:
        yield found


def rehearsals(folder, *methods):
    return [rehearsal_of(task) for task in small_tasks(folder / "runs", methods)]


@pytest.mark.parametrize(
    ("method", "phases", "breaks"),
    [("car", {"train": 2}, [1]), ("balms", {"stage1": 2, "stage2": 2}, [1, 3]),
     ("ldam-drw", {"train": 1, "reweighted": 1}, [1])],
)  # fmt: skip
def test_a_rehearsal_resumes_every_stage_and_leaves_nothing(tmp_path, monkeypatch, method, phases, breaks):
    resumed, load = [], checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda path, rank: resumed.append(path.name) or load(path, rank))
    outcome = carry_out(rehearsals(tmp_path, method)[0])
    assert (outcome.status, outcome.error, outcome.results["phases"]) == ("done", "", phases)
    assert resumed == [f"step-{number:08d}" for number in breaks]
    assert not list((tmp_path / "runs").iterdir())


def test_all_but_length_and_batch_is_that_of_the_run(tmp_path):
    changed = set()
    for name in ("lt-main", "resnet-tiny-if"):
        experiment = find_experiment(name)
        for run in make_plan(experiment, experiment.cells, "paper", [0], Overrides()).runs:
            task = task_of(run, tmp_path, {})
            rehearsal = rehearsal_of(task)
            found = {text.split()[0].rstrip(":") for text in differences(task.config, rehearsal.config)}
            assert found <= SHORTENED
            assert rehearsal.name != task.name
            changed |= found
    assert changed == SHORTENED


@pytest.mark.parametrize(
    ("dataset", "classes", "images", "size"),
    [("cifar100-lt", 100, 10_847, (32, 32)), ("imagenet-lt-exp", 1000, 275_018, (500, 375)),
     ("inat2018", 8142, 437_513, (500, 375))],
)  # fmt: skip
def test_synthetic_images_have_the_classes_and_counts_of_the_set(dataset, classes, images, size):
    data = synthetic_data(DataConfig(dataset=dataset))
    counts = np.array(data.counts.tolist())
    assert len(counts) == classes
    assert abs(counts.sum() / images - 1) < 0.01
    assert counts.min() > 0
    assert data.train.images.read(len(data.train) - 1).size == size
    assert data.manifest.identity == synthetic_data(DataConfig(dataset=dataset)).manifest.identity


def test_what_passed_is_not_repeated_and_is_not_the_run(tmp_path, index):
    tasks = rehearsals(tmp_path, "ce")
    driver, said = drive(index, tasks)
    assert driver.tally.done == 1
    assert said[0].startswith("rehearsal of ce on glyphs-lt")
    assert "passed" in said[0]
    driver, _ = drive(index, tasks)
    assert (driver.tally.done, driver.tally.kept) == (0, 1)
    driver, _ = drive(index, small_tasks(tmp_path / "runs", ("ce",)))
    assert (driver.tally.done, driver.tally.kept) == (1, 0)


def test_a_failure_has_its_sentence_and_the_rest_goes_on(tmp_path, index):
    tasks = rehearsals(tmp_path, f"{__name__}:StopsLate", f"{__name__}:Diverges", "ce")
    driver, _ = drive(index, tasks)
    reasons = [reason for _, reason in driver.tally.failures.values()]
    assert (driver.tally.done, reasons[0]) == (1, "the second epoch is too much.")
    assert "the loss is inf" in reasons[1]
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_that_does_not_find_its_checkpoint_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "newest", lambda folder, run: None)
    outcome = carry_out(rehearsals(tmp_path, "ce")[0])
    assert (outcome.status, outcome.error) == ("failed", "train began anew instead of going on from its checkpoint.")


def test_the_command_counts_cells_and_refuses_what_needs_no_rehearsal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(many_runs, "make_engine", lambda options, device, say: Here())
    command = ["experiment", "run", "combinations", "--dataset", "glyphs-lt", "--imbalance", "100", "--method", "ce",
               "--rehearse", "--store", str(tmp_path / "s.sqlite"), "--folder", str(tmp_path / "runs")]  # fmt: skip
    assert main([*command, "--scale", "paper"]) == 0
    assert "1 of 1 cells rehearsed in 1 different runs: they start, step, save" in capsys.readouterr().out
    assert main(command) == 1
    assert "--rehearse is for --scale short or paper" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cores", "processes", "asked", "loaders"), [(8, 1, "auto", 7), (64, 1, "auto", 8), (1, 1, "auto", 0),
                                                 (8, 2, "auto", 3), (8, 1, 5, 5)],
)  # fmt: skip
def test_loaders_are_the_cores_of_a_run_that_are_free(tmp_path, cores, processes, asked, loaders):
    (task,) = small_tasks(tmp_path, ("ce",), processes=processes)
    task = replace(task, config=replace(task.config, workers=asked))
    assert task.on_cores(cores).config.workers == loaders


@pytest.mark.parametrize(
    ("model", "giga"),
    [("vit_tiny_patch16_224", 1.3), ("vit_small_patch16_224", 4.6), ("vit_base_patch16_224", 17.6),
     ("vit_large_patch16_224", 61.6), ("resnet50", 4.1), ("swin_tiny_patch4_window7_224", 4.5)],
)  # fmt: skip
def test_operations_are_three_times_the_published_multiply_adds(model, giga):
    assert image_flops(model, 224) / 6e9 == pytest.approx(giga, abs=0.05 + 0.01 * giga)


def test_a_plan_says_what_the_grid_costs_on_a_gpu(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    days = {}
    for precision in ("auto", "no"):
        assert main(["experiment", "plan", "tables", "--scale", "paper", "--on", "a100", "--precision", precision]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert "472 different runs" in last
        assert f"at {'110 TFLOPS (bf16)' if precision == 'auto' else '12 TFLOPS (float32)'}" in last
        days[precision] = float(last.split("about ")[1].split()[0])
    assert 80 < days["auto"] <= 110
    assert days["no"] == pytest.approx(days["auto"] * 110 / 12, rel=0.01)
    assert main(["experiment", "plan", "lt-main", "--on", "a100", "--measure"]) == 1
    assert "leave one of them out" in capsys.readouterr().err
