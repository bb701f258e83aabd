"""Which networks the bound takes, and that folding biases changes no output."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from spectail.theory import read_network


def mlp(*sizes, bias=True):
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def outputs(model, features):
    network = read_network(model)
    network.check(features)
    return network, network.logits(network.inputs(features))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(5, 3), (5, 7, 3), (5, 4, 9, 2)])
def test_the_function_stays_the_same(sizes, bias):
    torch.manual_seed(0)
    model, features = mlp(*sizes, bias=bias).double(), torch.randn(11, 5).double()
    network, found = outputs(model, features)
    torch.testing.assert_close(found, model(features), rtol=0, atol=1e-13)
    assert network.folded == bias
    assert network.width == max(*(size + bias for size in sizes[:-1]), sizes[-1])
    assert all(matrix.dtype == torch.float64 for matrix in network.matrices)


def test_a_single_bias_is_folded_through_all_layers():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)
    )
    features = torch.randn(9, 4).double()
    network, found = outputs(model.double(), features)
    torch.testing.assert_close(found, model(features), rtol=0, atol=1e-13)
    assert [tuple(matrix.shape) for matrix in network.matrices] == [(7, 5), (6, 7), (3, 6)]


def test_images_nested_parts_and_plain_linear_models():
    torch.manual_seed(0)
    images = torch.randn(4, 3, 2, 2).double()
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(12, 8), nn.ReLU()), nn.Linear(8, 3)).double()
    torch.testing.assert_close(outputs(model, images)[1], model(images), rtol=0, atol=1e-13)
    linear = nn.Linear(6, 2).double()
    features = torch.randn(4, 6).double()
    torch.testing.assert_close(outputs(linear, features)[1], linear(features), rtol=0, atol=1e-13)


def test_the_model_is_not_touched():
    model = mlp(4, 5, 3).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    network, found = outputs(model, torch.randn(6, 4))
    network.matrices[0].zero_()
    assert model.training
    assert not found.requires_grad
    assert all(
        value.dtype == torch.float32 and torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), "layer 1 here is Tanh"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)), "layer 0 here is Conv2d"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), "layer 1 here is BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), "layer 1 here is Linear"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)), "layer 2 here is Flatten"),
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), "ends with ReLU"),
        (nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)), "layer 1 here is ReLU"),
        (nn.Sequential(), "has no layer"),
        (nn.Sequential(nn.Flatten()), "has no layer"),
        (nn.TransformerEncoderLayer(8, 2), "layer 0 here is TransformerEncoderLayer"),
        (Doubled(4, 2), "layer 0 here is Doubled"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), "start_dim=1"),
    ],
)
def test_others_are_refused_in_one_sentence(model, words):
    with pytest.raises(TypeError, match=words) as caught:
        read_network(model)
    assert words == "start_dim=1" or "nn.Linear layers with one nn.ReLU between each two" in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_weights_that_cannot_be_bounded_are_refused():
    model = mlp(4, 4, 2, bias=False)
    with torch.no_grad():
        model[2].weight.zero_()
    with pytest.raises(ValueError, match="linear layer 1 is all zero"):
        read_network(model)
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="linear layer 1 has weights that are NaN"):
        read_network(model)
    with pytest.raises(ValueError, match="gives 5 numbers and the next one takes 4"):
        read_network(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(4, 2)))


def test_samples_that_do_not_fit_are_refused():
    network = read_network(mlp(4, 5, 3))
    with pytest.raises(ValueError, match="takes 4 numbers per sample; features of shape \\(6, 5\\) have 5"):
        network.check(torch.randn(6, 5))
    with pytest.raises(ValueError, match="no nn.Flatten"):
        network.check(torch.randn(6, 1, 2, 2))
    with pytest.raises(TypeError, match="floating-point tensor"):
        network.check(torch.zeros(6, 4, dtype=torch.uint8))
    with pytest.raises(TypeError, match="floating-point tensor, one sample per row; got list"):
        network.check([[0.0] * 4])
