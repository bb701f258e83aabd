"""Optimisers and rates against the formulas, worked out by hand."""

import pytest
import torch
from torch import nn

from spectail import ClassCounts
from spectail.methods.registry import METHODS
from spectail.training.config import OptimConfig
from spectail.training.optim import make_optimizer, rate


def sgd_by_hand(start, gradients, lr, momentum, decay, nesterov):
    """v <- m v + g + d w; w <- w - lr v, or with Nesterov w <- w - lr (g + d w + m v)."""
    weight, velocity, path = start, None, []
    for gradient in gradients:
        slope = gradient + decay * weight
        velocity = slope if velocity is None else momentum * velocity + slope
        weight -= lr * (slope + momentum * velocity if nesterov else velocity)
        path.append(weight)
    return path


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov):
    module = nn.Linear(1, 1, bias=False).double()
    module.weight.data.fill_(1.0)
    optim = OptimConfig(optimizer="sgd", lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=nesterov)
    optimizer, found = make_optimizer(module, optim), []
    for gradient in (0.5, 0.5, -0.2):
        module.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        optimizer.step()
        found.append(module.weight.item())
    assert found == pytest.approx(sgd_by_hand(1.0, (0.5, 0.5, -0.2), 0.01, 0.9, 0.1, nesterov), abs=1e-12)


@pytest.mark.parametrize("start", [0.0, 0.25, 1.0])
def test_warm_up_rises_in_a_line_from_its_start(start):
    optim = OptimConfig(schedule="constant", warmup_epochs=2.0, warmup_start=start)
    found = [rate(optim, step, 40, 4) for step in range(10)]
    assert found[:8] == pytest.approx([start + (1 - start) * (step + 1) / 8 for step in range(8)])
    assert found[8:] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["crt", "lws", "wb", "gml", "los"])
def test_second_stages_keep_plain_momentum(name):
    """The look ahead of Meta Sampler knows plain momentum only, and no authors' second stage has another."""
    kind = METHODS[name].load()
    second = kind(ClassCounts([9, 4, 2]), kind.options, epochs=10).stages()[1]
    assert second.optim["nesterov"] is False
