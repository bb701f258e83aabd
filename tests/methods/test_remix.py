"""ReMix in a step and in a run: mixing, labels, averages under class weights, base losses, and what is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training.runs import metrics, predictions, results, settings

from spectail.data.batch import Batch
from spectail.models.classifier import Classifier
from spectail.training.loop import train

COUNTS = (100, 20, 5)


class Watched(nn.Module):
    """Hands the first pixels on as features, and keeps what it was shown."""

    def __init__(self, width=4):
        super().__init__()
        self.width, self.seen = width, []

    def forward(self, images):
        self.seen.append(images.detach().clone())
        return images.flatten(1)[:, : self.width]


def images_of(size, seed=0, shape=(3, 8, 6)):
    """Images of one colour each, all different, and their labels."""
    labels = torch.randint(3, (size,), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(size) + 1.0).view(-1, 1, 1, 1).expand(size, *shape).contiguous(), labels


def stepped(method, images, labels, step, model=None):
    model = model or Classifier(Watched(), method.make_head(method.head or "linear", 4))
    method.begin_epoch(step)
    outcome = method.loss(model, {"main": Batch(images, labels, torch.arange(len(labels)))}, step)
    return outcome, model


def shares(labels, others, lam, counts=COUNTS):
    """The rule, pair by pair: kappa 3, tau 1/2."""
    found = []
    for a, b in zip(labels.tolist(), others.tolist(), strict=True):
        share = 0.0 if counts[a] >= 3 * counts[b] and lam < 0.5 else lam
        found.append(1.0 if counts[b] >= 3 * counts[a] and lam > 0.5 else share)
    return torch.tensor(found)


@pytest.fixture
def drawn(at):
    """A place in training whose random numbers follow a seed."""
    return lambda seed=0, epoch=0, **more: at(epoch, generator=torch.Generator().manual_seed(seed), **more)


# the step


@pytest.mark.parametrize("seed", range(6))
def test_cutmix_applies_the_rule_to_what_the_box_left(make, drawn, seed):
    method = make("remix", mix="cutmix")
    images, labels = images_of(16)
    outcome, model = stepped(method, images, labels, drawn(seed))
    mixed = model.backbone.seen[0]
    kept = (mixed == images).all(1).flatten(1)
    lam = float(kept.float().mean(1).min())  # that of an image whose partner is another
    pasted = mixed.flatten(1).where(~kept.repeat(1, 3), 0).amax(1).long() - 1
    partner = pasted.where(pasted >= 0, torch.arange(16))
    if lam < 1:
        assert sorted(partner.tolist()) == list(range(16))
        assert torch.equal(outcome.target.b, labels[partner])
    torch.testing.assert_close(outcome.target.share, shares(labels, outcome.target.b, lam))
    torch.testing.assert_close(outcome.loss, F.cross_entropy(outcome.logits, outcome.target.dense(3)))


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_without_tau_it_is_the_parent(make, drawn, mix):
    """tau 0 and a kappa that no pair reaches give the same step, bit for bit; then the label is the image's share."""
    images, labels = images_of(16)
    head = nn.Linear(4, 3)
    found = []
    for options in ({"tau": 0.0}, {"kappa": 1e6}, {}):
        outcome, model = stepped(
            make("remix", mix=mix, **options), images, labels, drawn(1), Classifier(Watched(), head)
        )
        found.append((outcome, model.backbone.seen[0]))
    (one, mixed), (two, _), (three, same) = found
    assert torch.equal(one.loss, two.loss)
    assert torch.equal(one.target.share, two.target.share)
    assert one.target.share.unique().numel() == 1
    assert torch.equal(mixed, same)  # ReMix itself mixes the same images and changes labels only
    assert not torch.equal(one.target.share, three.target.share)
    lam = one.target.share[0]
    if mix == "mixup":
        colours = mixed[:, 0, 0, 0]
        assert any(
            torch.allclose(colours[0], lam * images[0, 0, 0, 0] + (1 - lam) * colour) for colour in images[:, 0, 0, 0]
        )
        terms = [F.cross_entropy(one.logits, label) for label in (one.target.a, one.target.b)]
        torch.testing.assert_close(one.loss, lam * terms[0] + (1 - lam) * terms[1])


def test_one_share_for_the_batch_and_every_batch_is_mixed(make, drawn):
    method = make("remix", tau=0.0)
    images, labels = images_of(8)
    step = drawn(1)
    lams = []
    for epoch in (0, 1, 100, 199) * 50:
        step.epoch = epoch
        outcome, _ = stepped(method, images, labels, step)
        assert outcome.target.share.unique().numel() == 1
        lams.append(float(outcome.target.share[0]))
    assert len(set(lams)) == 200
    assert 0.4 < sum(lams) / 200 < 0.6


def test_a_step_is_one_pass_through_the_network(make, drawn):
    """No clean pass beside it, which would move batch statistics."""
    for mix in ("mixup", "cutmix"):
        images, labels = images_of(5)
        before = images.clone()
        _, model = stepped(make("remix", mix=mix), images, labels, drawn())
        assert [len(seen) for seen in model.backbone.seen] == [5]
        assert torch.equal(images, before)


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_a_batch_of_one_is_left_as_it_is(make, drawn, mix):
    images, labels = images_of(1)
    outcome, model = stepped(make("remix", mix=mix), images, labels, drawn())
    assert torch.equal(model.backbone.seen[0], images)
    assert torch.equal(outcome.target.dense(3), F.one_hot(labels, 3).float())
    torch.testing.assert_close(outcome.loss, F.cross_entropy(outcome.logits, labels))


# class weights and base losses


def effective(counts, beta=0.9999):
    weights = torch.tensor([(1 - beta) / (1 - beta**n) for n in counts], dtype=torch.float64)
    return weights * len(counts) / weights.sum()


@pytest.mark.parametrize("average", ["samples", "weights"])
def test_deferred_weights_and_their_average(make, drawn, average):
    """By default the mean over samples of lambda w CE, which is smaller than a mean by weights."""
    method = make("remix", defer="reweight", **({} if average == "samples" else {"weight_average": average}))
    images, labels = images_of(16)
    early, _ = stepped(method, images, labels, drawn(2, 159))
    torch.testing.assert_close(early.loss, F.cross_entropy(early.logits, early.target.dense(3)))
    late, _ = stepped(method, images, labels, drawn(2, 160))
    w, total, weights = effective(COUNTS), 0.0, 0.0
    logs = late.logits.detach().double().log_softmax(1)
    for i in range(16):
        for label, share in ((late.target.a[i], late.target.share[i]), (late.target.b[i], 1 - late.target.share[i])):
            total -= float(share * w[label] * logs[i, label])
            weights += float(share * w[label])
    assert late.loss.item() == pytest.approx(total / (16 if average == "samples" else weights), rel=1e-5)
    assert [method.phase(drawn(epoch=epoch)) for epoch in (159, 160)] == ["train", "reweighted"]


def margins(counts, largest=0.5):
    raw = torch.tensor([n**-0.25 for n in counts], dtype=torch.float64)
    return largest * raw / raw.max()


def by_hand(base, logits, label):
    """Cost of one label of one image under each base loss, from logits that inference uses."""
    logits = logits.detach().double()
    if base == "balanced-softmax":
        logits = logits + torch.tensor(COUNTS, dtype=torch.float64).log()
    if base == "ldam":
        logits = logits - 30 * margins(COUNTS)[label] * F.one_hot(label, 3)
    cost = -logits.log_softmax(0)[label]
    return cost * (1 - (-cost).exp()) if base == "focal" else cost


@pytest.mark.parametrize("base", ["ce", "focal", "balanced-softmax", "ldam"])
@pytest.mark.parametrize("epoch", [0, 199])
def test_base_losses(make, drawn, base, epoch):
    method = make("remix", base_loss=base, defer="reweight")
    images, labels = images_of(12)
    outcome, model = stepped(method, images / 12 + torch.rand(12, 3, 8, 6), labels, drawn(4, epoch))
    w = effective(COUNTS) if epoch else torch.ones(3, dtype=torch.float64)
    total = 0.0
    for i, (a, b, share) in enumerate(zip(outcome.target.a, outcome.target.b, outcome.target.share, strict=True)):
        total += float(share * w[a] * by_hand(base, outcome.logits[i], a))
        total += float((1 - share) * w[b] * by_hand(base, outcome.logits[i], b))
    assert outcome.loss.item() == pytest.approx(total / 12, rel=1e-4)
    assert method.head == ("cosine" if base == "ldam" else None)
    if base == "ldam":
        features = F.normalize(model.backbone.seen[0].flatten(1)[:, :4], dim=1)
        wanted = 30 * features @ F.normalize(model.head.weight, dim=1).T
        torch.testing.assert_close(outcome.logits, wanted)


def test_streams(make, at):
    (stream,) = make("remix").streams(at(0).stage).values()
    assert (stream.kind, stream.then) == ("instance", None)
    (stream,) = make("remix", defer="resample").streams(at(0).stage).values()
    assert (stream.then, stream.switch) == ("class-balanced", 160)


# in the engine


@pytest.mark.parametrize("options", [{}, {"mix": "cutmix"}, {"base_loss": "ldam", "defer": "reweight"}])
def test_a_run(tmp_path, options):
    train(settings(tmp_path / "run", method="remix", options=options))
    late = {"reweighted": 5} if "defer" in options else {}
    assert results(tmp_path / "run")["phases"] == ({"train": 5} | late if late else {"train": 10})
    assert all(math.isfinite(line["loss"]) for line in metrics(tmp_path / "run"))


def test_features_can_be_mixed_by_mixup(tmp_path):
    train(settings(tmp_path / "run", method="remix", probe=True))
    assert predictions(tmp_path / "run")["logits"].shape[1] == 6


def test_features_cannot_be_cut(tmp_path):
    with pytest.raises(ValueError, match="works on images and cannot be used in probe mode"):
        train(settings(tmp_path / "run", method="remix", probe=True, options={"mix": "cutmix"}))


def test_a_refused_run_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="probe mode"):
        train(settings(tmp_path / "run", method="remix", probe=True, options={"mix": "cutmix"}))
    assert not (tmp_path / "run").exists()


def test_a_linear_head_is_refused_under_ldam(tmp_path):
    with pytest.raises(ValueError, match="remix needs a cosine head; got --head linear"):
        train(settings(tmp_path / "run", method="remix", options={"base_loss": "ldam"}, model__head="linear"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("mix_alpha", 0.0), ("mix_alpha", -1.0), ("mix_alpha", math.nan), ("kappa", 0.5), ("kappa", math.inf),
     ("tau", -0.1), ("tau", 1.5), ("tau", math.nan), ("defer_at", 2.0)],
)  # fmt: skip
def test_options_out_of_range_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} must"):
        train(settings(tmp_path / "run", method="remix", options={name: value}))
    assert not (tmp_path / "run").exists()
