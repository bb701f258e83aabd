"""Heads beyond the linear one: cosine, scaled, and two heads averaged."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spectail.models.heads import CosineHead, EnsembleHead, ScaledHead, make_head


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def cosine_by_hand(features, weight, scale):
    rows = []
    for x in features.tolist():
        length = math.sqrt(sum(value * value for value in x))
        row = []
        for w in weight.tolist():
            norm = math.sqrt(sum(value * value for value in w))
            row.append(scale * sum(a * b for a, b in zip(x, w, strict=True)) / (length * norm))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


# cosine


def test_cosines_of_the_worked_example():
    head = CosineHead(2, 3, scale=1.0)
    head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    found = head(torch.tensor([[3.0, 4.0]]))[0].tolist()
    torch.testing.assert_close(found, [0.6, 0.8, 0.14142], atol=2e-5, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_cosine_head_against_a_loop(scale):
    head = CosineHead(5, 4, scale).double()
    features = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(head(features), cosine_by_hand(features, head.weight.detach(), scale))
    assert head(features).dtype == torch.float64
    assert head(features).abs().max() <= scale * (1 + 1e-12)


def test_lengths_do_not_matter_to_cosines():
    head, other = CosineHead(5, 4), CosineHead(5, 4)
    other.weight.data = head.weight.data * torch.tensor([[0.1], [1.0], [7.0], [50.0]])
    features = torch.randn(6, 5)
    torch.testing.assert_close(other(100 * features), head(features), rtol=1e-4, atol=1e-4)


def test_class_vectors_begin_with_length_one_in_all_directions():
    head = CosineHead(16, 3000)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(3000))
    assert head.weight.mean().abs() < 0.01
    assert abs(head.weight.var() - 1 / 16) < 1e-3
    before = head.weight.detach().clone()
    head.reset_parameters()
    assert not torch.equal(head.weight, before)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(3000))


def test_a_zero_feature_gives_zero_logits_and_finite_gradients():
    head = CosineHead(4, 3)
    features = torch.zeros(2, 4, requires_grad=True)
    logits = head(features)
    assert not logits.any()
    F.cross_entropy(logits, torch.tensor([0, 2])).backward()
    assert features.grad.isfinite().all()
    assert head.weight.grad.isfinite().all()


def test_cosine_head_keeps_full_precision_under_autocast():
    head = CosineHead(64, 10)
    features = torch.randn(8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found = head(features)
    assert found.dtype == torch.float32
    assert torch.equal(found, head(features))


def test_heads_by_name():
    assert isinstance(make_head("linear", 3, 2), nn.Linear)
    cosine = make_head("cosine", 3, 2)
    assert (type(cosine), cosine.scale, cosine.weight.shape) == (CosineHead, 30.0, (2, 3))
    with pytest.raises(ValueError, match="'linear', 'cosine'; got 'mlp'"):
        make_head("mlp", 3, 2)


# scaled


def test_scaled_head_multiplies_logits_of_a_class():
    head = ScaledHead(4, 3)
    features = torch.randn(5, 4)
    plain = features @ head.weight.T + head.bias
    torch.testing.assert_close(head(features), plain)  # factors begin at one
    assert not head.scales.requires_grad  # until the second stage says so
    head.scales.data = torch.tensor([2.0, 1.0, -0.5])
    torch.testing.assert_close(head(features), plain * torch.tensor([2.0, 1.0, -0.5]))
    assert {name for name, _ in head.named_parameters()} == {"weight", "bias", "scales"}


# two heads


def ensemble(share, shift=(0.0, 0.0, 0.0)):
    return EnsembleHead(4, 3, share, torch.tensor(shift))


def test_before_an_old_head_is_kept_only_the_new_one_counts():
    head, features = ensemble(0.5, (1.0, 0.0, 0.0)), torch.randn(5, 4)
    torch.testing.assert_close(head(features), features @ head.weight.T + head.bias)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_probabilities_are_averaged(share):
    shift = torch.tensor([0.2, 1.6, 3.0])
    head, features = ensemble(share, shift.tolist()), torch.randn(5, 4)
    old_weight, old_bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.keep()
    nn.Linear.reset_parameters(head)
    old = (features @ old_weight.T + old_bias + shift).softmax(1)
    new = (features @ head.weight.T + head.bias).softmax(1)
    assert not torch.allclose(old, new)
    torch.testing.assert_close(head(features).softmax(1), share * old + (1 - share) * new)
    torch.testing.assert_close(head(features).exp().sum(1), torch.ones(5))  # log-probabilities
    torch.testing.assert_close(head.new(features), features @ head.weight.T + head.bias)


def test_no_share_is_the_new_head_alone():
    head, features = ensemble(0.0), torch.randn(5, 4)
    head.keep()
    nn.Linear.reset_parameters(head)
    assert torch.equal(head(features), head.new(features))


def test_the_old_head_is_saved_and_never_trained():
    head, features = ensemble(0.5), torch.randn(5, 4)
    head.keep()
    assert {name for name, _ in head.named_parameters()} == {"weight", "bias"}
    old = head.old_weight.clone()
    optimizer = torch.optim.SGD(head.parameters(), 0.5)
    F.cross_entropy(head(features), torch.tensor([0, 1, 2, 0, 1])).backward()
    optimizer.step()
    assert torch.equal(head.old_weight, old)
    assert not torch.equal(head.weight, old)
    other = ensemble(0.5)
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other(features), head(features))


def test_two_heads_are_finite_where_probabilities_vanish():
    head = ensemble(0.5)
    head.keep()
    head.weight.data.mul_(1e4)
    features = torch.randn(5, 4, requires_grad=True)
    logits = head(features)
    assert logits.isfinite().all()
    F.cross_entropy(logits, torch.tensor([0, 1, 2, 0, 1])).backward()
    assert features.grad.isfinite().all()
