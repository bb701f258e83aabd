"""SAFA-R: what the two networks add to a loss and when, who gets which gradient, and whole runs."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from training.rank_runs import train_all
from training.runs import metrics, predictions, results, settings

from spectail.augment.safa import Pairs, augment
from spectail.data.batch import Batch
from spectail.losses.ldam import margins
from spectail.methods.registry import find_method
from spectail.methods.safa import SAFA, SAFAOptions
from spectail.testing import CHECKS
from spectail.training.loop import train
from spectail.training.trained import load_trained

COUNTS = (100, 20, 5)  # class 0 is the head
LABELS = torch.tensor([0, 1, 0, 2, 2, 1])
PAIRS = Pairs(torch.tensor([1, 3, 4, 5]), torch.tensor([0, 2, 0, 2]), torch.tensor([2, 2, 2, 0]))
NOTHING = {"recycle_weight": 0.0, "contrastive_weight": 0.0, "mode_weight": 0.0}
WEIGHTS = [0.11590, 0.57717, 2.30694]  # beta .9999


class Built:
    """A method with a backbone of one layer and networks that do move features, and a batch for it."""

    def __init__(self, make, at, *, still=False, labels=LABELS, pairs=PAIRS, **options):
        torch.manual_seed(0)
        self.method = make("safa-r", **options)
        head = self.method.make_head(self.method.head or "linear", 4)
        self.model = self.method.build(nn.Linear(7, 4), head).double()
        self.method.double()
        if not still:
            for parameter in self.method.nets.mover[-1].parameters():
                nn.init.normal_(parameter, std=0.5)
        images = torch.randn(len(labels), 7, dtype=torch.float64)
        self.batches = {"main": Batch(images, labels, torch.arange(len(labels)))}
        self.labels, self.at, self.said = labels, at, {}
        if pairs is not None:
            self.method.pairs = lambda labels, step: pairs

    def step(self, epoch):
        step = self.at(epoch, log=lambda name, value: self.said.update({name: float(value)}))
        self.method.begin_epoch(step)
        return self.method.loss(self.model, self.batches, step)

    def features(self):
        return self.model.backbone(self.batches["main"].images)


@pytest.fixture
def built(make, at):
    return lambda **options: Built(make, at, **options)


def gradients(module):
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in module.parameters()]


# the loss of a step


@pytest.mark.parametrize("epoch", [0, 159, 160])
def test_the_sum_of_all_terms(built, epoch):
    one = built(defer="none", recycle_weight=0.3, contrastive_weight=0.7, mode_weight=0.2, augmented_weight=1.5,
                temperature=0.4, mode_clamp=1.1)  # fmt: skip
    outcome = one.step(epoch)
    features = one.features()
    parts = augment(one.method.nets, features, PAIRS, temperature=0.4, clamp=1.1)
    wanted = F.cross_entropy(one.model.head(features), LABELS)
    wanted = wanted + 0.3 * parts.recycle + 0.7 * parts.contrastive + 0.2 * parts.mode_seeking
    if epoch == 160:
        wanted = wanted + 1.5 * F.cross_entropy(one.model.head(parts.moved), LABELS[PAIRS.tail])
    torch.testing.assert_close(outcome.loss, wanted)
    torch.testing.assert_close(outcome.logits, one.model.head(features))  # CAR sees what inference uses
    assert torch.equal(outcome.target, LABELS)
    assert one.said["safa_recycle"] == pytest.approx(parts.recycle.item())
    assert one.said["safa_contrastive"] == pytest.approx(parts.contrastive.item())
    assert one.said["safa_mode_seeking"] == pytest.approx(parts.mode_seeking.item())
    assert one.said["safa_shift"] == pytest.approx(parts.shift.item())
    assert one.said["safa_pairs"] == 4
    assert ("safa_augmented" in one.said) == (epoch == 160)


def test_default_weights_are_those_of_the_reconstruction(built):
    one = built(defer="none")
    found, parts = one.step(160), one.said
    wanted = parts["safa_real"] + parts["safa_augmented"] + 0.1 * parts["safa_recycle"]
    wanted += 0.1 * parts["safa_contrastive"] + 0.01 * parts["safa_mode_seeking"]
    assert found.loss.item() == pytest.approx(wanted)


def test_before_anything_moves_the_augmented_loss_is_that_of_the_tail_rows(built):
    """T = 0: h^ is h."""
    one = built(still=True, defer="none", **NOTHING)
    outcome = one.step(160)
    logits = one.model.head(one.features())
    wanted = F.cross_entropy(logits[PAIRS.tail], LABELS[PAIRS.tail])
    assert one.said["safa_augmented"] == wanted.item()
    torch.testing.assert_close(outcome.loss, F.cross_entropy(logits, LABELS) + wanted)


def test_late_weights_hold_for_moved_features_too(built):
    one = built(**NOTHING)
    outcome = one.step(160)
    features = one.features()
    moved = augment(one.method.nets, features, PAIRS).moved
    weight = torch.tensor(WEIGHTS, dtype=torch.float64)
    wanted = F.cross_entropy(one.model.head(features), LABELS, weight)
    wanted = wanted + F.cross_entropy(one.model.head(moved), LABELS[PAIRS.tail], weight)
    torch.testing.assert_close(outcome.loss, wanted, rtol=1e-4, atol=1e-4)


def test_balanced_softmax_as_the_base(built):
    one = built(defer="none", base_loss="balanced-softmax", **NOTHING)
    outcome = one.step(160)
    features = one.features()
    moved, prior = augment(one.method.nets, features, PAIRS).moved, torch.tensor(COUNTS).double().log()
    wanted = F.cross_entropy(one.model.head(features) + prior, LABELS)
    wanted = wanted + F.cross_entropy(one.model.head(moved) + prior, LABELS[PAIRS.tail])
    torch.testing.assert_close(outcome.loss, wanted)
    torch.testing.assert_close(outcome.logits, one.model.head(features))  # without the prior


@pytest.mark.parametrize("max_margin", [0.5, 0.3])
def test_ldam_as_the_base(built, max_margin):
    """Cosines of real and moved features alike, less the margin of the label, times 30."""
    one = built(defer="none", base_loss="ldam", max_margin=max_margin, **NOTHING)
    outcome = one.step(160)
    features = one.features()
    wanted = 0
    for rows, labels in ((features, LABELS), (augment(one.method.nets, features, PAIRS).moved, LABELS[PAIRS.tail])):
        cosines = F.cosine_similarity(rows[:, None], one.model.head.weight[None], dim=2)
        shifted = cosines - margins(COUNTS, max_margin) * F.one_hot(labels, 3)
        wanted = wanted + F.cross_entropy(30 * shifted, labels)
    torch.testing.assert_close(outcome.loss, wanted)
    assert one.method.head == "cosine"


@pytest.mark.parametrize("base", ["ce", "balanced-softmax"])
def test_other_bases_take_any_head(make, base):
    assert make("safa-r", base_loss=base).head is None


# gradients


@pytest.mark.parametrize("epoch", [0, 160])
@pytest.mark.parametrize("base", ["ce", "ldam"])
def test_the_backbone_learns_from_real_samples_only(built, epoch, base):
    one = built(base_loss=base)
    one.step(epoch).loss.backward()
    found = gradients(one.model.backbone)
    one.model.zero_grad()
    one.method.cost(one.model(one.batches["main"].images), LABELS).backward()
    assert all(torch.equal(a, b) for a, b in zip(found, gradients(one.model.backbone), strict=True))


def test_added_terms_alone_give_the_backbone_nothing(built):
    one = built()
    seen = []
    one.model.backbone.register_forward_hook(lambda module, inputs, output: seen.append(output))
    outcome = one.step(160)
    real = one.method.cost(outcome.logits, LABELS)
    (outcome.loss - real).backward()
    assert len(seen) == 1  # one pass of the backbone
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in gradients(one.model.backbone))


def test_auxiliary_losses_leave_the_head_alone_and_moved_features_train_it(built):
    one = built(defer="none")
    found = []
    for epoch in (0, 160):
        one.model.zero_grad()
        one.step(epoch).loss.backward()
        found.append(gradients(one.model.head))
    one.model.zero_grad()
    F.cross_entropy(one.model(one.batches["main"].images), LABELS).backward()
    plain = gradients(one.model.head)
    assert all(torch.equal(a, b) for a, b in zip(found[0], plain, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(found[1], plain, strict=True))


@pytest.mark.parametrize("epoch", [0, 160])
def test_both_networks_learn(built, epoch):
    one = built()
    one.step(epoch).loss.backward()
    for layer in (one.method.nets.reader[0], one.method.nets.mover[0], one.method.nets.mover[2]):
        assert layer.weight.grad.abs().sum() > 0


# batches without a pair


@pytest.mark.parametrize("labels", [[0], [2], [0, 0, 0], [1, 2, 2]])
@pytest.mark.parametrize("epoch", [0, 160])
@pytest.mark.parametrize("base", ["ce", "balanced-softmax", "ldam"])
def test_without_head_or_tail_the_loss_is_the_base_loss(built, labels, epoch, base):
    labels = torch.tensor(labels)
    one = built(labels=labels, pairs=None, base_loss=base)
    outcome = one.step(epoch)
    real = one.method.cost(outcome.logits, labels)
    assert torch.equal(outcome.loss, real)
    assert all(value == 0 for name, value in one.said.items() if name != "safa_real")
    outcome.loss.backward()
    for parameter in one.method.nets.parameters():  # in the graph, as distributed training demands
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))
    assert all(grad is not None and torch.isfinite(grad).all() for grad in gradients(one.model))


# CAR


def test_car_may_see_moved_features(built):
    one = built(car_rows="all", defer="none")
    early = one.step(0)
    assert len(early.logits) == len(early.target) == 6
    late = one.step(160)
    features = one.features()
    moved = augment(one.method.nets, features, PAIRS).moved
    torch.testing.assert_close(late.logits, one.model.head(torch.cat([features, moved])))
    assert torch.equal(late.target, torch.cat([LABELS, LABELS[PAIRS.tail]]))
    late.logits[6:].sum().backward()
    assert all(grad is None for grad in gradients(one.method.nets))
    assert all(grad is None or not grad.any() for grad in gradients(one.model.backbone))
    assert one.model.head.weight.grad.abs().sum() > 0
    torch.testing.assert_close(late.loss, built(defer="none").step(160).loss)  # the loss itself is the same


# schedule


def test_phases(make, at):
    def phases(**options):
        method = make("safa-r", epochs=10, **options)
        return [method.phase(at(epoch, 10)) for epoch in range(10)]

    assert phases() == ["train"] * 8 + ["augmented"] * 2
    assert phases(start=0.5, defer="none") == ["train"] * 5 + ["augmented"] * 5
    assert phases(start=0.8, defer_at=0.6) == ["train"] * 6 + ["reweighted"] * 2 + ["augmented"] * 2
    assert phases(start=0.8, defer="resample", defer_at=0.7) == ["train"] * 7 + ["resampled"] + ["augmented"] * 2


def test_weights_are_deferred_with_it_by_default(make, at):
    method = make("safa-r")
    for epoch, late in ((159, False), (160, True), (3, False)):
        method.begin_epoch(at(epoch))
        assert (method.criterion.class_weights() is not None) == late
        assert method.augments(at(epoch)) == late


def test_late_sampling_is_possible(make, at):
    stream = make("safa-r", defer="resample").streams(at(0).stage)["main"]
    assert (stream.then, stream.switch) == ("class-balanced", 160)


# draws


def placed(at, seed):
    return at(0, generator=torch.Generator().manual_seed(seed))


def test_a_step_takes_one_number_whatever_the_batch(make, at):
    method, states = make("safa-r", copies=3), []
    for labels in ([0], [1, 2], [0, 1, 2] * 9):
        step = placed(at, 5)
        method.pairs(torch.tensor(labels), step)
        states.append(step.generator.get_state())
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
    assert not torch.equal(states[0], torch.Generator().manual_seed(5).get_state())


def test_draws_repeat_and_differ_from_step_to_step_and_between_ranks(make, at, monkeypatch):
    method, labels = make("safa-r"), torch.tensor([0, 1, 2] * 20)
    step = placed(at, 5)
    first, following = method.pairs(labels, step), method.pairs(labels, step)
    again = method.pairs(labels, placed(at, 5))
    monkeypatch.setattr("spectail.methods.safa.rank_and_world", lambda: (1, 2))
    other = method.pairs(labels, placed(at, 5))
    assert torch.equal(first.first, again.first)
    assert torch.equal(first.second, again.second)
    assert not torch.equal(first.first, following.first)
    assert not torch.equal(first.first, other.first)
    assert (labels[first.first] == 0).all()
    assert (labels[first.second] == 0).all()
    assert torch.equal(first.tail, (labels > 0).nonzero().flatten())


def test_copies(built):
    one = built(pairs=None, copies=3)
    one.step(160)
    assert one.said["safa_pairs"] == 12


@pytest.mark.parametrize("size", [None, 3])
def test_the_width_of_directions(built, size):
    nets = built(code_size=size).method.nets
    assert nets.reader[-1].out_features == (size or 4)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"head_share": 0.0}, "head_share must lie between 0 and 1"),
        ({"start": 1.2}, "between 0 and 1"),
        ({"copies": 0}, "--copies must be at least 1; got 0"),
        ({"code_size": 0}, "--code-size must be at least 1"),
        ({"temperature": 0.0}, "--temperature must be more than 0"),
        ({"mode_clamp": math.inf}, "--mode-clamp must be more than 0 and finite; got inf"),
        ({"recycle_weight": -0.1}, "--recycle-weight must be at least 0"),
        ({"augmented_weight": math.nan}, "--augmented-weight must be at least 0 and finite; got nan"),
    ],
)
def test_senseless_options_are_refused(make, option, message):
    with pytest.raises(ValueError, match=message):
        make("safa-r", **option)


# whole runs


def test_a_run_under_the_short_name(tmp_path):
    """`--method safa` is answered with the name that the results must carry."""
    assert find_method("safa").name == "safa-r"
    folder = tmp_path / "run"
    train(settings(folder, method="safa", optim__epochs=5, eval_train=False))
    found = results(folder)
    assert found["method"] == "safa-r"
    assert "reconstruction of SAFA" in found["disclosures"]["reconstruction"]
    assert found["phases"] == {"train": 20, "augmented": 5}
    lines = metrics(folder)
    assert ["safa_augmented" in line for line in lines] == [False] * 4 + [True]
    assert all(line["safa_pairs"] > 0 for line in lines)
    assert lines[-1]["safa_shift"] > 0
    assert not [name for name in load_file(folder / "model.safetensors") if "nets" in name]
    state = torch.load(sorted((folder / "checkpoints").iterdir())[-1] / "state.pt", weights_only=False)
    assert state["learner"]["method.nets.mover.2.weight"].abs().sum() > 0  # trained, and saved


def test_evaluation_needs_neither_network(tmp_path, test_images):
    folder = tmp_path / "run"
    train(settings(folder, method="safa-r", eval_train=False))
    weights, trained = load_file(folder / "model.safetensors"), load_trained(folder)
    with torch.no_grad():
        features = trained.model.backbone(test_images(trained))
    wanted = features @ weights["head.weight"].T + weights["head.bias"]
    np.testing.assert_allclose(predictions(folder)["logits"], wanted, rtol=1e-4, atol=1e-5)


def test_with_no_weight_on_its_terms_it_is_the_base_loss(tmp_path):
    """Bit for bit: neither the networks nor the draws disturb the rest of a run."""
    train(settings(tmp_path / "one", method="safa-r", options=NOTHING | {"augmented_weight": 0.0}))
    train(settings(tmp_path / "two", method="ce", options={"defer": "reweight"}))
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second


@pytest.mark.parametrize(("base", "rows"), [("ce", "real"), ("ldam", "all")])
def test_probe_mode(tmp_path, base, rows):
    options = {"base_loss": base, "copies": 2, "car_rows": rows}
    train(settings(tmp_path / "run", method="safa-r", probe=True, options=options, car__enabled=True))
    found = results(tmp_path / "run")
    assert found["probe"]
    assert found["phases"] == {"train": 5, "augmented": 5}
    assert all(math.isfinite(line["loss"]) and line["car"] > 0 for line in metrics(tmp_path / "run"))


def test_half_precision(tmp_path):
    train(settings(tmp_path / "run", method="safa-r", optim__precision="bf16", eval_train=False))
    assert all(math.isfinite(line["loss"]) for line in metrics(tmp_path / "run"))


def test_a_linear_head_is_refused_for_ldam(tmp_path):
    with pytest.raises(ValueError, match="safa-r needs a cosine head; got --head linear"):
        train(settings(tmp_path / "run", method="safa-r", options={"base_loss": "ldam"}, model__head="linear"))
    assert not (tmp_path / "run").exists()


@dataclasses.dataclass(frozen=True)
class VariantOptions(SAFAOptions):
    base_loss: str = "ldam"
    copies: int = 2
    car_rows: str = "all"
    defer: str = "resample"


class Variant(SAFA):
    """As far from the defaults as options go; the defaults are checked with all other methods."""

    options = VariantOptions()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance_of_a_variant(check, tmp_path):
    check("test_safa:Variant", tmp_path)


def test_two_processes_whose_batches_have_different_pairs(tmp_path, ranks):
    """Two images on each: often one process has a pair and the other none. Neither waits for the other for ever."""
    ranks(train_all, [(tmp_path / "run", {"method": "safa-r", "optim__batch_size": 4, "eval_train": False})])
    assert results(tmp_path / "run")["phases"] == {"train": 17, "augmented": 17}
    lines = metrics(tmp_path / "run")
    assert all(0 < line["safa_pairs"] < 1 for line in lines)
    assert all(math.isfinite(line["loss"]) for line in lines)
