"""The path of an accelerator, on a CPU: right at every step of a run, and never waiting for a value."""

import oracle
import pytest
import torch
from all_pairs import all_pairs
from no_waits import NoWaits, Waits
from oracle import assert_near, batches, long_tail, make_target, value_and_gradient

from spectail import CAR, CARLoss, CARReference, MixedTarget

CLASSWISE = {"ema": "class", "beta": 0.9, "competitors": "non-target", "gamma": 2.0}
SETTINGS = [
    {},
    {"beta": 0.0},
    {"beta": 0.9, "ema_start": "first"},
    CLASSWISE,
    {**CLASSWISE, "ema_start": "first"},
    {"ema": "class", "beta": 0.5, "prior_shift": 1.0},
    {**CLASSWISE, "ema_start": "first", "norm": "worst"},
]


def coming_and_going(num_classes, steps, seed, kind="hard"):
    """Batches of many classes and of few, of one class, of one sample; classes stay away and come back."""
    draw = torch.Generator().manual_seed(seed)
    for step in range(steps):
        size = (24, 1, 16, 6)[step % 4]
        few = (num_classes, 1, 3, 4, 2)[step % 5]
        allowed = torch.randperm(num_classes, generator=draw)[:few]
        labels = allowed[torch.randint(len(allowed), (size,), generator=draw)]
        logits = 1.5 * torch.randn(size, num_classes, generator=draw)
        logits[torch.arange(size), labels] += 1.0
        yield logits, make_target(kind, labels, num_classes, draw)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize(
    ("num_classes", "kind"), [(2, "hard"), (10, "hard"), (20, "mixed"), (40, "hard"), (60, "soft"), (200, "hard")]
)
def test_every_step_is_that_of_the_definition(num_classes, kind, options):
    counts = long_tail(num_classes)
    car, definition = CAR(counts, solver="fixed", **options), CARReference(counts, **options)
    compared = 0
    for step, (logits, target) in enumerate(coming_and_going(num_classes, 20, num_classes, kind)):
        value, gradient = value_and_gradient(car, logits, target)
        wanted, wanted_gradient = value_and_gradient(definition, logits.double(), target)
        values = torch.linalg.svdvals(definition.confusion * definition.weights)
        if values[1] <= 0.95 * values[0]:
            assert_near(value, wanted, 1e-5, f"value at step {step}")
            if wanted_gradient.any():  # with two classes a sample may have nothing to say
                assert_near(gradient, wanted_gradient, 1e-3, f"gradient at step {step}")
                compared += 1
            else:
                assert gradient.abs().max() < 1e-12
        else:
            assert_near(value, wanted, 1e-4, f"value at step {step}, near a tie,")
    assert compared >= 5


@pytest.mark.parametrize(
    ("make", "options", "kind"),
    all_pairs([CAR, CARLoss, CARLoss.balanced, CARLoss.worst], SETTINGS, ["hard", "soft", "mixed", "ignored"]),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_no_step_after_the_first_waits(make, options, kind):
    if make is not CAR and "prior_shift" in options:
        options = {**options, "prior_shift": 0.0} if make is CARLoss else CLASSWISE
    counts = long_tail(50)
    loss = make(counts, solver="fixed", **options)
    first, *data = batches(counts, 4, kind=kind)
    loss(*first)
    guard = NoWaits()
    for logits, target in data:
        logits.requires_grad_()
        with guard:
            loss(logits, target).backward()
        assert torch.isfinite(logits.grad).all()
    with guard, torch.no_grad():
        loss(*first)


def test_the_adaptive_path_does_wait():
    """Also shows that the guard can tell."""
    car, batch = CAR(long_tail(50)), oracle.one_batch(50)
    car(*batch)
    with NoWaits(), pytest.raises(Waits):
        car(*batch)


def test_a_share_of_a_mixed_target_is_made_on_the_device():
    labels = torch.tensor([0, 1])
    with NoWaits():
        assert MixedTarget(labels, labels.flip(0), 0.25).share.shape == (2,)


def test_values_are_looked_at_in_the_first_call_only():
    bad = torch.tensor([0, 7])
    logits = torch.zeros(2, 7)
    with pytest.raises(ValueError, match="labels must lie in"):
        CAR(long_tail(7), solver="fixed")(logits, bad)
    with pytest.raises(ValueError, match="NaN"):
        CAR(long_tail(7), solver="fixed")(logits * float("nan"), bad % 7)
    once = CAR(long_tail(7), solver="fixed")
    once(logits, bad % 7)
    assert torch.isnan(once(logits * float("nan"), bad % 7))
    always = CAR(long_tail(7), solver="fixed", validate=True)
    always(logits, bad % 7)
    with pytest.raises(ValueError, match="NaN"):
        always(logits * float("nan"), bad % 7)


def test_a_run_may_change_the_path():
    """Trained on an accelerator, continued on a CPU, and back."""
    counts = long_tail(200)
    for options in ({}, CLASSWISE):
        car, definition = CAR(counts, **options), CARReference(counts, **options)
        for step, (logits, target) in enumerate(batches(counts, 12)):
            car.solver = "fixed" if step // 3 % 2 else "auto"
            assert_near(car(logits, target), definition(logits.double(), target), 1e-5, f"value at step {step}")


@pytest.mark.parametrize("solver", ["auto", "fixed"])
@pytest.mark.parametrize("num_classes", [20, 60, 200])
def test_an_untouched_group_that_becomes_the_strongest_is_seen(num_classes, solver):
    """With class averaging the touched columns may shrink, and a group that hardly meets them is then the top one."""
    car = CAR([10] * num_classes, ema="class", beta=0.5, solver=solver)
    for group, confused in [(0, True), (1, True), *[(0, False)] * 6]:
        labels = torch.arange(6 * group, 6 * group + 6)
        logits = torch.full((6, num_classes), -30.0)
        logits[:, 6 * group : 6 * group + 6] = 0.0 if confused else -12.0
        logits[torch.arange(6), labels] = 0.5
        value = car(logits, labels)
        wanted = torch.linalg.svdvals(car.history.dense().double())[0]
        assert_near(value, wanted, 1e-5)
