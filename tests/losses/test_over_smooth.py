"""Label over-smoothing against torch's label smoothing, printed numbers, and where its optimum lies."""

import math

import pytest
import torch
import torch.nn.functional as F

from spectail import MixedTarget
from spectail.losses import CrossEntropyLoss, LabelOverSmoothLoss

Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])


def cost(row, label, delta):
    highest = max(row)
    total = highest + math.log(sum(math.exp(value - highest) for value in row))
    targets = [delta / len(row) + (1 - delta) * (k == label) for k in range(len(row))]
    return sum(share * (total - value) for share, value in zip(targets, row, strict=True))


def random_batch(count=12, classes=6, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=draw, dtype=torch.float64)
    return logits, torch.randint(classes, (count,), generator=draw)


def close(value, wanted, limit=1e-11):
    assert float(value) == pytest.approx(wanted, rel=limit)


def targets_of(delta, classes):
    """The targets behind the loss: at equal logits the gradient is 1/K - t."""
    logits = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    LabelOverSmoothLoss(delta)(logits, torch.tensor([1])).backward()
    return (1 / classes - logits.grad[0]).tolist()


# Printed numbers


@pytest.mark.parametrize(("row", "wanted"), list(enumerate([1.71131, 1.27011, 1.18027, 1.12239])))
def test_each_sample(row, wanted):
    assert float(LabelOverSmoothLoss()(Z[row : row + 1], Y[row : row + 1])) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(("delta", "wanted"), [(0.98, 1.32102), (0.9, 1.26835), (0.1, 0.74169), (0.0, 0.67585)])
def test_the_batch(delta, wanted):
    assert float(LabelOverSmoothLoss(delta)(Z, Y)) == pytest.approx(wanted, abs=2e-5)


def test_the_default_is_over_smooth():
    assert float(LabelOverSmoothLoss()(Z, Y)) == pytest.approx(1.32102, abs=2e-5)


def test_a_sure_sample_is_pushed_back():
    """The true class of the first sample gets a positive gradient: it is already more than 1.04/3 sure."""
    logits = Z.clone().requires_grad_()
    LabelOverSmoothLoss()(logits, Y).backward()
    assert logits.grad[0].tolist() == pytest.approx([0.10973, -0.03784, -0.07189], abs=2e-5)


def test_the_targets():
    assert targets_of(0.98, 3) == pytest.approx([0.326667, 0.346667, 0.326667], abs=2e-6)
    found = targets_of(0.98, 100)
    assert found[1] == pytest.approx(0.0298, abs=1e-9)
    assert found[:1] + found[2:] == pytest.approx([0.0098] * 99, abs=1e-9)


@pytest.mark.parametrize(
    ("classes", "delta", "gap"),
    [(100, 0.98, 1.11213), (1000, 0.98, 3.06377), (1000, 0.99, 2.40704), (1000, 0.998, 1.09995)],
)
def test_the_ideal_gap_between_logits(classes, delta, gap):
    """Found by descent, and from the targets: the optimum has p = t."""
    found = targets_of(delta, classes)
    assert math.log(found[1] / found[0]) == pytest.approx(gap, abs=2e-5)
    logits = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
    loss, label = LabelOverSmoothLoss(delta), torch.tensor([0])
    search = torch.optim.LBFGS(
        [logits], max_iter=200, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def step():
        search.zero_grad()
        value = loss(logits, label)
        value.backward()
        return value

    search.step(step)
    assert float(logits.detach()[0, 0] - logits.detach()[0, 1:].mean()) == pytest.approx(gap, abs=2e-5)


def test_the_floor_is_the_entropy_of_the_target():
    """The loss looks flat at 4.6 with 100 classes: nothing is lower than 4.59223."""
    best = torch.zeros(1, 100, dtype=torch.float64)
    best[0, 3] = 1.11213
    loss, label = LabelOverSmoothLoss(), torch.tensor([3])
    assert float(loss(best, label)) == pytest.approx(4.59223, abs=2e-5)
    assert float(loss(torch.zeros(1, 100, dtype=torch.float64), label)) == pytest.approx(4.60517, abs=2e-5)
    other = best + 0.1 * random_batch(50, 100)[0]
    assert all(float(loss(row[None], label)) > float(loss(best, label)) for row in other)


# torch and loops


@pytest.mark.parametrize("delta", [0.0, 0.1, 0.9, 0.98, 1.0])
def test_torch_smooths_the_same(delta):
    logits, labels = random_batch()
    first, second = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    wanted = torch.nn.CrossEntropyLoss(label_smoothing=delta)(first, labels)
    loss = LabelOverSmoothLoss(delta)(second, labels)
    wanted.backward()
    loss.backward()
    close(loss.detach(), float(wanted.detach()))
    torch.testing.assert_close(second.grad, first.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("delta", [0.1, 0.98])
def test_torch_smooths_soft_labels_the_same(delta):
    logits, a = random_batch()
    soft = torch.rand(12, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(1)
    smooth = torch.nn.CrossEntropyLoss(label_smoothing=delta)
    close(LabelOverSmoothLoss(delta)(logits, soft), float(smooth(logits, soft)))
    mixed = MixedTarget(a, a.roll(1), torch.linspace(0, 1, 12, dtype=torch.float64))
    close(LabelOverSmoothLoss(delta)(logits, mixed), float(smooth(logits, mixed.dense(6))))


@pytest.mark.parametrize("average", ["weights", "samples"])
def test_class_weights_are_those_of_the_label(average):
    """torch would weigh every smoothed term by its own class; here the weight belongs to the sample."""
    logits, labels = random_batch(classes=3)
    weight = [0.25, 1.0, 4.0]
    pairs = list(zip(logits.tolist(), labels.tolist(), strict=True))
    total = sum(weight[y] * cost(row, y, 0.98) for row, y in pairs)
    divisor = 12 if average == "samples" else sum(weight[y] for _, y in pairs)
    close(LabelOverSmoothLoss(weight=weight, average=average)(logits, labels), total / divisor)


def test_no_smoothing_is_cross_entropy_and_full_smoothing_ignores_the_label():
    logits, labels = random_batch()
    close(LabelOverSmoothLoss(0.0)(logits, labels), float(F.cross_entropy(logits, labels)))
    close(LabelOverSmoothLoss(0.0)(logits, labels), float(CrossEntropyLoss()(logits, labels)))
    close(LabelOverSmoothLoss(1.0)(logits, labels), float(LabelOverSmoothLoss(1.0)(logits, labels.flip(0))))
    close(LabelOverSmoothLoss(1.0)(logits, labels), float(-logits.log_softmax(1).mean()))


def test_bfloat16_logits_are_smoothed_in_single_precision():
    """Between the start (ln 100) and the floor lies 0.013, less than one step of bfloat16 at 4.6."""
    logits = torch.zeros(1, 100, dtype=torch.bfloat16)
    logits[0, 3] = 1.109375
    start = LabelOverSmoothLoss()(torch.zeros(1, 100, dtype=torch.bfloat16), torch.tensor([3]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = LabelOverSmoothLoss()(logits, torch.tensor([3]))
    assert float(found) == pytest.approx(4.59223, abs=2e-5)
    assert 0.012 < float(start) - float(found) < 0.014
