"""MetaSAug: whole steps against autograd through a virtual network, schedules, meta data, backbones, two ranks."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from training.rank_runs import train_all
from training.runs import metrics, predictions, results, settings

from spectail.data.batch import Batch
from spectail.losses import effective_number_weights
from spectail.losses.ldam import margins
from spectail.methods import Stage
from spectail.methods.metasaug import MetaSAug, MetaSAugOptions
from spectail.methods.metasaug import method as module
from spectail.methods.metasaug.method import some_of_each
from spectail.models.build import ModelConfig, build_model
from spectail.models.small import SmallViT
from spectail.testing import CHECKS, begun, check_resume
from spectail.testing import settings as tiny_settings
from spectail.training.loop import train

HERE = "methods.test_metasaug"
COUNTS = (9, 6, 3, 1)
KINDS = pytest.mark.parametrize("kind", ["full", "diagonal"])
VIRTUAL = pytest.mark.parametrize("virtual", ["head", "all"])


def small_network(width=5):
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, width), nn.Tanh())


def built(make, backbone, width, counts=COUNTS, **options):
    method = make("metasaug", counts=counts, **options)
    model = method.build(backbone, method.make_head("linear", width))
    return method.double().train(), model.double().train()


def drawn(size, shape, seed, classes=4):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (size,), generator=generator)
    return Batch(torch.randn(size, *shape, generator=generator, dtype=torch.float64), labels, torch.arange(size))


class Oracle:
    """MetaSAug slowly: loops for the shift, the virtual network by autograd with create_graph, numpy covariances."""

    def __init__(self, method, model, lr, strength):
        own = method.options
        self.model, self.own, self.lr, self.strength = model, own, lr, strength
        self.weights = effective_number_weights(method.counts, own.beta).float().double()  # as a loss keeps them
        self.margin = margins(method.counts, own.max_margin).float().double()
        self.full = method.covariance.kind == "full"
        self.seen = []

    def covariances(self):
        width, classes = self.model.head.in_features, self.model.head.out_features
        found = torch.zeros(classes, width, width, dtype=torch.float64)
        features, labels = zip(*self.seen, strict=True) if self.seen else ((), ())
        for label in {int(y) for part in labels for y in part}:
            own = torch.cat(features)[torch.cat(labels) == label].numpy()
            found[label] = torch.from_numpy(np.cov(own, rowvar=False, bias=True).reshape(width, width))
        return found if self.full else found.diagonal(dim1=1, dim2=2).contiguous()

    def run(self, parameters, images):
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(self.model, {**buffers, **parameters}, (images,), {"features": True})

    def augmented(self, parameters, batch, cov):
        _, logits = self.run(parameters, batch.images)
        weight, rows = parameters["head.weight"], []
        for z, y in zip(logits, batch.labels.tolist(), strict=True):
            sigma = cov[y] if self.full else torch.diag(cov[y])
            shift = [(w - weight[y]) @ sigma @ (w - weight[y]) for w in weight]
            rows.append(z + self.strength / 2 * torch.stack(shift))
        raised = torch.stack(rows) - F.one_hot(batch.labels, len(weight)) * self.margin
        costs, each = F.cross_entropy(raised, batch.labels, reduction="none"), self.weights[batch.labels]
        return (each * costs).sum() / (each.sum() if self.own.weight_average == "weights" else len(each))

    def step(self, batch, meta):
        parameters = {name: value.detach().requires_grad_() for name, value in self.model.named_parameters()}
        moved = [name for name in parameters if self.own.virtual == "all" or name.startswith("head.")]
        cov = self.covariances().requires_grad_()
        inner = self.augmented(parameters, batch, cov)
        gradients = torch.autograd.grad(inner, [parameters[name] for name in moved], create_graph=True)
        ahead = {name: parameters[name] - self.lr * gradient for name, gradient in zip(moved, gradients, strict=True)}
        meta_loss = F.cross_entropy(self.run(parameters | ahead, meta.images)[1], meta.labels)
        gradient = torch.autograd.grad(meta_loss, cov)[0]
        corrected = (cov - self.own.meta_lr * gradient).detach()
        loss = self.augmented(parameters, batch, corrected)
        slopes = torch.autograd.grad(loss, list(parameters.values()))
        self.seen.append((self.run(parameters, batch.images)[0].detach(), batch.labels))
        return meta_loss.item(), gradient, corrected, loss.item(), dict(zip(parameters, slopes, strict=True))


@pytest.fixture
def gradients(monkeypatch):
    """Every gradient of the covariances that the method finds, with the classes."""
    found, real = [], module.covariance_gradient

    def spied(*arguments):
        result = real(*arguments)
        found.append((result[0], arguments[2].classes))
        return result

    monkeypatch.setattr(module, "covariance_gradient", spied)
    return found


# a step


@KINDS
@VIRTUAL
@pytest.mark.parametrize(("average", "margin"), [("weights", 0.0), ("samples", 0.5)])
def test_steps_against_autograd(make, at, gradients, kind, virtual, average, margin):
    """Several steps in a row: zero covariances first, then estimates; the corrections are not kept."""
    options = {"covariance": kind, "virtual": virtual, "weight_average": average, "max_margin": margin,
               "meta_lr": 2.0, "virtual_lr": 0.3}  # fmt: skip
    method, model = built(make, small_network(), 5, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    heard = {}
    step = at(180, optimizer=optimizer, log=lambda name, value: heard.update({name: value}))
    oracle = Oracle(method, model, lr=0.3, strength=0.75 * 180 / 200)
    for seed in range(3):
        batch, meta = drawn(8, (3,), seed), drawn(6, (3,), 50 + seed)
        meta_loss, gradient, corrected, loss, slopes = oracle.step(batch, meta)
        outcome = method.loss(model, {"main": batch, "meta": meta}, step)
        found, classes = gradients[-1]
        torch.testing.assert_close(found, gradient[classes], rtol=1e-6, atol=1e-10)
        assert gradient.abs().max() > 1e-4
        assert heard["meta_loss"].item() == pytest.approx(meta_loss, rel=1e-9)
        assert outcome.loss.item() == pytest.approx(loss, rel=1e-9)
        smallest = torch.linalg.eigvalsh(corrected[classes]) if kind == "full" else corrected[classes]
        assert heard["min_eigenvalue"].item() == pytest.approx(smallest.min().item(), abs=1e-8)
        torch.testing.assert_close(outcome.logits, model(batch.images))  # neither shift nor margin for CAR
        assert torch.equal(outcome.target, batch.labels)
        outcome.loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, slopes[name], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(method.covariance.cov, oracle.covariances(), rtol=1e-8, atol=1e-10)
        optimizer.step()
        optimizer.zero_grad()


def test_the_rate_of_the_step_ahead_is_the_current_one_unless_said(make, at, gradients):
    found = []
    for options in ({}, {"virtual_lr": 0.4}, {"virtual_lr": 0.2}):
        torch.manual_seed(1)
        method, model = built(make, small_network(), 5, **options)
        step = at(180, optimizer=torch.optim.SGD(model.parameters(), lr=0.2))
        method.loss(model, {"main": drawn(8, (3,), 0), "meta": drawn(6, (3,), 1)}, step)
        found.append(gradients[-1][0])
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=0)
    assert not torch.allclose(found[0], found[1])


def test_strength_rises_with_the_epoch_from_the_first(make, at, monkeypatch):
    heard, real = [], module.covariance_gradient
    monkeypatch.setattr(
        module, "covariance_gradient", lambda *arguments: (heard.append(arguments[2].strength), real(*arguments))[1]
    )
    method, model = built(make, small_network(), 5, strength=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in (160, 199):
        method.loss(model, {"main": drawn(8, (3,), 0), "meta": drawn(6, (3,), 1)}, at(epoch, optimizer=optimizer))
    assert heard == [pytest.approx(0.5 * 160 / 200), pytest.approx(0.5 * 199 / 200)]


@KINDS
def test_negative_eigenvalues_can_be_cut_off(make, at, monkeypatch, kind):
    used, real = [], module.quadratic_forms
    monkeypatch.setattr(module, "quadratic_forms", lambda *arguments: (used.append(arguments[2]), real(*arguments))[1])
    corrected = []
    for psd in (False, True):
        torch.manual_seed(3)
        method, model = built(make, small_network(), 5, covariance=kind, psd=psd, meta_lr=500.0, virtual_lr=0.5)
        heard = {}
        step = at(180, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), log=heard.__setitem__)
        method.loss(model, {"main": drawn(8, (3,), 0), "meta": drawn(6, (3,), 1)}, step)
        assert heard["min_eigenvalue"] < -1e-3
        corrected.append(used[-1])
    if kind == "diagonal":
        assert torch.equal(corrected[1], corrected[0].clamp_min(0))
        return
    for before, after in zip(*corrected, strict=True):
        assert torch.linalg.eigvalsh(after).min() > -1e-10
        values, vectors = np.linalg.eigh(before.numpy())
        nearest = sum(max(value, 0) * np.outer(v, v) for value, v in zip(values, vectors.T, strict=True))
        np.testing.assert_allclose(after, nearest, atol=1e-9)


@VIRTUAL
@KINDS
def test_one_class_in_the_batch_and_logits_of_a_hundred(make, at, kind, virtual):
    method, model = built(make, small_network(), 5, covariance=kind, virtual=virtual, virtual_lr=1.0)
    model.float()
    method.float()
    with torch.no_grad():
        model.head.weight.mul_(300)
    step = at(199, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    main, meta = drawn(8, (3,), 0), drawn(6, (3,), 1)
    for labels in (torch.full((8,), 3), main.labels, main.labels):
        batch = Batch(main.images.float(), labels, main.indices)
        outcome = method.loss(model, {"main": batch, "meta": meta._replace(images=meta.images.float())}, step)
        outcome.loss.backward()
        assert torch.isfinite(outcome.loss)
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
        assert torch.isfinite(method.covariance.cov).all()


# backbones


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 5), nn.BatchNorm1d(5))


@VIRTUAL
def test_running_statistics_see_the_real_pass_only(make, at, virtual):
    method, model = built(make, Normed(), 5, virtual=virtual)
    plain = copy.deepcopy(model)
    step = at(180, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for seed in range(2):
        batch = drawn(8, (3,), seed)
        method.loss(model, {"main": batch, "meta": drawn(6, (3,), 9)}, step).loss.backward()
        plain(batch.images)
    for name, value in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), value, rtol=0, atol=0)
    assert model.backbone[1].num_batches_tracked == 2
    assert all(parameter.grad is not None for parameter in model.parameters())


def transformer(name):
    timm = pytest.importorskip("timm")
    if name == "vit":
        return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2,
                                 num_classes=0)  # fmt: skip
    return timm.create_model("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=8, depths=(2, 1),
                             num_heads=(1, 2), num_classes=0, drop_path_rate=0.0)  # fmt: skip


@pytest.mark.parametrize("name", ["small-vit", "vit", "swin", "batch norm"])
def test_the_whole_network_ahead_for_other_backbones(make, at, gradients, name):
    """Fused attention has no second derivative: with it the first two would raise."""
    if name == "small-vit":
        backbone, shape = SmallViT(img_size=8, patch_size=4, width=12, depth=2, heads=3), (3, 8, 8)
    elif name == "batch norm":
        backbone, shape = Normed(), (3,)
    else:
        backbone, shape = transformer(name), (3, 32, 32)
    width = 5 if name == "batch norm" else backbone.num_features
    method, model = built(make, backbone, width, covariance="diagonal", virtual="all", virtual_lr=0.1)
    step = at(180, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    oracle = Oracle(method, model, lr=0.1, strength=0.75 * 180 / 200)
    for seed in range(2):
        batch, meta = drawn(5, shape, seed), drawn(4, shape, 50 + seed)
        _, gradient, _, loss, _ = oracle.step(batch, meta)
        outcome = method.loss(model, {"main": batch, "meta": meta}, step)
        found, classes = gradients[-1]
        torch.testing.assert_close(found, gradient[classes], rtol=1e-5, atol=1e-10)
        assert found.abs().max() > 1e-8
        assert outcome.loss.item() == pytest.approx(loss, rel=1e-8)


def test_the_small_vit_of_the_models_in_float32(make, at):
    model, _ = build_model(ModelConfig("small-vit", img_size=32, patch_size=8), 4)
    method = make("metasaug", counts=COUNTS, virtual="all")
    model = method.build(model.backbone, model.head)
    step = at(180, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    batch = drawn(4, (3, 32, 32), 0)
    batch = batch._replace(images=batch.images.float())
    outcome = method.loss(model, {"main": batch, "meta": batch}, step)
    outcome.loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_which_covariance_is_automatic(make):
    for classes, width, kind in ((100, 64, "full"), (999, 8, "full"), (1000, 8, "diagonal"), (10, 384, "diagonal")):
        method = make("metasaug", counts=[5] * classes)
        method.build(nn.Identity(), nn.Linear(width, classes))
        assert method.covariance.kind == kind
        assert method.covariance.cov.shape == ((classes, width, width) if kind == "full" else (classes, width))


# in the engine


@dataclass(frozen=True)
class FrozenOptions(MetaSAugOptions):
    frozen: bool = True
    stage2_epochs: int | None = 1
    stage2_lr: float = 0.05


@dataclass(frozen=True)
class AllOptions(MetaSAugOptions):
    virtual: str = "all"
    start: float = 0.5
    virtual_lr: float | None = 0.1


@dataclass(frozen=True)
class FixedOptions(MetaSAugOptions):
    meta_per_class: int | None = 3
    meta_batch_size: int | None = 24
    covariance: str = "diagonal"


class Frozen(MetaSAug):
    options = FrozenOptions()


class All(MetaSAug):
    options = AllOptions()


class Fixed(MetaSAug):
    options = FixedOptions()


VARIANTS = [("Frozen", check) for check in CHECKS] + [("All", check) for check in CHECKS] + [("Fixed", check_resume)]


@pytest.mark.parametrize(("method", "check"), VARIANTS)
def test_conformance_of_variants(method, check, tmp_path):
    """The plain method has its turn with all others."""
    check(f"{HERE}:{method}", tmp_path)


def test_plain_at_first_and_then_the_method(tmp_path, saved):
    train(settings(tmp_path / "run", method="metasaug", optim__epochs=3, options={"start": 0.67}, keep_checkpoints=9))
    assert results(tmp_path / "run")["phases"] == {"train": 10, "metasaug": 5}
    assert ["meta_loss" in line and "min_eigenvalue" in line for line in metrics(tmp_path / "run")] == [
        False, False, True,
    ]  # fmt: skip
    assert results(tmp_path / "run")["disclosures"] == {"meta_data": "class-balanced draws from the training set"}
    states = saved(tmp_path / "run")
    assert not torch.stack([state["method.covariance.count"] for state in states[:2]]).any()  # they start at zero
    assert states[2]["method.covariance.count"].sum() == 68  # one epoch
    train(settings(tmp_path / "ce", optim__epochs=3))
    plain = metrics(tmp_path / "ce")
    assert [line["loss"] for line in metrics(tmp_path / "run")[:2]] == [line["loss"] for line in plain[:2]]


def test_without_strength_it_is_deferred_reweighting(tmp_path):
    options = {"strength": 0.0, "start": 0.5}
    train(settings(tmp_path / "meta", method="metasaug", options=options, data__imbalance=10))
    options = {"defer": "reweight", "defer_at": 0.5}
    train(settings(tmp_path / "drw", method="ce", options=options, data__imbalance=10))
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("meta", "drw"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_the_meta_stream_is_read_only_when_it_is_needed(make, at):
    method = make("metasaug")
    assert method.streams_in_use(at(159)) == set()
    assert method.streams_in_use(at(160)) == {"meta"}
    assert (method.phase(at(159)), method.phase(at(160))) == ("train", "metasaug")
    meta = method.streams(Stage())["meta"]
    assert (meta.kind, meta.split, meta.batch_size) == ("class-balanced", "train", None)
    frozen = make("metasaug", frozen=True)
    assert [*frozen.streams(Stage("stage1"))] == ["main"]
    assert [*frozen.streams(Stage("stage2"))] == ["main", "meta"]


def test_the_recipe_of_large_sets_trains_the_head_alone(make, tmp_path, saved):
    first, second = make("metasaug", epochs=90, frozen=True).stages()
    assert (first.name, second.name, second.epochs, second.train, second.norm) == (
        "stage1", "stage2", 20, "head", "frozen",
    )  # fmt: skip
    assert not second.fresh_head
    assert (second.optim["lr"], second.optim["schedule"]) == (3e-4, "constant")
    options = {"frozen": True, "stage2_epochs": 2, "stage2_lr": 0.05}
    train(settings(tmp_path / "run", method="metasaug", options=options, model__model="tiny-norm", keep_checkpoints=9))
    assert results(tmp_path / "run")["phases"] == {"stage1": 10, "stage2": 10}
    states = saved(tmp_path / "run")
    for name in states[1]:
        if name.startswith("model.backbone"):
            assert torch.equal(states[1][name], states[3][name]), name  # statistics too
    assert not torch.equal(states[1]["model.head.weight"], states[3]["model.head.weight"])
    assert states[3]["method.covariance.count"].sum() == 2 * 68


def test_in_probe_mode(tmp_path):
    for virtual in ("head", "all"):
        options = {"virtual": virtual, "virtual_lr": 0.5}
        train(settings(tmp_path / virtual, method="metasaug", options=options, probe=True))
        assert results(tmp_path / virtual)["phases"] == {"train": 5, "metasaug": 5}
    one, other = (predictions(tmp_path / virtual)["logits"] for virtual in ("head", "all"))
    assert np.array_equal(one, other)  # there is nothing but the head


@VIRTUAL
def test_in_half_precision(tmp_path, virtual):
    options = {"virtual": virtual, "virtual_lr": 0.1}
    changes = {"optim__precision": "bf16", "model__model": "tiny-norm"}
    train(settings(tmp_path / "run", method="metasaug", options=options, **changes))
    assert all(math.isfinite(line["loss"]) for line in metrics(tmp_path / "run"))
    assert metrics(tmp_path / "run")[-1]["meta_loss"] > 0


def test_dropout_and_accumulated_batches(tmp_path):
    for virtual in ("head", "all"):
        changes = {"model__model": "tiny-dropout", "optim__accumulation": 2}
        train(settings(tmp_path / virtual, method="metasaug", options={"virtual": virtual}, **changes))
        assert results(tmp_path / virtual)["phases"] == {"train": 5, "metasaug": 5}


# meta data


def test_a_few_images_of_each_class():
    labels = torch.tensor([2, 0, 1, 0, 2, 0, 0, 2])
    rows = some_of_each(labels, 3, 2, torch.Generator().manual_seed(0))
    assert torch.equal(labels[rows], torch.arange(3)[:, None].expand(3, 2))
    assert rows[1].tolist() == [2, 2]  # there is only one
    assert rows[0, 0] != rows[0, 1]
    drawn = [some_of_each(labels, 3, 2, torch.Generator().manual_seed(seed)) for seed in range(60)]
    assert {row for table in drawn for row in table[0].tolist()} == {1, 3, 5, 6}


def test_fixed_meta_images_are_the_only_ones_used(tmp_path, saved):
    config = tiny_settings(f"{HERE}:Fixed", tmp_path / "run")
    trainer = begun(config)
    step, rows = trainer.stage.step, trainer.method.meta_rows
    assert torch.equal(step.labels[rows], torch.arange(6)[:, None].expand(6, 3))
    batch = Batch(None, torch.zeros(24, dtype=torch.int64), torch.arange(24))
    found = [trainer.method._meta(batch, step) for _ in range(12)]
    assert {int(row) for meta in found for row in meta.indices} == {int(row) for row in rows.flatten()}
    assert all(torch.equal(step.labels[meta.indices], meta.labels) for meta in found)
    assert len(found[0].labels) == 24
    assert "3 images of each class of the training set" in trainer.method.disclosures()["meta_data"]


def test_meta_data_from_validation(tmp_path):
    train(settings(tmp_path / "run", method="metasaug", options={"meta_data": "val"}, data__val_fraction=0.25))
    assert results(tmp_path / "run")["disclosures"]["meta_data"] == "class-balanced draws from validation data"
    with pytest.raises(ValueError, match="metasaug was told to use validation data, and there are none"):
        train(settings(tmp_path / "none", method="metasaug", options={"meta_data": "val"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, "--strength must be at least 0; got -1.0"),
        ({"meta_lr": math.inf}, "--meta-lr must be at least 0 and finite; got inf"),
        ({"virtual_lr": 0.0}, "--virtual-lr must be more than 0; got 0.0"),
        ({"meta_per_class": 0}, "--meta-per-class must be at least 1; got 0"),
        ({"meta_batch_size": -2}, "--meta-batch-size must be at least 1; got -2"),
        ({"meta_per_class": 2, "meta_data": "val"}, "by --val-per-class"),
        ({"start": 1.5}, "must lie between 0 and 1"),
        ({"beta": 2.0}, "--beta must lie between 0 and 1; got 2.0"),
    ],
)
def test_options_that_make_no_sense(make, options, message):
    with pytest.raises(ValueError, match=message):
        make("metasaug", **options)


def test_it_needs_a_linear_head(tmp_path):
    with pytest.raises(ValueError, match="metasaug needs a linear head; got --head cosine"):
        train(settings(tmp_path / "run", method="metasaug", model__head="cosine"))


def test_a_class_with_one_image_keeps_a_covariance_of_zero(make, at):
    method, model = built(make, small_network(), 5)
    step = at(180, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    batch = drawn(8, (3,), 0)
    batch.labels[:] = torch.tensor([0, 0, 1, 0, 1, 2, 3, 2])
    method.loss(model, {"main": batch, "meta": drawn(4, (3,), 1)}, step)
    assert not method.covariance.cov[3].any()
    assert method.covariance.cov[:3].flatten(1).any(1).all()


# two processes

SGD = {"optim__optimizer": "sgd", "optim__lr": 0.05, "eval_train": False, "method": "metasaug"}
UNEVEN = {"optim__batch_size": 20, "data__imbalance": 10}  # the ranks hold different numbers in the last step
STRONG = {"virtual_lr": 0.5, "meta_lr": 5.0}
RUNS = {
    "uneven-samples": {"options": STRONG | {"covariance": "diagonal", "weight_average": "samples"}} | UNEVEN,
    "uneven": {"options": STRONG} | UNEVEN,
    "all": {"options": STRONG | {"virtual": "all"}},
    "frozen": {"options": STRONG | {"frozen": True, "stage2_epochs": 2, "stage2_lr": 0.05}},
    "fixed": {"options": STRONG | {"meta_per_class": 2}, "car__enabled": True},
}


@pytest.fixture(scope="module")
def two(tmp_path_factory, ranks):
    folder = tmp_path_factory.mktemp("two")
    ranks(train_all, [(folder / name, SGD | changes) for name, changes in RUNS.items()], timeout=180)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(name, two, tmp_path, saved):
    train(settings(tmp_path / "one", **(SGD | RUNS[name])))
    alone, together = saved(tmp_path / "one")[-1], saved(two / name)[-1]
    for key in alone:  # covariances and fixed meta images too
        np.testing.assert_allclose(together[key].float(), alone[key].float(), rtol=5e-4, atol=5e-5, err_msg=key)
    assert results(two / name)["phases"] == results(tmp_path / "one")["phases"]
    for one, both in zip(metrics(tmp_path / "one"), metrics(two / name), strict=True):
        assert both.pop("stage") == one.pop("stage")
        assert both == pytest.approx(one, rel=2e-3, abs=1e-5)
