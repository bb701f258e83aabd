"""`spectail evaluate RUN` measures what `results.json` says, and refuses other data."""

import json

import pytest
from training.runs import FLAGS

from spectail.cli.main import main
from spectail.data import load

KEYS = ("overall", "balanced", "tail", "worst_test", "worst_test_class", "per_class", "macro_f1", "zero_classes")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluate-cache")


@pytest.fixture(autouse=True)
def cache(shared_cache, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(shared_cache))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


def trained(output, *arguments):
    assert main(["train", *FLAGS, "--quiet", "--output", str(output), *map(str, arguments)]) == 0
    return json.loads((output / "results.json").read_text())


@pytest.mark.parametrize(
    "arguments",
    [[], ["--method", "balanced-softmax", "--car", "--ema", "0.5"], ["--probe"], ["--val-fraction", "0.3"],
     ["--select-on", "test"], ["--transform", "cifar-strong"], ["--groups", "thirds"]],
    ids=" ".join,
)  # fmt: skip
def test_the_same_figures(arguments, tmp_path, capsys):
    results = trained(tmp_path / "run", *arguments)
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    for key in KEYS:
        assert found[key] == results[key], key
    assert found["ece"] == pytest.approx(results["ece"], abs=1e-3)
    assert found["spectral_norm"] == pytest.approx(results["spectral_norm"])
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "--json", "--split", "train"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"] == pytest.approx(results["train_overall"])


def test_table_and_other_splits(tmp_path, capsys):
    trained(tmp_path / "run")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert "ce on test" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "--split", "val"]) == 1
    assert "has no val split" in capsys.readouterr().err


def test_refusals(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path / "none")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("spectail evaluate: ")
    assert str(tmp_path / "none") in err
    trained(tmp_path / "run")
    load("glyphs-lt", num_classes=6, max_per_class=24, imbalance=3).manifest.save(tmp_path / "run" / "manifest.json")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("spectail evaluate: ")
    assert "the run in" in err
    (tmp_path / "run" / "model.safetensors").write_bytes(b"broken")
    (tmp_path / "run" / "manifest.json").unlink()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 1
    assert "Traceback" not in capsys.readouterr().err
