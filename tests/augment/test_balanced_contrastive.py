"""The balanced contrastive loss against a slow loop, with gradients, absent classes and extreme similarities."""

import math

import pytest
import torch
import torch.nn.functional as F

from spectail.augment.balanced_contrastive import balanced_contrastive

VIEWS = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.0, 1.0]]
EMBEDDINGS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]


def slow(views, labels, embeddings, temperature):
    """Anchor by anchor and candidate by candidate."""
    candidates = [(view, int(label)) for view, label in zip(views, labels, strict=True)]
    candidates += [(vector, label) for label, vector in enumerate(embeddings)]
    total = 0
    for i, (anchor, own) in enumerate(candidates[: len(views)]):
        others = [(vector @ anchor / temperature, label) for k, (vector, label) in enumerate(candidates) if k != i]
        denominator = 0
        for similarity, label in others:
            members = sum(other == label for _, other in candidates) - (label == own)
            denominator = denominator + similarity.exp() / members
        positives = [similarity for similarity, label in others if label == own]
        total = total + denominator.log() - sum(positives) / len(positives)
    return total / len(views)


def batch(images, classes, width=5, seed=0, kind=torch.float64, present=None):
    rng = torch.Generator().manual_seed(seed)
    views = F.normalize(torch.randn(2 * images, width, generator=rng, dtype=kind), dim=1)
    embeddings = F.normalize(torch.randn(classes, width, generator=rng, dtype=kind), dim=1)
    return views, torch.randint(present or classes, (images,), generator=rng).repeat(2), embeddings


@pytest.mark.parametrize(("temperature", "wanted"), [(0.5, 0.49019), (0.1, 0.88510)])
def test_worked_example(temperature, wanted):
    views, embeddings = torch.tensor(VIEWS, dtype=torch.float64), torch.tensor(EMBEDDINGS, dtype=torch.float64)
    found = balanced_contrastive(views, torch.tensor([0, 1, 0, 1]), embeddings, temperature)
    assert found.item() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("images", "classes", "present"), [(6, 3, None), (5, 9, 3), (1, 2, None), (1, 4, 1), (12, 2, 1)]
)
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_it_is_the_slow_loop(images, classes, present, temperature):
    views, labels, embeddings = batch(images, classes, present=present)
    found = balanced_contrastive(views, labels, embeddings, temperature)
    torch.testing.assert_close(found, slow(views, labels, embeddings, temperature))


def test_a_class_absent_from_the_batch_is_there_through_its_embedding():
    """It pushes like any other class, as one candidate: the closer to the images, the larger the loss."""
    views, labels, embeddings = batch(4, 4, present=2)
    toward = []
    for sign in (-1, 1):
        embeddings[3] = sign * F.normalize(views.mean(0), dim=0)
        toward.append(balanced_contrastive(views, labels, embeddings, 0.5))
        torch.testing.assert_close(toward[-1], slow(views, labels, embeddings, 0.5))
    assert toward[1] > toward[0]
    embeddings.requires_grad_()
    balanced_contrastive(views, labels, embeddings, 0.5).backward()
    assert (embeddings.grad[2:].abs().sum(1) > 0).all()


def test_repeated_images_of_another_class_push_no_harder():
    """Class 1 once or many times, all alike: its mean in the denominator is the same."""
    anchor, rival = torch.eye(3, dtype=torch.float64)[:2]
    embeddings = torch.stack([anchor, rival])

    def of_anchor(copies):
        views = torch.stack([anchor, anchor, *[rival] * copies])
        labels = torch.tensor([0, 0, *[1] * copies])
        whole = balanced_contrastive(views, labels, embeddings, 0.5)
        of_rivals = math.log(math.exp(2) + 1) - 2 if copies else 0.0
        return (whole * (2 + copies) - copies * of_rivals) / 2

    wanted = math.log(math.exp(2) + 1) - 2
    for copies in (1, 2, 7):
        assert of_anchor(copies).item() == pytest.approx(wanted, abs=1e-12)


def test_gradients():
    views, labels, embeddings = batch(3, 3, width=4)
    views, embeddings = views.requires_grad_(), embeddings.requires_grad_()
    assert torch.autograd.gradcheck(lambda v, e: balanced_contrastive(v, labels, e, 0.3), (views, embeddings))


def test_gradients_are_those_of_the_slow_loop():
    views, labels, embeddings = batch(4, 6, present=3)
    found, wanted = [], []
    for loss, kept in ((balanced_contrastive, found), (slow, wanted)):
        v, e = views.clone().requires_grad_(), embeddings.clone().requires_grad_()
        kept += torch.autograd.grad(loss(v, labels, e, 0.1), (v, e))
    torch.testing.assert_close(found, wanted)
    assert all(gradient.abs().sum() > 0 for gradient in found)


def test_order_does_not_matter():
    views, labels, embeddings = batch(6, 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        balanced_contrastive(views[order], labels[order], embeddings), balanced_contrastive(views, labels, embeddings)
    )


def test_small_temperatures_stay_finite():
    views, labels, embeddings = batch(6, 4, kind=torch.float32)
    views.requires_grad_()
    found = balanced_contrastive(views, labels, embeddings, 1e-3)
    found.backward()
    assert torch.isfinite(found)
    assert torch.isfinite(views.grad).all()
    exact = slow(views.detach().double(), labels, embeddings.double(), 0.01)
    assert balanced_contrastive(views, labels, embeddings, 0.01).item() == pytest.approx(exact.item(), rel=1e-4)


def test_full_precision_under_autocast():
    views, labels, embeddings = batch(16, 5, kind=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = balanced_contrastive(views, labels, embeddings)
    torch.testing.assert_close(found, balanced_contrastive(views, labels, embeddings))
