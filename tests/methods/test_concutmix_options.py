"""Options of ConCutMix that follow the mode or the number of classes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training.runs import settings

from spectail.augment.rectify import rectify
from spectail.data.batch import Batch
from spectail.methods import concutmix as module
from spectail.training.loop import train

COUNTS = (60, 20, 5, 2)


def stepped(make, at, counts=COUNTS, epoch=0, **options):
    """One step of the lite mode on pasted images."""
    torch.manual_seed(0)
    method = make("concutmix", counts=counts, mode="lite", probability=1.0, **options)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 6, 7))
    model = method.build(backbone, method.make_head("cosine", 7))
    rng = torch.Generator().manual_seed(1)
    batches = {
        name: Batch(torch.rand(6, 3, 8, 6, generator=rng), torch.randint(len(counts), (6,), generator=rng), None)
        for name in ("main", "foreground")
    }
    return method.loss(model, batches, at(epoch, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(("tau", "used"), [(None, 0.0), (0.0, 0.0), (0.9, 0.9), (1.0, 1.0)])
def test_tau_counts_in_the_lite_mode(make, at, tau, used):
    outcome = stepped(make, at, tau=tau)
    prior = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    logits = outcome.logits.detach().double() + used * prior.log()
    wanted = -(outcome.target.dense(4).double() * logits.log_softmax(1)).sum(1).mean()
    assert outcome.loss.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_tau_by_default(make):
    assert make("concutmix").tau == make("concutmix").criterion.tau == 0.9
    assert make("concutmix", mode="lite").tau == 0


OTHERS = {"class_weight": 1.0, "contrast_weight": 0.3, "temperature": 0.2, "width": 64, "projection_norm": "layer"}
DEFAULTS = {"class_weight": 2.0, "contrast_weight": 0.6, "temperature": 0.1, "width": 128, "projection_norm": "batch"}


@pytest.mark.parametrize("name", OTHERS)
def test_options_of_the_contrastive_loss_are_refused_in_the_lite_mode(make, tmp_path, name):
    words = f"^--{name.replace('_', '-')} belongs to --mode full, as the recipes do; leave it out in lite.$"
    with pytest.raises(ValueError, match=words):
        make("concutmix", mode="lite", **{name: OTHERS[name]})
    make("concutmix", mode="full", **{name: OTHERS[name]})
    make("concutmix", mode="lite", **{name: DEFAULTS[name]})
    with pytest.raises(ValueError, match=words):
        train(settings(tmp_path / "run", method="concutmix", options={"mode": "lite", name: OTHERS[name]}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("classes", "top"), [(4, 3), (10, 3), (11, 30), (100, 30)])
def test_classes_that_a_label_leans_to_follow_their_number(make, at, monkeypatch, classes, top):
    heard = []
    monkeypatch.setattr(module, "rectify", lambda *arguments: (heard.append(arguments[4]), rectify(*arguments))[1])
    counts = [int(500 * 0.9**c) + 1 for c in range(classes)]
    for given in (None, 7):
        outcome = stepped(make, at, counts, epoch=150, omega=1.0, top=given)
        assert torch.isfinite(outcome.loss)
        assert not torch.isclose(outcome.loss, F.cross_entropy(outcome.logits, outcome.target.dense(classes)))
    assert heard == [top, 7]
