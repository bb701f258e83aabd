"""`spectail adjust`: from files of predictions to adjusted ones, and what other commands make of the adjustment."""

import json
import re

import numpy as np
import pytest
from training.runs import QUICK

from spectail.cli.main import main
from spectail.diagnosis import read_predictions

SIZE = 6
COUNTS = np.array([200, 100, 50, 25, 12, 6])
NAMES = np.array(["ant", "bee", "cat", "dog", "eel", "fox"])


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("SPECTAIL_DEBUG", raising=False)


def drawn(seed, images=300, size=SIZE):
    random = np.random.default_rng(seed)
    labels = random.integers(size, size=images)
    logits = 2 * random.normal(size=(images, size)) + 1.5 * np.log(COUNTS[:size] / COUNTS[:size].sum())
    logits[np.arange(images), labels] += 4
    return {"logits": logits.astype(np.float32), "labels": labels}


def saved(path, **arrays):
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return str(path)


def loaded(path):
    with np.load(path) as archive:
        return dict(archive)


@pytest.fixture
def files(tmp_path):
    test = saved(
        tmp_path / "test.npz", **drawn(1), class_names=NAMES, class_counts=COUNTS, paths=np.arange(300).astype(str)
    )
    val = saved(tmp_path / "val.npz", **drawn(2), class_names=NAMES)
    return tmp_path, test, val


def refusal(capsys, *arguments, code=1):
    assert main(["adjust", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("spectail adjust: ")
    assert err.count("\n") == 1
    return err


def test_before_and_after(files, capsys):
    folder, test, val = files
    assert main(["adjust", test, "--on", val]) == 0
    out = capsys.readouterr().out
    tables, sentences = out[: out.index("Chosen")], out[out.index("Chosen") :]
    assert max(map(len, tables.splitlines())) <= 80
    assert "validation images, cross-fitted" in tables
    assert "test, adjusted" in tables
    assert "temperature" in sentences
    written = json.loads((folder / "test-adjusted.json").read_text())
    before, after = (loaded(folder / name) for name in ("test.npz", "test-adjusted.npz"))
    expected = (before["logits"] + np.array(written["offsets"], dtype=np.float32)) / written["temperature"]
    np.testing.assert_allclose(after.pop("logits"), expected, rtol=1e-5, atol=1e-5)
    for name, values in after.items():  # the files of the images are still there
        np.testing.assert_array_equal(values, before[name])
    assert after.keys() == before.keys() - {"logits"}
    shares = [
        (read_predictions(folder / name).predicted == before["labels"]).mean()
        for name in ("test.npz", "test-adjusted.npz")
    ]
    assert shares[1] > shares[0] + 0.03
    row = next(line for line in out[out.index("test, adjusted") :].splitlines() if "overall" in line)
    assert [f"{100 * share:.1f}" for share in shares] == [cell.strip() for cell in row.split("│")[2:4]]
    assert written["tau"] == pytest.approx(1.5, abs=0.6)
    assert written["goal"] == "balanced"


def test_tables_and_probabilities_and_no_labels(files, capsys):
    """Any file that `analyze` reads; without labels there are figures of the validation images only."""
    folder, _, val = files
    logits = drawn(1)["logits"].astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    lines = [",".join(f"prob_{name}" for name in NAMES), *(",".join(f"{share:.6f}" for share in row) for row in shares)]
    (folder / "new.csv").write_text("\n".join(lines) + "\n")
    (folder / "counts.txt").write_text("\n".join(map(str, COUNTS)) + "\n")
    assert main(["adjust", str(folder / "new.csv"), "--on", val, "--counts", str(folder / "counts.txt")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"new\.csv: The scores .* are used as probabilities\.", out)
    assert "new.csv has no labels, so figures are of the validation images only." in out
    written = json.loads((folder / "new-adjusted.json").read_text())
    found = loaded(folder / "new-adjusted.npz")
    assert "labels" not in found
    logs = np.log(np.maximum(shares.round(6), np.finfo(np.float32).tiny))
    expected = (logs + written["offsets"]) / written["temperature"]
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-3, atol=1e-3)
    assert written["class_names"] == NAMES.tolist()


def test_without_counts_tau_is_left_out(files, capsys):
    folder, _, val = files
    test = saved(folder / "bare.npz", **drawn(1))
    assert main(["adjust", test, "--on", val, "--output", str(folder / "out" / "x.npz")]) == 0
    assert "so tau is left out; give them with --counts." in capsys.readouterr().out
    written = json.loads((folder / "out" / "x.json").read_text())
    assert written["tau"] is None
    assert written["class_names"] == NAMES.tolist()
    assert "give them with --counts" in refusal(capsys, test, "--on", val, "--goal", "tail")


def test_a_floor_out_of_reach_is_said_and_the_nearest_written(files, capsys):
    folder, test, val = files
    assert main(["adjust", test, "--on", val, "--goal", "tail", "--keep", "overall=99", "tail=5"]) == 0
    assert "No candidate keeps the floor: the nearest reaches overall" in capsys.readouterr().out
    assert (folder / "test-adjusted.npz").exists()
    assert json.loads((folder / "test-adjusted.json").read_text())["goal"].startswith(
        "tail, with overall at least 99 %"
    )
    (folder / "test-adjusted.npz").unlink()
    assert main(["adjust", test, "--on", val, "--goal", "tail"]) == 0
    assert "points of the overall accuracy; --keep overall=" in capsys.readouterr().out


def test_refusals(files, capsys):
    folder, test, val = files
    assert "name a file of predictions for validation images with --on" in refusal(capsys, test)
    assert "is both what is adjusted and what is chosen on" in refusal(capsys, test, "--on", test)
    copy = saved(folder / "copy.npz", **drawn(1), class_names=NAMES)
    assert "hold the same predictions" in refusal(capsys, test, "--on", copy)
    blind = saved(folder / "blind.npz", logits=drawn(2)["logits"])
    assert "blind.npz has no array 'labels'" in refusal(capsys, test, "--on", blind)
    hard = saved(folder / "hard.npz", labels=drawn(2)["labels"], predicted=drawn(2)["labels"])
    assert "has predicted classes only" in refusal(capsys, test, "--on", hard)
    fewer = saved(folder / "fewer.npz", **drawn(2, size=5))
    assert "has 6 classes and" in refusal(capsys, test, "--on", fewer)
    other = saved(folder / "other.npz", **drawn(2), class_names=np.array(["ant", "bee", "cow", "dog", "eel", "fox"]))
    assert "class 2 is 'cat' in" in refusal(capsys, test, "--on", other)
    broken = saved(
        folder / "nan.npz",
        logits=np.where(drawn(2)["logits"] > 5, np.nan, drawn(2)["logits"]),
        labels=drawn(2)["labels"],
    )
    assert "scores must be finite numbers" in refusal(capsys, test, "--on", broken)
    assert "there is no figure 'all' to keep" in refusal(capsys, test, "--on", val, "--keep", "all=3")
    assert "--output must end in .npz" in refusal(capsys, test, "--on", val, "--output", str(folder / "x.csv"))
    assert "would replace a file that is read" in refusal(capsys, test, "--on", val, "--output", val)
    assert "does not exist" in refusal(capsys, test, "--on", str(folder / "none.npz"))
    with pytest.raises(SystemExit) as end:
        main(["adjust", test, "--on", val, "--goal", "best"])
    assert end.value.code == 2
    assert "--goal takes one of balanced, overall, tail, worst, lowest10; got best." in capsys.readouterr().err
    assert not list(folder.glob("*adjusted*"))


def test_the_run_of_the_predictions_takes_the_adjustment(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", *QUICK, "--quiet", "--no-report", "--output", str(run)]) == 0
    stored = loaded(run / "predictions.npz")
    moved = stored["logits"][::2] - np.log(stored["class_counts"])  # stands for validation images: other logits
    val = saved(tmp_path / "val.npz", **stored | {"logits": 3 * moved, "labels": stored["labels"][::2]})
    assert main(["adjust", str(run), "--on", val]) == 0
    flags = ["--adjust", str(run / "predictions-adjusted.json")]
    assert not (run / "adjustment.json").exists()  # the run is as it was
    capsys.readouterr()
    assert main(["evaluate", str(run), "--device", "cpu", "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    adjusted = loaded(run / "predictions-adjusted.npz")
    assert found["overall"] == pytest.approx(100 * (adjusted["logits"].argmax(1) == adjusted["labels"]).mean())
    highest = adjusted["logits"].max(1, keepdims=True)
    likelihood = adjusted["logits"] - highest - np.log(np.exp(adjusted["logits"] - highest).sum(1, keepdims=True))
    loss = -likelihood[np.arange(len(likelihood)), adjusted["labels"]].mean()
    assert found["nll"] == pytest.approx(loss, rel=1e-3)  # the temperature as well
    assert main(["evaluate", str(run), "--device", "cpu", *flags]) == 0
    assert "ce + adjustment on test" in " ".join(capsys.readouterr().out.split())
    assert main(["evaluate", str(run), "--device", "cpu", "--tau", "2", *flags]) == 1
    assert "leave out --tau" in capsys.readouterr().err
    assert main(["export", str(run), "--adjust", str(tmp_path / "val.npz")]) == 1
    assert "is no adjustment" in capsys.readouterr().err
