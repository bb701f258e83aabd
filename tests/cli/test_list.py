"""`spectail list`: what it shows."""

from spectail.cli.main import main


def test_augmentations_are_listed(capsys):
    assert main(["list", "augment"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("remix", "cmo", "concutmix", "metasaug", "safa-r"))
