"""Class-balanced loss: weights from exact arithmetic, bases from torch's own losses and from loops."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
import torch.nn.functional as F

from spectail import ClassCounts, MixedTarget
from spectail.data.longtail import exponential
from spectail.losses import ClassBalancedLoss, CrossEntropyLoss, effective_number_weights

COUNTS = [100, 20, 5]
Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])
BASES = ("softmax", "sigmoid", "focal", "softmax-bce")
base = pytest.mark.parametrize("base", BASES)


def exact_weights(counts, beta):
    """(1 - beta) / (1 - beta^n) scaled to K, with sixty digits."""
    with localcontext() as context:
        context.prec = 60
        raw = [(1 - Decimal(beta)) / (1 - Decimal(beta) ** count) for count in counts]
        return [float(value * len(counts) / sum(raw)) for value in raw]


def cost(row, label, base, gamma):
    """The unweighted loss of one sample, as its definition reads."""
    if base in ("softmax", "softmax-bce"):
        total = sum(map(math.exp, row))
        p = [math.exp(value) / total for value in row]
        if base == "softmax":
            return -math.log(p[label])
        return -sum(math.log(p[k] if k == label else 1 - p[k]) for k in range(len(p))) / len(p)
    result = 0.0
    for k, value in enumerate(row):
        q = 1 / (1 + math.exp(-value if k == label else value))
        result += (1 - q) ** (gamma if base == "focal" else 0.0) * -math.log(q)
    return result


def random_batch(count=12, classes=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=draw, dtype=torch.float64)
    return logits, torch.randint(classes, (count,), generator=draw)


def close(value, wanted, limit=1e-11):
    assert float(value) == pytest.approx(wanted, rel=limit, abs=1e-15)


# The weights


@pytest.mark.parametrize(
    ("beta", "wanted"),
    [
        (0.9, (0.65499, 0.74562, 1.59940)),
        (0.99, (0.17225, 0.59968, 2.22807)),
        (0.9999, (0.11590, 0.57717, 2.30694)),
    ],
)
def test_printed_weights(beta, wanted):
    assert effective_number_weights(COUNTS, beta).tolist() == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(
    ("beta", "wanted"), [(0.99, (0.19652, 0.51013, 3.98352)), (0.9999, (0.04488, 0.45706, 4.37831))]
)
def test_printed_weights_of_cifar100_lt(beta, wanted):
    counts = exponential(500, 100, imbalance=100)
    assert sum(counts) == 10847
    weights = effective_number_weights(counts, beta)
    assert weights[[0, 50, 99]].tolist() == pytest.approx(wanted, abs=2e-5)


def test_printed_effective_numbers():
    """Weights are inverse effective numbers, so w_c E_c is the same for every class: K / sum of 1/E."""
    numbers = torch.tensor([99.50661, 19.98101, 4.99900], dtype=torch.float64)
    products = effective_number_weights(COUNTS, 0.9999) * numbers
    assert products.tolist() == pytest.approx([3 / float((1 / numbers).sum())] * 3, abs=2e-5)


@pytest.mark.parametrize("beta", [1e-3, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999999, 1 - 2**-50])
def test_weights_against_sixty_digits(beta):
    """1 - beta^n loses its digits for rare classes when written as it reads."""
    counts = [1, 2, 3, 17, 500, 4980, 1_000_000]
    assert effective_number_weights(counts, beta).tolist() == pytest.approx(exact_weights(counts, beta), rel=1e-12)


def test_the_two_ends_of_beta():
    assert effective_number_weights(COUNTS, 0.0).tolist() == [1.0, 1.0, 1.0]
    inverse = [1 / count for count in COUNTS]
    wanted = [3 * value / sum(inverse) for value in inverse]
    assert effective_number_weights(COUNTS, 1.0).tolist() == pytest.approx(wanted, rel=1e-14)
    assert effective_number_weights(COUNTS, 1 - 1e-12).tolist() == pytest.approx(wanted, rel=1e-9)
    assert effective_number_weights(COUNTS, 1e-12).tolist() == pytest.approx([1, 1, 1], rel=1e-11)


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999, 1.0])
def test_weights_of_equal_counts_are_one_and_all_weights_sum_to_k(beta):
    assert effective_number_weights([7] * 4, beta).tolist() == pytest.approx([1.0] * 4, rel=1e-14)
    weights = effective_number_weights(exponential(500, 100, imbalance=100), beta)
    assert weights.dtype == torch.float64
    assert float(weights.sum()) == pytest.approx(100, rel=1e-13)
    assert bool((weights.diff() >= -1e-12).all())  # never less for a rarer class


@pytest.mark.parametrize("counts", [tuple(COUNTS), torch.tensor(COUNTS), ClassCounts(COUNTS)])
def test_counts_in_any_form(counts):
    assert effective_number_weights(counts).tolist() == effective_number_weights(COUNTS).tolist()


# Printed losses


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, 1.23088),
        ({"average": "weights"}, 0.92775),
        ({"base": "sigmoid"}, 2.80922),
        ({"base": "focal", "gamma": 1.0}, 1.51611),
        ({"base": "focal"}, 1.51611),
        ({"base": "focal", "gamma": 2.0}, 0.86769),
        ({"base": "softmax-bce"}, 0.73514),
    ],
)
def test_printed_losses(options, wanted):
    assert float(ClassBalancedLoss(COUNTS, **options)(Z, Y)) == pytest.approx(wanted, abs=2e-5)


# Slow loops


@base
@pytest.mark.parametrize("average", ["samples", "weights"])
@pytest.mark.parametrize("beta", [0.9, 0.9999])
def test_hard_labels_against_a_loop(base, average, beta):
    logits, labels = random_batch()
    weights = exact_weights(COUNTS, beta)
    total = sum(weights[y] * cost(row, y, base, 1.5) for row, y in zip(logits.tolist(), labels.tolist(), strict=True))
    divisor = 12 if average == "samples" else sum(weights[y] for y in labels.tolist())
    found = ClassBalancedLoss(COUNTS, beta, base, gamma=1.5, average=average)(logits, labels)
    close(found, total / divisor)


@base
@pytest.mark.parametrize("average", ["samples", "weights"])
def test_soft_and_mixed_labels_cost_the_expected_label(base, average):
    logits, a = random_batch(seed=1)
    weights, loss = exact_weights(COUNTS, 0.9999), ClassBalancedLoss(COUNTS, base=base, average=average)
    lam = torch.linspace(0, 1, 12, dtype=torch.float64)
    soft = torch.rand(12, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64).softmax(1)
    mixed = [[0.0] * 3 for _ in range(12)]
    for i, (first, second, share) in enumerate(zip(a.tolist(), a.flip(0).tolist(), lam.tolist(), strict=True)):
        mixed[i][first] += share
        mixed[i][second] += 1 - share
    for target, shares in ((soft, soft.tolist()), (MixedTarget(a, a.flip(0), lam), mixed)):
        total = mass = 0.0
        for row, share in zip(logits.tolist(), shares, strict=True):
            for k in range(3):
                total += share[k] * weights[k] * cost(row, k, base, 1.0)
                mass += share[k] * weights[k]
        close(loss(logits, target), total / (12 if average == "samples" else mass))


# Other people's code


def test_softmax_bce_is_binary_cross_entropy_of_the_softmax():
    logits, labels = random_batch(classes=6)
    counts = [50, 30, 20, 9, 4, 1]
    weight = torch.tensor(exact_weights(counts, 0.9999), dtype=torch.float64)[labels][:, None].expand(-1, 6)
    first, second = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    wanted = F.binary_cross_entropy(first.softmax(1), F.one_hot(labels, 6).double(), weight)  # mean over N and K
    loss = ClassBalancedLoss(counts, base="softmax-bce")(second, labels)
    wanted.backward()
    loss.backward()
    close(loss.detach(), float(wanted.detach()))
    torch.testing.assert_close(second.grad, first.grad, rtol=1e-10, atol=1e-14)


def test_sigmoid_is_binary_cross_entropy_with_the_weight_of_the_label_on_every_class():
    logits, labels = random_batch()
    weight = torch.tensor(exact_weights(COUNTS, 0.9999), dtype=torch.float64)[labels][:, None].expand(-1, 3)
    wanted = F.binary_cross_entropy(logits.sigmoid(), F.one_hot(labels, 3).double(), weight, reduction="sum") / 12
    close(ClassBalancedLoss(COUNTS, base="sigmoid")(logits, labels), float(wanted))


def test_softmax_averaged_by_weights_is_torch_with_weights():
    logits, labels = random_batch()
    weight = torch.tensor(exact_weights(COUNTS, 0.9999), dtype=torch.float64)
    close(
        ClassBalancedLoss(COUNTS, average="weights")(logits, labels),
        float(F.cross_entropy(logits, labels, weight=weight)),
    )


@base
def test_uniform_counts_leave_the_base(base):
    logits, labels = random_batch()
    each = [cost(row, y, base, 1.0) for row, y in zip(logits.tolist(), labels.tolist(), strict=True)]
    close(ClassBalancedLoss([8, 8, 8], base=base)(logits, labels), sum(each) / 12)


# Traps


@base
def test_a_batch_of_one_class_keeps_its_weight_unless_averaged_by_weights(base):
    logits, labels = random_batch()[0], torch.full((12,), 2)
    uniform = float(ClassBalancedLoss([8, 8, 8], base=base)(logits, labels))
    close(ClassBalancedLoss(COUNTS, base=base)(logits, labels), exact_weights(COUNTS, 0.9999)[2] * uniform)
    close(ClassBalancedLoss(COUNTS, base=base, average="weights")(logits, labels), uniform)


def test_weights_set_later_multiply_the_balance():
    extra, balance = [0.25, 1.0, 4.0], exact_weights(COUNTS, 0.9999)
    loss = ClassBalancedLoss(COUNTS)
    loss.set_weight(extra)
    product = torch.tensor([a * b for a, b in zip(extra, balance, strict=True)])
    assert float(loss(Z, Y)) == pytest.approx(float(CrossEntropyLoss(product, average="samples")(Z, Y)), rel=1e-6)
    loss.set_weight(None)
    assert float(loss(Z, Y)) == pytest.approx(1.23088, abs=2e-5)


@base
@pytest.mark.parametrize("label", [0, 1])
def test_the_gradient_at_a_tie(base, label):
    """Fresh heads give equal logits; the largest is then any of them, the gradient only one."""
    logits = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    ClassBalancedLoss([1, 1, 1, 1], base=base)(logits, torch.tensor([label])).backward()
    step = 1e-5
    for k in range(4):
        ends = [cost([sign * step * (j == k) for j in range(4)], label, base, 1.0) for sign in (1, -1)]
        assert float(logits.grad[0, k]) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-9)


def test_softmax_bce_of_sure_samples_is_that_of_double_precision():
    """log(1 - p) must not be taken of a p that has rounded to 1."""
    logits = torch.tensor([[18.0, 0.0, 1.0], [30.0, 3.0, 2.0], [80.0, -80.0, 0.0]])
    for label in range(3):
        labels = torch.full((3,), label)
        found = ClassBalancedLoss([3, 3, 3], base="softmax-bce")(logits, labels)
        high, others = logits.double()[:, :1], logits.double()[:, 1:]
        wrong = float((high - others.logsumexp(1, keepdim=True)).sum() + (high - others)[:, label - 1].sum()) / 9
        # when the label is not the sure class: -log(1 - p_top) - log p_label, the third term being about nothing
        assert float(found) == pytest.approx(0.0 if label == 0 else wrong, rel=1e-5, abs=1e-5)
