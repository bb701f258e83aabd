"""A resumed run is the uninterrupted one, bit for bit, wherever and however it was stopped."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from forked import PYTHON
from training.runs import FLAGS, Losses, Stop, StopAt, assert_same, metrics, results, settings, shake

from spectail._utils.digests import Damaged
from spectail.data import load
from spectail.training.loop import train

HERE = Path(__file__).parent
SMALL = {"model__model": "small-cnn"}
STRONG = {"transform": "cifar-strong", "optim__epochs": 2}
CASES = {
    "ce": SMALL,
    "balanced-softmax": {"method": "balanced-softmax", "options": {"tau": 1.5}},
    "car": {"method": "car"},
    "car-classwise": {"method": "car", "car__preset": "classwise"},
    "car-reference": {"method": "car-balanced", "car__preset": "reference", "car__warmup_epochs": 1.5},
    "ce+car": {"method": "ce", "car__enabled": True, "car__start_epoch": 1},
    "ema": {"optim__ema": 0.8, "model__model": "tiny-norm"},
    "accumulation": {"optim__accumulation": 2, "method": "car"},
    "warm-up-cosine": {"optim__warmup_epochs": 1.2, "optim__min_lr": 1e-4, "optim__epochs": 3, "optim__clip": 0.5},
    "sgd-step": {"optim__optimizer": "sgd", "optim__schedule": "step", "optim__milestones": [0.3, 0.7]},
    "dropout": {"model__model": "tiny-dropout", "method": "car"},
    "strong": STRONG | {"model__model": "tiny-dropout"},
    "workers": STRONG | {"workers": 2, "model__model": "tiny-dropout"},
    "probe": {"probe": True, "method": "car", "model__model": "tiny-norm"},
    "val": {"select_on": "val", "data__val_fraction": 0.25, "optim__epochs": 3, "eval_every": 2},
    "decoupled": {"method": "decoupled", "car__enabled": True, "model__model": "tiny-norm", "optim__epochs": 1},
    "lora": {"tuning__tune": "lora", "optim__ema": 0.8, "method": "car"},
    "lora-val": {"tuning__tune": "lora", "select_on": "val", "data__val_fraction": 0.25, "optim__mixup": 1.0},
    "norm": {"tuning__tune": "norm", "model__model": "tiny-norm", "optim__swa": 0.6, "optim__cutmix": 1.0},
    "adaptformer": {"tuning__tune": "adaptformer", "model__model": "tiny-vit", "tuning__tune_norm": True},
    "erasing": {"random_erasing": 0.5, "rand_augment": "rand-m9-n2-mstd0.5", "test_crops": 5, "eval_train": False},
    "logs": {"method": "car", "log_gradient": True, "log_cm_gap": True},
}


def stopped_and_resumed(config, reporter):
    with pytest.raises(Stop):
        train(config, reporter=reporter)
    assert not (config.output / "results.json").exists()
    shake()
    train(config, resume=True)


@pytest.mark.parametrize("case", CASES)
def test_resumed_is_uninterrupted(case, tmp_path):
    changes = CASES[case]
    train(settings(tmp_path / "whole", **changes))
    shake()
    at_end = settings(tmp_path / "epoch-end", **changes)
    stopped_and_resumed(at_end, StopAt(epochs=1))
    assert_same(tmp_path / "whole", tmp_path / "epoch-end")
    inside = settings(tmp_path / "mid-epoch", checkpoint_every=1, **changes)
    stopped_and_resumed(inside, StopAt(steps=3))
    assert_same(tmp_path / "whole", tmp_path / "mid-epoch")


def test_stopped_again_and_again(tmp_path):
    changes = {"model__model": "tiny-dropout", "method": "car", "optim__ema": 0.9, "optim__accumulation": 2}
    train(settings(tmp_path / "whole", **changes))
    often = settings(tmp_path / "often", checkpoint_every=1, **changes)
    for _ in range(12):
        shake()
        try:
            train(often, resume=True, reporter=StopAt(steps=2))
        except Stop:
            continue
        break
    assert (often.output / "results.json").exists()
    assert_same(tmp_path / "whole", often.output)


def test_stopped_before_any_checkpoint_begins_anew(tmp_path):
    train(settings(tmp_path / "whole"))
    config = settings(tmp_path / "early")
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=2))
    shake()
    heard = Losses()
    train(config, resume=True, reporter=heard)
    assert any("beginning anew" in line for line in heard.lines)
    assert_same(tmp_path / "whole", tmp_path / "early")


def test_resume_after_the_last_epoch_only_finishes(tmp_path):
    train(settings(tmp_path / "whole"))
    config = settings(tmp_path / "late")
    with pytest.raises(Stop):
        train(config, reporter=StopAt(epochs=2))
    heard = Losses()
    train(config, resume=True, reporter=heard)
    assert heard.steps == 0
    assert_same(tmp_path / "whole", tmp_path / "late")


def test_same_seed_same_run_other_seed_other_run(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        shake()
        train(settings(tmp_path / name, seed=seed, model__model="tiny-dropout", transform="cifar-strong"))
    assert_same(tmp_path / "a", tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")


def test_workers_may_change_on_resume(tmp_path):
    train(settings(tmp_path / "whole", **STRONG))
    with pytest.raises(Stop):
        train(settings(tmp_path / "cut", checkpoint_every=1, **STRONG), reporter=StopAt(steps=4))
    train(settings(tmp_path / "cut", workers=2, keep_checkpoints=3, **STRONG), resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("file", ["state.pt", "rank-0.pt", "digests.json", "missing"])
def test_damaged_checkpoint_falls_back(file, tmp_path):
    train(settings(tmp_path / "whole", method="car"))
    config = settings(tmp_path / "cut", method="car", checkpoint_every=1)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=5))
    kept = sorted((config.output / "checkpoints").iterdir())
    assert [path.name for path in kept] == ["step-00000003", "step-00000004"]
    if file == "missing":
        (kept[-1] / "state.pt").unlink()
    else:
        content = (kept[-1] / file).read_bytes()
        (kept[-1] / file).write_bytes(content[: len(content) // 2])
    heard = Losses()
    with pytest.warns(UserWarning, match="step-00000004 is damaged"):
        train(config, resume=True, reporter=heard)
    assert "going on from step-00000003" in heard.lines
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_damaged_checkpoint_does_not_push_out_good_ones(tmp_path):
    """After falling back, what is saved next must survive the cleaning up, though the damaged one is newer."""
    with pytest.raises(Stop):
        train(settings(tmp_path / "run", checkpoint_every=2), reporter=StopAt(steps=5))
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step-00000004" / "state.pt").write_bytes(b"")
    other = settings(tmp_path / "run", checkpoint_every=1, keep_checkpoints=1)
    with pytest.warns(UserWarning, match="step-00000004 is damaged"), pytest.raises(Stop):
        train(other, resume=True, reporter=StopAt(steps=2))
    assert "step-00000003" in [path.name for path in folder.glob("step-*")]


def test_half_written_checkpoint_is_ignored(tmp_path):
    train(settings(tmp_path / "whole"))
    config = settings(tmp_path / "cut", checkpoint_every=1)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=4))
    half = config.output / "checkpoints" / ".step-00000004"
    half.mkdir()
    (half / "state.pt").write_bytes(b"half")
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert not list((config.output / "checkpoints").glob(".*"))


def test_only_the_last_checkpoints_are_kept(tmp_path):
    config = settings(tmp_path / "run", checkpoint_every=1, keep_checkpoints=3)
    train(config)
    assert [path.name for path in sorted((config.output / "checkpoints").iterdir())] == [
        f"step-{number:08d}" for number in (8, 9, 10)
    ]


def test_other_settings_are_refused_by_name(tmp_path):
    with pytest.raises(Stop):
        train(settings(tmp_path / "run"), reporter=StopAt(epochs=1))
    with pytest.raises(ValueError, match=r"optim\.lr: 0\.01 -> 0\.5") as error:
        train(settings(tmp_path / "run", optim__lr=0.5), resume=True)
    assert "output" not in str(error.value).replace("--output", "").replace(str(tmp_path), "")
    with pytest.raises(ValueError, match="method: 'ce' -> 'balanced-softmax'"):
        train(settings(tmp_path / "run", method="balanced-softmax"), resume=True)
    with pytest.raises(ValueError, match=r"data\.imbalance"):
        train(settings(tmp_path / "run", data__imbalance=3), resume=True)


def test_other_data_are_refused(tmp_path):
    with pytest.raises(Stop):
        train(settings(tmp_path / "run"), reporter=StopAt(epochs=1))
    load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=3).manifest.save(tmp_path / "run" / "manifest.json")
    with pytest.raises(Damaged, match=r"manifest\.json is not as it was written"):
        train(settings(tmp_path / "run"), resume=True)
    (tmp_path / "run" / "digests.json").unlink()
    with pytest.warns(UserWarning, match="has no digests"), pytest.raises(ValueError, match="the run in"):
        train(settings(tmp_path / "run"), resume=True)


def test_a_folder_with_a_run_is_refused_without_resume(tmp_path):
    train(settings(tmp_path / "run"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for seed in (0, 1):
        with pytest.raises(ValueError, match="already holds a run. Pass --resume"):
            train(settings(tmp_path / "run", seed=seed))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_finished_run_returns_its_results(tmp_path):
    first = train(settings(tmp_path / "run"))
    heard = Losses()
    again = train(settings(tmp_path / "run"), resume=True, reporter=heard)
    assert again == first
    assert heard.steps == 0


def test_resume_without_a_run_begins_one(tmp_path):
    train(settings(tmp_path / "a"))
    train(settings(tmp_path / "b"), resume=True)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_kill_9_at_random_moments(tmp_path, cache):
    done = subprocess.run(
        [PYTHON, str(HERE / "kill_runs.py"), str(tmp_path), "3"],
        env=os.environ | {"SPECTAIL_CACHE": str(cache)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("killed [12] times", done.stdout)) >= 1, done.stdout  # a busy machine shifts moments
    for number in range(3):
        assert_same(tmp_path / "whole", tmp_path / f"killed{number}")


def test_signal_saves_and_leaves(tmp_path, cache):
    output = tmp_path / "run"
    command = [PYTHON, "-m", "spectail", "train", *FLAGS, "--epochs", "200", "--method", "car"]
    process = subprocess.Popen(
        [*command, "--output", str(output)], env=os.environ | {"SPECTAIL_CACHE": str(cache), "COLUMNS": "300"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 45
    while not (output / "metrics.jsonl").exists() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stdout + stderr
    assert "--resume" in stdout + stderr
    assert "Traceback" not in stdout + stderr
    assert not (output / "results.json").exists()
    assert list((output / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_an_epoch_resumes_bit_for_bit(which, tmp_path):
    from spectail.training.signals import Interrupted

    class Signal(StopAt):
        def step(self, done, figures):
            self.steps -= 1
            if self.steps == 0:
                os.kill(os.getpid(), which)

    changes = {"model__model": "tiny-dropout", "method": "car"}
    before = signal.getsignal(which)
    train(settings(tmp_path / "whole", **changes))
    for steps, expected in ((2, 2), (5, 5), (7, 7)):
        config = settings(tmp_path / f"cut{steps}", **changes)
        with pytest.raises(Interrupted, match="--resume"):
            train(config, reporter=Signal(steps=steps))
        assert max(path.name for path in (config.output / "checkpoints").iterdir()) == f"step-{expected:08d}"
        shake()
        train(config, resume=True)
        assert_same(tmp_path / "whole", config.output)
    assert signal.getsignal(which) is before
    assert results(tmp_path / "whole")["phases"] == {"train": 10}


@pytest.mark.parametrize("steps", [2, 3, 4, 7, 8])
def test_a_second_stream_that_wraps_inside_an_epoch(steps, tmp_path):
    """Meta batches come round faster than the epoch: their place is not that of the main stream."""
    changes = {"method": "metasaug", "options": {"start": 0.0, "meta_batch_size": 48}, "optim__epochs": 2}
    train(settings(tmp_path / "whole", **changes))
    cut = settings(tmp_path / "cut", checkpoint_every=1, **changes)
    stopped_and_resumed(cut, StopAt(steps=steps))
    assert_same(tmp_path / "whole", cut.output)
