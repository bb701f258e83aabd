"""The gradient of MetaSAug's covariances one step ahead, against autograd, finite differences and numbers by hand."""

import pytest
import torch
import torch.nn.functional as F
from augment.isda_oracle import KINDS, SIGMA, D, H, Largest, W, Y, by_loops, problem
from torch import nn

from spectail.augment import isda
from spectail.methods.metasaug.look_ahead import Augmented, covariance_gradient


class Given:
    """A backbone that stays: its features are given."""

    logits = None

    def __init__(self, features):
        self.features = features

    def step(self, slope, weight, lr):
        pass

    def meta(self, images):
        return images

    def turned(self, slope, weight):
        return None


META = torch.tensor([[0.5, 1], [2, -1]], dtype=D), torch.tensor([1, 0])


def look(weight, features, labels, cov, classes, slot, strength, lr, *, bias=None, shares=None, margin=None, meta=None):
    head = nn.Linear(weight.shape[1], len(weight)).double()
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)
    shares = torch.full((len(labels),), 1 / len(labels), dtype=D) if shares is None else shares
    margin = torch.zeros(len(weight)) if margin is None else margin
    images, meta_labels = (features, labels) if meta is None else meta
    batch = Augmented(labels, shares, margin, cov, classes, slot, strength)
    return covariance_gradient(head, Given(features), batch, lr, images, meta_labels, len(meta_labels))


def meta_loss(weight, bias, features, labels, cov, strength, lr, shares, margin, meta):
    """The whole of it from the formulas, with loops, for autograd to differentiate. ``cov`` is of all classes."""
    weight, bias = weight.detach().requires_grad_(), bias.detach().requires_grad_()
    raised = by_loops(features @ weight.T + bias, weight, labels, cov, strength)
    raised = raised - F.one_hot(labels, len(weight)) * margin
    loss = (shares * F.cross_entropy(raised, labels, reduction="none")).sum()
    gradients = torch.autograd.grad(loss, [weight, bias], create_graph=True)
    weight, bias = weight - lr * gradients[0], bias - lr * gradients[1]
    return F.cross_entropy(meta[0] @ weight.T + bias, meta[1])


def one(sigma):
    """The hand-made problem with this covariance of class 0."""
    return look(W, H, Y, sigma[None], torch.tensor([0]), torch.tensor([0]), 0.5, 0.1, meta=META)


def test_look_ahead_by_hand():
    gradient, loss = one(SIGMA)
    assert loss.item() == pytest.approx(0.39721, abs=1e-5)
    wanted = torch.tensor([[-0.01878, -0.03496], [-0.03496, 0.01678]], dtype=D)
    torch.testing.assert_close(gradient[0], wanted, atol=1e-5, rtol=0)
    moved = SIGMA - 0.1 * gradient[0]
    torch.testing.assert_close(
        moved, torch.tensor([[1.55743, 2.00350], [2.00350, 2.66499]], dtype=D), atol=1e-5, rtol=0
    )
    assert torch.linalg.eigvalsh(SIGMA - 10 * gradient[0]).min().item() == pytest.approx(-0.25870, abs=1e-5)
    assert torch.equal(gradient[0], gradient[0].T)


def test_look_ahead_by_finite_differences():
    gradient, _ = one(SIGMA)
    step = 1e-5
    for i, j in ((0, 0), (1, 1), (0, 1)):
        shift = torch.zeros(2, 2, dtype=D)
        shift[i, j] += step / 2
        shift[j, i] += step / 2  # along a symmetric direction
        slope = (one(SIGMA + shift)[1] - one(SIGMA - shift)[1]) / (2 * step)
        assert gradient[0, i, j].item() == pytest.approx(slope.item(), abs=1e-8)
    found, _ = look(W, H, Y, SIGMA.diagonal()[None], torch.tensor([0]), torch.tensor([0]), 0.5, 0.1, meta=META)
    for i in range(2):
        losses = []
        for sign in (1, -1):
            moved = SIGMA.diagonal().clone()
            moved[i] += sign * step
            losses.append(look(W, H, Y, moved[None], Y, Y, 0.5, 0.1, meta=META)[1])
        assert found[0, i].item() == pytest.approx((losses[0] - losses[1]).item() / (2 * step), abs=1e-8)


@KINDS
@pytest.mark.parametrize("most", [1, 2**19])
def test_look_ahead_against_autograd(kind, most, monkeypatch):
    """Class weights, margins, a bias, several images of a class, classes that are absent."""
    monkeypatch.setattr(isda, "MOST", most)
    _, weight, labels, cov = problem(kind, size=11)
    generator = torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=D)  # noqa: E731
    features, bias, meta = draw(11, 4), draw(6), (draw(7, 4), torch.randint(6, (7,), generator=generator))
    shares, margin = draw(11).abs(), draw(6).abs()
    classes, slot = labels.unique(return_inverse=True)
    leaf = cov.clone().requires_grad_()
    wanted = meta_loss(weight, bias, features, labels, leaf, 0.6, 0.3, shares, margin, meta)
    slope = torch.autograd.grad(wanted, leaf)[0]
    gradient, loss = look(weight, features, labels, cov[classes], classes, slot, 0.6, 0.3, bias=bias, shares=shares,
                          margin=margin, meta=meta)  # fmt: skip
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(gradient, slope[classes], rtol=1e-8, atol=1e-10)
    absent = torch.ones(6, dtype=torch.bool).scatter(0, classes, False)
    assert not slope[absent].any()  # so nothing is lost by correcting the classes of the batch only
    assert gradient.abs().max() > 1e-3


def test_from_zero_covariances_there_is_a_gradient_and_without_strength_none():
    assert one(0 * SIGMA)[0].abs().max() > 1e-3
    gradient, _ = look(W, H, Y, SIGMA[None], Y, Y, 0.0, 0.1, meta=META)
    assert not gradient.any()


@KINDS
def test_nothing_of_batch_times_classes_times_features_is_made(kind, monkeypatch):
    size, classes, width = 96, 80, 12
    monkeypatch.setattr(isda, "MOST", 4 * classes * width)
    _, weight, labels, cov = problem(kind, size, classes, width)
    present, slot = labels.unique(return_inverse=True)
    limit = max(size * classes, cov.numel(), 4 * classes * width)
    assert limit < len(present) * classes * min(width, classes) / 3  # a class at a time must not add up to it either
    with Largest() as seen:
        look(weight, torch.randn(size, width, dtype=D), labels, cov[present], present, slot, 0.5, 0.1)
    assert seen.numbers <= limit
