"""Runs that tune a part of a network: what they save, where the head starts, and what goes with them."""

import json

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors import safe_open
from timm.optim import param_groups_layer_decay
from torch import nn
from torchvision.transforms.functional import five_crop
from training.runs import Losses, Stop, StopAt, predictions, results, settings

from spectail import MixedTarget
from spectail.cli.train import parse
from spectail.data.batch import Batch
from spectail.data.loader import Loader
from spectail.losses import CrossEntropyLoss
from spectail.methods.base import Stage, Step
from spectail.methods.registry import METHODS
from spectail.testing import begun
from spectail.training.build import make_pieces
from spectail.training.config import OptimConfig, check_config
from spectail.training.loop import train
from spectail.training.mix import mixed
from spectail.training.optim import layer_scales, make_optimizer
from spectail.training.reporter import Reporter
from spectail.training.trained import FiveCrops, load_trained

LORA = {"tuning__tune": "lora", "model__model": "tiny-vit"}


def images_of(data, preset):
    return next(iter(Loader(data, preset, batch_size=len(data)))).images


def names_in(path):
    state = torch.load(path / "state.pt", weights_only=True)
    return set(state["learner"]), state


@pytest.mark.parametrize("how", ["head", "lora", "bias", "norm", "adaptformer"])
def test_a_run_saves_the_small_part_and_a_whole_model(how, tmp_path):
    reporter = Losses()
    config = settings(tmp_path / "run", model__model="tiny-vit", tuning__tune=how, eval_train=False)
    train(config, reporter=reporter)
    assert any("random weights" in line for line in reporter.lines)  # a note, no refusal
    names, state = names_in(max((config.output / "checkpoints").iterdir()))
    assert "model.head.weight" in names
    assert not any(name.endswith(("patches.weight", "base_layer.weight")) for name in names)
    with safe_open(config.output / "tuned.safetensors", "pt") as file:
        assert {f"model.{name}" for name in file.keys()} <= names  # noqa: SIM118 - it is no dictionary
        assert file.metadata() == {"base": state["base"]}
    assert results(config.output)["tune"] == how
    trained = load_trained(config.output)
    assert not any("lora" in name for name, _ in trained.model.named_parameters())
    inputs = images_of(make_pieces(config, Reporter()).data.test, trained.preset)
    with torch.no_grad():
        found = trained.model(inputs).numpy()
    np.testing.assert_allclose(found, predictions(config.output)["logits"], atol=1e-5, rtol=1e-5)


def test_a_checkpoint_belongs_to_its_base_weights(tmp_path):
    for seed in (1, 2):
        train(settings(tmp_path / f"base{seed}", model__model="tiny-vit", seed=seed, optim__epochs=1, eval_train=False))
    weights = tmp_path / "base.safetensors"
    weights.write_bytes((tmp_path / "base1" / "model.safetensors").read_bytes())
    config = settings(tmp_path / "run", **LORA, model__init=str(weights))
    with pytest.raises(Stop):
        train(config, reporter=StopAt(epochs=1))
    weights.write_bytes((tmp_path / "base2" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="belongs to base weights with the digest"):
        train(config, resume=True)


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_the_head_starts_at_class_means(head, tmp_path):
    config = settings(tmp_path / "run", **LORA, model__head=head, tuning__head_scale=20.0)
    pieces = make_pieces(config, Reporter())
    data, model = pieces.data.train, pieces.model.eval()
    with torch.no_grad():
        features = model.backbone(images_of(data, pieces.preset))
    for label in range(6):
        mean = features[torch.from_numpy(data.labels) == label].mean(0)
        vector = mean / mean.norm() * (1.0 if head == "cosine" else 20.0 / features.norm(dim=1).mean())
        torch.testing.assert_close(model.head.weight[label].detach(), vector, atol=1e-5, rtol=1e-4)
    if head == "cosine":
        assert model.head.scale == 20.0
    else:
        assert not model.head.bias.any()
    other = make_pieces(settings(tmp_path / "random", **LORA, tuning__head_init="random"), Reporter()).model.head
    full = make_pieces(settings(tmp_path / "full", model__model="tiny-vit"), Reporter()).model.head
    assert torch.equal(other.weight, full.weight)  # without means nothing has changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (LORA | {"tuning__tune_rank": 0}, "--tune-rank must be at least 1; got 0"),
        (LORA | {"probe": True}, "--tune lora trains on images, and --probe on features"),
        (LORA | {"stage1": "somewhere", "method": "crt"}, "--stage1 leaves only the head to be trained"),
        ({"tuning__head_init": "text"}, "needs a CLIP checkpoint of open_clip: pass --text-weights"),
        ({"probe": True, "tuning__head_init": "means"}, "--head-init means is for training on images"),
        ({"optim__ema": 0.9, "optim__swa": 0.5}, "two averages of the weights"),
        ({"probe": True, "optim__mixup": 0.2}, "--mixup and --cutmix mix images"),
        ({"probe": True, "test_crops": 5}, "--test-crops cuts images"),
    ],
)
def test_bad_input(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        check_config(settings(tmp_path / "run", **changes))


def test_bad_input_that_the_network_decides(tmp_path):
    for changes, message in [
        ({"optim__layer_decay": 0.7}, "--layer-decay needs a model of timm"),
        ({"method": "ldam-drw", "tuning__head_scale": 9.0}, "ldam-drw has a scale of its own"),
        ({"optim__cutmix": 1.0, "method": "remix"}, "--cutmix: ReMix mixes images itself"),
        ({"tuning__head_scale": 9.0}, "--head-scale is for a cosine head"),
        ({"rand_augment": "strong"}, "RandAugment is named as in timm"),
    ]:
        with pytest.raises(ValueError, match=message):
            begun(settings(tmp_path / "run", **changes))


def test_mixing_by_hand():
    images, labels = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4, 5])
    for optim in (OptimConfig(mixup=0.5), OptimConfig(cutmix=1.0)):
        step = Step(Stage(), generator=torch.Generator().manual_seed(4))
        found = mixed(Batch(images, labels, labels), step, optim)
        assert isinstance(found.labels, MixedTarget)
        for place in range(6):
            own, other, share = images[place], images[found.labels.b[place]], float(found.labels.share[place])
            if optim.mixup:
                torch.testing.assert_close(found.images[place], share * own + (1 - share) * other)
            else:
                pasted = (found.images[place] != own).any(0)
                assert torch.equal(found.images[place][:, pasted], other[:, pasted])
                if int(found.labels.b[place]) != place:
                    assert 1 - pasted.float().mean() == pytest.approx(share)


@pytest.mark.parametrize("method", METHODS)
def test_mixup_goes_with_a_method_or_is_refused(method, tmp_path):
    kind = METHODS[method].load()
    config = settings(tmp_path / "run", method=method, optim__mixup=0.8, car__enabled=True, optim__epochs=1)
    if not kind.takes_mixed:
        with pytest.raises(ValueError, match="mixes images itself or needs whole labels"):
            begun(config)
        return
    trainer = begun(config)
    batches, images = next(trainer.stage.groups())
    trainer.optimise(batches, images)
    assert all(torch.isfinite(value).all() for value in trainer.pieces.model.parameters())


def test_label_smoothing_is_that_of_torch(tmp_path):
    torch.manual_seed(0)
    logits, labels, loss = torch.randn(5, 4), torch.tensor([0, 3, 1, 1, 2]), CrossEntropyLoss()
    loss.smoothing = 0.1
    torch.testing.assert_close(loss(logits, labels), F.cross_entropy(logits, labels, label_smoothing=0.1))
    method = begun(settings(tmp_path / "run", method="balms", optim__label_smoothing=0.2)).method
    assert method.plain.smoothing == method.criterion.smoothing == 0.2


def test_layer_decay_is_that_of_timm():
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=3, img_size=32, embed_dim=12, num_heads=2)
    groups = param_groups_layer_decay(model, layer_decay=0.5)
    expected = {parameter: group["lr_scale"] for group in groups for parameter in group["params"]}
    scales = layer_scales(model, 0.5)
    assert scales == pytest.approx(expected)
    learner = nn.ModuleList([model, nn.Linear(12, 2)])
    optimizer = make_optimizer(learner, OptimConfig(lr=0.1), scales=scales)
    assert optimizer.param_groups[0]["lr"] == 0.1
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert all(rates[parameter] == pytest.approx(0.1 * scales.get(parameter, 1)) for parameter in learner.parameters())


def test_five_crops_are_those_of_torchvision():
    torch.manual_seed(0)
    images, model = torch.rand(2, 3, 11, 11), nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    expected = torch.stack([model(crop) for crop in five_crop(images, 8)]).mean(0)
    odd = images[..., 1:9, 1:9], images[..., 2:10, 2:10]  # torchvision rounds the centre to even
    found = FiveCrops(model, 8)(images)
    rest = (model(odd[0]) - model(odd[1])) / 5
    assert torch.allclose(found, expected, atol=1e-6) or torch.allclose(found, expected + rest, atol=1e-6)


def test_swa_averages_the_end_of_the_run(tmp_path):
    trainer = begun(settings(tmp_path / "run", optim__swa=0.4, optim__epochs=1))
    seen = []
    for group, images in trainer.stage.groups():
        trainer.optimise(group, images)
        seen.append(trainer.pieces.model.head.weight.detach().clone())
    assert len(seen) == 5
    torch.testing.assert_close(trainer.stage.current().head.weight, torch.stack(seen[3:]).mean(0))


def lift(*arguments):
    return parse(["--recipe", "lift", *arguments])[0]


def test_recipe_lift():
    """As in the authors' code: configs/model/clip_vit_b16.yaml and utils/config.py."""
    config = lift("--dataset", "cifar100-lt")
    optim, tuning = config.optim, config.tuning
    assert (optim.optimizer, optim.lr, optim.momentum, optim.weight_decay) == ("sgd", 0.01, 0.9, 5e-4)
    assert (optim.epochs, optim.batch_size, optim.schedule) == (10, 128, "cosine")
    assert (tuning.tune, tuning.tune_rank, tuning.tune_scale) == ("adaptformer", "classes", "learned")
    assert (config.model.head, tuning.head_scale, tuning.head_init) == ("cosine", 25.0, "text")
    assert (config.method, config.options.tau) == ("balanced-softmax", 1.0)  # logit adjustment
    assert (config.test_crops, config.transform) == (5, "inat")  # RandomResizedCrop and mirroring
    assert config.model.model == "vit_base_patch16_clip_224.openai"
    assert lift("--dataset", "inat2018").optim.epochs == 20
    other = lift("--method", "car-balanced", "--epochs", "3", "--tune", "lora")
    assert (other.method, other.optim.epochs, other.tuning.tune) == ("car-balanced", 3, "lora")
    assert parse(["--recipe", "--dataset", "cifar100-lt"])[0].optim.epochs == 200  # the method's own
    check_config(config)


def test_results_name_the_crops(tmp_path):
    config = settings(tmp_path / "run", test_crops=5, optim__epochs=1, eval_train=False)
    train(config)
    assert json.loads((config.output / "results.json").read_text())["disclosures"]["test_crops"]
    assert load_trained(config.output).preset.test_size == 35
