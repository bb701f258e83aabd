"""CAR on mixed images: where it pulls the optimum of cross entropy, and what it is shown by ReMix, CMO and ConCutMix.

The matrices of the worked example (O3) and their norms are in tests/test_functional.py; here CAR itself gives them.
"""

import copy
import math
from dataclasses import replace

import oracle
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training.runs import TINY, settings

from spectail import CAR, ClassCounts, MixedTarget
from spectail.data.batch import Batch
from spectail.methods import METHODS, Stage, Step
from spectail.models.build import MODELS
from spectail.training.car_term import CARTerm
from spectail.training.loop import train

O3_LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
COUNTS = (90, 20, 4)
MIXING = ["remix", "cmo", "concutmix"]


# numbers of CAR


def o3(lam):
    return MixedTarget(torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor(lam, dtype=torch.float64))


@pytest.mark.parametrize(
    ("lam", "mixed", "plain", "weighted"),
    [
        ([0.75, 0.5], "soft", 0.39859, 0.43088),
        ([0.75, 0.5], "masked", 0.01075, 0.00984),
        ([1.0, 1.0], "masked", 0.06803, None),
        ([1.0, 1.0], "soft", 0.06803, None),
        ([0.75, 0.5], "dominant", 0.06803, None),
    ],
)
@pytest.mark.parametrize("gate_grad", [True, False])
def test_car_gives_the_numbers_of_the_worked_example(lam, mixed, plain, weighted, gate_grad):
    options = {"beta": 0.0, "mixed": mixed, "gate_grad": gate_grad}
    assert CAR([80, 15, 5], weighting=None, **options)(O3_LOGITS, o3(lam)).item() == pytest.approx(plain, abs=1e-5)
    car = CAR([80, 15, 5], normalize_weights=True, **options)
    torch.testing.assert_close(car.weights.tolist(), [0.63962, 1.08115, 1.27923], atol=1e-5, rtol=0)
    value = car(O3_LOGITS, o3(lam)).item()
    if weighted is not None:
        assert value == pytest.approx(weighted, abs=1e-5)
    slow = oracle.SlowCAR([80, 15, 5], beta=0.0, mixed=mixed, normalize_weights=True)(O3_LOGITS, o3(lam))
    assert value == pytest.approx(slow.item(), rel=1e-6)


def optimum(alpha, mixed, gate_grad, lam=0.6):
    """p_a where the gradient of mixed cross entropy + alpha * CAR turns, three other classes being out of question."""
    car = CAR([1] * 5, beta=0.0, weighting=None, mixed=mixed, gate_grad=gate_grad)
    target = MixedTarget(torch.tensor([0]), torch.tensor([1]), lam)
    low, high = -3.0, 3.0
    for _ in range(40):
        lead = (low + high) / 2
        logits = torch.tensor([[lead, 0.0, -40.0, -40.0, -40.0]], dtype=torch.float64, requires_grad=True)
        loss = (
            -lam * logits.log_softmax(1)[0, 0] - (1 - lam) * logits.log_softmax(1)[0, 1] + alpha * car(logits, target)
        )
        (gradient,) = torch.autograd.grad(loss, logits)
        low, high = (low, lead) if gradient[0, 0] > 0 else (lead, high)
    return 1 / (1 + math.exp(-lead))


@pytest.mark.parametrize(
    ("gate_grad", "alpha", "soft", "dominant"),
    [(False, 0.3, 0.583, 0.626), (False, 1.0, 0.551, 0.672), (True, 0.3, 0.567, 0.648), (True, 1.0, 0.551, 0.716)],
)
def test_where_the_optimum_of_one_mixed_image_lies(gate_grad, alpha, soft, dominant):
    """Only with the co-label masked does it stay at the share of the label."""
    assert optimum(alpha, "soft", gate_grad) == pytest.approx(soft, abs=1e-3)
    assert optimum(alpha, "dominant", gate_grad) == pytest.approx(dominant, abs=1e-3)
    assert optimum(alpha, "masked", gate_grad) == pytest.approx(0.6, abs=1e-6)
    assert optimum(alpha, "clean", gate_grad) == pytest.approx(0.6, abs=1e-6)  # it has nothing to say here
    assert optimum(0.0, "soft", gate_grad) == pytest.approx(0.6, abs=1e-6)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_a_forced_label_is_not_masked(lam):
    """The label that gave way is an error like any other."""
    logits = torch.tensor([[1.0, 1.5, 0.0]])
    found = CAR(COUNTS, beta=0.0)(logits, MixedTarget(torch.tensor([0]), torch.tensor([1]), lam))
    hard = CAR(COUNTS, beta=0.0)(logits, torch.tensor([0 if lam else 1]))
    torch.testing.assert_close(found, hard)
    assert found > CAR(COUNTS, beta=0.0)(logits, MixedTarget(torch.tensor([0]), torch.tensor([1]), 0.5))


# what the methods show it


class Recorded(nn.Module):
    """Keeps the images that it was shown."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(3 * 8 * 6, 5), []

    def forward(self, images):
        self.seen.append(images.detach())
        return self.layer(images.flatten(1))


def made(name, **options):
    torch.manual_seed(0)
    kind = METHODS[name].load()
    method = kind(ClassCounts(COUNTS), replace(kind.options, **options), epochs=200)
    model = method.build(Recorded(), method.make_head(method.head or "linear", 5))
    return method.train(), model.train()


def batches(name, size=12):
    rng = torch.Generator().manual_seed(0)

    def batch(views):
        images = tuple(torch.rand(size, 3, 8, 6, generator=rng) for _ in range(views))
        labels = torch.randint(3, (size,), generator=rng)
        return Batch(images if name == "concutmix" else images[0], labels, torch.arange(size))

    return {"main": batch(3)} | ({"foreground": batch(1)} if name != "remix" else {})


def one_step(name, method, model, epoch=100, seed=0):
    step = Step(Stage(), epoch, 200, generator=torch.Generator().manual_seed(seed))
    method.begin_epoch(step)
    return method.loss(model, batches(name), step)


BASES = [
    (name, {"base_loss": base}) for name in ("remix", "cmo") for base in ("ce", "ldam", "balanced-softmax", "focal")
]


@pytest.mark.parametrize(
    ("name", "options"), [*BASES, ("remix", {"mix": "cutmix"}), ("concutmix", {}), ("concutmix", {"mode": "lite"})]
)
@pytest.mark.parametrize("epoch", [0, 100, 199])
def test_logits_are_those_of_inference_on_the_images_that_were_used(name, options, epoch):
    """No margin, no prior, no temperature: what the model itself says."""
    method, model = made(name, **options)
    outcome = one_step(name, method, model, epoch)
    used = model.backbone.seen[0][:12]
    with torch.no_grad():
        found, exact = method.inference(model)(used), method.inference(copy.deepcopy(model).double())(used.double())
    # ConCutMix shows three views at once, and a product of more rows may round differently: sums of 144 terms each,
    # and cosines times 30.
    near = {"rtol": 0, "atol": 30 * 144 * torch.finfo(torch.float32).eps}
    torch.testing.assert_close(outcome.logits.detach(), found, **near)
    torch.testing.assert_close(found.double(), exact, **near)


def shares_by_hand(first, second, lam, kappa=3, tau=0.5):
    found = []
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        forced = (0.0 if COUNTS[a] >= kappa * COUNTS[b] and lam < tau else None,
                  1.0 if kappa * COUNTS[a] <= COUNTS[b] and 1 - lam < tau else None)  # fmt: skip
        found.append(next((value for value in forced if value is not None), lam))
    return torch.tensor(found)


@pytest.mark.parametrize("seed", range(6))
def test_remix_gives_the_label_factor_and_not_the_share_of_the_image(seed):
    """Image k is white at pixel k and black elsewhere, so that a mix tells its two images and their shares."""
    method, model = made("remix")
    images = torch.eye(12, 3 * 8 * 6).view(12, 3, 8, 6)
    labels = batches("remix")["main"].labels
    step = Step(Stage(), 0, 200, generator=torch.Generator().manual_seed(seed))
    outcome = method.loss(model, {"main": Batch(images, labels, torch.arange(12))}, step)
    pixels = model.backbone.seen[0].flatten(1)[:, :12]
    own = pixels.diagonal()
    partner = (pixels - own.diag()).argmax(1).where(own < 1, torch.arange(12))
    lam = float(own.min())
    assert sorted(partner.tolist()) == list(range(12))
    assert torch.equal(outcome.target.a, labels)
    assert torch.equal(outcome.target.b, labels[partner])
    torch.testing.assert_close(outcome.target.share, shares_by_hand(labels, labels[partner], lam))
    assert ((outcome.target.share == 0) | (outcome.target.share == 1)).any()  # some label was forced
    wanted = F.cross_entropy(outcome.logits, outcome.target.dense(3))
    torch.testing.assert_close(outcome.loss, wanted)


@pytest.mark.parametrize("name", ["cmo", "concutmix", "remix"])
@pytest.mark.parametrize("seed", range(4))
def test_pasted_images_give_the_area_that_was_left(name, seed):
    options = {"mix": "cutmix", "tau": 0.0} if name == "remix" else {"probability": 1.0}
    method, model = made(name, **options)
    outcome = one_step(name, method, model, seed=seed)
    images = batches(name)["main"].images
    before = images[0] if name == "concutmix" else images
    kept = (model.backbone.seen[0][:12] == before).all(1).flatten(1).float().mean(1)
    moved = kept < 1  # a partner of ReMix may be the image itself
    torch.testing.assert_close(outcome.target.share[moved], kept[moved])
    assert name == "remix" or moved.all() or float(outcome.target.share[0]) == 1.0


@pytest.mark.parametrize("name", ["remix", "cmo"])
def test_class_weights_change_the_loss_and_not_what_car_sees(name):
    found = {}
    for defer in ("none", "reweight"):
        method, model = made(name, defer=defer, defer_at=0.5, **({"probability": 1.0} if name == "cmo" else {}))
        outcome = one_step(name, method, model, epoch=150)
        found[defer] = outcome, CAR(COUNTS)(outcome.logits, outcome.target)
    (plain, before), (weighted, after) = found["none"], found["reweight"]
    assert torch.equal(before, after)
    assert torch.equal(plain.logits, weighted.logits)
    assert not torch.isclose(plain.loss, weighted.loss)


def test_rectified_labels_are_for_cross_entropy_only():
    """CAR gets the two labels and the area, so that it can mask; the small rectified mass is left out."""
    outcomes = []
    for omega in (0.0, 1.0):
        method, model = made("concutmix", probability=1.0, omega=omega)
        outcomes.append(one_step("concutmix", method, model, epoch=150))
    (plain, rectified) = outcomes
    assert not torch.isclose(plain.loss, rectified.loss)
    assert torch.equal(plain.target.dense(3), rectified.target.dense(3))
    assert torch.equal(plain.logits, rectified.logits)


# in the engine


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "cache"))
    for name, entry in TINY.items():
        monkeypatch.setitem(MODELS, name, entry)


@pytest.mark.parametrize("name", MIXING)
def test_the_history_is_that_of_the_training_steps_and_of_nothing_else(name, engine, tmp_path, monkeypatch):
    """Validation, diagnostics, evaluation and the foreground images by themselves leave it alone."""
    seen, plain, cars = [], CARTerm.forward, set()

    def kept(self, outcome, step):
        seen.append((outcome.logits.detach().clone(), outcome.target))
        cars.add(self.car)
        return plain(self, outcome, step)

    monkeypatch.setattr(CARTerm, "forward", kept)
    changes = {"data__val_fraction": 0.2, "select_on": "val", "log_gradient": True, "log_cm_gap": True}
    train(settings(tmp_path / "run", method=name, car__enabled=True, **changes))
    (car,) = cars
    slow = oracle.SlowCAR([1] * 6)  # counts weigh the norm, not the history
    for logits, target in seen:
        slow(logits, target)
    mixed = [isinstance(target, MixedTarget) for _, target in seen]
    assert all(mixed) if name == "remix" else any(mixed) and not all(mixed)
    torch.testing.assert_close(car.confusion.double(), slow.confusion, atol=1e-6, rtol=1e-4)
    assert slow.confusion.max() > 1e-3
