import contextlib
import copy
import io
import pickle
from functools import cache

import oracle
import pytest
import torch
from all_pairs import all_pairs
from oracle import SlowCAR, assert_near, assert_same_state, batches, long_tail, snapshot, value_and_gradient

from spectail import CAR, CARLoss, CARReference, ClassCounts, MixedTarget
from spectail import car as car_module
from spectail import functional as SF
from spectail.car import LIVE_FROM

CLASSWISE = {"ema": "class", "beta": 0.9, "competitors": "non-target", "gamma": 2.0}
REFERENCE = {
    "beta": 0.9,
    "normalize_weights": True,
    "gate_grad": False,
    "baseline_grad": False,
    "ema_start": "first",
}
WORST = {**CLASSWISE, "gamma": 4.0, "r0": 0.01, "ema_start": "first", "prior_shift": 0.75, "norm": "worst"}
RUNS = [
    # few classes: the full SVD
    *[(7, {"ema": ema, "beta": beta}, "hard") for ema in ("batch", "class") for beta in (0.0, 0.5, 0.9)],
    *[(7, {"ema": ema, "ema_start": "first"}, kind) for ema in ("batch", "class") for kind in ("hard", "soft")],
    *[(7, {"ema": ema, "mixed": mode}, "mixed") for ema in ("batch", "class") for mode in ("masked", "soft")],
    *[(7, {"ema": ema, "mixed": mode}, "mixed") for ema in ("batch", "class") for mode in ("dominant", "clean")],
    *[(7, {"ema": ema, "beta": 0.9}, kind) for ema in ("batch", "class") for kind in ("soft", "ignored")],
    *[(7, {"surrogate": form, "gamma": 0.5}, "hard") for form in ("no-gate", "no-softmax", "no-both")],
    *[(7, {**REFERENCE, "surrogate": form}, "hard") for form in ("no-gate", "no-softmax", "no-both")],
    (7, {"temperature": 2.0}, "hard"),
    (7, {}, "hard"),
    (7, {"weighting": None}, "hard"),
    (7, {"normalize_weights": True, "r0": 0.01}, "hard"),
    (7, {"prior_shift": 1.25}, "hard"),
    (2, CLASSWISE, "hard"),
    # more: powers of the Gram matrix
    (60, {}, "hard"),
    (60, {"beta": 0.0, "weighting": None}, "hard"),
    (60, REFERENCE, "ignored"),
    (60, CLASSWISE, "hard"),
    (60, {**CLASSWISE, "prior_shift": 1.0}, "mixed"),
    (60, {"ema": "class", "beta": 0.5, "ema_start": "first"}, "hard"),
    (60, {"mixed": "soft", "beta": 0.9}, "mixed"),
    (60, {"solver": "svd"}, "hard"),
    # many: the iterative search
    (200, {}, "hard"),
    (200, {"beta": 0.0}, "hard"),
    (200, REFERENCE, "hard"),
    (200, CLASSWISE, "hard"),
    (200, {**CLASSWISE, "prior_shift": 1.0}, "ignored"),
    (200, {"ema": "class", "beta": 0.5, "ema_start": "first"}, "mixed"),
    (200, {"beta": 0.9, "normalize_weights": True}, "soft"),
    (200, {"beta": 0.9, "solver": "svd"}, "hard"),
    # so many that only those seen lately are stored
    (700, {"beta": 0.0}, "hard"),
    (700, {"beta": 0.1}, "hard"),  # and forgotten within a few steps
    # the soft maximum of the class errors
    *[(7, WORST, kind) for kind in ("hard", "soft", "mixed", "ignored")],
    *[(7, {"norm": "worst", "beta": 0.9, "mixed": mode}, "mixed") for mode in ("masked", "soft", "dominant", "clean")],
    *[
        (7, {"norm": "worst", "surrogate": form, "gamma": 0.5}, "mixed")
        for form in ("no-gate", "no-softmax", "no-both")
    ],
    *[(7, {"norm": "worst", "temperature": 2.0, "sharpness": sharpness}, "hard") for sharpness in (0.0, 3.0)],
    (7, {**REFERENCE, "norm": "worst"}, "hard"),
    (2, WORST, "hard"),
    (60, {"norm": "worst"}, "hard"),
    (60, {**CLASSWISE, "norm": "worst"}, "mixed"),
    (200, WORST, "hard"),
]
PRECISE = [
    (size, {**options, "weighting": None}, kind)
    for size in (7, 60, 200)
    for options, kind in [({}, "hard"), ({"beta": 0.9, "ema_start": "first"}, "mixed"), (CLASSWISE, "hard")]
] + [(7, WORST, "mixed"), (60, WORST, "hard")]


@pytest.fixture(params=["adaptive", "fixed"], autouse=True)
def path(request, monkeypatch):
    """Every test runs on the path of a CPU and on that of an accelerator."""
    monkeypatch.setattr(car_module, "LIVE_FROM", 650)  # what is there for thousands of classes has 700 to show it
    if request.param == "fixed":
        monkeypatch.setitem(CAR.__init__.__kwdefaults__, "solver", "fixed")
    return request.param


adaptive_only = pytest.mark.parametrize("path", ["adaptive"], indirect=True)


# What is compiled takes the path of an accelerator anyway: eager mode on the path of a CPU is the better oracle.
# torch.compile itself makes an instance of an autograd function, and torch warns about it
traced = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def name(value):
    return ",".join(f"{key}={item}" for key, item in value.items()) or "default" if isinstance(value, dict) else None


def slow(counts, options):
    return SlowCAR(counts, **{key: value for key, value in options.items() if key != "solver"})


@cache  # for both paths
def slow_steps(num_classes, options, steps, data):
    """Batches with the value, the gradient and the gap of the slow ones at each; and the confusion in the end."""
    counts = long_tail(num_classes)
    reference, found = slow(counts, dict(options)), []
    for logits, target in batches(counts, steps, **dict(data)):
        found.append((logits, target, *value_and_gradient(reference, logits, target), reference.gap()))
    return found, reference.confusion


def warmed(num_classes=7, steps=3, dtype=torch.float32, **options):
    """A CAR that has seen a few batches."""
    car = CAR(long_tail(num_classes), **options)
    for logits, target in batches(long_tail(num_classes), steps, dtype=dtype, seed=9):
        car(logits, target)
    return car


def follow(num_classes, options, kind, dtype, value_tolerance, gradient_tolerance, steps=20, **data):
    """Run CAR and the slow one side by side."""
    car, compared = CAR(long_tail(num_classes), **options), 0
    data = {"size": 12 if num_classes < 10 else 24, "seed": num_classes, "dtype": dtype, "kind": kind, **data}
    reference, confusion = slow_steps(num_classes, tuple(options.items()), steps, tuple(data.items()))
    for step, (logits, target, wanted, wanted_gradient, gap) in enumerate(reference):
        value, gradient = value_and_gradient(car, logits, target)
        assert value.dtype == gradient.dtype == dtype
        if gap <= 0.95:
            assert_near(value, wanted, value_tolerance, f"value at step {step}")
            if wanted_gradient.any():  # with two classes a sample may have nothing to say
                assert_near(gradient, wanted_gradient, gradient_tolerance, f"gradient at step {step}")
            else:
                assert gradient.abs().max() < 1e-12
            compared += 1
        else:  # almost a tie of the two largest singular values: the direction is free, the value hardly
            assert_near(value, wanted, 10 * value_tolerance, f"value at step {step}, near a tie,")
    if car.norm == "spectral":
        assert_near(car.confusion, confusion, value_tolerance, "confusion")
    assert_near(car.errors, confusion.sum(0), value_tolerance, "errors")
    assert compared >= steps // 3


@pytest.mark.parametrize(("num_classes", "options", "kind"), RUNS, ids=name)
def test_many_steps_follow_the_slow_ones(num_classes, options, kind):
    steps = 40 if not options else 20 if num_classes < 200 else 12  # loops over many classes are slow
    follow(num_classes, options, kind, torch.float32, 1e-5, 1e-4 if options.get("norm") == "worst" else 1e-3, steps)


@adaptive_only  # a fixed number of steps has a fixed accuracy
@pytest.mark.parametrize(("num_classes", "options", "kind"), PRECISE, ids=name)
def test_many_steps_in_float64_follow_the_slow_ones(num_classes, options, kind):
    follow(num_classes, options, kind, torch.float64, 1e-10, 1e-8)


@adaptive_only  # it has no paths, no solvers, and needs no size
@pytest.mark.parametrize(
    ("num_classes", "options", "kind"), [run for run in RUNS if run[0] < 200 and "solver" not in run[1]], ids=name
)
def test_the_reference_class_is_the_slow_one(num_classes, options, kind):
    """The definition that is shipped, against the loops that nobody would ship."""
    counts = long_tail(num_classes)
    definition, reference = CARReference(counts, **options), slow(counts, options)
    for batch in batches(counts, 4, size=12, dtype=torch.float64, kind=kind):
        value, gradient = value_and_gradient(definition, *batch)
        wanted, wanted_gradient = value_and_gradient(reference, *batch)
        assert_near(value, wanted, 1e-10)
        if reference.gap() <= 0.95:
            assert_near(gradient, wanted_gradient, 1e-7)
    assert_near(definition.confusion, reference.confusion, 1e-12)
    before = definition.confusion
    definition.eval()(*batch)
    assert definition.confusion is before


@pytest.mark.parametrize("options", [{}, {"normalize_weights": True}, {"weighting": None, "prior_shift": 1}], ids=name)
def test_weights_and_priors_are_float64_for_float64_logits(options):
    follow(7, options, "hard", torch.float64, 1e-12, 1e-10, steps=5)


@pytest.mark.parametrize("beta", [1e-20, 1e-3, 0.999])
@pytest.mark.parametrize("num_classes", [7, 60, 200])
def test_extreme_rates_follow_the_slow_ones(num_classes, beta):
    follow(num_classes, {"beta": beta}, "hard", torch.float32, 1e-5, 1e-3, steps=8)


@pytest.mark.parametrize(
    ("num_classes", "options", "batch"),
    all_pairs([7, 60, 200], [{}, {"beta": 0.0}, CLASSWISE], [(1, 1.0, 3.0), (6, 1.0, 0.0), (6, 5.0, 8.0)]),
    ids=name,
)
def test_few_samples_follow_the_slow_ones(num_classes, options, batch):
    size, scale, lead = batch
    follow(num_classes, options, "hard", torch.float32, 1e-5, 1e-3, steps=10, size=size, scale=scale, lead=lead)


@pytest.mark.parametrize("num_classes", [7, 60, 200])
@pytest.mark.parametrize("ema", ["batch", "class"])
@pytest.mark.parametrize("seed", [0, 1])
def test_samples_far_on_the_right_side_stay_harmless(num_classes, ema, seed):
    counts = long_tail(num_classes)
    car, reference = CAR(counts, ema=ema), SlowCAR(counts, ema=ema)
    for logits, target in batches(counts, 12, size=1, scale=6.0, lead=30.0, seed=seed):
        value, gradient = value_and_gradient(car, logits, target)
        wanted, wanted_gradient = value_and_gradient(reference, logits, target)
        assert abs(value - wanted) <= 1e-5 * wanted + 1e-15
        assert (gradient - wanted_gradient).abs().max() <= 1e-3 * wanted_gradient.abs().max() + 1e-8


@adaptive_only
def test_thousands_of_classes_are_stored_sparsely_and_follow_the_slow_ones(monkeypatch):
    monkeypatch.setattr(car_module, "LIVE_FROM", LIVE_FROM)
    counts = long_tail(2100)
    car, reference = CAR(counts), SlowCAR(counts)
    for logits, target in batches(counts, 8, size=4):
        value, gradient = value_and_gradient(car, logits, target)
        wanted, wanted_gradient = value_and_gradient(reference, logits, target)
        assert_near(value, wanted, 1e-5)
        assert_near(gradient, wanted_gradient, 1e-3)
    assert_near(car.confusion, reference.confusion, 1e-5)
    assert sum(value.numel() for value in car.state_dict().values()) < 2100 * 2100 / 4


@pytest.mark.parametrize("ema", ["batch", "class"])
def test_a_class_ignored_at_first_still_starts_from_its_first_estimate(ema):
    counts, options = long_tail(7), {"ema": ema, "ema_start": "first"}
    car, reference = CAR(counts, **options), SlowCAR(counts, **options)
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    for target in (torch.tensor([-100, 3, 4, -100]), torch.tensor([0, 3, 0, 5])):
        value, gradient = value_and_gradient(car, logits, target)
        wanted, wanted_gradient = value_and_gradient(reference, logits, target)
        assert_near(value, wanted, 1e-5)
        assert_near(gradient, wanted_gradient, 1e-4)
    assert_near(car.confusion, reference.confusion, 1e-5)


@pytest.mark.parametrize("mixed", ["masked", "soft", "clean"])
def test_a_label_without_mass_is_not_a_first_estimate(mixed):
    counts, options = long_tail(7), {"ema": "class", "ema_start": "first", "mixed": mixed}
    car, reference = CAR(counts, **options), SlowCAR(counts, **options)
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    lam = torch.tensor([1.0, 0.0, 0.5 if mixed == "clean" else 1.0])
    for target in (MixedTarget(torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5]), lam), torch.tensor([3, 2, 5])):
        assert_near(car(logits, target), reference(logits, target), 1e-5)
    assert_near(car.confusion, reference.confusion, 1e-5)


@pytest.mark.parametrize("num_classes", [7, 60, 200])
@pytest.mark.parametrize("options", [{}, CLASSWISE], ids=name)
def test_last_is_a_singular_triplet_of_the_weighted_confusion(num_classes, options):
    car = warmed(num_classes, **options)
    matrix, last = car.confusion * car.weights.float(), car.last
    for vector in (last.left, last.right):
        assert vector.shape == (num_classes,)
        assert vector.min() >= -1e-6
        assert not vector.requires_grad
        assert_near(vector.norm(), torch.tensor(1.0), 1e-5)
    assert_near(matrix @ last.right, last.spectral_norm * last.left, 1e-4)
    assert_near(matrix.T @ last.left, last.spectral_norm * last.right, 1e-4)
    assert isinstance(last.iterations, int)
    assert last.residual >= 0


def test_confusion_is_detached_and_a_copy():
    car = warmed()
    before = snapshot(car)
    car.confusion.zero_()
    assert not car.confusion.requires_grad
    assert car.confusion.shape == (7, 7)
    assert not car.confusion.diagonal().any()
    assert_same_state(car, before)


@pytest.mark.parametrize("num_classes", [5, 60, 200])
@pytest.mark.parametrize("options", [{}, CLASSWISE, {"prior_shift": 1.0, "surrogate": "no-gate"}], ids=name)
def test_gradient_by_finite_differences(num_classes, options):
    counts = long_tail(num_classes)
    (logits, target), (later, _) = batches(counts, 2, size=2, dtype=torch.float64)
    car = warmed(num_classes, dtype=torch.float64, **options).eval()
    later = later[:, : 40 // num_classes + 1]  # a few of the logits: many classes would take long

    def fresh(part):
        whole = torch.cat([part, logits[:, part.shape[1] :]], 1)
        return CAR(counts, **options)(whole, target)

    def with_history(part):
        return car(torch.cat([part, logits[:, part.shape[1] :]], 1), target)

    for fn in (fresh, with_history):
        assert torch.autograd.gradcheck(fn, later.clone().requires_grad_(), eps=1e-6, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("kind", ["hard", "soft", "mixed", "ignored"])
@pytest.mark.parametrize(
    "options",
    [{}, CLASSWISE, {"gate_grad": False, "beta": 0.9}, {"prior_shift": 1.0, "surrogate": "no-softmax"}],
    ids=name,
)
def test_second_derivative_keeps_the_singular_vectors_fixed(kind, options):
    counts = long_tail(7)
    car, reference = CAR(counts, **options), SlowCAR(counts, **options)
    for logits, target in batches(counts, 3, dtype=torch.float64, kind=kind):
        logits.requires_grad_()
        direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def curvature(value, logits=logits, direction=direction):
            (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
            return torch.autograd.grad((gradient * direction).sum(), logits)[0]

        found = curvature(car(logits, target))
        reference(logits, target)
        wanted = curvature(car.last.left @ (reference.latest * reference.weights) @ car.last.right)
        assert_near(found, wanted, 1e-6)
        assert float(wanted.norm()) > 1e-4


@pytest.mark.parametrize(
    ("num_classes", "ema"),
    [(7, "batch"), (7, "class"), (60, "batch"), (60, "class"), (200, "batch"), (200, "class"), (700, "batch")],
)
def test_eval_gives_value_and_gradient_and_changes_nothing(num_classes, ema):
    counts = long_tail(num_classes)
    car, reference = CAR(counts, ema=ema), SlowCAR(counts, ema=ema)
    *first, (logits, target) = batches(counts, 4, size=8)
    for earlier in first:
        car(*earlier), reference(*earlier)
    before = snapshot(car)
    wanted, wanted_gradient = value_and_gradient(lambda *batch: reference(*batch, commit=False), logits, target)
    car.eval()
    for _ in range(2):
        value, gradient = value_and_gradient(car, logits, target)
        assert_near(value, wanted, 1e-5)
        assert_near(gradient, wanted_gradient, 1e-3)
    car.train()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert_near(car(logits, target), wanted, 1e-5)
    assert_same_state(car, before)
    assert_near(car(logits, target), wanted, 1e-5)
    assert any(not torch.equal(value, before[key]) for key, value in car.state_dict().items())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_float64_logits_that_are_not_learned_from_change_nothing(context):
    car = warmed().train(context is not contextlib.nullcontext)
    before = snapshot(car)
    logits, target = oracle.one_batch(dtype=torch.float64)
    with context():
        assert car(logits, target).dtype == torch.float64
    assert_same_state(car, before)
    car.train()(logits, target)


def test_the_history_moves_once_per_forward():
    counts, twice = long_tail(7), CAR(long_tail(7))
    logits, target = oracle.one_batch()
    reference = SlowCAR(counts)
    for _ in range(2):
        logits.requires_grad_()
        loss = twice(logits, target)
        loss.backward(retain_graph=True)
        loss.backward()
        reference(logits, target)
    assert_near(twice.confusion, reference.confusion, 1e-5)


@pytest.mark.parametrize("num_classes", [7, 60, 200, 700])
def test_reset_makes_it_new(num_classes):
    counts = long_tail(num_classes)
    car, new = warmed(num_classes, ema_start="first"), CAR(counts, ema_start="first")
    car.reset()
    assert not car.confusion.any()
    assert_same_state(car, snapshot(new))
    for batch in batches(counts, 3, size=8):
        found, wanted = value_and_gradient(car, *batch), value_and_gradient(new, *batch)
        assert all(map(torch.equal, found, wanted))


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    ("num_classes", "options", "dtype"),
    [
        (7, {}, torch.float32),
        (7, {"ema": "class", "ema_start": "first"}, torch.float64),
        (60, {"beta": 0.9}, torch.float64),
        (60, CLASSWISE, torch.float32),
        (200, {}, torch.float32),
        (200, CLASSWISE, torch.float32),
        (200, CLASSWISE, torch.float64),
        (700, {}, torch.float64),
        (700, {"ema_start": "first", "beta": 0.1}, torch.float32),
        (7, WORST, torch.float32),
        (60, WORST, torch.float64),
        (200, {"norm": "worst"}, torch.float32),
    ],
    ids=name,
)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(num_classes, options, dtype):
    counts = long_tail(num_classes)
    data = list(batches(counts, 10, size=8, dtype=dtype))
    whole, first = CAR(counts, **options), CAR(counts, **options)
    for batch in data[:5]:
        whole(*batch), first(*batch)
    resumed = CAR(counts, **options)
    resumed.load_state_dict(through_a_file(first.state_dict()))
    copied = CAR(counts, **options)
    copied.load_state_dict(first.state_dict())
    assert_same_state(resumed, snapshot(whole))
    for batch in data[5:]:
        wanted = value_and_gradient(whole, *batch)
        for car in (resumed, copied):
            assert all(map(torch.equal, value_and_gradient(car, *batch), wanted))
    assert_same_state(resumed, snapshot(whole))
    assert_same_state(copied, snapshot(whole))


def test_a_saved_state_does_not_move_with_the_run():
    car = warmed()
    state = car.state_dict()
    kept = {key: value.clone() for key, value in state.items()}
    other = CAR(long_tail(7))
    other.load_state_dict(state)
    other(*oracle.one_batch())
    assert all(torch.equal(state[key], value) for key, value in kept.items())


@pytest.mark.parametrize(("size", "other"), [(7, 8), (60, 7), (700, 701), (700, 7), (7, 700)])
def test_the_state_of_other_classes_is_refused(size, other):
    car = warmed(size)
    before = snapshot(car)
    with pytest.raises(RuntimeError, match=f"{other} classes.* {size}.*class_counts"):
        car.load_state_dict(warmed(other).state_dict())
    assert_same_state(car, before)


@pytest.mark.parametrize(("change", "words"), [("missing", "Missing key"), ("unexpected", "Unexpected key")])
def test_a_state_with_other_keys_is_refused(change, words):
    car = warmed()
    state, before = snapshot(car), snapshot(car)
    if change == "missing":
        del state[next(iter(state))]
    else:
        state[next(iter(state)) + "_more"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=words):
        car.load_state_dict(state)
    assert_same_state(car, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_classes", [7, 60, 200])
def test_low_precision_logits_are_computed_in_float32(dtype, num_classes):
    low, exact = CAR(long_tail(num_classes)), CAR(long_tail(num_classes))
    rough = CAR(long_tail(num_classes))
    for logits, target in batches(long_tail(num_classes), 4):
        value, gradient = value_and_gradient(low, logits.to(dtype), target)
        wanted, wanted_gradient = value_and_gradient(exact, logits.to(dtype).float(), target)
        assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
        assert torch.equal(value, wanted)
        assert torch.equal(gradient, wanted_gradient.to(dtype))
        assert_near(value, rough(logits, target), 2e-2)


def test_autocast_does_not_reach_inside():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 60)
    inputs, target = torch.randn(24, 5), oracle.one_batch(60)[1]
    car, wanted = CAR(long_tail(60)), CAR(long_tail(60))
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(inputs)
            value = car(logits, target)
        value.backward()
        assert logits.dtype == torch.bfloat16
        assert value.dtype == torch.float32
        assert torch.equal(value, wanted(logits.detach().float().requires_grad_(), target))
        assert model.weight.grad.norm() > 0
    assert torch.equal(car.confusion, wanted.confusion)
    assert_near(value, CAR(long_tail(60), beta=0.0)(model(inputs), target) * (1 - 0.5**3), 2e-2)


@pytest.mark.parametrize("convert", ["half", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"ema": "class", "prior_shift": 1.0}], ids=name)
def test_casting_the_model_rounds_nothing_here(convert, options):
    car = warmed(**options)
    cast = getattr(copy.deepcopy(car), convert)()
    assert_same_state(cast, snapshot(car))
    assert torch.equal(cast.confusion, car.confusion)
    assert_near(cast.weights, car.weights, 1e-6)
    found, wanted = (value_and_gradient(each, *oracle.one_batch()) for each in (cast, car))
    assert all(map(torch.equal, found, wanted))


def test_float64_logits_switch_the_history_to_float64():
    car = warmed()
    assert car.confusion.dtype == torch.float32
    before = car.confusion.double()
    logits, target = oracle.one_batch(dtype=torch.float64)
    assert car(logits, target).dtype == torch.float64
    assert car.confusion.dtype == torch.float64
    new = oracle.soft_confusion(logits, target)
    assert_near(car.confusion, 0.5 * before + 0.5 * new, 1e-7)
    assert car(logits.float(), target).dtype == torch.float64  # what was kept so precisely is not thrown away


@traced
@adaptive_only
def test_compiled_is_eager():
    """With the averaging that tests/test_car_loss.py leaves out."""
    torch._dynamo.reset()
    counts, options = long_tail(60), {**CLASSWISE, "ema_start": "first"}
    eager, inner = CAR(counts, **options), CAR(counts, **options)
    compiled = torch.compile(inner, fullgraph=True, backend="aot_eager")
    for step, (logits, target) in enumerate(batches(counts, 5)):
        labels = target if step else target % 3  # a matrix of low rank at first
        wanted, wanted_gradient = value_and_gradient(eager, logits, labels)
        value, gradient = value_and_gradient(compiled, logits, labels)
        assert_near(value, wanted, 1e-4, f"value at step {step}")
        assert_near(gradient, wanted_gradient, 1e-3, f"gradient at step {step}")
    assert_near(inner.confusion, eager.confusion, 1e-5)
    for batch in batches(counts, 3, seed=1):  # and on in eager mode
        assert_near(inner(*batch), eager(*batch), 1e-4)


@traced
@adaptive_only
@pytest.mark.parametrize("kind", ["mixed", "soft", "ignored"])
def test_compiled_is_eager_for_other_labels(kind):
    torch._dynamo.reset()
    counts, options = long_tail(5), {"ema": "class", "ema_start": "first"}
    eager, inner = CAR(counts, **options), CAR(counts, **options)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(logits, target):
        return inner(logits, MixedTarget(*target) if isinstance(target, tuple) else target)

    for logits, target in batches(counts, 4, size=4, kind=kind):
        wanted, wanted_gradient = value_and_gradient(eager, logits, target)
        parts = (target.a, target.b, target.lam) if kind == "mixed" else target
        value, gradient = value_and_gradient(compiled, logits, parts)
        assert_near(value, wanted, 1e-4, "value")
        assert_near(gradient, wanted_gradient, 1e-3, "gradient")
    assert_near(inner.confusion, eager.confusion, 1e-5, "confusion")


@traced
@adaptive_only
def test_compiled_evaluation_changes_nothing():
    torch._dynamo.reset()
    car = warmed(700).eval()
    before = snapshot(car)
    logits, target = oracle.one_batch(700, size=8)
    wanted, wanted_gradient = value_and_gradient(car, logits, target)
    value, gradient = value_and_gradient(torch.compile(car, fullgraph=True, backend="aot_eager"), logits, target)
    assert_near(value, wanted, 1e-4)
    assert_near(gradient, wanted_gradient, 1e-3)
    assert_same_state(car, before)


@pytest.mark.parametrize(("preset", "settings"), [("reference", REFERENCE), ("classwise", CLASSWISE)])
def test_presets_are_their_settings(preset, settings):
    counts = long_tail(7)
    found, wanted = getattr(CAR, preset)(counts), CAR(counts, **settings)
    other = getattr(CAR, preset)(counts, beta=0.25)
    for batch in batches(counts, 3):
        assert all(map(torch.equal, value_and_gradient(found, *batch), value_and_gradient(wanted, *batch)))
        other(*batch)
    assert not torch.equal(other.confusion, found.confusion)


def test_reference_has_no_gradient_on_its_first_step():
    car = CAR.reference(long_tail(7))
    gradients = [value_and_gradient(car, *batch)[1] for batch in batches(long_tail(7), 2)]
    assert not gradients[0].any()
    assert gradients[1].any()


@pytest.mark.parametrize(("num_classes", "options"), [(7, {}), (60, {}), (200, CLASSWISE)], ids=name)
def test_renaming_the_classes_changes_nothing_else(num_classes, options):
    counts = long_tail(num_classes)
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    car, renamed = CAR(counts, **options), CAR(torch.tensor(counts)[order], **options)
    for logits, target in batches(counts, 4):
        value, gradient = value_and_gradient(car, logits, target)
        other, other_gradient = value_and_gradient(renamed, logits[:, order], place[target])
        assert_near(other, value, 1e-5)
        assert_near(other_gradient, gradient[:, order], 1e-3)
    assert_near(renamed.confusion, car.confusion[order][:, order], 1e-5)


def test_the_order_of_the_samples_does_not_matter():
    logits, target = oracle.one_batch()
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    value, gradient = value_and_gradient(CAR(long_tail(7)), logits, target)
    other, other_gradient = value_and_gradient(CAR(long_tail(7)), logits[order], target[order])
    assert_near(other, value, 1e-6)
    assert_near(other_gradient, gradient[order], 1e-4)


def test_uniform_counts_weigh_the_same():
    logits, target = oracle.one_batch()
    weighted, plain = CAR([9] * 7), CAR([9] * 7, weighting=None)
    assert_near(weighted(logits, target), plain(logits, target) * (1 / 7 + 0.2) ** -0.5, 1e-6)
    assert_near(CAR([9] * 7, normalize_weights=True).weights, torch.ones(7), 1e-6)


@pytest.mark.parametrize("given", [list, torch.tensor, ClassCounts])
def test_weights_are_those_of_the_formula(given):
    counts = long_tail(7)
    assert_near(CAR(given(counts), r0=0.05).weights, oracle.weights_of(counts, 0.05), 1e-7)


def test_empty_classes_can_be_ignored():
    car = CAR([10, 0, 5], on_empty="ignore", prior_shift=1.0)
    value, gradient = value_and_gradient(car, torch.randn(4, 3), torch.tensor([0, 2, 2, 0]))
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    assert_near(car.weights, torch.tensor([2 / 3 + 0.2, 0.2, 1 / 3 + 0.2]).rsqrt(), 1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_any_integer_type(dtype):
    logits, target = oracle.one_batch(120)
    assert torch.equal(CAR(long_tail(120))(logits, target.to(dtype)), CAR(long_tail(120))(logits, target))


def test_no_label_of_a_byte_is_taken_for_the_ignored_one():
    target = torch.tensor([156, 3], dtype=torch.uint8)  # -100 as a byte
    logits = torch.randn(2, 200, generator=torch.Generator().manual_seed(0))
    assert_near(CAR([5] * 200)(logits, target), CAR([5] * 200)(logits, target.long()), 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_soft_labels_of_any_precision(dtype):
    logits, target = oracle.one_batch(100)
    smooth = 0.9 * torch.nn.functional.one_hot(target, 100) + 0.001
    assert_near(CAR(long_tail(100))(logits, smooth.to(dtype)), CAR(long_tail(100))(logits, smooth), 5e-3)


@pytest.mark.parametrize("ignore_index", [-100, -1, 3, 255])
def test_ignored_samples_are_as_if_absent(ignore_index):
    logits, target = oracle.one_batch()
    target[::3] = ignore_index
    kept = target != ignore_index
    value, gradient = value_and_gradient(CAR(long_tail(7), ignore_index=ignore_index), logits, target)
    wanted, wanted_gradient = value_and_gradient(CAR(long_tail(7)), logits[kept], target[kept])
    assert_near(value, wanted, 1e-6)
    assert_near(gradient[kept], wanted_gradient, 1e-5)
    assert not gradient[~kept].any()


@pytest.mark.parametrize("num_classes", [7, 60, 200, 700])
@pytest.mark.parametrize("mixed", ["masked", "clean"])
def test_a_batch_without_a_usable_label_says_nothing(num_classes, mixed):
    car = warmed(num_classes, mixed=mixed)
    before = snapshot(car)
    logits, labels = oracle.one_batch(num_classes, size=4)
    nothing = torch.full_like(labels, -100)
    if mixed == "clean":
        nothing = MixedTarget(labels, (labels + 1) % num_classes, 0.5)
    value, gradient = value_and_gradient(car, logits, nothing)
    assert value == 0
    assert not gradient.any()
    assert_same_state(car, before)


@pytest.mark.parametrize("num_classes", [7, 60, 200, 700])
@pytest.mark.parametrize("lead", [12.0, 30.0, 60.0, 1e4])
def test_sure_and_right_predictions_stay_finite(num_classes, lead):
    counts = long_tail(num_classes)
    car, reference = CAR(counts), SlowCAR(counts)
    labels = torch.arange(5) % num_classes
    logits = torch.nn.functional.one_hot(labels, num_classes) * lead
    for _ in range(2):
        value, gradient = value_and_gradient(car, logits, labels)
        assert torch.isfinite(gradient).all()
        assert abs(value - float(reference(logits.clamp(max=300), labels))) <= 1e-4 * value + 1e-20


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda car: pickle.loads(pickle.dumps(car))])
@pytest.mark.parametrize("num_classes", [7, 60, 700])
def test_copies_go_their_own_way(clone, num_classes):
    car = warmed(num_classes)
    twin, before = clone(car), snapshot(car)
    batch = oracle.one_batch(num_classes, size=8)
    found = value_and_gradient(twin, *batch)
    assert_same_state(car, before)
    assert all(map(torch.equal, found, value_and_gradient(car, *batch)))


def test_repr_tells_the_settings():
    text = repr(CAR.classwise(long_tail(7)))
    assert all(part in text for part in ("7 classes", "'class'", "0.9", "2.0", "'non-target'"))


@pytest.mark.parametrize("num_classes", [7, 200, 700])
def test_a_state_saved_under_other_weights_keeps_its_confusion(num_classes):
    counts = long_tail(num_classes)
    saved = CAR(counts, r0=0.2)
    for batch in batches(counts, 3):
        saved(*batch)
    loaded = CAR(counts, r0=0.01)
    loaded.load_state_dict(saved.state_dict())
    assert_near(loaded.confusion, saved.confusion, 1e-6)
    assert_near(loaded.weights, SF.class_weights(counts, r0=0.01), 1e-6)


def test_a_loss_over_ignored_samples_only_is_zero():
    logits = torch.randn(4, 7, requires_grad=True)
    loss = CARLoss(long_tail(7))(logits, torch.full((4,), -100))
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


@pytest.mark.parametrize("num_classes", [7, 200])
def test_a_retained_graph_gives_its_gradient_again(num_classes):
    logits, target = oracle.one_batch(num_classes, dtype=torch.float64)
    logits.requires_grad_(True)
    value = CAR(long_tail(num_classes))(logits, target)
    first, second = (torch.autograd.grad(3 * value, logits, retain_graph=True)[0] for _ in range(2))
    assert first.any()
    assert_near(second, first, 1e-12)


def test_two_forwards_before_their_backwards_keep_their_gradients_apart():
    counts = long_tail(60)
    together, apart = CAR(counts), CAR(counts)
    data = [(logits.requires_grad_(True), target) for logits, target in batches(counts, 2)]
    values = [together(*batch) for batch in data]
    for value, (logits, target) in zip(values, data, strict=True):
        twin = logits.detach().clone().requires_grad_(True)
        apart(twin, target).backward()
        (gradient,) = torch.autograd.grad(value, logits)
        assert torch.equal(gradient, twin.grad)
