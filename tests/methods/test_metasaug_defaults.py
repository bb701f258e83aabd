"""What MetaSAug does unless it is told otherwise: the rate of the step ahead, frozen backbones in pieces, what the
results disclose, and whether its head is made for balanced classes."""

import math

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from spectail.data.batch import Batch
from spectail.methods.metasaug import look_ahead
from spectail.methods.metasaug import method as module
from spectail.methods.metasaug.look_ahead import Still
from spectail.models.cifar_resnet import CifarResNet

COUNTS = (9, 6, 3, 1)


@pytest.fixture
def rate(make, at, monkeypatch):
    """The gradient of the covariances in one step, and the loss of the real step, with a given optimiser."""
    found, real = [], module.covariance_gradient

    def spied(*arguments):
        result = real(*arguments)
        found.append(result[0])
        return result

    monkeypatch.setattr(module, "covariance_gradient", spied)

    def measured(optimizer, wrap=False, **options):
        torch.manual_seed(1)
        method = make("metasaug", counts=COUNTS, **options)
        backbone = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
        model = method.build(backbone, method.make_head("linear", 5)).double()
        method.double()
        made = optimizer(model.parameters())
        if wrap:
            made = Accelerator(cpu=True).prepare(made)
            assert not isinstance(made, torch.optim.SGD)
        step = at(180, optimizer=made)
        rows = torch.randn(14, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        main = Batch(rows[:8], torch.arange(8) % 4, torch.arange(8))
        meta = Batch(rows[8:], torch.arange(6) % 4, torch.arange(6))
        losses = [method.loss(model, {"main": main, "meta": meta}, step).loss.item() for _ in range(2)]
        return found[-1], losses[-1]

    return measured


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.03)


def adamw(weights):
    return torch.optim.AdamW(weights, lr=1e-3)


@pytest.mark.parametrize("wrap", [False, True])
def test_the_step_ahead_under_sgd_has_the_current_rate(rate, wrap):
    found, loss = rate(sgd, wrap)
    wanted, same = rate(sgd, virtual_lr=0.03)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert loss == same


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("optimizer", [adamw, torch.optim.Adam])
def test_the_step_ahead_under_adam_has_a_rate_that_matters(rate, optimizer, wrap):
    """With the learning rate of AdamW in a step of plain SGD the correction would be a hundredth of this."""
    found, loss = rate(optimizer, wrap)
    wanted, same = rate(optimizer, virtual_lr=0.1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert loss == same
    vanishing, other = rate(optimizer, virtual_lr=1e-3)
    assert found.norm() > 50 * vanishing.norm()
    assert not math.isclose(loss, other, rel_tol=1e-9)


def test_a_given_rate_is_taken_under_any_optimiser(rate):
    torch.testing.assert_close(rate(sgd, virtual_lr=0.2)[0], rate(adamw, virtual_lr=0.2)[0], rtol=0, atol=0)


@pytest.mark.parametrize("training", [False, True])
def test_a_frozen_backbone_takes_the_meta_batch_in_pieces(training, monkeypatch):
    """With the same features as at once. One that trains has batch norm to think of, and takes it together."""
    monkeypatch.setattr(look_ahead, "PIECE", 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    net, images = CifarResNet(20).train(training), torch.randn(10, 3, 32, 32)
    sizes = []
    net.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    still = Still(net, torch.zeros(1, 64), torch.zeros(1, 3))
    found = still.meta(images)
    assert sizes == ([10] if training else [4, 4, 2]), sizes
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(found, net(images))


@pytest.mark.parametrize(
    ("counts", "asked", "said"),
    [((500, 50, 2), 10, "2 to 10 images"), ((500, 50, 10), 10, "10 images"), ((8, 5, 2), 10, "2 to 8 images"),
     ((7, 7, 7), 10, "7 images"), ((9, 3, 1), 1, "1 image")],
)  # fmt: skip
def test_the_results_say_how_many_meta_images_there_really_are(make, counts, asked, said):
    found = make("metasaug", counts=counts, meta_per_class=asked).disclosures()
    assert found == {"meta_data": f"{said} of each class of the training set, also trained on"}


@pytest.mark.parametrize("source", ["train", "val"])
def test_no_number_is_said_where_none_is_known(make, source):
    (said,) = make("metasaug", meta_data=source).disclosures().values()
    assert not any(letter.isdigit() for letter in said)
