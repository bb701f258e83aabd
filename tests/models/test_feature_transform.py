"""Transforms of features: against formulas written out in NumPy, corners, and what is saved."""

import numpy as np
import pytest
import torch

from spectail.models import feature_transform
from spectail.models.feature_transform import FeatureTransform, TransformedBackbone, transformed


def heavy(rows=50, width=7, seed=0):
    """Dimensions of very different size, with a long tail, as activations have."""
    rng = np.random.default_rng(seed)
    values = rng.standard_t(3, (rows, width)) * 10.0 ** np.arange(-3, width - 3) + np.arange(width)
    return torch.from_numpy(values).float()


def test_raw_changes_nothing_and_saves_nothing():
    transform, features = FeatureTransform("raw", 7), heavy()
    assert transform.fit_(features)(features) is features
    assert transform.state_dict() == {}
    backbone = torch.nn.Linear(3, 7)
    assert transformed(backbone, transform) is backbone


def test_standard_is_the_textbook_formula():
    train, test = heavy(), heavy(seed=1)
    wanted = (test.double().numpy() - train.double().numpy().mean(0)) / train.double().numpy().std(0)
    found = FeatureTransform("standard", 7).fit_(train)(test)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_power_takes_roots_then_centres_and_has_one_scale():
    train, test = heavy(), heavy(seed=1)
    root = {name: np.sign(x) * np.abs(x) ** 0.5 for name, x in (("train", train.numpy()), ("test", test.numpy()))}
    mean = root["train"].astype(np.float64).mean(0)
    scale = np.sqrt(((root["train"] - mean) ** 2).mean())
    transform = FeatureTransform("power", 7).fit_(train)
    np.testing.assert_allclose(transform(test), (root["test"] - mean) / scale, rtol=2e-5, atol=2e-5)
    assert transform.scale.shape == ()
    assert transform(train).square().mean().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["standard", "power"])
def test_blocks_do_not_change_the_statistics(monkeypatch, kind):
    whole = FeatureTransform(kind, 7).fit_(heavy())
    monkeypatch.setattr(feature_transform, "BLOCK", 21)  # three rows at a time
    parts = FeatureTransform(kind, 7).fit_(heavy())
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(parts.scale, whole.scale, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["standard", "power"])
@pytest.mark.parametrize("value", [0.0, 0.1, -12345.678])
def test_a_dimension_that_never_changes_becomes_zero(kind, value):
    features = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    features[:, 1] = value
    found = FeatureTransform(kind, 3).fit_(features)(features)
    assert found[:, 1].abs().max() == 0
    assert found.isfinite().all()
    constant = torch.full((4, 2), value)
    assert FeatureTransform(kind, 2).fit_(constant)(constant).abs().max() == 0


def test_a_mean_far_from_zero_does_not_spoil_the_scale():
    features = torch.tensor([[1e4], [1e4 + 1], [1e4 + 2], [1e4 + 1]])
    found = FeatureTransform("standard", 1).fit_(features)(features)
    np.testing.assert_allclose(found[:, 0], [-np.sqrt(2), 0, np.sqrt(2), 0], atol=1e-5)


def test_statistics_are_saved_and_loaded():
    backbone = TransformedBackbone(torch.nn.Linear(3, 7), FeatureTransform("power", 7).fit_(heavy()))
    assert sorted(backbone.state_dict()) == ["backbone.bias", "backbone.weight", "transform.mean", "transform.scale"]
    again = TransformedBackbone(torch.nn.Linear(3, 7), FeatureTransform("power", 7))
    again.load_state_dict(backbone.state_dict())
    images = torch.randn(2, 3)
    assert torch.equal(again(images), backbone(images))


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match=r"features must be one of .*raw.*; got 'log'"):
        FeatureTransform("log", 3)
    for shape in ((0, 3), (4, 2), (4,)):
        with pytest.raises(ValueError, match=r"^expected features \(N, 3\) to fit to; got \("):
            FeatureTransform("standard", 3).fit_(torch.zeros(shape))
