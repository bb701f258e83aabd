"""`spectail evaluate RUN` measures what `results.json` says, and refuses other data."""

import json

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from training.runs import QUICK

from spectail.cli.main import main
from spectail.data import load

KEYS = ("overall", "balanced", "tail", "worst_test", "worst_test_class", "per_class", "macro_f1", "zero_classes")


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


def trained(output, *arguments):
    assert main(["train", *QUICK, "--quiet", "--no-report", "--output", str(output), *map(str, arguments)]) == 0
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
    assert "manifest.json is not as it was written" in capsys.readouterr().err
    (tmp_path / "run" / "digests.json").unlink()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 1
    note, err = capsys.readouterr().err.splitlines()
    assert note.startswith("note: ")
    assert err.startswith("spectail evaluate: ")
    assert "the run in" in err
    (tmp_path / "run" / "model.safetensors").write_bytes(b"broken")
    (tmp_path / "run" / "manifest.json").unlink()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_adjusted_afterwards(tmp_path, capsys, monkeypatch):
    """Figures, predictions and exports of a plain run with its prior taken off are those of logits shifted by hand."""
    trained(tmp_path / "run")
    stored = np.load(tmp_path / "run" / "predictions.npz")
    shifted = stored["logits"] - 2.0 * np.log(stored["class_counts"] / stored["class_counts"].sum())
    flags = ["--post-hoc", "logit-adjustment", "--tau", "2"]
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["overall"] == pytest.approx(100 * (shifted.argmax(1) == stored["labels"]).mean())
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", *flags]) == 0
    assert "ce + logit-adjustment on test" in " ".join(capsys.readouterr().out.split())
    Image.new("RGB", (32, 32), (90, 120, 200)).save(tmp_path / "image.png")
    shares = []
    for more in ([], flags):
        assert main(["predict", str(tmp_path / "run"), str(tmp_path / "image.png"), "--top", "6", "--json", *more]) == 0
        shares.append(dict(json.loads(capsys.readouterr().out)["classes"]))
    names = stored["class_names"].tolist()
    odds = np.array([shares[0][name] for name in names]) * (stored["class_counts"] / stored["class_counts"].sum()) ** -2
    assert [shares[1][name] for name in names] == pytest.approx((odds / odds.sum()).tolist(), rel=1e-3, abs=1e-6)
    for name, more in (("plain", []), ("shifted", flags)):
        assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / f"{name}.pt2"), *more]) == 0
    card = (tmp_path / "README.md").read_text(encoding="utf-8")  # of the second file
    head, body = card.split("---\n")[1:3]
    about = yaml.safe_load(head)
    assert about["library_name"] == "spectail"
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    metrics = about["model-index"][0]["results"][0]["metrics"]
    assert metrics[0] == {"type": "accuracy", "name": "accuracy", "value": round(results["overall"], 2)}
    assert "before its logits were changed for this file (--post-hoc logit-adjustment, --tau 2.0)" in body
    assert results["identity"] in body
    Image.new("RGB", (40, 60), (90, 120, 200)).save(tmp_path / "new.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(body.split("```python\n")[1].split("```")[0], "README.md", "exec"), {})
    (tmp_path / "README.md").write_text("# somebody else's")
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "plain.pt2")]) == 0
    assert (tmp_path / "README.md").read_text() == "# somebody else's"
    assert (tmp_path / "plain.md").exists()
    image = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain, moved = (torch.export.load(tmp_path / f"{name}.pt2").module()(image) for name in ("plain", "shifted"))
    prior = torch.tensor(stored["class_counts"] / stored["class_counts"].sum()).log().float()
    torch.testing.assert_close(moved, plain - 2 * prior, rtol=1e-4, atol=1e-4)
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu", "--tau", "2"]) == 1
    assert "is a run of ce, which has no tau. To adjust its logits pass --post-hoc" in capsys.readouterr().err
