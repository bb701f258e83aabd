"""Methods by name, tiny networks for whole runs, and one cache of the rendered characters."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training.runs import TINY

from spectail import ClassCounts
from spectail.data import load
from spectail.data.loader import Loader
from spectail.methods import METHODS, Stage, Step
from spectail.models.build import MODELS
from spectail.models.classifier import Classifier


@pytest.fixture(scope="session")
def shared_cache():
    return Path(os.environ["SPECTAIL_CACHE"])


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, entry in TINY.items():
        monkeypatch.setitem(MODELS, name, entry)
    torch.manual_seed(0)
    return shared_cache


@pytest.fixture
def make():
    """A method as a run would make it."""

    def made(name, counts=(100, 20, 5), epochs=200, **options):
        kind = METHODS[name].load()
        return kind(ClassCounts(counts), replace(kind.options, **options), epochs=epochs)

    return made


@pytest.fixture
def at():
    """A place in training, as the loop would say it."""

    def placed(epoch, epochs=200, stage="train", **more):
        return Step(Stage(stage), epoch, epochs, **more)

    return placed


@pytest.fixture
def flat():
    """A classifier whose backbone hands its input on, for a method's head."""

    def built(method, width=2, kind=None):
        head = method.make_head(kind or method.head or "linear", width)
        return Classifier(torch.nn.Identity(), head)

    return built


@pytest.fixture
def saved():
    """States of model and method at the end of every epoch of a run that kept its checkpoints."""

    def states(folder):
        paths = sorted((folder / "checkpoints").iterdir())
        return [torch.load(path / "state.pt", weights_only=False)["learner"] for path in paths]

    return states


@pytest.fixture
def test_images():
    """The test images of the tiny runs, as evaluation sees them."""

    def found(trained):
        data = load(trained.config.data).test
        return torch.cat([batch.images for batch in Loader(data, trained.preset, batch_size=64)])

    return found
