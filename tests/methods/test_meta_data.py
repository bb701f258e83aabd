"""Class-balanced meta batches: how large they are, and that validation data have every class."""

import pytest
import torch
from training.runs import settings

from spectail.testing import begun
from spectail.training.loop import train


def meta_batch(folder, method, **changes):
    trainer = begun(settings(folder, method=method, **changes))
    trainer = begun(settings(folder, method=method, **changes), stage=len(trainer.stages) - 1)
    trainer.stage.step.epoch = trainer.stage.step.epochs - 1  # metasaug begins late
    batches, _ = next(trainer.stage.groups())
    return batches[0]["meta"].labels


@pytest.mark.parametrize("method", ["balms", "metasaug"])
@pytest.mark.parametrize("source", ["train", "val"])
def test_a_meta_batch_has_the_size_that_was_asked_for(method, source, tmp_path):
    """Draws are with replacement, so 200 may come from 51 training or 17 validation images."""
    options = {"meta_data": source, "meta_batch_size": 200}
    labels = meta_batch(tmp_path / "run", method, options=options, data__val_fraction=0.25)
    assert len(labels) == 200
    assert (torch.bincount(labels, minlength=6) > 10).all()  # 33 of each class, on average


def test_the_batch_of_the_stage_is_the_size_without_a_flag(tmp_path):
    options = {"meta_data": "val", "stage2_batch_size": 40}
    labels = meta_batch(tmp_path / "run", "balms", options=options, data__val_fraction=0.25)
    assert len(labels) == 40  # of 17 images


@pytest.mark.parametrize("method", ["balms", "metasaug"])
def test_validation_data_without_some_classes(method, tmp_path):
    """A class with one image has none to hold out. Both ways that the message names then work."""
    words = (
        f"{method} was told to draw class-balanced batches from validation data, "
        "which have no image of class 4 .*, class 5 .*"
        "Leave it to draw from the training set, or use data in which every class has two images or more.* --imbalance"
    )
    rare = {"data__imbalance": 24, "data__val_fraction": 0.25}
    with pytest.raises(ValueError, match=words):
        train(settings(tmp_path / "run", method=method, options={"meta_data": "val"}, **rare))
    assert not (tmp_path / "run").exists()
    begun(settings(tmp_path / "run", method=method, **rare))
    begun(settings(tmp_path / "run", method=method, options={"meta_data": "val"}, **(rare | {"data__imbalance": 12})))
