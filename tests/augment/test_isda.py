"""ISDA: shifted logits against the formula written as loops, and the bound by quadrature."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from augment.isda_oracle import KINDS, SIGMA, D, H, Largest, W, Y, by_loops, isda_logits, problem, table

from spectail.augment import isda
from spectail.augment.isda import quadratic_forms

# the logits


@pytest.mark.parametrize(
    ("kind", "wanted", "loss"),
    [("full", [1, 2.05556, 1.22222], 1.63363), ("diagonal", [1, 3.05556, -0.77778], 2.19502)],
)
def test_by_hand(kind, wanted, loss):
    raised = isda_logits(H @ W.T, W, Y, table(SIGMA, kind), 0.5)
    torch.testing.assert_close(raised[0].tolist(), [float(value) for value in wanted], atol=1e-5, rtol=0)
    assert F.cross_entropy(raised, Y).item() == pytest.approx(loss, abs=1e-5)
    assert F.cross_entropy(H @ W.T, Y).item() == pytest.approx(1.31818, abs=1e-5)


def test_the_loss_bounds_the_expected_one():
    """Gauss-Hermite quadrature over h ~ N(h, strength * Sigma), and over other covariances and strengths."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = torch.tensor(np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2))
    mass = torch.tensor(np.outer(weights, weights).ravel() / weights.sum() ** 2)

    def expected(sigma, strength):
        values, vectors = torch.linalg.eigh(strength * sigma)
        moved = H + (grid * values.clamp_min(0).sqrt()) @ vectors.T
        return mass @ F.cross_entropy(moved @ W.T, Y.expand(len(grid)), reduction="none")

    assert expected(SIGMA, 0.5).item() == pytest.approx(1.43456, abs=1e-5)
    generator = torch.Generator().manual_seed(0)
    for strength in (0.1, 0.5, 1.0):
        root = torch.randn(2, 2, generator=generator, dtype=D)
        for sigma in (SIGMA, root @ root.T):
            bound = F.cross_entropy(isda_logits(H @ W.T, W, Y, table(sigma, "full"), strength), Y)
            assert F.cross_entropy(H @ W.T, Y) < expected(sigma, strength) < bound


@KINDS
@pytest.mark.parametrize("most", [1, 60, 2**19])
def test_against_loops(kind, most, monkeypatch):
    monkeypatch.setattr(isda, "MOST", most)
    logits, weight, labels, cov = problem(kind)
    found = isda_logits(logits, weight, labels, cov, 0.7)
    torch.testing.assert_close(found, by_loops(logits, weight, labels, cov, 0.7), rtol=1e-12, atol=1e-12)
    rows = torch.arange(len(labels))
    assert torch.equal(found[rows, labels], logits[rows, labels])  # the label's own logit stays, to the last bit
    assert (found >= logits).all()  # rivals rise if the covariances are positive


@KINDS
def test_no_strength_or_no_spread_changes_nothing(kind):
    logits, weight, labels, cov = problem(kind)
    assert torch.equal(isda_logits(logits, weight, labels, cov, 0.0), logits)
    assert torch.equal(isda_logits(logits, weight, labels, 0 * cov, 0.7), logits)


def test_a_diagonal_is_a_full_matrix_with_zeros():
    logits, weight, labels, cov = problem("diagonal")
    full = isda_logits(logits, weight, labels, torch.diag_embed(cov), 0.7)
    torch.testing.assert_close(isda_logits(logits, weight, labels, cov, 0.7), full, rtol=1e-12, atol=1e-12)


@KINDS
@pytest.mark.parametrize("most", [30, 2**19])
def test_gradients(kind, most, monkeypatch):
    monkeypatch.setattr(isda, "MOST", most)
    _, weight, labels, cov = problem(kind, classes=4, width=3)
    classes = labels.unique()
    inputs = weight[:4].requires_grad_(), cov[classes].requires_grad_()
    assert torch.autograd.gradcheck(lambda w, s: quadratic_forms(w, classes, s), inputs)
    assert torch.autograd.gradgradcheck(lambda w, s: quadratic_forms(w, classes, s), inputs)


@KINDS
def test_gradients_are_those_of_the_loops(kind):
    logits, weight, labels, cov = problem(kind)
    found = []
    for form in (isda_logits, by_loops):
        leaves = [value.clone().requires_grad_() for value in (logits, weight, cov)]
        F.cross_entropy(form(leaves[0], leaves[1], labels, leaves[2], 0.7), labels).backward()
        found.append([leaf.grad for leaf in leaves])
    for mine, slow in zip(*found, strict=True):
        torch.testing.assert_close(mine, slow, rtol=1e-10, atol=1e-12)


@KINDS
def test_nothing_of_batch_times_classes_times_features_is_made(kind, monkeypatch):
    size, classes, width = 96, 80, 12
    monkeypatch.setattr(isda, "MOST", 4 * classes * width)
    logits, weight, labels, cov = problem(kind, size, classes, width)
    present = labels.unique()
    limit = max(size * classes, cov.numel(), 4 * classes * width)
    assert limit < len(present) * classes * min(width, classes) / 3  # a class at a time must not add up to it either
    with Largest() as seen:
        leaves = [value.clone().requires_grad_() for value in (logits, weight, cov)]
        F.cross_entropy(isda_logits(leaves[0], leaves[1], labels, leaves[2], 0.5), labels).backward()
    assert seen.numbers <= limit
    with Largest() as seen:
        by_einsum = torch.einsum("nka,nka->nk", weight - weight[labels][:, None], weight - weight[labels][:, None])
    assert seen.numbers > limit  # the check can fail
    assert by_einsum.shape == (size, classes)


def test_what_is_kept_for_the_backward_pass_is_small():
    """Not K x A numbers for each class of the batch, in pieces or at once."""
    logits, weight, labels, cov = problem("full", 96, 80, 12)
    kept = {}

    def pack(value):
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes() // value.element_size()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        isda_logits(logits, weight.requires_grad_(), labels, cov, 0.5)
    assert sum(kept.values()) < 2 * (cov.numel() + weight.numel() + logits.numel())
