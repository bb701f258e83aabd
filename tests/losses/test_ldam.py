"""LDAM: margins, losses and gradients from printed numbers, loops and torch's cross entropy."""

import math

import pytest
import torch
import torch.nn.functional as F

from spectail import MixedTarget
from spectail.data.longtail import exponential
from spectail.losses import LDAMLoss, effective_number_weights
from spectail.losses.ldam import margins
from spectail.models.heads import CosineHead

COUNTS = [100, 20, 5]
COSINES = torch.tensor([[0.6, 0.1, -0.2], [0.3, 0.5, 0.0], [0.4, 0.2, 0.35], [0.1, 0.2, 0.3]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])


def cost(row, label, margin, scale):
    moved = [scale * (value - margin[k] * (k == label)) for k, value in enumerate(row)]
    return math.log(sum(math.exp(value - moved[label]) for value in moved))


def slow_margins(counts, largest=0.5):
    return [largest * (min(counts) / count) ** 0.25 for count in counts]


def random_batch(count=12, classes=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    cosines = 2 * torch.rand(count, classes, generator=draw, dtype=torch.float64) - 1
    return cosines, torch.randint(classes, (count,), generator=draw)


def close(value, wanted, limit=1e-9):
    # torch's softplus is linear from 20 on, which costs 2e-9
    assert float(value) == pytest.approx(wanted, rel=limit, abs=3e-9)


# Printed numbers


def test_printed_margins():
    assert margins(COUNTS).tolist() == pytest.approx([0.23644, 0.35355, 0.50000], abs=2e-5)
    assert margins(exponential(500, 100, imbalance=100))[[0, 50, 99]].tolist() == pytest.approx(
        [0.15811, 0.28405, 0.50000], abs=2e-5
    )


@pytest.mark.parametrize(("row", "wanted"), list(enumerate([0.00037, 4.61666, 16.50248, 12.04859])))
def test_each_sample(row, wanted):
    assert float(LDAMLoss(COUNTS)(COSINES[row : row + 1], Y[row : row + 1])) == pytest.approx(wanted, abs=2e-5)


def test_the_batch_at_two_scales():
    assert float(LDAMLoss(COUNTS)(COSINES, Y)) == pytest.approx(8.29202, abs=2e-5)
    assert float(LDAMLoss(COUNTS, scale=10.0)(COSINES, Y)) == pytest.approx(2.95008, abs=2e-5)


@pytest.mark.parametrize(("average", "wanted"), [("weights", 12.91332), ("samples", 17.13254)])
def test_deferred_re_weighting(average, wanted):
    """Weight one until the switch, effective-number weights after it, torch's weighted mean unless told otherwise."""
    loss = LDAMLoss(COUNTS, average=average)
    assert float(loss(COSINES, Y)) == pytest.approx(8.29202, abs=2e-5)
    loss.set_weight(effective_number_weights(COUNTS, 0.9999))
    assert float(loss(COSINES, Y)) == pytest.approx(wanted, abs=2e-5)


def test_the_head_gives_the_cosines():
    """x = (3, 4): the lengths of features and class vectors drop out, and there is no bias."""
    head = CosineHead(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]))
    cosines = head(torch.tensor([[3.0, 4.0]], dtype=torch.float64)) / head.scale
    assert cosines[0].tolist() == pytest.approx([0.6, 0.8, 0.14142], abs=2e-5)
    # what inference ranks is scale times cosine, without margin: the order is the same, the loss is not
    assert head(torch.tensor([[3.0, 4.0]])).argmax() == cosines.argmax() == 1


# Slow loops


@pytest.mark.parametrize("largest", [0.0, 0.3, 0.5])
def test_margins_against_the_formula(largest):
    counts = exponential(500, 100, imbalance=100)
    found = margins(counts, largest)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(slow_margins(counts, largest), rel=1e-13)


def test_margins_of_equal_counts_are_the_largest():
    assert margins([7, 7, 7], 0.3).tolist() == pytest.approx([0.3] * 3, rel=1e-15)
    loss, (cosines, labels) = LDAMLoss([7] * 4, max_margin=0.3), random_batch()
    moved = cosines - 0.3 * F.one_hot(labels, 4).double()
    close(loss(cosines, labels), float(F.cross_entropy(30 * moved, labels)))


@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("weight", [None, [0.25, 1.0, 2.0, 4.0]])
def test_hard_labels_against_a_loop(scale, weight):
    counts = [300, 40, 6, 1]
    cosines, labels = random_batch()
    margin = slow_margins(counts, 0.4)
    factor = [1.0] * 4 if weight is None else weight
    total = sum(
        factor[y] * cost(row, y, margin, scale) for row, y in zip(cosines.tolist(), labels.tolist(), strict=True)
    )
    found = LDAMLoss(counts, max_margin=0.4, scale=scale, weight=weight)(cosines, labels)
    close(found, total / sum(factor[y] for y in labels.tolist()))


def test_soft_and_mixed_labels_cost_the_expected_label():
    """Each label moves its own logit only: two labels of a mixed image are two different softmaxes."""
    counts = [300, 40, 6, 1]
    cosines, a = random_batch(seed=1)
    margin, rows = slow_margins(counts), cosines.tolist()
    soft = torch.rand(12, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(1)
    wanted = sum(soft[i, k].item() * cost(row, k, margin, 30.0) for i, row in enumerate(rows) for k in range(4))
    close(LDAMLoss(counts)(cosines, soft), wanted / 12)
    b, lam = a.roll(1), torch.linspace(0, 1, 12, dtype=torch.float64)
    wanted = sum(
        lam[i].item() * cost(row, int(a[i]), margin, 30.0) + (1 - lam[i].item()) * cost(row, int(b[i]), margin, 30.0)
        for i, row in enumerate(rows)
    )
    close(LDAMLoss(counts)(cosines, MixedTarget(a, b, lam)), wanted / 12)


def test_without_margin_it_is_cross_entropy_of_scaled_cosines():
    cosines, labels = random_batch()
    close(LDAMLoss([9, 5, 2, 1], max_margin=0.0)(cosines, labels), float(F.cross_entropy(30 * cosines, labels)))


# Gradients


def test_the_gradient_is_that_of_cross_entropy_on_moved_cosines():
    cosines, labels = random_batch()
    counts = [300, 40, 6, 1]
    shift = torch.tensor(slow_margins(counts), dtype=torch.float64)[labels][:, None] * F.one_hot(labels, 4)
    wanted = 30 * ((30 * (cosines - shift)).softmax(1) - F.one_hot(labels, 4)) / 12
    cosines.requires_grad_()
    LDAMLoss(counts)(cosines, labels).backward()
    torch.testing.assert_close(cosines.grad, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_the_gradient_at_a_tie(label):
    """All cosines equal: p of the label is e / (e + 2) with e = exp(-scale * margin)."""
    cosines = torch.full((1, 3), 0.25, dtype=torch.float64, requires_grad=True)
    LDAMLoss(COUNTS, scale=4.0)(cosines, torch.tensor([label])).backward()
    e = math.exp(-4.0 * slow_margins(COUNTS)[label])
    wanted = [4.0 * (e / (e + 2) - 1) if k == label else 4.0 / (e + 2) for k in range(3)]
    assert cosines.grad[0].tolist() == pytest.approx(wanted, rel=1e-10)


def test_a_rarer_class_pays_more_for_the_same_cosine():
    cosines = torch.zeros(1, 3, dtype=torch.float64)
    losses = [float(LDAMLoss(COUNTS)(cosines, torch.tensor([label]))) for label in range(3)]
    assert losses[0] < losses[1] < losses[2]
