"""Networks, heads, freezing, names and weight files."""

import os
import pickle
import zipfile

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from spectail.models import MODELS, Classifier, CosineHead, ModelConfig, build_model, make_head
from spectail.models.build import parameters
from spectail.models.cifar_resnet import Block, CifarResNet
from spectail.models.small import SmallCNN, SmallViT
from spectail.models.weights import LoadReport, load_weights, read_weights

VIT = {"model": "vit_tiny_patch16_224", "img_size": 32, "patch_size": 4}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def images(count=2, size=32):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def build(head="linear", classes=3, **config):
    return build_model(ModelConfig(**config), classes, head)[0]


# CIFAR ResNet


def resnet_parameters(depth):
    """By hand: 3 x 3 kernels without bias, two numbers per channel of a batch norm, no shortcut parameters."""
    total, before = 9 * 3 * 16 + 2 * 16, 16
    for width in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            total += 9 * before * width + 9 * width * width + 4 * width
            before = width
    return total


@pytest.mark.parametrize(("depth", "wanted"), [(20, 269_072), (32, 463_504), (44, 657_936), (56, 852_368)])
def test_parameters_of_cifar_resnets(depth, wanted):
    assert resnet_parameters(depth) == wanted
    assert parameters(CifarResNet(depth)) == wanted


def test_resnet32_for_ten_classes_has_the_464_154_parameters_of_the_literature():
    model = build(model="resnet32", classes=10)
    assert parameters(model) == 464_154
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) for module in model.modules()) == 32


def test_resnet32_shapes():
    model = build(model="resnet32", classes=7)
    features, logits = model(images(), features=True)
    assert features.shape == (2, 64)
    assert logits.shape == (2, 7)
    assert model.backbone.stages(F.relu(model.backbone.conv1(images()))).shape == (2, 64, 8, 8)
    assert model.backbone(images(2, 64)).shape == (2, 64)


def test_every_block_of_resnet32_is_two_convolutions_and_two_norms():
    blocks = [module for module in CifarResNet(32).modules() if isinstance(module, Block)]
    assert len(blocks) == 15
    for block in blocks:
        assert sorted(type(child).__name__ for child in block.children()) == ["BatchNorm2d"] * 2 + ["Conv2d"] * 2
    assert [block.stride for block in blocks if block.stride != 1] == [2, 2]


def test_the_shortcut_takes_every_second_pixel_and_pads_channels_with_zeros():
    block = Block(16, 32, 2).eval()
    nn.init.zeros_(block.conv2.weight)  # only the shortcut is left
    x = images()[:, :1].repeat(1, 16, 1, 1).abs() * torch.arange(1, 17)[None, :, None, None]
    out = block(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()
    same = Block(16, 16, 1).eval()
    nn.init.zeros_(same.conv2.weight)
    assert torch.equal(same(x), x)


@pytest.mark.parametrize("depth", [2, 18, 34, 52])
def test_a_depth_that_does_not_exist_is_refused(depth):
    with pytest.raises(ValueError, match=rf"6n \+ 2.*got {depth}"):
        CifarResNet(depth)


# small networks


@pytest.mark.parametrize("size", [16, 32, 28])
def test_small_cnn_shapes(size):
    model = build(model="small-cnn", classes=5)
    features, logits = model(images(2, size), features=True)
    assert features.shape == (2, SmallCNN.num_features) == (2, 128)
    assert logits.shape == (2, 5)


@pytest.mark.parametrize(("size", "patch", "tokens"), [(32, 4, 64), (32, 8, 16), (64, 8, 64), (16, 2, 64)])
def test_small_vit_shapes(size, patch, tokens):
    model = build(model="small-vit", img_size=size, patch_size=patch, classes=5)
    features, logits = model(images(2, size), features=True)
    assert features.shape == (2, 192)
    assert logits.shape == (2, 5)
    assert model.backbone.place.shape == (1, tokens, 192)


def test_parameters_of_the_small_vit():
    """Per block: two norms, q, k, v and output, an MLP of four times the width."""
    width = 192
    block = 2 * 2 * width + 4 * (width * width + width) + 2 * 4 * width * width + 4 * width + width
    assert parameters(SmallViT()) == 6 * block + (3 * 16 + 1) * width + 64 * width + 2 * width


def test_small_vit_attention_equals_that_of_torch():
    """One block against nn.TransformerEncoderLayer with the same weights."""
    block = SmallViT(width=24, heads=3, depth=1).blocks[0].double().eval()
    other = nn.TransformerEncoderLayer(24, 3, 96, 0.0, F.gelu, batch_first=True, norm_first=True).double()
    other.load_state_dict(
        {
            "self_attn.in_proj_weight": block.qkv.weight,
            "self_attn.in_proj_bias": block.qkv.bias,
            "self_attn.out_proj.weight": block.out.weight,
            "self_attn.out_proj.bias": block.out.bias,
            "linear1.weight": block.mlp[0].weight,
            "linear1.bias": block.mlp[0].bias,
            "linear2.weight": block.mlp[2].weight,
            "linear2.bias": block.mlp[2].bias,
            **block.norm1.state_dict(prefix="norm1."),
            **block.norm2.state_dict(prefix="norm2."),
        }
    )
    tokens = torch.randn(2, 9, 24, dtype=torch.float64)
    torch.testing.assert_close(block(tokens), other(tokens), rtol=1e-10, atol=1e-10)


def test_small_vit_refuses_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="multiple of patch_size; got 30 and 4"):
        SmallViT(img_size=30)
    with pytest.raises(ValueError, match="built for 64 patches; the images have 144"):
        SmallViT()(images(2, 48))


@pytest.mark.parametrize("name", MODELS)
def test_every_network_depends_on_its_input_and_learns(name):
    model = build(model=name)
    logits = model(images(4))
    assert not torch.equal(logits[0], logits[1])
    logits.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


# heads


def test_cosine_head_of_the_oracle():
    head = CosineHead(2, 3, scale=1.0)
    head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    assert head(torch.tensor([[3.0, 4.0]]))[0].tolist() == pytest.approx([0.6, 0.8, 0.14142], abs=1e-5)
    head.scale = 30.0
    assert head(torch.tensor([[3.0, 4.0]]))[0].tolist() == pytest.approx([18.0, 24.0, 4.24264], abs=1e-4)


def test_cosine_head_equals_cosine_similarity():
    head, features = CosineHead(5, 4).double(), torch.randn(6, 5, dtype=torch.float64)
    wanted = torch.stack([F.cosine_similarity(features, row[None], dim=1) for row in head.weight], 1)
    torch.testing.assert_close(head(features), 30 * wanted)
    assert not any(name == "bias" for name, _ in head.named_parameters())


@pytest.mark.parametrize("factor", [1e-3, 0.5, 1e4])
def test_cosine_head_does_not_see_lengths(factor):
    head, features = CosineHead(5, 4), torch.randn(6, 5)
    wanted = head(features)
    torch.testing.assert_close(head(factor * features), wanted)
    with torch.no_grad():
        head.weight *= torch.tensor([[factor], [1.0], [3.0], [factor]])
    torch.testing.assert_close(head(features), wanted)
    assert float(wanted.detach().abs().max()) <= 30 * (1 + 1e-6)


def test_class_vectors_start_with_length_one():
    head = CosineHead(50, 4)
    torch.testing.assert_close(head.weight.detach().norm(dim=1), torch.ones(4))
    before = head.weight.detach().clone()
    head.reset_parameters()
    assert not torch.equal(head.weight, before)
    assert float(head.weight.detach().min()) < 0 < float(head.weight.detach().max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cosine_head_computes_in_float32_under_autocast(dtype):
    head, features = CosineHead(64, 10), torch.randn(8, 64)
    wanted = head(features)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(head(features), wanted)
        assert head(features.to(dtype)).dtype == torch.float32
        assert torch.equal(head(features.to(dtype)), head(features.to(dtype).float()))
        assert nn.Linear(64, 10)(features).dtype == dtype  # autocast is on
    assert head(features.double()).dtype == torch.float64


def test_cosine_head_survives_features_of_zero():
    head, features = CosineHead(5, 4), torch.zeros(2, 5, requires_grad=True)
    head(features).sum().backward()
    assert torch.isfinite(features.grad).all()
    assert torch.isfinite(head.weight.grad).all()


def test_heads_by_name():
    assert isinstance(make_head("linear", 4, 3), nn.Linear)
    head = make_head("cosine", 4, 3)
    assert isinstance(head, CosineHead)
    assert (head.in_features, head.out_features, head.scale) == (4, 3, 30.0)
    with pytest.raises(ValueError, match="head must be one of .linear., .cosine.; got 'cosin'"):
        make_head("cosin", 4, 3)
    assert isinstance(build(head="cosine").head, CosineHead)


# Classifier


def test_features_and_logits_belong_together():
    model = build(model="resnet20").eval()
    features, logits = model(images(), features=True)
    assert torch.equal(model.head(features), logits)
    assert torch.equal(model(images()), logits)
    assert torch.equal(model.backbone(images()), features)


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(module, before):
    return {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}


def train_step(model, decay=0.1):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5, momentum=0.9, weight_decay=decay)
    for _ in range(2):
        F.cross_entropy(model(images(4) + 1), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("config", [{"model": "resnet20"}, {"model": "small-cnn"}, {"model": "resnet18"}])
def test_a_frozen_backbone_stays_bit_identical_while_the_head_moves(config, again):
    model = build(**config)
    model.freeze_backbone()
    if again:
        model.eval()
        model.train()
    before = state(model)
    assert model.training
    assert model.head.training
    train_step(model)
    assert changed(model, before) == {"head.weight", "head.bias"}


def test_without_freezing_the_same_step_moves_everything():
    model = build(model="resnet20")
    before = state(model)
    train_step(model)
    assert changed(model, before) == set(before)


def test_a_backbone_thaws():
    model = build(model="resnet20")
    model.freeze_backbone()
    model.freeze_backbone(False)
    assert all(module.training for module in model.modules())
    before = state(model)
    train_step(model)
    assert changed(model, before) == set(before)


def test_evaluation_mode_survives_freezing():
    model = build(model="small-cnn").eval()
    model.freeze_backbone()
    model.freeze_backbone(False)
    assert not any(module.training for module in model.modules())


# names


def test_timm_networks_have_their_own_features():
    model = build(model="resnet18", classes=4)
    features, logits = model(images(2, 64), features=True)
    assert features.shape == (2, 512)
    assert logits.shape == (2, 4)
    assert parameters(model.backbone) == 11_176_512  # 11,689,512 with the 1,000-class layer


def test_a_timm_vit_for_small_images():
    model = build(**VIT, classes=4)
    features, logits = model(images(), features=True)
    assert features.shape == (2, 192)
    assert logits.shape == (2, 4)
    assert model.backbone.pos_embed.shape == (1, 65, 192)


def test_a_timm_network_with_a_hidden_layer_before_its_classifier():
    """MobileNetV3 gives 1,024 features and calls the 288 channels before them num_features."""
    model = build(model="mobilenetv3_small_050", classes=4).eval()
    features, logits = model(images(), features=True)
    assert features.shape[1] == model.head.in_features
    assert logits.shape == (2, 4)


@pytest.mark.parametrize("name", ["convit_tiny", "flexivit_small"])
def test_an_image_size_is_passed_to_every_network_that_is_built_for_one(name):
    model = build(model=name, img_size=32).eval()
    assert model(images()).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "close"),
    [("resnet-32", "resnet32"), ("small_vit", "small-vit"), ("vit_tyny_patch16_224", "vit_tiny_patch16_224")],
)
def test_unknown_names_suggest_close_ones(name, close):
    with pytest.raises(ValueError, match=rf"unknown model '{name}'; did you mean .*{close}"):
        build(model=name)


def test_unknown_names_without_a_close_one():
    with pytest.raises(ValueError, match=r"unknown model 'qqqqqq'; choose from small-cnn, .* and .* more"):
        build(model="qqqqqq")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model": "resnet32", "pretrained": True}, "resnet32 has no pretrained weights.*--init"),
        ({"model": "small-vit", "pretrained": True}, "small-vit has no pretrained weights"),
        ({"model": "resnet32", "patch_size": 4}, "--patch-size means nothing for resnet32"),
        ({"model": "small-cnn", "patch_size": 4, "img_size": 32}, "--patch-size means nothing for small-cnn"),
        ({"model": "resnet18", "patch_size": 4}, "resnet18 does not take --patch-size"),
        ({"model": "resnet18", "patch_size": 4, "img_size": 32}, "resnet18 does not take --patch-size"),
    ],
)
def test_options_that_mean_nothing_are_refused(config, words):
    with pytest.raises(ValueError, match=words):
        build(**config)


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "small-cnn"])
def test_convolutional_networks_take_any_size(name):
    assert build(model=name, img_size=48)(images(2, 48)).shape == (2, 3)


# weights


def write(path, tensors):
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    else:
        torch.save(tensors, path)
    return path


def prefixed(prefix, tensors):
    return {prefix + name: value for name, value in tensors.items()}


def assert_loaded(backbone, source):
    for name, value in source.state_dict().items():
        assert torch.equal(backbone.state_dict()[name], value), name


SHAPES = {
    "plain": lambda tensors: tensors,
    "module": lambda tensors: prefixed("module.", tensors),
    "backbone": lambda tensors: prefixed("backbone.", tensors),
    "compiled": lambda tensors: prefixed("_orig_mod.", tensors),
    "distributed and compiled classifier": lambda tensors: prefixed("module._orig_mod.backbone.", tensors),
    "encoder of a model": lambda tensors: prefixed("model.encoder.", tensors),
}
WRAPPED = {
    "state_dict": lambda tensors: {"state_dict": tensors, "epoch": 3},
    "model": lambda tensors: {"model": tensors, "optimizer": {"lr": 0.1}},
    "model_state_dict": lambda tensors: {"epoch": 3, "model_state_dict": prefixed("module.", tensors)},
    "ema": lambda tensors: {"model_ema": prefixed("module.", tensors)},
    "both": lambda tensors: {"state_dict": {"model": prefixed("backbone.", tensors)}},
}


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_come_back_through_prefixes(tmp_path, shape, suffix):
    source, target = SmallCNN(), SmallCNN()
    nn.init.uniform_(next(module for module in source.modules() if isinstance(module, nn.BatchNorm2d)).running_mean)
    path = write(tmp_path / f"weights.{suffix}", SHAPES[shape](source.state_dict()))
    report = load_weights(target, path)
    assert_loaded(target, source)
    assert report == LoadReport(f"weights.{suffix}", report.loaded, (), (), ())
    assert set(report.loaded) == set(source.state_dict())


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_weights_come_back_through_wrappers(tmp_path, wrapper):
    source, target = SmallCNN(), SmallCNN()
    path = write(tmp_path / "weights.pth", WRAPPED[wrapper](source.state_dict()))
    assert not load_weights(target, path).missing
    assert_loaded(target, source)


def test_the_head_is_new_and_the_report_says_so(tmp_path):
    source = build(model="resnet20", classes=10)
    path = write(tmp_path / "run.safetensors", source.state_dict())
    model, report = build_model(ModelConfig(model="resnet20", init=path), 4)
    assert_loaded(model.backbone, source.backbone)
    assert model.head.weight.shape == (4, 64)
    assert set(report.unexpected) == {"head.weight", "head.bias"}
    assert report.missing == report.reshaped == ()
    left_out = ", ".join(report.unexpected)
    assert str(report) == f"run.safetensors: {len(report.loaded)} tensors loaded; left out: {left_out}"


def test_a_head_of_the_same_size_is_new_too(tmp_path):
    source = build(model="small-cnn", classes=4)
    path = write(tmp_path / "run.pth", source.state_dict())
    model, report = build_model(ModelConfig(model="small-cnn", init=path), 4)
    assert not torch.equal(model.head.weight, source.head.weight)
    assert set(report.unexpected) == {"head.weight", "head.bias"}


def test_a_run_folder_stands_for_its_weights(tmp_path):
    source, target = SmallCNN(), SmallCNN()
    write(tmp_path / "model.safetensors", prefixed("backbone.", source.state_dict()))
    load_weights(target, tmp_path)
    assert_loaded(target, source)


def test_random_weights_have_no_report():
    assert build_model(ModelConfig(model="small-cnn"), 3)[1] is None


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_of_another_architecture_are_refused(tmp_path, suffix):
    path = write(tmp_path / f"other.{suffix}", SmallViT(depth=1).state_dict())
    target = SmallCNN()
    before = state(target)
    with pytest.raises(ValueError, match=r"no tensor that fits.*holds .*, the model layers.*this architecture"):
        load_weights(target, path)
    assert not changed(target, before)
    with pytest.raises(ValueError, match="no tensor that fits"):
        load_weights(CifarResNet(20), write(tmp_path / "resnet18.pth", build(model="resnet18").backbone.state_dict()))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_truncated_file_is_refused_in_words(tmp_path, suffix, share):
    path = write(tmp_path / f"cut.{suffix}", SmallCNN().state_dict())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    target = SmallCNN()
    before = state(target)
    with pytest.raises(ValueError, match=rf"cut\.{suffix} cannot be read as weights \(.+\)\. Save a plain state_dict"):
        load_weights(target, path)
    assert not changed(target, before)


@pytest.mark.parametrize("name", ["page.pth", "page.safetensors"])
def test_a_web_page_is_refused_in_words(tmp_path, name):
    (tmp_path / name).write_text("<!DOCTYPE html><title>404</title>")
    with pytest.raises(ValueError, match="cannot be read as weights"):
        read_weights(tmp_path / name)


class Code:
    """What a hostile file holds: unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_code_is_refused_and_the_code_does_not_run(tmp_path, zipped):
    proof, path = tmp_path / "ran", tmp_path / "hostile.pth"
    content = {"state_dict": SmallCNN().state_dict(), "extra": Code(str(proof))}
    if zipped:
        torch.save(content, path)
        assert zipfile.is_zipfile(path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=r"hostile\.pth cannot be read as weights \(.+\)\. Save a plain state_dict"):
        load_weights(SmallCNN(), path)
    assert not proof.exists()
    torch.load(path, weights_only=False) if zipped else pickle.loads(path.read_bytes())
    assert proof.exists()  # the code does run where it is let


@pytest.mark.parametrize("content", [{"epoch": 3}, torch.zeros(3), [torch.zeros(3)], {}])
def test_a_file_without_named_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "none.pth")
    with pytest.raises(ValueError, match="holds no tensors by name; expected a state_dict"):
        read_weights(tmp_path / "none.pth")


@pytest.mark.parametrize("name", ["missing.pth", "missing.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"{name} does not exist; expected a .safetensors or .pth file"):
        read_weights(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        read_weights(tmp_path)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_tensors_of_another_shape_are_reported_and_left_alone(tmp_path, suffix):
    source, target = SmallViT(depth=1), SmallViT(img_size=64, depth=1)
    before = state(target)
    report = load_weights(target, write(tmp_path / f"small.{suffix}", source.state_dict()))
    assert report.reshaped == ("place",)
    assert report.missing == report.unexpected == ()
    assert torch.equal(target.place, before["place"])
    assert torch.equal(target.norm.weight, source.norm.weight)
    assert torch.equal(target.blocks[0].qkv.weight, source.blocks[0].qkv.weight)
    assert str(report).endswith(f"{len(before) - 1} tensors loaded; other shape: place")


def test_missing_tensors_are_reported(tmp_path):
    source, target = CifarResNet(20), CifarResNet(32)
    report = load_weights(target, write(tmp_path / "resnet20.pth", source.state_dict()))
    assert set(report.loaded) == set(source.state_dict())
    wanted = {name for name in target.state_dict() if name not in source.state_dict()}
    assert set(report.missing) == {name for name in wanted if not name.endswith("num_batches_tracked")}
    first = [name for name in target.state_dict() if name in report.missing][:4]
    assert f"; new: {', '.join(first)} and {len(report.missing) - 4} more" in str(report)


def test_a_file_without_batch_counters_is_complete(tmp_path):
    kept = {k: v for k, v in SmallCNN().state_dict().items() if not k.endswith("num_batches_tracked")}
    report = load_weights(SmallCNN(), write(tmp_path / "old.pth", kept))
    assert report.missing == ()


def test_half_precision_weights_are_widened(tmp_path):
    source, target = SmallCNN(), SmallCNN()
    halves = {k: v.half() if v.is_floating_point() else v for k, v in source.state_dict().items()}
    load_weights(target, write(tmp_path / "half.safetensors", halves))
    assert all(value.dtype == torch.float32 for value in target.parameters())
    for found, wanted in zip(target.parameters(), source.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("prefix", ["", "module.", "backbone."])
def test_position_embeddings_of_a_timm_vit_are_resampled(tmp_path, prefix):
    """From 8 x 8 to 12 x 12 places: the class token stays, a plane stays a plane, everything else is copied."""
    source = build(**VIT).backbone
    plane = torch.linspace(-1, 1, 8)
    with torch.no_grad():
        source.pos_embed[0, 1:] = (plane[:, None] + 2 * plane[None]).flatten()[:, None]
    tensors = {**source.state_dict(), "head.weight": torch.zeros(10, 192), "head.bias": torch.zeros(10)}
    path = write(tmp_path / "vit.safetensors", prefixed(prefix, tensors))
    model, report = build_model(ModelConfig(**{**VIT, "img_size": 48}, init=path), 3)
    assert report.reshaped == report.missing == ()
    assert set(report.unexpected) == {"head.weight", "head.bias"}
    place = model.backbone.pos_embed.detach()
    assert place.shape == (1, 145, 192)
    assert torch.equal(place[:, :1], source.pos_embed[:, :1])
    grid = place[0, 1:, 0].view(12, 12)
    step = 2 / 7 * 8 / 12  # the slope of the plane, in places of the new grid
    inner = grid[4:8, 4:8]
    torch.testing.assert_close(inner.diff(dim=0), torch.full((3, 4), step), rtol=0.1, atol=0)
    torch.testing.assert_close(inner.diff(dim=1), torch.full((4, 3), 2 * step), rtol=0.1, atol=0)
    for name, value in source.state_dict().items():
        if name != "pos_embed":
            assert torch.equal(model.backbone.state_dict()[name], value), name


def test_weights_of_a_timm_network(tmp_path):
    source = build(model="resnet18", classes=9)
    path = write(tmp_path / "resnet18.pth", {"state_dict": prefixed("module.", source.state_dict())})
    model, report = build_model(ModelConfig(model="resnet18", init=path), 3)
    assert_loaded(model.backbone, source.backbone)
    assert set(report.unexpected) == {"head.weight", "head.bias"}


def test_the_report_in_words():
    names = tuple("abcdef")
    assert str(LoadReport("x.pth", names, (), (), ())) == "x.pth: 6 tensors loaded"
    text = str(LoadReport("x.pth", names[:1], names, names[:2], names[:4]))
    assert text == "x.pth: 1 tensors loaded; new: a, b, c, d and 2 more; left out: a, b; other shape: a, b, c, d"


def test_a_classifier_is_its_two_parts():
    model = Classifier(SmallCNN(), nn.Linear(128, 3))
    assert {name.split(".")[0] for name in model.state_dict()} == {"backbone", "head"}
