"""Parts of a network that are tuned: how many parameters, what is computed, and that merging changes nothing."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from spectail.models import tuning
from spectail.models.adaptformer import AdaptMLP, adapt, blocks
from spectail.models.build import build_model
from spectail.models.cifar_resnet import CifarResNet
from spectail.models.classifier import Classifier
from spectail.models.small import SmallCNN, SmallViT
from spectail.models.tuning import TuneConfig, merged, trained_part, tune


def tiny_vit():
    return SmallViT(32, 16, width=12, depth=2, heads=2)


def efficientnet():
    return timm.create_model("tf_efficientnet_lite0", num_classes=0)


def tuned(backbone, how, size=32, **options):
    torch.manual_seed(0)
    model = Classifier(backbone, nn.Linear(backbone.num_features, 5))
    numbers = tune(model, TuneConfig(tune=how, **options), size)
    with torch.no_grad():  # as after some training
        for value in model.backbone.parameters():
            if value.requires_grad:
                value.add_(0.05 * torch.randn_like(value))
    return model.eval(), numbers


@pytest.fixture
def on_meta(monkeypatch):
    """A network without numbers: only sizes are asked for."""
    monkeypatch.setattr(tuning, "weights_digest", lambda module: "none")

    def make(name, how, **options):
        with torch.device("meta"):
            model = Classifier(timm.create_model(name, num_classes=0), nn.Linear(1, 1))
            return tune(model, TuneConfig(tune=how, **options), 224)

    return make


def test_lora_trains_a_small_share_of_a_vit(on_meta):
    assert on_meta("vit_small_patch16_224", "lora", tune_targets=("attn", "mlp")) == (589_824, 21_665_664)  # 2.72 %
    assert on_meta("vit_small_patch16_224", "lora") == (221_184, 21_665_664)  # 1.02 %: attention only


def test_adaptformer_has_the_size_of_the_paper(on_meta):
    """Table 1 of the paper, ViT-B: 1.26 million with width 64, 0.10 with width 1, each with a head for 100 classes."""
    head = 769 * 100
    sizes = {width: on_meta("vit_base_patch16_224", "adaptformer", tune_rank=width)[0] + head for width in (64, 1)}
    assert sizes == {64: 1_266_532, 1: 104_560}


def test_adaptformer_by_its_formula():
    """x' + MLP(LN(x')) + s * relu(LN(x') W_down + b) W_up + b', one token at a time."""
    torch.manual_seed(0)
    block = tiny_vit().blocks[0]
    before = copy.deepcopy(block)
    branch = adapt(block, 3, 0.1, 0.0, own_norm=False)
    tokens = torch.randn(2, 4, 12)
    assert torch.equal(block(tokens), before(tokens))  # at the start nothing is added
    nn.init.normal_(branch.up.weight)
    nn.init.normal_(branch.up.bias)
    after_attention = []
    before.norm2.register_forward_pre_hook(lambda module, given: after_attention.append(given[0]))
    expected = before(tokens).detach()
    for image in range(2):
        for token in range(4):
            x = F.layer_norm(after_attention[0][image, token], (12,), before.norm2.weight, before.norm2.bias)
            hidden = [max((branch.down.weight[j] @ x + branch.down.bias[j]).item(), 0.0) for j in range(3)]
            added = torch.stack([branch.up.weight[:, j] * hidden[j] for j in range(3)]).sum(0) + branch.up.bias
            expected[image, token] += 0.1 * added.detach()
    torch.testing.assert_close(block(tokens), expected)


def test_the_branch_of_lift_reads_the_residual_through_its_own_norm():
    torch.manual_seed(0)
    block = tiny_vit().blocks[0]
    nn.init.normal_(block.norm2.weight)
    before = copy.deepcopy(block)
    branch = adapt(block, 3, "learned", 0.0, own_norm=True)
    nn.init.normal_(branch.up.weight)
    branch.scale.data.fill_(0.7)
    tokens, residual = torch.randn(2, 4, 12), []
    before.norm2.register_forward_pre_hook(lambda module, given: residual.append(given[0]))
    plain = before(tokens)
    added = F.relu(F.layer_norm(residual[0], (12,)) @ branch.down.weight.T) @ branch.up.weight.T
    torch.testing.assert_close(block(tokens), plain + 0.7 * added)
    assert branch.scale.requires_grad
    copied = copy.deepcopy(block)  # as an average of the weights does
    torch.testing.assert_close(copied(tokens), block(tokens))


MERGED = {
    "vit": (tiny_vit, {}),
    "vit-mlp": (tiny_vit, {"tune_targets": ("mlp",), "tune_rank": 2, "tune_scale": 3.0}),
    "cnn": (SmallCNN, {}),
    "resnet": (lambda: CifarResNet(8), {"tune_targets": ("stages",)}),
    "efficientnet": (efficientnet, {"tune_targets": ("blocks.1", "blocks.6")}),
}


@pytest.mark.parametrize("case", MERGED)
def test_merged_is_unmerged(case):
    make, options = MERGED[case]
    model, _ = tuned(make(), "lora", **options)
    images, plain = torch.randn(3, 3, 32, 32), make().state_dict()
    with torch.no_grad():
        torch.testing.assert_close(merged(model)(images), model(images), atol=1e-5, rtol=1e-5)
    assert merged(model).backbone.state_dict().keys() == plain.keys()
    assert any("lora" in name for name in model.state_dict())  # the model itself is still as it was
    assert set(trained_part(model, model.state_dict())) == {
        name for name in model.state_dict() if "lora" in name or name.startswith("head.")
    }


def test_what_cannot_be_merged_stays():
    model, _ = tuned(tiny_vit(), "adaptformer", tune_rank=2)
    assert merged(model) is model


def test_lora_leaves_depthwise_convolutions_and_the_stem_alone():
    model, _ = tuned(efficientnet(), "lora")
    with_lora = {name.split(".lora_")[0] for name, _ in model.backbone.named_parameters() if ".lora_" in name}
    plain = dict(efficientnet().named_modules())
    assert with_lora == {
        name for name, layer in plain.items()
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
    }  # fmt: skip
    assert len(with_lora) == 32


def test_biases_and_norms():
    biases, (count, total) = tuned(tiny_vit(), "bias", tune_targets=("blocks",))
    assert {name.rpartition(".")[2] for name in biases.tuned} == {"bias"}
    assert all(name.startswith("blocks.") for name in biases.tuned)
    assert total == sum(value.numel() for value in tiny_vit().parameters())
    assert count == 2 * (4 * 12 + 36 + 12 + 48 + 12 - 24)  # norms 2 x 12, qkv 36, out 12, MLP 48 and 12
    norms, _ = tuned(CifarResNet(8), "norm")
    kinds = {name.rpartition(".")[2] for name in norms.tuned}
    assert kinds == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


@pytest.mark.parametrize(("how", "moves"), [("lora", False), ("bias", False), ("head", False), ("norm", True)])
def test_running_statistics_belong_to_the_frozen_weights(how, moves):
    model, _ = tuned(SmallCNN(), how)
    state = {name: value.clone() for name, value in model.backbone.state_dict().items() if "running" in name}
    model.train()(torch.randn(4, 3, 32, 32))
    assert all(torch.equal(model.backbone.state_dict()[name], value) != moves for name, value in state.items())
    model.freeze_backbone()
    assert not any(value.requires_grad for value in model.backbone.parameters())
    model.freeze_backbone(False)
    assert {name for name, value in model.backbone.named_parameters() if value.requires_grad} == {
        name for name, _ in model.backbone.named_parameters() if name in model.tuned
    }


class ReadsItsWeight(nn.Module):
    """As the attention of BEiT does: the layer is never called."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.read, self.called = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, images):
        return self.called(F.linear(images.mean((2, 3)), self.read.weight))


def test_lora_is_put_on_layers_that_are_called():
    model, _ = tuned(ReadsItsWeight(), "lora")
    assert {name.split(".")[0] for name in model.tuned} == {"called"}


def test_the_digest_is_that_of_the_base():
    models = [tuned(tiny_vit().requires_grad_(True), "lora")[0] for _ in range(2)]
    assert models[0].base != models[1].base  # other random weights
    torch.manual_seed(1)
    first = tiny_vit()
    bases = {tuned(copy.deepcopy(first), how)[0].base for how in ("lora", "bias", "head", "adaptformer")}
    assert len(bases) == 1


@pytest.mark.parametrize(
    ("make", "config", "message"),
    [
        (tiny_vit, {"tune": "lora", "tune_targets": ("atn",)}, "matches no layer of a SmallViT.*blocks, mlp, out, qkv"),
        (SmallCNN, {"tune": "adaptformer"}, "needs the blocks of a transformer, which a SmallCNN"),
        (tiny_vit, {"tune": "lora", "tune_scale": "learned"}, "belongs to --tune adaptformer"),
        (SmallCNN, {"tune": "lora", "tune_rank": "classes"}, "is for transformers"),
    ],
)
def test_bad_input(make, config, message):
    backbone = make()
    with pytest.raises(ValueError, match=message):
        tune(Classifier(backbone, nn.Linear(backbone.num_features, 5)), TuneConfig(**config), 32)
    assert not any("lora" in name or ".down." in name for name in backbone.state_dict())


@pytest.mark.parametrize(("classes", "width"), [(100, 16), (1000, 128), (3, 1)])
def test_width_by_the_number_of_classes(classes, width):
    """2 ** floor(log2(classes / (2 * blocks))) of LIFT's code, with three blocks."""
    backbone = SmallViT(32, 16, width=12, depth=3, heads=2)
    model = Classifier(backbone, nn.Linear(12, classes))
    tune(model, TuneConfig(tune="adaptformer", tune_rank="classes"), 32)
    assert {one.mlp.down.out_features for one in blocks(backbone).values()} == {width}
    assert all(isinstance(one.mlp, AdaptMLP) for one in blocks(backbone).values())


def test_drop_path():
    from spectail.models.build import ModelConfig

    model, _ = build_model(ModelConfig("vit_tiny_patch16_224", img_size=32, drop_path=0.2), 3)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.backbone.blocks]
    assert rates == pytest.approx([0.2 * place / 11 for place in range(12)])
    with pytest.raises(ValueError, match="--drop-path is for models of timm; small-vit"):
        build_model(ModelConfig("small-vit", drop_path=0.2), 3)
