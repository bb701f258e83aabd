"""CMO in a step and in a run: the pasted batch, class weights, when pasting happens, and the foreground stream."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training.runs import metrics, results, settings

from spectail import MixedTarget
from spectail.data.batch import Batch
from spectail.data.samplers import LongTailSampler
from spectail.methods.cmo import window
from spectail.models.classifier import Classifier
from spectail.testing import begun
from spectail.training.loop import train

COUNTS = (100, 20, 5)


class Watched(nn.Module):
    """Mean colours and two pixels as features; keeps what it was shown."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images):
        self.seen.append(images.detach().clone())
        return torch.cat([images.mean((2, 3)), images[:, 0, 0, :2]], 1)


def batch(size, colour=None, seed=0, shape=(3, 8, 6)):
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(size, *shape, generator=rng) if colour is None else torch.full((size, *shape), float(colour))
    return Batch(images, torch.randint(3, (size,), generator=rng), torch.arange(size))


def stepped(method, batches, step, model=None):
    model = model or Classifier(Watched(), method.make_head(method.head or "linear", 5))
    method.begin_epoch(step)
    return method.loss(model, batches, step), model


@pytest.fixture
def drawn(at):
    """A place in training whose random numbers follow a seed."""
    return lambda seed=0, epoch=100, **more: at(epoch, generator=torch.Generator().manual_seed(seed), **more)


# the pasted batch


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_the_areas(make, drawn, seed):
    """White patches in black images: brightness is the share of the foreground."""
    main, front = batch(6, 0, seed=1), batch(6, 1, seed=2)
    outcome, model = stepped(make("cmo", probability=1.0), {"main": main, "foreground": front}, drawn(seed))
    (mixed,) = model.backbone.seen
    assert set(mixed.unique().tolist()) <= {0.0, 1.0}
    assert all(torch.equal(image, mixed[0]) for image in mixed)  # one box for the batch
    torch.testing.assert_close(outcome.target.share, 1 - mixed.mean((1, 2, 3)))
    assert torch.equal(outcome.target.a, main.labels)
    assert torch.equal(outcome.target.b, front.labels)
    share = outcome.target.share[0]
    terms = [F.cross_entropy(outcome.logits, labels) for labels in (main.labels, front.labels)]
    torch.testing.assert_close(outcome.loss, share * terms[0] + (1 - share) * terms[1])
    assert not main.images.any()  # the batch itself is as it was
    assert front.images.all()


def test_worked_example_of_the_weights(make):
    """Three ways to average two weighted terms; the authors call torch's loss twice, which has two divisors."""
    logits, lam = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), 0.484375
    back, front, w = torch.tensor([0, 0]), torch.tensor([2, 1]), torch.tensor([0.2, 0.8, 2.0])
    target = MixedTarget(back, front, lam)
    terms = [F.cross_entropy(logits, labels, w).item() for labels in (back, front)]
    torch.testing.assert_close(terms, [1.40761, 2.12189], atol=2e-5, rtol=0)

    def ours(weight, **options):
        method = make("cmo", **options)
        method.criterion.set_weight(weight)
        return method.cost(logits, target).item()

    assert ours(None) == pytest.approx(1.66542, abs=2e-5)
    assert ours(w, weight_average="samples") == pytest.approx(1.66810, abs=2e-5)
    one, two = (F.cross_entropy(logits, labels, w, reduction="sum").item() for labels in (back, front))
    mass = lam * w[back].sum().item() + (1 - lam) * w[front].sum().item()
    joint = (lam * one + (1 - lam) * two) / mass
    assert ours(w) == ours(w, weight_average="terms") == pytest.approx(1.77591, abs=2e-5)
    assert lam * terms[0] + (1 - lam) * terms[1] == pytest.approx(1.77591, abs=2e-5)
    assert ours(w, weight_average="weights") == pytest.approx(joint, rel=1e-5)
    assert joint == pytest.approx(2.03739, abs=2e-5)


def test_areas_stay_the_labels_under_late_weights(make):
    """Background as frequent as the data, foreground balanced: with one divisor the background would lose most of its
    part of the loss, .73 of the area giving .43 of it on CIFAR-100-LT; with two each part is its area."""
    lam, weight = 0.73, torch.tensor([0.21, 0.99])
    back, front = torch.zeros(64, dtype=torch.long), torch.ones(64, dtype=torch.long)
    logits = torch.zeros(64, 2)  # both labels cost log 2

    def part(average):
        method = make("cmo", counts=(90, 10), weight_average=average)
        method.criterion.set_weight(weight)
        both = method.cost(logits, MixedTarget(back, front, lam))
        logits_of = torch.tensor([[0.0, 100.0]]).repeat(64, 1)  # only the background costs anything
        alone = method.cost(logits_of, MixedTarget(back, front, lam)) / 100
        return alone.item(), both.item()

    assert part("terms") == pytest.approx((0.73, math.log(2)), rel=1e-5)
    assert part("weights")[0] == pytest.approx(0.73 * 0.21 / (0.73 * 0.21 + 0.27 * 0.99), rel=1e-5)


@pytest.mark.parametrize("average", ["terms", "weights"])
def test_averages_agree_with_torch_where_nothing_is_mixed(make, average):
    logits, labels, w = torch.randn(9, 3), torch.arange(9) % 3, torch.tensor([0.2, 0.8, 2.0])
    method = make("cmo", weight_average=average)
    method.criterion.set_weight(w)
    torch.testing.assert_close(method.cost(logits, labels), F.cross_entropy(logits, labels, w))
    torch.testing.assert_close(
        method.cost(logits, MixedTarget(labels, labels, 0.3)), F.cross_entropy(logits, labels, w)
    )


def test_a_foreground_of_the_same_class(make, drawn):
    main = batch(5)
    front = batch(5, seed=3)._replace(labels=main.labels)
    outcome, _ = stepped(make("cmo", probability=1.0), {"main": main, "foreground": front}, drawn())
    assert torch.equal(outcome.target.dense(3), F.one_hot(main.labels, 3).float())
    torch.testing.assert_close(outcome.loss, F.cross_entropy(outcome.logits, main.labels))


def test_a_batch_of_one_and_a_last_batch(make, drawn):
    """The foreground is cut to the size of the batch."""
    for size in (1, 3):
        main, front = batch(size, 0), batch(8, 1, seed=2)
        outcome, model = stepped(make("cmo", probability=1.0), {"main": main, "foreground": front}, drawn())
        assert len(model.backbone.seen[0]) == len(outcome.logits) == size
        assert torch.equal(outcome.target.b, front.labels[:size])


def test_too_few_foregrounds(make, drawn):
    with pytest.raises(ValueError, match="needed|one shape"):
        stepped(make("cmo", probability=1.0), {"main": batch(4), "foreground": batch(3)}, drawn())


def test_foregrounds_of_another_size(make, drawn):
    with pytest.raises(ValueError, match="the box was drawn for images of 6 x 8; the foreground is 8 x 8"):
        stepped(make("cmo", probability=1.0), {"main": batch(4), "foreground": batch(4, shape=(3, 8, 8))}, drawn())


def test_half_of_the_batches_are_pasted_into(make, drawn):
    batches, step, head = {"main": batch(2, 0), "foreground": batch(2, 1)}, drawn(), nn.Linear(5, 3)
    for probability in (0.5, 0.2, 0.0, 1.0):
        method, model = make("cmo", probability=probability), Classifier(Watched(), head)
        mixed = 0
        for _ in range(250):
            outcome, _ = stepped(method, batches, step, model)
            if isinstance(outcome.target, MixedTarget):
                mixed += 1
            else:
                assert not model.backbone.seen[-1].any()
                torch.testing.assert_close(outcome.loss, F.cross_entropy(outcome.logits, batches["main"].labels))
        assert mixed / 250 == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 250))


# base losses


def effective(counts, beta=0.9999):
    weights = torch.tensor([(1 - beta) / (1 - beta**n) for n in counts], dtype=torch.float64)
    return weights * len(counts) / weights.sum()


@pytest.mark.parametrize("epoch", [100, 180])
@pytest.mark.parametrize("base", ["ldam", "balanced-softmax"])
def test_base_losses_with_deferred_weights(make, drawn, base, epoch):
    method = make("cmo", base_loss=base, defer="reweight", probability=1.0)
    batches = {"main": batch(7), "foreground": batch(7, seed=3)}
    outcome, model = stepped(method, batches, drawn(epoch=epoch))
    w = effective(COUNTS) if epoch >= 160 else torch.ones(3, dtype=torch.float64)
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    raw = outcome.logits.detach().double()
    if base == "ldam":
        features = F.normalize(Watched()(model.backbone.seen[0]), dim=1)
        torch.testing.assert_close(outcome.logits, 30 * features @ F.normalize(model.head.weight, dim=1).T)
    wanted, share = 0.0, outcome.target.share[0]
    for labels, part in ((outcome.target.a, share), (outcome.target.b, 1 - share)):
        total = weights = 0.0
        for i, label in enumerate(labels):
            if base == "ldam":
                scores = raw[i] - 30 * 0.5 * (counts[label] / 5) ** -0.25 * F.one_hot(label, 3)
            else:
                scores = raw[i] + counts.log()
            total -= float(w[label] * scores.log_softmax(0)[label])
            weights += float(w[label])
        wanted += float(part) * total / weights  # each term has its own divisor, as in the authors' code
    assert outcome.loss.item() == pytest.approx(wanted, rel=1e-4)


def test_which_head(make):
    assert make("cmo", base_loss="ldam").head == "cosine"
    assert make("cmo").head is None


# when


def test_active_epochs_of_the_authors(make, at):
    method = make("cmo")
    active = [epoch for epoch in range(200) if method.active(at(epoch))]
    assert active == list(range(4, 197))
    assert len(active) == 193
    assert all(3 < epoch < 200 - 3 for epoch in active)


@pytest.mark.parametrize("epochs", range(1, 30))
def test_short_runs_have_both_parts(epochs):
    first, last = window(epochs, 4, 3)
    assert 0 <= first < last <= epochs
    if epochs > 1:
        assert (first, last) != (0, epochs)
    if epochs > 8:
        assert (first, last) == (4, epochs - 3)


@pytest.mark.parametrize(
    ("epochs", "first", "last", "wanted"),
    [(10, 0, 0, (0, 10)), (10, 2, 0, (2, 10)), (10, 0, 4, (0, 6)), (1, 4, 3, (0, 1)), (3, 4, 3, (1, 2))],
)
def test_other_windows(epochs, first, last, wanted):
    assert window(epochs, first, last) == wanted


def test_two_epochs_with_plain_ones_at_the_end():
    assert window(2, 0, 3) == (0, 1)


def test_the_foreground_is_read_only_when_it_is_used(make, at):
    method = make("cmo")
    assert [method.streams_in_use(at(epoch)) for epoch in (3, 4, 196, 197)] == [
        set(),
        {"foreground"},
        {"foreground"},
        set(),
    ]


def test_names_of_the_phases(make, at):
    method = make("cmo", defer="reweight")
    found = [method.phase(at(epoch)) for epoch in (0, 4, 159, 160, 196, 197)]
    assert found == ["plain", "pasted", "pasted", "pasted, reweighted", "pasted, reweighted", "plain, reweighted"]


# where foregrounds come from


@pytest.mark.parametrize(
    ("exponent", "law"),
    [(0.0, (0.90090, 0.09009, 0.00901)), (0.5, (0.70610, 0.22329, 0.07061)), (1.0, (1 / 3, 1 / 3, 1 / 3)),
     (2.0, (0.00901, 0.09009, 0.90090))],
)  # fmt: skip
def test_law_of_the_foreground(make, at, exponent, law):
    options = {} if exponent == 1 else {"foreground_exponent": exponent}
    streams = make("cmo", counts=(100, 10, 1), **options).streams(at(0).stage)
    assert (streams["main"].kind, streams["main"].exponent) == ("instance", 1.0)
    labels, stream = np.repeat([0, 1, 2], [100, 10, 1]), streams["foreground"]
    order = LongTailSampler(labels, stream.kind, exponent=stream.exponent, length=100_000).order(0)
    np.testing.assert_allclose(np.bincount(labels[order]) / 1e5, law, atol=0.01)
    within = np.bincount(order, minlength=111)[:100]
    if exponent <= 1:  # images of a class are equally likely
        assert within.max() < 1.5 * within.mean()


def test_resampling_late_is_for_the_background(make, at):
    streams = make("cmo", defer="resample").streams(at(0).stage)
    assert (streams["main"].then, streams["main"].switch) == ("class-balanced", 160)
    assert streams["foreground"].then is None


# in the engine


def test_a_run_with_all_phases(tmp_path):
    changes = {"optim__epochs": 5, "options": {"defer": "reweight", "base_loss": "balanced-softmax"}}
    train(settings(tmp_path / "run", method="cmo", **changes))
    assert results(tmp_path / "run")["phases"] == {"plain": 5, "pasted": 15, "plain, reweighted": 5}
    assert all(math.isfinite(line["loss"]) for line in metrics(tmp_path / "run"))


def test_streams_of_the_engine(tmp_path):
    """Two streams of equal batches in an epoch with pasting, each image with draws of its own; one stream without."""
    stage = begun(settings(tmp_path / "run", method="cmo", optim__epochs=3)).stage
    seen = {"main": {}, "foreground": {}}
    for epoch, names in ((0, {"main"}), (1, {"main", "foreground"}), (2, {"main"})):
        stage.step.epoch = epoch
        for loader in stage.loaders.values():
            loader.set_epoch(epoch)
        for group, _ in stage.groups():
            (found,) = group
            assert found.keys() == names
            assert len({len(one.labels) for one in found.values()}) == 1
            if epoch == 1:
                for name, one in found.items():
                    seen[name] |= dict(zip(one.indices.tolist(), one.images, strict=True))
    both = seen["main"].keys() & seen["foreground"].keys()
    same = sum(torch.equal(seen["main"][index], seen["foreground"][index]) for index in both)
    assert len(both) > 20
    assert same < len(both) / 4  # padded crops: few fall on the same place


@pytest.mark.parametrize("size", [1, 7])
def test_small_and_ragged_batches(tmp_path, size):
    """68 images in batches of seven end with five."""
    train(settings(tmp_path / "run", method="cmo", optim__batch_size=size, options={"probability": 1.0}))
    steps = -(-68 // size)
    assert results(tmp_path / "run")["phases"] == {"plain": steps, "pasted": steps}


def test_probe_mode_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cmo works on images and cannot be used in probe mode"):
        train(settings(tmp_path / "run", method="cmo", probe=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("probability", -0.1), ("probability", 1.1), ("probability", math.nan), ("mix_alpha", 0.0), ("plain_first", -1),
     ("plain_last", -1),
     ("foreground_exponent", math.nan)],
)  # fmt: skip
def test_options_out_of_range_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"{name.replace('_', '-')} must|exponent must"):
        train(settings(tmp_path / "run", method="cmo", options={name: value}))
    assert not (tmp_path / "run").exists()
