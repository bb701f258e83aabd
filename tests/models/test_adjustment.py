"""An adjustment is the same in NumPy, in a network and in a file."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from spectail.models.adjustment import Adjusted, Adjustment

ADJUSTMENT = Adjustment(("a", "b", "ü"), (0.5, -1.25, 3.0), 1.7, tau=0.4, goal="worst", source="val.npz")


def test_arrays_networks_and_files_agree(tmp_path):
    logits = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    expected = (logits + np.array([0.5, -1.25, 3.0])) / 1.7
    np.testing.assert_allclose(ADJUSTMENT.apply(logits), expected, rtol=1e-6)
    assert ADJUSTMENT.apply(logits).dtype == np.float32
    assert ADJUSTMENT.apply(np.zeros((1, 3), dtype=int)).tolist() == [[0.5 / 1.7, -1.25 / 1.7, 3 / 1.7]]
    model = ADJUSTMENT.on(nn.Identity())
    assert isinstance(model, Adjusted)
    torch.testing.assert_close(
        model(torch.from_numpy(logits)).double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6
    )
    ADJUSTMENT.save(tmp_path / "one.json")
    assert Adjustment.load(tmp_path / "one.json") == ADJUSTMENT
    assert "offsets" in ADJUSTMENT.facts()
    json.dumps(ADJUSTMENT.facts())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no adjustment"),
        ("[1]", "is no adjustment; expected what `spectail adjust` writes"),
        ('{"format": 2}', "is no adjustment; expected what"),
        ('{"format": 1}', "is a damaged adjustment"),
        ('{"format": 1, "class_names": ["a", "b"], "offsets": [1]}', "one offset for each of the 2 classes; got 1"),
        ('{"format": 1, "class_names": ["a"], "offsets": [NaN]}', "offsets must be finite"),
        ('{"format": 1, "class_names": ["a"], "offsets": [1], "temperature": 0}', "temperature must be more than 0"),
        ('{"format": 1, "class_names": ["a"], "offsets": [1], "scale": 3}', "is a damaged adjustment"),
    ],
)
def test_files_that_are_none(tmp_path, text, words):
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        Adjustment.load(path)
    with pytest.raises(FileNotFoundError, match="is no file"):
        Adjustment.load(tmp_path / "other.json")
    with pytest.raises(FileNotFoundError, match="is no file"):
        Adjustment.load(tmp_path)


def test_classes_must_be_its_own():
    ADJUSTMENT.require_classes(["a", "b", "ü"], "the run")
    Adjustment(("0", "1"), (1.0, 2.0)).require_classes(["cat", "dog"], "the run")  # known by number only
    with pytest.raises(ValueError, match="is for 3 classes, but the run has 2"):
        ADJUSTMENT.require_classes(["a", "b"], "the run")
    with pytest.raises(ValueError, match="1 is 'b', but 'c' in the run"):
        ADJUSTMENT.require_classes(["a", "c", "ü"], "the run")
