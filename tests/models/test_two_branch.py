"""Two branches over one trunk: what is doubled, what each stream sees, and inference."""

import pytest
import torch
from torch import nn

from spectail._utils import torchvision_ops  # noqa: F401 - before timm
from spectail.models.cifar_resnet import Block, CifarResNet
from spectail.models.small import SmallCNN, SmallViT
from spectail.models.two_branch import Branches, TwoBranchClassifier, last_block

VIT = {"img_size": 32, "patch_size": 8}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def timm_model(name, **options):
    import timm

    return timm.create_model(name, num_classes=0, **options)


NETWORKS = {
    "cifar-resnet": (lambda: CifarResNet(32), "stages.2.4"),
    "cifar-resnet-8": (lambda: CifarResNet(8), "stages.2.0"),
    "small-cnn": (SmallCNN, "layers.2"),
    "small-vit": (lambda: SmallViT(32, 8, 24, 2, 2), "blocks.1"),
    "resnet18": (lambda: timm_model("resnet18"), "layer4.1"),
    "vit": (lambda: timm_model("vit_tiny_patch16_224", depth=3, **VIT), "blocks.2"),
}
NAMES = {  # built without weights or a forward pass
    "resnet50": "layer4.2",
    "vit_tiny_patch16_224": "blocks.11",
    "swin_tiny_patch4_window7_224": "layers.3.blocks.1",
    "efficientnet_b0": "blocks.6.0",
}
networks = pytest.mark.parametrize("name", NETWORKS)


def images(count=4, seed=1):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def doubled(name):
    backbone = NETWORKS[name][0]()
    width = backbone.num_features
    return TwoBranchClassifier(backbone, nn.Linear(2 * width, 5))


def stirred(model):
    """Branches that differ, and running statistics that are not those of the start."""
    with torch.no_grad():
        for parameter in model.branches.rebalancing.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.train()
        model.branch(images(8, 2), "conventional")
        model.branch(images(8, 3), "rebalancing")
    return model


@networks
def test_the_last_block_is_doubled(name):
    make, place = NETWORKS[name]
    backbone = make()
    assert last_block(backbone) == place
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    model = TwoBranchClassifier(backbone, nn.Linear(2 * backbone.num_features, 5))
    assert [key for key, module in model.backbone.named_modules() if isinstance(module, Branches)] == [place]
    block = {key: value for key, value in before.items() if key.startswith(f"{place}.")}
    after = model.backbone.state_dict()
    assert len(after) == len(before) + len(block)
    for key, value in block.items():  # both begin as the block was, each with weights of its own
        rest = key.removeprefix(f"{place}.")
        first, second = (after[f"{place}.{branch}.{rest}"] for branch in ("conventional", "rebalancing"))
        assert torch.equal(first, value)
        assert torch.equal(second, value)
        assert first.data_ptr() != second.data_ptr()
    for key in before.keys() - block.keys():
        assert torch.equal(after[key], before[key])


def test_four_blocks_of_the_last_stage_of_resnet32_are_shared():
    model = doubled("cifar-resnet")
    *shared, last = model.backbone.stages[2]
    assert [type(block) for block in shared] == [Block] * 4
    assert isinstance(last, Branches)


@pytest.mark.parametrize("name", NAMES)
def test_last_blocks_of_timm_models_by_name(name):
    with torch.device("meta"):
        backbone = timm_model(name)
    assert last_block(backbone) == NAMES[name]


@networks
def test_both_branches_at_once_are_the_branches_one_by_one(name):
    model = stirred(doubled(name)).eval()
    with torch.no_grad():
        first, second = model.branch(images(), "conventional"), model.branch(images(), "rebalancing")
        assert not torch.allclose(first, second, atol=1e-3)
        features, logits = model(images(), features=True)
        torch.testing.assert_close(features, torch.cat([first, second], 1), rtol=1e-4, atol=1e-5)
        wanted = torch.cat([first, second], 1) @ model.head.weight.T + model.head.bias
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(images()), logits)
    assert model.branches.use == "both"


@pytest.mark.parametrize("name", ["cifar-resnet", "small-cnn", "resnet18"])
def test_each_stream_has_batch_statistics_of_its_own(name):
    """In training the features of one stream do not depend on the other, whatever it holds."""
    model = doubled(name).train()
    with torch.no_grad():
        alone = model.branch(images(8, 4), "conventional")
        model.branch(50 + 9 * images(8, 5), "rebalancing")
        again = model.branch(images(8, 4), "conventional")
    torch.testing.assert_close(alone, again)


def test_running_statistics_of_the_trunk_receive_both_streams_and_of_a_branch_its_own():
    model = doubled("small-cnn").train()
    trunk = model.backbone.layers[0]
    first, second = images(8, 4), 3 + 2 * images(8, 5)
    with torch.no_grad():
        mean = torch.zeros(32)
        for stream in (first, second):  # momentum .1, one update for each stream
            mean = 0.9 * mean + 0.1 * trunk.conv(stream).mean((0, 2, 3))
        model.branch(first, "conventional")
        inner = {name: getattr(model.branches, name).norm for name in ("conventional", "rebalancing")}
        assert inner["conventional"].num_batches_tracked == 1
        assert inner["rebalancing"].num_batches_tracked == 0
        model.branch(second, "rebalancing")
    torch.testing.assert_close(trunk.norm.running_mean, mean, rtol=1e-4, atol=1e-6)
    assert trunk.norm.num_batches_tracked == 2
    assert [norm.num_batches_tracked.item() for norm in inner.values()] == [1, 1]
    assert not torch.equal(inner["conventional"].running_mean, inner["rebalancing"].running_mean)


def test_a_branch_trains_itself_and_the_trunk():
    model = doubled("small-cnn")
    model.branch(images(), "rebalancing").sum().backward()
    assert all(parameter.grad is not None for parameter in model.backbone.layers[0].parameters())
    assert all(parameter.grad is not None for parameter in model.branches.rebalancing.parameters())
    assert all(parameter.grad is None for parameter in model.branches.conventional.parameters())


def test_a_failing_pass_leaves_the_model_as_it_was():
    model = doubled("small-cnn")
    with pytest.raises(RuntimeError):
        model.branch(torch.zeros(1, 1, 32, 32), "rebalancing")
    assert model.branches.use == "both"


def test_another_block_may_be_named():
    backbone = CifarResNet(20)
    model = TwoBranchClassifier(backbone, nn.Linear(128, 5), "stages.2")
    assert isinstance(backbone.stages[2], Branches)
    assert model(images()).shape == (4, 5)


@pytest.mark.parametrize("place", ["layer9", "stages.2.77"])
def test_a_block_that_is_not_there_is_refused(place):
    words = (
        f"the CifarResNet has no block '{place}' to be doubled. Its last one is 'stages.2.0', which is doubled without"
    )
    with pytest.raises(ValueError, match=words):
        TwoBranchClassifier(CifarResNet(8), nn.Linear(128, 5), place)


def test_a_wrong_block_of_an_unknown_network():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    with pytest.raises(ValueError, match="the Odd has no block 'third' to be doubled. Its parts are first, second"):
        TwoBranchClassifier(Odd(), nn.Linear(4, 5), "third")


def test_an_unknown_network_is_refused_with_advice():
    class Odd(nn.Module):
        pass

    with pytest.raises(ValueError, match="last block of a Odd is not known; name the one to double with --branch-at"):
        last_block(Odd())


def test_state_of_two_branches_survives_a_round_trip():
    model, other = stirred(doubled("small-cnn")).eval(), doubled("small-cnn").eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(images()), model(images()))
