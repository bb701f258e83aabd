"""Losses against torch's own cross entropy, printed oracles and two-line formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from spectail import ClassCounts, MixedTarget
from spectail.losses import BalancedSoftmaxLoss, CrossEntropyLoss
from spectail.losses.base import LabelLoss

# Fixture F of the oracles: three classes of 100, 20 and 5 images
COUNTS = [100, 20, 5]
Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])
WEIGHT = torch.tensor([0.25, 1.0, 4.0])  # exact in every precision
MAKERS = {"cross entropy": CrossEntropyLoss, "balanced": lambda **options: BalancedSoftmaxLoss(COUNTS, **options)}
maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def soft_labels(count, classes, seed=0, dtype=torch.float64):
    return torch.rand(count, classes, generator=torch.Generator().manual_seed(seed), dtype=dtype).softmax(1)


def random_logits(count, classes, seed=0, dtype=torch.float64):
    return 3 * torch.randn(count, classes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def near(value, wanted, limit=1e-12):
    torch.testing.assert_close(value.double(), wanted.double(), rtol=limit, atol=limit)


# Balanced Softmax


@pytest.mark.parametrize(("row", "wanted"), [(0, 0.04604), (1, 0.89116), (2, 3.59458), (3, 2.89102)])
def test_balanced_softmax_of_each_sample(row, wanted):
    assert float(BalancedSoftmaxLoss(COUNTS)(Z[row : row + 1], Y[row : row + 1])) == pytest.approx(wanted, abs=2e-5)


def test_balanced_softmax_of_the_batch_and_its_gradient():
    logits = Z.clone().requires_grad_()
    loss = BalancedSoftmaxLoss(COUNTS)(logits, Y)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1.85570, abs=2e-5)
    assert logits.grad[2].tolist() == pytest.approx([0.22647, 0.01666, -0.24313], abs=2e-5)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
def test_balanced_softmax_is_the_ratio_of_its_paper(tau):
    """phi_y = n_y^tau exp(z_y) / sum_j n_j^tau exp(z_j), one exponential at a time."""
    total = 0.0
    for row, label in zip(Z.tolist(), Y.tolist(), strict=True):
        terms = [count**tau * math.exp(value) for count, value in zip(COUNTS, row, strict=True)]
        total -= math.log(terms[label] / sum(terms))
    assert float(BalancedSoftmaxLoss(COUNTS, tau=tau)(Z, Y)) == pytest.approx(total / 4, rel=1e-12)


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_with_uniform_counts_it_is_cross_entropy(tau):
    logits = random_logits(9, 5)
    target = torch.arange(9) % 5
    near(BalancedSoftmaxLoss([7] * 5, tau=tau)(logits, target), F.cross_entropy(logits, target))


def test_only_the_ratios_of_counts_matter():
    near(BalancedSoftmaxLoss([1000, 200, 50])(Z, Y), BalancedSoftmaxLoss(COUNTS)(Z, Y))


@pytest.mark.parametrize(
    "counts", [COUNTS, tuple(COUNTS), torch.tensor(COUNTS), ClassCounts(COUNTS), torch.tensor([100.0, 20.0, 5.0])]
)
def test_counts_in_any_form(counts):
    assert float(BalancedSoftmaxLoss(counts)(Z, Y)) == pytest.approx(1.85570, abs=2e-5)


def test_a_class_without_images_is_refused_by_name():
    with pytest.raises(ValueError, match=r"class 1 \('otter'\) has 0 images"):
        BalancedSoftmaxLoss(ClassCounts([5, 0, 3], names=["cat", "otter", "dog"]))
    with pytest.raises(ValueError, match="class 2 has 0 images"):
        BalancedSoftmaxLoss([5, 3, 0])


def test_the_advice_for_a_class_without_images_can_be_followed():
    with pytest.raises(ValueError, match="0 images") as refused:
        BalancedSoftmaxLoss([5, 3, 0])
    if "on_empty='ignore'" in str(refused.value):
        loss = BalancedSoftmaxLoss([5, 3, 0], on_empty="ignore")
        assert torch.isfinite(loss(Z, torch.tensor([0, 1, 1, 0])))


# Cross entropy, against torch


def test_cross_entropy_of_the_fixture():
    assert float(CrossEntropyLoss()(Z, Y)) == pytest.approx(0.67585, abs=2e-5)
    for row, wanted in enumerate([0.24131, 0.45345, 1.18027, 0.82839]):
        assert float(CrossEntropyLoss()(Z[row : row + 1], Y[row : row + 1])) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("average", ["weights", "samples"])
def test_hard_labels(average, weight):
    logits, target = random_logits(20, 3).requires_grad_(), torch.arange(20) % 3
    loss = CrossEntropyLoss(weight=weight, average=average)(logits, target)
    double = None if weight is None else weight.double()
    if average == "weights":
        wanted = F.cross_entropy(logits, target, weight=double)
    else:
        wanted = F.cross_entropy(logits, target, weight=double, reduction="sum") / 20
    near(loss.detach(), wanted.detach())
    near(torch.autograd.grad(loss, logits)[0], torch.autograd.grad(wanted, logits)[0])


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_soft_labels(weight):
    """torch divides soft labels by the number of samples, whatever the weights."""
    logits, labels = random_logits(20, 3).requires_grad_(), soft_labels(20, 3)
    loss = CrossEntropyLoss(weight=weight, average="samples")(logits, labels)
    wanted = F.cross_entropy(logits, labels, weight=None if weight is None else weight.double())
    near(loss.detach(), wanted.detach())
    near(torch.autograd.grad(loss, logits)[0], torch.autograd.grad(wanted, logits)[0])


def test_soft_labels_averaged_by_weight():
    logits, labels = random_logits(20, 3), soft_labels(20, 3)
    total = mass = 0.0
    for row, shares in zip(logits.log_softmax(1).tolist(), labels.tolist(), strict=True):
        for value, share, weight in zip(row, shares, WEIGHT.tolist(), strict=True):
            total -= share * weight * value
            mass += share * weight
    assert float(CrossEntropyLoss(weight=WEIGHT)(logits, labels)) == pytest.approx(total / mass, rel=1e-12)
    near(CrossEntropyLoss()(logits, labels), F.cross_entropy(logits, labels))


def test_an_unknown_average_is_refused():
    with pytest.raises(ValueError, match="average must be one of 'weights', 'samples', 'terms'; got 'mean'"):
        CrossEntropyLoss(average="mean")


# What both share


@maker
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("average", ["weights", "samples"])
def test_one_hot_soft_labels_equal_hard_labels(make, weight, average):
    loss = make(weight=weight, average=average)
    near(loss(Z, F.one_hot(Y, 3).double()), loss(Z, Y))


@maker
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("average", ["weights", "samples"])
def test_mixed_labels_equal_their_dense_form(make, weight, average):
    mixed = MixedTarget(Y, Y.flip(0), torch.tensor([0.25, 1.0, 0.0, 0.625], dtype=torch.float64))
    loss = make(weight=weight, average=average)
    near(loss(Z, mixed), loss(Z, mixed.dense(3)))


@maker
def test_mixed_labels_are_two_terms(make):
    """lam * loss(a) + (1 - lam) * loss(b), as every mixing method writes it."""
    other, loss = torch.tensor([1, 2, 0, 2]), make()
    near(loss(Z, MixedTarget(Y, other, 0.75)), 0.75 * loss(Z, Y) + 0.25 * loss(Z, other))
    shares = torch.tensor([0.5, 0.25, 1.0, 0.0], dtype=torch.float64)
    each = [
        float(share) * loss(Z[row : row + 1], Y[row : row + 1])
        + (1 - float(share)) * loss(Z[row : row + 1], other[row : row + 1])
        for row, share in enumerate(shares)
    ]
    near(loss(Z, MixedTarget(Y, other, shares)), torch.stack(each).mean())


@maker
def test_mixed_labels_with_themselves_equal_hard_labels(make):
    near(make(weight=WEIGHT)(Z, MixedTarget(Y, Y, 0.375)), make(weight=WEIGHT)(Z, Y))


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_ignored_labels_as_torch_does(weight):
    target = torch.tensor([0, -100, 2, -100])
    double = None if weight is None else weight.double()
    near(CrossEntropyLoss(weight=weight)(Z, target), F.cross_entropy(Z, target, weight=double))
    marked = torch.tensor([0, 1, 2, 1])
    near(
        CrossEntropyLoss(weight=weight, ignore_index=1)(Z, marked),
        F.cross_entropy(Z, marked, weight=double, ignore_index=1),
    )
    near(
        CrossEntropyLoss(weight=weight, average="samples")(Z, target),
        F.cross_entropy(Z, target, weight=double, reduction="sum") / 2,
    )


@maker
def test_ignored_samples_have_no_influence(make):
    loss, logits = make(weight=WEIGHT), Z.clone().requires_grad_()
    value = loss(logits, torch.tensor([0, -100, 2, 2]))
    near(value.detach(), loss(Z[[0, 2, 3]], Y[[0, 2, 3]]))
    value.backward()
    assert not logits.grad[1].any()
    assert logits.grad[[0, 2, 3]].any(1).all()
    mixed = MixedTarget(torch.tensor([0, 1, -100, 2]), torch.tensor([1, -100, 0, 2]), 0.5)
    near(loss(Z, mixed), loss(Z[[0, 3]], MixedTarget(torch.tensor([0, 2]), torch.tensor([1, 2]), 0.5)))


@maker
def test_a_batch_with_nothing_to_learn_costs_nothing(make):
    logits = Z.clone().requires_grad_()
    loss = make()(logits, torch.full((4,), -100))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not logits.grad.any()


@maker
def test_a_batch_of_weightless_classes_costs_nothing_in_any_form(make):
    loss, labels = make(weight=[0.0, 0.0, 1.0]), torch.tensor([0, 1, 1, 0])
    assert float(loss(Z, labels)) == 0
    assert float(loss(Z, MixedTarget(labels, labels, 0.5))) == 0
    assert float(loss(Z, F.one_hot(labels, 3).double())) == 0


@maker
def test_weights_may_change_half_way(make):
    loss = make()
    plain = loss(Z, Y)
    loss.set_weight(WEIGHT)
    near(loss(Z, Y), make(weight=WEIGHT)(Z, Y))
    assert float(loss(Z, Y)) != pytest.approx(float(plain), rel=1e-3)
    loss.set_weight([1.0, 1.0, 1.0])
    near(loss(Z, Y), plain)
    loss.set_weight(None)
    near(loss(Z, Y), plain)


def test_class_balanced_weights_of_the_oracle():
    """Deferred re-weighting: effective-number weights at beta 0.9999, torch's weighted mean and the sum over B."""
    weight = torch.tensor([0.11590, 0.57717, 2.30694])
    assert float(CrossEntropyLoss(weight=weight)(Z, Y)) == pytest.approx(0.92775, abs=3e-5)
    assert float(CrossEntropyLoss(weight=weight, average="samples")(Z, Y)) == pytest.approx(1.23088, abs=3e-5)


@maker
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed", "ignored"])
def test_gradients_in_float64(make, weight, kind):
    target = {
        "hard": Y,
        "soft": soft_labels(4, 3),
        "mixed": MixedTarget(Y, Y.flip(0), 0.7),
        "ignored": torch.tensor([0, -100, 2, 1]),
    }[kind]
    assert gradcheck(lambda logits: make(weight=weight)(logits, target), Z.clone().requires_grad_())


@maker
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
def test_large_logits_stay_finite(make, dtype, kind):
    logits = torch.tensor([[100.0, -100.0, 0.0], [-100.0, 100.0, -100.0]] * 2, dtype=dtype, requires_grad=True)
    hard = torch.tensor([0, 0, 1, 2])  # right, wrong, wrong, wrong
    target = {"hard": hard, "soft": F.one_hot(hard, 3).float(), "mixed": MixedTarget(hard, hard.flip(0), 0.5)}[kind]
    loss = make()(logits, target)
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    assert float(loss.detach()) > 10
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.any()


@maker
def test_at_least_single_precision_inside(make):
    logits = random_logits(16, 3, dtype=torch.float32)
    target = torch.arange(16) % 3
    wanted = make()(logits, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert make()(logits, target).dtype == torch.float32
        assert torch.equal(make()(logits, target), wanted)
    rounded = logits.bfloat16()
    assert torch.equal(make()(rounded, target), make()(rounded.float(), target))
    near(make()(rounded, target), wanted, 2e-2)
    assert make()(logits.double(), target).dtype == torch.float64
    near(wanted, make()(logits.double(), target), 1e-6)


def test_a_loss_with_products_inside_keeps_single_precision():
    class Product(LabelLoss):
        def costs(self, logits):
            return logits @ torch.full((3, 3), 1 / 3)

    logits, target = random_logits(16, 3, dtype=torch.float32), torch.arange(16) % 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (logits @ torch.eye(3)).dtype == torch.bfloat16
        near(Product()(logits, target), logits.mean(), 1e-6)


@maker
def test_trained_under_autocast_it_stays_close(make):
    """A linear layer in bfloat16: the gradient of its weight is that of float32, but for rounding of the layer."""
    features, target = random_logits(32, 6, seed=1, dtype=torch.float32), torch.arange(32) % 3
    layer = torch.nn.Linear(6, 3)
    with torch.no_grad():
        layer.weight.copy_(random_logits(3, 6, seed=2, dtype=torch.float32) / 6)
    wanted = torch.autograd.grad(make()(layer(features), target), layer.weight)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(features)
        assert logits.dtype == torch.bfloat16
        loss = make()(logits, target)
    found = torch.autograd.grad(loss, layer.weight)[0]
    assert float((found - wanted).norm() / wanted.norm()) < 0.02


@maker
def test_the_state_is_buffers_and_survives_a_round_trip(make):
    loss = make(weight=WEIGHT)
    assert not list(loss.parameters())
    options = {"class_counts": [1, 1, 1]} if isinstance(loss, BalancedSoftmaxLoss) else {}
    fresh = type(loss)(**options, weight=[9.0, 9.0, 1.0])
    assert float(fresh(Z, Y)) != pytest.approx(float(loss(Z, Y)), rel=1e-3)
    fresh.load_state_dict(loss.state_dict())
    near(fresh(Z, Y), loss(Z, Y))


@maker
def test_weights_set_half_way_are_in_the_checkpoint(make):
    """A run interrupted after the switch of deferred re-weighting continues with a loss that was built without."""
    loss, resumed = make(), make()
    loss.set_weight(WEIGHT)
    resumed.load_state_dict(loss.state_dict())
    near(resumed(Z, Y), loss(Z, Y))


@maker
def test_buffers_follow_the_module(make):
    loss = make(weight=WEIGHT).to("meta")
    assert loss.state_dict()
    assert all(value.device.type == "meta" for value in loss.state_dict().values())
    loss = make(weight=WEIGHT).to(torch.float64)
    near(loss(Z, Y), make(weight=WEIGHT)(Z, Y))


@maker
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integer_type(make, dtype):
    near(make()(Z, Y.to(dtype)), make()(Z, Y))


@maker
@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        (torch.tensor([0, 1]), ValueError, r"shape \(4,\)"),
        (torch.zeros(4, 2), ValueError, r"\(4, 3\); got \(4, 2\)"),
        (torch.zeros(4), TypeError, "integers"),
        (torch.zeros(4, 3, dtype=torch.long), TypeError, "floating point"),
        (MixedTarget(Y[:2], Y[:2], 0.5), ValueError, "target.a"),
        ([0, 1, 2, 2], TypeError, "tensor or a MixedTarget"),
    ],
)
def test_bad_targets_are_refused_in_words(make, target, error, words):
    with pytest.raises(error, match=words):
        make()(Z, target)


@maker
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_out_of_range_is_never_accepted(make, label):
    with pytest.raises((ValueError, RuntimeError, IndexError), match=rf"{label}"):
        make()(Z, torch.tensor([0, 1, 2, label]))
