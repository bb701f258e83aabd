"""Every registered method passes every check of spectail.testing, and wrong methods are found out by it."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from spectail.losses import BalancedSoftmaxLoss
from spectail.methods import METHODS, Method
from spectail.testing import CHECKS, check_car, check_extreme_logits, check_inference, check_resume, check_state

from spectail.testing import check_backbone, check_trains, settings  # isort: skip
from spectail.training.loop import train

HERE = "test_conformance"
TUNED = [check for check in CHECKS if check.__name__ not in ("check_extreme_logits", "check_compiled")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """``train``, but a whole run that was made before is copied: several checks begin with the same one."""
    folder, made = tmp_path_factory.mktemp("made"), {}

    def run(config, **options):
        if options:
            return train(config, **options)
        key = repr(replace(config, output=folder))
        if key not in made:
            results = train(config)
            made[key] = folder / str(len(made)), results
            shutil.copytree(config.output, made[key][0])
        elif not config.output.exists():
            shutil.copytree(made[key][0], config.output)
        else:
            return train(config)  # which says that the folder is taken
        return made[key][1]

    return run


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("method", METHODS)
def test_method(method, check, trained, monkeypatch, tmp_path):
    monkeypatch.setattr("spectail.testing.checks.train", trained)
    check(method, tmp_path)


@pytest.mark.parametrize("check", TUNED, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("method", METHODS)
def test_method_with_lora(method, check, trained, monkeypatch, tmp_path):
    monkeypatch.setattr("spectail.testing.checks.train", trained)
    for module in ("checks", "hardware"):
        monkeypatch.setattr(f"spectail.testing.{module}.settings", partial(settings, tuning={"tune": "lora"}))
    check(method, tmp_path)


def test_no_two_methods_give_the_same_predictions(trained, tmp_path):
    found = {}
    for name in METHODS:
        trained(settings(name, tmp_path / name))
        found[name] = np.load(tmp_path / name / "predictions.npz")["logits"]
    names = list(found)
    same = [(a, b) for i, a in enumerate(names) for b in names[:i] if np.array_equal(found[a], found[b])]
    assert not same


class Silent(Method):
    """Its loss has no gradient."""

    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        return found._replace(loss=0 * found.loss)


class Overflowing(Method):
    def loss(self, model, batches, step):
        found = super().loss(model, batches, step)
        wrong = -(found.logits.exp() / found.logits.exp().sum(1, keepdim=True)).log()
        return found._replace(loss=wrong.gather(1, found.target[:, None]).mean())


class Forgetful(Method):
    """Its loss depends on a count that is saved nowhere."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.calls = 0

    def loss(self, model, batches, step):
        self.calls += 1
        found = super().loss(model, batches, step)
        return found._replace(loss=found.loss * (1 + self.calls))


class Hidden(Method):
    """Gives CAR nothing to look at."""

    def loss(self, model, batches, step):
        return super().loss(model, batches, step)._replace(logits=None)


class Leaking(Method):
    """Adds the prior at inference too."""

    def make_criterion(self):
        return BalancedSoftmaxLoss(self.counts)

    def inference(self, model):
        shift = self.counts.frequencies.log().float()

        class Shifted(nn.Module):
            def forward(self, images):
                return model(images) + shift

        return Shifted()


class Restless(Method):
    """Its second stage says that it trains the head, and moves the backbone."""

    def stages(self):
        from spectail.methods import Stage

        return [Stage("one"), Stage("two", epochs=1, train="head")]

    def after_step(self, model, step):
        with torch.no_grad():
            for parameter in model.backbone.parameters():
                parameter.add_(1e-3)


@pytest.mark.parametrize(
    ("method", "check", "message"),
    [
        (Silent, check_trains, "changes no weight"),
        (Overflowing, check_extreme_logits, "the loss of train, epoch 0 is nan|not finite"),
        (Forgetful, check_resume, "differs from the uninterrupted run"),
        (Forgetful, check_state, "after a round trip"),
        (Hidden, check_car, "saw no batch"),
        (Leaking, check_inference, "depends on the class counts"),
        (Restless, check_backbone, "two moves the backbone"),
    ],
)
def test_a_wrong_method_is_found_out(method, check, message, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check(f"{HERE}:{method.__name__}", tmp_path)


def test_a_method_from_elsewhere_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="cannot be imported"):
        settings("no_such_package.methods:Mine", tmp_path)
    with pytest.raises(ValueError, match="not a subclass"):
        settings(f"{HERE}:np", tmp_path)
