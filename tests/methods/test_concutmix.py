"""ConCutMix: a whole step against a second computation, views, streams, the two modes, phases, and what is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training.runs import metrics, results, settings

from spectail import MixedTarget
from spectail.cli.train import parse
from spectail.data.batch import Batch
from spectail.data.transforms import Cutout, contrastive_views, preset
from spectail.losses import BalancedSoftmaxLoss
from spectail.models.heads import CosineHead, make_head
from spectail.testing import begun
from spectail.training.loop import train
from spectail.training.trained import load_trained

COUNTS = (60, 20, 5, 2)
SIZE = 6


class Watched(nn.Module):
    """One layer; keeps what it was shown."""

    def __init__(self, width=7):
        super().__init__()
        self.layer, self.seen = nn.Linear(3 * 8 * 6, width), []

    def forward(self, images):
        self.seen.append(images.detach().clone())
        return self.layer(images.flatten(1))


def batch(views, seed, size=SIZE, labels=None):
    rng = torch.Generator().manual_seed(seed)
    images = tuple(torch.rand(size, 3, 8, 6, generator=rng) for _ in range(views or 1))
    drawn = torch.randint(4, (size,), generator=rng)
    return Batch(images if views else images[0], drawn if labels is None else torch.tensor(labels), torch.arange(size))


def built(make, counts=COUNTS, **options):
    method = make("concutmix", counts=counts, **options)
    return method, method.build(Watched(), method.make_head("cosine", 7)).train()


@pytest.fixture
def drawn(at):
    """A place in training whose random numbers follow a seed, and what was logged there."""
    return lambda seed=0, epoch=0, **more: at(epoch, generator=torch.Generator().manual_seed(seed), **more)


def both(full=True, **options):
    return {"main": batch(3 * full, 1, **options), "foreground": batch(full, 2, **options)}


# a second computation of everything, in float64


def numbers(tensor):
    return tensor.detach().double()


def two_layers(module, x, norm):
    first, middle, _, last = module
    hidden = x @ numbers(first.weight).T + numbers(first.bias)
    dim = 0 if norm == "batch" else 1
    mean, spread = hidden.mean(dim, keepdim=True), hidden.var(dim, keepdim=True, correction=0)
    hidden = (hidden - mean) / (spread + 1e-5).sqrt() * numbers(middle.weight) + numbers(middle.bias)
    return hidden.clamp_min(0) @ numbers(last.weight).T + numbers(last.bias)


def contrast(views, labels, embeddings, temperature):
    """Balanced supervised contrastive loss, anchor by anchor."""
    rows = torch.cat([views, embeddings])
    rows = rows / rows.norm(dim=1, keepdim=True)
    classes = labels.tolist() + list(range(len(embeddings)))
    terms = []
    for i in range(len(views)):
        others = [k for k in range(len(rows)) if k != i]
        close = {k: float(rows[i] @ rows[k]) / temperature for k in others}
        below = sum(math.exp(close[k]) / (classes.count(classes[k]) - (classes[k] == classes[i])) for k in others)
        positive = [close[k] for k in others if classes[k] == classes[i]]
        terms.append(math.log(below) - sum(positive) / len(positive))
    return sum(terms) / len(terms)


def rectified(q, space, classes, omega, top):
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    found = []
    for labels, z in zip(q, space, strict=True):
        near = 1 / (classes - z).square().sum(1).sqrt()
        near = near * (near >= near.sort(descending=True).values[top - 1])
        weight = omega * (counts @ labels).log() / counts.log().sum()
        found.append(weight * near / near.sum() + (1 - weight) * labels)
    return torch.stack(found)


def adjusted(logits, q, tau):
    counts = torch.tensor(COUNTS, dtype=torch.float64)
    return -(q * (logits + tau * (counts / counts.sum()).log()).log_softmax(1)).sum(1).mean()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("epoch", [0, 150])
@pytest.mark.parametrize(
    "options", [{}, {"omega": 1.0, "top": 2}, {"projection_norm": "layer", "omega": 2.0, "width": 9}]
)
def test_a_whole_step(make, drawn, seed, epoch, options):
    """Seeds 0 to 2 give pasted and plain batches; from epoch 100 on labels of pasted ones are rectified."""
    method, model = built(make, **options)
    batches, heard = both(), {}
    step = drawn(seed, epoch, log=lambda name, value: heard.update({name: value.item()}))
    outcome = method.loss(model, batches, step)
    main = batches["main"]
    (shown,) = model.backbone.seen
    layer = model.backbone.layer
    features = numbers(shown).flatten(1) @ numbers(layer.weight).T + numbers(layer.bias)
    logits = 30 * F.normalize(features[:SIZE], dim=1) @ F.normalize(numbers(model.head.weight), dim=1).T
    torch.testing.assert_close(numbers(outcome.logits), logits, atol=1e-4, rtol=1e-4)  # bare: no prior in them
    norm = options.get("projection_norm", "batch")
    space = two_layers(method.project, features, norm)
    classes = two_layers(method.embed, numbers(model.head.weight), norm)
    q = F.one_hot(main.labels, 4).double()
    if isinstance(outcome.target, MixedTarget):
        share = (shown[:SIZE] == main.images[0]).double().mean((1, 2, 3))[:, None]
        q = share * q + (1 - share) * F.one_hot(batches["foreground"].labels, 4)
        if epoch == 150:
            q = rectified(q, space[:SIZE], classes, options.get("omega", 4 / 5 / 255), options.get("top", 3))
    wanted = adjusted(logits, q, 0.9).item()
    apart = contrast(space[SIZE:], main.labels.repeat(2), classes, 0.1)
    assert heard == {"classification": pytest.approx(wanted, rel=1e-4), "contrastive": pytest.approx(apart, rel=1e-4)}
    assert outcome.loss.item() == pytest.approx(2 * wanted + 0.6 * apart, rel=1e-4)


def test_seeds_of_that_test_give_both_kinds_of_batches(make, drawn):
    method, model = built(make)
    kinds = {isinstance(method.loss(model, both(), drawn(seed)).target, MixedTarget) for seed in range(3)}
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("tau", "wanted"),
    [(0.0, (0.40761, 1.40761, 2.40761)), (0.9, (0.04732, 3.11965, 6.19197)), (1.0, (0.03743, 3.34002, 6.64260))],
)
def test_worked_example_of_logit_adjustment(make, tau, wanted):
    criterion = make("concutmix", counts=(100, 10, 1), tau=tau).criterion
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    found = [criterion(logits, torch.tensor([label])).item() for label in range(3)]
    torch.testing.assert_close(found, list(wanted), atol=2e-5, rtol=0)
    if tau == 0.9:
        assert criterion(logits, torch.tensor([[0.6, 0.1, 0.3]])).item() == pytest.approx(2.19795, abs=2e-5)
    assert make("concutmix", counts=(100, 10, 1)).criterion.tau == 0.9


def test_weights_of_the_two_losses(make, drawn):
    parts = []
    for options in ({"class_weight": 1.0, "contrast_weight": 0.0}, {"class_weight": 0.0, "contrast_weight": 1.0}, {}):
        torch.manual_seed(0)
        method, model = built(make, **options)
        parts.append(method.loss(model, both(), drawn()).loss)
    torch.testing.assert_close(parts[2], 2 * parts[0] + 0.6 * parts[1])


def test_everything_is_trained_and_rectification_is_not(make, drawn):
    method, model = built(make, probability=1.0, omega=1.0)
    method.loss(model, both(), drawn(epoch=150)).loss.backward()
    for module in (model, method.project, method.embed):
        assert all(
            parameter.grad.abs().sum() > 0 for name, parameter in module.named_parameters() if "0.bias" not in name
        )
    method, model = built(make, probability=1.0, omega=1.0, contrast_weight=0.0)
    method.loss(model, both(), drawn(epoch=150)).loss.backward()
    assert not any(parameter.grad.any() for parameter in method.project.parameters())


def test_a_class_absent_from_the_batch(make, drawn):
    method, model = built(make)
    batches = both(labels=[1] * SIZE)
    outcome = method.loss(model, batches, drawn())
    outcome.loss.backward()
    assert torch.isfinite(outcome.loss)
    assert (model.head.weight.grad.abs().sum(1) > 0).all()


# pasting


@pytest.mark.parametrize("epoch", [0, 199])
@pytest.mark.parametrize("seed", range(4))
def test_weak_views_are_never_mixed(make, drawn, seed, epoch):
    """Only the first view gets a patch, from the first view of the foreground, in one pass with the others."""
    method, model = built(make, probability=1.0)
    batches = both()
    before = [view.clone() for view in batches["main"].images]
    outcome = method.loss(model, batches, drawn(seed, epoch))
    (shown,) = model.backbone.seen
    assert shown.shape == (3 * SIZE, 3, 8, 6)
    assert torch.equal(shown[SIZE : 2 * SIZE], before[1])
    assert torch.equal(shown[2 * SIZE :], before[2])
    kept, pasted = shown[:SIZE] == before[0], shown[:SIZE] == batches["foreground"].images[0]
    assert (kept ^ pasted).all()
    torch.testing.assert_close(outcome.target.share, kept.float().mean((1, 2, 3)))
    assert all(torch.equal(view, old) for view, old in zip(batches["main"].images, before, strict=True))
    assert torch.equal(outcome.target.b, batches["foreground"].labels)


@pytest.mark.parametrize("mode", ["full", "lite"])
def test_half_of_the_batches_are_pasted_into_from_the_first_epoch_to_the_last(make, drawn, mode):
    method, model = built(make, mode=mode)
    batches, step = both(mode == "full", size=2), drawn()
    for epoch in (0, 199):
        step.epoch = epoch
        mixed = sum(isinstance(method.loss(model, batches, step).target, MixedTarget) for _ in range(150))
        assert 75 - 25 < mixed < 75 + 25


def test_a_smaller_last_batch_and_a_batch_of_one(make, drawn):
    method, model = built(make, probability=1.0)
    for size in (1, 4):
        batches = {"main": batch(3, 1, size=size), "foreground": batch(1, 2)}
        outcome = method.loss(model, batches, drawn(epoch=150))
        assert outcome.logits.shape == (size, 4)
        assert torch.isfinite(outcome.loss)


# the two modes


def test_the_lite_mode(make, drawn):
    """One view, no projections, plain cross entropy; labels are rectified by features and class vectors."""
    method, model = built(make, mode="lite", probability=1.0, omega=1.0, top=2)
    assert not list(method.parameters())
    assert make("concutmix", mode="lite").views(preset("cifar"), "main") is None
    batches = both(full=False)
    for epoch in (0, 150):
        outcome = method.loss(model, batches, drawn(3, epoch))
        shown = model.backbone.seen[-1]
        assert len(shown) == SIZE
        q = outcome.target.dense(4).double()
        if epoch:
            features = F.normalize(numbers(model.backbone(shown)), dim=1)
            q = rectified(q, features, F.normalize(numbers(model.head.weight), dim=1), 1.0, 2)
        wanted = -(q * numbers(outcome.logits).log_softmax(1)).sum(1).mean()
        assert outcome.loss.item() == pytest.approx(wanted.item(), rel=1e-4)
    assert not isinstance(method.criterion, BalancedSoftmaxLoss)


@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm1d), ("layer", nn.LayerNorm)])
def test_projections(make, norm, kind):
    method, _ = built(make, projection_norm=norm, width=5)
    for module in (method.project, method.embed):
        first, middle, active, last = module
        assert isinstance(middle, kind)
        assert isinstance(active, nn.ReLU)
        assert (first.in_features, first.out_features, last.out_features) == (7, 512, 5)
    other = {nn.BatchNorm1d, nn.LayerNorm} - {kind}
    assert not any(type(module) in other for module in method.modules())
    assert method.project is not method.embed


def test_inference_is_the_bare_cosine(make):
    method, model = built(make)
    images = torch.rand(3, 3, 8, 6)
    features = F.normalize(model.backbone(images), dim=1)
    wanted = 30 * features @ F.normalize(model.head.weight, dim=1).T
    torch.testing.assert_close(method.inference(model.eval())(images), wanted)


# when labels are rectified


@pytest.mark.parametrize(("epochs", "options", "first"), [(200, {}, 100), (100, {"rectify_from": 0.7}, 70), (2, {}, 1)])
def test_phases(make, at, epochs, options, first):
    method = make("concutmix", epochs=epochs, **options)
    found = [method.phase(at(epoch, epochs)) for epoch in range(epochs)]
    assert found == ["train"] * first + ["rectified"] * (epochs - first)


def test_omega_follows_the_number_of_classes(make, drawn):
    """(K / 5) / 255 when it is not given."""
    losses = []
    for options in ({}, {"omega": 4 / 5 / 255}, {"omega": 0.5}):
        torch.manual_seed(0)
        method, model = built(make, probability=1.0, **options)
        losses.append(method.loss(model, both(), drawn(epoch=199)).loss)
    assert torch.equal(losses[0], losses[1])
    assert not torch.isclose(losses[0], losses[2])


# views and streams


def kinds(transform):
    return [type(step).__name__ for step in transform.transforms]


def test_views_of_small_photographs():
    """AutoAugment without Cutout, and twice the weak recipe, at the size and with the statistics of the data."""
    base = preset("cifar")
    strong, one, two = contrastive_views(base)
    assert "AutoAugment" in kinds(strong)
    assert not any(isinstance(step, Cutout) for step in strong.transforms)
    assert "RandomResizedCrop" in kinds(one)
    assert kinds(one) == kinds(two)
    for name in ("tiny", "cifar-strong"):
        assert kinds(contrastive_views(preset(name))[0]) == kinds(strong)
    large = contrastive_views(preset("tiny"))[0]
    assert list(large.transforms[-1].mean) == list(preset("tiny").mean)
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    from torchvision.transforms.v2.functional import to_pil_image

    assert all(view(to_pil_image(image)).shape == (3, 64, 64) for view in contrastive_views(preset("tiny")))


def test_views_of_large_photographs_and_of_characters():
    for name in ("imagenet", "inat", "vit-224"):
        base = preset(name)
        strong, weak, _ = contrastive_views(base)
        assert list(strong.transforms[-1].mean) == list(weak.transforms[-1].mean) == list(base.mean)
        assert len(kinds(strong)) > len(kinds(base.test))
    for view in contrastive_views(preset("glyphs")):
        assert "RandomHorizontalFlip" not in kinds(view)


def test_views_resize_as_the_preset_does():
    base = preset("imagenet", interpolation="bicubic")
    for view in contrastive_views(base):
        crop = next(step for step in view.transforms if type(step).__name__ == "RandomResizedCrop")
        assert crop.interpolation.value == "bicubic"


def test_three_views_for_the_background_and_one_for_the_foreground(make, at):
    method = make("concutmix")
    assert [len(method.views(preset("cifar"), name)) for name in ("main", "foreground")] == [3, 1]
    streams = method.streams(at(0).stage)
    assert {name: stream.kind for name, stream in streams.items()} == {
        "main": "instance",
        "foreground": "class-balanced",
    }


@pytest.mark.parametrize("mode", ["full", "lite"])
def test_batches_of_the_engine(tmp_path, mode):
    stage = begun(settings(tmp_path / "run", method="concutmix", options={"mode": mode})).stage
    (found,), _ = next(stage.groups())
    if mode == "lite":
        assert all(isinstance(one.images, torch.Tensor) for one in found.values())
        assert not any("method" in name for name, _ in stage.learner.named_parameters())
        return
    assert [len(found[name].images) for name in ("main", "foreground")] == [3, 1]
    one, two, three = found["main"].images
    assert not torch.equal(one, two)
    assert not torch.equal(two, three)
    assert one.shape == found["foreground"].images[0].shape == (16, 3, 32, 32)


# in the engine


@pytest.mark.parametrize("options", [{}, {"mode": "lite"}, {"projection_norm": "layer"}])
def test_a_run(tmp_path, options):
    train(settings(tmp_path / "run", method="concutmix", options=options))
    assert results(tmp_path / "run")["phases"] == {"train": 5, "rectified": 5}
    lines = metrics(tmp_path / "run")
    assert all(math.isfinite(line["classification"]) for line in lines)
    assert all(("contrastive" in line) == (options.get("mode") != "lite") for line in lines)


@pytest.mark.parametrize(("asked", "kind"), [(None, CosineHead), ("cosine", CosineHead), ("linear", nn.Linear)])
def test_the_head_is_cosine_unless_a_linear_one_is_asked_for(tmp_path, asked, kind):
    config = settings(tmp_path / "run", method="concutmix", model__head=asked, eval_train=False)
    train(config)
    assert type(load_trained(tmp_path / "run").model.head) is kind


def test_a_linear_head_has_one_embedding_for_each_class(make):
    """The released CIFAR script has 64 for the 64 features; 100 class vectors need 100."""
    method = make("concutmix", counts=[5] * 100)
    model = method.build(nn.Identity(), method.make_head("linear", 64)).train()
    space, classes = method._space(torch.randn(8, 64), model.head.weight)
    assert (space.shape, classes.shape) == ((8, 128), (100, 128))


def test_the_recipe_for_cifar_has_the_head_of_the_authors_runs():
    """Their logs begin with a loss of 4.57 to 5.19, near log 100; 30 times a cosine begins at 7.7 and more."""
    for dataset, head in (("cifar100-lt", "linear"), ("cifar10-lt", "linear"), ("imagenet-lt", None)):
        config, _ = parse(["--method", "concutmix", "--dataset", dataset, "--recipe", "--output", "x"])
        assert config.model.head == head
    torch.manual_seed(0)
    features = torch.rand(256, 64)
    first = {kind: F.cross_entropy(make_head(kind, 64, 100)(features), torch.arange(256) % 100).item()
             for kind in ("linear", "cosine")}  # fmt: skip
    assert 4.3 < first["linear"] < 5.7
    assert first["cosine"] > 5.7


def test_probe_mode_is_refused(tmp_path):
    with pytest.raises(ValueError, match="concutmix works on images and cannot be used in probe mode"):
        train(settings(tmp_path / "run", method="concutmix", probe=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("probability", 1.5), ("mix_alpha", -1.0), ("temperature", 0.0), ("rectify_from", 2.0), ("width", 0), ("top", 0),
     ("tau", math.nan), ("omega", -1.0), ("class_weight", -1.0), ("contrast_weight", math.nan)],
)  # fmt: skip
def test_options_out_of_range_are_refused(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"{name.replace('_', '-')} must"):
        train(settings(tmp_path / "run", method="concutmix", options={name: value}))
    assert not (tmp_path / "run").exists()
