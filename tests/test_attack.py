"""A small part of `make attack`, always the same: whatever is wrong with a case is in the list of failures."""

import pytest
import torch
from attack import damage, disk, hostile, inputs, writers
from attack.cases import Row


@pytest.fixture(autouse=True)
def one_thread():
    """As `make attack` has it: children are forked, and have one thread in any case."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


@pytest.fixture
def row(tmp_path, monkeypatch, tiny):
    monkeypatch.chdir(tmp_path)
    return Row("", "")


@pytest.fixture
def tiny(monkeypatch):
    from training.runs import DECOUPLED, TINY, Decoupled

    from spectail.methods import base
    from spectail.methods.registry import METHODS
    from spectail.models.build import MODELS

    for name, made in TINY.items():
        monkeypatch.setitem(MODELS, name, made)
    monkeypatch.setitem(METHODS, "decoupled", DECOUPLED)
    monkeypatch.setattr(base, "DecoupledOfTheTests", Decoupled, raising=False)


def test_generated_input(row, tmp_path):
    inputs.attack(row, tmp_path, seed=24, amount=36)
    assert not row.failures


def test_hostile_files_names_and_paths(row, tmp_path):
    hostile.attack(row, tmp_path, seed=24, amount=1)
    assert row.cases > 60
    assert not row.failures


def test_damage(row, tmp_path, monkeypatch):
    every = damage.ways
    some = ("flipped", "replaced by b'{}'")
    monkeypatch.setattr(damage, "ways", lambda *of: [way for way in every(*of) if way[0].startswith(some)])
    damage.attack(row, tmp_path, seed=24, rounds=1)
    assert row.cases > 50
    assert not row.failures


def test_two_writers(row, tmp_path):
    writers.attack(row, tmp_path, seed=24, amount=2)
    assert not row.failures


def test_a_full_disk(row, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "SIZES", (200,))
    disk.attack(row, tmp_path, seed=24, amount=1)
    assert not row.failures
