"""One cache of the rendered characters for all tests of the engine, and a few tiny networks."""

import os
from pathlib import Path

import pytest
from training.runs import DECOUPLED, TINY, Decoupled

from spectail.methods import base
from spectail.methods.registry import METHODS
from spectail.models.build import MODELS


@pytest.fixture(scope="session")
def shared_cache():
    return Path(os.environ["SPECTAIL_CACHE"])


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)
    for name, entry in TINY.items():
        monkeypatch.setitem(MODELS, name, entry)
    monkeypatch.setitem(METHODS, "decoupled", DECOUPLED)
    monkeypatch.setattr(base, "DecoupledOfTheTests", Decoupled, raising=False)
    return shared_cache
