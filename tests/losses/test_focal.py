"""Focal loss against printed numbers, one exponential at a time, and the gradient derived by hand."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from all_pairs import all_pairs

from spectail import MixedTarget
from spectail.losses import ClassBalancedLoss, CrossEntropyLoss, FocalLoss, effective_number_weights

COUNTS = [100, 20, 5]
Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])


def softmax_focal(row, label, gamma):
    p = math.exp(row[label]) / sum(map(math.exp, row))
    return (1 - p) ** gamma * -math.log(p)


def sigmoid_focal(row, label, gamma, alpha=None):
    total = 0.0
    for k, value in enumerate(row):
        s = 1 / (1 + math.exp(-value))
        q = s if k == label else 1 - s
        factor = 1.0 if alpha is None else (alpha if k == label else 1 - alpha)
        total += factor * (1 - q) ** gamma * -math.log(q)
    return total


def random_batch(count=12, classes=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=draw, dtype=torch.float64)
    return logits, torch.randint(classes, (count,), generator=draw)


def close(value, wanted, limit=1e-11):
    assert float(value) == pytest.approx(wanted, rel=limit, abs=1e-15)


# Printed numbers


@pytest.mark.parametrize(("row", "wanted"), list(enumerate([0.05174, 0.16531, 0.81770, 0.46659])))
def test_each_sample_at_gamma_one(row, wanted):
    assert float(FocalLoss()(Z[row : row + 1], Y[row : row + 1])) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(("gamma", "wanted"), [(0.0, 0.67585), (1.0, 0.37533), (2.0, 0.22517)])
def test_the_softmax_form_of_the_batch(gamma, wanted):
    assert float(FocalLoss(gamma)(Z, Y)) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(
    ("gamma", "alpha", "wanted"),
    [(0.0, None, 1.90105), (1.0, None, 1.00591), (2.0, None, 0.57088), (2.0, 0.25, 0.40832)],
)
def test_the_sigmoid_form_of_the_batch(gamma, alpha, wanted):
    assert float(FocalLoss(gamma, form="sigmoid", alpha=alpha)(Z, Y)) == pytest.approx(wanted, abs=2e-5)


def test_class_weights_multiply_the_loss_and_stay_out_of_p():
    """A released script raises p to the power of the weight; its number is printed too, and must not come out."""
    weight = effective_number_weights(COUNTS, 0.9999)
    found = float(FocalLoss(weight=weight, average="samples")(Z, Y))
    assert found == pytest.approx(0.76604, abs=2e-5)
    wrong = 0.0
    for row, label in zip(Z.tolist(), Y.tolist(), strict=True):
        cost = float(weight[label]) * -math.log(math.exp(row[label]) / sum(map(math.exp, row)))
        wrong += (1 - math.exp(-cost)) * cost / 4
    assert wrong == pytest.approx(1.05833, abs=2e-5)  # else this test would not know the mistake


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_weights_are_a_factor_of_each_sample(form):
    loss = FocalLoss(2.0, form=form, weight=[0.25, 1.0, 4.0], average="samples")
    for row, label in enumerate(Y.tolist()):
        plain = FocalLoss(2.0, form=form)(Z[row : row + 1], Y[row : row + 1])
        close(loss(Z[row : row + 1], Y[row : row + 1]), [0.25, 1.0, 4.0][label] * float(plain))


# Slow loops


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.7])
@pytest.mark.parametrize("alpha", ["softmax", None, 0.25])
def test_against_a_loop(gamma, alpha):
    logits, labels = random_batch()
    pairs = list(zip(logits.tolist(), labels.tolist(), strict=True))
    if alpha == "softmax":
        found, each = FocalLoss(gamma)(logits, labels), [softmax_focal(row, y, gamma) for row, y in pairs]
    else:
        found = FocalLoss(gamma, form="sigmoid", alpha=alpha)(logits, labels)
        each = [sigmoid_focal(row, y, gamma, alpha) for row, y in pairs]
    close(found, sum(each) / len(each))


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_soft_and_mixed_labels_cost_the_expected_label(form):
    logits, a = random_batch()
    b, lam = a.flip(0), torch.linspace(0, 1, len(a), dtype=torch.float64)
    soft = torch.rand(12, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(1)
    one = softmax_focal if form == "softmax" else sigmoid_focal
    rows = logits.tolist()
    wanted = sum(soft[i, k].item() * one(row, k, 1.5) for i, row in enumerate(rows) for k in range(5)) / 12
    close(FocalLoss(1.5, form=form)(logits, soft), wanted)
    wanted = sum(
        lam[i].item() * one(row, int(a[i]), 1.5) + (1 - lam[i].item()) * one(row, int(b[i]), 1.5)
        for i, row in enumerate(rows)
    )
    close(FocalLoss(1.5, form=form)(logits, MixedTarget(a, b, lam)), wanted / 12)


# Other people's code


def test_gamma_zero_is_cross_entropy_or_summed_binary_cross_entropy():
    logits, labels = random_batch()
    close(FocalLoss(0.0)(logits, labels), float(F.cross_entropy(logits, labels)))
    one_hot = F.one_hot(labels, 5).double()
    binary = F.binary_cross_entropy(logits.sigmoid(), one_hot, reduction="sum") / 12
    close(FocalLoss(0.0, form="sigmoid")(logits, labels), float(binary))


def test_the_sum_over_classes_is_not_averaged():
    """Divided by the images, not by images times classes."""
    for classes in (3, 30):
        loss = float(FocalLoss(0.0, form="sigmoid")(torch.zeros(4, classes), torch.zeros(4, dtype=torch.long)))
        assert loss == pytest.approx(classes * math.log(2), rel=1e-6)


def test_the_bias_that_starts_at_one_over_k():
    """With the bias of -log(K - 1) every class starts at probability 1/K, and the rare positives do not drown."""
    logits = torch.full((1, 100), -4.59512, dtype=torch.float64)
    wanted = math.log(100) - 99 * math.log(0.99)
    assert float(FocalLoss(0.0, form="sigmoid")(logits, torch.tensor([7]))) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_class_balanced_base_is_this_loss(gamma):
    logits, labels = random_batch(classes=3)
    uniform = ClassBalancedLoss([9, 9, 9], base="focal", gamma=gamma)
    close(uniform(logits, labels), float(FocalLoss(gamma, form="sigmoid")(logits, labels)))


# Gradients


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_the_softmax_gradient_derived_by_hand(gamma):
    """d/dz_j of (1 - p)^g (-log p) is (g p (1 - p)^(g - 1) log p - (1 - p)^g) (1[j = y] - p_j)."""
    logits, labels = random_batch()
    wanted = []
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        total = sum(map(math.exp, row))
        probabilities = [math.exp(value) / total for value in row]
        p = probabilities[y]
        outer = gamma * p * (1 - p) ** (gamma - 1) * math.log(p) - (1 - p) ** gamma
        wanted.append([outer * ((k == y) - probabilities[k]) / 12 for k in range(5)])
    logits.requires_grad_()
    FocalLoss(gamma)(logits, labels).backward()
    torch.testing.assert_close(logits.grad, torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-14)


def test_the_sigmoid_gradient_derived_by_hand():
    """With q = sigmoid(t z), t = 1 for the label and -1 else: dL/dz = t (1 - q)^g (g q log q - (1 - q))."""
    logits, labels = random_batch()
    logits.requires_grad_()
    FocalLoss(2.0, form="sigmoid", alpha=0.25)(logits, labels).backward()
    for i, (row, y) in enumerate(zip(logits.tolist(), labels.tolist(), strict=True)):
        for k, value in enumerate(row):
            sign, alpha = (1, 0.25) if k == y else (-1, 0.75)
            q = 1 / (1 + math.exp(-sign * value))
            wanted = alpha * sign * (1 - q) ** 2 * (2 * q * math.log(q) - (1 - q)) / 12
            assert float(logits.grad[i, k]) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize(
    ("form", "gamma", "size"),
    all_pairs(["softmax", "sigmoid"], [0.1, 0.5, 0.9, 1.0, 2.0], [5.0, 17.0, 20.0, 100.0, 1000.0]),
)
def test_sure_and_right_has_a_finite_gradient_below_power_one(form, gamma, size):
    """p rounds to 1 in float32 from about 17 on, where the derivative of (1 - p)^gamma is infinite."""
    logits = torch.tensor([[size, 0.0, 0.0], [size, -size, -size]], requires_grad=True)
    loss = FocalLoss(gamma, form=form)(logits, torch.tensor([0, 0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_surely_wrong_is_linear_in_the_logit(form):
    """Naive log(1 + exp(-z)) overflows below -88; the loss of a sure error grows as the logit does."""
    losses = [
        float(
            FocalLoss(2.0, form=form)(torch.tensor([[-size, 0.0 if form == "softmax" else -size]]), torch.tensor([0]))
        )
        for size in (100.0, 300.0)
    ]
    assert losses == pytest.approx([100.0, 300.0], rel=1e-5)


def test_more_gamma_counts_less_and_hard_samples_keep_their_share():
    easy, hard = torch.tensor([[6.0, 0.0]]), torch.tensor([[-6.0, 0.0]])
    label = torch.tensor([0])
    ratios = [float(FocalLoss(g)(easy, label) / FocalLoss(g)(hard, label)) for g in (0.0, 0.5, 1.0, 2.0)]
    assert all(later < sooner / 5 for sooner, later in itertools.pairwise(ratios))
    assert float(FocalLoss(2.0)(hard, label)) == pytest.approx(float(CrossEntropyLoss()(hard, label)), rel=1e-2)
