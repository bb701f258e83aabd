"""`spectail list`: what it shows."""

from spectail.cli.main import main


def test_methods_are_listed_with_their_kind(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("remix", "cmo", "concutmix", "metasaug", "safa-r"):
        assert any(f" {name} " in line and "augmentation" in line for line in lines), name


def test_recipes_say_what_they_aim_at(capsys, monkeypatch):
    """Published figure, source and variant stand beside each recipe."""
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list", "recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cmo = next(line for line in lines if "cifar100-lt" in line and " cmo " in line)
    assert all(words in cmo for words in ("CE-DRW", "47.0, ResNet-32", "CMO code", "defer reweight"))
    bbn = next(line for line in lines if "cifar100-lt" in line and " bbn " in line)
    assert "Nesterov" in bbn
    head = next(line for line in lines if "published" in line)
    assert all(words in head for words in ("variant", "source", "optimisation"))
