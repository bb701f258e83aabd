"""The average of the weights is torch's, step by step, and goes on where a saved one stopped."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training.runs import TinyNorm

from spectail.models.classifier import Classifier
from spectail.training.average import WeightAverage


def moving(steps):
    """A model whose weights and running statistics change."""
    torch.manual_seed(3)
    model = Classifier(TinyNorm(), nn.Linear(24, 4))
    for _ in range(steps):
        model(torch.randn(8, 3, 32, 32))
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        yield model


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def test_a_mean_is_that_of_torch():
    device, average, expected = torch.device("cpu"), None, None
    for model in moving(4):
        average = average or WeightAverage(model, device, None)
        expected = expected or AveragedModel(model, device, use_buffers=True)
        assert average.begun == (average.n_averaged > 0)
        average.update(model)
        expected.update_parameters(model)
    for name, value in expected.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(average.state_dict()[name], value, msg=name)


def test_it_is_that_of_torch_and_can_be_resumed():
    device, expected, average = torch.device("cpu"), None, None
    for step, model in enumerate(moving(6)):
        if average is None:
            average = WeightAverage(model, device, 0.7)
            expected = AveragedModel(model, device, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=True)
        if step == 3:
            saved, average = average.state_dict(), WeightAverage(model, device, 0.7)
            average.load_state_dict(saved)
        average.update(model)
        expected.update_parameters(model)
        assert_equal(average.state_dict(), expected.state_dict())
