"""``norm="worst"``: what only it has. That it follows the slow loops step by step is in tests/test_car.py."""

import copy
import math

import oracle
import pytest
import torch
from oracle import SlowCAR, assert_near, assert_same_state, batches, long_tail, snapshot, value_and_gradient

from spectail import CAR, CARLoss, CARReference, MixedTarget
from spectail.car import PRESETS

WORST = PRESETS["worst"].options
SETTINGS = [{"norm": "worst"}, {**WORST, "prior_shift": 0.75}]
traced = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
both_paths = pytest.mark.parametrize("solver", ["auto", "fixed"])
settings = pytest.mark.parametrize("options", SETTINGS, ids=["batch", "class"])


def warmed(counts, **options):
    car = CAR(counts, **options)
    for batch in batches(counts, 3, seed=9):
        car(*batch)
    return car


@both_paths
def test_two_classes_by_hand(solver):
    """At equal logits gate and softmax are 1/2; behind by log 3 they are 3/4."""
    car = CAR([10, 10], norm="worst", beta=0.0, weighting=None, sharpness=2.0, solver=solver)
    logits, target = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]]), torch.tensor([0, 1])
    errors = [0.5 * 0.5, 0.75 * 0.75]
    shares = [math.exp(2 * error / 0.5625) for error in errors]
    wanted = sum(share * error for share, error in zip(shares, errors, strict=True)) / sum(shares)
    assert float(car(logits, target)) == pytest.approx(wanted, rel=1e-6)
    assert car.errors.tolist() == pytest.approx(errors)
    assert car.last.errors.tolist() == pytest.approx(errors)
    assert car.last.shares.tolist() == pytest.approx([share / sum(shares) for share in shares])


@both_paths
@pytest.mark.parametrize("num_classes", [7, 60, 800])
def test_the_sharpness_leads_from_the_mean_to_the_largest(num_classes, solver):
    counts, batch = long_tail(num_classes), oracle.one_batch(num_classes, size=100)
    values = [CAR(counts, norm="worst", sharpness=s, solver=solver)(*batch) for s in (0.0, 1.0, 5.0, 20.0, 1e6)]
    spectral = CAR(counts)
    spectral(*batch)
    weighted = spectral.errors * spectral.weights
    assert_near(values[0], weighted.mean(), 1e-5)
    assert_near(values[-1], weighted.max(), 1e-5)
    assert values == sorted(values)


@both_paths
@settings
@pytest.mark.parametrize("num_classes", [2, 7, 700])
@pytest.mark.parametrize("lead", [120.0, 1e4, 1e30])
def test_without_any_confusion_value_and_gradient_are_zero(num_classes, lead, options, solver):
    car, labels = CAR([5] * num_classes, solver=solver, **options), torch.arange(6) % num_classes
    logits = torch.nn.functional.one_hot(labels, num_classes) * lead
    for _ in range(2):
        value, gradient = value_and_gradient(car, logits, labels)
        assert value == 0
        assert not gradient.any()
    car(torch.zeros_like(logits), labels)
    assert car(torch.zeros_like(logits), labels) > 0


@both_paths
@settings
@pytest.mark.parametrize(("scale", "lead"), [(0.0, 0.0), (1e-6, 0.0), (300.0, 0.0), (3.0, 40.0), (1.0, -1e4)])
def test_huge_and_tiny_scores_follow_the_definition(scale, lead, options, solver):
    counts = long_tail(7)
    car, definition = CAR(counts, solver=solver, **options), CARReference(counts, **options)
    for logits, target in batches(counts, 4, size=6, scale=scale, lead=lead):
        value, gradient = value_and_gradient(car, logits, target)
        wanted, wanted_gradient = value_and_gradient(definition, logits.double(), target)
        assert abs(value - wanted) <= 1e-5 * wanted + 1e-30
        assert (gradient - wanted_gradient).abs().max() <= 1e-4 * wanted_gradient.abs().max() + 1e-12


@both_paths
@settings
@pytest.mark.parametrize("labels", [torch.full((5,), 3), torch.tensor([3])])
def test_batches_of_one_class(labels, options, solver):
    counts = long_tail(7)
    car, reference = CAR(counts, solver=solver, **options), SlowCAR(counts, **options)
    for logits, _ in batches(counts, 4, size=len(labels), seed=1):
        value, gradient = value_and_gradient(car, logits, labels)
        wanted, wanted_gradient = value_and_gradient(reference, logits, labels)
        assert_near(value, wanted, 1e-5)
        assert_near(gradient, wanted_gradient, 1e-4)


@both_paths
@pytest.mark.parametrize("competitors", ["all", "non-target"])
@pytest.mark.parametrize("kind", ["hard", "mixed"])
def test_samples_far_on_the_wrong_side_keep_an_exact_gradient(kind, competitors, solver):
    """There gate and error are close to 1, and the gradient is what they lack."""
    counts = [5] * 6
    options = {"norm": "worst", "gamma": 4.0, "competitors": competitors, "sharpness": 0.0}
    for logits, target in batches(counts, 3, size=30, lead=-6.0, kind=kind):
        _, gradient = value_and_gradient(CAR(counts, solver=solver, **options), logits, target)
        _, wanted = value_and_gradient(CARReference(counts, **options), logits.double(), target)
        for found, row in zip(gradient, wanted, strict=True):
            assert_near(found, row, 1e-5)


@pytest.mark.parametrize("options", [*SETTINGS, {**WORST, "competitors": "all"}])
def test_the_short_step_is_the_long_one(options):
    """Numpy for hard labels, torch for the same labels as entries of their own."""
    counts = long_tail(100)
    short, long = CAR(counts, **options), CAR(counts, **options)
    for logits, target in batches(counts, 4, size=64, dtype=torch.float64):
        value, gradient = value_and_gradient(short, logits, target)
        wanted, wanted_gradient = value_and_gradient(long, logits, MixedTarget(target, target, 1.0))
        assert_near(value, wanted, 1e-13)
        assert_near(gradient, wanted_gradient, 1e-12)
    assert_near(short.errors, long.errors, 1e-13)
    assert torch.equal(short.history.seen, long.history.seen)
    assert torch.equal(short.history.steps, long.history.steps)


@both_paths
@pytest.mark.parametrize("kind", ["hard", "mixed"])
def test_second_derivative_keeps_the_shares_fixed(kind, solver):
    counts, options = long_tail(7), SETTINGS[1]
    car, reference = CAR(counts, solver=solver, **options), SlowCAR(counts, **options)
    for step, (logits, target) in enumerate(batches(counts, 3, dtype=torch.float64, kind=kind)):
        logits.requires_grad_()
        direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def curvature(value, logits=logits, direction=direction):
            (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
            return torch.autograd.grad((gradient * direction).sum(), logits)[0]

        found = curvature(car(logits, target))
        reference(logits, target)
        if step:  # the first estimates carry no gradient
            assert_near(found, curvature((reference.latest.sum(0) * reference.weights) @ car.last.shares), 1e-6)


@both_paths
@settings
@pytest.mark.parametrize("num_classes", [7, 700])
def test_looking_changes_nothing_and_a_reset_makes_it_new(num_classes, options, solver):
    counts = long_tail(num_classes)
    car = warmed(counts, solver=solver, **options)
    before, batch = snapshot(car), oracle.one_batch(num_classes)
    wanted = value_and_gradient(car.eval(), *batch)
    double = batch[0].double()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(car.train()(*batch), wanted[0])
            assert car(double, batch[1]).dtype == torch.float64
    assert value_and_gradient(car, batch[0], torch.full_like(batch[1], -100))[0] == 0
    assert_same_state(car, before)
    twin = copy.deepcopy(car)
    assert all(map(torch.equal, value_and_gradient(twin, *batch), wanted))
    assert_same_state(car, before)
    car.reset()
    assert_same_state(car, snapshot(CAR(counts, **options)))


@both_paths
def test_low_precision_is_computed_in_float32_and_rounds_no_history(solver):
    counts, (logits, target) = long_tail(60), oracle.one_batch(60)
    low, exact = (CAR(counts, solver=solver, **SETTINGS[1]) for _ in range(2))
    low.half()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value, gradient = value_and_gradient(low, logits.bfloat16(), target)
        wanted, wanted_gradient = value_and_gradient(exact, logits.bfloat16().float(), target)
        assert torch.equal(value, wanted)
        assert torch.equal(gradient, wanted_gradient.bfloat16())
    assert low(logits.double(), target).dtype == torch.float64  # and from here on in float64
    assert low.errors.dtype == torch.float64


@traced
@pytest.mark.parametrize("kind", ["hard", "mixed"])
def test_compiled_is_eager(kind):
    torch._dynamo.reset()
    counts, options = long_tail(60), SETTINGS[1]
    eager, inner = CAR(counts, **options), CAR(counts, **options)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(logits, target):
        return inner(logits, MixedTarget(*target) if isinstance(target, tuple) else target)

    for logits, target in batches(counts, 4, size=8, kind=kind):
        wanted, wanted_gradient = value_and_gradient(eager, logits, target)
        parts = (target.a, target.b, target.lam) if kind == "mixed" else target
        value, gradient = value_and_gradient(compiled, logits, parts)
        assert_near(value, wanted, 1e-5)
        assert_near(gradient, wanted_gradient, 1e-4)
    assert_near(inner.errors, eager.errors, 1e-6)


def test_either_norm_has_the_errors_and_one_has_the_matrix():
    counts = long_tail(7)
    spectral, worst = warmed(counts), warmed(counts, norm="worst")
    assert_near(worst.errors, spectral.confusion.sum(0), 1e-6)
    assert_near(spectral.errors, spectral.confusion.sum(0), 0)
    worst.errors.zero_()  # a copy
    assert worst.errors.any()
    with pytest.raises(RuntimeError, match="norm='worst' keeps the error of each class, car.errors, and no confusion"):
        worst.confusion  # noqa: B018
    assert (spectral.figure, worst.figure) == ("spectral_norm", "worst_error")
    assert "norm='worst'" in repr(worst)


def test_the_state_is_a_few_numbers_per_class():
    state = warmed(long_tail(700), norm="worst").state_dict()
    assert sum(value.numel() for value in state.values()) <= 2 * 700 + 1


def test_a_state_saved_under_other_weights_keeps_its_errors():
    saved, loaded = warmed(long_tail(7), norm="worst"), CAR(long_tail(7), norm="worst", r0=0.01)
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded.errors, saved.errors)
    logits, target = oracle.one_batch()
    assert_near(loaded.eval()(logits, target), (loaded.last.shares * loaded.last.errors).sum(), 1e-6)


@pytest.mark.parametrize(("mine", "other"), [("spectral", "worst"), ("worst", "spectral")])
@pytest.mark.parametrize("make", [CAR, CARLoss])
def test_the_state_of_the_other_norm_is_refused_and_changes_nothing(make, mine, other):
    criterion, saved = (make(long_tail(7), norm=norm) for norm in (mine, other))
    saved(*oracle.one_batch())
    before = snapshot(criterion)
    with pytest.raises(RuntimeError, match=f"saved with norm='{other}' and the regulariser has norm='{mine}'"):
        criterion.load_state_dict(saved.state_dict())
    assert_same_state(criterion, before)


def test_the_state_of_other_classes_is_refused():
    with pytest.raises(RuntimeError, match="saved for 8 classes and the regulariser has 7"):
        CAR(long_tail(7), norm="worst").load_state_dict(CAR(long_tail(8), norm="worst").state_dict())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"norm": "max"}, ValueError, "norm must be .*spectral.*worst.*got 'max'"),
        ({"sharpness": -1}, ValueError, "sharpness must lie between 0.* and 1e.06.*; got -1"),
        ({"sharpness": float("nan")}, ValueError, "sharpness must lie between 0.*; got nan"),
        ({"sharpness": float("inf")}, ValueError, "sharpness must lie between 0.*; got inf"),
        ({"sharpness": "high"}, TypeError, "sharpness must be a number"),
    ],
)
def test_bad_values_are_refused_in_a_sentence(options, error, words):
    with pytest.raises(error, match=words):
        CAR([3, 2], **options)
