"""ISDA: shifted logits against the formula written as loops, the bound by quadrature, and the gradient of the
covariances one step ahead against autograd and finite differences."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spectail.augment import isda
from spectail.augment.isda import covariance_gradient, isda_logits, quadratic_forms

KINDS = pytest.mark.parametrize("kind", ["full", "diagonal"])
D = torch.float64
W = torch.tensor([[1, 0], [0, 1], [-1, -1]], dtype=D)
H, Y = torch.tensor([[1, 2]], dtype=D), torch.tensor([0])
SIGMA = torch.tensor([[14 / 9, 2], [2, 8 / 3]], dtype=D)


def table(sigma, kind, classes=3):
    """Covariances of all classes, of which class 0 has this one and the others have what must not be used."""
    found = torch.full((classes, 2, 2), 77.0, dtype=D)
    found[0] = sigma
    return found if kind == "full" else found.diagonal(dim1=1, dim2=2).contiguous()


def problem(kind, size=9, classes=6, width=4, seed=0):
    """Random logits, class vectors, labels (some classes several times, some never) and covariances."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=D)  # noqa: E731
    root = draw(classes, width, width)
    cov = root @ root.transpose(1, 2)
    cov = cov if kind == "full" else cov.diagonal(dim1=1, dim2=2).contiguous()
    labels = torch.randint(classes - 1, (size,), generator=generator)
    labels[:2] = labels[2]
    return draw(size, classes), draw(classes, width), labels, cov


def by_loops(logits, weight, labels, cov, strength):
    found = logits.clone()
    for i, y in enumerate(labels.tolist()):
        sigma = cov[y] if cov.ndim == 3 else torch.diag(cov[y])
        for c in range(len(weight)):
            away = weight[c] - weight[y]
            found[i, c] += strength / 2 * (away @ sigma @ away)
    return found


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
def test_precision(kind):
    logits, weight, labels, cov = problem(kind)
    wanted = isda_logits(logits, weight, labels, cov, 0.7)
    single = isda_logits(logits.float(), weight.float(), labels, cov.float(), 0.7)
    assert (wanted.dtype, single.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(single.double(), wanted, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        half = isda_logits(logits.bfloat16(), weight.float(), labels, cov.float(), 0.7)
    assert half.dtype == torch.float32
    shift, exact = half - logits.bfloat16().float(), wanted - logits
    torch.testing.assert_close(shift.double(), exact, rtol=1e-4, atol=1e-3)  # not rounded to eight bits


def test_wrong_shapes_are_refused():
    logits, weight, labels, cov = problem("full")
    with pytest.raises(ValueError, match=r"logits must be \(N, K\) and weight \(K, A\); got \(9, 5\) and \(6, 4\)"):
        isda_logits(logits[:, :5], weight, labels, cov, 0.5)
    with pytest.raises(ValueError, match=r"cov must be \(6, 4, 4\) or \(6, 4\) .*; got \(6, 3\)"):
        isda_logits(logits, weight, labels, cov[:, 0, :3], 0.5)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes; a view of nothing new does not count."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        made = [item for item in tree_leaves(found) if isinstance(item, torch.Tensor)]
        self.numbers = max([self.numbers, *(item.untyped_storage().nbytes() // item.element_size() for item in made)])
        return found


@KINDS
def test_nothing_of_batch_times_classes_times_features_is_made(kind, monkeypatch):
    size, classes, width = 96, 80, 12
    monkeypatch.setattr(isda, "MOST", 4 * classes * width)
    logits, weight, labels, cov = problem(kind, size, classes, width)
    present, place = labels.unique(return_inverse=True)
    limit = max(size * classes, cov.numel(), 4 * classes * width)
    assert limit < len(present) * classes * min(width, classes) / 3  # a class at a time must not add up to it either
    with Largest() as seen:
        leaves = [value.clone().requires_grad_() for value in (logits, weight, cov)]
        F.cross_entropy(isda_logits(leaves[0], leaves[1], labels, leaves[2], 0.5), labels).backward()
        look(weight, torch.randn(size, width, dtype=D), labels, cov[present], present, place, 0.5, 0.1)
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


# looking ahead


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


def look(
    weight, features, labels, cov, classes, place, strength, lr, *, bias=None, shares=None, margin=None, meta=None
):
    head = nn.Linear(weight.shape[1], len(weight)).double()
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)
    shares = torch.full((len(labels),), 1 / len(labels), dtype=D) if shares is None else shares
    margin = torch.zeros(len(weight)) if margin is None else margin
    images, meta_labels = (features, labels) if meta is None else meta
    return covariance_gradient(
        head, Given(features), labels, shares, margin, cov, classes, place, strength, lr, images, meta_labels,
        len(meta_labels),
    )  # fmt: skip


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
    classes, place = labels.unique(return_inverse=True)
    leaf = cov.clone().requires_grad_()
    wanted = meta_loss(weight, bias, features, labels, leaf, 0.6, 0.3, shares, margin, meta)
    slope = torch.autograd.grad(wanted, leaf)[0]
    gradient, loss = look(weight, features, labels, cov[classes], classes, place, 0.6, 0.3, bias=bias, shares=shares,
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
