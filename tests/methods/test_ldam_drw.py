"""LDAM-DRW: margins on the cosines of its head, and class weights from 80 % of the epochs on."""

import math

import pytest
import torch
from safetensors.torch import load_file
from training.runs import metrics, predictions, results, settings

from spectail.data.batch import Batch
from spectail.losses.ldam import margins
from spectail.models.heads import CosineHead
from spectail.training.loop import train

COUNTS = (100, 20, 5)
WEIGHTS = [0.11590, 0.57717, 2.30694]  # beta .9999
COSINES = torch.tensor(
    [[0.6, 0.1, -0.2], [0.3, 0.5, 0.0], [0.4, 0.2, 0.35], [0.1, 0.2, 0.3]], dtype=torch.float64
)  # fmt: skip
LABELS = torch.tensor([0, 1, 2, 2])


def cifar_counts(imbalance=100, largest=500, classes=100):
    return [int(largest * (1 / imbalance) ** (c / (classes - 1))) for c in range(classes)]


class Given(torch.nn.Module):
    """A model whose logits are scale times given cosines."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, cosines):
        return self.scale * cosines


def batch(cosines=COSINES, labels=LABELS):
    return {"main": Batch(cosines, labels, torch.arange(len(labels)))}


def test_margins_of_the_paper():
    torch.testing.assert_close(margins(COUNTS).tolist(), [0.23644, 0.35355, 0.5], atol=2e-5, rtol=0)
    found = margins(cifar_counts())
    torch.testing.assert_close(found[[0, 50, 99]].tolist(), [0.15811, 0.28405, 0.5], atol=2e-5, rtol=0)


@pytest.mark.parametrize(("max_margin", "ratio"), [(0.5, 1.0), (0.3, 0.6)])
def test_the_method_uses_the_margin_it_was_told(make, max_margin, ratio):
    found = make("ldam-drw", max_margin=max_margin).criterion.margin
    torch.testing.assert_close((found / ratio).tolist(), [0.23644, 0.35355, 0.5], atol=2e-5, rtol=0)


@pytest.mark.parametrize(("scale", "wanted"), [(30.0, 8.29202), (10.0, 2.95008)])
def test_loss_before_the_switch(make, at, scale, wanted):
    """The head gives scale * cosine, the loss must work on the cosines."""
    method, step = make("ldam-drw", scale=scale), at(0)
    method.begin_epoch(step)
    outcome = method.loss(Given(scale), batch(), step)
    assert outcome.loss.item() == pytest.approx(wanted, abs=2e-5)
    torch.testing.assert_close(outcome.logits, scale * COSINES)  # no margin in what inference and CAR see
    assert torch.equal(outcome.target, LABELS)


def test_weights_switch_on_at_epoch_160_of_200(make, at):
    method = make("ldam-drw")
    found = {}
    for epoch in (0, 159, 160, 199, 12):  # backwards too: a resumed run derives the phase from the epoch
        method.begin_epoch(at(epoch))
        weight = method.criterion.class_weights()
        found[epoch] = [1.0] * 3 if weight is None else weight.tolist()
    assert found[0] == found[159] == found[12] == [1.0] * 3
    torch.testing.assert_close(found[160], WEIGHTS, atol=2e-5, rtol=0)
    assert found[160] == found[199]
    assert [method.phase(at(epoch)) for epoch in (0, 159, 160, 199)] == ["train"] * 2 + ["reweighted"] * 2


def test_loss_after_the_switch_is_torchs_weighted_mean(make, at):
    method, step = make("ldam-drw"), at(160)
    method.begin_epoch(step)
    assert method.loss(Given(30.0), batch(), step).loss.item() == pytest.approx(12.91332, abs=5e-5)


def test_ldam_alone_never_switches(make, at):
    method = make("ldam-drw", defer="none")
    method.begin_epoch(at(199))
    assert method.criterion.class_weights() is None
    assert method.phase(at(199)) == "train"


def test_uniform_counts_have_equal_margins_and_weights(make, at):
    method = make("ldam-drw", counts=(7, 7, 7))
    method.begin_epoch(at(199))
    torch.testing.assert_close(method.criterion.margin.tolist(), [0.5] * 3)
    torch.testing.assert_close(method.criterion.class_weights().tolist(), [1.0] * 3)


def test_the_head_is_the_paper_s(make):
    head = make("ldam-drw", scale=7.0).make_head("cosine", 2)
    assert isinstance(head, CosineHead)
    assert not [name for name, _ in head.named_parameters() if "bias" in name]
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]))
    logits = head(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(logits[0].tolist(), [7 * 0.6, 7 * 0.8, 7 * 0.14142], atol=1e-4, rtol=0)


def test_a_run_goes_through_both_phases_and_predicts_scaled_cosines(tmp_path):
    train(settings(tmp_path / "run", method="ldam-drw", optim__epochs=5, options={"scale": 12.0}))
    assert results(tmp_path / "run")["phases"] == {"train": 20, "reweighted": 5}
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert "head.bias" not in weights
    logits = predictions(tmp_path / "run")["logits"]
    assert abs(logits).max() <= 12.0 + 1e-4
    assert abs(logits).max() > 1.5  # scaled, not bare cosines


def test_the_run_is_the_same_as_without_drw_until_the_switch(tmp_path):
    train(settings(tmp_path / "drw", method="ldam-drw", optim__epochs=5))
    train(settings(tmp_path / "plain", method="ldam-drw", optim__epochs=5, options={"defer": "none"}))
    drw, plain = metrics(tmp_path / "drw"), metrics(tmp_path / "plain")
    assert drw[:4] == plain[:4]
    assert drw[4]["loss"] != plain[4]["loss"]


def test_the_first_weighted_step_by_hand(make, at):
    """Zero features: all cosines are 0, so the loss of label y is log(1 + (K - 1) exp(scale m_y))."""
    method, step = make("ldam-drw", scale=4.0), at(160)
    method.begin_epoch(step)
    margin = [0.5 * (n / 5) ** -0.25 for n in COUNTS]
    cost = [math.log1p(2 * math.exp(4 * m)) for m in margin]
    wanted = sum(WEIGHTS[y] * cost[y] for y in LABELS.tolist()) / sum(WEIGHTS[y] for y in LABELS.tolist())
    found = method.loss(Given(4.0), batch(torch.zeros(4, 3, dtype=torch.float64)), step).loss
    assert found.item() == pytest.approx(wanted, abs=1e-4)


def test_a_linear_head_is_refused(tmp_path):
    with pytest.raises(ValueError, match="ldam-drw needs a cosine head; got --head linear"):
        train(settings(tmp_path / "run", method="ldam-drw", model__head="linear"))
    assert not (tmp_path / "run").exists()
