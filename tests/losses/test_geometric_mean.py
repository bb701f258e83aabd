"""Geometric-mean loss: printed numbers, class by class in plain arithmetic, and the gradient derived by hand."""

import io
import math

import pytest
import torch
import torch.nn.functional as F

from spectail import MixedTarget
from spectail.losses import BalancedSoftmaxLoss, GeometricMeanLoss

COUNTS = [100, 20, 5]
Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])


def probabilities(logits, counts):
    """Balanced softmax, one exponential at a time."""
    result = []
    for row in logits.tolist():
        terms = [count * math.exp(value) for count, value in zip(counts, row, strict=True)]
        result.append([term / sum(terms) for term in terms])
    return result


def slow(logits, mass, counts, divide="present", weight=None):
    """Masses (N lists of K) to the loss: mean probability of each class, then the mean log of them."""
    q, classes = probabilities(logits, counts), len(counts)
    weight = [1.0] * classes if weight is None else weight
    total = divisor = 0.0
    for c in range(classes):
        members = sum(row[c] for row in mass)
        if members > 0:
            recall = sum(row[c] * q[i][c] for i, row in enumerate(mass)) / members
            total -= weight[c] * math.log(recall)
            divisor += weight[c]
    return total / (divisor if divide == "present" else classes)


def one_hot(labels, classes):
    return [[float(k == y) for k in range(classes)] for y in labels.tolist()]


def random_batch(count=14, classes=5, seed=0, present=5):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=draw, dtype=torch.float64)
    return logits, torch.randint(present, (count,), generator=draw)


def close(value, wanted, limit=1e-11):
    assert float(value) == pytest.approx(wanted, rel=limit, abs=1e-14)


# Printed numbers


@pytest.mark.parametrize(("row", "wanted"), list(enumerate([0.95500, 0.41018, 0.02747, 0.05552])))
def test_the_probability_of_each_sample(row, wanted):
    """A batch of one sample: the loss is -log q."""
    loss = GeometricMeanLoss(COUNTS)(Z[row : row + 1], Y[row : row + 1])
    assert math.exp(-float(loss)) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(("label", "wanted"), list(enumerate([0.95500, 0.41018, 0.04150])))
def test_the_mean_probability_of_each_class(label, wanted):
    chosen = Y.eq(label)
    loss = GeometricMeanLoss(COUNTS)(Z[chosen], Y[chosen])
    assert math.exp(-float(loss)) == pytest.approx(wanted, abs=2e-5)


def test_the_batch_and_its_gradient():
    logits = Z.clone().requires_grad_()
    loss = GeometricMeanLoss(COUNTS)(logits, Y)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1.37312, abs=2e-5)
    assert logits.grad[2].tolist() == pytest.approx([0.09996, 0.00735, -0.10731], abs=2e-5)
    assert logits.grad[0].tolist() == pytest.approx([-0.01500, 0.01421, 0.00079], abs=2e-5)


def test_equal_counts_are_no_prior():
    assert float(GeometricMeanLoss([1, 1, 1])(Z, Y)) == pytest.approx(0.56123, abs=2e-5)
    assert float(GeometricMeanLoss([50, 50, 50])(Z, Y)) == pytest.approx(0.56123, abs=2e-5)


def test_an_absent_class():
    labels = torch.tensor([0, 0, 2, 2])
    for row, wanted in enumerate([0.95500, 0.55893, 0.02747, 0.05552]):
        one = GeometricMeanLoss(COUNTS)(Z[row : row + 1], labels[row : row + 1])
        assert math.exp(-float(one)) == pytest.approx(wanted, abs=2e-5)
    assert float(GeometricMeanLoss(COUNTS)(Z, labels)) == pytest.approx(1.73030, abs=2e-5)
    assert float(GeometricMeanLoss(COUNTS, divide="all")(Z, labels)) == pytest.approx(1.15353, abs=2e-5)


# Slow loops

KINDS = ("hard", "absent", "soft", "mixed", "ignored")


def batch_of(kind):
    """Logits, target, and the same labels as masses in lists."""
    logits, labels = random_batch(present=3 if kind == "absent" else 5)
    if kind in ("hard", "absent"):
        return logits, labels, one_hot(labels, 5)
    if kind == "soft":
        soft = torch.rand(14, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64).softmax(1)
        soft[:, 1] = 0.0  # a class without any mass
        return logits, soft, soft.tolist()
    if kind == "mixed":
        lam = torch.linspace(0, 1, 14, dtype=torch.float64)
        mass = [[0.0] * 5 for _ in range(14)]
        for i, (a, b, share) in enumerate(zip(labels.tolist(), labels.roll(1).tolist(), lam.tolist(), strict=True)):
            mass[i][a] += share
            mass[i][b] += 1 - share
        return logits, MixedTarget(labels, labels.roll(1), lam), mass
    mass = one_hot(labels, 5)
    labels = labels.clone()
    for i in (0, 3, 9):
        labels[i], mass[i] = -100, [0.0] * 5
    return logits, labels, mass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("divide", ["present", "all"])
@pytest.mark.parametrize("weight", [None, [0.25, 1.0, 0.5, 2.0, 4.0]])
def test_against_a_loop(kind, divide, weight):
    counts = [400, 90, 30, 8, 1]
    logits, target, mass = batch_of(kind)
    found = GeometricMeanLoss(counts, divide, weight=weight)(logits, target)
    close(found, slow(logits, mass, counts, divide, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_derived_by_hand(kind):
    """Sample i pulls with (1/C) m_ic q_ic / sum_j m_jc q_jc times (softmax - one-hot of c), summed over its labels."""
    counts = [400, 90, 30, 8, 1]
    logits, target, mass = batch_of(kind)
    q = probabilities(logits, counts)
    present = [c for c in range(5) if sum(row[c] for row in mass) > 0]
    wanted = [[0.0] * 5 for _ in q]
    for c in present:
        total = sum(row[c] * q[i][c] for i, row in enumerate(mass))
        for i, row in enumerate(mass):
            pull = row[c] * q[i][c] / total / len(present)
            for k in range(5):
                wanted[i][k] += pull * (q[i][k] - (k == c))
    logits.requires_grad_()
    GeometricMeanLoss(counts)(logits, target).backward()
    torch.testing.assert_close(logits.grad, torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-14)


# Identities


def test_one_sample_per_class_is_the_mean_balanced_softmax():
    counts = [400, 90, 30, 8, 1]
    logits, labels = random_batch(count=5)[0], torch.tensor([3, 0, 4, 1, 2])
    close(GeometricMeanLoss(counts)(logits, labels), float(BalancedSoftmaxLoss(counts)(logits, labels)))
    close(GeometricMeanLoss([6] * 5)(logits, labels), float(F.cross_entropy(logits, labels)))


def test_every_class_weighs_the_same_whatever_its_samples():
    """Copies of a sample change neither the recall of its class nor the loss."""
    copies = [0, 0, 0, 0, 0, 1, 2, 3]
    close(GeometricMeanLoss(COUNTS)(Z[copies], Y[copies]), float(GeometricMeanLoss(COUNTS)(Z, Y)))


def test_a_class_with_two_samples_has_one_recall():
    """The mean of probabilities, not of their logs: by Jensen never more than the mean loss of the samples."""
    loss = GeometricMeanLoss(COUNTS)
    halves = [float(loss(Z[row : row + 1], Y[row : row + 1])) for row in (2, 3)]
    assert float(loss(Z[2:], Y[2:])) < sum(halves) / 2 - 0.01


def test_dividing_by_all_classes_changes_the_step_not_the_direction():
    labels, gradients = torch.tensor([0, 0, 2, 2]), []
    for divide in ("present", "all"):
        logits = Z.clone().requires_grad_()
        GeometricMeanLoss(COUNTS, divide)(logits, labels).backward()
        gradients.append(logits.grad)
    torch.testing.assert_close(gradients[1], gradients[0] * 2 / 3, rtol=1e-12, atol=0)


def test_mixed_labels_equal_their_dense_form():
    mixed = MixedTarget(Y, Y.flip(0), torch.tensor([0.25, 1.0, 0.0, 0.625], dtype=torch.float64))
    close(GeometricMeanLoss(COUNTS)(Z, mixed), float(GeometricMeanLoss(COUNTS)(Z, mixed.dense(3))))


# Traps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_that_underflow(dtype):
    """exp(-2000) is zero in every precision; its log is not."""
    logits = torch.tensor([[0.0, -2000.0], [0.0, -2010.0], [0.0, 0.0]], dtype=dtype, requires_grad=True)
    loss = GeometricMeanLoss([3, 3])(logits, torch.tensor([1, 1, 0]))
    loss.backward()
    lost = 2000 - math.log((1 + math.exp(-10)) / 2)
    assert float(loss.detach()) == pytest.approx((lost + math.log(2)) / 2, rel=1e-6)
    share = 1 / (1 + math.exp(-10))  # of the better sample in the pull of its class
    assert logits.grad[:2, 1].tolist() == pytest.approx([-share / 2, -(1 - share) / 2], rel=1e-3)


@pytest.mark.parametrize("tiny", [1e-5, 1e-11, 1e-14, 1e-30])
def test_the_mean_of_a_class_does_not_depend_on_the_size_of_its_mass(tiny):
    """Soft labels of a teacher give every class a little: a mean over little mass is still a mean."""
    soft = torch.tensor([[1 - tiny, tiny, 0.0]] * 4, dtype=torch.float64)
    close(GeometricMeanLoss(COUNTS)(Z, soft), slow(Z, soft.tolist(), COUNTS))


def test_an_empty_batch_costs_nothing():
    """As every other loss of this room."""
    logits = Z[:0].clone().requires_grad_()
    loss = GeometricMeanLoss(COUNTS)(logits, Y[:0])
    loss.backward()
    assert float(loss.detach()) == 0


def test_weights_set_half_way_are_in_the_checkpoint():
    loss, resumed = GeometricMeanLoss(COUNTS), GeometricMeanLoss(COUNTS)
    loss.set_weight([0.25, 1.0, 4.0])
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file))
    close(resumed(Z, Y), slow(Z, one_hot(Y, 3), COUNTS, weight=[0.25, 1.0, 4.0]))
    resumed.load_state_dict(GeometricMeanLoss(COUNTS).state_dict())
    assert float(resumed(Z, Y)) == pytest.approx(1.37312, abs=2e-5)
