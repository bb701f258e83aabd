"""`spectail list augment --show`: what it writes, what it says, and what it refuses."""

import pytest

from spectail.cli.main import main
from spectail.report import gallery


def test_show_writes_the_gallery_and_says_what_is_not_in_it(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(gallery, "save", lambda *arguments: asked.append(arguments))
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "a.png"
    assert main(["list", "augment", "--show", str(path), "--dataset", "cifar10-lt", "--root", "images"]) == 0
    assert asked == [(path, {"dataset": "cifar10-lt", "root": "images"})]
    said = " ".join(capsys.readouterr().out.split())
    assert "safa-r and metasaug change features and not images, so there is nothing of them to see" in said


@pytest.mark.parametrize("arguments", [["augment", "--show", "a.jpg"], ["methods", "--show", "a.png"]])
def test_show_goes_with_augment_and_png(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["list", *arguments]) != 0
    assert "--show goes with `spectail list augment` and takes a .png file" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_augmentations_are_listed(capsys):
    assert main(["list", "augment"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("remix", "cmo", "concutmix", "metasaug", "safa-r"))
