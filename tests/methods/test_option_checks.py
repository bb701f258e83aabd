"""Values of options that cannot work are refused in one sentence, before anything is written."""

import math
from dataclasses import replace

import pytest
from training.runs import settings

from spectail.methods.registry import METHODS
from spectail.training.loop import train

CASES = [
    *(
        (method, {"tau": value}, "--tau must lie between 0 and 10")
        for method in ("tau-norm", "logit-adjustment", "balanced-softmax")
        for value in (math.nan, math.inf, 1e9, -1.0)
    ),
    *(("balms", {"meta_power": value}, "--meta-power must lie between 0 and 2") for value in (math.nan, -0.5, 50.0)),
    ("focal", {"focal_alpha": 0.25}, "--focal-alpha belongs to the sigmoid form: pass --form sigmoid"),
    ("focal", {"focal_alpha": 1.5, "form": "sigmoid"}, "--focal-alpha must lie between 0 and 1"),
    ("focal", {"gamma": -1.0}, "--gamma must be at least 0"),
    ("cb", {"beta": 1.5}, "--beta must lie between 0 and 1"),
    ("cb", {"gamma": math.inf, "base": "focal"}, "--gamma must be at least 0"),
]


@pytest.mark.parametrize(("method", "options", "words"), CASES)
def test_refused(method, options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        train(settings(tmp_path / "run", method=method, options=options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["tau-norm", "logit-adjustment"])
def test_late_settings_are_still_looked_at(method):
    with pytest.raises(ValueError, match="--defer-at"):
        replace(METHODS[method].load().options, defer_at=2.0).check()
