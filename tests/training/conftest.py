"""One cache of the rendered characters for all tests of the engine, and a few tiny networks."""

import pytest
from training.runs import DECOUPLED, TINY, Decoupled

from spectail.methods import base
from spectail.methods.registry import METHODS
from spectail.models.build import MODELS


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("engine-cache")


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(shared_cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)
    for name, entry in TINY.items():
        monkeypatch.setitem(MODELS, name, entry)
    monkeypatch.setitem(METHODS, "decoupled", DECOUPLED)
    monkeypatch.setattr(base, "DecoupledOfTheTests", Decoupled, raising=False)
    return shared_cache
