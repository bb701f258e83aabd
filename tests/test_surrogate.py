"""The gradient that CAR writes down in closed form against autograd, for every surrogate and every kind of label."""

import itertools

import oracle
import pytest
import torch

from spectail import CAR
from spectail import functional as SF

FORMS = ("full", "no-gate", "no-softmax", "no-both")
KINDS = [("hard", "masked"), ("ignored", "masked"), ("soft", "masked")]
KINDS += [("mixed", mode) for mode in ("masked", "soft", "dominant", "clean")]


NAMES = ("surrogate", "competitors", "gate_grad", "gamma", "temperature", "baseline_grad")
OPTIONS = [(*case, 1.0, True) for case in itertools.product(FORMS, ("all", "non-target"), (True, False), (0.0, 2.0))]
OPTIONS += [(form, "all", False, 0.0, 1.0, False) for form in FORMS]  # the authors' script
OPTIONS += [("no-softmax", "all", True, 0.5, 1.0, False), ("no-both", "all", True, 0.5, 1.0, False)]
OPTIONS += [
    (form, rivals, True, 1.0, heat, True)
    for form in FORMS[:2]
    for rivals in ("all", "non-target")
    for heat in (0.5, 3.0)
]


@pytest.fixture(params=OPTIONS, ids=str)
def options(request):
    return dict(zip(NAMES, request.param, strict=True))


def test_gradient_of_the_soft_confusion_is_the_slow_one(options):
    for kind, mixed in KINDS:
        check_soft_confusion(kind, options | {"mixed": mixed})


def check_soft_confusion(kind, options):
    logits, target = oracle.one_batch(dtype=torch.float64, kind=kind)
    direction = torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def along(confusion):
        return lambda logits, target: (confusion(logits, target, **options) * direction).sum()

    value, gradient = oracle.value_and_gradient(along(SF.soft_confusion), logits, target)
    wanted, wanted_gradient = oracle.value_and_gradient(along(oracle.soft_confusion), logits, target)
    oracle.assert_near(value, wanted, 1e-12, f"value for {kind} labels, {options}")
    oracle.assert_near(gradient, wanted_gradient, 1e-12, f"gradient for {kind} labels, {options}")
    assert float(wanted_gradient.norm()) > 1e-3, (kind, options)


def test_closed_form_gradient_is_that_of_autograd(options):
    for kind, mixed in KINDS:
        check_closed_form(kind, options | {"mixed": mixed})


def check_closed_form(kind, options):
    logits, target = oracle.one_batch(dtype=torch.float64, kind=kind)
    car = CAR(oracle.long_tail(7), beta=0.0, weighting=None, **options)
    value, gradient = oracle.value_and_gradient(car, logits, target)

    def bilinear(logits, target):
        return car.last.left @ SF.soft_confusion(logits, target, **options) @ car.last.right

    wanted, wanted_gradient = oracle.value_and_gradient(bilinear, logits, target)
    oracle.assert_near(value, wanted, 1e-12, f"value for {kind} labels, {options}")
    oracle.assert_near(gradient, wanted_gradient, 1e-11, f"gradient for {kind} labels, {options}")
    assert float(wanted_gradient.norm()) > 1e-3, (kind, options)


@pytest.mark.parametrize("surrogate", ["no-softmax", "no-both"])
def test_a_detached_baseline_changes_the_gradient_and_not_the_value(surrogate):
    """By hand, for one sample: without softmax the true logit no longer answers for the selection."""
    logits, target = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64), torch.tensor([0])
    direction = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)

    def along(baseline_grad):
        options = {"surrogate": surrogate, "gate_grad": False, "baseline_grad": baseline_grad}
        return lambda *batch: direction @ SF.soft_confusion(*batch, **options)[:, 0]

    value, gradient = oracle.value_and_gradient(along(True), logits, target)
    same, other = oracle.value_and_gradient(along(False), logits, target)
    assert value == same
    # select_1 = a / (a + b) with a = f_1 - f_0 = 1 and b = f_2 - f_0 = 3: its derivatives are b, -a over (a + b)^2
    gate = torch.tensor(1.0, dtype=torch.float64).sigmoid() if surrogate == "no-softmax" else 1.0
    torch.testing.assert_close(other[0, 1:], gate * torch.tensor([3.0, -1.0], dtype=torch.float64) / 16)
    assert other[0, 0] == 0
    torch.testing.assert_close(gradient[0, 0], -gate * torch.tensor(2.0, dtype=torch.float64) / 16)


@pytest.mark.parametrize("surrogate", FORMS)
def test_gradient_of_a_sample_sums_to_zero(surrogate):
    logits, target = oracle.one_batch(dtype=torch.float64)
    _, gradient = oracle.value_and_gradient(CAR(oracle.long_tail(7), surrogate=surrogate), logits, target)
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(gradient.sum(1), torch.zeros(24, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("surrogate", ["no-softmax", "no-both"])
def test_a_sample_that_beats_every_rival_has_no_rectified_confusion(surrogate):
    logits = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
    confusion = SF.soft_confusion(logits, torch.tensor([0]), surrogate=surrogate, gamma=5.0)
    confusion.sum().backward()
    assert not confusion.any()
    assert not logits.grad.any()


def test_ablations_by_hand():
    logits, target = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([0])
    half = torch.tensor([1.0, 3.0])
    near = torch.testing.assert_close
    near(SF.soft_confusion(logits, target, surrogate="no-gate")[1:, 0], logits.softmax(1)[0, 1:])
    near(SF.soft_confusion(logits, target, 1.0, surrogate="no-softmax")[1:, 0], half / 4 * (half + 1).sigmoid())
    near(SF.soft_confusion(logits, target, 1.0, surrogate="no-both")[1:, 0], half / 4 * (half + 1))
    near(
        SF.soft_confusion(logits, target, competitors="non-target")[1:, 0],
        logits[0, 1:].softmax(0) * half.sigmoid(),
    )


def test_two_classes_have_one_competitor():
    logits = torch.tensor([[0.5, -0.5]])
    found = SF.soft_confusion(logits, torch.tensor([0]), competitors="non-target")
    torch.testing.assert_close(found[1, 0], torch.tensor(-1.0).sigmoid())
