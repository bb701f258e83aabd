"""Class covariances batch by batch, against numpy on everything at once."""

import numpy as np
import pytest
import torch

from spectail.augment import covariance
from spectail.augment.covariance import ClassCovariance, present

KINDS = pytest.mark.parametrize("kind", ["full", "diagonal"])


def batches(classes=5, width=4, seed=0):
    """Batches of several sizes; class 3 has one image, class 4 has none."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(classes, width, width, generator=generator, dtype=torch.float64)
    centre = 5 * torch.randn(classes, width, generator=generator, dtype=torch.float64)
    for size in (7, 1, 12, 3):
        labels = torch.randint(3, (size,), generator=generator)
        if size == 12:
            labels[5] = 3
        noise = torch.randn(size, width, generator=generator, dtype=torch.float64)
        yield centre[labels] + torch.einsum("nij,nj->ni", mix[labels], noise), labels


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("full", [[1, 1], [1, 1]], [[14 / 9, 2], [2, 8 / 3]]),
        ("diagonal", [1, 1], [14 / 9, 8 / 3]),
    ],
)
def test_two_batches_by_hand(kind, first, second):
    seen = ClassCovariance(3, 2, kind)
    seen.update(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(seen.cov[0], torch.tensor(first, dtype=torch.float32))
    seen.update(torch.tensor([[4.0, 4.0]]), torch.tensor([0]))
    torch.testing.assert_close(seen.cov[0], torch.tensor(second))
    torch.testing.assert_close(seen.mean[0], torch.tensor([8 / 3, 2.0]))
    assert seen.count.tolist() == [3, 0, 0]
    assert not seen.cov[1:].any()
    assert not seen.mean[1:].any()


@KINDS
def test_it_is_the_population_covariance_of_all_that_was_seen(kind):
    seen = ClassCovariance(5, 4, kind).double()
    parts = list(batches())
    for features, labels in parts:
        seen.update(features, labels)
    everything, labels = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    for label in range(4):
        own = everything[labels == label]
        wanted = np.cov(own, rowvar=False, bias=True)
        np.testing.assert_allclose(
            seen.cov[label], wanted if kind == "full" else np.diag(wanted), rtol=1e-10, atol=1e-12
        )
        np.testing.assert_allclose(seen.mean[label], own.mean(0), rtol=1e-12)
    assert seen.count.tolist() == [*np.bincount(labels, minlength=5)]
    assert not seen.cov[3:].any()  # one image spreads nowhere, none neither
    assert torch.isfinite(seen.mean).all()


@KINDS
def test_float32_loses_no_digits_far_from_the_origin(kind):
    """Sums of squares would: the mean is 1,000 times the deviation."""
    generator = torch.Generator().manual_seed(3)
    values = 1000 + torch.randn(400, 2, generator=generator)
    seen = ClassCovariance(1, 2, kind)
    for part in values.split(16):
        seen.update(part, torch.zeros(len(part), dtype=torch.int64))
    wanted = np.cov(values.double().numpy(), rowvar=False, bias=True)
    np.testing.assert_allclose(seen.cov[0], wanted if kind == "full" else np.diag(wanted), rtol=2e-3, atol=2e-3)


def test_pieces_of_outer_products_do_not_matter(monkeypatch):
    whole, pieces = ClassCovariance(5, 4), ClassCovariance(5, 4)
    for features, labels in batches():
        whole.update(features, labels)
    monkeypatch.setattr(covariance, "MOST", 40)  # two images at a time
    for features, labels in batches():
        pieces.update(features, labels)
    torch.testing.assert_close(pieces.cov, whole.cov)


def test_half_precision_features_and_small_labels_are_taken():
    seen = ClassCovariance(2, 2)
    seen.update(torch.tensor([[1.0, 0.0], [3.0, 2.0]], dtype=torch.bfloat16), torch.tensor([1, 1], dtype=torch.uint8))
    assert seen.cov.dtype == torch.float32
    torch.testing.assert_close(seen.cov[1], torch.ones(2, 2))


def test_its_numbers_are_state_and_no_gradient_is_kept():
    seen, other = ClassCovariance(2, 3), ClassCovariance(2, 3)
    seen.update(torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 1, 0]))
    assert not list(seen.parameters())
    assert not seen.cov.requires_grad
    other.load_state_dict(seen.state_dict())
    more = torch.randn(3, 3), torch.tensor([0, 0, 1])
    seen.update(*more)
    other.update(*more)
    assert torch.equal(seen.cov, other.cov)
    assert torch.equal(seen.count, other.count)


def test_what_is_present():
    counts, classes, place = present(torch.tensor([4, 1, 4, 0]), 6)
    assert counts.tolist() == [1, 1, 0, 0, 2, 0]
    assert classes.tolist() == [0, 1, 4]
    assert classes[place].tolist() == [4, 1, 4, 0]


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="kind must be one of 'full', 'diagonal'; got 'dense'"):
        ClassCovariance(2, 2, "dense")
    with pytest.raises(ValueError, match=r"features must be \(N, 2\) with N labels; got \(3, 4\) and 3 labels"):
        ClassCovariance(2, 2).update(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="and 2 labels"):
        ClassCovariance(2, 2).update(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))
