import copy
import io
import pickle

import oracle
import pytest
import torch
import torch.nn.functional as F
from oracle import SlowCAR, assert_near, assert_same_state, batches, long_tail, snapshot, value_and_gradient

from spectail import CAR, CARLoss, MixedTarget
from spectail.car import PRESETS

COUNTS = long_tail(7)
traced = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def slow_cross_entropy(logits, target):
    """Mean over the samples that are not ignored of the label mass times minus the log probability."""
    losses = []
    for q, scores in enumerate(logits.double().log_softmax(1)):
        labels = oracle.labels_of(target, q, "soft", -100)
        if labels:
            losses.append(-sum(mass * scores[j] for j, mass, _ in labels))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("kind", ["hard", "soft", "mixed", "ignored"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 10.0])
def test_loss_is_cross_entropy_plus_alpha_times_car(kind, alpha):
    criterion, reference = CARLoss(COUNTS, alpha), SlowCAR(COUNTS)
    for batch in batches(COUNTS, 3, kind=kind):
        value, gradient = value_and_gradient(criterion, *batch)
        wanted, wanted_gradient = value_and_gradient(
            lambda *batch: slow_cross_entropy(*batch) + alpha * reference(*batch), *batch
        )
        assert_near(value, wanted, 1e-5)
        assert_near(gradient, wanted_gradient, 1e-4)


def test_hard_labels_are_the_cross_entropy_of_torch():
    logits, target = oracle.one_batch()
    found = CARLoss(COUNTS)(logits, target)
    assert_near(found, F.cross_entropy(logits, target) + 0.5 * CAR(COUNTS)(logits, target), 1e-6)


@pytest.mark.parametrize("labels", [[0, 1, -100], [-100, 1, 2], [0, 1, 2]])
def test_mixed_labels_of_one_class_are_hard_labels(labels):
    labels, logits = torch.tensor(labels), torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    wanted = CARLoss(COUNTS)(logits, labels)
    for lam in (1.0, 0.3):
        assert_near(CARLoss(COUNTS)(logits, MixedTarget(labels, labels, lam)), wanted, 1e-6)


def test_a_mixed_sample_is_left_out_whole():
    logits = torch.randn(2, 7, generator=torch.Generator().manual_seed(0))
    found = CARLoss(COUNTS)(logits, MixedTarget(torch.tensor([0, 1]), torch.tensor([2, -100]), 0.5))
    wanted = CARLoss(COUNTS)(logits[:1], MixedTarget(torch.tensor([0]), torch.tensor([2]), 0.5))
    assert_near(found, wanted, 1e-6)


@pytest.mark.parametrize(
    "target", [torch.tensor([0, 1, 255]), MixedTarget(torch.tensor([0, 1, 255]), torch.arange(3), 1)]
)
def test_ignore_index_reaches_the_cross_entropy(target):
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    found = CARLoss(COUNTS, ignore_index=255)(logits, target)
    assert_near(found, CARLoss(COUNTS)(logits[:2], torch.tensor([0, 1])), 1e-6)


@pytest.mark.parametrize("kind", ["hard", "mixed"])
def test_any_base_loss_gets_what_came(kind):
    logits, target = oracle.one_batch(kind=kind)
    seen = []

    def base(logits, target):
        seen.append((logits, target))
        return logits.square().mean()

    value, gradient = value_and_gradient(CARLoss(COUNTS, 2.0, base), logits, target)
    penalty, penalty_gradient = value_and_gradient(CAR(COUNTS), logits, target)
    assert_near(value, logits.square().mean() + 2 * penalty, 1e-6)
    assert_near(gradient, 2 * logits / logits.numel() + 2 * penalty_gradient, 1e-5)
    assert seen[0][1] is target


def test_a_base_module_is_a_submodule():
    base = torch.nn.CrossEntropyLoss(weight=torch.ones(7))
    assert "base.weight" in dict(CARLoss(COUNTS, base=base).named_buffers())


def test_parts_are_detached_and_add_up():
    criterion = CARLoss(COUNTS, 0.25)
    logits, target = oracle.one_batch()
    loss = criterion(logits.requires_grad_(), target)
    parts = criterion.parts
    assert sorted(parts) == ["alpha", "base", "car"]
    assert not any(part.requires_grad for part in parts.values())
    assert parts["alpha"] == 0.25
    assert_near(parts["base"], F.cross_entropy(logits, target), 1e-6)
    assert_near(parts["car"], criterion.car.last.spectral_norm, 0)
    assert_near(parts["base"] + parts["alpha"] * parts["car"], loss, 1e-6)


@pytest.mark.parametrize(
    ("start", "warmup", "wanted"),
    [
        (0, 0, [2, 2, 2, 2, 2, 2]),
        (3, 0, [0, 0, 0, 2, 2, 2]),
        (0, 4, [0.5, 1, 1.5, 2, 2, 2]),
        (2, 2, [0, 0, 1, 2, 2, 2]),
    ],
)
def test_the_weight_starts_late_and_rises_linearly(start, warmup, wanted):
    criterion, always = CARLoss(COUNTS, 2.0, start_step=start, warmup_steps=warmup), CAR(COUNTS)
    for (logits, target), alpha in zip(batches(COUNTS, 6), wanted, strict=True):
        criterion.eval()(logits, target)  # looking does not count as a step
        assert criterion.parts["alpha"] == alpha
        with torch.no_grad():
            criterion.train()(logits, target)
        value, gradient = value_and_gradient(criterion, logits, target)
        assert criterion.parts["alpha"] == alpha
        penalty, penalty_gradient = value_and_gradient(always, logits, target)
        base, base_gradient = value_and_gradient(F.cross_entropy, logits, target)
        assert_near(value, base + alpha * penalty, 1e-6)
        assert_near(gradient, base_gradient + alpha * penalty_gradient, 1e-5)
    assert torch.equal(criterion.car.confusion, always.confusion)  # the history filled all the while


@pytest.mark.parametrize("options", [{"start_step": 2, "warmup_steps": 6}, {"ema": "class", "beta": 0.9}])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(options):
    data = list(batches(COUNTS, 8))
    whole, first, resumed = (CARLoss(COUNTS, **options) for _ in range(3))
    for batch in data[:4]:
        whole(*batch), first(*batch)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for batch in data[4:]:
        assert all(map(torch.equal, value_and_gradient(resumed, *batch), value_and_gradient(whole, *batch)))
        assert all(torch.equal(resumed.parts[key], part) for key, part in whole.parts.items())
    assert_same_state(resumed, snapshot(whole))


def test_the_state_of_other_classes_is_refused_and_leaves_all_as_it_was():
    criterion, other = CARLoss(COUNTS), CARLoss(long_tail(9))
    other(*oracle.one_batch(9))
    before = snapshot(criterion)
    with pytest.raises(RuntimeError, match="9 classes"):
        criterion.load_state_dict(other.state_dict())
    assert_same_state(criterion, before)


def test_looking_changes_nothing():
    criterion = CARLoss(COUNTS, warmup_steps=3)
    batch = oracle.one_batch()
    criterion(*batch)
    before = snapshot(criterion)
    value, gradient = value_and_gradient(criterion.eval(), *batch)
    with torch.no_grad():
        assert torch.equal(criterion.train()(*batch), value)
    assert gradient.any()
    assert_same_state(criterion, before)
    criterion(*batch)
    assert criterion.state_dict()["step"] == 2


def test_accumulated_micro_batches_average_their_gradients():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 7)
    twin = copy.deepcopy(model)
    criterion, reference = CARLoss(COUNTS, 2.0), SlowCAR(COUNTS)
    targets = [target for _, target in batches(COUNTS, 3, size=8)]
    inputs = torch.randn(3, 8, 5)
    for x, target in zip(inputs, targets, strict=True):
        (criterion(model(x), target) / 3).backward()
    losses = [
        F.cross_entropy(logits, target) + 2 * reference(logits, target)
        for logits, target in zip(map(twin, inputs), targets, strict=True)
    ]
    torch.stack(losses).mean().backward()
    assert_near(model.weight.grad, twin.weight.grad, 1e-4)
    assert_near(criterion.car.confusion, reference.confusion, 1e-5)  # one move per micro-batch


@pytest.mark.parametrize(("preset", "alpha"), [("reference", 0.3), ("classwise", 10.0)])
def test_presets_are_those_of_car_with_their_alpha(preset, alpha):
    found, car = getattr(CARLoss, preset)(COUNTS), getattr(CAR, preset)(COUNTS)
    for logits, target in batches(COUNTS, 3):
        wanted = F.cross_entropy(logits, target) + alpha * car(logits, target)
        assert_near(found(logits, target), wanted, 1e-6)
    assert getattr(CARLoss, preset)(COUNTS, alpha=1.5).alpha == 1.5


@pytest.mark.parametrize("name", ["balanced", "worst"])
@pytest.mark.parametrize("tau", [None, 0.5, 2.0])
def test_balanced_and_worst_are_balanced_softmax_and_car_on_the_same_logits(name, tau):
    make, preset = getattr(CARLoss, name), PRESETS[name]
    found = make(COUNTS) if tau is None else make(COUNTS, tau)
    tau = preset.tau if tau is None else tau
    car = CAR(COUNTS, **preset.options)
    shift = tau * (torch.tensor(COUNTS) / sum(COUNTS)).log()
    for logits, target in batches(COUNTS, 3):
        wanted = F.cross_entropy(logits + shift, target) + preset.alpha * car(logits + shift, target)
        assert_near(found(logits, target), wanted, 1e-5)
    assert make(COUNTS, alpha=0.0, tau=tau)(logits, target) == pytest.approx(
        F.cross_entropy(logits + shift, target).item(), abs=1e-6
    )


@pytest.mark.parametrize("name", ["balanced", "worst"])
def test_balanced_and_worst_have_their_own_loss(name):
    with pytest.raises(ValueError, match=f"CARLoss.{name} has a loss of its own, Balanced Softmax; leave base out"):
        getattr(CARLoss, name)(COUNTS, base=torch.nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match=f"prior_shift of CARLoss.{name} must be given as tau; got 1"):
        getattr(CARLoss, name)(COUNTS, prior_shift=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
def test_low_precision_logits_give_a_float32_loss(dtype, kind):
    logits, target = oracle.one_batch(kind=kind)
    value, gradient = value_and_gradient(CARLoss(COUNTS), logits.to(dtype), target)
    assert (value.dtype, gradient.dtype) == (torch.float32, dtype)
    assert_near(value, CARLoss(COUNTS)(logits, target), 1e-2)


def test_autocast_gives_a_float32_loss():
    torch.manual_seed(0)
    model, criterion, (_, target) = torch.nn.Linear(5, 7), CARLoss(COUNTS), oracle.one_batch()
    inputs = torch.randn(24, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(inputs), target)
    loss.backward()
    assert loss.dtype == torch.float32
    assert_near(loss, CARLoss(COUNTS)(model(inputs), target), 1e-2)
    assert model.weight.grad.any()


@traced
def test_compiled_is_eager():
    torch._dynamo.reset()
    counts = long_tail(60)
    eager, inner = (CARLoss(counts, 2.0, start_step=1, warmup_steps=2) for _ in range(2))
    compiled = torch.compile(inner, fullgraph=True, backend="aot_eager")
    for batch in batches(counts, 4):
        value, gradient = value_and_gradient(compiled, *batch)
        wanted, wanted_gradient = value_and_gradient(eager, *batch)
        assert_near(value, wanted, 1e-4)
        assert_near(gradient, wanted_gradient, 1e-3)
    assert_near(inner.car.confusion, eager.car.confusion, 1e-4)
    assert inner.state_dict()["step"] == 4


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_copies_go_their_own_way(clone):
    criterion, batch = CARLoss(COUNTS, warmup_steps=9), oracle.one_batch()
    criterion(*batch)
    twin, before = clone(criterion), snapshot(criterion)
    found = value_and_gradient(twin, *batch)
    assert_same_state(criterion, before)
    assert all(map(torch.equal, found, value_and_gradient(criterion, *batch)))


def side_by_side(num_classes, **options):
    """A loss that shares its softmax with CAR, and one that does not know that its base is cross entropy."""
    counts = long_tail(num_classes)
    return CARLoss(counts, **options), CARLoss(counts, base=F.cross_entropy, **options)


@pytest.mark.parametrize("num_classes", [7, 60, 200, 700, 2100])
@pytest.mark.parametrize("norm", ["spectral", "worst"])
@pytest.mark.parametrize("options", [{}, {"gamma": 2.0, "competitors": "non-target", "ema": "class", "beta": 0.9}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_softmax_gives_the_loss_of_two(num_classes, options, dtype, norm):
    shared, apart = side_by_side(num_classes, alpha=2.0, warmup_steps=3, norm=norm, **options)
    limit = 1e-5 if dtype == torch.float32 else 1e-10
    for logits, target in batches(long_tail(num_classes), 4, dtype=dtype):
        value, gradient = value_and_gradient(shared, logits, target)
        wanted, wanted_gradient = value_and_gradient(apart, logits, target)
        assert_near(value, wanted, limit)
        assert_near(gradient, wanted_gradient, limit)
        for part in ("base", "car", "alpha"):
            assert_near(shared.parts[part], apart.parts[part], limit)
            assert not shared.parts[part].requires_grad
    assert_same_state(shared.car, snapshot(apart.car))


@pytest.mark.parametrize("num_classes", [7, 60, 700])
def test_a_label_without_any_chance_has_a_finite_loss(num_classes):
    shared, apart = side_by_side(num_classes)
    logits, target = torch.zeros(4, num_classes), torch.tensor([0, 1, 2, 3])
    logits[0, 5] = 300.0
    value, gradient = value_and_gradient(shared, logits, target)
    wanted, wanted_gradient = value_and_gradient(apart, logits, target)
    assert_near(value, wanted, 1e-6)
    assert_near(gradient, wanted_gradient, 1e-5)


@pytest.mark.parametrize("num_classes", [7, 60, 700])
def test_the_shared_loss_can_be_differentiated_twice_and_again(num_classes):
    shared, apart = side_by_side(num_classes)
    ((logits, target),) = batches(long_tail(num_classes), 1, dtype=torch.float64)
    found = []
    for criterion in (shared, apart):
        inputs = logits.clone().requires_grad_()
        loss = 3 * criterion(inputs, target)
        (once,) = torch.autograd.grad(loss, inputs, retain_graph=True)
        (again,) = torch.autograd.grad(loss, inputs, retain_graph=True)
        assert torch.equal(once, again)
        (gradient,) = torch.autograd.grad(loss, inputs, create_graph=True)
        assert_near(gradient, once, 1e-8)
        (second,) = torch.autograd.grad((gradient * torch.linspace(0, 1, gradient[0].numel())).sum(), inputs)
        found.append((once, second))
    for mine, wanted in zip(*found, strict=True):
        assert_near(mine, wanted, 1e-7)


def test_the_gradient_of_the_shared_loss_is_handed_over_without_a_copy():
    """A copy of it costs as much as a pass over the logits."""
    criterion = CARLoss(long_tail(60))
    ((logits, target),) = batches(long_tail(60), 1)
    handed = []
    logits.requires_grad_()
    loss = criterion(logits, target)
    loss.grad_fn.register_hook(lambda inputs, outputs: handed.append(inputs[0].data_ptr()))
    loss.backward()
    assert logits.grad.data_ptr() == handed[0]
