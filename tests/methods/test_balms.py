"""BALMS: rates of the Meta Sampler, the law of its draws, and the bilevel step against plain autograd."""

import json
import os
import re
import statistics
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chisquare
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training.runs import assert_same, metrics, results, settings

from spectail import ClassCounts
from spectail.data.batch import Batch
from spectail.data.loader import Maker
from spectail.losses import BalancedSoftmaxLoss, CrossEntropyLoss
from spectail.methods import Stage, Step
from spectail.methods.meta_sampler import MetaSampler, initial_rates
from spectail.models.classifier import Classifier
from spectail.training.loop import train

COUNTS = (100, 20, 5)
LEVELS = pytest.mark.parametrize("level", ["class", "item"])


def close(found, wanted, digits=5):
    torch.testing.assert_close(torch.as_tensor(found).double().tolist(), wanted, atol=2 * 10**-digits, rtol=0)


# the rates and the law of the draw


@pytest.mark.parametrize(
    ("power", "rates", "law"),
    [
        (0.0, [0.5, 0.5, 0.5], [0.8, 0.16, 0.04]),
        (0.1, [0.42566, 0.49999, 0.57434], [0.76782, 0.18038, 0.05180]),
        (1.0, [0.04762, 0.23810, 0.95238], [1 / 3] * 3),
    ],
)
def test_rates_begin_as_the_authors_do(power, rates, law):
    close(initial_rates(ClassCounts(COUNTS), power), rates)
    sampler = MetaSampler(ClassCounts(COUNTS), power)
    close(torch.sigmoid(sampler.psi), rates)
    classes = torch.tensor(COUNTS) * torch.sigmoid(sampler.psi.double())
    close(classes / classes.sum(), law)


def labels_of(counts):
    """Mixed up, so that no class lies in one piece."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))]


@LEVELS
@pytest.mark.parametrize("psi", [(0.0, 0.0, 0.0), (-1.0, 0.4, 3.0)])
def test_draws_follow_counts_times_rates(level, psi):
    counts, draws = (30, 8, 2), 40_000
    labels, rho = labels_of(counts), torch.tensor(psi).double().sigmoid()
    sampler = MetaSampler(ClassCounts(counts), level=level)
    sampler.psi.copy_(torch.tensor(psi))
    generator = torch.Generator().manual_seed(1)
    rows = torch.cat([sampler.draw(4000, labels, generator)[0] for _ in range(draws // 4000)])
    assert 0 <= rows.min() <= rows.max() < 40
    wanted = rho[labels] / rho[labels].sum() * draws  # for every image: rho of its class
    assert chisquare(rows.bincount(minlength=40), wanted).pvalue > 1e-3
    classes = torch.tensor(counts) * rho
    assert chisquare(labels[rows].bincount(minlength=3), classes / classes.sum() * draws).pvalue > 1e-3


@LEVELS
def test_the_draw_is_the_largest_score_and_repeats_with_the_generator(level):
    labels = labels_of((6, 3, 1))
    sampler = MetaSampler(ClassCounts((6, 3, 1)), power=0.7, level=level)
    rows, noise = sampler.draw(50, labels, torch.Generator().manual_seed(3))
    again, _ = sampler.draw(50, labels, torch.Generator().manual_seed(3))
    other, _ = sampler.draw(50, labels, torch.Generator().manual_seed(4))
    assert torch.equal(rows, again)
    assert not torch.equal(rows, other)
    log_rho = torch.log(torch.sigmoid(sampler.psi))
    if level == "item":
        assert torch.equal(rows, (log_rho[labels] + noise).argmax(1))
    else:
        assert torch.equal(labels[rows], (log_rho + torch.tensor([6.0, 3.0, 1.0]).log() + noise).argmax(1))


@LEVELS
def test_two_classes_and_a_class_with_one_image(level):
    labels = torch.tensor([0, 1, 0, 0])
    sampler = MetaSampler(ClassCounts((3, 1)), level=level)
    rows, _ = sampler.draw(400, labels, torch.Generator().manual_seed(0))
    assert rows.unique().tolist() == [0, 1, 2, 3]
    assert chisquare(rows.bincount(), [100.0] * 4).pvalue > 1e-3


def test_moves_are_those_of_adam():
    sampler = MetaSampler(ClassCounts(COUNTS), 0.1, lr=0.03)
    psi = sampler.psi.clone().requires_grad_()
    adam = torch.optim.Adam([psi], lr=0.03)
    for seed in range(6):
        gradient = torch.randn(3, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed - 4)
        sampler.move(gradient)
        psi.grad = gradient.clone()
        adam.step()
        torch.testing.assert_close(sampler.psi, psi.detach(), rtol=1e-5, atol=1e-6)


def test_rates_and_moments_are_state_and_not_parameters(make):
    method = make("balms")
    assert not list(method.parameters())
    saved = method.state_dict()
    assert {f"sampler.{name}" for name in ("psi", "first", "second", "moves")} <= saved.keys()
    method.sampler.move(torch.tensor([1.0, -1.0, 0.5]))
    other = make("balms")
    other.load_state_dict(method.state_dict())
    for sampler in (method.sampler, other.sampler):
        sampler.move(torch.tensor([0.1, 0.2, 0.3]))
    assert torch.equal(method.sampler.psi, other.sampler.psi)


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="one of 'class', 'item'; got 'image'"):
        MetaSampler(ClassCounts(COUNTS), level="image")


class OneDevice(TorchDispatchMode):
    """Refuses an operation on tensors of several devices, as a GPU would; moving and indexing may mix them."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.overloadpacket not in (torch.ops.aten._to_copy, torch.ops.aten.index):
            tensors = [item for item in tree_leaves((arguments, options)) if isinstance(item, torch.Tensor)]
            assert len({tensor.device for tensor in tensors if tensor.ndim}) < 2, f"{function} mixes devices"
        return function(*arguments, **(options or {}))


@LEVELS
def test_the_gradient_is_taken_where_the_rates_are(level):
    """Labels and drawn indices stay on the CPU, the rates are on the device of the run."""
    sampler = MetaSampler(ClassCounts((3, 1)), level=level)
    labels = torch.tensor([0, 1, 0, 0])
    rows, noise = sampler.draw(5, labels, torch.Generator().manual_seed(0))
    sampler.to("meta")
    with OneDevice():
        gradient = sampler.gradient(torch.zeros(5, device="meta"), rows, noise, labels)
    assert gradient.device.type == "meta"
    assert gradient.shape == (2,)


# the bilevel step


def test_bilevel_toy(make, monkeypatch):
    """Labels (0, 0, 1), equal rates, noise (.3, -.2, .5): item 2 is drawn, whose feature is 1 and whose label is 1.

    Our head has a bias, the toy has none: two more draws of class 0 with feature 0 make the gradient of the bias
    vanish, so that three times the rate is the toy's step.
    """
    labels, inputs = torch.tensor([0, 0, 1]), torch.tensor([[0.0], [0.0], [1.0]])
    noise = torch.tensor([[0.3, -0.2, 0.5], [2.0, 0.1, 0.2], [-0.3, 1.5, 0.4]])
    torch.testing.assert_close(noise[0].softmax(0).tolist(), [0.35362, 0.21448, 0.43191], atol=2e-5, rtol=0)
    rows = noise.argmax(1)
    assert rows.tolist() == [2, 0, 1]
    method = make("balms", counts=(2, 1), meta_draw="item")
    model = Classifier(nn.Identity(), nn.Linear(1, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    heard, gradients = {}, []
    step = Step(
        Stage("stage2"), optimizer=optimizer, generator=torch.Generator(), labels=labels,
        fetch=lambda rows: Batch(inputs[rows], labels[rows], rows), log=lambda name, value: heard.update({name: value}),
    )  # fmt: skip
    monkeypatch.setattr(method.sampler, "draw", lambda *arguments: (rows, noise))
    batches = {
        "main": Batch(None, labels, torch.arange(3)),
        "meta": Batch(torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0]), torch.arange(2)),
    }
    move = method.sampler.move
    monkeypatch.setattr(method.sampler, "move", lambda gradient: (gradients.append(gradient), move(gradient)))
    outcome = method.loss(model, batches, step)
    close(heard["meta_loss"], 0.62870)
    torch.testing.assert_close(gradients[0].tolist(), [0.007634, -0.007634], atol=2e-6, rtol=0)
    assert method.sampler.psi[1] > 0 > method.sampler.psi[0]
    assert not model.head.weight.any()  # the step was virtual
    assert not model.head.bias.any()
    # the loss is that of the three images: log 3 for the rare class, log 3/2 for the other
    assert outcome.loss.item() == pytest.approx((1.09861 + 2 * 0.40547) / 3, abs=1e-5)
    outcome.loss.backward()
    optimizer.step()
    close(model.head.weight.detach().flatten(), [-0.06667, 0.06667])
    close(model.head.bias.detach(), [0.0, 0.0])


class Oracle:
    """The whole of stage two, slowly: SGD written out, differentiated through by autograd, in float64."""

    def __init__(self, method, head, lr, momentum, decay, labels, counts):
        self.psi = method.sampler.psi.detach().double().requires_grad_()
        self.adam = torch.optim.Adam([self.psi], lr=method.sampler.lr)
        self.weights = [parameter.detach().double().requires_grad_() for parameter in head.parameters()]
        self.buffers = [torch.zeros_like(weight) for weight in self.weights]
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.labels, self.counts, self.level = labels, torch.tensor(counts).double(), method.sampler.level

    def stepped(self, gradients):
        """Where SGD goes, and its new buffers."""
        moved = [
            self.momentum * buffer + gradient + self.decay * weight
            for weight, buffer, gradient in zip(self.weights, self.buffers, gradients, strict=True)
        ]
        return [weight - self.lr * move for weight, move in zip(self.weights, moved, strict=True)], moved

    def step(self, rows, noise, features, meta_features, meta_labels):
        losses, shares = [], []
        for place, row in enumerate(rows.tolist()):
            weight, bias = self.weights
            logits = weight @ features[place] + bias + self.counts.log()
            losses.append(logits.logsumexp(0) - logits[self.labels[row]])
            log_rho = torch.log(torch.sigmoid(self.psi))
            if self.level == "item":
                scores, chosen = torch.stack([log_rho[label] for label in self.labels]) + noise[place], row
            else:
                scores, chosen = log_rho + self.counts.log() + noise[place], int(self.labels[row])
            soft = (scores / 1.0).softmax(0)
            hard = F.one_hot(torch.tensor(chosen), len(scores)).double()
            shares.append((hard + soft - soft.detach())[chosen])
        inner = sum(loss * share for loss, share in zip(losses, shares, strict=True)) / len(losses)
        gradients = torch.autograd.grad(inner, self.weights, create_graph=True)
        ahead, _ = self.stepped(gradients)
        meta_loss = F.cross_entropy(meta_features @ ahead[0].T + ahead[1], meta_labels)
        self.psi.grad = torch.autograd.grad(meta_loss, self.psi, retain_graph=True)[0]
        found = self.psi.grad.clone()
        self.adam.step()
        plain = torch.autograd.grad(sum(losses) / len(losses), self.weights)
        with torch.no_grad():
            after, self.buffers = self.stepped(plain)
        self.weights = [weight.requires_grad_() for weight in after]
        return meta_loss.item(), found, (sum(losses) / len(losses)).item()


@LEVELS
@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 5e-2), (0.0, 0.0)])
def test_bilevel_steps_against_differentiable_sgd(make, level, momentum, decay):
    """Several steps in a row: the momentum buffer, the decay, Adam's moments and the rates all matter after one."""
    counts, width, lr = (9, 4, 2, 1), 5, 0.4
    generator = torch.Generator().manual_seed(11)
    labels = labels_of(counts)
    inputs = torch.randn(len(labels), width, generator=generator)
    method = make("balms", counts=counts, meta_draw=level, meta_power=0.3, meta_lr=0.05)
    head = nn.Linear(width, 4)
    model = Classifier(nn.Identity(), head)
    optimizer = torch.optim.SGD(head.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
    oracle = Oracle(method, head, lr, momentum, decay, labels, counts)
    drawn, gradients, heard = [], [], {}
    draw, move = method.sampler.draw, method.sampler.move

    def recorded_draw(*arguments):
        drawn.append(draw(*arguments))
        return drawn[-1]

    def recorded_move(gradient):
        gradients.append(gradient.clone())
        move(gradient)

    method.sampler.draw, method.sampler.move = recorded_draw, recorded_move
    step = Step(
        Stage("stage2"), optimizer=optimizer, generator=torch.Generator().manual_seed(2), labels=labels,
        fetch=lambda rows: Batch(inputs[rows], labels[rows], rows), log=lambda name, value: heard.update({name: value}),
    )  # fmt: skip
    for _ in range(4):
        meta_rows = torch.randint(len(labels), (7,), generator=generator)
        meta = Batch(inputs[meta_rows], labels[meta_rows], meta_rows)
        main = Batch(None, torch.zeros(6, dtype=torch.int64), torch.arange(6))
        outcome = method.loss(model, {"main": main, "meta": meta}, step)
        rows, noise = drawn[-1]
        assert len(rows) == 6
        meta_loss, gradient, loss = oracle.step(
            rows, noise.double(), inputs[rows].double(), meta.images.double(), meta.labels
        )
        assert heard["meta_loss"].item() == pytest.approx(meta_loss, rel=1e-5)
        torch.testing.assert_close(gradients[-1].double(), gradient, rtol=5e-4, atol=1e-6)
        assert gradient.abs().max() > 1e-3
        assert outcome.loss.item() == pytest.approx(loss, rel=1e-5)
        assert torch.equal(outcome.target, labels[rows])
        torch.testing.assert_close(outcome.logits, head(inputs[rows]))  # no log-counts in them
        outcome.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for found, wanted in zip(head.parameters(), oracle.weights, strict=True):
            torch.testing.assert_close(found.detach().double(), wanted.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(method.sampler.psi.double(), oracle.psi.detach(), rtol=1e-3, atol=1e-4)


# in the engine


def last_state(folder):
    path = sorted((folder / "checkpoints").iterdir())[-1] / "state.pt"
    return torch.load(path, weights_only=False)["learner"]


def test_rates_are_learned_in_the_second_stage_only(tmp_path):
    options = {"stage2_epochs": 3, "stage2_batch_size": 16, "meta_lr": 0.05}
    train(settings(tmp_path / "run", method="balms", options=options, keep_checkpoints=9))
    states = [torch.load(path / "state.pt", weights_only=False)["learner"]["method.sampler.psi"]
              for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]  # fmt: skip
    assert len(states) == 5
    assert not torch.stack(states[:2]).any()
    assert (states[2] != 0).all()
    assert states[2].abs().max() <= 0.05 * 4 * 1.01  # four even steps of Adam an epoch
    assert not torch.equal(states[3], states[4])
    assert results(tmp_path / "run")["phases"] == {"stage1": 10, "stage2": 12}
    lines = metrics(tmp_path / "run")
    assert ["meta_loss" in line for line in lines] == [False] * 2 + [True] * 3


@pytest.mark.parametrize("how", ["class", "item"])
def test_both_draws_train(how, tmp_path):
    train(settings(tmp_path / "run", method="balms", options={"stage2_epochs": 1, "meta_draw": how}))
    assert results(tmp_path / "run")["phases"]["stage2"] == 1  # a batch of 512 is cut to the 68 images


def test_decoupled_balanced_softmax_has_no_sampler(tmp_path, make):
    method = make("balms", sampling="instance")
    assert [*method.streams(Stage("stage2"))] == ["main"]
    assert method.disclosures() == {}
    train(
        settings(
            tmp_path / "run",
            method="balms",
            options={"sampling": "instance", "stage2_batch_size": 16, "stage2_epochs": 1},
        )
    )
    assert not last_state(tmp_path / "run")["method.sampler.psi"].any()
    assert "meta_loss" not in json.dumps(metrics(tmp_path / "run"))


def test_stage_one_is_plain_and_stage_two_is_balanced(make):
    method = make("balms")
    assert isinstance(method.plain, CrossEntropyLoss)
    assert isinstance(method.criterion, BalancedSoftmaxLoss)
    first, second = method.stages()
    assert (first.train, second.train, second.fresh_head, second.norm) == ("all", "head", True, "drift")
    assert (second.optim["lr"], second.optim["weight_decay"], second.optim["batch_size"]) == (0.1, 5e-4, 512)
    assert second.epochs == round(200 * 2000 / 13000)


def test_meta_batches_are_class_balanced_from_where_they_are_asked(make):
    for source in ("train", "val"):
        method = make("balms", meta_data=source, meta_batch_size=40)
        streams = method.streams(Stage("stage2"))
        assert (streams["meta"].kind, streams["meta"].split) == ("class-balanced", source)
        assert streams["meta"].batch_size == 40
        assert not streams["main"].images
        assert {"train": "training set", "val": "validation data"}[source] in method.disclosures()["meta_data"]


def test_meta_data_from_validation(tmp_path):
    options = {"meta_data": "val", "stage2_epochs": 1}
    train(settings(tmp_path / "run", method="balms", options=options, data__val_fraction=0.25))
    assert "validation data" in results(tmp_path / "run")["disclosures"]["meta_data"]


def test_images_are_decoded_in_other_processes(tmp_path, monkeypatch):
    """In both stages and in evaluations; and it does not matter where."""
    plain = {"method": "balms", "transform": "cifar-strong", "options": {"stage2_batch_size": 16, "stage2_epochs": 2}}
    train(settings(tmp_path / "here", **plain))
    main, make = os.getpid(), Maker.__call__

    def made(self, request):
        assert os.getpid() != main
        return make(self, request)

    monkeypatch.setattr(Maker, "__call__", made)
    train(settings(tmp_path / "there", workers=2, **plain))
    assert_same(tmp_path / "here", tmp_path / "there")


def test_validation_data_must_be_there(tmp_path):
    with pytest.raises(ValueError, match="balms was told to use validation data, and there are none: pass --val-f"):
        train(settings(tmp_path / "run", method="balms", options={"meta_data": "val"}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("option", "value"), [("meta_batch_size", 0), ("meta_batch_size", -4), ("meta_lr", -0.1)])
def test_mistakes_are_refused_before_anything_is_written(option, value, tmp_path):
    with pytest.raises(ValueError, match=f"--{option.replace('_', '-')}"):
        train(settings(tmp_path / "run", method="balms", options={option: value}))
    assert not (tmp_path / "run").exists()


# what a person chooses it by


def test_its_cost_is_the_measured_one_and_its_needs_are_all_there(make):
    """In the list of methods, and on its page."""
    root = Path(__file__).parents[2]
    entries = json.loads((root / "benchmarks" / "results" / "meta_sampler.json").read_text())
    measured = statistics.median(entry["ratio"] for entry in entries)
    method = make("balms")
    (said,) = re.findall(r"about ([\d.]+) times", method.about.cost)
    (told,) = re.findall(r"costs about ([\d.]+) plain", (root / "docs" / "methods" / "balms.md").read_text())
    assert float(said) == float(told) == pytest.approx(measured, rel=0.15)
    assert method.head == "linear"
    assert method.about.needs.endswith(", linear head")
