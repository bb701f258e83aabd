"""A full disk and lost workers: one sentence, nothing half-written, and the run goes on bit for bit afterwards."""

import contextlib
import errno
import multiprocessing
import os
import re
import resource
import signal
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from training.runs import FLAGS, Stop, StopAt, assert_same, results, settings, shake

from spectail._utils import files as storage
from spectail.cli.main import main
from spectail.data.readers import WorkerLost
from spectail.training import checkpoint, run_folder
from spectail.training.loop import train
from spectail.training.reporter import Reporter
from spectail.training.signals import Interrupted

CHANGES = {"method": "car", "model__model": "tiny-dropout", "checkpoint_every": 1}


@contextlib.contextmanager
def largest_file(size):
    """The kernel refuses to write files beyond this size, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refuse(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hidden(folder):
    """What a write has left behind."""
    return [path for path in folder.rglob(".*") if path.name != ".run.lock"]


class FullAt(Reporter):
    """The disk is full from a step on: the kernel refuses files beyond a size."""

    def __init__(self, stack, step, size):
        self.stack, self.left, self.size = stack, step, size

    def step(self, done, figures):
        self.left -= 1
        if self.left == 0:
            self.stack.enter_context(largest_file(self.size))


@pytest.mark.parametrize("size", [0, 1000, 30_000])
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(size, tmp_path):
    """For real: the kernel refuses at the start, in the pickle, and among the tensors."""
    train(settings(tmp_path / "whole", **CHANGES))
    config = settings(tmp_path / "run", **CHANGES)
    folder = config.output / "checkpoints"
    with contextlib.ExitStack() as stack, pytest.raises(storage.NoRoom) as error:
        train(config, reporter=FullAt(stack, 4, size))
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == ["step-00000002", "step-00000003"]
    assert (folder / kept[-1] / "state.pt").stat().st_size > 30_000  # so that every size was too small
    assert str(error.value).startswith(f"{folder / 'step-00000004'} cannot be written: {os.strerror(errno.EFBIG)}. ")
    assert "--resume" in str(error.value)
    assert not hidden(config.output)
    shake()
    train(config, resume=True)
    assert_same(tmp_path / "whole", config.output)


STEP = "checkpoints/step-00000003"
PLACES = {  # function that meets the full disk, what its first argument must contain, and the file that is named
    "folder": ("pathlib.Path.mkdir", ".step-00000003", STEP),
    "state": ("torch.save", "", STEP),
    "digests": ("pathlib.Path.write_bytes", ".step-00000003/.digests.json.", STEP),
    "model": ("spectail.training.run_folder.as_safetensors", "", "model.safetensors"),
    "predictions": ("numpy.savez_compressed", "", "predictions.npz"),
    "results": ("pathlib.Path.write_bytes", ".results.json.", "results.json"),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_that_writes_says_which_file_did_not_fit(place, tmp_path, monkeypatch):
    train(settings(tmp_path / "whole", **CHANGES))
    config = settings(tmp_path / "run", **CHANGES)
    function, part, path = PLACES[place]
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=3) if path == STEP else StopAt(epochs=2))
    before = files(config.output)
    real = resolve_name(function)

    def refuse_some(first, *args, **kwargs):
        return refuse() if part in str(first) else real(first, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(function, refuse_some)
        with pytest.raises(storage.NoRoom) as error:
            train(config, resume=True)
    assert str(error.value).startswith(f"{config.output / path} cannot be written: No space left on device. Free some")
    after = files(config.output)
    assert not hidden(config.output)
    del before[Path("digests.json")]  # that of results.json comes first
    assert {name: after[name] for name in before} == before
    assert not (config.output / "results.json").exists()
    train(config, resume=True)
    assert_same(tmp_path / "whole", config.output)


def test_best_model_and_manifest(tmp_path, monkeypatch):
    changes = {"select_on": "val", "data__val_fraction": 0.25}
    train(settings(tmp_path / "whole", **changes))
    config = settings(tmp_path / "run", **changes)
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "as_safetensors", refuse)
        with pytest.raises(storage.NoRoom, match=r"best\.safetensors cannot be written"):
            train(config)
    train(config, resume=True)
    assert_same(tmp_path / "whole", config.output)
    with largest_file(0), pytest.raises(storage.NoRoom, match=r"new/manifest\.json cannot be written: File too large"):
        train(settings(tmp_path / "new"))
    assert not files(tmp_path / "new")


def test_a_line_of_metrics_is_whole_or_absent(tmp_path):
    folder = run_folder.RunFolder(tmp_path)
    folder.log({"epoch": 0, "loss": 1.5})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with largest_file(size + 5), pytest.raises(storage.NoRoom, match=r"metrics\.jsonl cannot be written"):
        folder.log({"epoch": 1, "loss": 1.25})
    assert folder.lines() == ['{"epoch": 0, "loss": 1.5}']
    assert (tmp_path / "metrics.jsonl").stat().st_size == size
    folder.log({"epoch": 1, "loss": 1.25})
    assert folder.lines()[1] == '{"epoch": 1, "loss": 1.25}'


def test_safetensors_that_do_not_fit(tmp_path):
    folder = run_folder.RunFolder(tmp_path)
    folder.save_model({"weight": torch.ones(10)})
    before = files(tmp_path)
    with (
        largest_file(4096),
        pytest.raises(storage.NoRoom, match=r"model\.safetensors cannot be written: File too large"),
    ):
        folder.save_model({"weight": torch.zeros(10_000)})
    assert files(tmp_path) == before


def test_a_cache_that_does_not_fit_costs_time_not_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache"))
    wanted = np.arange(5000.0)
    with largest_file(4096):
        np.testing.assert_array_equal(storage.cached_array("some/array", wanted.copy), wanted)
    assert not files(tmp_path)
    for writer in ("save", "savez"):
        monkeypatch.setattr(storage.np, writer, refuse)
    train(settings(tmp_path / "run", probe=True, method="car"))
    assert not files(tmp_path / "cache")
    assert results(tmp_path / "run")["phases"] == {"train": 10}


def test_a_download_that_does_not_fit_is_not_called_a_lost_network(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(bytes(10_000))
    with largest_file(4096), pytest.raises(storage.NoRoom, match=r"target/file cannot be written"):
        storage.download(source.as_uri(), tmp_path / "target" / "file", "0" * 32)
    assert not files(tmp_path / "target")


def test_other_errors_of_files_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), storage.room_for(tmp_path):
        raise PermissionError(errno.EACCES, "no")
    with pytest.raises(RuntimeError, match="inline_container"), storage.room_for(tmp_path):
        raise RuntimeError("inline_container")
    with pytest.raises((RuntimeError, TypeError, AttributeError)):
        checkpoint.write_tensors({"no": lambda: None}, tmp_path / "x.pt")


def test_the_command_line_says_it_in_one_sentence(tmp_path, capsys):
    arguments = ["train", *FLAGS, "--quiet", "--output", str(tmp_path / "run")]
    with largest_file(4096):
        assert main(arguments) == 1
    said = capsys.readouterr().err.strip()
    assert re.fullmatch(
        r"spectail train: \S+/step-00000005 cannot be written: File too large\. Free some .*\.", said
    ), said


def test_what_a_killed_process_was_writing_is_removed_on_resume(tmp_path):
    train(settings(tmp_path / "whole"))
    config = settings(tmp_path / "run")
    with pytest.raises(Stop):
        train(config, reporter=StopAt(epochs=1))
    for name in (".results.json.abc123", ".model.safetensors.x_1", ".metrics.jsonl.aaa", ".step"):
        (config.output / name).write_text("half")
    train(config, resume=True)
    assert [path.name for path in hidden(config.output)] == [".step"]  # no file of a run
    assert_same(tmp_path / "whole", config.output)


# workers

WORKERS = {"transform": "cifar-strong", "workers": 2, "model__model": "tiny-dropout", "checkpoint_every": 1}


def children():
    return [child.pid for child in multiprocessing.active_children()]


class Signal(Reporter):
    """Sends a signal to the workers, and perhaps to this process, after a step."""

    def __init__(self, at, number, also=False):
        self.left, self.number, self.also = at, number, also

    def step(self, done, figures):
        self.left -= 1
        if self.left == 0:
            assert len(children()) >= 2
            for pid in (*children(), *([os.getpid()] if self.also else ())):
                os.kill(pid, self.number)


def test_a_killed_worker_is_one_sentence_and_nothing_is_lost(tmp_path):
    train(settings(tmp_path / "whole", **WORKERS))
    config = settings(tmp_path / "run", **WORKERS)
    with pytest.raises(WorkerLost, match=r"a process that reads images .*memory ran out.*smaller --workers .*--resume"):
        train(config, reporter=Signal(3, signal.SIGKILL))
    assert (config.output / "checkpoints").exists()
    train(settings(tmp_path / "run", **WORKERS | {"workers": 0}), resume=True)
    assert_same(tmp_path / "whole", config.output)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_saves_and_leaves(number, tmp_path):
    """As a batch system or Ctrl-C sends it: the workers last until the run has saved."""
    train(settings(tmp_path / "whole", **WORKERS))
    config = settings(tmp_path / "run", **WORKERS | {"checkpoint_every": 0})
    with pytest.raises(Interrupted):
        train(config, reporter=Signal(3, number, also=True))
    assert [path.name for path in (config.output / "checkpoints").iterdir()] == ["step-00000003"]
    train(config, resume=True)
    assert_same(tmp_path / "whole", config.output)
