"""What holds for every loss: labels, precision, state, odd batches, user mistakes, and two processes as one.

Cross entropy and Balanced Softmax have their own file for much of it; they are here where that file is silent.
"""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from all_pairs import all_pairs
from losses import rank_losses
from torch.autograd import gradcheck, gradgradcheck

from spectail import ClassCounts, MixedTarget
from spectail.losses import (
    BalancedSoftmaxLoss,
    ClassBalancedLoss,
    CrossEntropyLoss,
    FocalLoss,
    GeometricMeanLoss,
    LabelOverSmoothLoss,
    LDAMLoss,
    effective_number_weights,
)

COUNTS = [100, 20, 5]
Z = torch.tensor([[2.0, 0.5, -1.0], [0.2, 1.5, 0.3], [1.0, 0.0, 0.5], [0.1, -0.2, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 2])
WEIGHT = [0.25, 1.0, 4.0]
OLD = {
    "cross-entropy": lambda counts=COUNTS, **options: CrossEntropyLoss(**options),
    "balanced": lambda counts=COUNTS, **options: BalancedSoftmaxLoss(counts, **options),
}
NEW = {
    "focal": lambda counts=COUNTS, **options: FocalLoss(**options),
    "focal-half": lambda counts=COUNTS, **options: FocalLoss(0.5, **options),
    "sigmoid": lambda counts=COUNTS, **options: FocalLoss(2.0, form="sigmoid", alpha=0.25, **options),
    "cb": lambda counts=COUNTS, **options: ClassBalancedLoss(counts, **options),
    "cb-sigmoid": lambda counts=COUNTS, **options: ClassBalancedLoss(counts, base="sigmoid", **options),
    "cb-focal": lambda counts=COUNTS, **options: ClassBalancedLoss(counts, base="focal", gamma=0.5, **options),
    "cb-bce": lambda counts=COUNTS, **options: ClassBalancedLoss(counts, base="softmax-bce", **options),
    "ldam": lambda counts=COUNTS, **options: LDAMLoss(counts, scale=4.0, **options),
    "geometric": lambda counts=COUNTS, **options: GeometricMeanLoss(counts, **options),
    "geometric-all": lambda counts=COUNTS, **options: GeometricMeanLoss(counts, divide="all", **options),
    "over-smooth": lambda counts=COUNTS, **options: LabelOverSmoothLoss(**options),
}
EVERY = OLD | NEW
COUNTED = {name: make for name, make in EVERY.items() if name.startswith(("balanced", "cb", "ldam", "geometric"))}
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())
new = pytest.mark.parametrize("make", NEW.values(), ids=NEW.keys())
counted = pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED.keys())


def near(value, wanted, limit=1e-12, what=""):
    value, wanted = value.detach().double(), wanted.detach().double()
    torch.testing.assert_close(value, wanted, rtol=limit, atol=limit, msg=lambda text: f"{what}\n{text}")


def random_batch(count, classes, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=draw, dtype=torch.float64)
    return logits.to(dtype), torch.randint(classes, (count,), generator=draw)


def target_of(kind, labels, classes=3):
    if kind == "soft":
        draw = torch.Generator().manual_seed(9)
        return torch.randn(len(labels), classes, generator=draw, dtype=torch.float64).softmax(1)
    if kind == "mixed":
        return MixedTarget(labels, labels.roll(1), torch.linspace(0.1, 0.9, len(labels), dtype=torch.float64))
    return labels


def backward(loss, logits, target):
    logits = logits.clone().requires_grad_()
    value = loss(logits, target)
    value.backward()
    return value.detach(), logits.grad


# Labels


@new
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_soft_mixed_and_hard_labels_agree_where_they_say_the_same(make, weight):
    loss = make(weight=weight)
    near(loss(Z, F.one_hot(Y, 3).double()), loss(Z, Y))
    near(loss(Z, MixedTarget(Y, Y, 0.375)), loss(Z, Y))
    near(loss(Z, MixedTarget(Y, Y.flip(0), 1.0)), loss(Z, Y))
    mixed = target_of("mixed", Y)
    near(loss(Z, mixed), loss(Z, mixed.dense(3)))


@pytest.mark.parametrize(("name", "kind", "weight"), all_pairs(EVERY, ["hard", "soft", "mixed"], [None, WEIGHT]))
def test_the_order_of_a_batch_does_not_matter(name, kind, weight):
    make = EVERY[name]
    logits, labels = random_batch(11, 3)
    target, order = target_of(kind, labels), torch.randperm(11, generator=torch.Generator().manual_seed(4))
    moved = MixedTarget(target.a[order], target.b[order], target.share[order]) if kind == "mixed" else target[order]
    value, gradient = backward(make(weight=weight), logits, target)
    other, moved_gradient = backward(make(weight=weight), logits[order], moved)
    near(other, value)
    near(moved_gradient, gradient[order])


@pytest.mark.parametrize(("name", "weight", "ignore"), all_pairs(NEW, [None, WEIGHT], [-100, 7]))
def test_ignored_samples_are_as_if_left_out(name, weight, ignore):
    make = NEW[name]
    logits, labels = random_batch(10, 3)
    kept = torch.tensor([0, 2, 3, 5, 8, 9])
    marked = torch.full_like(labels, ignore)
    marked[kept] = labels[kept]
    loss = make(weight=weight, ignore_index=ignore)
    wanted, wanted_gradient = backward(loss, logits[kept], labels[kept])
    value, gradient = backward(loss, logits, marked)
    near(value, wanted)
    near(gradient[kept], wanted_gradient)
    assert float(gradient.abs().sum()) == pytest.approx(float(gradient[kept].abs().sum()), rel=1e-15)
    partner = labels.roll(1)
    partner[8] = ignore  # one ignored label of two is enough
    left = torch.tensor([0, 2, 3, 5, 9])
    mixed = MixedTarget(marked, partner, 0.75)
    near(loss(logits, mixed), loss(logits[left], MixedTarget(labels[left], partner[left], 0.75)))


@pytest.mark.parametrize(("name", "weight", "scale"), all_pairs(EVERY, [None, WEIGHT], [1.0, 65536.0]))
def test_all_ignored_is_zero_with_a_zero_gradient(name, weight, scale):
    """Also under the factor that mixed precision puts on the loss before it goes backward."""
    make = EVERY[name]
    logits = Z.float().requires_grad_()
    value = make(weight=weight)(logits, torch.full((4,), -100))
    (value * scale).backward()
    assert float(value.detach()) == 0
    assert logits.grad.tolist() == torch.zeros(4, 3).tolist()


@every
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_small_integer_labels(make, weight):
    loss, mixed = make(weight=weight), MixedTarget(Y, Y.roll(1), 0.75)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        near(loss(Z, Y.to(dtype)), loss(Z, Y), what=dtype)
        near(loss(Z, MixedTarget(mixed.a.to(dtype), mixed.b.to(dtype), 0.75)), loss(Z, mixed), what=dtype)


@every
def test_byte_label_156_is_a_class_not_an_ignored_one(make):
    """156 is what -100 becomes in a byte."""
    logits, _ = random_batch(2, 200)
    labels = torch.tensor([156, 3])
    near(make(counts=[5] * 200)(logits, labels.to(torch.uint8)), make(counts=[5] * 200)(logits, labels))
    ignored = make(counts=[5] * 200)(logits, torch.tensor([-100, 3]))
    assert float(make(counts=[5] * 200)(logits, labels)) != pytest.approx(float(ignored), rel=1e-6)


# Odd batches


@every
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
def test_two_classes(make, kind):
    logits, labels = random_batch(6, 2)
    value, gradient = backward(make(counts=[9, 2]), logits, target_of(kind, labels, 2))
    assert float(value) > 0
    assert torch.isfinite(gradient).all()
    assert gradcheck(lambda z: make(counts=[9, 2])(z, target_of(kind, labels, 2)), logits.clone().requires_grad_())


def test_two_classes_are_the_logistic_loss():
    """With softmax only the difference d of the two logits counts."""
    logits, labels = random_batch(6, 2)
    gap = (logits[:, 1] - logits[:, 0]) * (2 * labels - 1)  # of the label over the other
    near(ClassBalancedLoss([3, 3], base="softmax-bce")(logits, labels), F.softplus(-gap).mean())
    near(LDAMLoss([3, 3], max_margin=0.5, scale=2.0)(logits, labels), F.softplus(-2 * (gap - 0.5)).mean())
    near(FocalLoss(2.0)(logits, labels), (gap.neg().sigmoid() ** 2 * F.softplus(-gap)).mean())


@pytest.mark.parametrize("name", ["cross-entropy", "focal", "focal-half", "over-smooth"])
def test_a_single_class_is_always_right(name):
    value, gradient = backward(EVERY[name](), Z[:, :1], torch.zeros(4, dtype=torch.long))
    assert float(value) == 0
    assert not gradient.any()


@every
def test_a_batch_of_one_sample_and_of_one_class(make):
    value, gradient = backward(make(), Z[:1], Y[:1])
    assert value.shape == ()
    assert float(value) > 0
    assert torch.isfinite(gradient).all()
    several, _ = backward(make(), Z[:1].expand(5, 3), Y[:1].expand(5))
    near(several, value)


@every
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
def test_the_layout_of_logits_does_not_matter(make, kind):
    logits, labels = random_batch(8, 3)
    wide = torch.zeros(3, 16, dtype=torch.float64)
    wide[:, ::2] = logits.T
    view = wide.T[::2]
    assert not view.is_contiguous()
    near(make()(view, target_of(kind, labels)), make()(logits, target_of(kind, labels)))
    near(make()(logits[:1].expand(8, 3), target_of(kind, labels)), make()(logits[[0] * 8], target_of(kind, labels)))


@every
def test_logits_and_labels_are_left_as_they_are(make):
    """Margins, priors and smoothing belong to the loss: what inference sees is untouched, in either mode."""
    logits, labels = Z.clone(), Y.clone()
    loss = make(weight=WEIGHT)
    training = loss(logits, labels)
    assert torch.equal(logits, Z)
    assert torch.equal(labels, Y)
    assert torch.equal(loss.eval()(logits, labels), training)
    assert torch.equal(loss(logits, labels), training)  # and a call leaves nothing behind


# Uniform counts


@counted
def test_equal_counts_of_any_size_are_the_same(make):
    logits, labels = random_batch(9, 3)
    near(make(counts=[3, 3, 3])(logits, labels), make(counts=[4000, 4000, 4000])(logits, labels))


def test_identities_of_equal_counts():
    logits, labels = random_batch(3, 3)[0], torch.tensor([2, 0, 1])
    wanted = F.cross_entropy(logits, labels)
    near(effective_number_weights([7, 7, 7]), torch.ones(3))
    near(ClassBalancedLoss([7, 7, 7])(logits, labels), wanted)
    near(BalancedSoftmaxLoss([7, 7, 7])(logits, labels), wanted)
    near(GeometricMeanLoss([7, 7, 7])(logits, labels), wanted)
    near(LDAMLoss([7, 7, 7]).margin, torch.full((3,), 0.5))


# Gradients


@new
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
def test_first_and_second_derivatives(make, kind):
    logits, labels = random_batch(4, 3, seed=6)
    loss, target = make(weight=WEIGHT), target_of(kind, labels)
    assert gradcheck(lambda z: loss(z, target), logits.clone().requires_grad_())
    assert gradgradcheck(lambda z: loss(z, target), logits.clone().requires_grad_())


@pytest.mark.parametrize("name", ["cross-entropy", "balanced"])
def test_second_derivatives_of_the_plain_losses(name):
    assert gradgradcheck(lambda z: EVERY[name](weight=WEIGHT)(z, Y), Z.clone().requires_grad_())


# Precision


@pytest.mark.parametrize(("name", "kind", "right"), all_pairs(EVERY, ["hard", "soft", "mixed"], [True, False]))
def test_logits_of_a_hundred_in_single_precision(name, kind, right):
    """100 against -100, for a label that is the largest and for one that is not."""
    make = EVERY[name]
    logits = torch.tensor([[100.0, -100.0, 0.0], [-100.0, 100.0, -100.0], [100.0, 100.0, -100.0]])
    labels = torch.tensor([0, 1, 0]) if right else torch.tensor([1, 0, 2])
    target = {"hard": labels, "soft": F.one_hot(labels, 3).float(), "mixed": MixedTarget(labels, labels, 0.5)}[kind]
    value, gradient = backward(make(), logits, target)
    exact, _ = backward(make(), logits.double(), target)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    near(value, exact, 1e-5)
    if not right:
        assert float(value) > 1
        assert gradient.any(1).all()


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_under_autocast(make, dtype):
    logits = torch.tensor([[100.0, -100.0, 0.0], [-100.0, 100.0, 3.0], [1.0, 2.0, 3.0]], dtype=dtype)
    labels = torch.tensor([0, 2, 1])
    with torch.autocast("cpu", dtype=dtype):
        value, gradient = backward(make(), logits, labels)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert torch.isfinite(gradient).all()
    assert torch.equal(value, make()(logits.float(), labels))
    near(value, make()(logits.double(), labels), 1e-5)


# State


@new
def test_buffers_follow_the_module_and_are_no_parameters(make):
    loss = make()
    loss.set_weight(WEIGHT)
    assert not list(loss.parameters())
    assert any(buffer is loss.weight for buffer in loss.buffers())
    wanted = loss(Z, Y)
    near(copy.deepcopy(loss).to(torch.float64)(Z, Y), wanted)
    near(copy.deepcopy(loss).float()(Z, Y), wanted, 1e-6)
    moved = loss.to("meta")
    assert len(moved.state_dict()) == len(make(weight=WEIGHT).state_dict())
    assert all(buffer.device.type == "meta" for buffer in moved.state_dict().values())


@counted
def test_the_state_carries_the_counts(make):
    """A loss built with other counts computes, after loading, what the saved one does."""
    saved, loaded = make(weight=WEIGHT), make(counts=[6, 5, 4], weight=[1.0, 1.0, 1.0])
    assert float(loaded(Z, Y)) != pytest.approx(float(saved(Z, Y)), rel=1e-3)
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded(Z, Y), saved(Z, Y))


@every
@pytest.mark.parametrize("inside", [False, True])
def test_weights_set_or_removed_half_way_are_in_the_checkpoint(make, inside):
    """Also when the loss is a part of something larger."""
    wrap = torch.nn.ModuleList if inside else lambda losses: losses[0]
    plain, weighted = make(), make()
    weighted.set_weight(WEIGHT)
    for source, goal in ((weighted, make()), (plain, make(weight=WEIGHT)), (weighted, make(weight=[1.0, 1.0, 1.0]))):
        file = io.BytesIO()
        torch.save(wrap([source]).state_dict(), file)
        file.seek(0)
        wrap([goal]).load_state_dict(torch.load(file))
        assert torch.equal(goal(Z, Y), source(Z, Y))
    assert float(plain(Z, Y)) != pytest.approx(float(weighted(Z, Y)), rel=1e-3)


# Compiled


DISTINCT = ("balanced", "focal", "sigmoid", "cb-bce", "ldam", "over-smooth", "geometric")


@pytest.mark.parametrize(
    ("kind", "names"), [("hard", DISTINCT), ("soft", ("cb", "geometric")), ("mixed", ("cb", "geometric"))]
)
def test_compiled_in_one_piece(kind, names):
    """All in one graph: nothing depends on the values of labels. The formulas do not know the kind of labels."""
    losses = [EVERY[name](weight=WEIGHT) for name in names]

    def together(logits, target):
        return torch.stack([loss(logits, target) for loss in losses])

    torch._dynamo.reset()
    compiled = torch.compile(together, backend="aot_eager", fullgraph=True)
    target = target_of(kind, torch.tensor([0, -100, 2, 2]) if kind == "hard" else Y)
    first, second = Z.clone().requires_grad_(), Z.clone().requires_grad_()
    wanted, found = together(first, target), compiled(second, target)
    near(found, wanted)
    factors = torch.linspace(1, 2, len(losses), dtype=torch.float64)
    (wanted @ factors).backward()
    (found @ factors).backward()
    near(second.grad, first.grad)
    torch._dynamo.reset()


# User mistakes

OPTIONS = [
    (lambda: FocalLoss(-1.0), "gamma must be"),
    (lambda: FocalLoss(float("nan")), "gamma must be"),
    (lambda: FocalLoss(form="tanh"), "form must be one of 'softmax', 'sigmoid'; got 'tanh'"),
    (lambda: FocalLoss(alpha=0.25), "alpha .*form='sigmoid'.* got 0.25"),
    (lambda: FocalLoss(form="sigmoid", alpha=1.5), "alpha must lie between 0 and 1.* got 1.5"),
    (lambda: ClassBalancedLoss(COUNTS, base="hinge"), "base must be one of .*'softmax-bce'; got 'hinge'"),
    (lambda: ClassBalancedLoss(COUNTS, beta=1.5), "beta must lie between 0 and 1.* got 1.5"),
    (lambda: ClassBalancedLoss(COUNTS, beta=-0.1), "beta must lie between 0 and 1.* got -0.1"),
    (lambda: effective_number_weights(COUNTS, float("nan")), "beta must lie between 0 and 1.* got nan"),
    (lambda: ClassBalancedLoss(COUNTS, gamma=-2.0), "gamma must be .* got -2"),
    (lambda: ClassBalancedLoss(COUNTS, average="mean"), "average must be .* got 'mean'"),
    (lambda: LDAMLoss(COUNTS, max_margin=-0.5), "max_margin must be .* got -0.5"),
    (lambda: LDAMLoss(COUNTS, scale=0.0), "scale must be more than 0; got 0.0"),
    (lambda: LDAMLoss(COUNTS, scale=float("nan")), "scale .* nan"),
    (lambda: GeometricMeanLoss(COUNTS, divide="some"), "divide must be one of 'present', 'all'; got 'some'"),
    (lambda: LabelOverSmoothLoss(1.1), "delta must lie between 0 and 1.* got 1.1"),
    (lambda: LabelOverSmoothLoss(float("nan")), "delta must lie between 0 and 1.* got nan"),
]
ENDLESS = [  # accepted, these would make every loss infinite or not a number
    (lambda: FocalLoss(float("inf")), "gamma .*inf"),
    (lambda: ClassBalancedLoss(COUNTS, base="focal", gamma=float("inf")), "gamma .*inf"),
    (lambda: LDAMLoss(COUNTS, max_margin=float("inf")), "max_margin .*inf"),
    (lambda: LDAMLoss(COUNTS, scale=float("inf")), "scale .*inf"),
    (lambda: BalancedSoftmaxLoss(COUNTS, tau=float("nan")), "tau .*nan"),
]
NO_NUMBERS = [
    (lambda: FocalLoss("2"), "gamma must be a number; got '2'"),
    (lambda: FocalLoss(form="sigmoid", alpha="a"), "alpha must be a number; got 'a'"),
    (lambda: ClassBalancedLoss(COUNTS, beta=None), "beta must be a number; got None"),
    (lambda: ClassBalancedLoss(COUNTS, gamma="1"), "gamma must be a number; got '1'"),
    (lambda: LDAMLoss(COUNTS, max_margin="big"), "max_margin must be a number; got 'big'"),
    (lambda: BalancedSoftmaxLoss(COUNTS, tau="big"), "tau must be a number; got 'big'"),
    (lambda: LabelOverSmoothLoss("much"), "delta must be a number; got 'much'"),
]


def one_sentence(message):
    return message.endswith(".") and ". " not in message and "\n" not in message


@pytest.mark.parametrize(("make", "words"), OPTIONS + ENDLESS)
def test_bad_options_are_refused_in_one_sentence(make, words):
    with pytest.raises(ValueError, match=words) as refused:
        make()
    assert one_sentence(str(refused.value))


@pytest.mark.parametrize(("make", "words"), NO_NUMBERS)
def test_options_that_are_no_numbers_are_refused_in_one_sentence(make, words):
    with pytest.raises(TypeError, match=words) as refused:
        make()
    assert one_sentence(str(refused.value))


@counted
def test_a_class_without_images_is_refused_by_name(make):
    with pytest.raises(ValueError, match=r"class 1 \('otter'\) has 0 images"):
        make(counts=ClassCounts([5, 0, 3], names=["cat", "otter", "dog"]))
    with pytest.raises(ValueError, match="class 2 has 0 images"):
        make(counts=[5, 3, 0])


@counted
def test_counts_of_another_number_of_classes_are_refused(make):
    """Never used as far as they go: labels below both numbers would not notice."""
    for classes in (1, 2, 4):
        with pytest.raises(ValueError, match=rf"3.*{classes}|{classes}.*3"):
            make()(torch.zeros(4, classes), torch.zeros(4, dtype=torch.long))


@every
@pytest.mark.parametrize("weight", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [[1.0, 2.0, 3.0]]])
def test_weights_of_another_shape_are_refused(make, weight):
    """By the constructor, by set_weight, or by the first batch: never used as far as they go."""

    def given():
        make(weight=weight)(Z, torch.tensor([0, 1, 1, 0]))

    def changed():
        loss = make()
        loss.set_weight(weight)
        loss(Z, torch.tensor([0, 1, 1, 0]))

    for use in (given, changed):
        with pytest.raises(ValueError, match="weight"):
            use()


@every
def test_logits_of_another_shape_are_refused(make):
    for shape in ((3,), (2, 2, 3)):
        with pytest.raises(ValueError, match="logits"):
            make()(torch.zeros(shape), torch.zeros(2, dtype=torch.long))


@new
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_out_of_range_is_never_accepted(make, label):
    with pytest.raises((ValueError, RuntimeError, IndexError), match=rf"{label}"):
        make()(Z, torch.tensor([0, 1, 2, label]))


# Two processes


@pytest.fixture(scope="module")
def both(ranks):
    """Every case on two processes that hold 5 and 3 of 8 images."""
    return ranks(rank_losses.gradients)


@pytest.mark.parametrize("case", rank_losses.CASES, ids=lambda case: "-".join(map(str, case)))
def test_two_ragged_processes_are_one(both, case):
    value, gradient = rank_losses.gradient(case, range(rank_losses.IMAGES))
    assert gradient.abs().max() > 1e-4
    for rank in both:
        torch.testing.assert_close(rank[case][1], gradient, rtol=0, atol=1e-12)
    near((both[0][case][0] + both[1][case][0]) / 2, value)
    if case[0].startswith("geometric"):
        near(both[0][case][0], value)
        near(both[1][case][0], value)


@pytest.mark.parametrize("case", rank_losses.ALONE, ids=lambda case: "-".join(map(str, case)))
def test_without_sync_two_processes_are_not_one(both, case):
    """Else the test above would see nothing."""
    _, gradient = rank_losses.gradient(case, range(rank_losses.IMAGES))
    assert (both[0]["alone", *case][1] - gradient).abs().max() > 1e-3
