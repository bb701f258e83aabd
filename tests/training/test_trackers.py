"""Trackers: TensorBoard gets the figures of metrics.jsonl; one that cannot work is refused before training."""

import json

import pytest
from training.runs import FLAGS, Stop, StopAt, assert_same, settings

from spectail.cli.main import main
from spectail.training.loop import train

BOARD = {"trackers": ["tensorboard"]}


def scalars(folder):
    """(name, step) -> values in the order in which they were written, over all event files of a run."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found = {}
    for path in sorted(folder.rglob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault((value.tag, event.step), []).append(float(make_ndarray(value.tensor)))
    return found


def logged(folder):
    """What metrics.jsonl says, in the same form."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        (name, line["step"]): value for line in lines for name, value in line.items() if isinstance(value, float)
    }  # fmt: skip


def test_tensorboard_has_the_figures_of_the_run(tmp_path):
    changes = {"method": "car", "data__val_fraction": 0.25, "log_gradient": True}
    train(settings(tmp_path / "run", **changes, **BOARD))
    found, wanted = scalars(tmp_path / "run"), logged(tmp_path / "run")
    names = {name for name, _ in wanted}
    assert {"loss", "car", "spectral_norm", "lr", "val_overall", "val_balanced", "car_gradient_norm"} <= names
    assert found.keys() == wanted.keys()
    assert {step for _, step in found} == {line["step"] for line in lines(tmp_path / "run")}
    for key, values in found.items():
        assert values == [pytest.approx(wanted[key], rel=1e-6)], key  # event files hold float32


def test_a_tracker_does_not_change_the_run(tmp_path):
    train(settings(tmp_path / "plain", model__model="tiny-dropout", method="car"))
    train(settings(tmp_path / "board", model__model="tiny-dropout", method="car", **BOARD))
    assert_same(tmp_path / "plain", tmp_path / "board")
    assert not list((tmp_path / "plain").rglob("events.*"))


def test_a_resumed_run_goes_on_in_the_same_place(tmp_path):
    config = settings(tmp_path / "run", optim__epochs=4, checkpoint_every=1, **BOARD)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=12))
    before = scalars(tmp_path / "run")
    assert {step for _, step in before} == {5, 10}
    train(config, resume=True)
    found, wanted = scalars(tmp_path / "run"), logged(tmp_path / "run")
    assert {step for _, step in found} == {5, 10, 15, 20}
    assert found.keys() == wanted.keys()
    for key, values in found.items():
        assert values == [pytest.approx(wanted[key], rel=1e-6)], key
    folders = {path.parent for path in (tmp_path / "run").rglob("events.*")}
    assert len(folders) == 1  # TensorBoard shows one curve


def test_trackers_may_change_on_resume(tmp_path):
    with pytest.raises(Stop):
        train(settings(tmp_path / "run"), reporter=StopAt(epochs=1))
    train(settings(tmp_path / "run", **BOARD), resume=True)
    assert {step for _, step in scalars(tmp_path / "run")} == {10}


REFUSED = {
    "tensorbord": "--trackers tensorbord is unknown; did you mean 'tensorboard'?",
    "Wandb": "--trackers Wandb is unknown; did you mean 'wandb' or 'swanlab'?",
    "wandb": "--trackers wandb is not installed: pip install wandb, or leave it out.",
    "comet_ml": "--trackers comet_ml is not installed: pip install comet-ml, or leave it out.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tracker_that_cannot_work_is_refused_before_anything_is_written(name, tmp_path, monkeypatch, capsys):
    from accelerate.utils import LoggerType

    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [LoggerType.TENSORBOARD])
    output = tmp_path / "run"
    assert main(["train", *FLAGS, "--trackers", "tensorboard", name, "--output", str(output)]) == 1
    assert capsys.readouterr().err.strip() == f"spectail train: {REFUSED[name]}"
    assert not output.exists()


def test_an_unknown_tracker_without_a_near_name_lists_all(tmp_path):
    with pytest.raises(ValueError, match=r"--trackers paper is unknown; choose from .*tensorboard, wandb"):
        train(settings(tmp_path / "run", trackers=["paper"]))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
