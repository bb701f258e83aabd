"""A weight file must fit at least half of a backbone; what legitimately differs is loaded and reported."""

import pytest
import torch
from safetensors.torch import save_file

from spectail.models import ModelConfig, build_model
from spectail.models.cifar_resnet import CifarResNet
from spectail.models.small import SmallCNN, SmallViT
from spectail.models.weights import load_weights

VIT = {"model": "vit_tiny_patch16_224", "patch_size": 4}


def write(path, tensors):
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    return path


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def first_until(module, share):
    """The first parameters of a module that together have at least this share of its numbers, and that share."""
    kept, count = {}, 0
    total = sum(value.numel() for value in module.parameters())
    for name, value in module.named_parameters():
        if count >= share * total:
            break
        kept[name] = value.detach()
        count += value.numel()
    return kept, count, total


def test_a_file_with_one_fitting_tensor_is_refused_with_numbers_and_names(tmp_path):
    source, target = SmallCNN(), SmallCNN()
    name, weight = next(iter(source.named_parameters()))
    path = write(tmp_path / "one.safetensors", {"stem.kernel": torch.zeros(3), name: weight.detach()})
    before = state(target)
    with pytest.raises(ValueError, match="Is it a checkpoint of this architecture") as error:
        load_weights(target, path)
    total = sum(value.numel() for value in target.parameters())
    assert f"only {weight.numel():,} of {total:,} parameters that fit the model" in str(error.value)
    assert str(path) in str(error.value)
    assert "stem.kernel" in str(error.value)
    second = [name for name, _ in target.named_parameters()][1]
    assert second in str(error.value)
    assert "\n" not in str(error.value)
    assert same(state(target), before)


def test_the_border_is_half_of_the_numbers_not_of_the_tensors(tmp_path):
    """Two tensors of equal size, then many small ones: what counts is numbers."""
    module = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 10, bias=False))
    path = write(tmp_path / "half.safetensors", {"0.weight": torch.ones(10, 10)})
    assert load_weights(module, path).missing == ("1.weight",)
    assert torch.equal(module[0].weight, torch.ones(10, 10))
    wider = torch.nn.Sequential(*module, torch.nn.Linear(1, 1, bias=False))
    with pytest.raises(ValueError, match=r"only 100 of 201 parameters"):
        load_weights(wider, path)
    norms = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), *(torch.nn.LayerNorm(4) for _ in range(9)))
    small = {name: value.detach() for name, value in norms.named_parameters() if value.numel() == 4}
    assert len(small) == 18
    with pytest.raises(ValueError, match=r"only 72 of 172 parameters"):
        load_weights(norms, write(tmp_path / "norms.safetensors", small))


@pytest.mark.parametrize("share", [0.1, 0.45])
def test_less_than_half_of_a_network_is_refused(tmp_path, share):
    kept, count, total = first_until(CifarResNet(20), share)
    assert count < total / 2
    with pytest.raises(ValueError, match=f"only {count:,} of {total:,} parameters"):
        load_weights(CifarResNet(20), write(tmp_path / "part.safetensors", kept))


def test_more_than_half_is_loaded_and_reported(tmp_path):
    kept, count, total = first_until(CifarResNet(20), 0.6)
    assert count > total / 2
    target = CifarResNet(20)
    report = load_weights(target, write(tmp_path / "part.safetensors", kept))
    assert set(report.loaded) == set(kept)
    assert all(torch.equal(target.state_dict()[name], value) for name, value in kept.items())


def test_another_width_is_refused_with_the_shapes(tmp_path):
    """All names agree, so that they do not tell what is wrong."""
    path = write(tmp_path / "narrow.safetensors", SmallViT(width=96, heads=3).state_dict())
    with pytest.raises(ValueError, match=r"place is 1 x 64 x 96 in the file, 1 x 64 x 192 in the model"):
        load_weights(SmallViT(), path)


def test_another_head_is_legitimate(tmp_path):
    """More classes than the backbone has parameters: the head must not count."""
    source, _ = build_model(ModelConfig(model="small-cnn"), 2_000)
    assert source.head.weight.numel() > sum(value.numel() for value in source.backbone.parameters())
    path = write(tmp_path / "many.safetensors", source.state_dict())
    model, report = build_model(ModelConfig(model="small-cnn", init=path), 3)
    assert set(report.unexpected) == {"head.weight", "head.bias"}
    assert same(state(model.backbone), state(source.backbone))


def test_a_whole_classifier_counts_its_backbone_only(tmp_path):
    source, _ = build_model(ModelConfig(model="small-cnn"), 2_000)
    path = write(tmp_path / "run.safetensors", source.state_dict())
    target, _ = build_model(ModelConfig(model="small-cnn"), 1_999)
    assert set(load_weights(target, path).reshaped) == {"head.weight", "head.bias"}
    assert same(state(target.backbone), state(source.backbone))
    heads = {name: value for name, value in source.state_dict().items() if name.startswith("head.")}
    same_size, _ = build_model(ModelConfig(model="small-cnn"), 2_000)
    with pytest.raises(ValueError, match="no tensor that fits"):
        load_weights(same_size, write(tmp_path / "head.safetensors", heads))


def test_position_embeddings_of_another_image_size_are_resized(tmp_path):
    source, _ = build_model(ModelConfig(**VIT, img_size=32), 3)
    path = write(tmp_path / "vit.safetensors", source.state_dict())
    model, report = build_model(ModelConfig(**VIT, img_size=48, init=path), 3)
    assert source.backbone.pos_embed.shape == (1, 65, 192)
    assert model.backbone.pos_embed.shape == (1, 145, 192)
    assert "pos_embed" in report.loaded
    assert report.reshaped == report.missing == ()
    assert torch.equal(model.backbone.pos_embed[:, 0], source.backbone.pos_embed[:, 0])  # the class token has no place
    grid = source.backbone.pos_embed[:, 1:].detach().reshape(1, 8, 8, 192).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(grid, (12, 12), mode="bicubic", antialias=True).permute(0, 2, 3, 1)
    torch.testing.assert_close(model.backbone.pos_embed[:, 1:].detach(), wanted.reshape(1, 144, 192))


def test_another_first_convolution_is_left_as_it_was(tmp_path):
    source, target = CifarResNet(20), CifarResNet(20)
    tensors = source.state_dict() | {"conv1.weight": torch.zeros(16, 1, 3, 3)}
    before = state(target)
    report = load_weights(target, write(tmp_path / "grey.safetensors", tensors))
    assert report.reshaped == ("conv1.weight",)
    assert torch.equal(target.conv1.weight, before["conv1.weight"])
    assert set(report.loaded) == set(before) - {"conv1.weight"}
