"""A run owns its folder: nothing of others is lost, mistaken for its own, or written by two at once."""

import json
import os

import pytest
from training.runs import Losses, Stop, StopAt, assert_same, settings, shake

from spectail._utils.digests import Damaged
from spectail._utils.owner import Owner
from spectail.training.loop import train
from spectail.training.run_folder import RunFolder


@pytest.mark.parametrize("name", ["results.json", "metrics.jsonl", "checkpoints", "notes.txt", "manifest.json"])
def test_a_folder_of_others_is_refused_and_stays(name, tmp_path):
    folder = tmp_path / "proj"
    folder.mkdir()
    (folder / name).write_text("mine")
    for resume in (False, True):
        with pytest.raises(ValueError, match=rf"holds '{name}' and no config\.yaml.*--force"):
            train(settings(folder), resume=resume)
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"


def test_links_are_not_followed(tmp_path):
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "run").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "run" / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"holds 'metrics\.jsonl'"):
        train(settings(tmp_path / "run"))
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        RunFolder(tmp_path / "run").log({"epoch": 0})
    assert (tmp_path / "outside").read_text() == "mine"


def test_force_moves_aside_and_deletes_nothing(tmp_path):
    train(settings(tmp_path / "run", seed=1))
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    for number in (1, 2):
        train(settings(tmp_path / "run", seed=2), force=True)
        assert (tmp_path / f"run-before-{number}" / "results.json").exists()
    assert (tmp_path / "run-before-1" / "model.safetensors").read_bytes() == before
    with pytest.raises(ValueError, match="give one of them"):
        train(settings(tmp_path / "run"), force=True, resume=True)


def test_one_writer_at_a_time(tmp_path):
    config = settings(tmp_path / "run")
    with pytest.raises(Stop):
        train(config, reporter=StopAt(epochs=1))
    owner = Owner(tmp_path / "run" / "run")
    assert owner.take() is None
    for options in ({"resume": True}, {"force": True}):
        with pytest.raises(ValueError, match=r"is used by another process \(process \d+ on .*Wait until it has ended"):
            train(config, **options)
    owner.release()
    train(config, resume=True)


def test_a_refused_run_leaves_nothing(tmp_path):
    for changes in ({"seed": -1}, {"car__alpha": float("nan")}, {"method": "crt", "stage1": str(tmp_path / "none")}):
        with pytest.raises((ValueError, OSError)):
            train(settings(tmp_path / "run", **changes))
        assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path):
    with pytest.raises(Stop):
        train(settings(tmp_path / "other", optim__lr=0.5), reporter=StopAt(epochs=1))
    config = settings(tmp_path / "run")
    with pytest.raises(Stop):
        train(config, reporter=StopAt(steps=1))
    (tmp_path / "other" / "checkpoints").rename(tmp_path / "run" / "checkpoints")
    heard = Losses()
    with pytest.warns(UserWarning, match="step-00000005 is of a run with other settings or data; it is passed over"):
        train(config, resume=True, reporter=heard)
    assert "no checkpoint yet: beginning anew" in heard.lines
    train(settings(tmp_path / "whole"))
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_stage_one_is_loaded_again_where_no_checkpoint_is_whole(tmp_path):
    train(settings(tmp_path / "first"))
    changes = {"method": "crt", "stage1": str(tmp_path / "first"), "keep_checkpoints": 1}
    train(settings(tmp_path / "whole", **changes))
    config = settings(tmp_path / "run", **changes)
    with pytest.raises(Stop):
        train(config, reporter=StopAt(epochs=1))
    state = next((tmp_path / "run" / "checkpoints").iterdir()) / "state.pt"
    state.write_bytes(state.read_bytes()[:-1])
    shake()
    with pytest.warns(UserWarning, match="is damaged"):
        train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_metrics_come_back_from_the_checkpoint(tmp_path):
    train(settings(tmp_path / "whole"))
    config = settings(tmp_path / "run")
    with pytest.raises(Stop):
        train(config, reporter=StopAt(epochs=1))
    (tmp_path / "run" / "metrics.jsonl").write_text("null\n")
    train(config, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_results_that_are_no_longer_those_of_the_run(tmp_path):
    config = settings(tmp_path / "run")
    train(config)
    path = tmp_path / "run" / "results.json"
    content = json.loads(path.read_text()) | {"overall": 99.9}
    path.write_text(json.dumps(content))
    with pytest.raises(Damaged, match=r"results\.json is not as it was written"):
        train(config, resume=True)
    (tmp_path / "run" / "digests.json").unlink()
    with pytest.warns(UserWarning, match="has no digests"):
        assert train(config, resume=True)["overall"] == 99.9
