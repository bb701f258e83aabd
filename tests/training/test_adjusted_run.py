"""A run with an adjustment: the figures, the predictions and the loaded model have it, and a resumed run keeps it."""

import numpy as np
import pytest
import torch
from training.runs import Stop, StopAt, assert_same, predictions, results, settings

from spectail.data import load
from spectail.models.adjustment import Adjustment
from spectail.training.loop import train
from spectail.training.trained import load_trained


@pytest.fixture(scope="module")
def adjustment():
    names = load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=6).manifest.classes
    return Adjustment(names, (0.0, 0.5, -0.5, 1.0, 2.0, 3.0), 0.7, goal="balanced", source="the test")


def test_a_run_with_an_adjustment(tmp_path, adjustment):
    train(settings(tmp_path / "plain"))
    train(settings(tmp_path / "run"), adjustment=adjustment)
    plain, found = predictions(tmp_path / "plain"), predictions(tmp_path / "run")
    np.testing.assert_allclose(found["logits"], adjustment.apply(plain["logits"]), rtol=1e-5, atol=1e-5)
    figures = results(tmp_path / "run")
    assert figures["overall"] == pytest.approx(100 * (found["logits"].argmax(1) == found["labels"]).mean())
    assert figures["adjustment"]["temperature"] == 0.7
    assert figures["adjustment"]["offsets"] == list(adjustment.offsets)
    assert results(tmp_path / "plain")["adjustment"] is None
    assert figures["train_overall"] != results(tmp_path / "plain")["train_overall"]
    assert Adjustment.load(tmp_path / "run" / "adjustment.json") == adjustment
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "run")]
    assert weights[0] == weights[1]
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    shift, models = torch.tensor(adjustment.offsets), [load_trained(tmp_path / name).model for name in ("plain", "run")]
    with torch.no_grad():
        torch.testing.assert_close(models[1](images), (models[0](images) + shift) / 0.7)
        twice = load_trained(tmp_path / "run", adjust=tmp_path / "run" / "adjustment.json").model
        torch.testing.assert_close(twice(images), (models[1](images) + shift) / 0.7)
    with pytest.raises(ValueError, match="was chosen for the logits as they are; leave out --post-hoc"):
        load_trained(tmp_path / "run", "logit-adjustment")
    with pytest.raises(ValueError, match="--adjust FILE was chosen for the logits as they are; leave out --tau"):
        load_trained(tmp_path / "plain", tau=2.0, adjust=adjustment)


def test_a_resumed_run_has_it_from_its_folder(tmp_path, adjustment):
    train(settings(tmp_path / "whole"), adjustment=adjustment)
    with pytest.raises(Stop):
        train(settings(tmp_path / "cut"), adjustment=adjustment, reporter=StopAt(epochs=1))
    with pytest.raises(ValueError, match="was started with another adjustment"):
        train(settings(tmp_path / "cut"), resume=True, adjustment=Adjustment(adjustment.class_names, (0.0,) * 6))
    train(settings(tmp_path / "cut"), resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    assert train(settings(tmp_path / "cut"), resume=True, adjustment=adjustment)["adjustment"]["temperature"] == 0.7


def test_other_classes_are_refused_and_leftovers_removed(tmp_path, adjustment):
    with pytest.raises(ValueError, match="is for 2 classes, but the data set has 6"):
        train(settings(tmp_path / "run"), adjustment=Adjustment(("a", "b"), (0.0, 1.0)))
    adjustment.save(tmp_path / "run" / "adjustment.json")
    with pytest.raises(ValueError, match=r"holds 'adjustment\.json' and no config.yaml"):
        train(settings(tmp_path / "run"))
    (tmp_path / "run" / ".run.lock").touch()  # of a run that was killed before it had begun
    with pytest.raises(Stop):
        train(settings(tmp_path / "run"), reporter=StopAt(steps=1))
    assert not (tmp_path / "run" / "adjustment.json").exists()
    with pytest.raises(ValueError, match="was started with no adjustment"):
        train(settings(tmp_path / "run"), resume=True, adjustment=adjustment)
